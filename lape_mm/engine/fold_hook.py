"""Evaluation with a folded model, while the run trains the unfolded one."""
from __future__ import annotations

from collections.abc import Sequence

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper

from lape_mm.backbones import fold
from lape_mm.registry import HOOKS


@HOOKS.register_module()
class FoldHook(Hook):
    """Folds the model for each validation and test, and puts the unfolded one back.

    It is folded at the first batch, after hooks such as EMAHook have put their weights in place,
    and anew each time, so that it is never stale.

    Args:
        img_size: side or (h, w), in pixels, of all images as they enter the backbone: the
            evaluation has to bring them to one size, or cut windows of one size.
    """

    # puts the model back before CheckpointHook and EMAHook see the end of the evaluation
    priority = 'VERY_HIGH'

    def __init__(self, img_size: int | Sequence[int]):
        self.img_size = img_size
        self.unfolded = None

    def _fold(self, runner, batch_idx: int, *args, **kwargs) -> None:
        if batch_idx == 0:
            self.unfolded = runner.model
            model = runner.model.module if is_model_wrapper(runner.model) else runner.model
            runner.model = fold(model, self.img_size)

    def _restore(self, runner, *args, **kwargs) -> None:
        if self.unfolded is not None:
            runner.model, self.unfolded = self.unfolded, None

    before_val_iter = before_test_iter = _fold
    after_val_epoch = after_test_epoch = _restore
