"""What all transformers of this package share: position embedding, a joining, and its plan."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lape_mm.position import Delivery, Joining, build_joining, position_table, resize_table
from lape_mm.position.embedding import RESIZE_MODES
from lape_mm.position.joining import EveryLayer
from lape_mm.registry import WEIGHT_INITIALIZERS

from .checks import check_images, check_like, check_positive, check_rate, is_count
from .hub import HubBackbone


def resolve_arch(arch: str | Mapping, known: Mapping[str, Mapping], details: Mapping,
                 needed: Sequence[str] = ('embed_dim', 'depth', 'num_heads')) -> dict:
    """A named or written-out architecture as a full dict.

    Args:
        arch: a name of ``known``, or a dict of the sizes.
        known: name -> sizes.
        details: sizes that a dict may leave out, with their defaults.
        needed: sizes that a dict must have.

    Raises:
        ValueError: names the unknown name or key, the missing key, what is no size, or heads that
            do not divide C.
    """
    if not isinstance(arch, Mapping):
        if not isinstance(arch, str) or arch not in known:
            raise ValueError(f'arch={arch!r}: expected one of {sorted(known)} or a dict')
        return {**details, **known[arch]}
    unknown = sorted(set(arch) - set(needed) - set(details))
    missing = [key for key in needed if key not in arch]
    if unknown or missing:
        what = (f'arch.{unknown[0]}={arch[unknown[0]]!r} is unknown' if unknown else
                f'arch lacks {missing[0]!r}')
        raise ValueError(f'{what}: expected a dict of {list(needed)} and, if need be, '
                         f'{list(details)}')
    stagewise = {'depths', 'num_heads'} if 'depths' in needed else set()
    for key, value in arch.items():
        for size in value if key in stagewise and isinstance(value, (list, tuple)) else [value]:
            check_like(f'arch.{key}', size, details.get(key, 1))
    heads = arch['num_heads'] if isinstance(arch['num_heads'], Sequence) else [arch['num_heads']]
    for stage, count in enumerate(heads):
        if (dim := arch['embed_dim'] * 2 ** stage) % count:
            raise ValueError(f'arch: embed_dim={dim} does not divide by num_heads={count}')
    return {**details, **arch}


def check_out_indices(out_indices: Sequence[int] | None, count: int, what: str) \
        -> tuple[int, ...]:
    """Numbers of layers or stages, counted from 0; none for None.

    Raises:
        ValueError: unless they rise and end with the last one, without whose map parameters would
            be left without a gradient.
    """
    if out_indices is None:
        return ()
    given = out_indices if isinstance(out_indices, Sequence) else ()
    chosen = tuple(index + count if index < 0 else index
                   for index in given if is_count(index, -count))
    if len(chosen) < len(given) or chosen[-1:] != (count - 1,) \
            or list(chosen) != sorted(set(chosen)):
        raise ValueError(f'out_indices={out_indices!r}: expected rising {what} of '
                         f'0..{count - 1} that end with the last one')
    return chosen


class Encoder(HubBackbone):
    """Holds the PE tables and turns them into the plan that its layers carry out.

    A subclass makes the layers, each of which registers its norm of PE as ``pe_norm``, and lists
    them as `layers_in_order`.

    Of mmengine's BaseModule it has what the toolboxes ask a backbone for, ``init_cfg`` and
    `init_weights`; to import that class costs more than all of this package does.

    Args:
        in_channels: of the images.
        patch: side, in pixels, of what becomes a token; no image may be smaller.
        grid: (h, w) in tokens that the PE tables cover.
        dims: channels of each layer, L entries.
        joining, class_token: see `lape_mm.position.build_joining`.
        position: a kind of PE table, see `lape_mm.position.position_table`; None for no table.
        more_tokens: prefix tokens beside the class token.
        position_std: standard deviation of a learnable PE at first.
        interpolation: how PE is resized, 'bicubic' or 'bilinear'.
        norm_eps: of every LayerNorm.
        last_norm: whether a LayerNorm follows the last layer; None where the joining needs it.
        drop_path_rate: rises linearly from 0 in the first layer to this in the last.
        with_cp: gradient checkpointing.
        frozen: the transformer takes no gradient and stays in evaluation mode.
        init_cfg: None, or ``dict(checkpoint=PATH_OR_URL)`` with the further arguments of
            `lape_mm.checkpoints.load_backbone`.
    """

    if TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            """torch's says ``Tensor | Module``, which has the attributes of neither."""

    def __init__(self, *, in_channels: int, patch: int, grid: tuple[int, int], dims: Sequence[int],
                 joining: str | Mapping | Joining | EveryLayer, class_token: bool | None = False,
                 position: str | None = 'learnable', more_tokens: int = 0,
                 position_std: float = .02, interpolation: str = 'bicubic',
                 norm_eps: float = 1e-6, last_norm: bool | None = True,
                 drop_path_rate: float = 0., with_cp: bool = False, frozen: bool = False,
                 init_cfg: dict | None = None):
        super().__init__()
        self.init_cfg = deepcopy(init_cfg)
        if interpolation not in RESIZE_MODES:
            raise ValueError(f'interpolation={interpolation!r}: expected one of {RESIZE_MODES}')
        check_rate('drop_path_rate', drop_path_rate)
        check_positive('norm_eps', norm_eps)
        self.in_channels, self.patch = in_channels, patch
        self.depth, self.embed_dim, self.grid = len(dims), dims[0], grid
        self.joining, self.has_class_token = build_joining(joining, depth=self.depth,
                                                           class_token=class_token)
        if last_norm is None:
            last_norm = self.joining.last is not None
        if not last_norm:
            self.joining = self.joining.without_last()
        self.interpolation, self.with_cp, self.frozen = interpolation, with_cp, frozen
        self.drop_path_rates = [drop_path_rate * layer / max(self.depth - 1, 1)
                                for layer in range(self.depth)]
        self.prefix = int(self.has_class_token) + more_tokens  # slots of the tables

        count = self.joining.tables(self.depth) if position else 0
        if count > 1 and position != 'learnable':
            raise ValueError(f'position={position!r}: a table for each layer (unshare) has to be '
                             "learned, expected 'learnable'")
        self.table_names = (['pos_embed'] if count == 1 else
                            [f'pos_embed{layer}' for layer in range(count)])
        for name in self.table_names:
            self.register_parameter(name, position_table(
                position or '', grid=self.grid, dim=self.embed_dim, prefix=self.prefix,
                std=position_std))
        # for the layers to register, see above
        self._pe_norms: list[nn.Module | None]
        self.last_pe_norm: nn.Module | None
        self._pe_norms, self.last_pe_norm = self.joining.norms(dims=dims, eps=norm_eps)
        self.norm = nn.LayerNorm(dims[-1], eps=norm_eps) if last_norm else None
        # see lape_mm.backbones.folding
        self.folded: Any = None
        self.pooled_final: Tensor | None
        self.register_buffer('pooled_final', None)

    def layers_in_order(self) -> Sequence[Any]:
        """The L layers, each with its ``pe_norm``."""
        raise NotImplementedError

    def vit_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters of the transformer alone, as a classification model has it."""
        return self.named_parameters()

    def tables(self, grid: tuple[int, int]) -> list[Tensor]:
        """The PE tables over a grid of (h, w) tokens, (1, P + h * w, C) each."""
        return [resize_table(getattr(self, name), old=self.grid, new=grid, prefix=self.prefix,
                             mode=self.interpolation) for name in self.table_names]

    def grid_of(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """The grid (h, w) of the first layer's tokens for an image of (h, w) pixels."""
        raise NotImplementedError

    def check_images(self, images: Tensor) -> None:
        """Raises ValueError for what `forward` would not, or not rightly, encode."""
        check_images(images, channels=self.in_channels, patch=self.patch)

    def delivery(self, grid: tuple[int, int]) -> Delivery:
        """The joining's plan for a grid of (h, w) tokens; PE is resized before it is normalised.

        It is made anew in every forward, so that no change of a weight can leave it stale, unless
        the model is folded.
        """
        return self.make_delivery(grid) if self.folded is None else self.folded(grid)

    def make_delivery(self, grid: tuple[int, int]) -> Delivery:
        """The plan from the weights, see `delivery`."""
        return self.joining.plan(self.tables(grid),
                                 [layer.pe_norm for layer in self.layers_in_order()],
                                 self.last_pe_norm)

    def run_segment(self, segment: Callable, *args):
        """``segment(*args)``; under ``with_cp`` its activations are not kept but made twice."""
        if self.with_cp and torch.is_grad_enabled():
            return checkpoint(segment, *args, use_reentrant=False)
        return segment(*args)

    def normed(self, x: Tensor) -> Tensor:
        """(..., C) through the last LayerNorm, where there is one."""
        return x if self.norm is None else self.norm(x)

    def run_last_norm(self, x: Tensor, plan: Delivery) -> Tensor:
        """(B, T, C) through the last LayerNorm and the plan's final term, where there are any."""
        x = self.normed(x)
        return x if plan.final is None else x + plan.final

    def forget_relative(self) -> None:
        """Called by folding: drops the tables of a relative bias that the plan has delivered."""

    def pool_final(self, final: Tensor) -> Tensor | None:
        """What the final term, (1, T, C), adds to a pooled vector, (1, C); None if that varies."""
        return None

    def add_pooled(self, x: Tensor) -> Tensor:
        """(B, C) with the final term, where folding has pooled it."""
        return x if self.pooled_final is None else x + self.pooled_final

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
        """Called last by a subclass: with ``frozen`` no parameter so far takes a gradient."""
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
