"""mmengine's Runner with checked loading, an exact total batch, and readable pictures."""
from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from mmengine.runner import Runner
from mmengine.visualization import Visualizer

from lape_mm.checkpoints.files import CheckpointError, named
from lape_mm.wording import first_line

from .drawing import draw_large


class CheckedRunner(Runner):
    """mmengine's Runner for any toolbox; each method says how it differs."""

    def load_or_resume(self) -> None:
        """Loads ``load_from``; CheckpointError with the file's name if it cannot be used."""
        with named(self.cfg.load_from or 'load_from'):
            try:
                super().load_or_resume()
            except CheckpointError:
                raise
            except Exception as error:  # mmengine reads entries unchecked
                raise CheckpointError('no run can start from it '
                                      f'({type(error).__name__}: {first_line(error)})') from error
        # mmengine would delete a best checkpoint in another folder
        info, folder = self.message_hub.runtime_info, os.path.realpath(self.work_dir)
        for key in [key for key in info if key.startswith('best_ckpt')]:
            if os.path.dirname(os.path.realpath(str(info[key]))) != folder:
                self.logger.warning(f'{key} of the resumed checkpoint, {info[key]!r:.200}, is not '
                                    f'in {self.work_dir}: it is left alone')
                info.pop(key)

    def scale_lr(self, optim_wrapper, auto_scale_lr: Mapping | None = None) -> None:
        """Scales the learning rate by the images per optimizer step, accumulated batches included.

        mmengine counts processes x batch size; a step also averages the gradients of
        ``optim_wrapper.accumulative_counts`` batches.
        """
        steps = (self.cfg.get('optim_wrapper') or {}).get('accumulative_counts', 1)
        if auto_scale_lr and auto_scale_lr.get('enable') and steps > 1:
            base = auto_scale_lr['base_batch_size'] / steps
            auto_scale_lr = dict(auto_scale_lr, base_batch_size=base)
            self.logger.info(f'Each optimizer step accumulates {steps} batches: the learning rate '
                             f'is scaled for base_batch_size / {steps} = {base:g}')
        super().scale_lr(optim_wrapper, auto_scale_lr)

    def build_visualizer(self, visualizer: Visualizer | dict | None = None) -> Visualizer:
        """Builds a visualizer that enlarges small images; mmpretrain's has an option for that."""
        made: Any = super().build_visualizer(visualizer)
        if not hasattr(made, 'visualize_cls'):
            made.add_datasample = partial(draw_large, made.add_datasample)
        return made
