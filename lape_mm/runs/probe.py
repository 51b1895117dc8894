"""Finds what a part of a model takes and returns, by running it on the meta device."""
from __future__ import annotations

import inspect
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from mmengine import registry
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lape_mm.requirements import build_mmcv
from lape_mm.wording import first_line

from .config import entries, walk

SIDE = 512  # pixels of the images


class Map(NamedTuple):
    """Channels and stride of one output; a pooled vector has stride None."""

    channels: int
    stride: float | None


class Unfit(ValueError):
    """A part of a config cannot be built, run or given other maps; the message names it."""


class WithoutValues(TorchFunctionMode):
    """Creates weights on the meta device, but not ranges: modules read drop rates from them."""

    MAKE = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in self.MAKE and kwargs.get('device') is None:
            kwargs = {**kwargs, 'device': 'meta'}
        return func(*args, **kwargs)


@contextmanager
def silence() -> Iterator[None]:
    """Suppresses warnings and log lines, because the run repeats them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logging.disable(before)


def build(node: Any, what: str) -> nn.Module:
    """Builds a part, on the meta device unless it reads values; Unfit if that fails."""
    node = deepcopy(node)
    for _, one in walk(dict(node=node)):
        if str(one.get('type')).endswith('SyncBN'):
            one['type'] = 'BN'  # one process is enough here
        one.pop('teacher_ckpt', None)  # it would be downloaded
    try:
        try:
            with WithoutValues():
                part = registry.MODELS.build(deepcopy(node))
        except (NotImplementedError, RuntimeError):
            part = registry.MODELS.build(node)
    except Exception as error:  # a constructor may raise anything
        raise Unfit(f'{what} cannot be built: {first_line(error, kind=True)}') from error
    for one in part.modules():
        if getattr(one, 'eps', 1) == 0:  # torch rejects it
            one.eps = 1e-5
    return part


def outputs(part: nn.Module, given: Any, what: str, side: int = SIDE, *,
            values: bool = True) -> list[Map]:
    """Channels and strides of a part's outputs; Unfit if it fails or returns no maps.

    ``given``: images or maps on the meta device. ``side``: the images' side in pixels. ``values``:
    if the part fails on meta, run it with zeros on the CPU, which may take minutes.
    """
    try:
        with torch.no_grad():
            try:
                found = part.to('meta')(given)
            except Exception:  # it does not work without values
                if not values:
                    raise
                part.to_empty(device='cpu')
                for value in (*part.parameters(), *part.buffers()):
                    value.zero_()  # NaN may make operators read outside a map
                found = part(torch.zeros_like(given, device='cpu') if isinstance(given, Tensor)
                             else tuple(torch.zeros_like(one, device='cpu') for one in given))
    except Exception as error:
        raise Unfit(f'{what} cannot be run: {first_line(error, kind=True)}') from error
    found = [found] if isinstance(found, Tensor) else found
    if not isinstance(found, Sequence) or not all(
            isinstance(one, Tensor) and one.dim() in (2, 4) for one in found):
        raise Unfit(f'{what} gives something other than maps')
    return [Map(one.shape[1], side / one.shape[3] if one.dim() == 4 else None) for one in found]


def images(side: int = SIDE) -> Tensor:
    """Two square images (2, 3, side, side) on the meta device."""
    return torch.empty(2, 3, side, side, device='meta')


def tensors(maps: list[Map]) -> tuple[Tensor, ...]:
    """Meta tensors (2, C, h, w) with the channels and strides of ``maps``."""
    sides = [round(SIDE / (one.stride or SIDE)) for one in maps]
    return tuple(torch.empty(2, one.channels, side, side, device='meta')
                 for one, side in zip(maps, sides))


def parts_of(model: Any, where: str, *names: str) -> Iterator[tuple[str, nn.Module]]:
    """Paths and modules of the parts that exist; a list yields its entries."""
    for name in names:
        part = getattr(model, name, None)
        if isinstance(part, nn.ModuleList):
            yield from ((f'{where}.{name}.{index}', entry) for index, entry in enumerate(part))
        elif isinstance(part, nn.Module):
            yield f'{where}.{name}', part


def read_maps(model: Any, maps: list[Map]) -> set[int] | None:
    """Indices of the maps that the neck, or mmseg's heads, read; None if unknown."""
    parts = dict(parts_of(model, '', 'neck')) or dict(parts_of(
        model, '', 'decode_head', 'auxiliary_head'))
    read: set[int] = set()
    for part in parts.values():
        part = part[0] if isinstance(part, nn.Sequential) else part
        given = tuple(one.requires_grad_() for one in tensors(maps))
        try:
            found = [value.sum() for _, value in entries(dict(found=part.to('meta')(given)))
                     if isinstance(value, Tensor) and value.requires_grad]
            grads = torch.autograd.grad(torch.stack(found).sum(), given, allow_unused=True)
        except Exception:  # it needs values
            return None
        read |= {index for index, grad in enumerate(grads) if grad is not None}
    return read or {*range(len(maps))}


def check_installed(model: nn.Module) -> None:
    """Raises Unfit if a part needs a package or an mmcv operator that is not installed."""
    for path, part in model.named_modules():
        module = sys.modules[type(part).__module__]
        text = code(module)
        operators = vars(getattr(module, 'ext_module', module))
        for name in re.findall(r'ext_module\.(\w+)', text):
            if module.__name__.startswith('mmcv.ops.') and name not in operators:
                raise Unfit(f'model.{path} needs the compiled operator {name} of mmcv: '
                            f'{build_mmcv()}')
        # packages that a toolbox imports if it can; its heads need them to compute a loss
        for line, name in re.findall(r'((?:from|import) .*?(\w+))\nexcept ImportError', text):
            if vars(module).get(name, module) is None \
                    and re.search(rf'\b{name}\b', code(type(part))):
                raise Unfit(f'model.{path} needs a package that is not installed: {line}')


def code(what: Any) -> str:
    """The source code of a class or module; '' if there is none."""
    try:
        return inspect.getsource(what)
    except (OSError, TypeError):
        return ''
