"""Multi-scale deformable attention, which samples with mmcv's CUDA op or in PyTorch."""
from __future__ import annotations

import math
from functools import cache
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Shapes = tuple[tuple[int, int], ...]


def level_sizes(shapes: Shapes, device: torch.device) -> Tensor:
    """Returns (levels, 3) in int64: width, height and first cell of each map."""
    starts = accumulate([0, *(height * width for height, width in shapes[:-1])])
    sizes = torch.tensor([(width, height, start) for (height, width), start in zip(shapes, starts)])
    return sizes.to(device, non_blocking=True)  # the CPU does not wait for the GPU


def sample_grid(value: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
    """Samples with grid_sample, which all exporters and devices support; returns (B, Q, heads * D).

    Args:
        value: (B, sum of h * w, heads, D), level by level.
        shapes: (h, w) of each level.
        locations: (B, Q, heads, levels, points, 2): x, y relative to the map's width and height.
        weights: (B, Q, heads, levels, points), adding up to 1 over levels and points.
    """
    batch, _, heads, width = value.shape
    queries, points = locations.shape[1], locations.shape[4]
    grids = (2 * locations - 1).transpose(1, 2).flatten(0, 1)  # (B * heads, Q, levels, points, 2)
    sampled = []
    levels = value.split([height * width for height, width in shapes], dim=1)
    for level, (shape, cells) in enumerate(zip(shapes, levels)):
        cells = cells.permute(0, 2, 3, 1).reshape(batch * heads, width, *shape)
        sampled.append(F.grid_sample(cells, grids[:, :, level], mode='bilinear',
                                     padding_mode='zeros', align_corners=False))
    weights = weights.transpose(1, 2).reshape(batch * heads, 1, queries, len(shapes) * points)
    mixed = (torch.cat(sampled, dim=-1) * weights).sum(-1)  # (B * heads, D, Q)
    return mixed.reshape(batch, heads * width, queries).transpose(1, 2)


def by_bag(entries: Tensor) -> Tensor:
    """Maps (B, Q, heads, levels, points, ...) to (..., levels, points, N), see `neighbours`."""
    return entries.permute(*range(5, entries.dim()), 3, 4, 0, 1, 2).flatten(-3).contiguous()


def neighbours(shapes: Shapes, locations: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the four cells around each sample of bilinear sampling; arguments as `sample_grid`'s.

    A bag is all samples of one query in one head. The last axis is the N = B * Q * heads bags, so
    that elementwise arithmetic runs along it. CPUs vectorise comparisons badly, so there are none.

    Returns:
        rows (2 in y, 2 in x, levels, points, N), int32, in a value table (B * cells * heads, D);
        shares of the lower and higher cell (2, x and y, levels, points, N), 0 outside the map; and
        inside, shaped like shares: 1 for a cell inside the map, else 0.
    """
    batch, queries, heads = locations.shape[:3]
    sizes = level_sizes(shapes, locations.device)
    size = sizes[:, :2].t()[..., None, None]
    position = (by_bag(locations) * size).sub_(.5)
    # infinity lies beyond the border; NaN reads any row, with weight NaN
    position = torch.minimum(position.clamp_(min=-2), (size + 1).to(position))
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
    """Samples on the CPU with torch's embedding_bag: weighted sums of a table's rows.

    Arguments and result are those of `sample_grid`, all of one dtype. The backward pass recomputes
    the neighbours of each sample. There are only first derivatives.
    """

    CHUNK = 2 ** 13  # rows gathered at once in the backward pass: 1 MB with 32 channels

    @staticmethod
    def forward(ctx, value: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(value, locations, weights)
        ctx.shapes = shapes
        rows, shares, _ = neighbours(shapes, locations, value.shape[1])
        parts = (shares[:, 1] * by_bag(weights))[:, None] * shares[:, 0]
        rows, parts = (entries.flatten(0, 3).t().contiguous() for entries in (rows, parts))
        mixed = F.embedding_bag(rows, value.flatten(0, 2), mode='sum', per_sample_weights=parts)
        return mixed.reshape(*locations.shape[:2], value.shape[2] * value.shape[3])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        value, locations, weights = ctx.saved_tensors
        rows, shares, inside = neighbours(ctx.shapes, locations, value.shape[1])
        table = value.flatten(0, 2)
        grad = grad.reshape(weights.shape[:3].numel(), value.shape[3])
        weight, (x, y) = by_bag(weights), shares.unbind(1)
        value_grad = locations_grad = weights_grad = None
        if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
            products = SampleRows.products(table, rows, grad)
            # the derivative of a share by the position is -1 (lower cell) or 1
            slope_x, slope_y = torch.stack([-inside[0], inside[1]]).unbind(1)
            mixed = (products * y[:, None]).sum(0)
            steep = products.mul_(slope_y[:, None]).sum(0)
            moved = torch.stack([(mixed * slope_x).sum(0), (steep * x).sum(0)]).mul_(weight)
            moved *= level_sizes(ctx.shapes, locations.device)[:, :2].t()[..., None, None]
            back = (*weights.shape[3:], *weights.shape[:3])
            weights_grad = (mixed * x).sum(0).view(back).permute(2, 3, 4, 0, 1)
            locations_grad = moved.view(2, *back).permute(3, 4, 5, 1, 2, 0)
            del products
        if ctx.needs_input_grad[0]:
            parts = (y * weight)[:, None] * x
            value_grad = SampleRows.scatter(grad, rows, parts, len(table)).view_as(value)
        return value_grad, None, locations_grad, weights_grad

    @staticmethod
    def scatter(grad: Tensor, rows: Tensor, parts: Tensor, count: int) -> Tensor:
        """Returns the table's gradient (count, D), from the bags' (N, D) and `forward`'s rows."""
        ordered, order = rows.flatten().sort(stable=True)
        starts = torch.searchsorted(ordered, torch.arange(count, dtype=ordered.dtype,
                                                          device=ordered.device))
        parts = parts.take(order)
        return F.embedding_bag(order.remainder_(len(grad)), grad, starts, mode='sum',
                               per_sample_weights=parts)

    @staticmethod
    def products(table: Tensor, rows: Tensor, grad: Tensor) -> Tensor:
        """Returns dot products of the bags' gradients (N, D) and rows, in the shape of ``rows``."""
        shape, rows = rows.shape, rows.flatten(0, 3).t().contiguous()
        found = table.new_empty(rows.shape)
        count, each = rows.shape
        # one piece under a compiler, which would unroll the loop
        step = count if torch.compiler.is_compiling() else max(1, SampleRows.CHUNK // each)
        gathered = table.new_empty(step * each, table.shape[1])
        for first in range(0, count, step):
            part = slice(first, first + step)
            index = rows[part].flatten()
            taken = gathered[:len(index)]
            torch.index_select(table, 0, index, out=taken)
            torch.sum(taken.unflatten(0, (-1, each)).mul_(grad[part, None]), -1, out=found[part])
        return found.t().contiguous().view(shape)


def sample(value: Tensor, shapes: Shapes, locations: Tensor, weights: Tensor) -> Tensor:
    """Samples in the fastest available way; arguments and result as in `sample_grid`."""
    # tracers, such as FLOP counters, cannot look into a Python autograd function
    if torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export() or torch.jit.is_tracing():
        return sample_grid(value, shapes, locations, weights)
    if value.device.type == 'cpu':
        return SampleRows.apply(value, shapes, locations, weights)
    # mmcv's op takes float32, refuses an empty batch, and compilers cannot look into it
    usable = (value.is_cuda and value.dtype == torch.float32 and len(value)
              and not torch.compiler.is_compiling())
    op = mmcv_cuda_op() if usable else None
    if op is None:
        return sample_grid(value, shapes, locations, weights)
    width, height, start = level_sizes(shapes, value.device).unbind(1)
    # the op's step must divide the batch size: take the batch size itself
    return op.apply(value.contiguous(), torch.stack([height, width], dim=1), start.contiguous(),
                    locations.contiguous(), weights.contiguous(), len(value))


@cache
def mmcv_cuda_op() -> type[torch.autograd.Function] | None:
    """mmcv's deformable attention; None unless it was compiled for CUDA.

    CPU builds and `lape_mm.mmcv_ext` have the function too, but not its CUDA version.
    """
    try:
        from mmcv.ops import get_compiling_cuda_version
        from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction
    except (ImportError, OSError):  # no mmcv, mmcv without ops, or ops built for another torch
        return None
    if get_compiling_cuda_version() == 'not available':
        return None
    return MultiScaleDeformableAttnFunction


def reference_points(shapes: Shapes, device: torch.device) -> Tensor:
    """Returns the centres (x, y) of all cells, relative to the map's width and height.

    They are (1, sum of h * w, 1, 2) in float32, by level, then by row.
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
    ``levels`` maps. Together, the heads' values have ``ratio * C`` channels.
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
        """Queries (B, Q, C) attend to maps around their reference points; returns (B, Q, C).

        ``points`` (1, Q, 1, 2) are `reference_points`. ``cells`` (B, sum of h * w, C) are the maps,
        level by level; ``shapes`` gives their sizes.
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
