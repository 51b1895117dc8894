"""Converts checkpoints of any known layout for DeiT and timm, LaPE, ViT-Adapter and mmpretrain.

`parse` renames the weights to this package's names, and `write` renames those to the target's.
Values never change. If the target has no place for some weights, the error names the first one.
"""
from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from timm.layers import gen_relative_position_index
from torch import Tensor

from lape_mm.position import position_table

from .files import CheckpointError, dataset_meta, named, read_checkpoint
from .layouts import LAYOUTS, backbone_state, segmenter_state, unwrap, wrapper

# names of the head in this package, mmpretrain, Compact-Transformers and DeiT -> in DeiT
HEADS = {'head.fc.': 'head.', 'head.layers.head.': 'head.', 'head.layers.head_dist.': 'head_dist.',
         'classifier.fc.': 'head.', 'head.': 'head.', 'head_dist.': 'head_dist.'}
DEIT = (r'(cls|dist)_token|pos_embed'
        r'|(patch_embed\.proj|norm|blocks\.\d+\.(norm[12]|attn\.(qkv|proj)|mlp\.fc[12]))'
        r'\.(weight|bias)')

State = dict[str, Tensor]


class Target(NamedTuple):
    """The file format of one target."""

    places: str  # pattern of our names for the ViT weights it can hold
    wrapper: str | None  # the entry that holds the weights; None for the file itself
    layout: str = 'deit'  # a key of `LAYOUTS`
    prefix: str = ''  # put before the transformer's names
    head: tuple[str, str, str] = ('head', 'head', 'head_dist')  # one head, and a distilled pair
    token: bool = False  # whether the target's models always have a class token
    whole: bool = False  # whether the file also takes neck, decoder and so on


OPENMMLAB = ('head.layers.head', 'head.layers.head_dist')
TARGETS = {
    'lape_mm': Target('.*', 'state_dict', prefix='backbone.', head=('head.fc', *OPENMMLAB),
                      whole=True),
    'timm': Target(DEIT, None),
    'deit': Target(DEIT, 'model'),
    'lape': Target(rf'{DEIT}|pos_embed\d+|blocks\.\d+\.((attn\.)?pe_norm\.(weight|bias)'
                   r'|attn\.relative_position_bias_table)', 'model', token=True),
    'mmpretrain': Target(DEIT, 'state_dict', layout='mmpretrain', prefix='backbone.',
                         head=(OPENMMLAB[0], *OPENMMLAB), token=True),
    'vit_adapter': Target(r'(?!.*pe_norm\.|pos_embed\d).*', 'state_dict', prefix='backbone.',
                          whole=True),
}


def parse(checkpoint: Mapping, prefix: str | None = None) -> tuple[State, State, State]:
    """Splits a checkpoint: the transformer in our names, the heads in DeiT's, and the rest.

    Reads any known layout; arguments and errors are those of `backbone_state`.
    """
    if {'encoder', 'decoder'} <= {key.split('.')[0] for key in unwrap(checkpoint)}:
        checkpoint = segmenter_state(checkpoint)
    vit, around = backbone_state(checkpoint, prefix)
    heads: State = {}
    for entries in (around, vit):
        for start, bare in HEADS.items():
            for part in ('weight', 'bias'):
                if start + part in entries:
                    heads[bare + part] = entries.pop(start + part)
    return vit, heads, around


def write(vit: State, heads: State, around: State, to: str) -> dict:
    """Returns the content of a ``to`` file; CheckpointError if that cannot hold the model."""
    target = TARGETS[to]
    if reason := _obstacle(vit, around, to):
        raise CheckpointError(f'{to} cannot express this model: {reason}')
    single, *pair = target.head
    names = dict(zip(('head', 'head_dist'), pair if 'head_dist.weight' in heads else [single]))
    vit = LAYOUTS[target.layout].theirs(_as_lape(vit) if to == 'lape' else vit)
    state = {target.prefix + key: value for key, value in vit.items()}
    for key, value in heads.items():
        bare, part = key.split('.')
        state[f'{names[bare]}.{part}'] = value
    state.update(around)
    return {target.wrapper: state} if target.wrapper else state


