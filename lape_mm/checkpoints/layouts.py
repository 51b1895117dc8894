"""Translates other projects' parameter names, with pure functions on state dicts."""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor

from .files import CheckpointError

# in order of preference; averaged weights come first, as in timm
WRAPPERS = ('state_dict_ema', 'state_dict', 'model', 'model_ema', 'module')


# buffers that depend only on the model's sizes
CONSTANTS = re.compile(r'(.*\.)?(relative_position_index|attn_mask)'
                       r'|(.*\.)?rope(_embed|_embeddings)?\.(periods|inv_freq|freqs_(cos|sin))')


@dataclass(frozen=True)
class Layout:
    """One project's names for a transformer's weights."""

    mark: str  # a key that identifies the layout, without prefix
    # pairs (ours, theirs) of key prefixes; {} stands for a number, q, k or v. In either direction,
    # the first pair that matches a key renames it
    rules: tuple[tuple[str, str], ...] = ()
    read: tuple[tuple[str, str], ...] = ()  # further rules, for reading only

    def ours(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Renames their state dict to our names, drops constants, and calls `join`."""
        state = {key: value for key, value in state.items() if not CONSTANTS.fullmatch(key)}
        return join(translate(state, [
            (theirs, ours) for ours, theirs in (*self.rules, *self.read)]))

    def theirs(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Renames our state dict to their names."""
        return translate(state, self.rules)


MMPRETRAIN_BLOCK = (
    ('blocks.{}.mlp.fc1.', 'layers.{}.ffn.layers.0.0.'),
    ('blocks.{}.mlp.fc2.', 'layers.{}.ffn.layers.1.'), ('blocks.{}.norm1.', 'layers.{}.ln1.'),
    ('blocks.{}.norm2.', 'layers.{}.ln2.'))
MMSEG_ATTENTION = (  # mmseg's ViT wraps torch's attention
    ('blocks.{}.attn.qkv.', 'layers.{}.attn.attn.in_proj_'),
    ('blocks.{}.attn.proj.', 'layers.{}.attn.attn.out_proj.'))
# tried in this order; the first whose mark is in the file is used
LAYOUTS = {
    'mmpretrain': Layout('patch_embed.projection.weight', (
        ('patch_embed.proj.', 'patch_embed.projection.'),
        ('blocks.{}.attn.qkv.', 'layers.{}.attn.qkv.'),
        ('blocks.{}.attn.proj.', 'layers.{}.attn.proj.'), *MMPRETRAIN_BLOCK, ('norm.', 'ln1.')),
        read=MMSEG_ATTENTION),
    'compact': Layout('tokenizer.conv_layers.0.0.weight', (
        ('patch_embed.', 'tokenizer.'), ('cls_token', 'classifier.class_emb'),
        ('pos_embed', 'classifier.positional_emb'),
        ('attention_pool.', 'classifier.attention_pool.'), ('blocks.', 'classifier.blocks.'),
        ('norm.', 'classifier.norm.'))),
    't2t': Layout('tokens_to_token.project.weight', (('patch_embed.', 'tokens_to_token.'),)),
    'ceit': Layout('i2t.proj.weight', (('patch_embed.', 'i2t.'),)),
    # timm's Swin merges at the start of a stage, the official one at the end of the stage before
    'timm Swin': Layout('layers.3.downsample.reduction.weight', (
        ('layers.0.downsample.', 'layers.1.downsample.'),
        ('layers.1.downsample.', 'layers.2.downsample.'),
        ('layers.2.downsample.', 'layers.3.downsample.'))),
    'swin': Layout('absolute_pos_embed', (('pos_embed', 'absolute_pos_embed'),)),
    'own T2T': Layout('patch_embed.project.weight'),
    'own compact': Layout('patch_embed.conv_layers.0.0.weight'),
    # ViT, DeiT, MAE, BEiT and DINOv2 of Hugging Face
    'hf ViT': Layout('embeddings.patch_embeddings.projection.weight', read=(
        ('patch_embed.proj.', 'embeddings.patch_embeddings.projection.'),
        ('pos_embed', 'embeddings.position_embeddings'),
        ('dist_token', 'embeddings.distillation_token'),
        ('reg_token', 'embeddings.register_tokens'), ('', 'embeddings.'),
        ('blocks.{}.attn.q.', 'encoder.layer.{}.attention.attention.query.'),
        ('blocks.{}.attn.k.', 'encoder.layer.{}.attention.attention.key.'),
        ('blocks.{}.attn.v.', 'encoder.layer.{}.attention.attention.value.'),
        ('blocks.{}.attn.proj.', 'encoder.layer.{}.attention.output.dense.'),
        ('blocks.{}.mlp.fc1.', 'encoder.layer.{}.intermediate.dense.'),
        ('blocks.{}.mlp.fc1.', 'encoder.layer.{}.mlp.weights_in.'),
        ('blocks.{}.mlp.fc2.', 'encoder.layer.{}.output.dense.'),
        ('blocks.{}.mlp.fc2.', 'encoder.layer.{}.mlp.weights_out.'),
        ('blocks.{}.norm1.', 'encoder.layer.{}.layernorm_before.'),
        ('blocks.{}.norm2.', 'encoder.layer.{}.layernorm_after.'),
        ('blocks.{}.gamma_{}', 'encoder.layer.{}.layer_scale{}.lambda1'),
        ('blocks.{}.gamma_{}', 'encoder.layer.{}.lambda_{}'),
        ('blocks.', 'encoder.layer.'), ('norm.', 'layernorm.'))),
    'hf DINOv3': Layout('embeddings.patch_embeddings.weight', read=(
        ('patch_embed.proj.', 'embeddings.patch_embeddings.'),
        ('reg_token', 'embeddings.register_tokens'), ('', 'embeddings.'),
        ('blocks.{}.attn.{}.', 'layer.{}.attention.{}_proj.'),
        ('blocks.{}.attn.proj.', 'layer.{}.attention.o_proj.'),
        ('blocks.{}.gamma_{}', 'layer.{}.layer_scale{}.lambda1'),
        ('blocks.{}.mlp.fc1_g.', 'layer.{}.mlp.gate_proj.'),
        ('blocks.{}.mlp.fc1_x.', 'layer.{}.mlp.up_proj.'),  # fc1 if there is no gate, see `join`
        ('blocks.{}.mlp.fc2.', 'layer.{}.mlp.down_proj.'), ('blocks.', 'layer.'))),
    # DeiT, timm, LaPE, ViT-Adapter, Segmenter; Swin without absolute PE; most recent ViTs; ours
    'deit': Layout('patch_embed.proj.weight', read=(
        ('reg_token', 'register_tokens'), ('reg_token', 'storage_tokens'),  # DINOv2, DINOv3
        ('blocks.{}.attn.{}.', 'blocks.{}.attn.{}_proj.'),
        ('blocks.{}.attn.norm.', 'blocks.{}.attn.inner_attn_ln.'),
        ('blocks.{}.mlp.norm.', 'blocks.{}.mlp.ffn_ln.'),
        ('blocks.{}.mlp.fc1.', 'blocks.{}.mlp.w12.'), ('blocks.{}.mlp.fc2.', 'blocks.{}.mlp.w3.'),
        ('blocks.{}.mlp.fc1_g.', 'blocks.{}.mlp.w1.'),
        ('blocks.{}.mlp.fc1_x.', 'blocks.{}.mlp.w2.'))),
}
# the official mask decoder -> mmseg's SegmenterMaskTransformerHead
MASK_DECODER = (('proj_dec.', 'dec_proj.'), ('proj_patch', 'patch_proj.weight'),
                ('proj_classes', 'classes_proj.weight'), *MMPRETRAIN_BLOCK, *MMSEG_ATTENTION)
# layer scales of timm, BEiT and mmpretrain, after `Layout.ours`
LAYER_SCALES = [('blocks.{}.ls{}.gamma', 'blocks.{}.gamma{}'),
                ('blocks.{}.gamma_', 'blocks.{}.gamma'),
                ('layers.{}.attn.gamma1.weight', 'blocks.{}.gamma1'),
                ('layers.{}.ffn.gamma2.weight', 'blocks.{}.gamma2')]


def join(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Joins the q, k and v weights of each attention into one ``qkv``.

    Where k has no bias (BEiT, EVA-02) or a masked one (DINOv3), the biases of q and v become
    ``q_bias`` and ``v_bias``. A SwiGLU keeps its gate ``fc1_g``; a lone ``fc1_x`` becomes ``fc1``.
    """
    state = dict(state)
    for start in [key.removesuffix('q.weight') for key in state if key.endswith('.attn.q.weight')]:
        if f'{start}k.weight' in state and f'{start}v.weight' in state:
            state[f'{start}qkv.weight'] = torch.cat(
                [state.pop(f'{start}{part}.weight') for part in 'qkv'])
        biases = {part: state.pop(f'{start}{part}.bias') for part in 'qkv'
                  if f'{start}{part}.bias' in state}
        state.update({f'{start}qkv.bias': torch.cat([*biases.values()])} if 'k' in biases else
                     {f'{start}{part}_bias': bias for part, bias in biases.items()})
    for name in [key for key in state if key.endswith('.attn.qkv.bias_mask')]:
        whole = name.removesuffix('_mask')
        _split_bias(state, whole, state[whole] * state.pop(name))
    for value in [key for key in state if '.mlp.fc1_x.' in key]:
        if value.replace('fc1_x', 'fc1_g') not in state:
            state[value.replace('fc1_x', 'fc1')] = state.pop(value)
    return state


def _split_bias(state: dict[str, Tensor], whole: str, value: Tensor) -> None:
    """Replaces a joint bias (3 C,) by ``q_bias`` and ``v_bias`` if its k part is zero."""
    q, k, v = value.chunk(3)
    if not k.any():
        del state[whole]
        start = whole.removesuffix('qkv.bias')
        state[f'{start}q_bias'], state[f'{start}v_bias'] = q, v


def settle(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rewrites weights in the equivalent form that a model's ``own`` weights have.

    Forms differ in layer scales; in the biases of q, k and v (joint, separate, or zero if the file
    has none); in a SwiGLU's gate and value (joint or separate); and in the last norm's name.
    """
    renamed = translate({key: key for key in state}, LAYER_SCALES)
    state = {ours if ours in own else key: state[key] for ours, key in renamed.items()}
    biased = any(re.search(r'\.attn\.(qkv\.|[qkv]_)bias$', key) for key in state)
    for name in own:
        if name in state:
            continue
        layer, joint, part = name.partition('.attn.')
        gate, value = (name.replace('.fc1.', f'.fc1_{half}.') for half in 'gx')
        packed = name.replace('.fc1_g.', '.fc1.')
        weight = state.get(f'{layer}.attn.qkv.weight')
        if joint and part in ('qkv.bias', 'q_bias', 'v_bias') and weight is not None:
            q, v, whole = (f'{layer}.attn.{kind}' for kind in ('q_bias', 'v_bias', 'qkv.bias'))
            if not biased:
                state[name] = weight.new_zeros(own[name].shape)
            elif part == 'qkv.bias' and q in state and v in state:
                state[name] = torch.cat([state.pop(q), torch.zeros_like(state[v]), state.pop(v)])
            elif part == 'q_bias' and whole in state:
                _split_bias(state, whole, state[whole])
        elif name != gate and gate in state and value in state:
            state[name] = torch.cat([state.pop(gate), state.pop(value)])
        elif name != packed and packed in state:
            state[name], state[name.replace('fc1_g', 'fc1_x')] = state.pop(packed).chunk(2)
        elif (other := {'norm': 'fc_norm', 'fc_norm': 'norm'}.get(name.split('.')[0])) and (
                theirs := f'{other}.{name.split(".")[-1]}') in state and theirs not in own:
            state[name] = state.pop(theirs)
    return state


def wrapper(content: Mapping) -> str | None:
    """Returns the key that holds a checkpoint's weights; None if it is the state dict itself."""
    return next((key for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)


def unwrap(checkpoint: Mapping) -> dict[str, Tensor]:
    """The weights of a checkpoint, without the wrappers of trainers and DataParallel.

    Raises:
        CheckpointError: there are no weights, a weight is not a tensor, or the model is folded.
    """
    content, inside = checkpoint, None
    for _ in WRAPPERS:
        if (key := wrapper(content)) is None:
            break
        if others := [name for name in WRAPPERS if name != key and name in content]:
            print_log(f'weights taken from {key!r}, not from {others}', logger='current')
        content, inside = content[key], key
    if inside:
        for name, value in content.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                raise CheckpointError(f'{inside}: {str(name)[:200]!r} is a {type(value).__name__}, '
                                      'expected a tensor')
    # version 0.1.0 kept constants of other layouts under carried/
    state = {key.removeprefix('module.'): value for key, value in content.items()
             if isinstance(key, str) and isinstance(value, Tensor)
             and not key.startswith('carried/')}
    if not state:
        raise CheckpointError(f'has no weights; its entries are '
                              f'{sorted(map(str, checkpoint))[:8]}')
    if any('folded.' in key for key in state):
        raise CheckpointError('is folded and has no position embedding: use the checkpoint that it '
                              'was folded from')
    return state


def translate(state: Mapping[str, Any], rules) -> dict[str, Any]:
    """Renames each key by the first matching rule (start, replacement); see `Layout`."""
    patterns = [(re.compile(re.escape(start).replace(r'\{\}', r'(\d+|[qkv])')),
                 replacement.replace('{}', r'\1', 1).replace('{}', r'\2'))
                for start, replacement in rules]
    translated = {}
    for key, value in state.items():
        for pattern, replacement in patterns:
            if found := pattern.match(key):
                key = found.expand(replacement) + key[found.end():]
                break
        translated[key] = value
    return translated


def backbone_state(checkpoint: Mapping, prefix: str | None = None) \
        -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the transformer of a checkpoint under our names, and the other weights unchanged.

    Reads the layouts of DeiT, timm, LaPE, ViT-Adapter, Segmenter, Swin, CeiT, T2T-ViT,
    Compact-Transformers, MAE, DINOv2, DINOv3, BEiT, EVA-02, mmpretrain's, mmseg's and Hugging
    Face's ViTs, and this package's own models. ``prefix`` is what the transformer's names start
    with, such as 'backbone.'; None detects it. CheckpointError for no transformer, or several.
    """
    state = unwrap(checkpoint)
    for layout in LAYOUTS.values():
        found = sorted(key.removesuffix(layout.mark) for key in state
                       if f'.{key}'.endswith(f'.{layout.mark}') and prefix in (
                           None, key.removesuffix(layout.mark)))
        if len(found) > 1:
            raise CheckpointError(f'has {len(found)} ViTs, at {found}: choose one with prefix')
        if found:
            break
    else:
        raise CheckpointError(f'has no ViT{f" at prefix={prefix!r}" if prefix else ""}: expected '
                              f'a key such as {layout.mark}; its first keys are {list(state)[:4]}')
    inside = {key.removeprefix(found[0]): value for key, value in state.items()
              if key.startswith(found[0])}
    # LaPE's 1-D sinusoid has no batch dimension
    vit = {key: value[None] if re.fullmatch(r'pos_embed\d*', key) and value.ndim == 2 else value
           for key, value in layout.ours(inside).items()}
    return vit, {key: value for key, value in state.items() if not key.startswith(found[0])}


def segmenter_state(checkpoint: Mapping) -> dict[str, Tensor]:
    """Converts an official Segmenter checkpoint to a state dict of mmseg's EncoderDecoder.

    The encoder becomes ``backbone``, without its unused classifier. The mask decoder becomes a
    `SegmenterMaskTransformerHead`; its projections are transposed, because Segmenter
    applies them as ``x @ P``. The linear decoder becomes the 1x1 convolution of an `FCNHead`.
    """
    state = unwrap(checkpoint)
    backbone, decoder = ({key.removeprefix(name): value for key, value in state.items()
                          if key.startswith(name) and not key.startswith('encoder.head')}
                         for name in ('encoder.', 'decoder.'))
    if not backbone or not decoder:
        raise CheckpointError('not an official Segmenter: expected keys encoder.* and decoder.*, '
                              f'its first keys are {list(state)[:4]}')
    if 'head.weight' in decoder:
        decoder = {'conv_seg.weight': decoder['head.weight'][:, :, None, None],
                   'conv_seg.bias': decoder['head.bias']}
    else:
        decoder = {key: value.T if key in ('proj_patch', 'proj_classes') else value
                   for key, value in decoder.items()}
        decoder = translate(decoder, MASK_DECODER)
    return {**{f'backbone.{key}': value for key, value in backbone.items()},
            **{f'decode_head.{key}': torch.as_tensor(value) for key, value in decoder.items()}}
