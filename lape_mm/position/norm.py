"""Norms of position embedding (PE): LayerNorm and its reduced forms."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# LaPE, table 8: name -> (normalise each token?, scale, shift?); w is the layer's PE
NORMS = {
    'identity': (False, None, False),        # w
    'scalar': (False, 'scalar', False),      # g w, one scalar per layer
    'channel': (False, 'channel', False),    # G * w, one scalar per channel
    'affine': (False, 'channel', True),      # G * w + b
    'norm': (True, None, False),             # Norm(w)
    'norm_scalar': (True, 'scalar', False),  # g Norm(w)
    'norm_channel': (True, 'channel', False),  # G * Norm(w)
    'layer_norm': (True, 'channel', True),   # G * Norm(w) + b, which is LN'(w)
}


class PositionNorm(nn.Module):
    """A norm of PE, one row of LaPE's table 8; for ``layer_norm``, `Joining` uses nn.LayerNorm."""

    def __init__(self, kind: str, *, dim: int, eps: float):
        super().__init__()
        self.normalise, scale, shift = NORMS[kind]
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.ones(1 if scale == 'scalar' else dim)) if scale else None
        self.bias = nn.Parameter(torch.zeros(dim)) if shift else None

    def forward(self, x: Tensor) -> Tensor:
        """Maps (1, T, C) to (1, T, C)."""
        if self.normalise:
            x = F.layer_norm(x, (self.dim,), eps=self.eps)
        if self.weight is not None:
            x = x * self.weight
        return x if self.bias is None else x + self.bias
