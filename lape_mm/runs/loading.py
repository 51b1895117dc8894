"""What a run takes from a checkpoint: all of it, or one line that says why not."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn

from lape_mm.checkpoints.files import CheckpointError, dataset_meta, named, read_checkpoint
from lape_mm.checkpoints.fit import check_start, check_whole
from lape_mm.checkpoints.layouts import unwrap
from lape_mm.wording import first_line

from .errors import RunError


def own_weights(model: Any) -> dict[str, Tensor]:
    """A model's state dict, without the wrapper of a distributed run."""
    return (model.module if is_model_wrapper(model) else model).state_dict()


def check_fits(model: nn.Module, checkpoint: str) -> dict:
    """A checkpoint's content; RunError unless it holds exactly the model's weights."""
    try:
        with named(checkpoint):
            content = read_checkpoint(checkpoint)
            check_whole(own_weights(model), unwrap(content))
    except CheckpointError as error:
        raise RunError(str(error)) from error
    return content


def check_tested(runner: Runner, checkpoint: str) -> None:
    """Raises RunError unless a checkpoint is the model's, and its classes are those of the data."""
    content = check_fits(runner.model, checkpoint)
    data = getattr(runner.test_loop.dataloader.dataset, 'metainfo', None) or {}
    for metainfo in data if isinstance(data, (list, tuple)) else [data]:  # of joined data sets
        check_classes(content, metainfo.get('classes') or ())


def check_classes(content: Mapping, tested: Sequence[str]) -> None:
    """Refuses a checkpoint that has learnt some class under another label.

    Its weights fit, so right predictions would count as wrong. A name that only one of the two
    knows is taken for another spelling; a name may stand for several labels, as ImageNet's cranes.
    """
    meta = dataset_meta(content).get('classes')
    learnt = [str(name) for name in meta] if isinstance(meta, (list, tuple)) else []
    labels: dict[str, list[int]] = {}
    for label, name in enumerate(learnt):
        labels.setdefault(name, []).append(label)
    for label, name in enumerate(tested):
        if label not in labels.get(name, [label]):
            raise RunError(f'the checkpoint was trained with class {name!r} as label '
                           f'{labels[name][0]}, which the config tests as label {label}: expected '
                           f'the classes in the order {", ".join(learnt)}, in the config '
                           'and in its files')


class FittingWeightsHook(Hook):
    """Ends a run whose checkpoint mmengine would load in part.

    A resumed run needs all of its weights; `load_from` takes what fits, which has to be something.
    """

    priority = 'VERY_HIGH'  # before the weights are copied anywhere

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        check = check_whole if runner.cfg.get('resume') else check_start
        own = own_weights(runner.model)
        if 'state_dict' not in checkpoint:  # the weights alone, which EMAHook does not expect
            weights = copy(checkpoint)
            checkpoint.clear()
            checkpoint['state_dict'] = weights
        for key in ('state_dict', 'ema_state_dict'):
            if state := checkpoint.get(key):
                weights = unwrap({'state_dict': state})
                if key == 'ema_state_dict':
                    weights.pop('steps', None)
                check(own, weights)


def guard_loading(runner: Runner) -> None:
    """Makes `load_from` and resuming end in one line if a checkpoint is not what it should be.

    The runner then raises CheckpointError, which names the file.
    """
    load_or_resume = runner.load_or_resume

    def guarded() -> None:
        with named(runner.cfg.load_from or 'load_from'):
            try:
                load_or_resume()
            except CheckpointError:
                raise
            except Exception as error:  # mmengine looks entries up unchecked
                raise CheckpointError('a run cannot take it over '
                                      f'({type(error).__name__}: {first_line(error)})') from error
        forget_best(runner)

    runner.load_or_resume = guarded
    runner.register_hook(FittingWeightsHook())


def forget_best(runner: Runner) -> None:
    """Keeps mmengine from deleting another folder's best checkpoint once there is a better one."""
    info, folder = runner.message_hub.runtime_info, os.path.realpath(runner.work_dir)
    for key in [key for key in info if key.startswith('best_ckpt')]:
        if os.path.dirname(os.path.realpath(str(info[key]))) != folder:
            runner.logger.warning(f'{key} of the resumed checkpoint, {info[key]!r:.200}, is not in '
                                  f'{runner.work_dir}: it is left alone')
            info.pop(key)
