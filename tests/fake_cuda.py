"""CUDA tensors on a machine without a GPU: their devices, dtypes and shapes, but no numbers.

Forward passes run on them; the autograd engine wants a real device.
"""
from contextlib import contextmanager

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DTYPES = {'fp32': torch.float32, 'bf16': torch.bfloat16, 'fp16': torch.float16}
COPIES = {'_to_copy', 'copy_', 'lift_fresh'}
PROMOTING = {'cat', 'cudnn_batch_norm', 'native_batch_norm'}


class Refusals(TorchDispatchMode):
    """Fails where an operator on CUDA would and a fake one does not.

    A fake convolution takes its weights from the CPU, a fake matrix product takes two dtypes.
    """

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if op.namespace == 'prim':  # asks for a tensor's device
            return op(*args, **kwargs)
        name = op.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if name not in COPIES:
            assert all(x.is_cuda or x.dim() == 0 for x in tensors), f'{op}: a tensor on the CPU'
            dtypes = {x.dtype for x in tensors if x.is_floating_point()}
            promotes = torch.Tag.pointwise in op.tags or name in PROMOTING
            assert len(dtypes) <= 1 or promotes, f'{op}: {dtypes}'
            if op.namespace == 'torchvision':
                assert torch.bfloat16 not in dtypes, f'{op}: {dtypes}'
        if name in ('nonzero', 'nms'):  # detectors branch on how many there are: say all
            x = tensors[0]
            shape = (x.numel(), x.dim()) if name == 'nonzero' else x.shape[:1]
            return x.new_zeros(shape, dtype=torch.int64)
        return op(*args, **kwargs)


@contextmanager
def fake_cuda():
    """Within, ``.to('cuda')`` and ``device='cuda'`` give fake tensors, of no use outside."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
    with mode, Refusals():
        yield


@contextmanager
def precision(model, dtype):
    """Runs a model under autocast to a dtype on CUDA, without autocast for float32."""
    seen = set()
    hooks = [module.register_forward_hook(lambda linear, given, output: seen.add(output.dtype))
             for module in model.modules() if isinstance(module, torch.nn.Linear)]
    with torch.autocast('cuda', dtype=dtype):
        # autocast has switched itself off, for want of a GPU
        torch.set_autocast_enabled('cuda', dtype != torch.float32)
        yield
    for hook in hooks:
        hook.remove()
    assert seen == {dtype}
