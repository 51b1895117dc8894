"""Where the position embedding (PE) enters an encoder: the one idea of both papers.

PE never depends on the image, only on parameters and the token grid. A joining (LaPE's word)
therefore turns PE into a `PositionPlan` once per forward pass, and the encoder applies the plan.

    default   residual[0] = pos                                                     eq. 1-4
    share     residual[l] = pos          for every layer l               LaPE, table 7
    unshare   residual[l] = pos_l        one table per layer             LaPE, table 7
    lape      pre_attn[l] = LN'_l(p)     p = pos for l = 0, then pre_attn[l-1]      eq. 5-7
    pvg       residual[0] = pos, pre_attn[l] = LN'_l(p) from l = 1, where p = pos;  eq. 8-10
              no class token: the tokens are averaged
    mpvg      pvg and post_norm = LN'(pos)                                          eq. 11

With a relative bias instead of pos, default gives attn_bias[l] = bias_l and lape gives
attn_bias[l] = LN'_l(bias_l), normalised over the keys. Other joinings reject a relative bias.

Equations are those of the MPVG paper (AAAI 2025); LaPE is ICCV 2023.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch.nn.functional as F
from torch import Tensor, nn

from .norm import NORMS, PositionNorm


@dataclass(frozen=True)
class PositionPlan:
    """What an encoder of L layers adds, and where: tensors (1, T, C), or None to add nothing.

    T includes the prefix tokens. In Swin, T and C change between layers.

    Attributes:
        residual: L entries; entry l is added to the residual stream before layer l.
        pre_attn: L entries; entry l is added to the output of layer l's attention pre-norm.
        attn_bias: L entries of (1, heads, T, T); entry l is added to layer l's scaled logits.
        post_norm: added to the output of the last LayerNorm.
        rotary: L entries from `Rotary`, or an empty tuple; entry l rotates q and k of layer l. The
            encoder fills this in; joinings ignore it.
    """

    residual: tuple[Tensor | None, ...]
    pre_attn: tuple[Tensor | None, ...]
    attn_bias: tuple[Tensor | None, ...]
    post_norm: Tensor | None = None
    rotary: tuple[Tensor, ...] = ()

    def layer(self, index: int) -> dict[str, Tensor]:
        """Returns the entries of layer ``index`` as keyword arguments for its forward."""
        entries = dict(residual=self.residual[index], pre_attn=self.pre_attn[index],
                       attn_bias=self.attn_bias[index],
                       rotary=self.rotary[index] if self.rotary else None)
        return {name: entry for name, entry in entries.items() if entry is not None}


Carry = Mapping[int, Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Joining:
    """Where PE enters, and which norms it passes: default, LaPE, PVG, MPVG and variants.

    To add a joining, write a subclass with its own `plan`; for configs, add it to `PRESETS` too.

    Attributes:
        add_to_input: adds PE to the tokens before layer 0.
        first_layer: first layer whose attention receives PE: 0, 1, or None for no layer.
        hierarchical: whether layer l normalises the PE of layer l - 1; if not, it normalises pos.
        last: the PE that one more LN' normalises, to be added after the last LayerNorm: None for
            no PE, 0 for pos, or k >= 1 for layer k's.
        norm: form of LN', a key of `NORMS` (LaPE, table 8).

    The papers' ablations, as values of these settings in order::

        MPVG, table 5, pos_k        (True, 1, True, k)
        MPVG, table 6, layer 0      (True, 0, True, 0)
        MPVG, table 6, LN'(pos)     (True, 1, False, 0)
        MPVG, table 6, no x + PE    (False, 1, True, 0)
        MPVG, figure 5a             (True, None, True, None), with class_token=False
        MPVG, figure 5b             (True, None, True, 0)
        LaPE, table 7, sharing PE   (False, 0, False, None)
        LaPE, table 8               (False, 0, True, None, norm)
    """

    add_to_input: bool = True
    first_layer: int | None = None
    hierarchical: bool = True
    last: int | None = None
    norm: str = 'layer_norm'

    def __post_init__(self):
        for name, allowed in (('add_to_input', (True, False)), ('first_layer', (0, 1, None)),
                              ('hierarchical', (True, False)), ('norm', tuple(NORMS))):
            value = getattr(self, name)
            if not any(value == option and type(value) is type(option) for option in allowed):
                *others, last = map(repr, allowed)
                raise ValueError(f'joining.{name}={value!r}: expected {", ".join(others)} or '
                                 f'{last}')
        if self.last is not None and (type(self.last) is not int or self.last < 0):
            raise ValueError(f'joining.last={self.last!r}: expected None, 0 (the position '
                             'embedding itself) or a layer')
        if not self.add_to_input and self.first_layer is None and self.last is None:
            raise ValueError(f'{self}: adds the position embedding nowhere: set add_to_input, '
                             'first_layer or last')

    @property
    def class_token(self) -> bool:
        """Whether the papers give this joining a class token; if not, they average the tokens."""
        layerwise = self.first_layer is not None
        return self.last is None and not (self.add_to_input and layerwise)

    @property
    def needs_table(self) -> bool:
        """Whether the joining needs a PE table even if there is rotary PE."""
        return self.first_layer is not None or self.last is not None

    def without_post_norm(self) -> Joining:
        """Returns this joining without its last term, for an encoder that has no last LayerNorm."""
        return replace(self, last=None)

    def num_tables(self, depth: int) -> int:
        """The number of PE tables in an encoder of ``depth`` layers."""
        return 1

    def check_depth(self, depth: int) -> None:
        """Raises ValueError unless the settings suit ``depth`` layers."""
        if self.first_layer is not None and self.first_layer >= depth:
            raise ValueError(f'joining.first_layer={self.first_layer} needs more than '
                             f'{self.first_layer} layers, got depth={depth}')
        receiving = [] if self.first_layer is None else list(range(self.first_layer, depth))
        if self.last and self.last not in receiving:
            raise ValueError(f'joining.last={self.last}: layer {self.last} receives no position '
                             f'embedding, expected None, 0 or one of {receiving}')

    def pe_norm(self, layer: int | None, *, dim: int, eps: float) -> nn.Module | None:
        """Makes a layer's LN', or with ``layer=None`` that of the last term; None if unused."""
        needed = self.last is not None if layer is None else \
            self.first_layer is not None and layer >= self.first_layer
        if not needed:
            return None
        return nn.LayerNorm(dim, eps=eps) if self.norm == 'layer_norm' else \
            PositionNorm(self.norm, dim=dim, eps=eps)

    def bias_norm(self, keys: int) -> nn.LayerNorm | None:
        """Makes the norm of a layer's relative bias over its keys; None for the plain bias."""
        if self not in (PRESETS['default'], PRESETS['lape']):
            raise ValueError(f"joining={self}: position='relative' takes joining 'default' (the "
                             "plain bias) or 'lape' (through a LayerNorm)")
        # with torch's eps, as in the official code
        return nn.LayerNorm(keys) if self == PRESETS['lape'] else None

    def bias_plan(self, biases: Sequence[Tensor], norms: Sequence[nn.Module | None],
                  num_prefix_tokens: int) -> PositionPlan:
        """Makes the plan of a relative bias: one (1, heads, N, N) per layer, over the N patches.

        ``norms`` come from `bias_norm`. Rows and columns of prefix tokens stay zero.
        """
        pad = (num_prefix_tokens, 0, num_prefix_tokens, 0)
        nothing = (None,) * len(biases)
        return PositionPlan(nothing, nothing, tuple(
            F.pad(bias if norm is None else norm(bias), pad) for bias, norm in zip(biases, norms)))

    def plan(self, tables: Sequence[Tensor], pe_norms: Sequence[nn.Module | None],
             last_pe_norm: nn.Module | None = None, carry: Carry | None = None) -> PositionPlan:
        """Turns PE into the plan of one forward.

        Args:
            tables: PE tables for this forward's tokens, (1, T, C) each; `num_tables` says how many.
            pe_norms, last_pe_norm: LN' of the L layers and of the last term, made by `pe_norm`.
            carry: for each layer where grid or channels change, a function that maps the previous
                layer's PE to this layer's.
        """
        pos, = tables
        # input of the next layer's norm, and of the last norm; None where there is no norm
        layer_input = None if self.first_layer is None else pos
        last_input = pos if self.last == 0 else None
        pre_attn = []
        for layer, norm in enumerate(pe_norms):
            if carry and layer in carry:
                layer_input, last_input = (entry if entry is None else carry[layer](entry)
                                           for entry in (layer_input, last_input))
            received = None if norm is None else norm(layer_input)
            if self.hierarchical and received is not None:
                layer_input = received
            if self.last and layer == self.last:
                last_input = received
            pre_attn.append(received)
        nothing = (None,) * len(pre_attn)
        residual = (pos if self.add_to_input else None, *nothing[1:])
        post_norm = None if last_pe_norm is None or last_input is None else last_pe_norm(last_input)
        return PositionPlan(residual, tuple(pre_attn), nothing, post_norm)


