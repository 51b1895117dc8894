"""Swin with any joining: windows that shift from layer to layer, and a grid that shrinks."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from timm.layers import PatchEmbed
from timm.models.swin_transformer import PatchMerging
from torch import Tensor, nn

from lape_mm.position import KINDS, PRESETS, Delivery, Joining
from lape_mm.registry import MODELS

from .checks import check_count, image_sides
from .encoder import Encoder, check_out_indices, init_linear, resolve_arch
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
    last LayerNorm and PE's final term.

    With the names 'pvg' and 'mpvg' the first layer's attention receives PE too, in Swin alone, as
    the MPVG paper has it. PE crosses to the next stage's grid through the tokens' own
    `PatchMerging`, norm and all; so does the table itself on its way to MPVG's last term, without
    any PE norm. The papers do not say so, but it is the choice that their parameter counts leave:
    merging parameters of PE's own would show in them. Under 'share' the table is merged likewise.

    Args:
        arch: 'tiny', 'small', 'base', or a dict of embed_dim, depths, num_heads (a number a stage
            each) and, if need be, mlp_ratio, qkv_bias and window_size.
        img_size: side or (h, w), in pixels, of the images that the PE table is made for. A stage
            whose map of such an image is smaller than the window has windows of the map's size.
            Images of other sizes are taken as well.
        patch_size, in_channels: of the patch embedding, which pads to whole patches.
        joining: 'default', 'share', 'lape', 'pvg', 'mpvg', or a dict of the settings of
            `lape_mm.position.Joining`.
        position: 'learnable', 'sincos_1d' or 'sincos_2d'; None for no table, as the official Swin
            has it, with joining 'default' alone.
        out_indices: None for the pooled vector; otherwise the stages, the last one among them,
            whose maps are returned. The others' maps go through a LayerNorm of their own,
            ``norm{stage}``, as in mmdet.
        drop_path_rate, interpolation, norm_eps, with_cp, frozen, init_cfg: see `Encoder`.

    Raises:
        ValueError: for any argument that the model cannot be built with, naming what is allowed.
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
        height, width = image_sides(img_size, patch_size)
        super().__init__(
            in_channels=in_channels, patch=patch_size,
            grid=(-(-height // patch_size), -(-width // patch_size)),
            dims=[dim for dim, depth in zip(dims, depths) for _ in range(depth)],
            joining=JOININGS.get(joining, joining) if isinstance(joining, str) else joining,
            position=position, drop_path_rate=drop_path_rate, interpolation=interpolation,
            norm_eps=norm_eps, with_cp=with_cp, frozen=frozen, init_cfg=init_cfg)
        self.depths, self.patch_size = depths, patch_size
        self.check_joining(joining)
        norm = partial(nn.LayerNorm, eps=norm_eps)
        self.patch_embed = PatchEmbed(
            img_size=None, patch_size=patch_size, in_chans=in_channels, embed_dim=dims[0],
            norm_layer=norm, output_fmt='NHWC', strict_img_size=False, dynamic_img_pad=True)
        self.layers = nn.ModuleList()
        grids = stage_grids(self.grid, len(depths))
        for dim, heads, grid, layers in zip(dims, sizes['num_heads'], grids, self.stage_layers()):
            window = min(grid[0], sizes['window_size']), min(grid[1], sizes['window_size'])
            blocks = [SwinBlock(dim=dim, num_heads=heads, window=window, shifted=index % 2 == 1,
                                mlp_ratio=sizes['mlp_ratio'], qkv_bias=sizes['qkv_bias'],
                                norm_eps=norm_eps, drop_path=self.drop_path_rates[layer],
                                pe_norm=self._pe_norms[layer])
                      for index, layer in enumerate(layers)]
            # timm names a class where it calls anything that makes a norm
            merging = PatchMerging(dim, norm_layer=norm) if dim != dims[-1] else None  # type: ignore[arg-type]
            self.layers.append(SwinStage(blocks, merging))
        self.layers.apply(init_linear)
        self.out_indices = check_out_indices(out_indices, len(depths), 'stages')
        for stage in self.out_indices[:-1]:
            setattr(self, f'norm{stage}', norm(dims[stage]))
        self.freeze()

    def check_joining(self, joining: str | Mapping) -> None:
        """Raises ValueError for a joining that has no meaning here."""
        if self.joining.tables(self.depth) > 1:
            allowed = ', '.join(repr(name) for name in PRESETS if name != 'unshare')
            raise ValueError(f"joining={joining!r}: a table a layer has one grid, but Swin's grid "
                             f'shrinks; expected one of {allowed}, or a dict of settings')
        if not self.table_names and self.joining != Joining():
            raise ValueError(f'position=None leaves joining={joining!r} nothing to deliver: '
                             f"expected joining='default', or a position of {KINDS}")

    def stage_layers(self) -> list[range]:
        """The layers l of each stage."""
        return [range(end - depth, end) for end, depth in zip(accumulate(self.depths), self.depths)]

    def layers_in_order(self) -> Sequence[Any]:
        stages: Any = self.layers
        return [block for stage in stages for block in stage.blocks]

    def stage(self, index: int) -> Any:
        """A `SwinStage`."""
        return self.layers[index]

    def prefix_tokens(self) -> list[Tensor]:
        """None: Swin's sequence is its map."""
        return []

    def vit_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        maps = [f'norm{stage}' for stage in self.out_indices[:-1]]
        return ((name, parameter) for name, parameter in self.named_parameters()
                if name.split('.')[0] not in maps)

    def grid_of(self, img_size: tuple[int, int]) -> tuple[int, int]:
        height, width = img_size
        return -(-height // self.patch_size), -(-width // self.patch_size)

    def make_delivery(self, grid: tuple[int, int]) -> Delivery:
        """The plan for an image of (h, w) patches; entries of a layer are of its stage's grid."""
        layers = self.layers_in_order()
        if not self.table_names:
            return Delivery((None,) * len(layers), (None,) * len(layers))
        grids = stage_grids(grid, len(self.layers))

        def carry(pe: Tensor, stage: int) -> Tensor:
            return self.stage(stage).merge(pe.unflatten(1, grids[stage])).flatten(1, 2)
        between = {layers.stop: partial(carry, stage=stage)
                   for stage, layers in enumerate(self.stage_layers()[:-1])}
        return self.joining.plan(self.tables(grid), [layer.pe_norm for layer in layers],
                                 self.last_pe_norm, between=between)

    def run_layer(self, layer: int, x: Tensor, plan: Delivery) -> Tensor:
        """(B, H, W, C) through one layer and what the plan delivers to it."""
        stream, pe = (None if entry is None else entry.unflatten(1, x.shape[1:3])
                      for entry in (plan.stream[layer], plan.attention[layer]))
        return self.layers_in_order()[layer](x if stream is None else x + stream, pe)

    def pool_final(self, final: Tensor) -> Tensor | None:
        return None if self.out_indices else final.mean(dim=1)

    def forward(self, img: Tensor) -> tuple[Tensor, ...]:
        """(B, in_channels, H, W) to the pooled vector, (B, C of the last stage), a tuple of one.

        With ``out_indices``: to a map (B, C 2^s, ceil(H / t), ceil(W / t)), t = patch 2^s, for
        each stage s of them.
        """
        self.check_images(img)
        x = self.patch_embed(img)
        height, width = x.shape[1:3]
        plan = self.delivery((height, width))
        maps = []
        for stage, layers in enumerate(self.stage_layers()):
            for layer in layers:
                x = self.run_segment(self.run_layer, layer, x, plan)
            if stage in self.out_indices[:-1]:
                maps.append(getattr(self, f'norm{stage}')(x))
            if self.stage(stage).downsample is not None:
                x = self.stage(stage).merge(x)
        grid = x.shape[1:3]
        x = self.run_last_norm(x.flatten(1, 2), plan)
        if not self.out_indices:
            return (self.add_pooled(x.mean(dim=1)),)
        # contiguous, since mmcv's operators misread channels-last maps without an error
        return tuple(y.permute(0, 3, 1, 2).contiguous() for y in (*maps, x.unflatten(1, grid)))

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
