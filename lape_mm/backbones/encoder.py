"""The base of all backbones: position embedding, a joining, and its plan."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from lape_mm.position import Joining, PositionPlan, build_joining, position_table, resize_table
from lape_mm.position.embedding import RESIZE_MODES
from lape_mm.position.joining import Carry
from lape_mm.registry import WEIGHT_INITIALIZERS
from lape_mm.sharing import HubBackbone

from .checks import check_positive, check_rate, image_sides
from .layers import EncoderLayer


class Encoder(HubBackbone):
    """Base of all backbones: holds the PE tables and makes the plan that the layers apply.

    A subclass builds the layers, each with its norm from the joining, and lists them in
    `layers_in_order`. Like mmengine's BaseModule, which is slow to import, this class provides
    ``init_cfg`` and `init_weights`.

    Args:
        in_channels: channels of the images.
        img_size: side or (h, w), in pixels, of the images that the PE tables are made for. For
            other sizes PE is resized.
        stride: patch side in pixels, also the smallest image side allowed.
        pad_to: images are padded to multiples of this; None for the stride.
        dims: channels of the L layers.
        joining, class_token: see `lape_mm.position.build_joining`.
        position, position_std: kind (None for no table) and std, see `position_table`.
        more_tokens: number of prefix tokens beside the class token, with slots in the tables.
        reg_tokens: number of registers after these tokens, without slots.
        embed_class: False gives no prefix token a slot.
        interpolation: how PE is resized, see `lape_mm.position.resize_table`.
        last_norm: whether a LayerNorm follows the last layer; None: only if the joining adds PE
            after it.
        drop_path_rate: rate in the last layer; it rises linearly from 0 in the first.
        with_cp: True recomputes the layers, and ViT-Adapter's injectors and extractors, in the
            backward pass; 'adapter' recomputes only injectors and extractors.
        frozen: the transformer gets no gradient and stays in evaluation mode.
        init_cfg: ``dict(checkpoint=PATH_OR_URL)``, with further arguments of
            `lape_mm.checkpoints.load_backbone`; None for random weights.

    Attributes:
        joining: makes the plan; has no ``post_norm`` if there is no last LayerNorm.
        grid: (h, w) of the tables, in tokens.
        num_prefix_tokens, num_prefix_slots: how many tokens, and table slots, precede the patches.
        unused_slots: how many of the first slots belong to no token (ViT-Adapter keeps a class
            token's slot).
        norm, last_pe_norm: the last LayerNorm, and the LN' that makes ``post_norm``, or None.
        folded: a constant plan, see `lape_mm.backbones.fold`, or None.
    """

    checkpointing: tuple[bool | str, ...] = (False, True)
    joining: Joining
    with_cp: bool | str

    def __init__(self, *, in_channels: int, img_size: int | Sequence[int], stride: int,
                 dims: Sequence[int], joining: str | Mapping | Joining,
                 pad_to: int | None = None, class_token: bool | None = False,
                 position: str | None = 'learnable', more_tokens: int = 0,
                 reg_tokens: int = 0, embed_class: bool = True, position_std: float = .02,
                 interpolation: str = 'bicubic', norm_eps: float = 1e-6,
                 last_norm: bool | None = True,
                 drop_path_rate: float = 0., with_cp: bool | str = False, frozen: bool = False,
                 init_cfg: dict | None = None):
        super().__init__()
        self.init_cfg = deepcopy(init_cfg)
        if interpolation not in RESIZE_MODES:
            raise ValueError(f'interpolation={interpolation!r}: expected one of {RESIZE_MODES}')
        if with_cp not in self.checkpointing:
            raise ValueError(f'with_cp={with_cp!r}: expected one of {self.checkpointing}')
        check_rate('drop_path_rate', drop_path_rate)
        check_positive('norm_eps', norm_eps)
        self.in_channels, self.stride, self.pad_to = in_channels, stride, pad_to or stride
        self.depth, self.embed_dim = len(dims), dims[0]
        height, width = image_sides(img_size, stride)
        self.grid = -(-height // stride), -(-width // stride)
        self.joining, self.has_class_token = build_joining(joining, depth=self.depth,
                                                           class_token=class_token)
        self.interpolation, self.with_cp, self.frozen = interpolation, with_cp, frozen
        self.drop_path_rates = [drop_path_rate * layer / max(self.depth - 1, 1)
                                for layer in range(self.depth)]
        self.num_prefix_tokens = int(self.has_class_token) + more_tokens + reg_tokens
        self.num_prefix_slots = (self.num_prefix_tokens - reg_tokens) * int(embed_class)
        self.unused_slots = 0

        count = self.joining.num_tables(self.depth) if position else 0
        if count > 1 and position != 'learnable':
            raise ValueError(f"joining='unshare' needs position='learnable', got {position!r}")
        self.table_names = (['pos_embed'] if count == 1 else
                            [f'pos_embed{layer}' for layer in range(count)])
        for name in self.table_names:
            self.register_parameter(name, position_table(
                position or '', grid=self.grid, dim=self.embed_dim, std=position_std,
                num_prefix_tokens=self.num_prefix_slots))
        self.last_pe_norm = self.joining.pe_norm(None, dim=dims[-1], eps=norm_eps)
        if last_norm is None:
            last_norm = self.last_pe_norm is not None
        if not last_norm:
            self.joining, self.last_pe_norm = self.joining.without_post_norm(), None
        self.norm = nn.LayerNorm(dims[-1], eps=norm_eps) if last_norm else None
        self.folded: nn.Module | None = None

    def layers_in_order(self) -> Sequence[EncoderLayer]:
        """The L layers."""
        raise NotImplementedError

    def layer_names(self) -> list[str]:
        """The module names of the L layers, such as 'blocks.0'."""
        names = {module: name for name, module in self.named_modules()}
        return [names[layer] for layer in self.layers_in_order()]

    def prefix_tokens(self) -> list[Tensor]:
        """Tokens before the patches, (1, n, C) each; none by default."""
        return []

    def vit_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters that a plain ViT classifier also has."""
        return self.named_parameters()

    def grid_of(self, img_size: Sequence[int]) -> tuple[int, int]:
        """The first layer's token grid (h, w) for an image of (h, w) pixels."""
        height, width = (-(-self.padded(side) // self.stride) for side in img_size)
        return height, width

    def padded(self, side: int) -> int:
        """The side of an image after `pad_image`, in pixels."""
        return side + -side % self.pad_to

    def pad_image(self, images: Tensor) -> Tensor:
        """Pads images (B, in_channels, H, W) with zeros at the bottom and right."""
        if images.dim() != 4 or images.shape[1] != self.in_channels \
                or not images.is_floating_point():
            raise ValueError(f'got images of shape {tuple(images.shape)} and {images.dtype}, '
                             f'expected (B, {self.in_channels}, H, W) of floating-point numbers')
        height, width = images.shape[2:]
        if height < self.stride or width < self.stride:
            raise ValueError(f'got images of {height} x {width} pixels, expected at least '
                             f'{self.stride} x {self.stride}, the size of a patch')
        return F.pad(images, (0, self.padded(width) - width, 0, self.padded(height) - height))

    def plan(self, grid: tuple[int, int]) -> PositionPlan:
        """Makes the plan in each forward, so it is never stale; a folded model's is constant."""
        return self.make_plan(grid) if self.folded is None else self.folded(grid)

    def make_plan(self, grid: tuple[int, int]) -> PositionPlan:
        """Makes the plan for a grid of (h, w) tokens; resizes PE before normalising it."""
        if not self.table_names:
            nothing = (None,) * self.depth
            return PositionPlan(nothing, nothing, nothing)
        return self.joining.plan(self.tables(grid),
                                 [layer.pe_norm for layer in self.layers_in_order()],
                                 self.last_pe_norm, self.carry(grid))

    def carry(self, grid: tuple[int, int]) -> Carry:
        """How PE moves to another grid between layers, see `Joining.plan`."""
        return {}

    def tables(self, grid: tuple[int, int]) -> list[Tensor]:
        """The PE tables, (1, T, C) each, for a grid of (h, w) patches; zeros for missing slots."""
        tables = [resize_table(getattr(self, name), old=self.grid, new=grid,
                               mode=self.interpolation,
                               num_prefix_tokens=self.num_prefix_slots)[:, self.unused_slots:]
                  for name in self.table_names]
        slots = self.num_prefix_slots - self.unused_slots
        if zeros := self.num_prefix_tokens - slots:
            tables = [torch.cat([table[:, :slots], table.new_zeros(1, zeros, table.shape[2]),
                                 table[:, slots:]], dim=1) for table in tables]
        return tables

    def maybe_checkpoint(self, segment: nn.Module, *args, **kwargs) -> Any:
        """Calls ``segment``; the backward pass recomputes it if ``with_cp`` says so."""
        spared = self.with_cp == 'adapter' and isinstance(segment, EncoderLayer)
        if not self.with_cp or spared or not torch.is_grad_enabled():
            return segment(*args, **kwargs)
        return checkpoint(segment, *args, use_reentrant=False,
                          context_fn=self.checkpoint_contexts(segment), **kwargs)

    def checkpoint_contexts(self, segment: nn.Module) -> Callable[[], tuple]:
        """Returns a function that makes the contexts of forward pass and recomputation."""
        return noop_context_fn

    def run_last_norm(self, x: Tensor, post_norm: Tensor | None = None) -> Tensor:
        """Applies the last LayerNorm, if there is one, and adds ``post_norm``."""
        if self.norm is not None:
            x = self.norm(x)
        return x if post_norm is None else x + post_norm

    def pool(self, x: Tensor) -> Tensor:
        """Maps (B, T, C) to (B, C): the mean of the patches."""
        return x[:, self.num_prefix_tokens:].mean(dim=1)

    def no_weight_decay(self) -> set[str]:
        """Parameters without weight decay besides biases and norms, as in DeiT."""
        return {'pos_embed', 'cls_token'}

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Returns a parameter's depth (for layer-wise decay) and the number of depths, L + 2.

        The depth is 0 for the embeddings, l + 1 for layer l and its PE norm, and L + 1 for the
        rest. As in mmpretrain, ``param_name`` starts with ``prefix``, such as 'backbone.'.
        """
        name = param_name.removeprefix(prefix)
        if name.split('.')[0] in ('patch_embed', 'cls_token', 'dist_token', 'reg_token', 'norm_pre',
                                  'rope', *self.table_names):
            return 0, self.depth + 2
        own_layer = (layer for layer, start in enumerate(self.layer_names())
                     if name.startswith(f'{start}.'))
        return next(own_layer, self.depth) + 1, self.depth + 2

    def freeze(self) -> None:
        """If ``frozen``, freezes the modules built so far, which are the transformer."""
        if self.frozen:
            self.frozen_children = {name for name, _ in self.named_children()}
            for parameter in self.parameters():
                parameter.requires_grad = False

    def train(self, mode: bool = True) -> Encoder:
        if mode and self.folded is not None:
            raise RuntimeError('a folded model cannot be trained: its position embedding is '
                               'constant. Train the unfolded model')
        super().train(mode)
        if self.frozen:
            for name, child in self.named_children():
                if name in self.frozen_children:
                    child.eval()
        return self

    def init_weights(self) -> None:
        """Loads the checkpoint of ``init_cfg``; the constructor has initialised the rest."""
        if self.init_cfg:
            if not isinstance(self.init_cfg, Mapping):
                raise ValueError(f'init_cfg={self.init_cfg!r}: expected dict(checkpoint=PATH)')
            options = dict(self.init_cfg)
            if (kind := options.pop('type', 'Pretrained')) != 'Pretrained':
                raise ValueError(f"init_cfg.type={kind!r}: expected 'Pretrained'")
            # through the registry, because checkpoints/ imports backbones/
            WEIGHT_INITIALIZERS.build(dict(type='lape_mm.BackboneWeights', **options))(self)


def init_linear(module: nn.Module) -> None:
    """Initialises a Linear as DeiT does: truncated normal (std 0.02), bias zero."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
