"""The plain ViT, DeiT with any joining, and what other plain ViTs share with it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from timm.layers import PatchEmbed
from torch import Tensor, nn

from lape_mm.position import KINDS, RELATIVE, Delivery
from lape_mm.position.relative import relative_index, relative_norm, relative_plan, relative_table
from lape_mm.registry import MODELS

from .checks import check_count, image_sides
from .encoder import Encoder, check_out_indices, init_linear, resolve_arch
from .layers import Block

ARCHS = {
    'tiny': dict(embed_dim=192, depth=12, num_heads=3),
    'small': dict(embed_dim=384, depth=12, num_heads=6),
    'base': dict(embed_dim=768, depth=12, num_heads=12),
}
DETAILS = dict(mlp_ratio=4., qkv_bias=True)


def patch_embed(*, patch_size: int, in_channels: int, embed_dim: int) -> PatchEmbed:
    """timm's patch embedding, for images of any size: padded to whole patches."""
    check_count('patch_size', patch_size)
    check_count('in_channels', in_channels)
    return PatchEmbed(img_size=None, patch_size=patch_size, in_chans=in_channels,
                      embed_dim=embed_dim, flatten=False, strict_img_size=False,
                      dynamic_img_pad=True)


class VisionTransformer(Encoder):
    """A stem, prefix tokens, blocks of equal size and a last LayerNorm, carrying out a plan.

    Args:
        sizes: embed_dim, depth, num_heads, mlp_ratio, qkv_bias.
        img_size: side or (h, w), in pixels, whose grid the PE table covers. Other sizes are taken
            as well: the stem pads them, and PE is resized to their grid.
        stem: (B, in_channels, H, W) to (B, C, ceil(H / stride), ceil(W / stride)).
        stride: of the stem, in pixels; no image may be smaller.
        position: a kind of table, or 'relative', see `lape_mm.position.relative`.
        distilled: adds a distillation token after the class token.
        block: class of the layers, which takes what `Block` takes.
        layers: further arguments of each layer, L entries.
        kwargs: see `Encoder`.

    Attributes:
        positions: of the class: what ``position`` may be.

    Raises:
        ValueError: for another ``position``, and as `Encoder` does.
    """

    positions: tuple[str, ...] = (*KINDS, RELATIVE)

    def __init__(self, *, sizes: Mapping, img_size: int | Sequence[int], stem: nn.Module,
                 stride: int, joining: str | Mapping, class_token: bool | None, position: str,
                 distilled: bool = False, block: type[nn.Module] = Block,
                 layers: Sequence[Mapping] | None = None, norm_eps: float = 1e-6, **kwargs):
        if position not in self.positions:  # a table for none would be missed in the first forward
            raise ValueError(f'position={position!r}: expected one of '
                             f'{", ".join(map(repr, self.positions))}')
        dim, depth, relative = sizes['embed_dim'], sizes['depth'], position == RELATIVE
        height, width = image_sides(img_size, stride)
        grid = -(-height // stride), -(-width // stride)
        if relative:
            relative_norm(joining, grid)  # refuses what it does not know
        super().__init__(
            patch=stride, grid=grid, dims=[dim] * depth,
            joining='default' if relative else joining, class_token=class_token,
            position=None if relative else position, more_tokens=int(distilled),
            norm_eps=norm_eps, **kwargs)
        self.patch_embed, self.stride = stem, stride
        self.cls_token = self.new_token() if self.has_class_token else None
        self.dist_token = self.new_token() if distilled else None
        self.relative_index: Tensor | None
        self.register_buffer('relative_index', relative_index(grid) if relative else None,
                             persistent=False)
        options = [dict(extra) for extra in layers or [{}] * depth]
        for extra in options if relative else ():
            extra['attention'] = dict(
                extra.get('attention', {}), pe_norm=relative_norm(joining, grid),
                bias_table=relative_table(grid, sizes['num_heads']))
        self.blocks = nn.ModuleList(
            block(dim=dim, num_heads=sizes['num_heads'], mlp_ratio=sizes['mlp_ratio'],
                  qkv_bias=sizes['qkv_bias'], norm_eps=norm_eps, drop_path=drop_path,
                  pe_norm=pe_norm, **extra)
            for extra, drop_path, pe_norm in zip(options, self.drop_path_rates, self._pe_norms))
        self.blocks.apply(init_linear)

    def new_token(self) -> nn.Parameter:
        """(1, 1, C), normal (std 0.02, truncated)."""
        return nn.Parameter(nn.init.trunc_normal_(torch.zeros(1, 1, self.embed_dim), std=.02))

    def prefix_tokens(self) -> list[Tensor]:
        """What stands before the patches, (1, 1, C) each."""
        return [token for token in (self.cls_token, self.dist_token) if token is not None]

    def layers_in_order(self) -> Sequence[Any]:
        return self.blocks  # type: ignore[return-value]  # a ModuleList is a sequence but in name

    def tables(self, grid: tuple[int, int]) -> list[Tensor]:
        unused = self.prefix - len(self.prefix_tokens())
        return [table[:, unused:] for table in super().tables(grid)]

    def grid_of(self, img_size: tuple[int, int]) -> tuple[int, int]:
        height, width = img_size
        return -(-height // self.stride), -(-width // self.stride)

    def make_delivery(self, grid: tuple[int, int]) -> Delivery:
        if self.relative_index is None:
            return super().make_delivery(grid)
        if tuple(grid) != self.grid:
            raise ValueError(f"position='relative' is made for {self.grid[0]} x {self.grid[1]} "
                             f'tokens, got {grid[0]} x {grid[1]}: set img_size')
        attention = [block.attn for block in self.layers_in_order()]
        return relative_plan([layer.relative_position_bias_table for layer in attention],
                             [layer.pe_norm for layer in attention], self.relative_index,
                             self.prefix)

    def forget_relative(self) -> None:
        if self.relative_index is not None:
            self.relative_index = None
            for block in self.layers_in_order():
                attention = block.attn
                attention.relative_position_bias_table = attention.pe_norm = None

    def embed(self, img: Tensor) -> tuple[Tensor, tuple[int, int], Delivery]:
        """(B, in_channels, H, W) to what enters the first layer.

        Returns:
            tokens (B, T, C), with what the plan adds to the input; the grid of the patches among
            them; the plan.
        """
        self.check_images(img)
        patches = self.patch_embed(img)
        # in the layout of tokens from here on: what adds to another layout keeps it, layer by layer
        tokens = patches.flatten(2).transpose(1, 2).contiguous()
        if prefix := self.prefix_tokens():
            # shape, since len() would be a constant in an exported graph
            batch = tokens.shape[0]
            tokens = torch.cat([*(token.expand(batch, -1, -1) for token in prefix), tokens], dim=1)
        height, width = patches.shape[-2:]
        plan = self.delivery((height, width))
        if plan.stream[0] is not None:
            tokens = tokens + plan.stream[0]
        return tokens, (height, width), plan

    def run_layer(self, layer: int, x: Tensor, plan: Delivery, grid: tuple[int, int],
                  **options) -> Tensor:
        """(B, T, C) through one layer, with its ``options``, and what the plan delivers to it."""
        if layer and (stream := plan.stream[layer]) is not None:
            x = x + stream
        bias = None if plan.bias is None else plan.bias[layer]
        return self.blocks[layer](x, plan.attention[layer], grid, bias, **options)

    def pool(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, C): the class token, or the mean of the patches."""
        return x[:, self.prefix:].mean(dim=1) if self.cls_token is None else x[:, 0]

    def pool_final(self, final: Tensor) -> Tensor | None:
        return self.pool(final)

    def forward(self, img: Tensor) -> tuple[Any, ...]:
        """(B, in_channels, H, W) to the pooled vector, (B, C), as a tuple of one."""
        x, plan = self.encode(img)
        return (self.add_pooled(self.pool(self.run_last_norm(x, plan))),)

    def encode(self, img: Tensor) -> tuple[Tensor, Delivery]:
        """The tokens that `pool` asks for after the last layer, and the plan.

        Where that is the class token alone, (B, P, C), the last layer computes no other. Otherwise
        (B, T, C).
        """
        x, grid, plan = self.embed(img)
        for layer in range(self.depth - 1):
            x = self.run_segment(self.run_layer, layer, x, plan, grid)
        keep = self.prefix if self.cls_token is not None else None
        last = partial(self.run_layer, keep=keep)
        x = self.run_segment(last, self.depth - 1, x, plan, grid)
        if keep is not None and plan.final is not None:
            plan = replace(plan, final=plan.final[:, :keep])
        return x, plan

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        name = param_name.removeprefix(prefix)
        first, _, rest = name.partition('.')
        if first in ('patch_embed', 'cls_token', 'dist_token', *self.table_names):
            return 0, self.depth + 2
        if first == 'blocks':
            return int(rest.split('.')[0]) + 1, self.depth + 2
        return self.depth + 1, self.depth + 2


@MODELS.register_module()
class DeiT(VisionTransformer):
    """DeiT (ICML 2021) with any joining, for classification and as an encoder of dense heads.

    Parameter names are those of the official DeiT and LaPE checkpoints. The class token is there
    and is what is pooled where the joining is used with one (default, share, unshare, LaPE); with
    PVG and MPVG the tokens are averaged after the last LayerNorm.

    Args:
        arch: 'tiny', 'small', 'base', or a dict of embed_dim, depth, num_heads and, if need be,
            mlp_ratio and qkv_bias.
        img_size: side or (h, w), in pixels, of the images that the PE table is made for.
        patch_size, in_channels: of the patch embedding.
        joining: 'default', 'share', 'unshare', 'lape', 'pvg', 'mpvg', or a dict of the settings
            of `lape_mm.position.Joining`.
        position: 'learnable', 'sincos_1d' or 'sincos_2d'; or 'relative', a bias of the attention's
            logits, with joining 'default' (plain) or 'lape' (through a LayerNorm), for images of
            ``img_size`` alone.
        class_token: None for what the papers use with the joining.
        distilled: adds DeiT's distillation token. Neither paper has PVG or MPVG with one; our
            choice: the token stays, beside the mean of the patches.
        out_indices: None for the pooled vector; otherwise the layers, the last one among them,
            whose maps are returned.
        drop_path_rate, interpolation, norm_eps, with_cp, frozen, init_cfg: see `Encoder`.

    Raises:
        ValueError: for any argument that the model cannot be built with, naming what is allowed.
    """

    def __init__(self, *, arch: str | Mapping = 'tiny', img_size: int | Sequence[int] = 224,
                 patch_size: int = 16, in_channels: int = 3, joining: str | Mapping = 'default',
                 position: str = 'learnable', class_token: bool | None = None,
                 distilled: bool = False, out_indices: Sequence[int] | None = None,
                 drop_path_rate: float = 0., interpolation: str = 'bicubic',
                 norm_eps: float = 1e-6, with_cp: bool = False, frozen: bool = False,
                 init_cfg: dict | None = None):
        sizes = resolve_arch(arch, ARCHS, DETAILS)
        super().__init__(
            sizes=sizes, img_size=img_size, stride=patch_size,
            stem=patch_embed(patch_size=patch_size, in_channels=in_channels,
                             embed_dim=sizes['embed_dim']),
            in_channels=in_channels, joining=joining, class_token=class_token, position=position,
            distilled=distilled, drop_path_rate=drop_path_rate, interpolation=interpolation,
            norm_eps=norm_eps, with_cp=with_cp, frozen=frozen, init_cfg=init_cfg)
        self.freeze()
        self.out_indices = check_out_indices(out_indices, self.depth, 'layers')

    def pool_final(self, final: Tensor) -> Tensor | None:
        # maps and the distillation token take it position by position
        return None if self.out_indices or self.dist_token is not None else self.pool(final)

    def forward(self, img: Tensor) -> tuple[Any, ...]:
        """(B, in_channels, H, W) to the pooled vector, (B, C), as a tuple of one.

        Distilled, to a tuple of one pair: the pooled vector and the distillation token, (B, C)
        each, as mmpretrain's DeiTClsHead takes them.

        With ``out_indices``: to a map (B, C, ceil(H / patch), ceil(W / patch)) for each of them;
        the last layer's is taken after the last LayerNorm and PE's final term.
        """
        if not self.out_indices:
            x, plan = self.encode(img)
            x = self.run_last_norm(x, plan)
            pooled = self.add_pooled(self.pool(x))
            return (pooled if self.dist_token is None else (pooled, x[:, self.prefix - 1]),)
        x, grid, plan = self.embed(img)
        maps = []
        for layer in range(self.depth):
            x = self.run_segment(self.run_layer, layer, x, plan, grid)
            if layer in self.out_indices[:-1]:
                maps.append(x)
        x = self.run_last_norm(x, plan)
        return tuple(tokens[:, self.prefix:].transpose(1, 2).unflatten(2, grid).contiguous()
                     for tokens in (*maps, x))
