"""timm's model interface over a backbone: head, pooling, intermediate maps, parameter groups."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from timm.layers import Format, nchw_to, to_2tuple
from timm.models.vision_transformer import feature_take_indices
from torch import Tensor, nn

from lape_mm.backbones.encoder import Encoder, init_linear
from lape_mm.checkpoints.convert import parse
from lape_mm.checkpoints.files import named, read_checkpoint
from lape_mm.checkpoints.fit import check_whole
from lape_mm.checkpoints.transfer import log, match
from lape_mm.position import PositionPlan

LAST = (99999,)  # timm's number for the parameter group after all layers
Outputs = list[tuple[Tensor, tuple[int, int]]]  # tokens (B, T, C) and grid, after each layer
Groups = tuple[tuple[str, tuple[int] | None], ...]


def as_maps(tokens: Tensor, grid: Sequence[int], fmt: str) -> Tensor:
    """Converts tokens (B, h * w, C) to 'NCHW', 'NHWC', 'NCL' or 'NLC'."""
    return nchw_to(tokens.transpose(1, 2).unflatten(2, grid).contiguous(), Format(fmt))


def fit(checkpoint: Mapping, model: Encoder, prefix: str | None = None, *,
        path: str = 'a checkpoint') -> dict[str, Tensor]:
    """Returns a checkpoint's weights with the model's names and grid; logs a report.

    timm calls this for files in ``pretrained_cfg_overlay``. Raises CheckpointError as `match` does.
    """
    vit, heads, around = parse(checkpoint, prefix)
    state = {**vit, **heads}
    fitting, report = match(model, state)
    report.unused.update(dict.fromkeys(around, ''))
    log(report, model, path)
    # weights of another shape: timm adapts the first convolution, torch reports the others
    fitting.update((name, state[name]) for name, why in report.missing.items()
                   if why and name in state)
    fitting.update(heads)
    return {name: value for name, value in fitting.items() if not name.startswith('head_dist.')}


class TimmModel(Encoder):
    """timm's model interface; a subclass inherits from this first, and then from a backbone.

    Images may have any size; ``img_size`` is the size that the PE table is made for. The joining
    decides how tokens are pooled; ``global_pool=''`` turns pooling off. ``drop_rate`` is the
    dropout before the head. ``kwargs`` go to the backbone.
    """

    output_fmt = 'NLC'
    # timm's patterns for the stem, the layers and what follows them
    stem = r'^(?:cls_token|dist_token|reg_token|pos_embed\d*|patch_embed|norm_pre|rope)(?:\.|$)'
    layers_fine: Groups = ((r'^blocks\.(\d+)', None),)
    layers_coarse: Groups = layers_fine
    blocks: nn.ModuleList
    embed: Callable[[Tensor], tuple[Tensor, tuple[int, int], PositionPlan]]

    def __init__(self, *, num_classes: int = 1000, in_chans: int = 3, drop_rate: float = 0.,
                 global_pool: str | None = None, **kwargs):
        backbone: dict[str, Any] = dict(kwargs, in_channels=in_chans)
        super().__init__(**backbone)
        self.in_chans = in_chans
        width, = self.layers_in_order()[-1].attention_norm.normalized_shape
        self.num_features = self.head_hidden_size = width
        self.global_pool = self.own_pool = (
            'sequence' if getattr(self, 'attention_pool', None) is not None else
            'token' if getattr(self, 'pools_class_token', False) else 'avg')
        self.head_drop = nn.Dropout(drop_rate)
        self.head: nn.Module
        self.reset_classifier(num_classes, global_pool)
        self.feature_info = self.describe_features()

    def describe_features(self) -> list[dict]:
        return [dict(module=f'blocks.{layer}', num_chs=self.embed_dim, reduction=self.stride)
                for layer in range(self.depth)]

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Makes a new head, or none for 0 classes; ``global_pool=''`` turns pooling off."""
        if global_pool not in (None, '', self.own_pool):
            raise ValueError(f"global_pool={global_pool!r}: expected {self.own_pool!r}, the "
                             "joining's pooling, or '' for no pooling")
        self.num_classes = num_classes
        self.global_pool = self.global_pool if global_pool is None else global_pool
        some = next(self.parameters())
        self.head = nn.Linear(self.num_features, num_classes, device=some.device,
                              dtype=some.dtype) if num_classes else nn.Identity()
        init_linear(self.head)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.with_cp = enable

    def set_input_size(self, img_size: int | Sequence[int] | None = None,
                       patch_size: int | None = None) -> None:
        """Resizes the PE tables for images of (h, w) pixels, as a forward pass would.

        To save the model afterwards, pass ``model_args=dict(img_size=...)`` to timm's
        ``save_for_hf``. A folded model and a relative bias refuse another size.
        """
        if patch_size is not None:
            raise ValueError('patch_size cannot be changed: build the model with another one')
        if img_size is None:
            return
        grid = self.grid_of(to_2tuple(img_size))
        with torch.no_grad():
            self.plan(grid)  # refuses a grid that PE cannot be resized to
            tables = self.tables(grid)
        for name, table in zip(self.table_names, tables):
            getattr(self, name).data = table.clone()
        self.grid = grid

    def group_matcher(self, coarse: bool = False) -> dict:
        """Returns patterns of parameter names, by depth, for layer-wise learning rates."""
        layers = self.layers_coarse if coarse else self.layers_fine
        return dict(stem=self.stem, blocks=[*layers, (
            r'^(?:norm|fc_norm|last_pe_norm|lca|pos_layer_embed|attention_pool)(?:\.|$)', LAST)])

    def vit_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, parameter) for name, parameter in super().vit_parameters()
                if not name.startswith('head.'))

    def load_pretrained(self, checkpoint_path: str, prefix: str = '') -> None:
        """Loads a checkpoint of any layout this package reads; runs no code in it.

        PE is resized to the model's grid. Raises CheckpointError unless the file has all weights;
        `lape_mm.checkpoints.load_backbone` also loads a part, such as a DeiT without norms of PE.
        """
        with named(checkpoint_path):
            fitting = fit(read_checkpoint(checkpoint_path), self, prefix or None,
                          path=str(checkpoint_path))
            check_whole(self.state_dict(), fitting)
            self.load_state_dict(fitting)

    def pool_features(self, x: Tensor) -> Tensor:
        return self.pool(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Maps `forward_features`' output to (B, num_classes), or to (B, C) with ``pre_logits``."""
        pooled = self.head_drop(self.pool_features(x) if self.global_pool else x)
        return pooled if pre_logits else self.head(pooled)

    def forward(self, img: Tensor) -> Any:
        """Maps (B, in_chans, H, W) to (B, num_classes); without pooling, scores every token."""
        if not self.global_pool:
            return self.forward_head(self.forward_features(img))
        # cheaper: where the class token is pooled, the last layer computes only prefix tokens
        return self.head(self.head_drop(super().forward(img)[0]))

    def forward_features(self, img: Tensor) -> Tensor:
        """Maps (B, in_chans, H, W) to tokens (B, T, C), after the last norm and ``post_norm``."""
        return self.forward_intermediates(img, indices=1)[0]

    def forward_intermediates(self, x: Tensor, indices: int | list[int] | None = None,
                              return_prefix_tokens: bool = False, norm: bool = False,
                              stop_early: bool = False, output_fmt: str = 'NCHW',
                              intermediates_only: bool = False):
        """Returns `forward_features`' output and maps of chosen layers or stages, as in timm.

        ``norm`` applies the last norm to every map (in Swin only to
        the last stage's), and adds ``post_norm`` to the last layer's map.
        """
        wanted, deepest = feature_take_indices(len(self.feature_info), indices)
        last = len(self.feature_info) - 1
        outputs, plan = self.run_layers(
            x, deepest + 1 if stop_early and intermediates_only else last + 1)
        maps = []
        for layer in wanted:
            y, grid = outputs[layer]
            if norm and y.shape[2] == self.num_features:
                y = self.run_last_norm(y, plan.post_norm if layer == last else None)
            patches = as_maps(y[:, self.num_prefix_tokens:], grid, output_fmt)
            both = return_prefix_tokens and self.num_prefix_tokens
            maps.append((patches, y[:, :self.num_prefix_tokens]) if both else patches)
        return maps if intermediates_only else (self.last_features(outputs, plan), maps)

    def run_layers(self, img: Tensor, count: int) -> tuple[Outputs, PositionPlan]:
        """Returns the outputs of the first ``count`` layers (Swin: stages), and the plan."""
        x, grid, plan = self.embed(img)
        outputs = []
        for layer, block in zip(range(count), self.blocks):
            x = self.maybe_checkpoint(block, x, grid, **plan.layer(layer))
            outputs.append((x, grid))
        return outputs, plan

    def last_features(self, outputs: Outputs, plan: PositionPlan) -> Tensor:
        """The output of `forward_features`, from the outputs of all layers."""
        return self.run_last_norm(outputs[-1][0], plan.post_norm)

    def prune_intermediate_layers(self, indices: int | list[int] = 1,
                                  prune_norm: bool = False, prune_head: bool = True) -> list[int]:
        """Removes the layers after the deepest chosen one; returns the chosen layers."""
        wanted, deepest = feature_take_indices(len(self.feature_info), indices)
        last_goes = deepest < len(self.feature_info) - 1
        self.keep_layers(deepest + 1)
        self.feature_info = self.feature_info[:deepest + 1]
        if prune_norm or last_goes:  # no place is left for post_norm
            self.joining, self.last_pe_norm = self.joining.without_post_norm(), None
        if prune_norm:
            self.norm = None
        if prune_head:
            self.reset_classifier(0, '')
            for name in {'attention_pool', 'fc_norm', 'lca', 'pos_layer_embed'} & {*dir(self)}:
                setattr(self, name, None)
        return wanted

    def keep_layers(self, count: int) -> None:
        self.blocks = self.blocks[:count]
