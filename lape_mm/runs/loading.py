"""What a run takes from a checkpoint: all of it, or one line that says why not."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn

from lape_mm.checkpoints.files import CheckpointError, named, read_checkpoint
from lape_mm.checkpoints.fit import check_start, check_whole
from lape_mm.checkpoints.layouts import unwrap

from .errors import RunError
from .takeover import check_taken_over, settings


def own_weights(model: Any) -> dict[str, Tensor]:
    """A model's state dict, without the wrapper of a distributed run."""
    return (model.module if is_model_wrapper(model) else model).state_dict()


def check_fits(model: nn.Module, checkpoint: str) -> dict:
    """A checkpoint's content, which holds exactly the model's weights.

    Raises:
        RunError: it holds others, or cannot be read.
    """
    try:
        with named(checkpoint):
            content = read_checkpoint(checkpoint)
            meta = content.get('meta')
            if isinstance(meta, Mapping) and 'folded_from' in meta:
                raise CheckpointError(
                    f'was folded by tools/deploy.py: use {meta["folded_from"]} instead')
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

    Its weights fit all the same, so that right predictions would bear wrong names and count as
    wrong. Names that only one of the two knows are taken for another spelling; a name may stand
    for several labels, as ImageNet's cranes do.

    Args:
        content: of the checkpoint.
        tested: the classes of the data.

    Raises:
        RunError: the classes of both differ in their order.
    """
    meta: Any = content
    for key in ('meta', 'dataset_meta', 'classes'):
        meta = meta.get(key) if isinstance(meta, Mapping) else None
    learnt = [str(name) for name in meta] if isinstance(meta, (list, tuple)) else []
    labels: dict[str, list[int]] = {}
    for label, name in enumerate(learnt):
        labels.setdefault(name, []).append(label)
    for label, name in enumerate(tested):
        if label not in labels.get(name, [label]):
            raise RunError(f'the checkpoint was trained with class {name!r} as label '
                           f'{labels[name][0]}, which the config tests as label {label}: expected '
                           f'the classes in the order {", ".join(learnt)}, in the config and in '
                           'its files')


class FittingWeightsHook(Hook):
    """Ends a run whose checkpoint mmengine would load in part, and one with integers as weights.

    A resumed run needs all of its weights, and its place; `load_from` takes what is there, if
    anything is.
    """

    priority = 'VERY_HIGH'  # before the weights are copied anywhere

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        own, resumes = own_weights(runner.model), runner.cfg.get('resume')
        averaged = {name.removeprefix('module.'): value for name, value
                    in (checkpoint.get('ema_state_dict') or {}).items() if name != 'steps'}
        if resumes:
            check_whole(own, checkpoint.get('state_dict', checkpoint))
            if averaged:
                check_whole(own, averaged)
            for name in ('epoch', 'iter'):
                value = (checkpoint.get('meta') or {}).get(name)
                if not isinstance(value, int) or not 0 <= value < 2 ** 31:
                    raise CheckpointError(f'meta.{name}={value!r:.100}: a run needs the number of '
                                          f'{name}s that it has done')
            return
        if 'state_dict' not in checkpoint:  # the weights alone: EMAHook knows but the other form
            weights = copy(checkpoint)
            checkpoint.clear()
            checkpoint['state_dict'] = weights
        # mmengine drops this, too
        check_start(own, {str(name).removeprefix('module.'): value
                          for name, value in checkpoint['state_dict'].items()})
        if averaged:
            check_start(own, averaged)


def guard_loading(runner: Runner) -> None:
    """Makes `load_from` and resuming end in one line where a checkpoint is not what it should be.

    The runner then raises CheckpointError, which names the file.
    """
    load_or_resume = runner.load_or_resume

    def guarded() -> None:
        before = settings(runner)
        with named(runner.cfg.load_from or 'load_from'):
            try:
                load_or_resume()
                check_taken_over(runner, before)
            except CheckpointError:
                raise
            except Exception as error:  # mmengine expects what its own checkpoints hold, unchecked
                first = (str(error).strip().splitlines() or [''])[0][:300]
                raise CheckpointError('a run cannot take it over '
                                      f'({type(error).__name__}: {first})') from error

    runner.load_or_resume = guarded
    runner.register_hook(FittingWeightsHook())
