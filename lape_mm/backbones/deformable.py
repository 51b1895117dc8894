"""Multi-scale deformable attention: mmcv's op where it runs, pure PyTorch everywhere else."""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shapes = Sequence[tuple[int, int]]


def reference_points(shapes: Shapes, device: torch.device) -> Tensor:
    """The centres of all cells of some maps, level by level and row by row.

    Returns:
        (1, sum of h * w, 1, 2), float32: x and y as shares of the map's width and height.
    """
    points = []
    for height, width in shapes:
        y, x = torch.meshgrid(
            (torch.arange(height, device=device) + .5) / height,
            (torch.arange(width, device=device) + .5) / width, indexing='ij')
        points.append(torch.stack([x, y], dim=-1).flatten(0, 1))
    return torch.cat(points)[None, :, None]


def sample_pytorch(value: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
    """Deformable attention's sampling with grid_sample alone.

    Args:
        value: (B, sum of h * w, heads, D), level by level.
        shapes: (h, w) of each level.
        locations: (B, Q, heads, levels, points, 2): x, y as shares of the map's width and height.
        weights: (B, Q, heads, levels, points), adding up to 1 over levels and points.

    Returns:
        (B, Q, heads * D).
    """
    batch, _, heads, _ = value.shape
    queries, points = locations.shape[1], locations.shape[4]
    grids = (2 * locations - 1).transpose(1, 2).flatten(0, 1)  # (B * heads, Q, levels, points, 2)
    sampled = []
    levels = value.split([height * width for height, width in shapes], dim=1)
    for level, ((height, width), cells) in enumerate(zip(shapes, levels)):
        cells = cells.permute(0, 2, 3, 1).reshape(batch * heads, -1, height, width)
        sampled.append(F.grid_sample(cells, grids[:, :, level], mode='bilinear',
                                     padding_mode='zeros', align_corners=False))
    weights = weights.transpose(1, 2).reshape(batch * heads, 1, queries, len(shapes) * points)
    mixed = (torch.cat(sampled, dim=-1) * weights).sum(-1)  # (B * heads, D, Q)
    return mixed.reshape(batch, -1, queries).transpose(1, 2)


def sample(value: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
    """`sample_pytorch`, through mmcv's CUDA op where it is built and the values are float32."""
    op = _mmcv_op() if value.is_cuda and value.dtype == torch.float32 else None
    if op is None:
        return sample_pytorch(value, shapes, locations, weights)
    sizes = torch.as_tensor(shapes, device=value.device)
    starts = torch.cat([sizes.new_zeros(1), sizes.prod(1).cumsum(0)[:-1]])
    # its step must divide the batch, hence the batch itself
    return op.apply(value.contiguous(), sizes, starts, locations.contiguous(),
                    weights.contiguous(), len(value))


def _mmcv_op():
    try:
        from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction
    except (ImportError, OSError):  # no mmcv, mmcv without ops, or ops built for another torch
        return None
    return MultiScaleDeformableAttnFunction


class DeformableAttention(nn.Module):
    """Multi-scale deformable attention (Deformable DETR), as ViT-Adapter uses it.

    Sampling locations and weights are kept in float32 whatever autocast says. Unlike mmcv's
    module of a similar name it neither drops out nor adds the query.

    Args:
        dim: channels C.
        num_heads: heads.
        levels: number of maps that are sampled.
        points: samples a head takes of each map.
        ratio: channels of the values, as a share of C.
    """

    def __init__(self, *, dim: int, num_heads: int, levels: int, points: int, ratio: float = 1.):
        super().__init__()
        inner = int(dim * ratio)
        if inner % num_heads:
            raise ValueError(f'deform_num_heads={num_heads} does not divide the {inner} channels '
                             f'of the values (embed_dim={dim}, deform_ratio={ratio})')
        self.num_heads, self.levels, self.points = num_heads, levels, points
        self.sampling_offsets = nn.Linear(dim, num_heads * levels * points * 2)
        self.attention_weights = nn.Linear(dim, num_heads * levels * points)
        self.value_proj = nn.Linear(dim, inner)
        self.output_proj = nn.Linear(inner, dim)

    def init_weights(self) -> None:
        """Each head looks in a direction of its own, its points farther and farther away."""
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

    def forward(self, query: Tensor, points: Tensor, maps: Tensor, shapes: Shapes) -> Tensor:
        """Queries look at maps around their reference points.

        Args:
            query: (B, Q, C).
            points: (1, Q, 1, 2), see `reference_points`.
            maps: (B, sum of h * w, C), level by level.
            shapes: (h, w) of each level.

        Returns:
            (B, Q, C).
        """
        split = (self.num_heads, self.levels, self.points)
        value = self.value_proj(maps).unflatten(2, (self.num_heads, -1))
        offsets = self.sampling_offsets(query).unflatten(2, (*split, 2))
        weights = self.attention_weights(query).unflatten(2, (self.num_heads, -1))
        exact = torch.promote_types(value.dtype, torch.float32)
        weights = weights.to(exact).softmax(-1).unflatten(3, split[1:])
        sizes = points.new_tensor([(width, height) for height, width in shapes])
        locations = points[:, :, None, :, None] + offsets.to(exact) / sizes[:, None]
        mixed = sample(value.to(exact), shapes, locations, weights)
        return self.output_proj(mixed.to(value.dtype))
