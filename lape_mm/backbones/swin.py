"""Swin with any joining: shifted windows, and a token grid that shrinks from stage to stage."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import cast

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp, PatchEmbed
from timm.models.swin_transformer import (
    PatchMerging,
    WindowAttention,
    window_partition,
    window_reverse,
)
from torch import Tensor, nn

from lape_mm.position import KINDS, PRESETS, Joining, PositionPlan
from lape_mm.position.joining import Carry
from lape_mm.registry import MODELS

from .checks import check_count, check_out_indices, resolve_arch
from .encoder import Encoder, init_linear
from .layers import EncoderLayer

ARCHS = {
    'tiny': dict(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
    'small': dict(embed_dim=96, depths=(2, 2, 18, 2), num_heads=(3, 6, 12, 24)),
    'base': dict(embed_dim=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32)),
}
NEEDED = ('embed_dim', 'depths', 'num_heads')
DETAILS = dict(mlp_ratio=4., qkv_bias=True, window_size=7)
# Swin's first layer receives PE under PVG and MPVG too (MPVG paper, "Experiments")
JOININGS = {'pvg': Joining(first_layer=0), 'mpvg': Joining(first_layer=0, last=0)}

MASKED = -100.  # the official logit of masked pairs, finite in half precision


def shift_mask(x: Tensor, window: tuple[int, int], shift: tuple[int, int]) -> Tensor:
    """Masks pairs of tokens that are neighbours only by the cyclic shift of a map (B, H, W, C).

    Returns (number of windows, N, N), to be added to the logits; a window has N = h * w tokens.
    """
    # only the border between wrapped and other tokens can lie inside a window
    rows, columns = (torch.arange(extent, device=x.device) >= extent - step
                     for extent, step in zip(x.shape[1:3], shift))
    regions = 2 * rows[:, None].long() + columns
    regions = window_partition(regions[None, :, :, None], window).flatten(1)
    apart = regions[:, :, None] != regions[:, None]
    return x.new_zeros(apart.shape).masked_fill(apart, MASKED)


class SwinBlock(EncoderLayer):
    """Swin's block, which applies its layer's entries of the PE plan.

    ``x + (S)W-MSA(LN(x) + pre_attn)``, then ``x + MLP(LN(x))``. PE is added before the map is
    shifted and cut into windows. Maps are padded with zeros at the bottom and right to whole
    windows; the zeros stay in the softmax as keys (official detection code; timm shifts first).
    The shift leaves out a direction in which the map fits into one ``window``, (h, w) in tokens.
    (The official code shifts in neither direction if ``min(resolution) <= window_size``.)
    """

    def __init__(self, *, dim: int, num_heads: int, window: tuple[int, int], shifted: bool,
                 mlp_ratio: float, qkv_bias: bool, norm_eps: float, drop_path: float = 0.,
                 relative_bias: bool = True, pe_norm: nn.Module | None = None):
        super().__init__()
        self.shifted, self.pe_norm = shifted, pe_norm
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = WindowAttention(dim, num_heads, window_size=window, qkv_bias=qkv_bias)
        if not relative_bias:  # timm's attention adds zeros that are no parameter
            table = torch.zeros_like(self.attn.relative_position_bias_table)
            del self.attn.relative_position_bias_table
            self.attn.register_buffer('relative_position_bias_table', table, persistent=False)
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, residual: Tensor | None = None,
                pre_attn: Tensor | None = None) -> Tensor:
        """Maps (B, H, W, C), with the plan's entries (1, H * W, C), to (B, H, W, C)."""
        if residual is not None:
            x = x + residual.reshape(x.shape[1:])
        y = self.norm1(x)
        y = self.attend(y if pre_attn is None else y + pre_attn.reshape(x.shape[1:]))
        x = x + self.drop_path(y)
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def attend(self, y: Tensor) -> Tensor:
        """Attends within (shifted) windows: (B, H, W, C) to (B, H, W, C)."""
        if y.shape[0] == 0:
            # timm's attention rejects an empty batch; a map of zeros keeps all weights in the graph
            return y + self.attend(y.new_zeros(1, *y.shape[1:]))[:0]
        (height, width), window = y.shape[1:3], self.attn.window_size
        down, right = (side // 2 if self.shifted and extent > side else 0
                       for extent, side in zip((height, width), window))
        y = F.pad(y, (0, 0, 0, -width % window[1], 0, -height % window[0]))
        padded, mask = y.shape[1:3], None
        if down or right:
            y = y.roll((-down, -right), dims=(1, 2))
            # made for each map, because its size may change
            mask = shift_mask(y, window, (down, right))
        windows = self.attn(window_partition(y, window).flatten(1, 2), mask)
        y = window_reverse(windows.unflatten(1, window), window, *padded)
        if down or right:
            y = y.roll((down, right), dims=(1, 2))
        return y[:, :height, :width]


