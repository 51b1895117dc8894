"""Checks that a checkpoint fits the model before a run uses it."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor, nn

from lape_mm.checkpoints.files import CheckpointError, dataset_meta, named, read_checkpoint
from lape_mm.checkpoints.fit import check_start, check_whole
from lape_mm.checkpoints.layouts import unwrap

from .errors import RunError


def own_weights(model: Any) -> dict[str, Tensor]:
    """A model's state dict, without the wrappers of distributed runs and --tta."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model.state_dict()


@contextmanager
def one_line() -> Iterator[None]:
    """Turns a CheckpointError into a RunError."""
    try:
        yield
    except CheckpointError as error:
        raise RunError(str(error)) from error


def check_fits(model: nn.Module, checkpoint: str) -> dict:
    """Reads a checkpoint; RunError unless it holds exactly the model's weights."""
    with one_line(), named(checkpoint):
        content = read_checkpoint(checkpoint)
        check_whole(own_weights(model), unwrap(content))
    return content


def check_tested(runner: Runner, checkpoint: str) -> None:
    """Raises RunError unless a checkpoint fits the model, and its classes match the data's."""
    content = check_fits(runner.model, checkpoint)
    data = getattr(runner.test_loop.dataloader.dataset, 'metainfo', None) or {}
    for metainfo in data if isinstance(data, (list, tuple)) else [data]:  # of joined data sets
        check_classes(content, metainfo.get('classes') or ())


def check_classes(content: Mapping, tested: Sequence[str]) -> None:
    """Rejects a checkpoint whose labels mean other classes: right answers would count as wrong.

    A name on only one side is taken for another spelling. One name may have several labels, as
    ImageNet's cranes do.
    """
    meta = dataset_meta(content).get('classes')
    learnt = [str(name) for name in meta] if isinstance(meta, (list, tuple)) else []
    for label, name in enumerate(tested):
        if name in learnt and learnt[label:label + 1] != [name]:
            raise RunError(f'the checkpoint was trained with class {name!r} as label '
                           f'{learnt.index(name)}, which the config tests as label {label}: '
                           f'expected the classes in the order {", ".join(learnt)}, in the config '
                           'and in its files')


class FittingWeightsHook(Hook):
    """Stops a run whose checkpoint does not fit; mmengine would load the part that fits.

    A resumed run needs all weights; ``load_from`` needs at least one that fits.
    """

    priority = 'VERY_HIGH'  # before the weights are copied anywhere

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        check = check_whole if runner.cfg.get('resume') else check_start
        own = own_weights(runner.model)
        if 'state_dict' not in checkpoint:  # a bare state dict, which EMAHook does not expect
            weights = dict(checkpoint)
            checkpoint.clear()
            checkpoint['state_dict'] = weights
        for key in ('state_dict', 'ema_state_dict'):
            if state := checkpoint.get(key):
                weights = unwrap({'state_dict': state})
                weights.pop('steps', None)  # EMA's own counter
                check(own, weights)
