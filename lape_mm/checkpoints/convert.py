"""Checkpoints from one key layout to another, both ways and exact to the bit.

Every file is first brought to one form, `Model`: the transformer with this package's names, its
classifiers, and what a toolbox put around it. A `Target` then names it as somebody else does, or
says why he cannot.
"""
from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from lape_mm.position import position_table
from lape_mm.position.embedding import relative_index

from .files import CheckpointError, dataset_meta, read_checkpoint
from .layouts import (
    LAYOUTS,
    MASK_DECODER,
    batched,
    find_transformer,
    segmenter_state,
    translate,
    unwrap,
    wrapper,
)

CARRIED = 'carried/'
# ours, as mmpretrain's heads name them -> a bare name
HEADS = {'head.fc.': 'head.', 'head.layers.head.': 'head.', 'head.layers.head_dist.': 'head_dist.',
         'classifier.fc.': 'head.', 'head.': 'head.', 'head_dist.': 'head_dist.'}
DEIT = re.compile(r'(patch_embed\.proj|norm)\.(weight|bias)$|(cls|dist)_token$|pos_embed\d*$'
                  r'|blocks\.\d+\.(norm[12]|pe_norm|attn\.(qkv|proj|pe_norm)|mlp\.fc[12])\.(weight|bias)'
                  r'$|blocks\.\d+\.attn\.relative_position_bias_table$')
# a key that tells a family, the first that is there
FAMILIES = (('level_embed', 'ViT-Adapter'), ('pos_layer_embed', 'CeiT'),
            ('patch_embed.project.weight', 'T2T-ViT'),
            ('patch_embed.conv_layers.0.0.weight', 'Compact-Transformers'),
            ('layers.0.blocks.0.norm1.weight', 'Swin'), ('patch_embed.proj.weight', 'DeiT'))


