"""Swin with any joining: windows that shift from layer to layer, and a grid that shrinks."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import cast

from timm.layers import PatchEmbed
from timm.models.swin_transformer import PatchMerging
from torch import Tensor, nn

from lape_mm.position import KINDS, PRESETS, Joining, PositionPlan
from lape_mm.position.joining import Carry
from lape_mm.registry import MODELS

from .checks import check_count, check_out_indices, resolve_arch
from .encoder import Encoder, init_linear
from .layers import EncoderLayer, to_output
from .swin_layers import SwinBlock, SwinStage

ARCHS = {
    'tiny': dict(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
    'small': dict(embed_dim=96, depths=(2, 2, 18, 2), num_heads=(3, 6, 12, 24)),
    'base': dict(embed_dim=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32)),
}
NEEDED = ('embed_dim', 'depths', 'num_heads')
DETAILS = dict(mlp_ratio=4., qkv_bias=True, window_size=7)
# Swin's first layer receives PE under PVG and MPVG too (MPVG paper, "Experiments")
JOININGS = {'pvg': Joining(first_layer=0), 'mpvg': Joining(first_layer=0, last=0)}


def stage_grids(grid: tuple[int, int], stages: int) -> list[tuple[int, int]]:
    """The grids (h, w) of the stages: each half of the one before, rounded up."""
    height, width = grid
    return [(-(-height // 2 ** stage), -(-width // 2 ** stage)) for stage in range(stages)]


@MODELS.register_module()
class Swin(Encoder):
    """Swin Transformer (ICCV 2021) with any joining, for classification and dense prediction.

    Parameter names are those of the official checkpoints, but for the table, ``pos_embed`` here;
    the norms of PE are ``layers.I.blocks.J.pe_norm`` and ``last_pe_norm``. The relative position
    bias is there with every joining. There is no class token: the last map is averaged, after the
    last LayerNorm and what PE adds to it.

    With the names 'pvg' and 'mpvg' the first layer's attention receives PE too, in Swin alone, as
    the MPVG paper has it. PE crosses to the next stage's grid through the tokens' own
    `PatchMerging`, norm and all; so does the table itself on its way to MPVG's last term, without
    any PE norm. The papers do not say so, but it is the choice that their parameter counts leave:
    merging parameters of PE's own would show in them. Under 'share' the table is merged likewise.

    Args:
        arch: 'tiny', 'small', 'base', or a dict of embed_dim, depths, num_heads (a number a stage
            each) and, if need be, mlp_ratio, qkv_bias and window_size.
        img_size: see `lape_mm.backbones.DeiT`. A stage whose map of such an image is smaller than
            the window has windows of the map's size.
        joining: 'default', 'share', 'lape', 'pvg', 'mpvg', or a dict of the settings of
            `lape_mm.position.Joining`.
        position: 'learnable', 'sincos_1d' or 'sincos_2d'; None for no table, as the official Swin
            has it, with joining 'default' alone.
        out_indices: None for the pooled vector; otherwise the stages, the last one among them,
            whose maps are returned. The others' maps go through a LayerNorm of their own,
            ``norm{stage}``, as in mmdet.

    The other arguments are as in `DeiT`.
    """

    def __init__(self, *, arch: str | Mapping = 'tiny', img_size: int | Sequence[int] = 224,
                 patch_size: int = 4, in_channels: int = 3, joining: str | Mapping = 'default',
                 position: str | None = 'learnable', out_indices: Sequence[int] | None = None,
                 drop_path_rate: float = 0., interpolation: str = 'bicubic',
                 norm_eps: float = 1e-5, with_cp: bool = False, frozen: bool = False,
                 init_cfg: dict | None = None):
        sizes = check_stages(resolve_arch(arch, ARCHS, DETAILS, needed=NEEDED))
        depths = tuple(sizes['depths'])
        check_count('patch_size', patch_size)
        check_count('in_channels', in_channels)
        dims = [sizes['embed_dim'] * 2 ** stage for stage in range(len(depths))]
        super().__init__(
            in_channels=in_channels, img_size=img_size, stride=patch_size,
            dims=[dim for dim, depth in zip(dims, depths) for _ in range(depth)],
            joining=JOININGS.get(joining, joining) if isinstance(joining, str) else joining,
            position=position, drop_path_rate=drop_path_rate, interpolation=interpolation,
            norm_eps=norm_eps, with_cp=with_cp, frozen=frozen, init_cfg=init_cfg)
        self.depths = depths
        if self.joining.num_tables(self.depth) > 1:
            allowed = ', '.join(repr(name) for name in PRESETS if name != 'unshare')
            raise ValueError(f"joining={joining!r}: a table a layer has one grid, but Swin's grid "
                             f'shrinks; expected one of {allowed}, or a dict of settings')
        if not self.table_names and self.joining != Joining():
            raise ValueError(f'position=None leaves joining={joining!r} nothing to deliver: '
                             f"expected joining='default', or a position of {KINDS}")
        norm = partial(nn.LayerNorm, eps=norm_eps)
        self.patch_embed = PatchEmbed(
            img_size=None, patch_size=patch_size, in_chans=in_channels, embed_dim=dims[0],
            norm_layer=norm, output_fmt='NHWC')
        self.layers = nn.ModuleList()
        grids = stage_grids(self.grid, len(depths))
        for dim, heads, grid, layers in zip(dims, sizes['num_heads'], grids, self.stage_layers()):
            window = min(grid[0], sizes['window_size']), min(grid[1], sizes['window_size'])
            blocks = [SwinBlock(dim=dim, num_heads=heads, window=window, shifted=index % 2 == 1,
                                mlp_ratio=sizes['mlp_ratio'], qkv_bias=sizes['qkv_bias'],
                                norm_eps=norm_eps, drop_path=self.drop_path_rates[layer],
                                pe_norm=self.joining.pe_norm(layer, dim=dim, eps=norm_eps))
                      for index, layer in enumerate(layers)]
            # timm names a class where it calls anything that makes a norm
            merging = PatchMerging(dim, norm_layer=norm) if dim != dims[-1] else None  # type: ignore[arg-type]
            self.layers.append(SwinStage(blocks, merging))
        self.layers.apply(init_linear)
        self.out_indices = check_out_indices(out_indices, len(depths), 'stages')
        for stage in self.out_indices[:-1]:
            setattr(self, f'norm{stage}', norm(dims[stage]))
        self.freeze()

    def stage_layers(self) -> list[range]:
        """The layers l of each stage."""
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

    def finish(self, x: Tensor, plan: PositionPlan) -> Tensor:
        """The last stage's map, (B, H, W, C), after the last LayerNorm and what PE adds to it."""
        return self.run_last_norm(x.flatten(1, 2), plan.post_norm).unflatten(1, x.shape[1:3])

    def forward(self, img: Tensor) -> tuple[Tensor, ...]:
        """(B, in_channels, H, W) to the pooled vector, (B, C of the last stage), a tuple of one.

        With ``out_indices``: to a map (B, C 2^s, ceil(H / t), ceil(W / t)), t = patch 2^s, for
        each stage s of them.
        """
        maps, plan = self.encode(img)
        last = self.finish(maps[-1], plan)
        if not self.out_indices:
            return (self.pool(last.flatten(1, 2)),)
        chosen = [getattr(self, f'norm{stage}')(maps[stage]) for stage in self.out_indices[:-1]]
        return tuple(to_output(x.permute(0, 3, 1, 2)) for x in (*chosen, last))

    def no_weight_decay(self) -> set[str]:
        """As in the official recipe: the tables of the absolute and the relative positions."""
        return {'pos_embed'} | {name for name, _ in self.named_parameters()
                                if name.endswith('relative_position_bias_table')}

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """See `Encoder.get_layer_depth`; a stage's merging goes with the last of its blocks."""
        first, *rest = param_name.removeprefix(prefix).split('.')
        if first in ('patch_embed', *self.table_names):
            return 0, self.depth + 2
        if first == 'layers':
            stage = int(rest[0])
            last = int(rest[2]) if rest[1] == 'blocks' else self.depths[stage] - 1
            return sum(self.depths[:stage]) + last + 1, self.depth + 2
        return self.depth + 1, self.depth + 2


def check_stages(sizes: dict) -> dict:
    """The sizes, if there is a depth and a number of heads for each stage."""
    depths, heads = sizes['depths'], sizes['num_heads']
    for name, value in (('depths', depths), ('num_heads', heads)):
        if not isinstance(value, Sequence) or not value:
            raise ValueError(f'arch: {name}={value!r}: expected a number of at least 1 for each '
                             'stage')
    if len(depths) != len(heads):
        raise ValueError(f'arch: depths={tuple(depths)} and num_heads={tuple(heads)}: expected as '
                         'many of one as of the other')
    return sizes
