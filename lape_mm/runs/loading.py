"""What a run takes from a checkpoint: all of it, or one line that says why not."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn

from lape_mm.checkpoints.files import CheckpointError, one_line, read_checkpoint
from lape_mm.checkpoints.layouts import unwrap

from .errors import RunError
from .takeover import check_taken_over, settings


def check_fits(model: nn.Module, checkpoint: str) -> dict:
    """A checkpoint's content, which holds exactly the model's weights.

    mmengine loads what fits and warns about the rest, so that another joining or another head
    would be evaluated half untrained.

    Raises:
        RunError: it holds others, or cannot be read.
    """
    try:
        content = read_checkpoint(checkpoint)
        text = misfits(model, unwrap(content))
    except CheckpointError as error:
        text = str(error)
        raise RunError(text if text.startswith(checkpoint) else f'{checkpoint}: {text}') from error
    if text:
        meta = content.get('meta')
        if isinstance(meta, Mapping) and 'folded_from' in meta:
            text = f'was folded by tools/deploy.py: use {meta["folded_from"]} instead'
        raise RunError(f'{checkpoint} {text}')
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


def misfits(model: Any, found: Mapping[str, Tensor], *, partly: bool = False) -> str:
    """Why weights are not a model's, '' where they are.

    Args:
        model: maybe in the wrapper of a distributed run.
        found: the weights.
        partly: whether names may be missing or more, and shapes others, as for a model that only
            starts from weights of another task. Some weight has to be the model's all the same.
    """
    wanted = (model.module if is_model_wrapper(model) else model).state_dict()
    shared = [name for name in wanted if name in found]
    if partly and not any(getattr(found[name], 'shape', None) == wanted[name].shape
                          for name in shared):
        return one_line(
            f'holds no weight of the model under its name and in its shape: the model begins with '
            f'{next(iter(wanted), None)}, the file with {next(iter(found), None)}. A file of a '
            'backbone alone, or of somebody else, is given by model.backbone.init_cfg.checkpoint')
    differences = {} if partly else {
        'missing': [name for name in wanted if name not in found],
        'unknown to the model': [name for name in found if name not in wanted],
        'of another shape': [name for name in shared if found[name].shape != wanted[name].shape]}
    differences['of another kind of number'] = [
        name for name in shared if not isinstance(found[name], Tensor)
        or found[name].is_floating_point() != wanted[name].is_floating_point()]
    if not any(differences.values()):
        return ''
    text = '; '.join(f'{what}: {len(names)}, first {names[0]}'
                     for what, names in differences.items() if names)
    return one_line(f'does not fit the config ({text}): was it trained with other settings, such '
                    'as another --joining?')


class FittingWeightsHook(Hook):
    """Ends a run whose checkpoint mmengine would load in part, and one with integers as weights.

    A resumed run needs all of its weights, and its place; `load_from` takes what is there, if
    anything is.
    """

    priority = 'VERY_HIGH'  # before the weights are copied anywhere

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        resumes = runner.cfg.get('resume')
        averaged = {name.removeprefix('module.'): value for name, value
                    in (checkpoint.get('ema_state_dict') or {}).items() if name != 'steps'}
        weights = checkpoint.get('state_dict', checkpoint)
        if not resumes:
            if weights is checkpoint:  # the weights alone: EMAHook knows but the other form
                weights = copy(checkpoint)
                checkpoint.clear()
                checkpoint['state_dict'] = weights
            # mmengine drops this, too
            weights = {str(name).removeprefix('module.'): value for name, value in weights.items()}
        for found in (weights, *([averaged] if averaged else [])):
            if text := misfits(runner.model, found, partly=not resumes):
                raise CheckpointError(text)
        for name in ('epoch', 'iter') if resumes else ():
            value = (checkpoint.get('meta') or {}).get(name)
            if not isinstance(value, int) or not 0 <= value < 2 ** 31:
                raise CheckpointError(f'meta.{name}={value!r:.100}: a run needs the number of '
                                      f'{name}s that it has done')


def guard_loading(runner: Runner) -> None:
    """Makes `load_from` and resuming end in one line where a checkpoint is not what it should be.

    The runner then raises CheckpointError, which names the file.
    """
    load_or_resume = runner.load_or_resume

    def guarded() -> None:
        before = settings(runner)
        try:
            load_or_resume()
            check_taken_over(runner, before)
        except Exception as error:  # mmengine expects what its own checkpoints hold, unchecked
            path, text = str(runner.cfg.load_from), str(error).strip()
            if not isinstance(error, CheckpointError):
                first = (text.splitlines() or [''])[0][:300]
                text = f'a run cannot take it over ({type(error).__name__}: {first})'
            raise CheckpointError(text if text.startswith(path) else f'{path}: {text}') from error

    runner.load_or_resume = guarded
    runner.register_hook(FittingWeightsHook())
