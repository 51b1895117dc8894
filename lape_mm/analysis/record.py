"""Records with forward hooks what a model does with images, layer by layer."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from lape_mm.backbones.encoder import Encoder

from .attention import AttentionProbe, mean_distance
from .measures import center, distances
from .pe_per_layer import find_encoder, post_norm, to_array

Track = Callable[[list], Iterable]


@dataclass
class LastNorm:
    """Input and output of the last LayerNorm.

    Attributes:
        before, after: (B, T, C), its input and output; T is 1 if it sees one vector an image
            (CeiT).
        post_norm: (T, C), the PE added to its output (MPVG), or None.
        gamma, beta: (C,), its scale and shift.
        grid: (h, w) in tokens; None for one vector.
        num_prefix_tokens: P; T = P + h * w, or P is 0.
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
        """(B, T, C), its output with PE."""
        return self.after if self.post_norm is None else self.after + self.post_norm

    def patches(self, name: str) -> np.ndarray:
        """An attribute over the tokens, without prefix tokens."""
        return getattr(self, name)[..., self.num_prefix_tokens:, :]


@dataclass
class Record:
    """Means over B images; lists have one entry a layer.

    Attributes:
        tokens: (T, C), the tokens after the attention's pre-norm, without PE.
        grids: (h, w) in tokens.
        num_prefix_tokens: P; T = P + h * w.
        class_token: whether the first token is a class token.
        last: None if no LayerNorm follows the last layer.
        attention_distance: (heads,), in pixels.
        attention_maps: (heads, h, w), attention of the class token, or else of the middle patch;
            with windows, of the middle of every window, whose size is (h, w).
        table: (h * w, C), the first PE table, resized to the images, or None.
        feature_maps: one entry a level, not a layer: (B, h, w), L2 norms over the channels of the
            maps that the backbone returns; empty for classifiers.
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


class Watch:
    """Hooks that record the forward pass of one image.

    A classifier computes only the class token in its last layer. `leaving` runs that layer again
    for all tokens, and leaves the classifier's own result as it is.

    Args:
        encoder: the backbone.
        pixels: (h, w) of the image.
    """

    def __init__(self, encoder: Encoder, pixels: Sequence[int]):
        self.encoder, self.pixels = encoder, pixels
        self.num_prefix_tokens = encoder.num_prefix_tokens
        self.class_token = getattr(encoder, 'cls_token', None) is not None
        self.layer: int | None = None
        self.window: Any = None
        # by layer
        self.grids: dict[int, tuple[int, int]] = {}
        self.tokens: dict[int, Tensor] = {}
        self.distance: dict[int, Tensor] = {}
        self.maps: dict[int, Tensor] = {}
        self.before: Tensor | None = None
        self.after: Tensor | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Context in which a forward pass is recorded."""
        with ExitStack() as stack:
            def keep(handle) -> None:
                stack.callback(handle.remove)
            for layer, module in enumerate(self.encoder.layers_in_order()):
                keep(module.register_forward_pre_hook(partial(self.entering, layer)))
                keep(module.register_forward_hook(self.leaving, with_kwargs=True))
                keep(module.attention_norm.register_forward_hook(partial(self.normed, layer)))
            if self.encoder.norm is not None:
                keep(self.encoder.norm.register_forward_hook(self.last_normed))
            stack.enter_context(AttentionProbe(self.attended))
            yield

    def entering(self, layer: int, module: Any, args) -> None:
        self.layer = layer
        attention = module.attn if hasattr(module, 'attn') else module.self_attn
        self.window = attention.window_size  # None for global attention
        # Swin's tokens are a map; other encoders pass the grid
        height, width = args[0].shape[1:3] if args[0].ndim == 4 else args[1]
        self.grids[layer] = height, width

    def leaving(self, module: nn.Module, args, kwargs, output: Tensor) -> None:
        if kwargs.get('num_queries') is not None:
            self.before = module.forward(*args, **{**kwargs, 'num_queries': None})
        self.layer = None

    def normed(self, layer: int, module: nn.Module, args, output: Tensor) -> None:
        self.tokens[layer] = output.flatten(1, -2)[0]

    def last_normed(self, module: nn.LayerNorm, args, output: Tensor) -> None:
        if self.before is None:
            self.before, self.after = args[0], output
        else:
            self.after = module.forward(self.before)

    def attended(self, weights: Tensor) -> None:
        # not attention in the stem, CeiT's over layers, or the class token's alone
        if self.layer is None or weights.shape[2] != weights.shape[3]:
            return
        layer, grid, prefix = self.layer, self.grids[self.layer], self.num_prefix_tokens
        pitch = self.pixels[0] / grid[0], self.pixels[1] / grid[1]
        if self.window is not None:
            grid = to_2tuple(self.window)
        table = torch.from_numpy(distances(grid, pitch))
        query = 0 if self.class_token else prefix + center(grid)
        self.distance[layer] = mean_distance(weights, table, prefix)
        self.maps[layer] = weights[:, :, query, prefix:].mean(dim=0).unflatten(-1, grid)


