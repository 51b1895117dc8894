"""Loading a backbone from a checkpoint of another task, and saying what was found in it."""
from __future__ import annotations

import inspect
import logging
import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from lape_mm.position import resize_table
from lape_mm.registry import WEIGHT_INITIALIZERS
from lape_mm.wording import some

from .files import CheckpointError, read_checkpoint
from .layouts import backbone_state, layer_scale

TABLE = re.compile(r'pos_embed\d*')
# PE's own norms, which a file of another joining may leave over
PE_NORM = re.compile(r'(.*\.)?(last_)?pe_norm\..*')
# outside the layers, what all tokens go through or attend to: a norm before the first layer, and
# register tokens, as timm, mmpretrain, OpenCLIP, DINOv2 and DINOv3 name them
BEFORE_LAYERS = re.compile(r'(patch_embed|norm_pre|pre_norm|ln_pre|reg_token|register_tokens?'
                           r'|storage_tokens)(\..*)?')
# weights without a place -> the argument of a backbone that makes one
PLACES = {r'\.(ls[12]\.gamma|gamma_?[12])': ('layer_scale', True),
          r'\.relative_position_bias_table': ('position', 'relative')}


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


def load_backbone(model: nn.Module, path: str, *, min_share: float = .95,
                  prefix: str | None = None, source_grid: tuple[int, int] | None = None) \
        -> TransferReport:
    """Loads a backbone's ViT, and whatever else of it there is, from any checkpoint that has it.

    The position embedding is resized to the model's own grid. The log gets the table of the
    report.

    Args:
        model: a backbone of this package.
        path: see `read_checkpoint`.
        min_share: the least share that must be found, 0..1.
        prefix: see `backbone_state`.
        source_grid: (h, w) in tokens of the checkpoint's position embedding, where it is not
            square.

    Raises:
        CheckpointError: for a file that cannot be read, has no ViT, or less of it than
            ``min_share``, or whose layers compute something else (see `match`); nothing of the
            model has been changed then.
    """
    if not 0 <= min_share <= 1:
        raise ValueError(f'min_share={min_share}: expected a share, 0..1')
    try:
        state, outside = backbone_state(read_checkpoint(path), prefix)
        fitting, report = match(model, state, source_grid)
    except CheckpointError as error:
        text = str(error)
        raise CheckpointError(text if text.startswith(str(path)) else f'{path}: {text}') from None
    report.unused.update(dict.fromkeys(outside, ''))
    log(report, model, str(path))
    if report.share < min_share:
        first = [f'{name} ({why})' if why else name for name, why in report.missing.items()][:5]
        raise CheckpointError(
            f'{path}: only {100 * report.share:.2f} % of the ViT\'s weights found, less than '
            f'min_share={min_share:g}; missing first: {", ".join(first)}')
    model.load_state_dict(fitting, strict=False)
    return report


def log(report: TransferReport, model: nn.Module, path: str) -> None:
    """The report goes to the log, with a warning about what no model should lack unnoticed."""
    print_log(f'{type(model).__name__} from {path}: {report}', logger='current')
    for what, names in (
            ('no position embedding found for',
             [name for name in report.missing if re.search(r'pos_embed|bias_table', name)]),
            ('its model has another joining, whose norms of the position embedding are left out:',
             [name for name in report.unused if PE_NORM.fullmatch(name)])):
        if names:
            print_log(f'{path}: {what} {some(names, 1, str)}', logger='current',
                      level=logging.WARNING)


@WEIGHT_INITIALIZERS.register_module()
class BackboneWeights:
    """What a backbone's ``init_cfg`` stands for: `load_backbone` with these arguments."""

    def __init__(self, checkpoint: str, **options):
        self.checkpoint, self.options = checkpoint, options

    def __call__(self, model: nn.Module) -> None:
        load_backbone(model, self.checkpoint, **self.options)


def match(model: Any, state: dict[str, Tensor], source_grid: tuple[int, int] | None = None) \
        -> tuple[dict[str, Tensor], TransferReport]:
    """What of a state dict fits a backbone, in the model's shapes, and the report about it.

    Raises:
        CheckpointError: for a position embedding whose grid cannot be told, integers in the place
            of weights, and a file that has more in the model's layers, or before them, than the
            model: what it would compute without them has nothing to do with the file. PE's own
            norms may be left over, and so may all that follows the layers, or is deeper.
    """
    report, fitting, wanted, found = TransferReport(), {}, 0, 0
    own = model.state_dict()
    state = {ours if (ours := layer_scale(key) or '') in own and ours not in state else key: value
             for key, value in state.items()}
    check_places(model, [key for key in state if key not in own])
    classifier = {name for name, _ in model.vit_parameters()
                  if not name.endswith(('.gamma1', '.gamma2'))}
    for name, target in own.items():
        source, elements, fresh = state.get(name), target.numel(), 0
        if source is not None and source.is_floating_point() != target.is_floating_point():
            raise CheckpointError(f'{name} is a tensor of {source.dtype} in it, expected '
                                  f'{target.dtype} or the like')
        if TABLE.fullmatch(name):
            slot = target.shape[2]
            if unused := not model.prefix_tokens():  # the slots are no weights of a ViT then
                elements -= model.num_prefix_tokens * slot
            if source is not None and source.ndim == 3 and source.shape[2] == slot:
                source, slots = _fit_table(model, name, source, state, source_grid, report)
                fresh = 0 if unused else max(0, model.num_prefix_tokens - slots) * slot
        if source is None:
            (report.missing if name in classifier else report.new)[name] = ''
        elif source.shape != target.shape:
            report.missing[name] = (f'{tuple(source.shape)} in the file, {tuple(target.shape)} in '
                                    'the model')
        else:
            fitting[name] = source
            if name not in report.resized:
                report.found[name] = ''
            found += elements - fresh if name in classifier else 0
        wanted += elements if name in classifier else 0
    report.unused.update((key, '') for key in state if key not in own)
    report.share = found / wanted
    return fitting, report


