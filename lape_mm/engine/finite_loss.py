"""What happens when the loss is not a number."""
from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper

from lape_mm.registry import HOOKS

from .stop import RunStopped


@HOOKS.register_module()
class FiniteLossHook(Hook):
    """Leaves out updates whose gradients are not finite, names them, and stops after some.

    A single step with such a gradient makes all weights NaN. Instead the gradients are dropped
    before the optimizer sees them, on all processes alike, since they share them; fp16's own scaler
    does the same and is left to itself. Running statistics of a BatchNorm that have become
    non-finite end the run: nothing takes them back.

    Args:
        patience: so many iterations in a row with a loss that is not finite, or whose update was
            left out, end the run.

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
        for wrapper in ([wrappers] if isinstance(wrappers, OptimWrapper) else wrappers.values()):
            wrapper.optimizer.register_step_pre_hook(self._drop)

    def _drop(self, optimizer: torch.optim.Optimizer, args, kwargs) -> None:
        """Called before each step."""
        gradients = [parameter.grad for group in optimizer.param_groups
                     for parameter in group['params'] if parameter.grad is not None]
        if gradients and not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
            self.left_out = True
            optimizer.zero_grad(set_to_none=True)  # a parameter without one stays as it is

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        losses = dict(scalars(outputs or {}))
        wrong = {name: value for name, value in losses.items() if not torch.isfinite(value)}
        if not wrong and not self.left_out:
            self.in_a_row = 0
            return
        left_out, self.left_out, self.in_a_row = self.left_out, False, self.in_a_row + 1
        what = ', '.join(f'{name} is {float(value)}' for name, value in wrong.items()) \
            or 'gradients are not finite'
        text = f'iteration {runner.iter + 1}: {what}; its images: {", ".join(images(data_batch))}'
        if self.in_a_row >= self.patience:
            raise RunStopped(f'{text}. The run ends after {self.in_a_row} such iterations in a '
                             'row; a lower learning rate, a longer warm-up or --amp bf16 may help')
        spoilt = [name for name, buffer in runner.model.named_buffers()
                  if buffer.is_floating_point() and not torch.isfinite(buffer).all()]
        if spoilt:  # running statistics, which the forward has written already
            raise RunStopped(f'{text}. The run ends, since {spoilt[0]} is not finite any more; '
                             '--resume goes on from the last checkpoint')
        runner.logger.warning(f'{text}. ' + (
            'Its update is left out' if left_out else
            'No gradient that was applied is affected'))


def scalars(outputs: Mapping) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and values of the terms of a loss that are single numbers; metrics are none."""
    for name, value in outputs.items():
        if 'loss' not in name:
            continue
        value = value if torch.is_tensor(value) else torch.as_tensor(value)
        if value.numel() == 1 and value.is_floating_point():
            yield name, value.detach()


def images(data_batch) -> list[str]:
    """Paths of a batch's images, else their ids, as far as the samples know them."""
    samples = data_batch.get('data_samples') if isinstance(data_batch, Mapping) else None
    found = []
    for place, sample in enumerate(samples or []):
        names = (sample.get(key) for key in ('img_path', 'img_id', 'sample_idx')) \
            if hasattr(sample, 'get') else ()
        found.append(str(next((name for name in names if name is not None), f'number {place}')))
    return found or ['unknown']