@torch.no_grad()
def record(model: nn.Module, images: Iterable[Tensor], track: Track = iter) -> Record:
    """Runs the backbone of a model on images, one at a time, in evaluation mode.

    Args:
        model: a backbone of this package, or a model around one.
        images: (3, H, W) each, of one size, normalised.
        track: yields the images and may show progress.

    Raises:
        ValueError: no images, images of several sizes, or see `pe_per_layer.find_encoder`.
    """
    encoder, seen = find_encoder(model), []
    images = list(images)
    sizes = {tuple(image.shape[-2:]) for image in images}
    if len(sizes) != 1:
        raise ValueError(f'expected images of one size, got {sorted(sizes) or "none"}')
    pixels, = sizes
    training = {module for module in encoder.modules() if module.training}
    encoder.eval()
    try:
        for image in track(images):
            watch = Watch(encoder, pixels)
            with watch.installed():
                outputs = encoder(image[None])
            seen.append((watch, [to_array(level[0].norm(dim=0)) for level in outputs
                                 if isinstance(level, Tensor) and level.ndim == 4]))
    finally:
        for module in training:
            module.training = True
    watches, maps = zip(*seen)
    first, grid = watches[0], encoder.grid_of(pixels)

    def mean(name: str) -> list[np.ndarray]:
        return [np.mean([to_array(getattr(watch, name)[layer]) for watch in watches], axis=0)
                for layer in range(encoder.depth)]
    return Record(
        tokens=mean('tokens'), num_prefix_tokens=first.num_prefix_tokens,
        grids=[first.grids[layer] for layer in range(encoder.depth)],
        class_token=first.class_token, last=last_norm(encoder, watches, grid),
        attention_distance=mean('distance'), attention_maps=mean('maps'),
        table=to_array(encoder.tables(grid)[0][0])[first.num_prefix_tokens:]
        if encoder.table_names else None,
        feature_maps=[np.stack(levels) for levels in zip(*maps)])


def last_norm(encoder: Encoder, watches: Sequence[Watch], grid: tuple[int, int]) -> LastNorm | None:
    """What the watches recorded at the last LayerNorm, or None without one."""
    if encoder.norm is None:
        return None
    before, after = (np.stack([to_array(getattr(watch, name)[0]) for watch in watches])
                     for name in ('before', 'after'))
    tokens = before.ndim == 3
    if not tokens:
        before, after = before[:, None], after[:, None]
    return LastNorm(before, after, post_norm(encoder, grid, pooled=not tokens),
                    to_array(encoder.norm.weight), to_array(encoder.norm.bias),
                    watches[0].grids[encoder.depth - 1] if tokens else None,
                    encoder.num_prefix_tokens if tokens else 0)