class SwinStage(nn.Module):
    """Blocks on one grid, and (except in the last stage) a layer that merges 2 x 2 tokens."""

    def __init__(self, blocks: Sequence[SwinBlock], downsample: PatchMerging | None):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample

    def merge(self, x: Tensor) -> Tensor:
        """Merges (B, H, W, C) to (B, ceil(H / 2), ceil(W / 2), 2 C), for tokens and for PE."""
        assert self.downsample is not None  # never called for the last stage
        return self.downsample(F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2)))


def stage_grids(grid: tuple[int, int], stages: int) -> list[tuple[int, int]]:
    """The grids (h, w) of the stages, each half of the previous one, rounded up."""
    height, width = grid
    return [(-(-height // 2 ** stage), -(-width // 2 ** stage)) for stage in range(stages)]


@MODELS.register_module()
class Swin(Encoder):
    """Swin Transformer (ICCV 2021) with any joining, for classification and dense prediction.

    Parameter names are those of the official checkpoints; only the table is called ``pos_embed``.
    Norms of PE are ``layers.I.blocks.J.pe_norm`` and ``last_pe_norm``. Every joining keeps the
    relative position bias. There is no class token: the last map is averaged, after the last
    LayerNorm and ``post_norm``.

    Only in Swin, 'pvg' and 'mpvg' also give PE to the first layer's attention, as in the MPVG
    paper. PE reaches the next stage through the `PatchMerging` of the tokens. For MPVG's last term
    and under 'share', the table does so too, without norms of PE. The papers do not say this, but
    their parameter counts leave no room for separate merging weights.

    Args:
        arch: 'tiny', 'small', 'base', or a dict of embed_dim, depths, num_heads (one number per
            stage each) and optionally mlp_ratio, qkv_bias and window_size.
        img_size: see `lape_mm.backbones.DeiT`; it also limits the windows to each stage's map.
        joining: as in `DeiT`, without 'unshare'.
        position: 'learnable', 'sincos_1d' or 'sincos_2d'; with joining 'default' also None for no
            table, as in the official Swin.
        relative_bias: False leaves out the relative position bias; all PE is then absolute.
        out_indices: stages whose maps are returned, ending with the last one; None for the pooled
            vector. Earlier maps pass a LayerNorm of their own, ``norm{stage}``, as in mmdet.

    The other arguments are as in `DeiT`.
    """

    def __init__(self, *, arch: str | Mapping = 'tiny', img_size: int | Sequence[int] = 224,
                 patch_size: int = 4, in_channels: int = 3, joining: str | Mapping = 'default',
                 position: str | None = 'learnable', relative_bias: bool = True,
                 out_indices: Sequence[int] | None = None, drop_path_rate: float = 0.,
                 interpolation: str = 'bicubic', norm_eps: float = 1e-5, with_cp: bool = False,
                 frozen: bool = False, init_cfg: dict | None = None):
        sizes = resolve_arch(arch, ARCHS, DETAILS, needed=NEEDED)
        depths, heads = sizes['depths'], sizes['num_heads']
        if not isinstance(depths, Sequence) or not isinstance(heads, Sequence) \
                or len(depths) != len(heads):
            raise ValueError(f'arch: depths={depths!r} and num_heads={heads!r}: expected one '
                             'number for each stage in both')
        check_count('patch_size', patch_size)
        check_count('in_channels', in_channels)
        dims = [sizes['embed_dim'] * 2 ** stage for stage in range(len(depths))]
        super().__init__(
            in_channels=in_channels, img_size=img_size, stride=patch_size,
            dims=[dim for dim, depth in zip(dims, depths) for _ in range(depth)],
            joining=JOININGS.get(joining, joining) if isinstance(joining, str) else joining,
            position=position, drop_path_rate=drop_path_rate, interpolation=interpolation,
            norm_eps=norm_eps, with_cp=with_cp, frozen=frozen, init_cfg=init_cfg)
        self.depths = tuple(depths)
        if self.joining.num_tables(self.depth) > 1:
            allowed = ', '.join(repr(name) for name in PRESETS if name != 'unshare')
            raise ValueError(f"joining={joining!r}: tables per layer need one grid, but Swin's "
                             f'shrinks; expected one of {allowed}, or a dict of settings')
        if not self.table_names and self.joining != Joining():
            raise ValueError(f'position=None with joining={joining!r}: expected '
                             f"joining='default', or a position of {KINDS}")
        norm = partial(nn.LayerNorm, eps=norm_eps)
        self.patch_embed = PatchEmbed(
            img_size=None, patch_size=patch_size, in_chans=in_channels, embed_dim=dims[0],
            norm_layer=norm, output_fmt='NHWC')
        self.layers = nn.ModuleList()
        grids = stage_grids(self.grid, len(depths))
        for dim, num_heads, grid, layers in zip(dims, heads, grids, self.stage_layers()):
            window = min(grid[0], sizes['window_size']), min(grid[1], sizes['window_size'])
            blocks = [SwinBlock(dim=dim, num_heads=num_heads, window=window, shifted=index % 2 == 1,
                                mlp_ratio=sizes['mlp_ratio'], qkv_bias=sizes['qkv_bias'],
                                relative_bias=relative_bias, norm_eps=norm_eps,
                                drop_path=self.drop_path_rates[layer],
                                pe_norm=self.joining.pe_norm(layer, dim=dim, eps=norm_eps))
                      for index, layer in enumerate(layers)]
            # timm's type asks for a class, but any callable works
            merging = PatchMerging(dim, norm_layer=norm) if dim != dims[-1] else None  # type: ignore[arg-type]
            self.layers.append(SwinStage(blocks, merging))
        self.layers.apply(init_linear)
        self.out_indices = check_out_indices(out_indices, len(depths), 'stages')
        for stage in self.out_indices[:-1]:
            setattr(self, f'norm{stage}', norm(dims[stage]))
        self.freeze()

    def stage_layers(self) -> list[range]:
        """The range of layers in each stage, counted from 0."""
        return [range(end - depth, end) for end, depth in zip(accumulate(self.depths), self.depths)]

    def stages(self) -> Sequence[SwinStage]:
        """The stages, in order."""
        return cast('Sequence[SwinStage]', self.layers)

    def layers_in_order(self) -> Sequence[EncoderLayer]:
        return [cast(EncoderLayer, block) for stage in self.stages() for block in stage.blocks]

    def vit_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        maps = [f'norm{stage}' for stage in self.out_indices[:-1]]
        return ((name, parameter) for name, parameter in self.named_parameters()
                if name.split('.')[0] not in maps)

    def carry(self, grid: tuple[int, int]) -> Carry:
        stages = self.stages()
        grids = stage_grids(grid, len(stages))

        def merge(pe: Tensor, stage: int) -> Tensor:
            return stages[stage].merge(pe.unflatten(1, grids[stage])).flatten(1, 2)
        return {layers.stop: partial(merge, stage=stage)
                for stage, layers in enumerate(self.stage_layers()[:-1])}

    def encode(self, img: Tensor, count: int | None = None) -> tuple[list[Tensor], PositionPlan]:
        """The maps (B, H, W, C) after each of the first ``count`` stages, and the plan."""
        x = self.patch_embed(self.pad_image(img))
        height, width = x.shape[1:3]
        plan = self.plan((height, width))
        maps: list[Tensor] = []
        for stage, layers in list(zip(self.stages(), self.stage_layers()))[:count]:
            if maps:
                x = self.stages()[len(maps) - 1].merge(x)
            for layer, block in zip(layers, stage.blocks):
                x = self.maybe_checkpoint(block, x, **plan.layer(layer))
            maps.append(x)
        return maps, plan

    def forward(self, img: Tensor) -> tuple[Tensor, ...]:
        """Maps (B, in_channels, H, W) to the pooled vector (B, C of the last stage), in a tuple.

        With ``out_indices``: stage s gives (B, C 2^s, ceil(H / t), ceil(W / t)), t = patch 2^s.
        """
        maps, plan = self.encode(img)
        last = self.run_last_norm(maps[-1].flatten(1, 2), plan.post_norm)
        if not self.out_indices:
            return (self.pool(last),)
        chosen = [getattr(self, f'norm{stage}')(maps[stage]) for stage in self.out_indices[:-1]]
        return tuple(x.permute(0, 3, 1, 2).contiguous()
                     for x in (*chosen, last.unflatten(1, maps[-1].shape[1:3])))

    def no_weight_decay(self) -> set[str]:
        """The tables of absolute and relative positions, as in the official recipe."""
        return {'pos_embed'} | {name for name, _ in self.named_parameters()
                                if name.endswith('relative_position_bias_table')}

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """See `Encoder.get_layer_depth`; a stage's merging has the depth of its last block."""
        stage, merging, _ = param_name.removeprefix(prefix).partition('.downsample.')
        if merging:
            return self.stage_layers()[int(stage.split('.')[1])].stop, self.depth + 2
        return super().get_layer_depth(param_name, prefix)
