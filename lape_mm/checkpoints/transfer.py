"""Loads a backbone from a ViT checkpoint of any known layout, and reports what was found."""
from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.logging import print_log
from timm.layers import resample_patch_embed
from torch import Tensor, nn

from lape_mm.position import resize_table
from lape_mm.registry import WEIGHT_INITIALIZERS
from lape_mm.wording import some

from .files import CheckpointError, named, read_checkpoint
from .fit import TransferReport, compare
from .layouts import backbone_state, settle

TABLE = re.compile(r'pos_embed\d*')
# norms of PE; a file from another joining may have more of them
PE_NORM = re.compile(r'(.*\.)?(last_)?pe_norm\..*')
PATCHES = 'patch_embed.proj.weight'
TOKENS = ('cls_token', 'dist_token')
# every token passes these, so ``min_share`` does not excuse a missing one
EVERY_TOKEN = re.compile(r'patch_embed\..*|(cls|dist|reg)_token|(norm_pre|norm|fc_norm)\..*')
# before the layers; the norms have the names of timm, mmpretrain and OpenCLIP
BEFORE_LAYERS = re.compile(r'(patch_embed|norm_pre|pre_norm|ln_pre|reg_token)(\..*)?')


def load_backbone(model: nn.Module, path: str, *, min_share: float = .95,
                  prefix: str | None = None, source_grid: tuple[int, int] | None = None,
                  exact: bool = False, graft: bool = False,
                  allow_missing: Sequence[str] = ()) -> TransferReport:
    """Loads a backbone from a checkpoint and logs the report.

    PE is resized to the model's grid, and the patch embedding to its patch size.

    Args:
        model: a backbone of this package.
        path: see `read_checkpoint`.
        min_share: share of the ViT's weights that must be found, 0..1.
        prefix: see `backbone_state`.
        source_grid: (h, w) of the checkpoint's PE in tokens, if that is not square.
        exact: whether the file must hold all weights of the model and no others.
        graft: whether PE norms that the file lacks are initialised to keep the pre-trained
            function, see `grafted`.
        allow_missing: parameters or modules that may start untrained although every token passes
            them: patch embedding, tokens, norms before or after the layers.

    Raises:
        CheckpointError: the file cannot be read, does not fit or cannot be grafted. The model is
            then unchanged.
    """
    allowed = tuple(f'{name}.' for name in allow_missing)
    with named(path):
        state, outside = backbone_state(read_checkpoint(path), prefix)
        fitting, report = match(model, state, source_grid, graft)
        report.unused.update(dict.fromkeys(outside, ''))
        log(report, model, str(path))
        missing = {name: f'{name} ({why})' if why else name for name, why in report.missing.items()}
        if report.share < min_share:
            raise CheckpointError(
                f'only {100 * report.share:.2f} % of the ViT\'s weights found, less than '
                f'min_share={min_share:g}; missing: {some([*missing.values()], 5, str)}')
        if needed := [shown for name, shown in missing.items() if EVERY_TOKEN.fullmatch(name)
                      and not f'{name}.'.startswith(allowed)]:
            raise CheckpointError(
                f'not in the file: {some(needed, 4, str)}; every token passes it, so it must not '
                'stay random. To train it from scratch, name it in init_cfg.allow_missing=[...]')
        if exact and (lost := [*report.missing, *report.new, *report.unused]):
            raise CheckpointError(f'does not fit the model: {some(lost, 1, str)}')
    model.load_state_dict(fitting, strict=False)
    return report


def log(report: TransferReport, model: nn.Module, path: str) -> None:
    """Logs the report; warns of missing PE, and of PE norms that are left out or untrained."""
    print_log(f'{type(model).__name__} from {path}: {report}', logger='current')
    for what, names in (
            ('no position embedding found for',
             [name for name in report.missing if re.search(r'pos_embed|bias_table', name)]),
            ('norms of the position embedding start untrained, which changes the pre-trained '
             'function; with PVG and MPVG, init_cfg.graft=True keeps it:',
             [name for name in report.missing if PE_NORM.fullmatch(name)]),
            ('from a model with another joining; its norms of the position embedding are left out:',
             [name for name in report.unused if PE_NORM.fullmatch(name)])):
        if names:
            print_log(f'{path}: {what} {some(names, 1, str)}', logger='current',
                      level=logging.WARNING)


