"""Multi-scale deformable attention: mmcv's op where it runs, pure PyTorch everywhere else."""
from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Shapes = tuple[tuple[int, int], ...]


def once_a_size(function: Callable[[Shapes, torch.device], Tensor]) \
        -> Callable[[Shapes, torch.device], Tensor]:
    """Keeps what a function of some maps' sizes made, for each device."""
    # what is kept has to do for training, whoever asks first
    kept = lru_cache(maxsize=32)(torch.inference_mode(False)(function))

    @wraps(function)
    def call(shapes: Shapes, device: torch.device) -> Tensor:
        # a compiler's or an exporter's stand-in for a tensor must not be kept
        return (function if torch.compiler.is_compiling() else kept)(shapes, device)
    return call


@once_a_size
def reference_points(shapes: Shapes, device: torch.device) -> Tensor:
    """The centres of all cells of some maps, level by level and row by row.

    Computed once for each size and device.

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


@once_a_size
def level_sizes(shapes: Shapes, device: torch.device) -> Tensor:
    """(levels, 3), int64: width, height and first cell of each map, once a size and device."""
    starts = accumulate((height * width for height, width in shapes[:-1]), initial=0)
    return torch.tensor([(width, height, start) for (height, width), start in zip(shapes, starts)],
                        device=device)


def sample_grid(value: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
    """Deformable attention's sampling with grid_sample alone, which exporters and all devices know.

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


def corners(shapes: Shapes, locations: Tensor, weights: Tensor, cells: int) \
        -> tuple[Tensor, Tensor]:
    """Bilinear sampling as a weighted sum of cells, four for each point.

    Args:
        shapes, locations, weights: see `sample_grid`.
        cells: number of cells in all levels, sum of h * w.

    Returns:
        rows of a (B * cells * heads, D) table of values, int32, and their weights; both
        (B * Q * heads, 4 * levels * points). Beyond the border a weight is zero.
    """
    batch, _, heads = locations.shape[:3]
    sizes = level_sizes(shapes, locations.device)
    position = locations * sizes[:, None, :2] - .5
    low = position.floor()
    share = position - low
    low = low.to(torch.int32)
    width, height, start = (sizes[:, column, None].to(torch.int32) for column in range(3))
    image = cells * torch.arange(batch, device=low.device, dtype=torch.int32)
    start = image[:, None, None, None, None] + start
    head = torch.arange(heads, device=low.device, dtype=torch.int32)[:, None, None]
    rows, parts = [], []
    for step_y, share_y in ((0, 1 - share[..., 1]), (1, share[..., 1])):
        y = low[..., 1] + step_y
        part_y = weights * share_y * ((y >= 0) & (y < height))
        y = (y.clamp(min=0).minimum(height - 1) * width).add_(start)
        for step_x, share_x in ((0, 1 - share[..., 0]), (1, share[..., 0])):
            x = low[..., 0] + step_x
            parts.append(part_y * share_x * ((x >= 0) & (x < width)))
            x = x.clamp_(min=0).minimum(width - 1).add_(y)
            rows.append(x.mul_(heads).add_(head))
    return tuple(torch.stack(entries, dim=-1).flatten(3).flatten(0, 2)
                 for entries in (rows, parts))


class WeightedRows(torch.autograd.Function):
    """Sums of a table's rows, weighted: torch's embedding_bag, with a quicker gradient.

    Takes (rows, D), and indices and weights (bags, K); gives (bags, D).
    """

    CHUNK = 2 ** 13  # rows gathered at once in the backward pass: 1 MB of 32 channels

    @staticmethod
    def forward(ctx, table: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(table, index, weight)
        return F.embedding_bag(index, table, per_sample_weights=weight, mode='sum')

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        table, index, weight = ctx.saved_tensors
        grad, each = grad.contiguous(), index.shape[1]
        table_grad = weight_grad = None
        if ctx.needs_input_grad[0]:
            # the same sum the other way round: what each row was added to, weighted
            rows, order = index.flatten().sort(stable=True)
            starts = torch.searchsorted(rows, torch.arange(len(table), dtype=rows.dtype))
            weights = weight.take(order)
            table_grad = F.embedding_bag(order.floor_divide_(each), grad, starts, mode='sum',
                                         per_sample_weights=weights)
        if ctx.needs_input_grad[2]:
            weight_grad = torch.empty_like(weight)
            step = max(1, WeightedRows.CHUNK // each)
            gathered = table.new_empty(step * each, table.shape[1])
            for part in range(0, len(index), step):
                part = slice(part, part + step)
                taken = index[part].flatten()
                rows = gathered[:len(taken)]
                torch.index_select(table, 0, taken, out=rows)
                rows = rows.unflatten(0, (-1, each)).mul_(grad[part, None])
                torch.sum(rows, -1, out=weight_grad[part])
        return table_grad, None, weight_grad


def sample_rows(value: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
    """As `sample_grid`, on the CPU several times as fast and with little memory beside."""
    batch, cells, heads, dim = value.shape
    index, weight = corners(shapes, locations, weights, cells)
    mixed = WeightedRows.apply(value.reshape(-1, dim), index, weight)
    return mixed.reshape(batch, -1, heads * dim)


def sample(value: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
    """Deformable attention's sampling by what is quickest: mmcv's CUDA op, rows, or the grid.

    mmcv's op is taken where it is built and the values are float32; see `sample_grid`.
    """
    if torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export():
        return sample_grid(value, shapes, locations, weights)
    if value.device.type == 'cpu':
        return sample_rows(value, shapes, locations, weights)
    op = _mmcv_op() if value.is_cuda and value.dtype == torch.float32 else None
    if op is None:
        return sample_grid(value, shapes, locations, weights)
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

    def values(self, maps: Tensor) -> Tensor:
        """Maps, (B, sum of h * w, C) level by level, to (B, sum of h * w, heads, D)."""
        return self.value_proj(maps).unflatten(2, (self.num_heads, -1))

    def forward(self, query: Tensor, points: Tensor, value: Tensor, shapes: Shapes) -> Tensor:
        """Queries look at maps around their reference points.

        Args:
            query: (B, Q, C).
            points: (1, Q, 1, 2), see `reference_points`.
            value: of the maps, see `values`.
            shapes: (h, w) of each level.

        Returns:
            (B, Q, C).
        """
        split = (self.num_heads, self.levels, self.points)
        offsets = self.sampling_offsets(query).unflatten(2, (*split, 2))
        weights = self.attention_weights(query).unflatten(2, (self.num_heads, -1))
        exact = torch.promote_types(value.dtype, torch.float32)
        weights = weights.to(exact).softmax(-1).unflatten(3, split[1:])
        sizes = level_sizes(shapes, points.device)[:, None, :2]
        locations = points[:, :, None, :, None] + offsets.to(exact) / sizes
        mixed = sample(value.to(exact), shapes, locations, weights)
        return self.output_proj(mixed.to(value.dtype))
