"""A checkpoint of any layout for a model with a head."""
from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lape_mm.backbones.encoder import Encoder
from lape_mm.checkpoints.convert import HEADS
from lape_mm.checkpoints.layouts import backbone_state
from lape_mm.checkpoints.transfer import match


def fit(checkpoint: Mapping, model: Encoder, prefix: str | None = None) -> dict[str, Tensor]:
    """The weights of a checkpoint with the model's names, on its grid.

    timm calls it for files given to ``pretrained_cfg_overlay``, `TimmModel.load_pretrained` for
    those given to ``checkpoint_path``.

    Raises:
        CheckpointError: there is no transformer, or more than one.
    """
    state, outside = backbone_state(checkpoint, prefix)
    fitting, report = match(model, state)
    # of another shape: timm adapts the first convolution, and torch names the others
    fitting.update((name, state[name]) for name, why in report.missing.items() if why)
    heads = [(start, bare, name, value) for name, value in {**outside, **state}.items()
             for start, bare in HEADS.items() if name in (f'{start}weight', f'{start}bias')]
    for start, bare, name, value in heads:
        fitting[bare + name.removeprefix(start)] = value
    return {name: value for name, value in fitting.items() if not name.startswith('head_dist.')}
