"""Loading a backbone from anybody's checkpoint of a ViT, and saying what was found in it."""
from __future__ import annotations

import logging
import math
import re
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from lape_mm.position import resize_table
from lape_mm.registry import WEIGHT_INITIALIZERS
from lape_mm.wording import some

from .files import CheckpointError, named, read_checkpoint
from .fit import TransferReport, compare
from .layouts import backbone_state, layer_scale

TABLE = re.compile(r'pos_embed\d*')
# PE's own norms, which a file of another joining may leave over
PE_NORM = re.compile(r'(.*\.)?(last_)?pe_norm\..*')
# outside the layers, what all tokens go through or attend to: a norm before the first layer, and
# register tokens, as timm, mmpretrain, OpenCLIP, DINOv2 and DINOv3 name them
BEFORE_LAYERS = re.compile(r'(patch_embed|norm_pre|pre_norm|ln_pre|reg_token|register_tokens?'
                           r'|storage_tokens)(\..*)?')
# weights without a place -> the argument of a backbone that makes one
PLACES = {r'\.(ls[12]\.gamma|gamma_?[12])': 'ViTAdapter has layer scales with layer_scale=True',
          r'\.relative_position_bias_table': "DeiT has a relative bias with position='relative'"}


def load_backbone(model: nn.Module, path: str, *, min_share: float = .95,
                  prefix: str | None = None, source_grid: tuple[int, int] | None = None,
                  exact: bool = False) -> TransferReport:
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
        exact: whether the file has to hold all of the model and nothing else.

    Raises:
        CheckpointError: for a file that cannot be read, has no ViT, or less of it than
            ``min_share``, or whose layers compute something else (see `match`); nothing of the
            model has been changed then.
    """
    if not 0 <= min_share <= 1:
        raise ValueError(f'min_share={min_share}: expected a share, 0..1')
    with named(path):
        state, outside = backbone_state(read_checkpoint(path), prefix)
        fitting, report = match(model, state, source_grid)
        report.unused.update(dict.fromkeys(outside, ''))
        log(report, model, str(path))
        if report.share < min_share:
            first = [f'{name} ({why})' if why else name for name, why in report.missing.items()]
            raise CheckpointError(
                f'only {100 * report.share:.2f} % of the ViT\'s weights found, less than '
                f'min_share={min_share:g}; missing first: {", ".join(first[:5])}')
        if exact and (lost := [*report.missing, *report.new, *report.unused]):
            raise CheckpointError(f'does not fit the model: {some(lost, 1, str)}')
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
    own = model.state_dict()
    state = {ours if (ours := layer_scale(key) or '') in own and ours not in state else key: value
             for key, value in state.items()}
    check_places(model, [key for key in state if key not in own])
    tables = {name: _fit_table(model, name, state[name], state, source_grid) for name in own
              if TABLE.fullmatch(name) and name in state and state[name].is_floating_point()
              and state[name].ndim == 3 and state[name].shape[2] == own[name].shape[2]}
    state.update((name, table) for name, (table, _, _) in tables.items())
    report = compare(own, state)

    classifier = {name: own[name].numel() for name, _ in model.vit_parameters()
                  if not name.endswith(('.gamma1', '.gamma2'))}
    for name in [name for name, why in report.missing.items() if not why]:
        if name not in classifier:
            report.new[name] = report.missing.pop(name)
    slots_used = bool(model.prefix_tokens())  # else the slots of a table are no weights of a ViT
    lacking = 0
    for name in filter(TABLE.fullmatch, own):
        slot = own[name].shape[2]
        if not slots_used:
            classifier[name] -= model.num_prefix_tokens * slot
        if name in tables:
            _, slots, grid = tables[name]
            if grid != model.grid:
                report.resized[name] = '{} x {} to {} x {} tokens'.format(*grid, *model.grid)
                del report.found[name]
            if slots > model.num_prefix_tokens:
                report.unused[f'{name}[:, {model.num_prefix_tokens}:{slots}]'] = 'prefix slot'
            elif slots < model.num_prefix_tokens:
                report.new[f'{name}[:, {slots}:{model.num_prefix_tokens}]'] = 'prefix slot'
                lacking += slots_used * (model.num_prefix_tokens - slots) * slot
    fitting = {name: state[name] for name in own if name in report.found or name in report.resized}
    found = sum(classifier.get(name, 0) for name in fitting) - lacking
    report.share = found / sum(classifier.values())
    return fitting, report


def check_places(model: Any, names: list[str]) -> None:
    """Raises CheckpointError if a file's weights without a place change what layers compute.

    ``names`` are of the weights that have no place in the model.
    """
    layers = {id(layer) for layer in model.layers_in_order()}
    starts = [f'{name}.' for name, module in model.named_modules() if id(module) in layers]
    starts += [start.replace('blocks.', 'layers.', 1) for start in starts
               if start.startswith('blocks.')]  # mmpretrain's, where we have no name for the rest
    foreign = [name for name in names if not PE_NORM.fullmatch(name)
               and (name.startswith(tuple(starts)) or BEFORE_LAYERS.fullmatch(name))]
    if foreign:
        hints = [hint for pattern, hint in PLACES.items()
                 if any(re.search(pattern, name) for name in foreign)]
        raise CheckpointError('; '.join([
            f'it is of another architecture: {len(foreign)} of its weights have no place in '
            f'{type(model).__name__}, which would compute something else without them: '
            f'{some(foreign, 4, str)}', *hints]))


def _fit_table(model: Any, name: str, table: Tensor, state: dict[str, Tensor],
               source_grid: tuple[int, int] | None) -> tuple[Tensor, int, tuple[int, int]]:
    """A table of the file with the model's slots and grid, and how many slots and what grid it had.

    Slots that the file lacks stay as the model has initialised them.
    """
    slots, grid = _read_table(model, name, table, state, source_grid)
    own = getattr(model, name).detach().cpu()
    table = table.to(own.dtype)
    patches = resize_table(table[:, slots:], old=grid, new=model.grid, num_prefix_tokens=0,
                           mode=model.interpolation)
    prefix = [table[:, :min(slots, model.num_prefix_tokens)], own[:, slots:model.num_prefix_tokens]]
    return torch.cat([*prefix, patches], dim=1), slots, grid


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
    readings = {(slot, grid) for slot in slots
                for grid in ((math.isqrt(max(0, count - slot)),) * 2, model.grid)
                if math.prod(grid) == count - slot}
    if len(readings) != 1:
        raise CheckpointError(f'the grid of {name} cannot be told from its {count} tokens: give '
                              'source_grid=(h, w)')
    return readings.pop()
