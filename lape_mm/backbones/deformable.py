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


def by_bag(entries: Tensor) -> Tensor:
    """(B, Q, heads, levels, points, ...) to (..., levels, points, N), see `neighbours`."""
    return entries.permute(*range(5, entries.dim()), 3, 4, 0, 1, 2).flatten(-3).contiguous()


def neighbours(shapes: Shapes, locations: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """The four cells around each sample of bilinear sampling.

    A bag is what one head of one query takes. All of it has the N = B * Q * heads bags last, where
    elementwise arithmetic is quickest, and is floating point as far as it can be, since
    comparisons take ten times as long.

    Args:
        shapes, locations: see `sample_grid`.
        cells: number of cells in all levels, sum of h * w.

    Returns:
        rows of a (B * cells * heads, D) table of values, int32, (2, 2, levels, points, N), by the
        lower and higher y and the lower and higher x; and for the lower and the higher cell, x and
        y, (2, 2, levels, points, N), their shares, and 1 within the map and 0 beyond it. A share
        beyond it is 0.
    """
    batch, queries, heads = locations.shape[:3]
    sizes = level_sizes(shapes, locations.device)
    size = sizes[:, :2].t()[..., None, None]
    position = by_bag(locations).mul_(size).sub_(.5)
    low = position.nan_to_num(0).floor_()
    share = position.sub_(low)
    cell = torch.stack([low, low + 1])
    nearest = torch.minimum(cell.clamp(min=0), (size - 1).to(cell))
    inside = cell.sub_(nearest).abs_().neg_().add_(1).clamp_(min=0)
    shares = torch.stack([1 - share, share]).mul_(inside)
    width, start = (sizes[:, column, None, None].to(torch.int32) for column in (0, 2))
    x, y = nearest.to(torch.int32).unbind(1)
    image, head = (torch.arange(count, device=low.device, dtype=torch.int32)
                   for count in (batch, heads))
    bag = (image[:, None, None] * (cells * heads) + head).expand(-1, queries, -1).flatten()
    rows = (y * width + start)[:, None] + x
    return rows.mul_(heads).add_(bag), shares, inside


class SampleRows(torch.autograd.Function):
    """Bilinear sampling as weighted sums of a table's rows, torch's embedding_bag.

    Takes and gives what `sample_grid` does. Nothing is kept of the four neighbours of each sample:
    the backward pass makes them again.
    """

    CHUNK = 2 ** 13  # rows gathered at once in the backward pass: 1 MB of 32 channels

    @staticmethod
    def forward(ctx, value: Tensor, locations: Tensor, weights: Tensor, shapes: Shapes) -> Tensor:
        ctx.save_for_backward(value, locations, weights)
        ctx.shapes = shapes
        rows, shares, _ = neighbours(shapes, locations, value.shape[1])
        parts = (shares[:, 1] * by_bag(weights))[:, None] * shares[:, 0]
        rows, parts = (entries.flatten(0, 3).t().contiguous() for entries in (rows, parts))
        mixed = F.embedding_bag(rows, value.reshape(-1, value.shape[3]), mode='sum',
                                per_sample_weights=parts)
        return mixed.reshape(*locations.shape[:2], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        value, locations, weights = ctx.saved_tensors
        rows, shares, inside = neighbours(ctx.shapes, locations, value.shape[1])
        table, grad = value.reshape(-1, value.shape[3]), grad.reshape(-1, value.shape[3])
        weight, (x, y) = by_bag(weights), shares.unbind(1)
        value_grad = locations_grad = weights_grad = None
        if ctx.needs_input_grad[0]:
            parts = (y * weight)[:, None] * x
            value_grad = SampleRows.spread(grad, rows, parts, len(table)).view_as(value)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            products = SampleRows.products(table, rows, grad)
            # a share changes with the position by -1 (the lower cell's) or 1
            slope_x, slope_y = torch.stack([-inside[0], inside[1]]).unbind(1)
            mixed = (products * y[:, None]).sum(0)
            steep = (products * slope_y[:, None]).sum(0)
            moved = torch.stack([(mixed * slope_x).sum(0), (steep * x).sum(0)]).mul_(weight)
            moved *= level_sizes(ctx.shapes, locations.device)[:, :2].t()[..., None, None]
            back = (*weights.shape[3:], *weights.shape[:3])
            weights_grad = (mixed * x).sum(0).view(back).permute(2, 3, 4, 0, 1)
            locations_grad = moved.view(2, *back).permute(3, 4, 5, 1, 2, 0)
        return value_grad, locations_grad, weights_grad, None

    @staticmethod
    def spread(grad: Tensor, rows: Tensor, parts: Tensor, count: int) -> Tensor:
        """The gradient of a table of ``count`` rows: the same sum the other way round."""
        ordered, order = rows.flatten().sort(stable=True)
        starts = torch.searchsorted(ordered, torch.arange(count, dtype=ordered.dtype))
        return F.embedding_bag(order % len(grad), grad, starts, mode='sum',
                               per_sample_weights=parts.take(order))

    @staticmethod
    def products(table: Tensor, rows: Tensor, grad: Tensor) -> Tensor:
        """Each bag's gradient times each row that the bag took, shaped like ``rows``."""
        shape, rows = rows.shape, rows.flatten(0, 3).t().contiguous()
        found = table.new_empty(rows.shape)
        each = rows.shape[1]
        step = max(1, SampleRows.CHUNK // each)
        gathered = table.new_empty(step * each, table.shape[1])
        for part in range(0, len(rows), step):
            part = slice(part, part + step)
            index = rows[part].flatten()
            taken = gathered[:len(index)]
            torch.index_select(table, 0, index, out=taken)
            torch.sum(taken.unflatten(0, (-1, each)).mul_(grad[part, None]), -1, out=found[part])
        return found.t().contiguous().view(shape)


def sample_rows(value: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
    """As `sample_grid`, on the CPU several times as fast and with little memory beside."""
    return SampleRows.apply(value, locations, weights, shapes)


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

    def aims(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, (B, Q, C), to offsets in cells and the weights' logits, (B, Q, ...) each."""
        return self.sampling_offsets(query), self.attention_weights(query)

    def forward(self, aims: tuple[Tensor, Tensor], points: Tensor, value: Tensor,
                shapes: Shapes) -> Tensor:
        """Queries look at maps around their reference points.

        Args:
            aims: of the queries, see `aims`.
            points: (1, Q, 1, 2), see `reference_points`.
            value: of the maps, see `values`.
            shapes: (h, w) of each level.

        Returns:
            (B, Q, C).
        """
        split = (self.num_heads, self.levels, self.points)
        exact = torch.promote_types(value.dtype, torch.float32)
        offsets, logits = (entry.to(exact) for entry in aims)
        weights = logits.unflatten(2, (self.num_heads, -1)).softmax(-1).unflatten(3, split[1:])
        sizes = level_sizes(shapes, points.device)[:, None, :2]
        locations = points[:, :, None, :, None] + offsets.unflatten(2, (*split, 2)) / sizes
        mixed = sample(value.to(exact), shapes, locations, weights)
        return self.output_proj(mixed.to(value.dtype))
