"""DeiT with any joining, and the plain ViT that it shares with ViT-Adapter."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from mmengine.model import BaseModule
from timm.layers import PatchEmbed, to_2tuple
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lape_mm.position import Delivery, build_joining, position_table, resize_table
from lape_mm.position.embedding import RESIZE_MODES
from lape_mm.registry import MODELS

from .layers import Block

ARCHS = {
    'tiny': dict(embed_dim=192, depth=12, num_heads=3),
    'small': dict(embed_dim=384, depth=12, num_heads=6),
    'base': dict(embed_dim=768, depth=12, num_heads=12),
}
DETAILS = dict(mlp_ratio=4., qkv_bias=True)


def resolve_arch(arch: str | Mapping, known: Mapping[str, Mapping], details: Mapping) -> dict:
    """A named or written-out architecture as a full dict.

    Args:
        arch: a name of ``known``, or a dict of the sizes.
        known: name -> sizes.
        details: sizes that a dict may leave out, with their defaults.

    Raises:
        ValueError: names the unknown name or key, the missing key, or heads that do not divide C.
    """
    if not isinstance(arch, Mapping):
        if arch not in known:
            raise ValueError(f'arch={arch!r}: expected one of {sorted(known)} or a dict')
        return {**details, **known[arch]}
    needed = ('embed_dim', 'depth', 'num_heads')
    unknown = sorted(set(arch) - set(needed) - set(details))
    missing = [key for key in needed if key not in arch]
    if unknown or missing:
        what = f'does not know {unknown[0]!r}' if unknown else f'lacks {missing[0]!r}'
        raise ValueError(f'arch {what}: a dict of {list(needed)} and, if need be, {list(details)}')
    if arch['embed_dim'] % arch['num_heads']:
        raise ValueError(f'arch: embed_dim={arch["embed_dim"]} does not divide by '
                         f'num_heads={arch["num_heads"]}')
    return {**details, **arch}


class VisionTransformer(BaseModule):
    """Patch embedding, position embedding (PE) and blocks, carrying out a joining's plan.

    Args:
        sizes: embed_dim, depth, num_heads, mlp_ratio, qkv_bias.
        img_size: side or (h, w), in pixels, whose grid the PE table covers. Other sizes are taken
            as well: images are padded to whole patches (zeros, bottom and right) and PE is
            resized to their grid.
        patch_size, in_channels: of the patch embedding.
        joining, class_token, position: see `lape_mm.position`.
        windows: window size of each layer in tokens, None for global attention.
        layer_scale: see `Block`.
        last_norm: whether a LayerNorm follows the last layer; None where the joining needs it.
        drop_path_rate: rises linearly from 0 in the first block to this in the last.
        interpolation: how PE is resized, 'bicubic' or 'bilinear'.
        norm_eps: of every LayerNorm.
        with_cp: gradient checkpointing, block by block.
        frozen: the ViT takes no gradient and stays in evaluation mode.
        init_cfg: None, or ``dict(checkpoint=PATH_OR_URL)`` with the further arguments of
            `lape_mm.checkpoints.load_backbone`.
    """

    def __init__(self, *, sizes: Mapping, img_size: int | Sequence[int], patch_size: int,
                 in_channels: int, joining: str | Mapping, class_token: bool | None, position: str,
                 windows: Sequence[int | None] | None = None, layer_scale: bool = False,
                 last_norm: bool | None = True, drop_path_rate: float = 0.,
                 interpolation: str = 'bicubic', norm_eps: float = 1e-6, with_cp: bool = False,
                 frozen: bool = False, init_cfg: dict | None = None):
        super().__init__(init_cfg=init_cfg)
        dim, depth = sizes['embed_dim'], sizes['depth']
        if interpolation not in RESIZE_MODES:
            raise ValueError(f'interpolation={interpolation!r}: expected one of {RESIZE_MODES}')
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f'drop_path_rate={drop_path_rate}: expected 0 <= rate < 1')
        self.joining, class_token = build_joining(joining, depth=depth, class_token=class_token)
        if last_norm is None:
            last_norm = self.joining.last is not None
        if not last_norm:
            self.joining = self.joining.without_last()
        self.embed_dim, self.depth, self.patch_size = dim, depth, patch_size
        self.interpolation, self.with_cp, self.frozen = interpolation, with_cp, frozen

        self.patch_embed = PatchEmbed(
            img_size=None, patch_size=patch_size, in_chans=in_channels, embed_dim=dim,
            flatten=False, strict_img_size=False, dynamic_img_pad=True)
        self.cls_token = None
        if class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
            nn.init.trunc_normal_(self.cls_token, std=.02)
        self.prefix = int(class_token)
        self.grid = tuple(-(-side // patch_size) for side in to_2tuple(img_size))
        count = self.joining.tables(depth)
        self.table_names = (['pos_embed'] if count == 1 else
                            [f'pos_embed{layer}' for layer in range(count)])
        for name in self.table_names:
            self.register_parameter(name, position_table(position, grid=self.grid, dim=dim,
                                                         prefix=self.prefix))

        pe_norms, last_pe_norm = self.joining.norms(depth=depth, dim=dim, eps=norm_eps)
        self.blocks = nn.ModuleList(
            Block(dim=dim, num_heads=sizes['num_heads'], mlp_ratio=sizes['mlp_ratio'],
                  qkv_bias=sizes['qkv_bias'], norm_eps=norm_eps,
                  drop_path=drop_path_rate * layer / max(depth - 1, 1),
                  layer_scale=layer_scale, window_size=window, pe_norm=pe_norm)
            for layer, (window, pe_norm) in enumerate(zip(windows or [None] * depth, pe_norms)))
        self.norm = nn.LayerNorm(dim, eps=norm_eps) if last_norm else None
        self.last_pe_norm = last_pe_norm
        self.blocks.apply(init_linear)
        if frozen:
            for _, parameter in self.vit_parameters():
                parameter.requires_grad = False

    def vit_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters of the ViT alone, without what a subclass adds to it."""
        parts = {'patch_embed', 'cls_token', *self.table_names, 'blocks', 'norm', 'last_pe_norm'}
        return ((name, parameter) for name, parameter in self.named_parameters()
                if name.split('.')[0] in parts)

    def delivery(self, grid: tuple[int, int]) -> Delivery:
        """The joining's plan for a grid of (h, w) tokens; PE is resized before it is normalised.

        It is made anew in every forward, so that no change of a weight can leave it stale.
        """
        tables = [resize_table(getattr(self, name), old=self.grid, new=grid, prefix=self.prefix,
                               mode=self.interpolation) for name in self.table_names]
        if self.cls_token is None:
            tables = [table[:, self.prefix:] for table in tables]
        return self.joining.plan(tables, [block.pe_norm for block in self.blocks],
                                 self.last_pe_norm)

    def embed(self, img: Tensor) -> tuple[Tensor, tuple[int, int], Delivery]:
        """(B, in_channels, H, W) to what enters the first layer.

        Returns:
            tokens (B, T, C), with what the plan adds to the input; the grid of the patches among
            them; the plan.
        """
        patches = self.patch_embed(img)
        tokens = patches.flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1)
        grid = tuple(patches.shape[-2:])
        plan = self.delivery(grid)
        return tokens if plan.stream[0] is None else tokens + plan.stream[0], grid, plan

    def run_layer(self, layer: int, x: Tensor, plan: Delivery, grid: tuple[int, int]) -> Tensor:
        """(B, T, C) through one layer and what the plan delivers to it."""
        if layer and plan.stream[layer] is not None:
            x = x + plan.stream[layer]
        return self.blocks[layer](x, plan.attention[layer], grid)

    def run_segment(self, segment: Callable, *args):
        """``segment(*args)``; under ``with_cp`` its activations are not kept but made twice."""
        if self.with_cp and torch.is_grad_enabled():
            return checkpoint(segment, *args, use_reentrant=False)
        return segment(*args)

    def run_last_norm(self, x: Tensor, plan: Delivery) -> Tensor:
        """(B, T, C) through the last LayerNorm and the plan's final term, where there are any."""
        if self.norm is not None:
            x = self.norm(x)
        return x if plan.final is None else x + plan.final

    def no_weight_decay(self) -> set[str]:
        """Parameters that take no weight decay beside biases and norms, as in DeiT."""
        return {'pos_embed', 'cls_token'}

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """The depth of a parameter, for learning rates that decay from layer to layer.

        Args:
            param_name: name of a parameter, starting with ``prefix``.
            prefix: what stands before the backbone's own names, such as 'backbone.'.

        Returns:
            depth and number of depths, L + 2: 0 for the embeddings, l + 1 for block l with its PE
            norm, and L + 1, which does not decay, for all else. mmpretrain's signature.
        """
        name = param_name.removeprefix(prefix)
        first, _, rest = name.partition('.')
        if first in ('patch_embed', 'cls_token', *self.table_names):
            return 0, self.depth + 2
        if first == 'blocks':
            return int(rest.split('.')[0]) + 1, self.depth + 2
        return self.depth + 1, self.depth + 2

    def train(self, mode: bool = True) -> VisionTransformer:
        super().train(mode)
        if self.frozen:
            self.patch_embed.eval()
            self.blocks.eval()
        return self

    def init_weights(self) -> None:
        """Loads what ``init_cfg`` names; all else was initialised on construction."""
        if self.init_cfg:
            # imported here: loading is the room above, which knows the backbones
            from lape_mm.checkpoints import load_backbone
            options = dict(self.init_cfg)
            if (kind := options.pop('type', 'Pretrained')) != 'Pretrained':
                raise ValueError(f"init_cfg.type={kind!r}: expected 'Pretrained'")
            load_backbone(self, options.pop('checkpoint'), **options)


