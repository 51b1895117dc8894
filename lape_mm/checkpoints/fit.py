"""Checks whether a checkpoint fits a model, and reports it.

`compare` checks names, shapes and dtypes. A test, a resumed run and timm need all weights
(`check_whole`); ``load_from`` needs at least one (`check_start`). In `transfer`, ``init_cfg`` needs
a share of the backbone's weights, and the Hub all of them.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from .files import CheckpointError


@dataclass
class TransferReport:
    """Which weights of a model were found in a checkpoint. Each dict maps names to notes."""

    found: dict[str, str] = field(default_factory=dict)
    resized: dict[str, str] = field(default_factory=dict)  # to another grid or patch size
    missing: dict[str, str] = field(default_factory=dict)  # of the ViT
    grafted: dict[str, str] = field(default_factory=dict)  # parts of PE that the file lacks
    new: dict[str, str] = field(default_factory=dict)  # weights that no ViT classifier has
    unused: dict[str, str] = field(default_factory=dict)  # the model has no place for these
    share: float = 0.  # found share of a classifier's ViT parameters, by elements, 0..1

    def __str__(self) -> str:
        rows = {('new by design' if row == 'new' else row): names
                for row, names in vars(self).items() if row != 'share'}
        lines = [f'{title:>14} {len(names):>5}   {_summary(names)}'.rstrip()
                 for title, names in rows.items() if names or title != 'grafted']
        return '\n'.join([f'{100 * self.share:.2f} % of the ViT\'s weights found', *lines])


def compare(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> TransferReport:
    """Compares a checkpoint's weights with a model's; refuses integers in place of floats."""
    report = TransferReport(unused=dict.fromkeys((name for name in state if name not in own), ''))
    for name, target in own.items():
        source = state.get(name)
        if source is None:
            report.missing[name] = ''
        elif source.is_floating_point() != target.is_floating_point():
            raise CheckpointError(f'{name} is a tensor of {source.dtype}, expected {target.dtype}')
        elif source.shape != target.shape:
            report.missing[name] = (f'{tuple(source.shape)} in the file, {tuple(target.shape)} in '
                                    'the model')
        else:
            report.found[name] = ''
    return report


def check_whole(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError unless a checkpoint has exactly a model's weights.

    mmengine would load those that fit, and only warn about the rest.
    """
    report = compare(own, state)
    differences = {
        'missing': [name for name, why in report.missing.items() if not why],
        'of another shape': [name for name, why in report.missing.items() if why],
        'unknown to the model': list(report.unused)}
    if text := '; '.join(f'{what}: {len(names)}, first {names[0]}'
                         for what, names in differences.items() if names):
        raise CheckpointError(f'does not fit the config ({text}): was it trained with other '
                              'settings, such as another --joining?')


def check_start(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError unless a checkpoint has at least one of a model's weights."""
    if not compare(own, state).found:
        raise CheckpointError(
            'has none of the model\'s weights: the model\'s first is '
            f'{next(iter(own), None)}, the file\'s {next(iter(state), None)}. To load a backbone '
            'or another project\'s file, set model.backbone.init_cfg.checkpoint')


def _summary(names: dict[str, str], most: int = 10) -> str:
    """A short list of names: blocks are grouped by pattern, others by their first part."""
    groups: dict[str, list[str]] = {}
    for name, note in names.items():
        pattern = re.sub(r'^blocks\.\d+', 'blocks.*', name)
        groups.setdefault(pattern if pattern != name else name.split('.')[0], []).append(note)
    words = [f'{group}{f" x {len(notes)}" if len(notes) > 1 else ""}'
             f'{f" ({notes[0]})" if notes[0] else ""}' for group, notes in groups.items()]
    words.sort(key=lambda word: '(' not in word)
    return ', '.join(words[:most]) + (f', and {len(words) - most} more kinds'
                                      if len(words) > most else '')