@dataclass
class Model:
    """A checkpoint's weights between two layouts.

    Attributes:
        family: which transformer it is.
        vit: its weights, with this package's names.
        heads: classifiers, as head.* and head_dist.*.
        around: what else there is, such as neck and decoder, with the toolboxes' names.
        carried: by layout, entries that only a file of that layout has a place for; they stay in
            files of our own, so that the way back finds them.
    """

    family: str
    vit: dict[str, Tensor]
    heads: dict[str, Tensor] = field(default_factory=dict)
    around: dict[str, Tensor] = field(default_factory=dict)
    carried: dict[str, dict[str, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """What somebody's files can hold, and how they are written.

    Attributes:
        families: the transformers that it knows.
        wrapper: the entry that holds the weights; None where they are the file.
        layout: name of the key layout, see `LAYOUTS`.
        prefix: before the transformer's names.
        knows: of ``pe_norm``, ``tables`` (one a layer), ``relative`` and ``around``, which it has.
    """

    families: tuple[str, ...]
    wrapper: str | None
    layout: str = 'deit'
    prefix: str = ''
    knows: tuple[str, ...] = ()


TARGETS = {
    'lape_mm': Target(tuple(name for _, name in FAMILIES) + ('Segmenter',), 'state_dict',
                      prefix='backbone.', knows=('pe_norm', 'tables', 'relative', 'around')),
    'timm': Target(('DeiT',), None),
    'deit': Target(('DeiT',), 'model'),
    'lape': Target(('DeiT',), 'model', knows=('pe_norm', 'tables', 'relative')),
    'mmpretrain': Target(('DeiT',), 'state_dict', layout='mmpretrain', prefix='backbone.'),
    'swin': Target(('Swin',), 'model', layout='swin'),
    'ceit': Target(('CeiT',), 'model', layout='ceit'),
    't2t': Target(('T2T-ViT',), 'state_dict_ema', layout='t2t'),
    'compact': Target(('Compact-Transformers',), None, layout='compact'),
    'vit_adapter': Target(('ViT-Adapter',), 'state_dict', prefix='backbone.', knows=('around',)),
    'segmenter': Target(('Segmenter',), 'model'),
    'mmseg': Target(('Segmenter',), 'state_dict', layout='mmseg', prefix='backbone.'),
}


def parse(checkpoint: Mapping) -> tuple[Model, str]:
    """A checkpoint of any layout that this package reads, and the name of that layout.

    Raises:
        CheckpointError: where there is no transformer, or more than one.
    """
    state = unwrap(checkpoint)
    carried: dict[str, dict[str, Tensor]] = {
        name: dict(entries) for name, entries in (checkpoint.get('carried') or {}).items()}
    for key in [key for key in state if key.startswith(CARRIED)]:  # a file without nesting
        name, _, entry = key.removeprefix(CARRIED).partition('/')
        carried.setdefault(name, {})[entry] = state.pop(key)
    if any(key.startswith('encoder.') for key in state) \
            and any(key.startswith('decoder.') for key in state):
        known = segmenter_state({'model': state})
        vit = {key.removeprefix('backbone.'): value for key, value in known.items()
               if key.startswith('backbone.')}
        heads = {key: value for key, value in state.items()
                 if key.startswith(('encoder.head.', 'encoder.head_dist.'))}
        around = {key: value for key, value in known.items() if not key.startswith('backbone.')}
        return Model('Segmenter', vit, {}, around, {'segmenter': heads}), 'segmenter'

    layout, prefix = find_transformer(state)
    name = next(name for name, known in LAYOUTS.items() if known is layout)
    inside = {key.removeprefix(prefix): value for key, value in state.items()
              if key.startswith(prefix)}
    around = {key: value for key, value in state.items() if not key.startswith(prefix)}
    vit = batched(layout.ours(inside))
    constants = {key: value for key, value in inside.items()
                 if re.fullmatch(layout.constants, key)}
    heads = {}
    for entries in (around, vit):
        for start, bare in HEADS.items():
            for key in [key for key in entries if re.fullmatch(f'{start}(weight|bias)', key)]:
                heads[bare + key.rsplit('.', 1)[1]] = entries.pop(key)
    family = next(family for key, family in FAMILIES if key in vit)
    decoder = {key for key in around if key.startswith('decode_head.')}
    if family == 'DeiT' and ('decode_head.cls_emb' in decoder or decoder == {
            'decode_head.conv_seg.weight', 'decode_head.conv_seg.bias'}):
        family = 'Segmenter'
    if constants:
        carried[{'deit': 'lape' if family == 'DeiT' else 'swin'}.get(name, name)] = constants
    return Model(family, vit, heads, around, carried), name


def write(model: Model, to: str) -> dict:
    """The content of a file in somebody's layout.

    Raises:
        CheckpointError: he cannot express the model; the message says why.
        ValueError: for an unknown layout.
    """
    if to not in TARGETS:
        raise ValueError(f'--to {to!r}: expected one of {", ".join(map(repr, TARGETS))}')
    target = TARGETS[to]
    if reason := _obstacle(model, to, target):
        raise CheckpointError(f'{to} cannot express this model: {reason}')
    if to == 'segmenter':
        state = _official_segmenter(model)
    else:
        vit = dict(model.vit)
        if to == 'lape' and _is_sinusoid(vit.get('pos_embed')):
            vit['pos_embed'] = vit['pos_embed'][0]
        state = {target.prefix + key: value
                 for key, value in _layout(target.layout, vit).items()}
        state.update(_heads(model, to))
        state.update(model.around)
        state.update(_constants(model, to))
    content: dict = {target.wrapper: state} if target.wrapper else state
    if to == 'lape_mm' and any(model.carried.values()):
        content['carried'] = model.carried
    return content


def convert(source: str | os.PathLike, out: str | os.PathLike, to: str, *, force: bool = False) \
        -> str:
    """Converts a file; .safetensors in and out by the names' endings.

    Of what else the file holds, the names of classes (``meta.dataset_meta``) go into files of
    torch.save for OpenMMLab's toolboxes.

    Returns:
        one line that says what was converted from what.

    Raises:
        CheckpointError: the file cannot be read, or its model not be expressed; or ``out`` exists
            and ``force`` is not given. Nothing is written then.
    """
    out = Path(out)
    if out.exists() and not force:
        raise CheckpointError(f'{out} exists: choose another name, or --force')
    if not out.resolve().parent.is_dir():
        raise CheckpointError(f'{out}: there is no folder {out.resolve().parent}')
    checkpoint = read_checkpoint(source)
    try:
        model, origin = parse(checkpoint)
        content = write(model, to)
    except CheckpointError as error:
        raise CheckpointError(f'{source}: {error}') from None
    with tempfile.TemporaryDirectory(dir=out.resolve().parent) as folder:
        part = os.path.join(folder, 'part')
        if out.suffix == '.safetensors':
            from safetensors.torch import save_file  # comes with timm
            carried = content.pop('carried', {}) if to == 'lape_mm' else {}
            flat = {**unwrap(content), **{f'{CARRIED}{name}/{key}': value
                                          for name, entries in carried.items()
                                          for key, value in entries.items()}}
            save_file({key: value.clone().contiguous() for key, value in flat.items()}, part)
        else:
            # mmengine's place for the names of classes, which OpenMMLab's layouts share
            if TARGETS[to].wrapper == 'state_dict' and (names := dataset_meta(checkpoint)):
                content['meta'] = {'dataset_meta': names}
            torch.save(content, part)
        os.replace(part, out)
    named = bool(content.get('meta'))
    count = sum(value.numel() for value in model.vit.values())
    left = [f'{name}: {key}' for name, entries in model.carried.items() for key in entries
            if to not in ('lape_mm', name) and not re.search(LAYOUTS['deit'].constants, key)]
    left += [f'{key} (all but dataset_meta)' if named and key == 'meta' else key
             for key in checkpoint if isinstance(key, str) and key != 'carried'
             and not isinstance(checkpoint[key], Tensor) and key != wrapper(checkpoint)]
    return (f'{model.family}, {count:,} numbers in its transformer, from the layout {origin!r} to '
            f'{to!r}: {out}' + (f'\nleft out: {", ".join(left)}' if left else ''))


def _obstacle(model: Model, to: str, target: Target) -> str | None:
    """Why a target cannot hold a model, or None."""
    if model.family not in target.families:
        return f'it is a {model.family}, and {to} knows {" and ".join(target.families)}'
    empty = torch.empty(0)
    norms = [key for key in model.vit if '.pe_norm.' in key or key.startswith('last_pe_norm.')]
    relative = any('relative_position_bias_table' in key for key in model.vit)
    if norms and 'pe_norm' not in target.knows:
        return f'it has no norms of the position embedding ({norms[0]})'
    if 'pos_embed1' in model.vit and 'tables' not in target.knows:
        return 'it has no position embedding for each layer (pos_embed1)'
    if relative and model.family == 'DeiT' and 'relative' not in target.knows:
        return 'it has no relative position bias in a DeiT'
    if to == 'lape':
        if 'cls_token' not in model.vit:
            return 'its models have a class token, this one averages its tokens'
        if 'last_pe_norm.weight' in model.vit:
            return 'it has no norm of the position embedding at the last LayerNorm (last_pe_norm)'
        if norms and not relative and 'blocks.0.pe_norm.weight' not in model.vit:
            return 'its layer 0 receives the position embedding, too (blocks.0.pe_norm is missing)'
        shape = model.vit['cls_token'].shape[-1:]
        if not relative and any(model.vit.get(f'{layer}.pe_norm.{part}', empty).shape != shape
                                for layer in {key.split('.pe_norm.')[0] for key in norms}
                                for part in ('weight', 'bias')):
            return 'its norms of the position embedding are LayerNorms, these are less'
    if to != 'lape_mm' and model.family == 'DeiT':
        if unknown := [key for key in model.vit if not DEIT.match(key)]:
            return f'it has no {unknown[0]}'
    if to == 'mmpretrain' and 'cls_token' not in model.vit:
        return 'its DeiT has a class token, this one averages its tokens'
    if model.around and model.family != 'Segmenter' and 'around' not in target.knows:
        return f'it is the transformer alone, and here is more ({next(iter(model.around))})'
    return None


def _layout(name: str, vit: dict[str, Tensor]) -> dict[str, Tensor]:
    if name == 'mmseg':
        return translate(vit, [rule for rule in LAYOUTS['mmpretrain'].rules
                               if '.attn.' not in rule[0] or '.attn.attn.' in rule[1]])
    return LAYOUTS[name].theirs(vit)


def _heads(model: Model, to: str) -> dict[str, Tensor]:
    """The classifiers under the target's names."""
    if to == 'lape_mm':
        names = {'head': 'head.fc'}
    elif to == 'compact':
        names = {'head': 'classifier.fc'}
    elif to == 'mmpretrain':
        names = {'head': 'head.layers.head'}
    else:
        names = {'head': 'head', 'head_dist': 'head_dist'}
    if to in ('lape_mm', 'mmpretrain') and 'head_dist.weight' in model.heads:
        names = {'head': 'head.layers.head', 'head_dist': 'head.layers.head_dist'}
    return {f'{names[key.split(".")[0]]}.{key.split(".")[1]}': value
            for key, value in model.heads.items()}


def _constants(model: Model, to: str) -> dict[str, Tensor]:
    """Entries without weights that the target's files have."""
    if to in model.carried:
        return model.carried[to]
    tables = {key: value for key, value in model.vit.items()
              if key.endswith('.relative_position_bias_table')}
    if to not in ('lape', 'swin'):
        return {}
    sides = {key: (round(len(value) ** .5) + 1) // 2 for key, value in tables.items()}
    for key, side in sides.items():
        if (2 * side - 1) ** 2 != len(tables[key]):
            raise CheckpointError(f'{to} cannot express this model: {key} is of a grid that is not '
                                  'square')
    return {key.replace('bias_table', 'index'): relative_index((side, side))
            for key, side in sides.items()}


def _official_segmenter(model: Model) -> dict[str, Tensor]:
    """encoder.* and decoder.* as in the release, whose projections are applied as ``x @ P``."""
    decoder = {key.removeprefix('decode_head.'): value for key, value in model.around.items()
               if key.startswith('decode_head.')}
    if 'cls_emb' in decoder:
        decoder = translate(decoder, MASK_DECODER)
        decoder = {key: value.T.contiguous() if key in ('proj_patch', 'proj_classes') else value
                   for key, value in decoder.items() if not key.startswith('conv_seg.')}
    else:
        decoder = {f'head.{part}': decoder[f'conv_seg.{part}'].reshape(
            decoder[f'conv_seg.{part}'].shape[:2 if part == 'weight' else 1])
            for part in ('weight', 'bias')}
    return {**{f'encoder.{key}': value for key, value in model.vit.items()},
            **model.carried.get('segmenter', {}),
            **{f'decoder.{key}': value for key, value in decoder.items()}}


def _is_sinusoid(table: Tensor | None) -> bool:
    """Whether a table is the fixed 1-D sinusoid, which LaPE stores without a batch dimension."""
    if table is None or table.shape[-1] % 2:
        return False
    fixed = position_table('sincos_1d', grid=(1, table.shape[1]), dim=table.shape[2],
                           num_prefix_tokens=0)
    return torch.allclose(table.float(), fixed.detach(), atol=1e-3 if table.dtype != torch.float32
                          else 1e-5)
