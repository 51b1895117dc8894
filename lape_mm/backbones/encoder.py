"""What all transformers of this package share: position embedding, a joining, and its plan."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from lape_mm.position import (
    JoiningProtocol,
    PositionPlan,
    build_joining,
    position_table,
    resize_table,
)
from lape_mm.position.embedding import RESIZE_MODES
from lape_mm.position.joining import Carry
from lape_mm.registry import WEIGHT_INITIALIZERS
from lape_mm.sharing import HubBackbone

from .checks import check_positive, check_rate, image_sides
from .layers import EncoderLayer


class Encoder(HubBackbone):
    """Holds the PE tables and turns them into the plan that its layers carry out.

    A subclass makes the layers, each with the norm of PE that the joining gives it, and lists them
    as `layers_in_order`.

    Of mmengine's BaseModule it has what the toolboxes ask a backbone for, ``init_cfg`` and
    `init_weights`; to import that class costs more than all of this package does.

    Args:
        in_channels: of the images.
        img_size: side or (h, w), in pixels, whose grid the PE tables cover. Other sizes are taken
            as well: PE is resized to their grid.
        stride: side, in pixels, of what becomes a token; no image may be smaller.
        pad_to: images are padded to multiples of it; None for the stride.
        dims: channels of each layer, L entries.
        joining, class_token: see `lape_mm.position.build_joining`.
        position: a kind of PE table, see `lape_mm.position.position_table`; None for no table.
        more_tokens: prefix tokens beside the class token.
        position_std: standard deviation of a learnable PE at first.
        interpolation: how PE is resized, 'bicubic' or 'bilinear'.
        norm_eps: of every LayerNorm.
        last_norm: whether a LayerNorm follows the last layer; None: only if the joining adds
            something after it.
        drop_path_rate: rises linearly from 0 in the first layer to this in the last.
        with_cp: what is recomputed in the backward pass to save memory. False: nothing. True: all
            layers, with ViT-Adapter's injectors and extractors. 'adapter', which ViT-Adapter alone
            takes: only those injectors and extractors.
        frozen: the transformer takes no gradient and stays in evaluation mode.
        init_cfg: None, or ``dict(checkpoint=PATH_OR_URL)`` with the further arguments of
            `lape_mm.checkpoints.load_backbone`.

    Attributes:
        joining: what makes the plan; without its `post_norm` where there is no last LayerNorm.
        grid: (h, w) in tokens that the tables cover.
        num_prefix_tokens: prefix slots of the tables. ViT-Adapter keeps the class token's slot and
            has no such token, see `prefix_tokens`.
        table_names: parameters that hold the tables.
        norm: the last LayerNorm, or None.
        last_pe_norm: the norm of the plan's ``post_norm``, or None.
        folded: None, or the constants of a plan, see `lape_mm.backbones.fold`.
    """

    checkpointing: tuple[bool | str, ...] = (False, True)
    joining: JoiningProtocol
    with_cp: bool | str

    def __init__(self, *, in_channels: int, img_size: int | Sequence[int], stride: int,
                 dims: Sequence[int], joining: str | Mapping | JoiningProtocol,
                 pad_to: int | None = None, class_token: bool | None = False,
                 position: str | None = 'learnable', more_tokens: int = 0,
                 position_std: float = .02, interpolation: str = 'bicubic',
                 norm_eps: float = 1e-6, last_norm: bool | None = True,
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
        self.num_prefix_tokens = int(self.has_class_token) + more_tokens

        count = self.joining.num_tables(self.depth) if position else 0
        if count > 1 and position != 'learnable':
            raise ValueError(f'position={position!r}: a table for each layer (unshare) has to be '
                             "learned, expected 'learnable'")
        self.table_names = (['pos_embed'] if count == 1 else
                            [f'pos_embed{layer}' for layer in range(count)])
        for name in self.table_names:
            self.register_parameter(name, position_table(
                position or '', grid=self.grid, dim=self.embed_dim, std=position_std,
                num_prefix_tokens=self.num_prefix_tokens))
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

    def prefix_tokens(self) -> list[Tensor]:
        """What stands before the patches, (1, 1, C) each; none by default."""
        return []

    def vit_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters of the transformer alone, as a classification model has it."""
        return self.named_parameters()

    def grid_of(self, img_size: Sequence[int]) -> tuple[int, int]:
        """The grid (h, w) of the first layer's tokens for an image of (h, w) pixels."""
        height, width = (-(-(side + -side % self.pad_to) // self.stride) for side in img_size)
        return height, width

    def pad_image(self, images: Tensor) -> Tensor:
        """Images, (B, in_channels, H, W), padded with zeros at the bottom and right.

        Raises:
            ValueError: for what `forward` would not, or not rightly, encode.
        """
        if images.dim() != 4 or images.shape[1] != self.in_channels \
                or not images.is_floating_point():
            raise ValueError(f'got images of shape {tuple(images.shape)} and {images.dtype}, '
                             f'expected (B, {self.in_channels}, H, W) of floating-point numbers')
        height, width = images.shape[2:]
        if height < self.stride or width < self.stride:
            raise ValueError(f'got images of {height} x {width} pixels, expected at least '
                             f'{self.stride} x {self.stride}, the size of a patch')
        return F.pad(images, (0, -width % self.pad_to, 0, -height % self.pad_to))

    def plan(self, grid: tuple[int, int]) -> PositionPlan:
        """The joining's plan for a grid of (h, w) tokens; PE is resized before it is normalised.

        It is made anew in every forward, so that no change of a weight can leave it stale, unless
        the model is folded.
        """
        return self.make_plan(grid) if self.folded is None else self.folded(grid)

    def make_plan(self, grid: tuple[int, int]) -> PositionPlan:
        """The plan from the weights, see `plan`."""
        if not self.table_names:
            nothing = (None,) * self.depth
            return PositionPlan(nothing, nothing, nothing)
        return self.joining.plan(self.tables(grid),
                                 [layer.pe_norm for layer in self.layers_in_order()],
                                 self.last_pe_norm, self.carry(grid))

    def carry(self, grid: tuple[int, int]) -> Carry:
        """What carries PE from layer to layer where the grid changes, see `Joining.plan`."""
        return {}

    def tables(self, grid: tuple[int, int]) -> list[Tensor]:
        """The PE tables over the prefix tokens and a grid of (h, w) patches, (1, T, C) each."""
        unused = self.num_prefix_tokens - len(self.prefix_tokens())
        return [resize_table(getattr(self, name), old=self.grid, new=grid, mode=self.interpolation,
                             num_prefix_tokens=self.num_prefix_tokens)[:, unused:]
                for name in self.table_names]

    def maybe_checkpoint(self, segment: nn.Module, *args, **kwargs) -> Any:
        """``segment(...)``, computed again in the backward pass where ``with_cp`` says so."""
        spared = self.with_cp == 'adapter' and isinstance(segment, EncoderLayer)
        if not self.with_cp or spared or not torch.is_grad_enabled():
            return segment(*args, **kwargs)
        return checkpoint(segment, *args, use_reentrant=False,
                          context_fn=self.checkpoint_contexts(segment), **kwargs)

    def checkpoint_contexts(self, segment: nn.Module) -> Callable[[], tuple]:
        """What makes the contexts of the forward pass and of its repetition."""
        return noop_context_fn

    def run_last_norm(self, x: Tensor, post_norm: Tensor | None = None) -> Tensor:
        """(..., C) through the last LayerNorm, with what the plan adds after it."""
        if self.norm is not None:
            x = self.norm(x)
        return x if post_norm is None else x + post_norm

    def pool(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, C): the mean of the patches."""
        return x[:, self.num_prefix_tokens:].mean(dim=1)

    def no_weight_decay(self) -> set[str]:
        """Parameters that take no weight decay beside biases and norms, as in DeiT."""
        return {'pos_embed', 'cls_token'}

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """The depth of a parameter, for learning rates that decay from layer to layer.

        Args:
            param_name: name of a parameter, starting with ``prefix``.
            prefix: what stands before the backbone's own names, such as 'backbone.'.

        Returns:
            depth and number of depths, L + 2: 0 for the embeddings, l + 1 for layer l with its PE
            norm, and L + 1, which does not decay, for all else. mmpretrain's signature.
        """
        raise NotImplementedError

    def freeze(self) -> None:
        """With ``frozen``, no parameter takes a gradient that is there when this is called.

        A subclass calls it once its transformer is complete; what it adds later is trained.
        """
        if self.frozen:
            self.frozen_children = {name for name, _ in self.named_children()}
            for parameter in self.parameters():
                parameter.requires_grad = False

    def train(self, mode: bool = True) -> Encoder:
        if mode and self.folded is not None:
            raise RuntimeError('a folded model cannot be trained: its position embedding is '
                               'constant. Train the model that it was folded from')
        super().train(mode)
        if self.frozen:
            for name, child in self.named_children():
                if name in self.frozen_children:
                    child.eval()
        return self

    def init_weights(self) -> None:
        """Loads what ``init_cfg`` names; all else was initialised on construction."""
        if self.init_cfg:
            options = dict(self.init_cfg)
            if (kind := options.pop('type', 'Pretrained')) != 'Pretrained':
                raise ValueError(f"init_cfg.type={kind!r}: expected 'Pretrained'")
            # by the registry: loading is the room above, which knows the backbones
            WEIGHT_INITIALIZERS.build(dict(type='lape_mm.BackboneWeights', **options))(self)


def init_linear(module: nn.Module) -> None:
    """DeiT's initialisation of a Linear: normal (std 0.02, truncated), bias zero."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