def init_linear(module: nn.Module) -> None:
    """DeiT's initialisation of a Linear: normal (std 0.02, truncated), bias zero."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


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
        position: 'learnable', 'sincos_1d' or 'sincos_2d'.
        class_token: None for what the papers use with the joining.
        out_indices: None for the pooled vector; otherwise the layers, the last one among them,
            whose maps are returned.
        drop_path_rate, interpolation, norm_eps, with_cp, frozen, init_cfg: see
            `VisionTransformer`.

    Raises:
        ValueError: for any argument that the model cannot be built with, naming what is allowed.
    """

    def __init__(self, *, arch: str | Mapping = 'tiny', img_size: int | Sequence[int] = 224,
                 patch_size: int = 16, in_channels: int = 3, joining: str | Mapping = 'default',
                 position: str = 'learnable', class_token: bool | None = None,
                 out_indices: Sequence[int] | None = None, drop_path_rate: float = 0.,
                 interpolation: str = 'bicubic', norm_eps: float = 1e-6, with_cp: bool = False,
                 frozen: bool = False, init_cfg: dict | None = None):
        super().__init__(
            sizes=resolve_arch(arch, ARCHS, DETAILS), img_size=img_size, patch_size=patch_size,
            in_channels=in_channels, joining=joining, class_token=class_token, position=position,
            drop_path_rate=drop_path_rate, interpolation=interpolation, norm_eps=norm_eps,
            with_cp=with_cp, frozen=frozen, init_cfg=init_cfg)
        self.out_indices = None
        if out_indices is not None:
            layers = [index + self.depth if index < 0 else index for index in out_indices]
            if self.depth - 1 not in layers or layers != sorted(set(layers)) or layers[0] < 0:
                raise ValueError(f'out_indices={tuple(out_indices)}: expected rising layers of '
                                 f'0..{self.depth - 1} that end with the last one')
            self.out_indices = tuple(layers)

    def forward(self, img: Tensor) -> tuple[Tensor, ...]:
        """(B, in_channels, H, W) to the pooled vector, (B, C), as a tuple of one.

        With ``out_indices``: to a map (B, C, ceil(H / patch), ceil(W / patch)) for each of them;
        the last layer's is taken after the last LayerNorm and PE's final term.
        """
        x, grid, plan = self.embed(img)
        maps = []
        for layer in range(self.depth):
            x = self.run_segment(self.run_layer, layer, x, plan, grid)
            if self.out_indices and layer in self.out_indices[:-1]:
                maps.append(x)
        x = self.run_last_norm(x, plan)
        if self.out_indices is None:
            return (x.mean(dim=1) if self.cls_token is None else x[:, 0],)
        return tuple(tokens[:, self.prefix:].transpose(1, 2).unflatten(2, grid).contiguous()
                     for tokens in (*maps, x))