@dataclass(frozen=True)
class EveryLayer(Joining):
    """PE added to the residual stream before every layer (LaPE, table 7: shared, unshared)."""

    own_tables: bool = False  # a separate table for each layer
    needs_table = True

    def num_tables(self, depth: int) -> int:
        return depth if self.own_tables else 1

    def plan(self, tables: Sequence[Tensor], pe_norms: Sequence[nn.Module | None],
             last_pe_norm: nn.Module | None = None, carry: Carry | None = None) -> PositionPlan:
        residual = list(tables)
        for layer in range(len(residual), len(pe_norms)):
            pos = residual[-1]
            residual.append(carry[layer](pos) if carry and layer in carry else pos)
        nothing = (None,) * len(residual)
        return PositionPlan(tuple(residual), nothing, nothing)


PRESETS: dict[str, Joining] = {
    'default': Joining(),
    'share': EveryLayer(),
    'unshare': EveryLayer(own_tables=True),
    'lape': Joining(add_to_input=False, first_layer=0),
    'pvg': Joining(first_layer=1),
    'mpvg': Joining(first_layer=1, last=0),
}


def build_joining(spec: str | Mapping | Joining, *, depth: int,
                  class_token: bool | None = None) -> tuple[Joining, bool]:
    """Builds a joining and checks that it suits an encoder of ``depth`` layers.

    ``spec`` is a key of `PRESETS`, a dict of `Joining`'s settings, or a `Joining`. ``class_token``
    is None for the papers' choice. Returns the joining, and whether the model has a class token.

    Raises:
        ValueError: the name, a setting or the depth is wrong, or 'pvg' or 'mpvg' gets a class token
            (a dict of their settings may have one, as in figure 6a of the MPVG paper).
    """
    if depth < 1:
        raise ValueError(f'depth={depth}: expected at least one layer')
    allowed = [field.name for field in fields(Joining)]
    if isinstance(spec, Joining):
        joining = spec
    elif isinstance(spec, Mapping):
        if unknown := sorted(set(spec) - set(allowed)):
            raise ValueError(f'joining has no setting {unknown[0]!r}: expected {allowed}')
        joining = Joining(**spec)
    elif isinstance(spec, str) and spec in PRESETS:
        joining = PRESETS[spec]
    else:
        raise ValueError(f'joining={spec!r}: expected one of {", ".join(map(repr, PRESETS))}, or '
                         f'a dict of {allowed}')
    joining.check_depth(depth)
    if not isinstance(class_token, (bool, type(None))):
        raise ValueError(f'class_token={class_token!r}: expected True, False or None')
    if class_token is None:
        class_token = joining.class_token
    if class_token and spec in ('pvg', 'mpvg'):
        raise ValueError(f'joining={spec!r} averages the tokens and has no class token: leave '
                         'class_token out, or give the settings as a dict')
    return joining, class_token
