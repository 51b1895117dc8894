"""INT8 weights, and with calibration activations, for the matrix products of an ONNX file."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

INT8 = ('dynamic', 'static')
PRODUCTS = ['MatMul', 'Gemm']


def quantise(content: bytes, how: str, images: Sequence[Tensor]) -> bytes:
    """An ONNX file whose layers compute in INT8; norms, softmax and position embedding stay float.

    'dynamic' quantises the weights of linear layers and finds the range of their inputs in each
    run. 'static' also quantises convolutions, and takes the ranges from the images. Products of
    two activations (attention) stay float in both.

    Args:
        content: of the file.
        how: one of `INT8`.
        images: (channels, H, W) each, as the file takes them.
    """
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process
    with TemporaryDirectory() as folder:
        before, ready, after = (str(Path(folder, f'{name}.onnx'))
                                for name in ('before', 'ready', 'after'))
        Path(before).write_bytes(content)
        quant_pre_process(before, ready, skip_symbolic_shape=True)
        if how == 'dynamic':
            quantization.quantize_dynamic(ready, after, op_types_to_quantize=PRODUCTS,
                                          per_channel=True)
        else:
            graph = onnx.load(ready).graph
            weights = {weight.name for weight in graph.initializer}
            batches = iter([{'image': image[None].float().numpy()} for image in images])

            class Images(quantization.CalibrationDataReader):
                def get_next(self):
                    return next(batches, None)

            types = [*PRODUCTS, 'Conv']
            quantization.quantize_static(
                ready, after, Images(), quant_format=quantization.QuantFormat.QDQ,
                per_channel=True, op_types_to_quantize=types,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                nodes_to_exclude=[node.name for node in graph.node if node.op_type in PRODUCTS
                                  and not weights & set(node.input)],
                # logits beyond those of the calibration would be clipped
                extra_options={'OpTypesToExcludeOutputQuantization': types})
        made, notes = onnx.load(after), onnx.load_from_string(content).metadata_props
        del made.metadata_props[:]
        made.metadata_props.extend(notes)
        return made.SerializeToString()
