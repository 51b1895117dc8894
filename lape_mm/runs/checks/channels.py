"""Checks that backbone, neck and heads have matching channels.

The model runs on images on the meta device (see `lape_mm.runs.checks.build`). A part that cannot
run there ends the check without a report.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from timm.layers import to_2tuple
from torch import nn

from .report import Report

HEADS = ('head', 'decode_head', 'auxiliary_head', 'rpn_head', 'bbox_head')


@torch.no_grad()
def check_channels(report: Report, model: nn.Module) -> None:
    """Reports parts whose ``in_channels`` differ from the maps that reach them."""
    model.to('meta')  # tables made from ranges are still on the CPU
    size = report.cfg.model.get('backbone', {}).get('img_size', 224)
    count = getattr(getattr(model, 'backbone', None), 'in_channels', 3)
    maps: Any = torch.empty(2, count if isinstance(count, int) else 3, *to_2tuple(size),
                            device='meta')
    found: list[int] = []
    source = ''
    for where, part in parts(model, 'model', 'backbone', 'neck'):
        if source and not expect(report, where, part, found, source):
            return
        try:
            maps, source = part(maps), where
            # a distilled model's last output is a pair
            given = [one[0] if isinstance(one, (tuple, list)) else one for one in maps]
            found = [one.shape[1] for one in given if one.dim() in (2, 4)]
        except Exception:  # it reads values
            return
        if len(found) < len(given):
            return
    if not found:
        return
    for where, head in parts(model, 'model', *HEADS):
        expect(report, where, head, found, source)
    roi_head = getattr(model, 'roi_head', None)
    extractors = dict(parts(roi_head, 'model.roi_head', 'bbox_roi_extractor'))
    if all(getattr(one, 'out_channels', None) in found for one in extractors.values()):
        for where, head in parts(roi_head, 'model.roi_head', 'bbox_head', 'mask_head'):
            if not getattr(roi_head, 'with_shared_head', False):
                expect(report, where, head, found, source)


def parts(model: Any, where: str, *names: str) -> Iterator[tuple[str, nn.Module]]:
    """Paths and modules of the parts that exist; a list yields its entries."""
    for name in names:
        part = getattr(model, name, None)
        if isinstance(part, nn.ModuleList):
            yield from ((f'{where}.{name}.{index}', entry) for index, entry in enumerate(part))
        elif isinstance(part, nn.Module):
            yield f'{where}.{name}', part


def expect(report: Report, where: str, part: nn.Module, found: list[int], source: str) -> bool:
    """Whether a part accepts maps with these channels; reports it if not."""
    wanted, index = (getattr(part, name, None) for name in ('in_channels', 'in_index'))
    if index is not None:  # mmseg's heads pick their maps
        picks = index if isinstance(index, (list, tuple)) else [index]
        if not all(-len(found) <= pick < len(found) for pick in picks):
            report.add(where, f'in_index={index}: {source} gives {len(found)} maps')
            return False
        found = [found[pick] for pick in picks]
    if isinstance(wanted, int):
        fits = wanted in found or index is not None and wanted == sum(found)
    elif isinstance(wanted, (list, tuple)):
        exact = index is not None or any(cls.__name__ == 'FPN' for cls in type(part).__mro__)
        fits = list(wanted) == found if exact else all(count in found for count in wanted)
    else:
        return True
    if not fits:
        report.add(where, f'in_channels={wanted}: {source} gives '
                   f'{found[0] if len(found) == 1 else found}')
    return fits
