"""What happens when the loss is not a number."""
from __future__ import annotations

from collections.abc import Mapping

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict

from lape_mm.registry import HOOKS

from .stop import RunStopped


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Skips updates whose gradients are not finite, names their images, and stops after several.

    One step with such a gradient makes all weights NaN. The gradients are dropped before the
    optimizer sees them, on all processes alike, since they share them; fp16's own scaler does the
    same. A BatchNorm whose running statistics are no longer finite ends the run, since nothing
    restores them.

    Args:
        patience: iterations in a row with a non-finite loss or a skipped update that end the run.

    Raises:
        ValueError: patience below 1.
    """

    priority = 'HIGH'  # before a checkpoint is written

    def __init__(self, patience: int = 5):
        if patience < 1:
            raise ValueError(f'patience={patience}: expected at least 1')
        self.patience, self.in_a_row, self.left_out = patience, 0, False

    def before_train(self, runner) -> None:
        wrappers = runner.optim_wrapper
        for wrapper in wrappers.values() if isinstance(wrappers, OptimWrapperDict) else [wrappers]:
            wrapper.optimizer.register_step_pre_hook(self._drop)

    def _drop(self, optimizer: torch.optim.Optimizer, args, kwargs) -> None:
        """Called before each step."""
        gradients = [parameter.grad for group in optimizer.param_groups
                     for parameter in group['params'] if parameter.grad is not None]
        if gradients and not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
            self.left_out = True
            optimizer.zero_grad(set_to_none=True)  # the step skips parameters without a gradient

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        wrong = [f'{name} is {float(value)}' for name, value in (outputs or {}).items()
                 if 'loss' in name and torch.is_tensor(value) and value.numel() == 1
                 and not torch.isfinite(value)]
        if not wrong and not self.left_out:
            self.in_a_row = 0
            return
        left_out, self.left_out, self.in_a_row = self.left_out, False, self.in_a_row + 1
        text = (f'iteration {runner.iter + 1}: {", ".join(wrong) or "gradients are not finite"}; '
                f'its images: {", ".join(images(data_batch)) or "unknown"}')
        if self.in_a_row >= self.patience:
            raise RunStopped(f'{text}. The run ends after {self.in_a_row} such iterations in a '
                             'row; a lower learning rate, a longer warm-up or --amp bf16 may help')
        spoilt = [name for name, buffer in runner.model.named_buffers()
                  if buffer.is_floating_point() and not torch.isfinite(buffer).all()]
        if spoilt:  # the forward pass has written them
            raise RunStopped(f'{text}. The run ends, since {spoilt[0]} is not finite any more; '
                             '--resume goes on from the last checkpoint')
        runner.logger.warning(f'{text}. ' + ('Its update is left out' if left_out else
                                             'No gradient that was applied is affected'))


def images(data_batch) -> list[str]:
    """Paths of a batch's images, or their ids."""
    samples = data_batch.get('data_samples') if isinstance(data_batch, Mapping) else None
    return [str(sample.get('img_path') or sample.get('img_id', sample.get('sample_idx')))
            for sample in samples or [] if hasattr(sample, 'get')]