@WEIGHT_INITIALIZERS.register_module()
class BackboneWeights:
    """A backbone's ``init_cfg``: calls `load_backbone` with the given arguments."""

    def __init__(self, checkpoint: str, **options):
        self.checkpoint, self.options = checkpoint, options

    def __call__(self, model: nn.Module) -> None:
        load_backbone(model, self.checkpoint, **self.options)


def match(model: Any, state: dict[str, Tensor], source_grid: tuple[int, int] | None = None,
          graft: bool = False) -> tuple[dict[str, Tensor], TransferReport]:
    """Returns the weights of a state dict that fit a backbone, in its shapes, and the report.

    Norms of PE, weights after the layers, and deeper layers may stay unused. Raises CheckpointError
    for PE of unknown grid, integers in place of floats, and weights that `check_places` rejects.
    """
    own = model.state_dict()
    state = settle(state, own)
    check_places(model, [key for key in state if key not in own])
    tables = {name: _fit_table(model, name, state[name], state, source_grid) for name in own
              if TABLE.fullmatch(name) and name in state and state[name].is_floating_point()
              and state[name].ndim == 3 and state[name].shape[2] == own[name].shape[2]}
    state.update((name, table) for name, (table, _, _) in tables.items())
    resized = _fit_patches(own, state)
    report = compare(own, state)
    if resized:
        report.resized[PATCHES] = resized
        del report.found[PATCHES]

    classifier = {name: own[name].numel() for name, _ in model.vit_parameters()}
    for name in [name for name, why in report.missing.items() if not why]:
        if name not in classifier:
            report.new[name] = report.missing.pop(name)
    slots_used = not model.unused_slots  # unused slots do not count
    lacking = 0
    for name in filter(TABLE.fullmatch, own):
        slot = own[name].shape[2]
        if not slots_used:
            classifier[name] -= model.num_prefix_slots * slot
        if name in tables:
            _, slots, grid = tables[name]
            if grid != model.grid:
                report.resized[name] = '{} x {} to {} x {} tokens'.format(*grid, *model.grid)
                del report.found[name]
            if slots > model.num_prefix_slots:
                report.unused[f'{name}[:, {model.num_prefix_slots}:{slots}]'] = 'prefix slot'
            elif slots < model.num_prefix_slots:
                report.new[f'{name}[:, {slots}:{model.num_prefix_slots}]'] = 'prefix slot'
                lacking += slots_used * (model.num_prefix_slots - slots) * slot
    fitting = {name: state[name] for name in own if name in report.found or name in report.resized}
    if graft:
        absent = [name for name, why in report.missing.items() if not why]
        for name, value in grafted(model, state, absent).items():
            fitting[name], report.grafted[name] = value, report.missing.pop(name)
            classifier.pop(name, None)
    found = sum(classifier.get(name, 0) for name in fitting) - lacking
    report.share = found / sum(classifier.values())
    return fitting, report


def grafted(model: Any, state: Mapping[str, Tensor], absent: Sequence[str]) -> dict[str, Tensor]:
    """Returns initial values (by name) for parts of PE that a file lacks: grafting.

    The model then starts as the pre-trained function. Every PE norm that the file lacks gets gain
    and bias zero, so it adds nothing. With RoPE the file may also lack the PE table, which starts
    at zero if the joining adds it to the tokens, and else at random. LaPE does not add PE to the
    tokens, so it is rejected if the file's model does; ``dict(first_layer=0)`` is the nearest.

    The chain ``p_l = LN'_l(p_{l-1})`` still learns: the first step moves all biases, and the gains
    of the norms whose input is the table. From the second step on, every norm has nonzero input, so
    all gains move; after L steps the last layer's PE depends on the position. Gains of one over
    zero input would be exact as well, but the derivative of a LayerNorm at zero is
    eps ** -0.5 = 1000, or 1e33 through eleven layers: the first step would add full-size PE to
    weights that never saw it.
    """
    rotary = getattr(model, 'rope', None) is not None
    lost = [name for name in absent
            if PE_NORM.fullmatch(name) or rotary and TABLE.fullmatch(name)]
    norms = [*(layer.pe_norm for layer in model.layers_in_order()), model.last_pe_norm]
    fixed = any(norm is not None and getattr(norm, 'weight', None) is None for norm in norms)
    if not lost and any(map(PE_NORM.fullmatch, state)):
        return {}  # the file was trained with norms of PE
    adds = [entry is not None for entry in model.make_plan(model.grid).residual]
    if any(map(TABLE.fullmatch, state)) and adds != [True] + [False] * (len(adds) - 1):
        reason = 'the file adds position embedding only to the tokens before the first layer'
    elif fixed:
        reason = 'its norms have no gain that could start at zero'
    elif any('.attn.pe_norm.' in name for name in lost):
        reason = 'it normalises a relative bias that was pre-trained without a norm'
    else:
        own = model.state_dict()
        return {name: own[name] if TABLE.fullmatch(name) and not any(adds)
                else torch.zeros_like(own[name]) for name in lost}
    raise CheckpointError(f'graft=True: {model.joining} cannot start as the pre-trained model: '
                          f"{reason}. Expected joining='pvg', 'mpvg', or a dict that leaves "
                          'add_to_input=True, such as dict(first_layer=0)')


