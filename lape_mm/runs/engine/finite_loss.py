"""Keeps losses and gradients that are not finite away from the weights."""
from __future__ import annotations

import torch
from mmengine.hooks import Hook

from lape_mm.registry import HOOKS
from lape_mm.runs.errors import RunError


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Skips updates with NaN or infinite gradients, and logs the batch's images.

    Ends the run after ``patience`` such iterations in a row. Ends it at once if a BatchNorm's
    running statistics are not finite, because they cannot recover.
    """

    priority = 'HIGH'  # before a checkpoint is written

    def __init__(self, patience: int = 5):
        self.patience, self.in_a_row, self.skipped = patience, 0, False

    def before_train(self, runner) -> None:
        runner.optim_wrapper.optimizer.register_step_pre_hook(self._drop)

    def _drop(self, optimizer: torch.optim.Optimizer, args, kwargs) -> None:
        """Drops all gradients before a step if one is not finite, so that nothing is updated."""
        gradients = [parameter.grad for group in optimizer.param_groups
                     for parameter in group['params'] if parameter.grad is not None]
        if gradients and not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
            self.skipped = True
            optimizer.zero_grad(set_to_none=True)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        wrong = [f'{name} is {float(value)}' for name, value in (outputs or {}).items()
                 if 'loss' in name and torch.is_tensor(value) and value.numel() == 1
                 and not torch.isfinite(value)]
        skipped, self.skipped = self.skipped, False
        if not wrong and not skipped:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        samples = data_batch.get('data_samples') if isinstance(data_batch, dict) else ()
        images = [str(one.get('img_path') or one.get('img_id', one.get('sample_idx')))
                  for one in samples or () if hasattr(one, 'get')]
        text = (f'iteration {runner.iter + 1}: {", ".join(wrong) or "gradients are not finite"}; '
                f'its images: {", ".join(images) or "unknown"}')
        broken = [name for name, buffer in runner.model.named_buffers()
                  if buffer.is_floating_point() and not torch.isfinite(buffer).all()]
        if broken or self.in_a_row >= self.patience:
            why = (f'because {broken[0]} is no longer finite; --resume continues from the last '
                   'checkpoint' if broken else f'after {self.in_a_row} such iterations in a row; a '
                   'lower learning rate, a longer warm-up or --amp bf16 may help')
            raise RunError(f'{text}. The run ends {why}', status=1, own=True)
        runner.logger.warning(f'{text}. ' + ('Its update is left out' if skipped else
                                             'The gradients of this step are finite'))
