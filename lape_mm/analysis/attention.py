"""Who looks where: attention weights, caught where the model mixes its values."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class AttentionProbe(TorchFunctionMode):
    """Within, sees the weights of every attention, whichever layer makes them.

    The fused kernels never hold the weights, so they are made a second time from the very queries,
    keys and mask that the kernel gets; windows, padding and biases are therefore the model's own.

    Args:
        report: called with the weights of each attention, (B, heads, queries, keys), which add up
            to 1 over the keys; B counts windows where there are some.
    """

    def __init__(self, report):
        super().__init__()
        self.report = report

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self.report(weights_of(*args, **kwargs))
        result = func(*args, **kwargs)
        if func in (F.softmax, torch.softmax, Tensor.softmax) and result.ndim == 4:
            self.report(result)  # timm's windows, unfused
        return result


def weights_of(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
               dropout_p: float = 0., is_causal: bool = False, scale: float | None = None,
               **_) -> Tensor:
    """The weights that ``F.scaled_dot_product_attention`` mixes by, with its arguments."""
    logits = query @ key.transpose(-2, -1) * (query.shape[-1] ** -.5 if scale is None else scale)
    return (logits if attn_mask is None else logits + attn_mask).softmax(dim=-1)


def mean_distance(weights: Tensor, distances: Tensor, prefix: int) -> Tensor:
    """How far each head looks: distance weighted by attention, averaged over the patches.

    As in the ViT paper (appendix D.7). Weights on prefix tokens are left out, and the others made
    to add up to 1 again.

    Args:
        weights: (B, heads, T, T).
        distances: (h * w, h * w), of patches, in pixels.
        prefix: number of prefix tokens.

    Returns:
        (heads,), in pixels.
    """
    between = weights[:, :, prefix:, prefix:]
    far = (between * distances.to(between)).sum(dim=-1)
    return (far / between.sum(dim=-1).clamp(min=1e-12)).mean(dim=(0, 2))


def look(weights: Tensor, query: int, prefix: int, grid: tuple[int, int]) -> Tensor:
    """Where one query looks, averaged over images and windows: (heads, h, w).

    Args:
        weights: (B, heads, T, T).
        query: its number among all tokens.
        prefix: number of prefix tokens.
        grid: (h, w) of the patches, or of a window.
    """
    return weights[:, :, query, prefix:].mean(dim=0).unflatten(-1, grid)