def convert(source: str | os.PathLike, out: str | os.PathLike, to: str, *, force: bool = False) \
        -> str:
    """Converts a checkpoint file for target ``to``; writes safetensors if ``out`` ends in that.

    Files for OpenMMLab's toolboxes keep the class names (``meta.dataset_meta``). Returns a line
    about the new file, and another if entries were left out. Raises CheckpointError, and writes
    nothing, if the target cannot hold the model, or if ``out`` exists and ``force`` is False.
    """
    if to not in TARGETS:
        raise CheckpointError(f'--to {to}: expected one of {", ".join(TARGETS)}')
    out = Path(out)
    if out.exists() and not force:
        raise CheckpointError(f'{out} exists: choose another name, or add --force')
    if not out.resolve().parent.is_dir():
        raise CheckpointError(f'{out}: there is no folder {out.resolve().parent}')
    with named(source):
        checkpoint = read_checkpoint(source)
        content = write(*parse(checkpoint), to)
    part = out.with_name(f'{out.name}.part')
    if out.suffix == '.safetensors':
        from safetensors.torch import save_file  # comes with timm
        save_file({key: value.clone().contiguous() for key, value in unwrap(content).items()}, part)
    else:
        # mmengine looks for class names here
        if TARGETS[to].wrapper == 'state_dict' and (names := dataset_meta(checkpoint)):
            content['meta'] = {'dataset_meta': names}
        torch.save(content, part)
    os.replace(part, out)
    left = [f'{key} (all but dataset_meta)' if key == 'meta' and 'meta' in content else str(key)
            for key, value in checkpoint.items()
            if not isinstance(value, Tensor) and key not in (wrapper(checkpoint), 'carried')]
    return f'written for {to}: {out}' + (f'\nleft out: {", ".join(left)}' if left else '')


def _obstacle(vit: State, around: State, to: str) -> str | None:
    """Why a target cannot hold a model, or None."""
    target = TARGETS[to]
    if to == 'vit_adapter' and 'level_embed' not in vit:
        return 'the model is not a ViT-Adapter (level_embed is missing)'
    if foreign := next((key for key in vit if not re.fullmatch(target.places, key)), None):
        return f'it has no place for {foreign}'
    if target.token and 'cls_token' not in vit:
        return 'its models have a class token, but this one averages its tokens'
    if around and not target.whole:
        return f'it only holds the transformer, not {next(iter(around))}'
    norms = {key.split('.pe_norm.')[0] for key in vit if re.match(r'blocks\.\d+\.pe_norm\.', key)}
    if to == 'lape' and norms:
        if 'blocks.0' not in norms:
            return 'its models give layer 0 position embedding too (blocks.0.pe_norm is missing)'
        dim = vit['cls_token'].shape[-1:]
        if any(getattr(vit.get(f'{layer}.pe_norm.{part}'), 'shape', None) != dim
               for layer in norms for part in ('weight', 'bias')):
            return 'its models normalise position embedding by full LayerNorms'
    return None


def _as_lape(vit: State) -> State:
    """Gives weights LaPE's form: relative bias indices, and sinusoids without a batch dimension."""
    renewed = dict(vit)
    for key, table in vit.items():
        if key.endswith('.relative_position_bias_table'):
            side = (round(len(table) ** .5) + 1) // 2
            if (2 * side - 1) ** 2 != len(table):
                raise CheckpointError(f'lape cannot express this model: the grid of {key} is not '
                                      'square')
            renewed[key.replace('bias_table', 'index')] = gen_relative_position_index((side, side))
        elif key == 'pos_embed' and table.shape[2] % 2 == 0:
            fixed = position_table('sincos_1d', grid=(1, table.shape[1]), dim=table.shape[2],
                                   num_prefix_tokens=0).detach()
            if torch.allclose(table.float(), fixed,
                              atol=1e-5 if table.dtype == torch.float32 else 1e-3):
                renewed[key] = table[0]
    return renewed
