"""A checkpoint of any layout for a model with a head."""
from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lape_mm.backbones.encoder import Encoder
from lape_mm.checkpoints.convert import parse
from lape_mm.checkpoints.transfer import log, match


def fit(checkpoint: Mapping, model: Encoder, prefix: str | None = None, *,
        path: str = 'a checkpoint') -> dict[str, Tensor]:
    """The weights of a checkpoint with the model's names, on its grid; the log says what they are.

    timm calls it for files given to ``pretrained_cfg_overlay``, and `TimmModel.load_pretrained`
    does.

    Raises:
        CheckpointError: there is no transformer, more than one, or one whose layers compute
            something else, see `lape_mm.checkpoints.transfer.match`.
    """
    vit, heads, around = parse(checkpoint, prefix)
    state = {**vit, **heads}
    fitting, report = match(model, state)
    report.unused.update(dict.fromkeys(around, ''))
    log(report, model, path)
    # of another shape: timm adapts the first convolution, and torch names the others
    fitting.update((name, state[name]) for name, why in report.missing.items()
                   if why and name in state)
    fitting.update(heads)
    return {name: value for name, value in fitting.items() if not name.startswith('head_dist.')}
