"""Records what a model does with images, layer by layer, through forward hooks."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from timm.layers import to_2tuple
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .measures import center, distances
from .pe_per_layer import find_encoder, to_array


@dataclass
class LastNorm:
    """Input and output of the last LayerNorm.

    Attributes:
        before, after: (B, T, C), its input and output; T is 1 if it sees one vector per image
            (CeiT).
        post_norm: (T, C), the PE added to its output (MPVG), or None.
        gamma, beta: (C,), its scale and shift.
        grid: (h, w) in tokens; None if T is 1.
        num_prefix_tokens: P, with T = P + h * w; 0 if T is 1.
    """

    before: np.ndarray
    after: np.ndarray
    post_norm: np.ndarray | None
    gamma: np.ndarray
    beta: np.ndarray
    grid: tuple[int, int] | None
    num_prefix_tokens: int

    @property
    def with_position(self) -> np.ndarray:
        """The output plus its PE, (B, T, C)."""
        return self.after if self.post_norm is None else self.after + self.post_norm

    def patches(self, name: str) -> np.ndarray:
        """The attribute ``name`` without its prefix tokens."""
        return getattr(self, name)[..., self.num_prefix_tokens:, :]


@dataclass
class Record:
    """Means over B images; lists have one entry per layer.

    Attributes:
        tokens: (T, C), the tokens after the attention's pre-norm, without PE.
        grids: (h, w) in tokens.
        num_prefix_tokens: P; T = P + h * w.
        class_token: whether the first token is a class token.
        last: None if no LayerNorm follows the last layer.
        attention_distance: (heads,), in pixels: distance weighted by attention, averaged over the
            patches; attention to prefix tokens is left out (ViT, appendix D.7).
        attention_maps: (heads, h, w), attention of the class token, or else of the middle patch.
            With windows, (h, w) is a window, and the maps are averaged over all windows.
        table: (h * w, C), the first PE table, resized to the images, or None.
        feature_maps: one entry per level, not per layer: (B, h, w), L2 norms over the channels of
            the maps that the backbone returns; empty for classifiers.
    """

    tokens: list[np.ndarray]
    grids: list[tuple[int, int]]
    num_prefix_tokens: int
    class_token: bool
    last: LastNorm | None
    attention_distance: list[np.ndarray]
    attention_maps: list[np.ndarray]
    table: np.ndarray | None = None
    feature_maps: list[np.ndarray] = field(default_factory=list)


class AttentionProbe(TorchFunctionMode):
    """Reports the weights of every attention (B * windows, heads, queries, keys).

    Fused kernels do not return the weights, so they are recomputed from the kernels' arguments.
    timm's window attention is not fused.
    """

    def __init__(self, report: Callable[[Tensor], None]):
        super().__init__()
        self.report = report

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            (query, key, _), mask = args, kwargs.get('attn_mask')
            logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -.5
            self.report((logits if mask is None else logits + mask).softmax(dim=-1))
        result = func(*args, **kwargs)
        if func is F.softmax and result.ndim == 4:
            self.report(result)
        return result


@torch.no_grad()
def record(model: nn.Module, images: Iterable[Tensor]) -> Record:
    """Runs a copy of a model's backbone on images, one at a time, in evaluation mode.

    Images are normalised tensors (3, H, W) of one size. ValueError if their sizes differ, or if the
    model's lape_mm backbone is missing or folded.
    """
    encoder = deepcopy(find_encoder(model)).eval()
    images = list(images)
    sizes = {tuple(image.shape[-2:]) for image in images}
    if len(sizes) != 1:
        raise ValueError(f'expected images of one size, got {sorted(sizes) or "none"}')
    pixels, = sizes
    prefix, depth = encoder.num_prefix_tokens, encoder.depth
    class_token = getattr(encoder, 'cls_token', None) is not None
    grids: list[Any] = [None] * depth
    # name, or name and layer -> one array per image
    seen: dict[Any, list[np.ndarray]] = defaultdict(list)
    layer = window = queries = None  # of the layer that is running

    def enter(index: int, module: Any, args, kwargs):
        nonlocal layer, window, queries
        layer = index
        window = (module.attn if hasattr(module, 'attn') else module.self_attn).window_size
        # Swin's tokens are a map; other encoders pass the grid
        height, width = args[0].shape[1:3] if args[0].ndim == 4 else args[1]
        grids[index] = height, width
        # compute all tokens, where a classifier's last layer would compute only the prefix
        queries = kwargs.pop('num_queries', None)
        return args, kwargs

    def leave(*_) -> None:
        nonlocal layer
        layer = None

    def normed(index: int, module: nn.Module, args, output: Tensor) -> None:
        seen['tokens', index].append(to_array(output.flatten(1, -2)[0]))

    def last_normed(module: nn.Module, args, output: Tensor) -> Tensor:
        seen['before'].append(to_array(args[0][0]))
        seen['after'].append(to_array(output[0]))
        return output[:, :queries]

    def attended(weights: Tensor) -> None:
        # skip attention in the stem, across layers (CeiT), or of prefix tokens only
        if layer is None or weights.shape[2] != weights.shape[3]:
            return
        grid = grids[layer]
        pitch = pixels[0] / grid[0], pixels[1] / grid[1]
        if window is not None:
            grid = to_2tuple(window)
        between = weights[:, :, prefix:, prefix:]
        far = (between * torch.from_numpy(distances(grid, pitch)).to(between)).sum(dim=-1)
        far = far / between.sum(dim=-1).clamp(min=1e-12)
        seen['distance', layer].append(to_array(far.mean(dim=(0, 2))))
        query = 0 if class_token else prefix + center(grid)
        mean = weights[:, :, query, prefix:].mean(dim=0)
        seen['maps', layer].append(to_array(mean.unflatten(-1, grid)))

    def means(name: str) -> list[np.ndarray]:
        return [np.mean(seen[name, index], axis=0) for index in range(depth)]

    for index, module in enumerate(encoder.layers_in_order()):
        module.register_forward_pre_hook(partial(enter, index), with_kwargs=True)
        module.register_forward_hook(leave)
        module.attention_norm.register_forward_hook(partial(normed, index))
    if encoder.norm is not None:
        encoder.norm.register_forward_hook(last_normed)
    features = []
    with AttentionProbe(attended):
        for image in images:
            features.append([to_array(level[0].norm(dim=0)) for level in encoder(image[None])
                             if isinstance(level, Tensor) and level.ndim == 4])
    grid = encoder.grid_of(pixels)
    last = None
    if encoder.norm is not None:
        before, after = np.stack(seen['before']), np.stack(seen['after'])
        pe, vector = encoder.plan(grid).post_norm, before.ndim == 2  # a vector in CeiT
        if vector:
            before, after = before[:, None], after[:, None]
        if pe is not None:
            pe = encoder.pool(pe) if vector else pe[0]
        last = LastNorm(before, after, None if pe is None else to_array(pe),
                        to_array(encoder.norm.weight), to_array(encoder.norm.bias),
                        None if vector else grids[-1], 0 if vector else prefix)
    return Record(
        tokens=means('tokens'), grids=grids, num_prefix_tokens=prefix, class_token=class_token,
        last=last, attention_distance=means('distance'), attention_maps=means('maps'),
        table=to_array(encoder.tables(grid)[0][0])[prefix:] if encoder.table_names else None,
        feature_maps=[np.stack(levels) for levels in zip(*features)])
