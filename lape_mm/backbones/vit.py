"""The plain ViT and DeiT, with any joining."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from timm.layers import PatchEmbed
from torch import Tensor, nn

from lape_mm.position import KINDS, RELATIVE, PositionPlan
from lape_mm.position.embedding import relative_index, relative_table
from lape_mm.registry import MODELS

from .checks import check_count, check_out_indices, resolve_arch
from .encoder import Encoder, init_linear
from .layers import Block, EncoderLayer, to_output

ARCHS = {
    'tiny': dict(embed_dim=192, depth=12, num_heads=3),
    'small': dict(embed_dim=384, depth=12, num_heads=6),
    'base': dict(embed_dim=768, depth=12, num_heads=12),
}
DETAILS = dict(mlp_ratio=4., qkv_bias=True)


def patch_embed(*, patch_size: int, in_channels: int, embed_dim: int) -> PatchEmbed:
    """timm's patch embedding, for images of any whole number of patches."""
    check_count('patch_size', patch_size)
    check_count('in_channels', in_channels)
    return PatchEmbed(img_size=None, patch_size=patch_size, in_chans=in_channels,
                      embed_dim=embed_dim, flatten=False)


class VisionTransformer(Encoder):
    """The plain ViT: a stem, prefix tokens, blocks of equal size and a last LayerNorm.

    Args:
        sizes: embed_dim, depth, num_heads, mlp_ratio, qkv_bias.
        stem: (B, in_channels, H, W), padded, to (B, C, ceil(H / stride), ceil(W / stride)).
        position: a kind of table, or 'relative', a bias of the attention's logits.
        distilled: adds a distillation token after the class token.
        block: class of the layers, which takes what `Block` takes.
        layers: further arguments of each layer, L entries.
        kwargs: see `Encoder`.

    Attributes:
        positions: allowed values of ``position``.

    Raises:
        ValueError: for another ``position``, and as `Encoder` does.
    """

    positions: tuple[str, ...] = (*KINDS, RELATIVE)
    relative_index: Tensor | None

    def __init__(self, *, sizes: Mapping, stem: nn.Module, joining: str | Mapping, position: str,
                 distilled: bool = False, block: type[EncoderLayer] = Block,
                 layers: Sequence[Mapping] | None = None, norm_eps: float = 1e-6, **kwargs):
        if position not in self.positions:  # None is for Swin alone
            raise ValueError(f'position={position!r}: expected one of '
                             f'{", ".join(map(repr, self.positions))}')
        dim, depth, relative = sizes['embed_dim'], sizes['depth'], position == RELATIVE
        super().__init__(dims=[dim] * depth, joining=joining, norm_eps=norm_eps,
                         position=None if relative else position, more_tokens=int(distilled),
                         **kwargs)
        self.patch_embed = stem
        self.cls_token = self.new_token() if self.has_class_token else None
        self.dist_token = self.new_token() if distilled else None
        self.register_buffer('relative_index', relative_index(self.grid) if relative else None,
                             persistent=False)
        blocks = []
        for layer, given in enumerate(layers or [{}] * depth):
            options = dict(given)
            if relative:
                options['attention'] = dict(
                    options.get('attention', {}),
                    bias_table=relative_table(self.grid, sizes['num_heads']),
                    pe_norm=self.joining.bias_norm(self.grid[0] * self.grid[1]))
            else:
                options['pe_norm'] = self.joining.pe_norm(layer, dim=dim, eps=norm_eps)
            blocks.append(block(
                dim=dim, num_heads=sizes['num_heads'], mlp_ratio=sizes['mlp_ratio'],
                qkv_bias=sizes['qkv_bias'], norm_eps=norm_eps,
                drop_path=self.drop_path_rates[layer], **options))
        self.blocks = nn.ModuleList(blocks)
        self.blocks.apply(init_linear)

    def new_token(self) -> nn.Parameter:
        """(1, 1, C), normal (std 0.02, truncated)."""
        return nn.Parameter(nn.init.trunc_normal_(torch.zeros(1, 1, self.embed_dim), std=.02))

    def prefix_tokens(self) -> list[Tensor]:
        return [token for token in (self.cls_token, self.dist_token) if token is not None]

    def layers_in_order(self) -> Sequence[EncoderLayer]:
        return cast('Sequence[EncoderLayer]', self.blocks)

    def make_plan(self, grid: tuple[int, int]) -> PositionPlan:
        if self.relative_index is None:
            return super().make_plan(grid)
        if tuple(grid) != self.grid:
            raise ValueError(f"position='relative' is made for {self.grid[0]} x {self.grid[1]} "
                             f'tokens, got {grid[0]} x {grid[1]}: set img_size')
        layers = [block.attn for block in cast('Sequence[Block]', self.blocks)]
        biases = [layer.relative_position_bias_table[self.relative_index].permute(2, 0, 1)[None]
                  for layer in layers if layer.relative_position_bias_table is not None]
        return self.joining.bias_plan(biases, [layer.pe_norm for layer in layers],
                                      self.num_prefix_tokens)

    def embed(self, img: Tensor) -> tuple[Tensor, tuple[int, int], PositionPlan]:
        """(B, in_channels, H, W) to tokens (B, T, C), the grid of their patches, and the plan."""
        patches = self.patch_embed(self.pad_image(img))
        # contiguous: later additions would keep the strides of a map
        tokens = patches.flatten(2).transpose(1, 2).contiguous()
        if prefix := self.prefix_tokens():
            # len() would be a constant in an exported graph
            batch = tokens.shape[0]
            tokens = torch.cat([*(token.expand(batch, -1, -1) for token in prefix), tokens], dim=1)
        height, width = patches.shape[-2:]
        return tokens, (height, width), self.plan((height, width))

    def pool(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, C): the class token, or the mean of the patches."""
        return super().pool(x) if self.cls_token is None else x[:, 0]

    def forward(self, img: Tensor) -> tuple[Any, ...]:
        """(B, in_channels, H, W) to the pooled vector, (B, C), as a tuple of one."""
        return (self.pool(self.encode(img)),)

    def encode(self, img: Tensor) -> Tensor:
        """The tokens for `pool`, after the last LayerNorm and ``post_norm``.

        With a class token, the last layer computes the P prefix tokens alone, (B, P, C); otherwise
        all, (B, T, C).
        """
        x, grid, plan = self.embed(img)
        *blocks, last = self.blocks
        for layer, block in enumerate(blocks):
            x = self.maybe_checkpoint(block, x, grid, **plan.layer(layer))
        queries = None if self.cls_token is None else self.num_prefix_tokens
        x = self.maybe_checkpoint(last, x, grid, num_queries=queries, **plan.layer(-1))
        return self.run_last_norm(
            x, None if plan.post_norm is None else plan.post_norm[:, :queries])


@MODELS.register_module()
class DeiT(VisionTransformer):
    """DeiT (ICML 2021) with any joining, for classification and as an encoder of dense heads.

    Parameter names are those of the official DeiT and LaPE checkpoints. The class token is pooled
    under default, share, unshare and LaPE; under PVG and MPVG there is none, and the tokens are
    averaged after the last LayerNorm.

    Args:
        arch: 'tiny', 'small', 'base', or a dict of embed_dim, depth, num_heads and optionally
            mlp_ratio and qkv_bias.
        img_size: side or (h, w), in pixels, of the PE table's grid.
        patch_size, in_channels: of the patch embedding.
        joining: 'default', 'share', 'unshare', 'lape', 'pvg', 'mpvg', or a dict of the settings
            of `lape_mm.position.Joining`.
        position: 'learnable', 'sincos_1d' or 'sincos_2d'; or 'relative', a bias of the attention
            logits for images of ``img_size`` alone, with joining 'default' (plain) or 'lape'
            (through a LayerNorm).
        class_token: None for the papers' choice with the joining.
        distilled: adds DeiT's distillation token. The papers do not combine it with PVG or MPVG;
            here it stays, beside the mean of the patches.
        out_indices: None for the pooled vector; otherwise layers, ending with the last one, whose
            maps are returned.
        drop_path_rate, interpolation, norm_eps, with_cp, frozen, init_cfg: see `Encoder`.

    Raises:
        ValueError: for an invalid argument, with the allowed values.
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

    def forward(self, img: Tensor) -> tuple[Any, ...]:
        """(B, in_channels, H, W) to the pooled vector, (B, C), as a tuple of one.

        With ``distilled``, the entry is a pair: the pooled vector and the distillation token,
        (B, C) each, for mmpretrain's DeiTClsHead.

        With ``out_indices``, to a map (B, C, ceil(H / patch), ceil(W / patch)) for each of them.
        The last map is taken after the last LayerNorm and ``post_norm``.
        """
        if not self.out_indices:
            x = self.encode(img)
            pooled = self.pool(x)
            return (pooled if self.dist_token is None else
                    (pooled, x[:, self.num_prefix_tokens - 1]),)
        x, grid, plan = self.embed(img)
        maps = []
        for layer, block in enumerate(self.blocks):
            x = self.maybe_checkpoint(block, x, grid, **plan.layer(layer))
            if layer in self.out_indices[:-1]:
                maps.append(x)
        maps.append(self.run_last_norm(x, plan.post_norm))
        return tuple(
            to_output(tokens[:, self.num_prefix_tokens:].transpose(1, 2).unflatten(2, grid))
            for tokens in maps)
