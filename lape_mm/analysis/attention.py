"""Attention weights, their mean distance and their maps."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class AttentionProbe(TorchFunctionMode):
    """Context that reports the weights of every attention.

    Fused kernels never hold the weights, so they are computed again from the queries, keys and mask
    that the kernel gets. That includes the model's own windows, padding and biases.

    Args:
        report: called with weights (B, heads, queries, keys) that sum to 1 over the keys; B counts
            windows if there are any.
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
            self.report(result)  # timm's window attention, not fused
        return result


def weights_of(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
               dropout_p: float = 0., is_causal: bool = False, scale: float | None = None,
               **_) -> Tensor:
    """The weights of ``F.scaled_dot_product_attention``, with its arguments."""
    logits = query @ key.transpose(-2, -1) * (query.shape[-1] ** -.5 if scale is None else scale)
    return (logits if attn_mask is None else logits + attn_mask).softmax(dim=-1)


def mean_distance(weights: Tensor, distances: Tensor, prefix: int) -> Tensor:
    """Distance weighted by attention, averaged over the patches (ViT, appendix D.7).

    Attention to prefix tokens is left out, and the rest normalised to sum to 1.

    Args:
        weights: (B, heads, T, T).
        distances: (h * w, h * w) between patches, in pixels.
        prefix: number of prefix tokens.

    Returns:
        (heads,), in pixels.
    """
    between = weights[:, :, prefix:, prefix:]
    far = (between * distances.to(between)).sum(dim=-1)
    return (far / between.sum(dim=-1).clamp(min=1e-12)).mean(dim=(0, 2))
