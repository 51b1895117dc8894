"""What a resumed run takes over beside its weights, looked at before the run goes on with it.

mmengine takes it from the checkpoint as it stands there.
"""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from numbers import Number

from mmengine.optim import OptimWrapper, OptimWrapperDict, _ParamScheduler
from mmengine.runner import Runner
from torch.optim import Optimizer

from lape_mm.checkpoints.files import CheckpointError

MOMENTS = ('exp_avg', 'exp_avg_sq', 'max_exp_avg_sq', 'momentum_buffer')


def settings(runner: Runner) -> dict[str, dict]:
    """The settings of a run's optimizers and schedules, by the names of what has them."""
    found = {f'optimizer {name}group {place}': {**group, 'params': None}
             for name, optimizer in _optimizers(runner)
             for place, group in enumerate(optimizer.param_groups)}
    schedules = runner.param_schedulers or []
    if isinstance(schedules, Mapping):
        schedules = [one for several in schedules.values() for one in several or []]
    return {**found, **{f'schedule {place}': dict(vars(one)) for place, one in enumerate(schedules)
                        if isinstance(one, _ParamScheduler)}}


def check_taken_over(runner: Runner, before: Mapping[str, Mapping]) -> None:
    """Raises CheckpointError unless what a run has taken over is of the kind of what it had.

    Settings have to be numbers where numbers were, and the optimizer's moments of the shapes of the
    weights. A path of the best checkpoint that lies outside the run's folder is forgotten: mmengine
    would delete what is there, a folder with all that is in it, when it finds a better one.

    Args:
        runner: after it has resumed.
        before: its `settings` before it has.
    """
    for name, taken in settings(runner).items():
        for key, old in before.get(name, {}).items():
            if key not in taken or not _alike(old, taken[key]):
                raise CheckpointError(f'{key!r} of {name} is {taken.get(key, "missing")!r:.100}, '
                                      f'expected the like of {old!r:.100}')
    for _, optimizer in _optimizers(runner):
        for weight, state in optimizer.state.items():
            for key in MOMENTS:
                value = state.get(key)
                if value is not None and getattr(value, 'shape', None) != weight.shape:
                    raise CheckpointError(f"the optimizer's {key!r} of a weight of shape "
                                          f'{tuple(weight.shape)} is {value!r:.100}')
    info = runner.message_hub.runtime_info
    for key in [key for key in info if key.startswith('best_ckpt')]:
        if not _within(info[key], runner.work_dir):
            runner.logger.warning(f'{key} of the resumed checkpoint, {info[key]!r:.200}, is not in '
                                  f'{runner.work_dir}: it is left alone')
            info.pop(key)


def _optimizers(runner: Runner) -> Iterator[tuple[str, Optimizer]]:
    wrapper = runner.optim_wrapper
    several = isinstance(wrapper, OptimWrapperDict)
    for name, one in wrapper.items() if several else [('', wrapper)]:
        if isinstance(one, OptimWrapper):
            yield f'{name} ' if name else '', one.optimizer


def _alike(old, new) -> bool:
    if old is None:  # a choice that is left to torch
        return isinstance(new, (Number, type(None)))
    return isinstance(new, Number if isinstance(old, Number) else type(old))


def _within(path, folder: str) -> bool:
    return isinstance(path, str) and os.path.dirname(os.path.realpath(path)) \
        == os.path.realpath(folder)
