"""The plain ViT and DeiT, with any joining."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from timm.layers import PatchEmbed, gen_relative_position_index
from torch import Tensor, nn

from lape_mm.position import KINDS, RELATIVE, ROTARY, PositionPlan, Rotary, build_joining
from lape_mm.registry import MODELS

from .archs import resolve_vit
from .checks import check_count, check_out_indices
from .encoder import Encoder, init_linear
from .layers import Block, EncoderLayer


def patch_embed(*, patch_size: int, in_channels: int, sizes: Mapping) -> PatchEmbed:
    """Makes timm's patch embedding, for images of any whole number of patches."""
    check_count('patch_size', patch_size)
    check_count('in_channels', in_channels)
    return PatchEmbed(img_size=None, patch_size=patch_size, in_chans=in_channels,
                      embed_dim=sizes['embed_dim'], flatten=False, bias=not sizes['norm_pre'])


def split_position(position: str, allowed: Sequence[str]) -> tuple[str | None, str | None]:
    """Splits 'learnable+rope' into table (or 'relative') and rotary kind; either may be None."""
    kinds = position.split('+') if isinstance(position, str) else []  # only Swin takes None
    rotary = [kind for kind in kinds if kind in ROTARY]
    others = [kind for kind in kinds if kind not in ROTARY]
    if not kinds or not set(kinds) <= set(allowed) or len(others) > 1 or len(rotary) > 1 \
            or RELATIVE in others and rotary:
        both = ", or a table with rotary PE, as in 'learnable+rope'" if 'rope' in allowed else ''
        raise ValueError(f'position={position!r}: expected one of '
                         f'{", ".join(map(repr, allowed))}{both}')
    return next(iter(others), None), next(iter(rotary), None)


