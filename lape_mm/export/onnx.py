"""Exports models to ONNX, but only if onnxruntime reproduces PyTorch's outputs on real images."""
from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

from lape_mm.backbones import fold
from lape_mm.wording import first_line

from .detector import Detector, translations

# part of a model -> the task of a model that has it
TASKS = dict(decode_head='segmenter', roi_head='detector', bbox_head='detector', head='classifier')
INT8 = ('dynamic', 'static')
PRODUCTS = ['MatMul', 'Gemm']
NEEDED = ('onnx', 'onnxruntime', 'onnxscript')
OPSET = 18  # lower ones cannot express padding; onnxruntime has no RoiAlign above 21 on the CPU
BATCHES = (1, 3)
TOLERANCE = 1e-4
# for detections: the largest difference of scores, the least overlap of boxes, and the share that
# may stay unmatched, since nearly equal scores or overlaps may come in either order
SCORE_TOLERANCE, OVERLAP, UNMATCHED = 1e-3, .99, .01
EMPTY = .01  # pixels added to boxes, so that empty ones have an area


class Graph(nn.Module):
    """The part of a model that is exported, from normalisation to logits or detections.

    Takes float32 images (B, channels, H, W), 0..255, in the channel order that the config's
    pipeline reads (BGR, as in OpenCV; RGB for CIFAR-100). Returns

        classifier   logits (B, classes)
        segmenter    logits (B, classes, H, W), resized to the image as mmseg does before argmax
        detector     boxes, scores, labels and masks, see `Detector`

    ``img_size`` is (h, w) in pixels; the padding of the data preprocessor is not exported.
    ``turned`` means that the pipeline itself swaps RGB and BGR, as in ImageNet's configs.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, model: Any, img_size: Sequence[int], *, turned: bool = False):
        super().__init__()
        self.model: Any = model
        self.img_size = tuple(img_size)
        tasks = [task for part, task in TASKS.items() if getattr(model, part, None) is not None]
        if not tasks:
            raise ValueError(f'{type(model).__name__} is no classifier, segmenter or detector')
        self.task = tasks[0]
        self.detector: Any = Detector(model, img_size) if self.task == 'detector' else None
        mean, std, swaps = normalisation(model.data_preprocessor)
        self.swaps_channels = swaps != turned
        self.register_buffer('mean', mean)
        self.register_buffer('std', std)
        self.outputs = ['logits'] if self.detector is None else self.detector.outputs

    def normalise(self, image: Tensor) -> Tensor:
        """Normalises images as the backbone expects them."""
        if self.swaps_channels:
            # flip is exported as a slice with a negative step
            image = torch.cat([image[:, 2:3], image[:, 1:2], image[:, 0:1]], dim=1)
        return image if self.mean is None or self.std is None else (image - self.mean) / self.std

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        image = self.normalise(image)
        if self.task == 'classifier':
            return (self.model(image, mode='tensor'),)
        if self.task == 'segmenter':
            return (self.model.encode_decode(image, [dict(img_shape=self.img_size)]),)
        return self.detector(self.model.extract_feat(image))


def normalisation(preprocessor: Any) -> tuple[Tensor | None, Tensor | None, bool]:
    """A preprocessor's mean and std (channels, 1, 1) or None, and whether it swaps RGB and BGR."""
    swaps = any(getattr(preprocessor, name, False)  # of mmpretrain, upstream mmseg, mmengine
                for name in ('to_rgb', 'channel_conversion', '_channel_conversion'))
    if not getattr(preprocessor, '_enable_normalize', False):
        return None, None, swaps
    mean, std = (part.detach().clone().reshape(-1, 1, 1)
                 for part in (preprocessor.mean, preprocessor.std))
    return mean, std, swaps


def export_onnx(model: nn.Module, images: Sequence[Tensor], out: str | Path, *,
                turned: bool = False, int8: str | None = None, notes: Mapping | None = None) \
        -> float:
    """Folds a model, exports its `Graph`, compares it with the unfolded model, and writes it.

    The file takes ``image`` (see `Graph`) in batches of any size and at one resolution. Its
    metadata holds, as JSON, ``task``, ``img_size``, ``swaps_channels``, ``mean``, ``std``,
    ``folded``, ``int8`` and the notes.

    Args:
        model: a model of mmpretrain, mmseg or mmdet with a lape_mm backbone. It is set to
            evaluation mode and otherwise not changed.
        images: raw images (channels, H, W) of one size, as the config's pipeline reads them. Three
            are compared; fewer are repeated. int8='static' calibrates on all of them.
        out: the file to write.
        turned: see `Graph`.
        int8: one of `INT8` to quantise the file after the comparison, see `quantise`.
        notes: more metadata, such as the classes.

    Returns:
        the largest difference between onnxruntime and PyTorch, relative to the output's scale;
        for a detector, the largest difference of matched scores. Both before quantisation.

    Raises:
        ValueError: the model cannot be exported, or the outputs differ; nothing is written.
    """
    size = tuple(images[0].shape[-2:])
    plain = Graph(model.eval(), size, turned=turned).eval()
    folded = Graph(fold(model, size), size, turned=turned).eval()
    batch = torch.stack([images[index % len(images)] for index in range(max(BATCHES))]).float()
    content = trace(folded, batch[:2], {
        'task': folded.task, 'img_size': size, 'swaps_channels': folded.swaps_channels,
        **{name: None if values is None else values.flatten().tolist()
           for name, values in (('mean', folded.mean), ('std', folded.std))},
        'folded': True, 'int8': int8, **(notes or {})})
    difference = (compare if plain.detector is None else compare_detections)(content, plain, batch)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_bytes(quantise(content, int8, images) if int8 else content)
    return difference


