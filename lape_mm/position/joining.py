"""Where the position embedding (PE) enters an encoder: the one idea of both papers.

The answer never depends on the image, only on parameters and the token grid. A joining therefore
turns PE into a `Delivery`, once a forward, and every encoder only carries that plan out.

    default   stream[0] = pos                                                       eq. 1-4
    share     stream[l] = pos           for every layer l                LaPE, table 7
    unshare   stream[l] = pos_l         a table a layer                  LaPE, table 7
    lape      attention[l] = LN'_l(p)   p = pos for l = 0, then attention[l-1]      eq. 5-7
    pvg       stream[0] = pos, attention[l] = LN'_l(p) from l = 1, p = pos there;   eq. 8-10
              no class token: the tokens are averaged
    mpvg      pvg and final = LN'(pos)                                              eq. 11

Equations are those of the MPVG paper (AAAI 2025); LaPE is ICCV 2023.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from torch import Tensor, nn

from .norm import NORMS, position_norm


@dataclass(frozen=True)
class Delivery:
    """What an encoder of L layers receives; each entry (1, T, C) or None, T tokens with prefix.

    T and C are the layer's own where they change between layers (Swin).

    Attributes:
        stream: L entries; entry l is added to the residual stream before layer l.
        attention: L entries; entry l is added to the attention's pre-norm output of layer l.
        final: added after the last LayerNorm.
        bias: L entries (1, heads, T, T), entry l is added to the scaled logits of layer l; None
            where no layer has one (all but `relative`).
    """

    stream: tuple[Tensor | None, ...]
    attention: tuple[Tensor | None, ...]
    final: Tensor | None = None
    bias: tuple[Tensor, ...] | None = None


Between = Mapping[int, Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Joining:
    """LayerNorms of PE's own, layer by layer: default, LaPE, PVG, MPVG and what lies between.

    Attributes:
        add_to_input: PE is added to the tokens before layer 0.
        first_layer: the first layer whose attention receives PE: 0, 1, or None for no layer.
        hierarchical: layer l normalises what layer l - 1 received; otherwise always pos itself.
        last: what the last LayerNorm's output receives through one more norm: None for nothing,
            0 for pos itself, k >= 1 for what layer k receives.
        norm: what stands in the layers' and the last one's place of LN', a name of `NORMS` (LaPE,
            table 8).

    Tables 5 and 6 and figure 5 of the MPVG paper are values of the first four settings::

        table 5, pos_k      (True, 1, True, k)
        table 6, layer 0    (True, 0, True, 0)       figure 5a   (True, None, True, None), no
        table 6, LN'(pos)   (True, 1, False, 0)                  class token
        table 6, no x + PE  (False, 1, True, 0)      figure 5b   (True, None, True, 0)

    "LaPE (sharing PE)" of LaPE's table 7 is (False, 0, False, None), and a row of its table 8
    (False, 0, True, None, norm).
    """

    add_to_input: bool = True
    first_layer: int | None = None
    hierarchical: bool = True
    last: int | None = None
    norm: str = 'layer_norm'

    def __post_init__(self):
        for name in ('add_to_input', 'hierarchical'):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ValueError(f'joining.{name}={value!r}: expected True or False')
        if self.first_layer not in (0, 1, None) or isinstance(self.first_layer, bool):
            raise ValueError(f'joining.first_layer={self.first_layer!r}: expected 0, 1 or None')
        if self.last is not None and (isinstance(self.last, bool)
                                      or not isinstance(self.last, int) or self.last < 0):
            raise ValueError(f'joining.last={self.last!r}: expected None, 0 (the position '
                             'embedding itself) or the number of a layer')
        if self.norm not in NORMS:
            raise ValueError(f'joining.norm={self.norm!r}: expected one of '
                             f'{", ".join(map(repr, NORMS))}')
        if not self.add_to_input and self.first_layer is None and self.last is None:
            raise ValueError(f'{self}: delivers the position embedding nowhere')

    @property
    def class_token(self) -> bool:
        """Whether the papers use it with a class token: default and LaPE yes, the others GAP."""
        layerwise = self.first_layer is not None
        return self.last is None and not (self.add_to_input and layerwise)

    def without_last(self) -> Joining:
        """The same for an encoder without a last LayerNorm."""
        return replace(self, last=None)

    def check_depth(self, depth: int) -> None:
        """Raises ValueError where an encoder of that many layers cannot carry this out."""
        if self.first_layer is not None and self.first_layer >= depth:
            raise ValueError(f'joining.first_layer={self.first_layer} needs more than '
                             f'{self.first_layer} layers, got depth={depth}')
        if self.last and self.last not in self._layers(depth):
            received = list(self._layers(depth))
            raise ValueError(f'joining.last={self.last}: layer {self.last} receives no position '
                             f'embedding, expected None, 0 or one of {received}')

    def tables(self, depth: int) -> int:
        """How many PE tables an encoder of that many layers holds."""
        return 1

    def norms(self, *, dims: Sequence[int], eps: float) \
            -> tuple[list[nn.Module | None], nn.Module | None]:
        """The norms to register: one a layer (None where it receives no PE), and the last one.

        Args:
            dims: channels of each layer, L entries.
            eps: of every norm.
        """
        layers = [position_norm(self.norm, dim=dim, eps=eps)
                  if layer in self._layers(len(dims)) else None for layer, dim in enumerate(dims)]
        last = None if self.last is None else position_norm(self.norm, dim=dims[-1], eps=eps)
        return layers, last

    def plan(self, tables: Sequence[Tensor], norms: Sequence[nn.Module | None],
             last_norm: nn.Module | None = None, between: Between | None = None) -> Delivery:
        """Turns PE into the plan of one forward.

        Args:
            tables: PE over the tokens of this forward, (1, T, C) each, as many as `tables` says.
            norms: a layer's own norm or None, L entries, as `norms` made them.
            last_norm: the norm of the last term, as `norms` made it.
            between: layer -> what carries PE of the layer before to its grid and channels, where
                those change; pos itself, and what ``last`` names, go through the same functions.
        """
        raw, = tables
        stream = (raw if self.add_to_input else None,) + (None,) * (len(norms) - 1)
        # what layer 0 normalises, what goes to the last norm; None where nothing needs it later on
        chain = None if self.first_layer is None else raw
        source = raw if self.last == 0 else None
        attention = []
        for layer, norm in enumerate(norms):
            if between and layer in between:
                chain, source = (carried if carried is None else between[layer](carried)
                                 for carried in (chain, source))
            received = None if norm is None else norm(chain)
            if self.hierarchical and received is not None:
                chain = received
            if self.last and layer == self.last:
                source = received
            attention.append(received)
        return Delivery(stream, tuple(attention),
                        None if last_norm is None or source is None else last_norm(source))

    def _layers(self, depth: int) -> range:
        return range(depth if self.first_layer is None else self.first_layer, depth)


@dataclass(frozen=True)
class EveryLayer:
    """PE added to the residual stream before every layer (LaPE, table 7: shared, unshared).

    Attributes:
        own_tables: a table of its own for each layer, instead of one for all.
    """

    own_tables: bool = False
    last = None
    class_token = True

    def without_last(self) -> EveryLayer:
        """Itself: nothing is delivered there."""
        return self

    def check_depth(self, depth: int) -> None:
        """Any depth will do."""

    def tables(self, depth: int) -> int:
        return depth if self.own_tables else 1

    def norms(self, *, dims: Sequence[int], eps: float) \
            -> tuple[list[nn.Module | None], nn.Module | None]:
        return [None] * len(dims), None

    def plan(self, tables: Sequence[Tensor], norms: Sequence[nn.Module | None],
             last_norm: nn.Module | None = None, between: Between | None = None) -> Delivery:
        depth = len(norms)
        if self.own_tables:
            return Delivery(tuple(tables), (None,) * depth)
        pos, = tables
        stream = []
        for layer in range(depth):
            if between and layer in between:
                pos = between[layer](pos)
            stream.append(pos)
        return Delivery(tuple(stream), (None,) * depth)


PRESETS: dict[str, Joining | EveryLayer] = {
    'default': Joining(),
    'share': EveryLayer(),
    'unshare': EveryLayer(own_tables=True),
    'lape': Joining(add_to_input=False, first_layer=0),
    'pvg': Joining(first_layer=1),
    'mpvg': Joining(first_layer=1, last=0),
}


def build_joining(spec: str | Mapping | Joining | EveryLayer, *, depth: int,
                  class_token: bool | None = None) -> tuple[Joining | EveryLayer, bool]:
    """The joining that a user names, checked against the encoder.

    Args:
        spec: a name of `PRESETS`, a dict of `Joining`'s settings, or a joining.
        depth: number of layers L.
        class_token: whether the encoder has one; None for what the papers use.

    Returns:
        the joining, and whether there is a class token.

    Raises:
        ValueError: for an unknown name or setting, a depth that does not fit, and for the names
            pvg and mpvg with a class token. The same settings as a dict allow that, for analysis
            (figure 6a of the MPVG paper).
    """
    if depth < 1:
        raise ValueError(f'depth={depth}: expected at least one layer')
    if isinstance(spec, (Joining, EveryLayer)):
        joining = spec
    elif isinstance(spec, Mapping):
        allowed = [field.name for field in fields(Joining)]
        unknown = sorted(set(spec) - set(allowed))
        if unknown:
            raise ValueError(f'joining has no setting {unknown[0]!r}: expected {allowed}')
        joining = Joining(**spec)
    elif isinstance(spec, str) and spec in PRESETS:
        joining = PRESETS[spec]
    else:
        raise ValueError(f'joining={spec!r}: expected one of {", ".join(map(repr, PRESETS))}, or '
                         f'a dict of {[field.name for field in fields(Joining)]}')
    joining.check_depth(depth)
    if not isinstance(class_token, (bool, type(None))):
        raise ValueError(f'class_token={class_token!r}: expected True, False or None')
    if class_token is None:
        class_token = joining.class_token
    if class_token and spec in ('pvg', 'mpvg'):
        raise ValueError(f'joining={spec!r} has no class token: its tokens are averaged. Leave '
                         'class_token out, or write the settings as a dict for an analysis model')
    return joining, class_token