def _fit_patches(own: dict[str, Tensor], state: dict[str, Tensor]) -> str:
    """Resamples the patch embedding in ``state`` to the model's patch size; returns a note, or ''.

    Uses the pseudo-inverse of the image's resize, as in FlexiViT (CVPR 2023), so a resized patch
    keeps its embedding.
    """
    new, old = own.get(PATCHES), state.get(PATCHES)
    if new is None or old is None or old.ndim != 4 or old.shape == new.shape \
            or old.shape[:2] != new.shape[:2]:
        return ''
    size = list(new.shape[2:])
    state[PATCHES] = resample_patch_embed(old.float(), size).to(old.dtype)
    return '{} x {} to {} x {} pixels'.format(*old.shape[2:], *size)


def check_places(model: Any, names: list[str]) -> None:
    """Raises CheckpointError if a file's leftover weights belong in or before the layers."""
    starts = [f'{name}.' for name in model.layer_names()]
    theirs = [re.sub(r'^blocks\.', 'layers.', start) for start in starts]  # mmpretrain's
    if foreign := [name for name in names if not PE_NORM.fullmatch(name)
                   and (name.startswith((*starts, *theirs)) or BEFORE_LAYERS.fullmatch(name))]:
        raise CheckpointError(
            f'is of another architecture: {type(model).__name__} has no place for {len(foreign)} '
            'of its weights and would compute something else without them: '
            f'{some(foreign, 4, str)}. Choose its arch, or layer_scale or position')


def _fit_table(model: Any, name: str, table: Tensor, state: dict[str, Tensor],
               source_grid: tuple[int, int] | None) -> tuple[Tensor, int, tuple[int, int]]:
    """Fits a file's table to the model's slots and grid; also returns the file's slots and grid.

    If the file has a token but no slot for it, that slot is zero. If the file lacks the token, the
    slot keeps the model's initial values.
    """
    slots, grid = _read_table(model, name, table, state, source_grid)
    own = getattr(model, name).detach().cpu()
    table = table.to(own.dtype)
    patches = resize_table(table[:, slots:], old=grid, new=model.grid, num_prefix_tokens=0,
                           mode=model.interpolation)
    known = max(slots, min(sum(token in state for token in TOKENS), model.num_prefix_slots))
    prefix = [table[:, :min(slots, model.num_prefix_slots)],
              table.new_zeros(1, known - slots, table.shape[2]),
              own[:, known:model.num_prefix_slots]]
    return torch.cat([*prefix, patches], dim=1), known, grid


def _read_table(model: Any, name: str, table: Tensor, state: dict[str, Tensor],
                source_grid: tuple[int, int] | None) -> tuple[int, tuple[int, int]]:
    """Returns the number of prefix slots in a file's table, and the grid of its patches.

    There is one slot per prefix token in the file, or none at all (DeiT III). The grid is square,
    or the model's own if only that fits.
    """
    count = table.shape[1]
    if source_grid is not None:
        rest = count - math.prod(source_grid)
        if rest < 0:
            raise CheckpointError(f'source_grid={tuple(source_grid)} has more tokens than {name} '
                                  f'({count})')
        height, width = source_grid
        return rest, (height, width)
    adapter = 'level_embed' in state  # it may have a slot without a class token
    if adapter and count == getattr(model, name).shape[1]:
        return model.num_prefix_slots, model.grid
    for slots in [[0, 1]] if adapter else [[sum(token in state for token in TOKENS)], [0]]:
        readings = {(slot, grid) for slot in slots
                    for grid in ((math.isqrt(max(0, count - slot)),) * 2, model.grid)
                    if math.prod(grid) == count - slot}
        if readings:
            break
    if len(readings) != 1:
        raise CheckpointError(f'{name} has {count} tokens of unknown grid: give source_grid=(h, w)')
    return readings.pop()