@torch.no_grad()
def trace(graph: Graph, images: Tensor, notes: Mapping) -> bytes:
    """Exports a graph for any batch of images of this size; returns the file's content."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            program = torch.onnx.export(
                graph, (images,), dynamo=True, opset_version=OPSET, verbose=False,
                dynamic_shapes=({0: torch.export.Dim('batch')},),
                input_names=['image'], output_names=graph.outputs,
                custom_translation_table=translations())
        assert program is not None  # for mypy; dynamo returns a program
    except Exception as error:  # the exporter can raise anything
        cause = error.__cause__ or error
        raise ValueError(f'PyTorch cannot export {type(graph.model).__name__} to ONNX: '
                         f'{first_line(cause, kind=True)}') from error
    proto = program.model_proto
    for key, value in notes.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value)
    return proto.SerializeToString()


def run_onnx(content: bytes, images: Tensor) -> list[Tensor]:
    """What onnxruntime computes for images, on the CPU."""
    import onnxruntime
    session = onnxruntime.InferenceSession(content, providers=['CPUExecutionProvider'])
    return [torch.from_numpy(output) for output in session.run(None, {'image': images.numpy()})]


@torch.no_grad()
def compare(content: bytes, graph: Graph, images: Tensor) -> float:
    """Compares a file's logits with a graph's; returns the largest difference over their scale."""
    worst = 0.
    for batch in BATCHES:
        (ours,), (theirs,) = run_onnx(content, images[:batch]), graph(images[:batch])
        gap = ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12)).item() \
            if ours.shape == theirs.shape else float('inf')
        if not gap <= TOLERANCE:  # nan included
            raise ValueError(f"onnxruntime and PyTorch differ by {gap:.1e} of the output's scale, "
                             f'more than {TOLERANCE:.0e}: nothing was written')
        worst = max(worst, gap)
    return worst


@torch.no_grad()
def compare_detections(content: bytes, graph: Graph, images: Tensor) -> float:
    """Compares a file's detections with mmdet's; returns the largest difference of scores."""
    from lape_mm.runtime import paste
    cfg, total, lost, differ, area = graph.detector.roi.test_cfg, 0, 0, 0, 0
    worst = 0.
    for batch in BATCHES:
        maps = graph.model.extract_feat(graph.normalise(images[:batch]))
        for theirs, ours in zip(graph.detector.reference(maps),
                                zip(*run_onnx(content, images[:batch]))):
            boxes, scores, labels, *masks = (part[ours[1] > 0] for part in ours)
            gap = (theirs.scores[:, None] - scores).abs()
            room = boxes.new_tensor([0, 0, EMPTY, EMPTY])
            same = (gap < SCORE_TOLERANCE) & (theirs.labels[:, None] == labels) & (
                box_iou(theirs.bboxes + room, boxes + room) > OVERLAP)
            # rounding decides which of two equal scores stays within the limits
            cut = SCORE_TOLERANCE + max(cfg.score_thr, *(
                found.min().item() for found in (theirs.scores, scores)
                if len(found) == cfg.max_per_img), 0.)
            total += len(theirs.scores)
            lost += int((~same.any(1) & (theirs.scores > cut)).sum()
                        + (~same.any(0) & (scores > cut)).sum())
            worst = max([worst, *gap[same].tolist()])
            # mmdet pastes the mask of an empty box over whole rows
            rows, pairs = (same & (boxes[:, 2:] > boxes[:, :2]).all(1)).nonzero(as_tuple=True)
            if masks:
                mine = torch.from_numpy(paste(
                    masks[0][pairs].numpy(), boxes[pairs].numpy(), graph.img_size,
                    cfg.mask_thr_binary))
                differ += int((mine ^ theirs.masks[rows]).sum())
                area += int((mine | theirs.masks[rows]).sum())
    if not total:
        raise ValueError('PyTorch detects nothing in the images to compare on: give others')
    if lost > UNMATCHED * total or differ > UNMATCHED * area:
        raise ValueError(f'{lost} of {total} detections of onnxruntime and PyTorch have no '
                         f'partner, and {differ} of {area} pixels of the masks differ: nothing '
                         'was written')
    return worst


def quantise(content: bytes, how: str, images: Sequence[Tensor]) -> bytes:
    """Quantises an ONNX file to INT8; norms, softmax and position embedding stay float.

    'dynamic' quantises the weights of linear layers, and finds their inputs' range in each run.
    'static' also quantises convolutions, and takes the ranges from the images. Either leaves
    products of two activations (attention) in float.
    """
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process
    with TemporaryDirectory() as folder:
        plain, ready, after = (f'{folder}/{name}.onnx' for name in ('plain', 'ready', 'after'))
        Path(plain).write_bytes(content)
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
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
        made = onnx.load(after)
    del made.metadata_props[:]
    made.metadata_props.extend(onnx.load_from_string(content).metadata_props)
    return made.SerializeToString()
