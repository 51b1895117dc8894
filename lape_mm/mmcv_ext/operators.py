"""The operators of `mmcv._ext` that mmdet, mmseg and mmpretrain call, without compiled code.

Functions have the names and arguments of mmcv's extension: the caller allocates the results, and
the operator fills them. They take CPU and CUDA tensors in float32, and in half precision where
torchvision does. Other operators of mmcv raise NotImplementedError when called.

Source: the operators' definitions in mmcv 2.3.6, ``mmcv/ops/csrc``.
"""
# ruff: noqa: D103  mmcv documents its operators
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import NoReturn

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from mmengine.logging import print_log
from torch import Tensor

from lape_mm.requirements import build_mmcv

vision = torch.ops.torchvision

print_log(f'mmcv has no compiled operators: lape_mm provides them with torchvision '
          f'{torchvision.__version__}', logger='current')


def absent(name: str, *args, **kwargs) -> NoReturn:
    raise NotImplementedError(
        f'mmcv.ops: {name} needs compiled operators. This mmcv has none, and lape_mm does not '
        f'provide this one. To compile all of them: {build_mmcv()}')


def __getattr__(name: str):
    if name.startswith('__'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return partial(absent, name)


def fill_gradients(targets: Sequence[Tensor], grad_output: Tensor, operator: Callable[..., Tensor],
                   inputs: Sequence[Tensor]) -> None:
    """Fills ``targets`` with the gradients of ``operator(*inputs)``, by autograd."""
    inputs = [entry.detach().requires_grad_() for entry in inputs]
    with torch.enable_grad():
        output = operator(*inputs)
    for target, grad in zip(targets, torch.autograd.grad(output, inputs, grad_output)):
        target.copy_(grad)


def get_compiler_version() -> str:
    return f'none: lape_mm.mmcv_ext on torchvision {torchvision.__version__}'


def get_compiling_cuda_version() -> str:
    return 'not available'


# non-maximum suppression

def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices of the kept ``boxes`` (N, 4), by descending score.

    A box is x2 - x1 + offset wide.
    """
    order = scores.sort(descending=True).indices
    boxes = boxes[order].float()
    if offset:
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    # ranks instead of scores, since torchvision may order ties differently
    ranks = torch.arange(len(order), 0, -1, device=boxes.device, dtype=torch.float32)
    # mmcv compares in float32
    return order[vision.nms(boxes, ranks, float(np.float32(iou_threshold)))]


def softnms(boxes: Tensor, scores: Tensor, dets: Tensor, iou_threshold: float, sigma: float,
            min_score: float, method: int, offset: int) -> Tensor:
    """Soft-NMS (ICCV 2017) on the CPU: fills the first M rows of ``dets``, returns indices (M,).

    Method 0 drops overlapping boxes; 1 and 2 decay their scores, linearly or by a Gaussian.
    """
    low, high = (side.numpy().astype(np.float32) for side in boxes.split(2, dim=1))
    score = scores.numpy().astype(np.float32)  # a copy
    area = (high - low + np.float32(offset)).prod(axis=1)
    kept: list[int] = []
    rest = np.arange(len(score))
    while len(rest):
        best = rest[score[rest].argmax()]
        dets[len(kept)] = torch.from_numpy(np.concatenate([low[best], high[best], score[[best]]]))
        kept.append(int(best))
        rest = rest[rest != best]
        sides = np.minimum(high[rest], high[best]) - np.maximum(low[rest], low[best])
        shared = np.maximum(sides + np.float32(offset), 0).prod(axis=1)
        iou = shared / np.maximum(area[best] + area[rest] - shared, np.float32(1e-12))
        if method == 2:
            # NumPy's exp rounds float32 differently from C's
            decay = np.exp(-(iou * iou) / np.float32(sigma), dtype=np.float64).astype(np.float32)
        else:
            decay = np.where(iou >= np.float32(iou_threshold), (1 - iou) * (method == 1), 1)
        score[rest] *= decay
        rest = rest[score[rest] >= np.float32(min_score)]
    return torch.tensor(kept, dtype=torch.long)


# regions of interest: rois (K, 5) hold the index of the image, x1, y1, x2, y2

def roi_align_forward(input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor,
                      argmax_x: Tensor, *, aligned_height: int, aligned_width: int,
                      spatial_scale: float, sampling_ratio: int, pool_mode: int,
                      aligned: bool) -> None:
    """Fills ``output`` (K, C, h, w); for max pooling (mode 0) also each bin's chosen sample."""
    size = aligned_height, aligned_width
    if rois.device.type == 'cpu':  # on a GPU the check would synchronise
        # torchvision would read outside the map for such a box
        if (bad := ~rois.isfinite().all(dim=1)).any():
            raise ValueError(f'RoIAlign: boxes must be finite, got {rois[bad][0, 1:].tolist()}')
        rois = without_inverted(rois, sampling_ratio)
    if pool_mode:
        output.copy_(vision.roi_align(input, rois, spatial_scale, *size, sampling_ratio, aligned))
        return
    for few, (rows, columns) in sample_grids(rois, size, spatial_scale, sampling_ratio, aligned):
        if not rows * columns:  # mmcv's value for an empty box
            output[few], argmax_y[few], argmax_x[few] = -10000., -1., -1.
            continue
        # a bin's samples are the bins of a finer grid, with one sample each
        fine = vision.roi_align(input, rois[few], spatial_scale, size[0] * rows, size[1] * columns,
                                1, aligned)
        bins = fine.unflatten(3, (-1, columns)).unflatten(2, (-1, rows))
        value, sample = bins.transpose(3, 4).flatten(4).max(dim=4)
        output[few] = value
        argmax_y[few] = (sample // columns).to(argmax_y)
        argmax_x[few] = (sample % columns).to(argmax_x)


def roi_align_backward(grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor,
                       grad_input: Tensor, *, aligned_height: int, aligned_width: int,
                       spatial_scale: float, sampling_ratio: int, pool_mode: int,
                       aligned: bool) -> None:
    if rois.device.type == 'cpu':
        rois = without_inverted(rois, sampling_ratio)
    size = aligned_height, aligned_width
    if pool_mode:
        grad_input.copy_(vision._roi_align_backward(
            grad_output, rois, spatial_scale, *size, *grad_input.shape, sampling_ratio, aligned))
        return
    for few, (rows, columns) in sample_grids(rois, size, spatial_scale, sampling_ratio, aligned):
        if rows * columns:
            sample = (argmax_y[few] * columns + argmax_x[few]).long()[..., None]
            bins = grad_output.new_zeros(*sample.shape[:4], rows * columns)
            bins.scatter_(4, sample, grad_output[few][..., None])
            fine = bins.unflatten(4, (rows, columns)).transpose(3, 4).flatten(4).flatten(2, 3)
            grad_input += vision._roi_align_backward(
                fine, rois[few], spatial_scale, *fine.shape[2:], *grad_input.shape, 1, aligned)


def without_inverted(rois: Tensor, sampling_ratio: int) -> Tensor:
    """Replaces inverted RoIs, with x2 < x1 or y2 < y1, by empty ones.

    Detectors that refine boxes, such as Sparse R-CNN, produce inverted RoIs. On a GPU mmcv takes no
    sample from them, while torchvision's CPU operator fails.
    """
    if sampling_ratio > 0:
        return rois
    inverted = (rois[:, 3:] < rois[:, 1:3]).any(dim=1, keepdim=True)
    return torch.cat([rois[:, :3], rois[:, 1:3].where(inverted, rois[:, 3:])], dim=1)


def sample_grids(rois: Tensor, size: tuple[int, int], scale: float, ratio: int, aligned: bool) \
        -> Iterator[tuple[Tensor, tuple[int, int]]]:
    """Groups RoIs by sampling: yields indices, and the rows and columns of samples per bin."""
    if ratio > 0:
        grids = rois.new_full((len(rois), 2), ratio)
    else:
        shift = .5 if aligned else 0.
        corners = rois[:, 1:] * scale - shift
        sides = (corners[:, 2:] - corners[:, :2]).flip(1)  # height, width
        grids = ((sides if aligned else sides.clamp(min=1)) / sides.new_tensor(size)).ceil()
    for grid in grids.unique(dim=0):
        rows, columns = map(int, grid)
        yield (grids == grid).all(dim=1).nonzero()[:, 0], (rows, columns)


def roi_pool_forward(input: Tensor, rois: Tensor, output: Tensor, argmax: Tensor, *,
                     pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
    """Fills ``output`` (K, C, h, w), and ``argmax``: each maximum's cell, or -1 in an empty bin.

    torchvision rounds box corners; mmcv's bins reach from floor to ceil.
    """
    height, width = input.shape[2:]
    steps = torch.arange(max(pooled_height, pooled_width) + 1, device=rois.device)
    images = rois[:, 0].long().tolist()
    low, high = rois[:, 1:3] * spatial_scale, (rois[:, 3:] + 1) * spatial_scale
    sides = (high - low) / rois.new_tensor([pooled_width, pooled_height])
    edges = steps[:, None] * sides[:, None] + low[:, None]  # (K, bins + 1, 2)
    limit = steps.new_tensor([width, height])
    first, last = (torch.minimum(edge.long().clamp(min=0), limit).tolist()
                   for edge in (edges.floor()[:, :-1], edges.ceil()[:, 1:]))
    output.zero_()
    argmax.fill_(-1)
    for roi in ((high - low) > 0).all(dim=1).nonzero()[:, 0].tolist():
        for row in range(pooled_height):
            top, bottom = first[roi][row][1], last[roi][row][1]
            for column in range(pooled_width):
                left, right = first[roi][column][0], last[roi][column][0]
                if top < bottom and left < right:
                    cells = input[images[roi], :, top:bottom, left:right].flatten(1)
                    output[roi, :, row, column], found = cells.max(dim=1)
                    argmax[roi, :, row, column] = (
                        (found // (right - left) + top) * width + found % (right - left) + left)


def roi_pool_backward(grad_output: Tensor, rois: Tensor, argmax: Tensor, grad_input: Tensor, *,
                      pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
    batch, channels, height, width = grad_input.shape
    maps = rois[:, 0].long()[:, None] * channels + torch.arange(channels, device=rois.device)
    cells = maps[..., None] * (height * width) + argmax.flatten(2)
    hit = argmax.flatten(2) >= 0
    grad_input.view(-1).index_add_(0, cells[hit], grad_output.flatten(2)[hit])


# deformable convolution: input (B, C, H, W), output (B, C', h, w), mask (B, groups * kernel, h, w),
# offset (B, 2 * groups * kernel, h, w) with y before x

# stride, padding and dilation, as mmcv's two operators call them
plain = itemgetter('dH', 'dW', 'padH', 'padW', 'dilationH', 'dilationW')
modulated = itemgetter('stride_h', 'stride_w', 'pad_h', 'pad_w', 'dilation_h', 'dilation_w')


def deform_conv_forward(input: Tensor, weight: Tensor, offset: Tensor, output: Tensor,
                        columns: Tensor, ones: Tensor, **settings) -> None:
    output.copy_(deform_conv(input, weight, offset, like=output, settings=plain(settings)))


def deform_conv_backward_input(input: Tensor, offset: Tensor, grad_output: Tensor,
                               grad_input: Tensor, grad_offset: Tensor, weight: Tensor,
                               columns: Tensor, **settings) -> None:
    fill_gradients((grad_input, grad_offset), grad_output, lambda input, offset: deform_conv(
        input, weight, offset, like=grad_output, settings=plain(settings)), (input, offset))


def deform_conv_backward_parameters(input: Tensor, offset: Tensor, grad_output: Tensor,
                                    grad_weight: Tensor, columns: Tensor, ones: Tensor,
                                    **settings) -> None:
    # the gradient depends on the weight's shape alone
    fill_gradients((grad_weight,), grad_output, lambda weight: deform_conv(
        input, weight, offset, like=grad_output, settings=plain(settings)), (grad_weight,))


def modulated_deform_conv_forward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                  offset: Tensor, mask: Tensor, output: Tensor, columns: Tensor,
                                  *, with_bias: bool, **settings) -> None:
    output.copy_(deform_conv(input, weight, offset, mask, bias if with_bias else None, like=output,
                             settings=modulated(settings)))


def modulated_deform_conv_backward(
        input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor, offset: Tensor, mask: Tensor,
        columns: Tensor, grad_input: Tensor, grad_weight: Tensor, grad_bias: Tensor,
        grad_offset: Tensor, grad_mask: Tensor, grad_output: Tensor, *, with_bias: bool,
        **settings) -> None:
    pairs = [(grad_input, input), (grad_weight, weight), (grad_offset, offset), (grad_mask, mask),
             (grad_bias, bias)][:5 if with_bias else 4]
    fill_gradients([grad for grad, _ in pairs], grad_output,
                   partial(deform_conv, like=grad_output, settings=modulated(settings)),
                   [entry for _, entry in pairs])


def deform_conv(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None = None,
                bias: Tensor | None = None, *, like: Tensor, settings: tuple[int, ...]) -> Tensor:
    """torchvision's deformable convolution, with mmcv's gradient at the edge of the map.

    With padding and zero offsets, some samples lie at -1, where torchvision's offsets have a
    gradient and mmcv's do not. Such samples move to -1.5, where neither has one. ``like`` has the
    output's size. Of larger offsets and masks, as DyHead passes, only the first values count.
    """
    offset = first_values(offset, like)
    split = offset.unflatten(1, (-1, *weight.shape[2:], 2))  # (B, groups, kh, kw, 2, h, w)
    moved = []
    for axis, place in enumerate(split.unbind(4)):
        stride, pad, dilation = settings[axis::2]
        steps, cells = (torch.arange(count, device=offset.device)
                        for count in (weight.shape[2 + axis], offset.shape[2 + axis]))
        start = steps[:, None] * dilation + cells * stride - pad
        start = start[:, None, :, None] if axis == 0 else start[:, None]
        moved.append(torch.where(place + start == -1, place - .5, place))
    return torchvision.ops.deform_conv2d(
        input, torch.stack(moved, dim=4).flatten(1, 4), weight, bias, settings[:2], settings[2:4],
        settings[4:], None if mask is None else first_values(mask, like))


def first_values(maps: Tensor, like: Tensor) -> Tensor:
    count = maps.shape[1] * like.shape[2] * like.shape[3]
    return maps.flatten(1)[:, :count].unflatten(1, (maps.shape[1], *like.shape[2:]))


# deformable attention with Q queries: value (B, sum of h * w, heads, D), locations (B, Q, heads,
# levels, points, 2), weights (B, Q, heads, levels, points)

def ms_deform_attn_forward(value: Tensor, spatial_shapes: Tensor, level_start_index: Tensor,
                           locations: Tensor, weights: Tensor, im2col_step: int) -> Tensor:
    from lape_mm.backbones.sampling import sample_grid
    shapes = tuple((height, width) for height, width in spatial_shapes.tolist())
    return sample_grid(value, shapes, locations, weights)


def ms_deform_attn_backward(
        value: Tensor, spatial_shapes: Tensor, level_start_index: Tensor, locations: Tensor,
        weights: Tensor, grad_output: Tensor, grad_value: Tensor, grad_locations: Tensor,
        grad_weights: Tensor, im2col_step: int) -> None:
    fill_gradients((grad_value, grad_locations, grad_weights), grad_output,
                   lambda value, locations, weights: ms_deform_attn_forward(
                       value, spatial_shapes, level_start_index, locations, weights, im2col_step),
                   (value, locations, weights))


# focal losses (ICCV 2017): input (N, C), target (N,), weight (C,) per class or empty; gradients are
# those of the summed loss

def sigmoid_focal_loss_forward(input: Tensor, target: Tensor, weight: Tensor, output: Tensor, *,
                               gamma: float, alpha: float) -> None:
    """Fills ``output`` (N, C) with the losses of logits. Target C is background."""
    output.copy_(focal_loss(input, target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor,
                                *, gamma: float, alpha: float) -> None:
    fill_gradients((grad_input,), torch.ones_like(input),
                   lambda logits: focal_loss(logits, target, weight, gamma, alpha).to(input.dtype),
                   (input,))
    grad_input[grad_input.isnan()] = 0  # gamma below 1: infinity times 0 where p is 1


def focal_loss(input: Tensor, target: Tensor, weight: Tensor, gamma: float, alpha: float) -> Tensor:
    """Sigmoid focal losses (N, C) of logits, at least in float32; background has weight 1."""
    logits = input.to(torch.promote_types(input.dtype, torch.float32))
    hit = target[:, None] == torch.arange(input.shape[1], device=input.device)
    loss = torchvision.ops.sigmoid_focal_loss(logits, hit.to(logits), alpha, gamma)
    return loss * F.pad(weight, (0, 1), value=1.)[target][:, None] if weight.numel() else loss


def softmax_focal_loss_forward(softmax: Tensor, target: Tensor, weight: Tensor, output: Tensor, *,
                               gamma: float, alpha: float) -> None:
    """Fills ``output`` (N,) with the losses of probabilities. Negative targets cost nothing."""
    output.copy_(softmax_focal_loss(logarithm(softmax), target, weight, gamma, alpha))


def softmax_focal_loss_backward(softmax: Tensor, target: Tensor, weight: Tensor, buff: Tensor,
                                grad_input: Tensor, *, gamma: float, alpha: float) -> None:
    """Fills ``grad_input`` (N, C) with the gradient for the logits."""
    logits = logarithm(softmax)
    fill_gradients((grad_input,), torch.ones_like(logits[:, 0]), lambda logits: softmax_focal_loss(
        logits, target, weight, gamma, alpha), (logits,))
    grad_input[grad_input.isnan()] = 0  # as above


def logarithm(softmax: Tensor) -> Tensor:
    softmax = softmax.to(torch.promote_types(softmax.dtype, torch.float32))
    return softmax.clamp(min=torch.finfo(torch.float32).tiny).log()


def softmax_focal_loss(logits: Tensor, target: Tensor, weight: Tensor, gamma: float,
                       alpha: float) -> Tensor:
    """Softmax focal losses (N,) of logits (N, C)."""
    known = target.clamp(min=0)
    log_p = logits.log_softmax(1).gather(1, known[:, None])[:, 0]
    loss = -alpha * (1 - log_p.exp()) ** gamma * log_p
    return (loss * weight[known] if weight.numel() else loss).where(target >= 0, 0)


# convolution of the cells that a mask selects (Guided Anchoring, for inference): im (1, C, H, W)

def masked_im2col_forward(im: Tensor, mask_h_idx: Tensor, mask_w_idx: Tensor, col: Tensor, *,
                          kernel_h: int, kernel_w: int, pad_h: int, pad_w: int) -> None:
    """Fills ``col`` (C * kernel, N) with the neighbourhoods of N cells; the stride is 1."""
    width = im.shape[3] + 2 * pad_w - kernel_w + 1
    columns = F.unfold(im, (kernel_h, kernel_w), padding=(pad_h, pad_w))
    col.copy_(columns[0, :, mask_h_idx * width + mask_w_idx])


def masked_col2im_forward(col: Tensor, mask_h_idx: Tensor, mask_w_idx: Tensor, im: Tensor, *,
                          height: int, width: int, channels: int) -> None:
    im[0, :, mask_h_idx, mask_w_idx] = col


# CARAFE (ICCV 2019): features (B, C, h, w), masks (B, groups * kernel ** 2, H, W), H = h * scale

def carafe_naive_forward(features: Tensor, masks: Tensor, output: Tensor, **settings) -> None:
    output.copy_(reassemble(features, masks, **settings))


def carafe_naive_backward(grad_output: Tensor, features: Tensor, masks: Tensor,
                          grad_input: Tensor, grad_masks: Tensor, **settings) -> None:
    fill_gradients((grad_input, grad_masks), grad_output, partial(reassemble, **settings),
                   (features, masks))


def carafe_forward(features: Tensor, masks: Tensor, rfeatures: Tensor, routput: Tensor,
                   rmasks: Tensor, output: Tensor, **settings) -> None:
    rfeatures.copy_(features)  # for the backward pass
    carafe_naive_forward(features, masks, output, **settings)


def carafe_backward(grad_output: Tensor, rfeatures: Tensor, masks: Tensor, *targets: Tensor,
                    **settings) -> None:
    carafe_naive_backward(grad_output, rfeatures, masks, *targets[-2:], **settings)


def reassemble(features: Tensor, masks: Tensor, *, kernel_size: int, group_size: int,
               scale_factor: int) -> Tensor:
    """Sums the neighbourhood of each output cell's source, weighted by its mask: (B, C, H, W)."""
    height, width = features.shape[2:]
    near = F.unfold(features, kernel_size, padding=kernel_size // 2).unflatten(2, (height, width))
    near = near.unflatten(1, (group_size, -1, kernel_size ** 2))
    # each source cell has scale_factor ** 2 cells of the output
    weights = masks.unflatten(3, (width, scale_factor)).unflatten(2, (height, scale_factor))
    weights = weights.unflatten(1, (group_size, kernel_size ** 2))
    output = torch.einsum('bgckhw,bgkhiwj->bgchiwj', near, weights)
    return output.flatten(5).flatten(3, 4).flatten(1, 2)


# PSANet's masks (ECCV 2018): input (B, mask cells, h, w) by offset, output (B, h * w, h, w) by cell

def psamask_forward(input: Tensor, output: Tensor, **settings) -> None:
    """Fills ``output``: cell j of channel i is what j collects from i, or what i sends to j."""
    offset, there, here = psamask_cells(input.device, **settings)
    cells = output.flatten(2) if settings['psa_type'] == 0 else output.flatten(2).transpose(1, 2)
    cells[:, there, here] = input.flatten(2)[:, offset, here]


def psamask_backward(grad_output: Tensor, grad_input: Tensor, **settings) -> None:
    offset, there, here = psamask_cells(grad_output.device, **settings)
    cells = grad_output.flatten(2)
    cells = cells if settings['psa_type'] == 0 else cells.transpose(1, 2)
    grad_input.flatten(2)[:, offset, here] = cells[:, there, here]


def psamask_cells(device: torch.device, *, psa_type: int, num_: int, h_feature: int,
                  w_feature: int, h_mask: int, w_mask: int, half_h_mask: int, half_w_mask: int) \
        -> tuple[Tensor, Tensor, Tensor]:
    """Flat indices of each offset, the cell at it and the own cell, where both are on the map."""
    h, w = h_feature, w_feature
    down, right, row, column = torch.meshgrid(
        *(torch.arange(count, device=device) for count in (h_mask, w_mask, h, w)), indexing='ij')
    there = row + down - half_h_mask, column + right - half_w_mask
    valid = (there[0] >= 0) & (there[0] < h) & (there[1] >= 0) & (there[1] < w)
    return ((down * w_mask + right)[valid], (there[0] * w + there[1])[valid],
            (row * w + column)[valid])
