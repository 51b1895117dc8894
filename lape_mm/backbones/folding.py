"""Folding: for images of one size the joining's plan is a set of constants, and costs nothing.

What a layer's attention receives, ``norm1(x) + pe``, becomes ``norm1(x)`` without its bias and one
bias a position, bias + pe; what MPVG adds after the last LayerNorm is pooled beforehand, and goes
into the bias of a linear classifier. Tables and norms of PE are gone. This is the only cache of a
plan that there is.
"""
from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from lape_mm.position import Delivery

from .encoder import Encoder

Model = TypeVar('Model', bound=nn.Module)


class FoldedPlan(nn.Module):
    """A delivery's entries as buffers, for one grid of tokens.

    Args:
        plan: what to keep.
        grid: (h, w) in tokens.
    """

    def __init__(self, plan: Delivery, grid: tuple[int, int]):
        super().__init__()
        self.grid = grid
        self.depth = len(plan.stream)
        self.names: dict[str, str] = {}
        known: dict[int, str] = {}  # share delivers one tensor many times
        for name, entry in self._entries(plan):
            if id(entry) not in known:
                known[id(entry)] = name
                self.register_buffer(name, entry.detach().clone())
            self.names[name] = known[id(entry)]

    def _entries(self, plan: Delivery):
        for kind in ('stream', 'attention', 'bias'):
            for layer, entry in enumerate(getattr(plan, kind) or ()):
                if entry is not None:
                    yield f'{kind}{layer}', entry
        if plan.final is not None:
            yield 'final', plan.final

    def _entry(self, name: str) -> Tensor | None:
        return getattr(self, self.names[name]) if name in self.names else None

    def forward(self, grid: tuple[int, int]) -> Delivery:
        """The plan.

        Raises:
            ValueError: for another grid than the one that it was folded for.
        """
        if tuple(grid) != self.grid:
            raise ValueError(f'folded for {self.grid[0]} x {self.grid[1]} tokens, got '
                             f'{grid[0]} x {grid[1]}: fold the model for that image size')
        stream, attention, bias = ([self._entry(f'{kind}{layer}') for layer in range(self.depth)]
                                   for kind in ('stream', 'attention', 'bias'))
        # every layer has a bias or none
        return Delivery(tuple(stream), tuple(attention), self._entry('final'),
                        tuple(entry for entry in bias if entry is not None) or None)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        # raised here, since mmengine turns what torch collects into a warning
        if lacking := [name for name in self._buffers if prefix + name not in state_dict]:
            raise RuntimeError(f'this model is folded, and the weights are those of an unfolded '
                               f'one ({prefix}{lacking[0]} is missing): load them first, then '
                               'fold')
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


@torch.no_grad()
def fold(model: Model, img_size: int | Sequence[int]) -> Model:
    """A copy of a model, in evaluation mode, whose position embedding is constant.

    Args:
        model: a backbone of this package, or a classifier, detector or segmenter around some.
        img_size: side or (h, w), in pixels, of all images that the copy will see, as they enter
            the backbone (that is, after a data preprocessor has padded them).

    Returns:
        the copy. It refuses other sizes (ValueError), training mode and weights of an unfolded
        model (RuntimeError).

    Raises:
        ValueError: there is no backbone of ours in the model, or it is folded already.
    """
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    if not encoders:
        raise ValueError(f'fold: {type(model).__name__} has no backbone of lape_mm')
    if any(encoder.folded is not None for encoder in encoders):
        raise ValueError('fold: the model is folded already; fold the one that it came from')
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, Encoder):
            _fold_encoder(module, to_2tuple(img_size))
    for module in model.modules():
        _fold_head(module)
    return model


def _fold_encoder(encoder: Encoder, img_size: tuple[int, int]) -> None:
    grid = encoder.grid_of(img_size)
    plan = encoder.delivery(grid)
    attention = []
    for layer, pe in zip(encoder.layers_in_order(), plan.attention):
        if pe is not None:
            pe = _take_bias(layer.attention_norm, pe)
            layer.pe_norm = None
        attention.append(pe)
    final, pooled = plan.final, None
    if final is not None:
        pooled = encoder.pool_final(final)
        if pooled is not None:
            final = None
        elif encoder.norm is not None:
            final = _take_bias(encoder.norm, final)
    encoder.folded = FoldedPlan(Delivery(plan.stream, tuple(attention), final, plan.bias), grid)
    encoder.pooled_final, encoder.last_pe_norm = pooled, None
    for name in encoder.table_names:
        setattr(encoder, name, None)
    encoder.forget_relative()


def _take_bias(norm: nn.LayerNorm, pe: Tensor) -> Tensor:
    """PE with the norm's bias, which the norm loses."""
    bias = norm.bias
    norm.register_parameter('bias', None)
    return pe + bias


def _fold_head(module: nn.Module) -> None:
    """Moves the pooled final term into the bias of mmpretrain's linear head."""
    encoder, head = getattr(module, 'backbone', None), getattr(module, 'head', None)
    linear = getattr(head, 'fc', None)
    if not isinstance(encoder, Encoder) or encoder.pooled_final is None \
            or not isinstance(linear, nn.Linear) or getattr(module, 'neck', None) is not None:
        return
    term = linear.weight @ encoder.pooled_final[0]
    linear.bias = nn.Parameter(term if linear.bias is None else linear.bias + term)
    encoder.pooled_final = None
