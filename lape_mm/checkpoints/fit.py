"""The one test of whether a checkpoint's weights are a model's, and its report.

`compare` holds names, shapes and kinds of numbers against each other. How much has to be there
depends on the purpose: all for a test or a resumed run (`check_whole`), one weight for `load_from`
(`check_start`), and a share of a backbone's for ``init_cfg``, timm and the Hub (`transfer`).
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from .files import CheckpointError


@dataclass
class TransferReport:
    """What became of a model's weights and of a checkpoint's.

    Attributes:
        found, resized, missing: names of the model's ViT parameters; resized ones were found, on
            another grid. Values say how, where there is something to say.
        new: names that no classification model has, kept as they were initialised.
        unused: names of the checkpoint that the model has no place for.
        share: elements found, as a share of those ViT parameters that a classification model has.
    """

    found: dict[str, str] = field(default_factory=dict)
    resized: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    new: dict[str, str] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    share: float = 0.

    def __str__(self) -> str:
        rows = [('found', self.found), ('resized', self.resized), ('missing', self.missing),
                ('new by design', self.new), ('unused', self.unused)]
        lines = [f'{title:>14} {len(names):>5}   {_summary(names)}'.rstrip()
                 for title, names in rows]
        return '\n'.join([f'{100 * self.share:.2f} % of the ViT\'s weights found', *lines])


def compare(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> TransferReport:
    """Holds a checkpoint's weights, ``state``, against a model's own.

    Raises:
        CheckpointError: integers stand in the place of weights, or the other way round.
    """
    report = TransferReport(unused=dict.fromkeys((name for name in state if name not in own), ''))
    for name, target in own.items():
        source = state.get(name)
        if source is None:
            report.missing[name] = ''
        elif source.is_floating_point() != target.is_floating_point():
            raise CheckpointError(f'{name} in it is a tensor of {source.dtype}, expected '
                                  f'{target.dtype} or the like')
        elif source.shape != target.shape:
            report.missing[name] = (f'{tuple(source.shape)} in the file, {tuple(target.shape)} in '
                                    'the model')
        else:
            report.found[name] = ''
    return report


def check_whole(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError unless a checkpoint has all of a model's weights and no others.

    mmengine would load what fits and warn about the rest, so that a model of another joining or
    with another head would be tested half untrained.
    """
    report = compare(own, state)
    differences = {
        'missing': [name for name, why in report.missing.items() if not why],
        'of another shape': [name for name, why in report.missing.items() if why],
        'unknown to the model': list(report.unused)}
    if any(differences.values()):
        text = '; '.join(f'{what}: {len(names)}, first {names[0]}'
                         for what, names in differences.items() if names)
        raise CheckpointError(f'does not fit the config ({text}): was it trained with other '
                              'settings, such as another --joining?')


def check_start(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError unless a checkpoint has at least one of a model's weights."""
    if not compare(own, state).found:
        raise CheckpointError(
            'holds no weight of the model under its name and in its shape: the model begins with '
            f'{next(iter(own), None)}, the file with {next(iter(state), None)}. A file of a '
            'backbone alone, or of somebody else, is given by model.backbone.init_cfg.checkpoint')


def _summary(names: dict[str, str], most: int = 10) -> str:
    """The names in a few words: those of blocks by pattern, others by their first part."""
    groups: dict[str, list[str]] = {}
    for name, note in names.items():
        pattern = re.sub(r'^blocks\.\d+', 'blocks.*', name)
        groups.setdefault(pattern if pattern != name else name.split('.')[0], []).append(note)
    words = [f'{group}{f" x {len(notes)}" if len(notes) > 1 else ""}'
             f'{f" ({notes[0]})" if notes[0] else ""}' for group, notes in groups.items()]
    words.sort(key=lambda word: '(' not in word)
    return ', '.join(words[:most]) + (f', and {len(words) - most} more kinds'
                                      if len(words) > most else '')
