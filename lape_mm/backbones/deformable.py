"""Multi-scale deformable attention, as ViT-Adapter uses it."""
from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .sampling import Shapes, level_sizes, sample


def reference_points(shapes: Shapes, device: torch.device) -> Tensor:
    """The centres of all cells, by level, then by row, relative to the map's width and height.

    (1, sum of h * w, 1, 2), float32: x and y.
    """
    points = []
    for height, width in shapes:
        y, x = torch.meshgrid(
            (torch.arange(height, device=device) + .5) / height,
            (torch.arange(width, device=device) + .5) / width, indexing='ij')
        points.append(torch.stack([x, y], dim=-1).flatten(0, 1))
    return torch.cat(points)[None, :, None]


class DeformableAttention(nn.Module):
    """Multi-scale deformable attention (Deformable DETR), as ViT-Adapter uses it.

    Sampling locations and weights stay in float32 under autocast. Unlike mmcv's module, this one
    has no dropout and does not add the query. Each head samples ``points`` places in each of the
    ``levels`` maps; the values of all heads have ``ratio`` times C channels.
    """

    def __init__(self, *, dim: int, num_heads: int, levels: int, points: int, ratio: float = 1.):
        super().__init__()
        inner = int(dim * ratio)
        if inner < num_heads or inner % num_heads:
            raise ValueError(f'deform_num_heads={num_heads} does not divide the {inner} channels '
                             f'of the values (embed_dim={dim}, deform_ratio={ratio})')
        self.num_heads, self.levels, self.points = num_heads, levels, points
        self.sampling_offsets = nn.Linear(dim, num_heads * levels * points * 2)
        self.attention_weights = nn.Linear(dim, num_heads * levels * points)
        self.value_proj = nn.Linear(dim, inner)
        self.output_proj = nn.Linear(inner, dim)

    def init_weights(self) -> None:
        """Gives each head its own direction, with points at growing distances."""
        nn.init.zeros_(self.sampling_offsets.weight)
        angles = torch.arange(self.num_heads) * (2 * math.pi / self.num_heads)
        ring = torch.stack([angles.cos(), angles.sin()], dim=-1)
        ring = ring / ring.abs().amax(dim=-1, keepdim=True)
        steps = torch.arange(1, self.points + 1)
        offsets = ring[:, None, None] * steps[:, None]
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(
                offsets.expand(-1, self.levels, -1, -1).flatten())
        nn.init.zeros_(self.attention_weights.weight)
        nn.init.zeros_(self.attention_weights.bias)
        for projection in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(self, query: Tensor, points: Tensor, cells: Tensor, shapes: Shapes) -> Tensor:
        """Queries, (B, Q, C), attend to maps around their reference points; gives (B, Q, C).

        ``points`` are `reference_points`, (1, Q, 1, 2), and ``cells``, (B, sum of h * w, C), the
        maps of ``shapes`` level by level.
        """
        value = self.value_proj(cells).unflatten(2, (self.num_heads, -1))
        offsets, logits = self.sampling_offsets(query), self.attention_weights(query)
        split = (self.num_heads, self.levels, self.points)
        exact = torch.promote_types(value.dtype, torch.float32)
        offsets, logits = offsets.to(exact), logits.to(exact)
        weights = logits.unflatten(2, (self.num_heads, -1)).softmax(-1).unflatten(3, split[1:])
        sizes = level_sizes(shapes, points.device)[:, None, :2]
        locations = points[:, :, None, :, None] + offsets.unflatten(2, (*split, 2)) / sizes
        mixed = sample(value.to(exact), shapes, locations, weights)
        return self.output_proj(mixed.to(value.dtype))
