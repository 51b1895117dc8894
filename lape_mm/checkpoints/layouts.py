"""Other people's key layouts, as pure functions from state dict to state dict."""
from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from .files import CheckpointError

WRAPPERS = ('state_dict', 'model', 'state_dict_ema', 'model_ema', 'module')
PATCHES = 'patch_embed.proj.weight'
# mmpretrain's and mmseg's own ViT -> DeiT
MM_VIT = (
    (r'^patch_embed\.projection\.', 'patch_embed.proj.'),
    (r'^layers\.(\d+)\.attn\.attn\.in_proj_', r'blocks.\1.attn.qkv.'),
    (r'^layers\.(\d+)\.attn\.attn\.out_proj\.', r'blocks.\1.attn.proj.'),
    (r'^layers\.(\d+)\.ffn\.layers\.0\.0\.', r'blocks.\1.mlp.fc1.'),
    (r'^layers\.(\d+)\.ffn\.layers\.1\.', r'blocks.\1.mlp.fc2.'),
    (r'^layers\.(\d+)\.ln(\d)\.', r'blocks.\1.norm\2.'),
    (r'^layers\.', 'blocks.'),
    (r'^ln1\.', 'norm.'),
)
# the official mask decoder -> mmseg's SegmenterMaskTransformerHead
MASK_DECODER = (
    (r'^proj_dec\.', 'dec_proj.'),
    (r'^proj_patch$', 'patch_proj.weight'),
    (r'^proj_classes$', 'classes_proj.weight'),
    (r'^blocks\.(\d+)\.attn\.qkv\.', r'layers.\1.attn.attn.in_proj_'),
    (r'^blocks\.(\d+)\.attn\.proj\.', r'layers.\1.attn.attn.out_proj.'),
    (r'^blocks\.(\d+)\.mlp\.fc1\.', r'layers.\1.ffn.layers.0.0.'),
    (r'^blocks\.(\d+)\.mlp\.fc2\.', r'layers.\1.ffn.layers.1.'),
    (r'^blocks\.(\d+)\.norm(\d)\.', r'layers.\1.ln\2.'),
)


def unwrap(checkpoint: Mapping) -> dict[str, Tensor]:
    """The weights inside a checkpoint, without what trainers and DataParallel put around them.

    Raises:
        CheckpointError: where there are none.
    """
    content = checkpoint
    while (key := next((key for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)):
        content = content[key]
    state = {key.removeprefix('module.'): value for key, value in content.items()
             if isinstance(key, str) and isinstance(value, Tensor)}
    if not state:
        raise CheckpointError('no weights in it: its entries are '
                              f'{sorted(map(str, checkpoint))[:8]}')
    return state


def rename(state: Mapping[str, Tensor], rules) -> dict[str, Tensor]:
    """Every key through all rules (pattern, replacement), in order."""
    renamed = {}
    for key, value in state.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        renamed[key] = value
    return renamed


def backbone_state(checkpoint: Mapping, prefix: str | None = None) \
        -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The ViT in a checkpoint, with this package's names.

    Understands the layouts of DeiT, timm, LaPE, ViT-Adapter, Segmenter, of mmpretrain's and
    mmseg's ViTs, and of this package's own classifiers, detectors and segmenters.

    Args:
        checkpoint: what `read_checkpoint` gives.
        prefix: what stands before the ViT's names in it, such as 'backbone.'; None to find out.

    Returns:
        the ViT's entries, and those that stand outside it.

    Raises:
        CheckpointError: where there is no ViT, or more than one and no prefix.
    """
    state = unwrap(checkpoint)
    marks = (PATCHES, 'patch_embed.projection.weight')
    if prefix is None:
        found = sorted(key.removesuffix(mark) for key in state for mark in marks
                       if key == mark or key.endswith('.' + mark))
        if len(found) != 1:
            what = f'no ViT in it ({PATCHES!r} is missing); its first keys are ' \
                f'{list(state)[:4]}' if not found else f'{len(found)} ViTs in it, named ' \
                f'{found}: choose one by prefix'
            raise CheckpointError(what)
        prefix = found[0]
    inside = {key.removeprefix(prefix): value for key, value in state.items()
              if key.startswith(prefix)}
    if not inside:
        raise CheckpointError(f'no key starts with prefix={prefix!r}; its first keys are '
                              f'{list(state)[:4]}')
    outside = {key: value for key, value in state.items() if not key.startswith(prefix)}
    if marks[1] in inside:
        inside = rename(inside, MM_VIT)
    for key, value in inside.items():
        # the official 1-D sinusoid stands without a batch dimension
        if re.fullmatch(r'pos_embed\d*', key) and value.ndim == 2:
            inside[key] = value[None]
    return inside, outside


def segmenter_state(checkpoint: Mapping) -> dict[str, Tensor]:
    """An official Segmenter checkpoint as the state dict of mmseg's EncoderDecoder.

    The encoder becomes ``backbone``, its unused classifier is left out; the mask decoder becomes
    a `SegmenterMaskTransformerHead` (its projections, applied as ``x @ P``, become transposed
    weights), the linear decoder the 1x1 convolution of an `FCNHead`.
    """
    state = unwrap(checkpoint)
    parts = {name: {key.removeprefix(name): value for key, value in state.items()
                    if key.startswith(name)} for name in ('encoder.', 'decoder.')}
    if not all(parts.values()):
        raise CheckpointError('no official Segmenter: keys encoder.* and decoder.* are expected, '
                              f'its first keys are {list(state)[:4]}')
    backbone = {key: value for key, value in parts['encoder.'].items()
                if not key.startswith('head.')}
    decoder = parts['decoder.']
    if 'head.weight' in decoder:
        decoder = {'conv_seg.weight': decoder['head.weight'][:, :, None, None],
                   'conv_seg.bias': decoder['head.bias']}
    else:
        decoder = {key: value.T if key in ('proj_patch', 'proj_classes') else value
                   for key, value in decoder.items()}
        decoder = rename(decoder, MASK_DECODER)
    return {**{f'backbone.{key}': value for key, value in backbone.items()},
            **{f'decode_head.{key}': torch.as_tensor(value) for key, value in decoder.items()}}