def check_places(model: Any, names: list[str]) -> None:
    """Refuses a file with weights that change what the model's layers compute.

    Args:
        model: a backbone.
        names: of the file's weights that have no place in it.

    Raises:
        CheckpointError: there are some, which are counted and named.
    """
    layers = {id(layer) for layer in model.layers_in_order()}
    starts = [f'{name}.' for name, module in model.named_modules() if id(module) in layers]
    starts += [start.replace('blocks.', 'layers.', 1) for start in starts
               if start.startswith('blocks.')]  # mmpretrain's, where we have no name for the rest
    foreign = [name for name in names if not PE_NORM.fullmatch(name)
               and (name.startswith(tuple(starts)) or BEFORE_LAYERS.fullmatch(name))]
    if not foreign:
        return
    kind = type(model)
    known = {name for cls in kind.__mro__ if '__init__' in vars(cls)
             for name in inspect.signature(vars(cls)['__init__']).parameters}
    # where a class takes but some values of an argument it lists them, as `positions`
    hints = [f'{argument}={value!r}' for pattern, (argument, value) in PLACES.items()
             if argument in known and value in getattr(kind, f'{argument}s', [value])
             and any(re.search(pattern, name) for name in foreign)]
    raise CheckpointError(
        f'it is of another architecture: {len(foreign)} of its weights have no place in '
        f'{kind.__name__}, which would compute something else without them: {some(foreign, 4, str)}'
        + (f'; {kind.__name__} has a place for some with {" and ".join(hints)}' if hints else ''))


def _fit_table(model: Any, name: str, table: Tensor, state: dict[str, Tensor],
               source_grid: tuple[int, int] | None, report: TransferReport) -> tuple[Tensor, int]:
    """A table of the file with the model's slots and grid, and how many slots the file has."""
    slots, grid = _read_table(model, name, table, state, source_grid)
    if grid != model.grid:
        report.resized[name] = '{} x {} to {} x {} tokens'.format(*grid, *model.grid)
    if slots > model.num_prefix_tokens:
        report.unused[f'{name}[:, {model.num_prefix_tokens}:{slots}]'] = 'prefix slot'
    elif slots < model.num_prefix_tokens:
        report.new[f'{name}[:, {slots}:{model.num_prefix_tokens}]'] = 'prefix slot'
    own = getattr(model, name).detach().cpu()
    table = table.to(own.dtype)
    patches = resize_table(table[:, slots:], old=grid, new=model.grid, num_prefix_tokens=0,
                           mode=model.interpolation)
    prefix = [table[:, :min(slots, model.num_prefix_tokens)], own[:, slots:model.num_prefix_tokens]]
    return torch.cat([*prefix, patches], dim=1), slots


def _read_table(model: Any, name: str, table: Tensor, state: dict[str, Tensor],
                source_grid: tuple[int, int] | None) -> tuple[int, tuple[int, int]]:
    """How many of a table's entries are prefix slots, and the grid of the others.

    The tokens of the file tell the slots; a length alone never does. The grid is square, or the
    model's own where only that fits.
    """
    count = table.shape[1]
    if source_grid is not None:
        rest = count - math.prod(source_grid)
        if rest < 0:
            raise CheckpointError(f'source_grid={tuple(source_grid)} has more tokens than {name}, '
                                  f'which has {count}')
        height, width = source_grid
        return rest, (height, width)
    slots = [sum(token in state for token in ('cls_token', 'dist_token'))]
    if 'level_embed' in state:
        if count == getattr(model, name).shape[1]:
            return model.num_prefix_tokens, model.grid
        slots = [0, 1]  # a ViT-Adapter keeps the slot without the token
    readings = {(slot, grid) for slot in slots for grid in _grids(count - slot, model.grid)}
    if len(readings) != 1:
        raise CheckpointError(f'the grid of {name} cannot be told from its {count} tokens: give '
                              'source_grid=(h, w)')
    return readings.pop()


def _grids(count: int, own: tuple[int, int]) -> list[tuple[int, int]]:
    """The grids of so many patches that are square or the model's own."""
    side = math.isqrt(count)
    return [grid for grid in {(side, side), own} if math.prod(grid) == count]


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
