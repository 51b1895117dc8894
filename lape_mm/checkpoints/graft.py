"""Grafting: adds PE norms to pre-trained weights so that the model starts as the same function.

- Every PE norm that the file lacks starts with gain and bias zero, so it adds nothing.
- A PE table that the file lacks beside RoPE starts at zero where the joining adds it to the
  tokens, and random elsewhere.

Why zero, and why the chain ``p_l = LN'_l(p_{l-1})`` still learns: the first step moves all biases,
and the gains of the norms whose input is the table. From the second step on no norm's input is
zero, so its gain moves too; after L steps the last layer's PE depends on the position. Gains of
one over an input of zero would be exact as well, but the derivative of a LayerNorm at zero is
eps ** -0.5 = 1000, or 1e33 through eleven layers. The first step would then add full-size PE to
weights that never saw it.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .files import CheckpointError

TABLE = re.compile(r'pos_embed\d*')
# norms of PE; a file of another joining may have more of them
PE_NORM = re.compile(r'(.*\.)?(last_)?pe_norm\..*')


def grafted(model: Any, state: Mapping[str, Tensor], absent: Sequence[str]) -> dict[str, Tensor]:
    """Initial values of the parts of PE that a file lacks, by name.

    LaPE takes PE out of the tokens, so it is rejected for a file that has it there. The nearest
    joining that can be grafted is ``dict(first_layer=0)``. ``state`` has the file's weights under
    our names, ``absent`` the names of those that it lacks.
    """
    rotary = getattr(model, 'rope', None) is not None
    lost = [name for name in absent
            if PE_NORM.fullmatch(name) or rotary and TABLE.fullmatch(name)]
    norms = [*(layer.pe_norm for layer in model.layers_in_order()), model.last_pe_norm]
    fixed = any(norm is not None and getattr(norm, 'weight', None) is None for norm in norms)
    if not lost and any(map(PE_NORM.fullmatch, state)):
        return {}  # the file was trained with such a joining
    adds = [entry is not None for entry in model.make_plan(model.grid).residual]
    if any(map(TABLE.fullmatch, state)) and adds != [True] + [False] * (len(adds) - 1):
        reason = 'the file adds position embedding only to the tokens before the first layer'
    elif fixed:
        reason = 'its norms have no gain that could start at zero'
    elif any('.attn.pe_norm.' in name for name in lost):
        reason = 'it normalises a relative bias that was pre-trained without a norm'
    else:
        own = model.state_dict()
        return {name: own[name] if TABLE.fullmatch(name) and not any(adds)
                else torch.zeros_like(own[name]) for name in lost}
    raise CheckpointError(f'graft=True: {model.joining} cannot start as the pre-trained model: '
                          f"{reason}. Expected joining='pvg', 'mpvg', or a dict that keeps it "
                          'there, such as dict(first_layer=0)')
