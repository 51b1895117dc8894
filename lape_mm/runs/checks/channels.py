"""Checks that backbone, neck and heads have matching channels, by running the first two.

A part that cannot be run ends the check without a report.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from timm.layers import to_2tuple
from torch import nn

from ..probe import Unfit, images, outputs, parts_of, tensors
from .report import Report

HEADS = ('head', 'decode_head', 'auxiliary_head', 'rpn_head', 'bbox_head')


def check_channels(report: Report, model: nn.Module) -> None:
    """Reports parts whose ``in_channels`` differ from the maps that reach them."""
    side = max(to_2tuple(report.cfg.model.get('backbone', {}).get('img_size', 224)))
    given: Any = images(side)
    found: list[int] = []
    source = ''
    for where, part in parts_of(model, 'model', 'backbone', 'neck'):
        if source and not expect(report, where, part, found, source):
            return
        try:
            maps = outputs(part, given, where, side)
        except Unfit:
            return
        given, found, source = tensors(maps), [one.channels for one in maps], where
    heads = [*parts_of(model, 'model', *HEADS)]
    roi_head = getattr(model, 'roi_head', None)
    if not getattr(roi_head, 'with_shared_head', False):
        heads += parts_of(roi_head, 'model.roi_head', 'bbox_head', 'mask_head')
    for where, head in heads if found else ():
        expect(report, where, head, found, source)


def expect(report: Report, where: str, part: nn.Module, found: list[int], source: str) -> bool:
    """Whether a part accepts maps with these channels; reports it if not."""
    wanted, index = (getattr(part, name, None) for name in ('in_channels', 'in_index'))
    if index is not None:  # mmseg's heads pick their maps
        picks = np.atleast_1d(index).tolist()
        if max(picks) >= len(found):
            report.add(where, f'in_index={index}: {source} gives {len(found)} maps')
            return False
        found = [found[pick] for pick in picks]
    if not isinstance(wanted, (int, list, tuple)):
        return True
    channels = np.atleast_1d(wanted).tolist()
    # heads with an index may concatenate their maps
    fits = set(channels) <= set(found) if index is None else channels in (found, [sum(found)])
    if not fits:
        report.add(where, f'in_channels={wanted}: {source} gives '
                   f'{found[0] if len(found) == 1 else found}')
    return fits
