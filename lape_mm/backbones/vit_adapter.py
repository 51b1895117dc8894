"""ViT-Adapter (ICLR 2023) with any joining: a plain ViT for dense prediction."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lape_mm.position import KINDS, ROTARY
from lape_mm.registry import MODELS

from .adapter_layers import (
    BatchNorm,
    Interaction,
    SpatialPriorModule,
    init_adapter,
    to_maps,
    to_pyramid,
)
from .archs import resolve_vit
from .checks import is_count
from .sampling import reference_points
from .vit import VisionTransformer, patch_embed

COARSEST = 32
VARIANTS = ('detection', 'segmentation')
ADAPTER: dict[str, float] = dict(conv_inplane=64, deform_num_heads=6, deform_ratio=1.,
                                 deform_points=4, ffn_ratio=.25)


@MODELS.register_module()
class ViTAdapter(VisionTransformer):
    """ViT-Adapter on the ViT of `DeiT`, with any joining; returns maps of strides 4, 8, 16 and 32.

    Parameter names are those of the official checkpoints. The ViT's names are a classifier's, so
    ``init_cfg`` can load a classifier. There is no class token; but under default, share, unshare
    and LaPE the PE table keeps that token's slot, as in the official checkpoints.

    The official model has no LayerNorm after the last ViT layer, where MPVG adds its last term.
    With ``last_norm``, the last ViT map is taken after LayerNorm and ``post_norm``; the extractors
    see the tokens before them.

    Patches may have any size. The image is padded to multiples of 32 for the convolutions, and then
    to whole patches for the ViT; points and maps are matched in pixels. Registers pass
    only through the ViT's layers, as the class token does in the official model for BEiT.

    Args:
        arch: a name or a dict as for `DeiT`; the dict may also have conv_inplane, deform_num_heads,
            deform_ratio, deform_points and ffn_ratio.
        variant: 'detection' (14 x 14 windows except in the last layer of each interaction; the last
            ViT map is added to all levels) or 'segmentation' (global attention; the ViT map after
            each of four interactions is added to its own level).
        img_size, patch_size: of the ViT's pre-training, see `DeiT`.
        class_token: whether the PE table has the class token's slot; None for the rule above.
        last_norm: None turns it on if the joining has a post_norm (MPVG), our reading.
        windows: a list with each layer's window side in tokens, or None for global attention; no
            list (None) for the variant's choice.
        interaction_indexes: first and last layer of each interaction; None for four equal parts.
        out_indices: levels 0 to 3 of the returned maps, in any order; one may repeat. Parameters
            that only other levels need are left out.
        layer_scale: adds learned scales, initially ones, to the ViT's branches; ignored where the
            architecture has its own.
        drop_path_rate: rises linearly over the ViT's layers; constant in the extractors.
        frozen: the ViT gets no gradient; the adapter does.

    The other arguments are as in `DeiT`; there is no relative bias.
    """

    positions = (*KINDS, *ROTARY)
    checkpointing = (False, 'adapter', True)

    def __init__(self, *, arch: str | Mapping = 'tiny', variant: str = 'detection',
                 img_size: int | Sequence[int] | None = None, patch_size: int | None = None,
                 joining: str | Mapping = 'default', position: str | None = None,
                 class_token: bool | None = None, last_norm: bool | None = None,
                 windows: Sequence[int | None] | None = None,
                 interaction_indexes: Sequence[Sequence[int]] | None = None,
                 out_indices: Sequence[int] = (0, 1, 2, 3), layer_scale: bool = True,
                 drop_path_rate: float = 0., interpolation: str | None = None,
                 norm_eps: float | None = None, with_cp: bool | str = False, frozen: bool = False,
                 init_cfg: dict | None = None):
        if variant not in VARIANTS:
            raise ValueError(f'variant={variant!r}: expected one of {VARIANTS}')
        sizes, given = resolve_vit(arch, ADAPTER, img_size=img_size, patch_size=patch_size,
                                   position=position, interpolation=interpolation,
                                   norm_eps=norm_eps)
        if isinstance(arch, str):  # the official sizes
            if sizes['embed_dim'] >= 768:
                sizes.update(deform_num_heads=sizes['num_heads'], deform_ratio=.5)
            elif sizes['embed_dim'] % 6:
                sizes['deform_num_heads'] = sizes['num_heads']
        patch_size, norm_eps = given.pop('patch_size'), given['norm_eps']
        dim, depth = sizes['embed_dim'], sizes['depth']
        indexes = check_interactions(interaction_indexes, depth)
        if variant == 'segmentation' and len(indexes) != 4:
            raise ValueError(f'interaction_indexes={indexes}: the segmentation variant needs four, '
                             'one for each level')
        if windows is None:
            ends = {last for _, last in indexes}
            windows = [14 if variant == 'detection' and layer not in ends else None
                       for layer in range(depth)]
        elif not isinstance(windows, Sequence) or len(windows) != depth or not all(
                window is None or is_count(window) for window in windows):
            raise ValueError(f'windows={windows!r}: expected {depth} entries, one per layer: a '
                             'side in tokens, or None')
        super().__init__(
            sizes=sizes, stride=patch_size, pad_to=COARSEST,
            stem=patch_embed(patch_size=patch_size, in_channels=3, sizes=sizes), in_channels=3,
            joining=joining, class_token=sizes['class_token'] and class_token,
            layers=[dict(layer_scale=sizes['layer_scale'] or float(layer_scale),
                         attention=dict(window_size=window)) for window in windows],
            last_norm=last_norm, drop_path_rate=drop_path_rate, with_cp=with_cp, frozen=frozen,
            init_cfg=init_cfg, **given)
        self.cls_token, self.scale_is_new = None, not sizes['layer_scale']
        self.num_prefix_tokens, self.unused_slots = sizes['reg_tokens'], self.num_prefix_slots
        self.freeze()
        self.variant, self.interaction_indexes = variant, indexes
        if not isinstance(out_indices, Sequence) or not out_indices \
                or any(level not in range(4) for level in out_indices):
            raise ValueError(f'out_indices={out_indices!r}: expected levels, each 0, 1, 2 or 3')
        self.out_indices = tuple(out_indices)

        self.level_embed = nn.Parameter(torch.randn(3, dim))
        self.spm = SpatialPriorModule(inplane=sizes['conv_inplane'], dim=dim)
        self.interactions = nn.ModuleList(
            Interaction(extra=span is indexes[-1], dim=dim, norm_eps=norm_eps,
                        ffn_ratio=sizes['ffn_ratio'], drop_path=drop_path_rate,
                        num_heads=sizes['deform_num_heads'], points=sizes['deform_points'],
                        ratio=sizes['deform_ratio']) for span in indexes)
        self.up = nn.ConvTranspose2d(dim, dim, 2, stride=2)
        for part in (self.up, self.spm, self.interactions):
            part.apply(init_adapter)
        for level in sorted(set(self.out_indices)):
            setattr(self, f'norm{level + 1}', BatchNorm(dim))
        if 0 not in self.out_indices:  # parameters without a gradient would stop DDP
            self.register_module('up', nn.Identity())
            self.spm.register_module('fc1', nn.Identity())

    def forward(self, img: Tensor) -> tuple[Tensor, ...]:
        """Maps (B, 3, H, W) of any size to (B, C, ceil(H / s), ceil(W / s)), s = 4, 8, 16, 32."""
        x, grid, plan = self.embed(img)
        if plan.residual[0] is not None:  # added before the first injector
            x, plan = x + plan.residual[0], replace(plan, residual=(None, *plan.residual[1:]))
        registers = self.num_prefix_tokens  # pass only through the ViT's layers
        c1, *pyramid = self.spm(img)
        shapes = tuple(tuple(level.shape[-2:]) for level in pyramid)
        pyramid = to_pyramid([level + embed[:, None, None] for level, embed in
                              zip(pyramid, self.level_embed)])
        grid_points, pyramid_points = (reference_points(sizes, x.device)
                                       for sizes in ((grid,), shapes))
        if COARSEST % self.stride:  # the two paddings differ
            ratio = grid_points.new_tensor([self.stride * tokens / (8 * cells) for tokens, cells in
                                            zip(reversed(grid), reversed(shapes[0]))])
            grid_points, pyramid_points = grid_points * ratio, pyramid_points / ratio
        maps = []
        for interaction, (first, last) in zip(cast('Sequence[Interaction]', self.interactions),
                                              self.interaction_indexes):
            patches = self.maybe_checkpoint(
                interaction.injector, x[:, registers:], grid_points, pyramid, shapes)
            x = torch.cat([x[:, :registers], patches], dim=1) if registers else patches
            for layer in range(first, last + 1):
                x = self.maybe_checkpoint(self.blocks[layer], x, grid, **plan.layer(layer))
            patches = x[:, registers:]
            for extractor in interaction.extractors:
                pyramid = self.maybe_checkpoint(extractor, pyramid, pyramid_points, shapes,
                                                patches, grid)
            maps.append(patches)
        maps[-1] = self.run_last_norm(x, plan.post_norm)[:, registers:]
        maps = [to_maps(tokens, (grid,))[0]
                for tokens in (maps[-1:] if self.variant == 'detection' else maps)]
        levels = [c1, *to_maps(pyramid, shapes)]
        if 0 in self.out_indices:
            levels[0] = c1 + self.up(levels[1])
        height, width = img.shape[-2:]
        outputs = {}
        for index in sorted(set(self.out_indices)):
            x, size = maps[index % len(maps)], levels[index].shape[-2:]
            if COARSEST % self.stride:  # the grid ends beyond the level
                x = F.interpolate(x, scale_factor=self.stride / 2 ** (index + 2), mode='bilinear',
                                  align_corners=False)[..., :size[0], :size[1]]
            elif size != grid:
                x = F.interpolate(x, size=size, mode='bilinear', align_corners=False)
            level = self.get_submodule(f'norm{index + 1}')(x + levels[index])
            stride = 4 * 2 ** index
            # mmcv's RoIAlign misreads channels-last maps, and some heads call .view
            outputs[index] = level[..., :-(-height // stride), :-(-width // stride)].contiguous()
        return tuple(outputs[index] for index in self.out_indices)

    def vit_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        adapter = ('level_embed', 'spm', 'interactions', 'up', 'norm1', 'norm2', 'norm3', 'norm4')
        return ((name, parameter) for name, parameter in self.named_parameters()
                if name.split('.')[0] not in adapter
                and not (self.scale_is_new and name.endswith(('.gamma1', '.gamma2'))))

    def padded(self, side: int) -> int:
        side = super().padded(side)
        return side + -side % self.stride

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {'level_embed'}


def check_interactions(indexes: Sequence[Sequence[int]] | None, depth: int) \
        -> list[tuple[int, int]]:
    """First and last layer of each interaction; together they cover all layers in order."""
    if indexes is None:
        if depth % 4:
            raise ValueError(f'depth={depth} does not divide into four interactions: give '
                             'interaction_indexes')
        step = depth // 4
        return [(first, first + step - 1) for first in range(0, depth, step)]
    try:
        spans = [(first, last) for first, last in indexes]
        layers = [layer for first, last in spans for layer in range(first, last + 1)]
    except (TypeError, ValueError):  # not pairs of integers
        spans, layers = [], []
    if layers != list(range(depth)) or any(first > last for first, last in spans):
        raise ValueError(f'interaction_indexes={indexes!r}: expected ranges (first, last) that '
                         f'cover layers 0..{depth - 1} in order')
    return spans