class VisionTransformer(Encoder):
    """The plain ViT: a stem, prefix tokens, blocks of equal size and a last LayerNorm.

    Args:
        sizes: embed_dim, depth, num_heads, mlp_ratio, qkv_bias; for plain blocks also the other
            settings of `DeiT`.
        stem: maps padded images (B, in_channels, H, W) to patches (B, C, H / stride, W / stride).
        position, distilled: see `DeiT`.
        block: class of the layers, called with `Block`'s arguments.
        layers: extra arguments for each block, L dicts.
        kwargs: see `Encoder`.
    """

    positions: tuple[str, ...] = (*KINDS, RELATIVE)  # allowed values of ``position``
    relative_index: Tensor | None

    def __init__(self, *, sizes: Mapping, stem: nn.Module, joining: str | Mapping, position: str,
                 distilled: bool = False, block: type[EncoderLayer] = Block,
                 layers: Sequence[Mapping] | None = None, norm_eps: float = 1e-6, **kwargs):
        table, rotary = split_position(position, self.positions)
        dim, depth, relative = sizes['embed_dim'], sizes['depth'], table == RELATIVE
        if table is None and build_joining(joining, depth=depth)[0].needs_table:
            table = 'learnable'
        reg_tokens = sizes.get('reg_tokens', 0)
        super().__init__(dims=[dim] * depth, joining=joining, norm_eps=norm_eps,
                         position=None if relative else table, more_tokens=int(distilled),
                         reg_tokens=reg_tokens, embed_class=sizes.get('embed_class', True),
                         **kwargs)
        self.patch_embed = stem
        self.cls_token = self.new_token() if self.has_class_token else None
        self.dist_token = self.new_token() if distilled else None
        self.reg_token = self.new_token(reg_tokens) if reg_tokens else None
        self.rope = Rotary(rotary, depth=depth, num_heads=sizes['num_heads'],
                           head_dim=dim // sizes['num_heads']) if rotary else None
        self.norm_pre = nn.LayerNorm(dim, eps=norm_eps) if sizes.get('norm_pre') else None
        self.register_buffer('relative_index', gen_relative_position_index(self.grid)
                             if relative else None, persistent=False)
        attention = dict(qk_norm=True) if sizes.get('qk_norm') else {}
        if rotary:
            attention['rotary_halves'] = ROTARY[rotary].halves
        shared = {name: sizes[name] for name in ('mlp', 'layer_scale') if sizes.get(name)}
        blocks = []
        for layer, given in enumerate(layers or [{}] * depth):
            options = {**shared, **given, 'attention': {**attention, **given.get('attention', {})}}
            if relative:
                options['attention'].update(
                    bias_table=nn.Parameter(torch.zeros(
                        math.prod(2 * side - 1 for side in self.grid), sizes['num_heads'])),
                    pe_norm=self.joining.bias_norm(self.grid[0] * self.grid[1]))
            else:
                options['pe_norm'] = self.joining.pe_norm(layer, dim=dim, eps=norm_eps)
            blocks.append(block(
                dim=dim, num_heads=sizes['num_heads'], mlp_ratio=sizes['mlp_ratio'],
                qkv_bias=sizes['qkv_bias'], norm_eps=norm_eps,
                drop_path=self.drop_path_rates[layer], **options))
        self.blocks = nn.ModuleList(blocks)
        self.blocks.apply(init_linear)

    def new_token(self, count: int = 1) -> nn.Parameter:
        """Makes tokens (1, count, C), truncated normal with std 0.02."""
        return nn.Parameter(nn.init.trunc_normal_(torch.zeros(1, count, self.embed_dim), std=.02))

    def prefix_tokens(self) -> list[Tensor]:
        return [token for token in (self.cls_token, self.dist_token, self.reg_token)
                if token is not None]

    def layers_in_order(self) -> Sequence[EncoderLayer]:
        return cast('Sequence[EncoderLayer]', self.blocks)

    def make_plan(self, grid: tuple[int, int]) -> PositionPlan:
        if self.rope is not None:
            return replace(super().make_plan(grid), rotary=self.rope(
                grid, self.num_prefix_tokens, next(self.parameters()).device))
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
        """Maps (B, in_channels, H, W) to tokens (B, T, C), the grid of patches, and the plan."""
        patches = self.patch_embed(self.pad_image(img))
        # contiguous, because later additions would keep the strides of a map
        tokens = patches.flatten(2).transpose(1, 2).contiguous()
        if prefix := self.prefix_tokens():
            # len() would be a constant in an exported graph
            batch = tokens.shape[0]
            tokens = torch.cat([*(token.expand(batch, -1, -1) for token in prefix), tokens], dim=1)
        height, width = patches.shape[-2:]
        plan = self.plan((height, width))
        if self.norm_pre is not None:
            if plan.residual[0] is not None:
                tokens, plan = tokens + plan.residual[0], replace(
                    plan, residual=(None, *plan.residual[1:]))
            tokens = self.norm_pre(tokens)
        return tokens, (height, width), plan

    def no_weight_decay(self) -> set[str]:
        more = {'reg_token', 'rope.freqs'} & {name for name, _ in self.named_parameters()}
        return super().no_weight_decay() | more

    @property
    def pools_class_token(self) -> bool:
        """Whether `pool` takes the class token."""
        return self.cls_token is not None

    def pool(self, x: Tensor) -> Tensor:
        """Maps (B, T, C) to (B, C): the class token, or the mean of the patches."""
        return x[:, 0] if self.pools_class_token else super().pool(x)

    def forward(self, img: Tensor) -> tuple[Any, ...]:
        """Maps (B, in_channels, H, W) to the pooled vector (B, C), in a tuple."""
        return (self.pool(self.encode(img)),)

    def encode(self, img: Tensor) -> Tensor:
        """Returns the tokens (B, T, C) for `pool`, after the last LayerNorm and ``post_norm``.

        If the class token is pooled, the last layer computes only the P prefix tokens.
        """
        x, grid, plan = self.embed(img)
        *blocks, last = self.blocks
        for layer, block in enumerate(blocks):
            x = self.maybe_checkpoint(block, x, grid, **plan.layer(layer))
        queries = self.num_prefix_tokens if self.pools_class_token else None
        x = self.maybe_checkpoint(last, x, grid, num_queries=queries, **plan.layer(-1))
        return self.run_last_norm(
            x, None if plan.post_norm is None else plan.post_norm[:, :queries])


@MODELS.register_module()
class DeiT(VisionTransformer):
    """The plain ViT with any joining, for classification and as an encoder of dense heads.

    Parameter names are those of the official DeiT and LaPE checkpoints, and timm's. The class token
    is pooled under default, share, unshare and LaPE; under PVG and MPVG there is none, and the
    tokens are averaged after the last LayerNorm.

    Args:
        arch: a name of `lape_mm.backbones.archs.ARCHS` ('tiny', 'small', 'base', and those of
            DINOv2, DINOv3, MAE, ...), or a dict of embed_dim, depth, num_heads and optionally

            - mlp_ratio: hidden width / embed_dim (SwiGLU: of one branch); mlp: 'mlp', 'swiglu'
              (one weight for gate and value), 'swiglu_split' (two), 'swiglu_norm' (with LayerNorm)
            - qkv_bias: True, False, or 'qv' (q and v only); qk_norm; layer_scale: initial value
            - class_token; embed_class: whether PE has a slot for it; reg_tokens: registers
            - norm_pre: a LayerNorm before the layers; global_pool: 'token' or 'avg'; fc_norm: the
              last LayerNorm follows averaging, unless the joining adds PE after that norm
        img_size: side or (h, w), in pixels, of the images that the PE table is made for; None:
            the architecture's, 224 if that is a dict.
        patch_size: side of a patch in pixels; None: the architecture's, 16 if that is a dict.
        in_channels: channels of the images.
        joining: 'default', 'share', 'unshare', 'lape', 'pvg', 'mpvg', or a dict of the settings
            of `lape_mm.position.Joining`.
        position: a table: 'learnable', 'sincos_1d' or 'sincos_2d'; rotary PE: 'rope' (axial),
            'rope_mixed', 'rope_eva02' or 'rope_dinov3', alone or with a table ('learnable+rope');
            or 'relative', a bias of the attention logits, for images of ``img_size`` only and
            joining 'default' (plain) or 'lape' (through a LayerNorm). Rotary PE alone gets a
            learnable table where the joining needs one. None for the architecture's.
        class_token: whether there is a class token; None for the papers' choice for the joining.
        distilled: adds DeiT's distillation token, also under PVG and MPVG, where the papers have
            none.
        out_indices: layers whose maps are returned, ending with the last one; None for the pooled
            vector.
        window_size: window side in tokens for all layers but the last of each quarter (ViTDet:
            14); None for global attention. Windows are padded as in ViT-Adapter (see
            `lape_mm.backbones.layers.Attention`), without ViTDet's relative bias.
        interpolation: 'bicubic', 'bilinear', 'bicubic_antialias' (timm's); None: the arch's.
        norm_eps: eps of every LayerNorm; None for the architecture's.
        drop_path_rate, with_cp, frozen, init_cfg: see `Encoder`.
    """

    positions = (*KINDS, RELATIVE, *ROTARY)

    def __init__(self, *, arch: str | Mapping = 'tiny',
                 img_size: int | Sequence[int] | None = None, patch_size: int | None = None,
                 in_channels: int = 3, joining: str | Mapping = 'default',
                 position: str | None = None, class_token: bool | None = None,
                 distilled: bool = False, out_indices: Sequence[int] | None = None,
                 window_size: int | None = None, drop_path_rate: float = 0.,
                 interpolation: str | None = None, norm_eps: float | None = None,
                 with_cp: bool = False, frozen: bool = False, init_cfg: dict | None = None):
        sizes, given = resolve_vit(arch, img_size=img_size, patch_size=patch_size,
                                   position=position, interpolation=interpolation,
                                   norm_eps=norm_eps)
        patch_size, layers = given.pop('patch_size'), None
        if window_size is not None:
            check_count('window_size', window_size)
            if given['position'] == RELATIVE:
                raise ValueError(f'window_size={window_size} with position={RELATIVE!r}: expected '
                                 'window_size=None, or another position')
            depth = sizes['depth']
            layers = [dict(attention=dict(window_size=None if 4 * (layer + 1) // depth >
                                          4 * layer // depth else window_size))
                      for layer in range(depth)]
        super().__init__(
            sizes=sizes, stride=patch_size,
            stem=patch_embed(patch_size=patch_size, in_channels=in_channels, sizes=sizes),
            in_channels=in_channels, joining=joining, layers=layers,
            class_token=sizes['class_token'] and class_token, distilled=distilled,
            last_norm=None if sizes['fc_norm'] else True, drop_path_rate=drop_path_rate,
            with_cp=with_cp, frozen=frozen, init_cfg=init_cfg, **given)
        self.global_pool = sizes['global_pool']
        self.out_indices = check_out_indices(out_indices, self.depth, 'layers')
        self.fc_norm = nn.LayerNorm(self.embed_dim, eps=given['norm_eps']) \
            if self.norm is None and not self.out_indices else None
        self.freeze()

    @property
    def pools_class_token(self) -> bool:
        return self.cls_token is not None and self.global_pool == 'token'

    def pool(self, x: Tensor) -> Tensor:
        pooled = super().pool(x)
        return pooled if self.fc_norm is None else self.fc_norm(pooled)

    def forward(self, img: Tensor) -> tuple[Any, ...]:
        """Maps (B, in_channels, H, W) to the pooled vector (B, C), in a tuple.

        With ``distilled``, the entry is a pair: the pooled vector and the distillation token. With
        ``out_indices``, the entries are maps (B, C, ceil(H / patch), ceil(W / patch)); the last map
        includes the last LayerNorm (not ``fc_norm``) and ``post_norm``.
        """
        if not self.out_indices:
            x = self.encode(img)
            pooled = self.pool(x)
            return (pooled if self.dist_token is None else
                    (pooled, x[:, int(self.cls_token is not None)]),)
        x, grid, plan = self.embed(img)
        maps = []
        for layer, block in enumerate(self.blocks):
            x = self.maybe_checkpoint(block, x, grid, **plan.layer(layer))
            if layer in self.out_indices[:-1]:
                maps.append(x)
        maps.append(self.run_last_norm(x, plan.post_norm))
        return tuple(
            tokens[:, self.num_prefix_tokens:].transpose(1, 2).unflatten(2, grid).contiguous()
            for tokens in maps)
