"""What timm asks of a model beyond a backbone: head, pooling, intermediate maps, groups."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from timm.layers import to_2tuple
from torch import Tensor, nn

from lape_mm.backbones.encoder import Encoder, init_linear
from lape_mm.checkpoints.files import named, read_checkpoint
from lape_mm.checkpoints.fit import check_whole
from lape_mm.position import PositionPlan, resize_table

from .weights import fit

try:
    from timm.models._input import update_model_input_size
except ImportError:  # private, but the one way to record a size for timm's exports; not in old ones
    def update_model_input_size(model, img_size):  # type: ignore[misc]  # timm's has types
        """Nothing."""

FORMATS = ('NCHW', 'NLC', 'NHWC')
LAST = (99999,)  # timm's number of a group that comes after all layers
Groups = tuple[tuple[str, tuple[int] | None], ...]


def take_indices(count: int, indices: int | Sequence[int] | None) -> tuple[list[int], int]:
    """Which of ``count`` layers, counted from 0, and the deepest: so many last ones, or these.

    Raises:
        ValueError: there are no such layers.
    """
    if isinstance(indices, int):
        indices = range(-indices, 0)
    chosen = [index + count if index < 0 else index
              for index in (range(count) if indices is None else indices)]
    if not chosen or not all(0 <= index < count for index in chosen):
        raise ValueError(f'indices={indices!r}: expected layers of 0..{count - 1}, or a number for '
                         'so many last ones')
    return chosen, max(chosen)


def as_maps(tokens: Tensor, grid: Sequence[int], fmt: str) -> Tensor:
    """(B, h * w, C) as NCHW, NHWC or NLC.

    Raises:
        ValueError: for another format.
    """
    if fmt not in FORMATS:
        raise ValueError(f'output_fmt={fmt!r}: expected one of {FORMATS}')
    if fmt == 'NLC':
        return tokens
    maps = tokens.unflatten(1, grid)
    return maps if fmt == 'NHWC' else maps.permute(0, 3, 1, 2).contiguous()


class TimmModel(Encoder):
    """What timm's tools call, over an `Encoder` that the subclass names after it.

    Images may be of any size; ``img_size`` is that of the PE table. Pooling belongs to the joining
    and is not chosen apart from it.

    Args:
        num_classes: outputs of the head; 0 for the pooled vector.
        in_chans: channels of the image.
        drop_rate: dropout before the head.
        global_pool: None for the joining's own, '' for none.
        kwargs: of the backbone.

    Raises:
        ValueError: for another ``global_pool``, and as the backbone does.
    """

    output_fmt = 'NLC'
    # in timm's words: what belongs to the stem, the layers, and what follows them
    stem = r'^(?:cls_token|dist_token|pos_embed\d*|patch_embed)(?:\.|$)'
    layers_fine: Groups = ((r'^blocks\.(\d+)', None),)
    layers_coarse: Groups = layers_fine
    channels = 'in_channels'
    blocks: nn.ModuleList
    embed: Callable[[Tensor], tuple[Tensor, tuple[int, int], PositionPlan]]
    attention_pool: nn.Linear | None

    def __init__(self, *, num_classes: int = 1000, in_chans: int = 3, drop_rate: float = 0.,
                 global_pool: str | None = None, **kwargs):
        backbone: dict[str, Any] = {self.channels: in_chans, **kwargs}
        super().__init__(**backbone)
        self.in_chans, self.grad_checkpointing = in_chans, self.with_cp
        assert self.norm is not None  # no backbone of these is made without
        self.num_features = self.head_hidden_size = self.norm.normalized_shape[0]
        self.global_pool = self.own_pool = self.name_of_pool()
        self.head_drop = nn.Dropout(drop_rate)
        self.head: nn.Module = nn.Identity()
        self.reset_classifier(num_classes, global_pool)
        self.feature_info = self.describe_features()

    def describe_features(self) -> list[dict]:
        """timm's feature_info: a map for each layer."""
        return [dict(module=f'blocks.{layer}', num_chs=self.embed_dim, reduction=self.stride)
                for layer in range(self.depth)]

    def name_of_pool(self) -> str:
        """How the joining pools, in timm's words."""
        return 'token' if self.has_class_token else 'avg'

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head, or none for 0; with ``global_pool=''`` nothing is pooled before it."""
        if global_pool not in (None, '', self.own_pool):
            raise ValueError(f"global_pool={global_pool!r}: expected {self.own_pool!r}, which the "
                             "joining says, or '' for none")
        self.num_classes = num_classes
        self.global_pool = self.global_pool if global_pool is None else global_pool
        some = next(self.parameters())
        self.head = nn.Identity()
        if num_classes:
            self.head = nn.Linear(self.num_features, num_classes)
            init_linear(self.head)
            self.head.to(device=some.device, dtype=some.dtype)
        self.head.train(self.training)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Turns gradient checkpointing on or off."""
        self.with_cp = self.grad_checkpointing = enable

    def set_input_size(self, img_size: int | Sequence[int] | None = None,
                       patch_size: int | None = None) -> None:
        """Gives the PE tables the grid of another image size, in pixels, as a forward would.

        Raises:
            ValueError: for a ``patch_size``, and where PE cannot be resized.
        """
        if patch_size is not None:
            raise ValueError('patch_size cannot be changed: build the model with another one')
        if img_size is None:
            return
        grid = self.grid_of(to_2tuple(img_size))
        if getattr(self, 'relative_index', None) is not None or self.folded is not None:
            raise ValueError("the model is made for one image size (position='relative', or "
                             'folded): build it with img_size')
        for name in self.table_names:
            old = getattr(self, name)
            table = resize_table(old.detach(), old=self.grid, new=grid, mode=self.interpolation,
                                 num_prefix_tokens=self.num_prefix_tokens)
            setattr(self, name, nn.Parameter(table.clone(), requires_grad=old.requires_grad))
        self.grid = grid
        update_model_input_size(self, img_size)

    def group_matcher(self, coarse: bool = False) -> dict:
        """Patterns of parameter names in the order of depth, for layer-wise learning rates."""
        layers = self.layers_coarse if coarse else self.layers_fine
        return dict(stem=self.stem, blocks=[
            *layers, (r'^(?:norm|last_pe_norm|lca|pos_layer_embed|attention_pool)(?:\.|$)', LAST)])

    def vit_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, parameter) for name, parameter in super().vit_parameters()
                if not name.startswith('head.'))

    def load_pretrained(self, checkpoint_path: str, prefix: str = '') -> None:
        """Loads all of a checkpoint, of any layout that this package reads, without executing it.

        PE is resized to the model's grid. To start from part of a model, such as a DeiT without
        norms of PE, call `lape_mm.checkpoints.load_backbone`.

        Raises:
            CheckpointError: the file cannot be read, anything of the model is not in it, or more
                is in its layers.
        """
        with named(checkpoint_path):
            fitting = fit(read_checkpoint(checkpoint_path), self, prefix or None,
                          path=str(checkpoint_path))
            check_whole(self.state_dict(), fitting)
            self.load_state_dict(fitting)

    def head_of(self, pooled: Tensor, pre_logits: bool) -> Tensor:
        """(B, C) to (B, C) or (B, num_classes)."""
        pooled = self.head_drop(pooled)
        return pooled if pre_logits else self.head(pooled)

    def pool_features(self, x: Tensor) -> Tensor:
        """What `forward_features` gives as (B, C)."""
        return self.pool(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """What `forward_features` gives, to (B, num_classes) or the pooled (B, C)."""
        return self.head_of(self.pool_features(x) if self.global_pool else x, pre_logits)

    def forward(self, img: Tensor) -> Any:
        """(B, in_chans, H, W) to (B, num_classes), or what is left of it without pool and head."""
        if not self.global_pool:
            return self.forward_head(self.forward_features(img))
        # the backbone's own, which spares what no class token asks for
        return self.head_of(super().forward(img)[0], False)

    def forward_features(self, img: Tensor) -> Tensor:
        """(B, in_chans, H, W) to the tokens after the last norm and PE's last term, (B, T, C)."""
        return self.forward_intermediates(img, indices=1)[0]

    def forward_intermediates(self, x: Tensor, indices: int | list[int] | None = None,
                              return_prefix_tokens: bool = False, norm: bool = False,
                              stop_early: bool = False, output_fmt: str = 'NCHW',
                              intermediates_only: bool = False):
        """Maps of the layers, (B, C, h, w) each, and what `forward_features` gives.

        Args:
            x: image.
            indices: layers, counted from 0; a number for so many last ones, None for all.
            return_prefix_tokens: pairs of map and prefix tokens, where there are some.
            norm: the last norm over every map, with PE's last term at the last layer.
            stop_early: no layer after the last one that is asked for; with
                ``intermediates_only``.
            output_fmt: 'NCHW', 'NHWC' or 'NLC'.
            intermediates_only: the list of maps alone.
        """
        wanted, deepest = take_indices(len(self.blocks), indices)
        count = deepest + 1 if stop_early and intermediates_only else len(self.blocks)
        x, grid, plan = self.embed(x)
        outputs, maps = [], []
        for layer, block in zip(range(count), self.blocks):
            x = self.maybe_checkpoint(block, x, grid, **plan.layer(layer))
            outputs.append(x)
        for layer in wanted:
            y = outputs[layer]
            if norm:
                last = layer == len(self.blocks) - 1
                y = self.run_last_norm(y, plan.post_norm if last else None)
            patches = as_maps(y[:, self.num_prefix_tokens:], grid, output_fmt)
            prefix = y[:, :self.num_prefix_tokens]
            both = return_prefix_tokens and self.num_prefix_tokens
            maps.append((patches, prefix) if both else patches)
        return maps if intermediates_only else (self.last_features(outputs, plan), maps)

    def last_features(self, outputs: list[Tensor], plan) -> Tensor:
        """What `forward_features` gives, from the outputs of all layers."""
        return self.run_last_norm(outputs[-1], plan.post_norm)

    def prune_intermediate_layers(self, indices: int | list[int] = 1,
                                  prune_norm: bool = False, prune_head: bool = True) -> list[int]:
        """Takes out what these layers' maps do not need; their numbers, counted from 0."""
        wanted, deepest = take_indices(len(self.blocks), indices)
        if prune_norm or deepest < len(self.blocks) - 1:
            self.joining, self.last_pe_norm = self.joining.without_post_norm(), None
        self.blocks = self.blocks[:deepest + 1]
        self.drop_ends(prune_norm, prune_head)
        return wanted

    def drop_ends(self, norm: bool, head: bool) -> None:
        """Takes out the last norm, and what comes after it."""
        if norm:
            self.norm = None
        if head:
            self.reset_classifier(0, '')
            self.attention_pool = None
