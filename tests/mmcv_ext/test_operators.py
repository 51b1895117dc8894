"""mmcv's public operators on `lape_mm.mmcv_ext`, held to recorded outputs of the compiled ones.

`data/mmcv_ops.pt` has 33 cases that mmcv 2.3.6's compiled CPU operators produced. Where mmcv has no
CPU operator to record, the reference is its definition, written out here.
"""
import math
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import cross_entropy, one_hot

import lape_mm.mmcv_ext

pytest.importorskip('mmcv')

from mmcv import ops  # noqa: E402

CASES = torch.load(Path(__file__).parents[1] / 'data/mmcv_ops.pt', weights_only=True)['cases']
OUTPUTS = ('dets', 'inds', 'output', 'grad_output', 'grad_input')
ours = pytest.mark.skipif(lape_mm.mmcv_ext.compiled(), reason='mmcv has compiled operators here')


@pytest.fixture(autouse=True)
def seeded():
    """Random samples may tie, or lie where a gradient jumps."""
    torch.manual_seed(0)


@pytest.mark.parametrize('case', CASES, ids=[f'{n}_{case["op"]}' for n, case in enumerate(CASES)])
def test_recorded_outputs(case):
    given = {name: value for name, value in case.items() if name not in (*OUTPUTS, 'op', 'note')}
    if case['op'] == 'batched_nms':
        given['nms_cfg'] = dict(type='nms', iou_threshold=given.pop('iou_threshold'))
    if 'input' in given:
        given['input'] = given['input'].clone().requires_grad_()
    operator = getattr(ops, case['op'])
    # Function.apply takes no names
    found = operator(**given) if 'nms' in case['op'] else operator(*given.values())
    if 'dets' in case:
        dets, inds = found
        assert torch.equal(inds, case['inds'])
        torch.testing.assert_close(dets, case['dets'])
        return
    torch.testing.assert_close(found, case['output'], atol=1e-5, rtol=1e-5)
    if 'grad_input' in case:
        grad, = torch.autograd.grad(found, given['input'], case['grad_output'])
        torch.testing.assert_close(grad, case['grad_input'], atol=1e-5, rtol=1e-5)


@ours
@pytest.mark.parametrize('mode', ['avg', 'max'])
def test_roi_align_reads_channels_last_maps(mode):
    maps = torch.rand(2, 3, 17, 23)
    rois = torch.tensor([[0, 3., 4, 60, 90], [1, 10, 2, 100, 50]])
    found = [ops.roi_align(x, rois, (7, 5), .125, 0, mode, True)
             for x in (maps, maps.contiguous(memory_format=torch.channels_last))]
    torch.testing.assert_close(*found)


@ours
@pytest.mark.parametrize('box', [(0, math.nan, 0, 4, 4), (0, 0, 0, math.inf, 4)])
@pytest.mark.parametrize('mode', ['avg', 'max'])
def test_roi_align_refuses_invalid_boxes(mode, box):
    with pytest.raises(ValueError, match='boxes must be finite'):
        ops.roi_align(torch.rand(1, 1, 8, 8), torch.tensor([box]).float(), 2, 1., 2, mode, True)


@ours
@pytest.mark.parametrize('box', [(0, 4, 0, 2, 4), (0, 0, 5, 3, 1), (0, 6, 7, 1, 2)])
def test_roi_align_takes_no_sample_from_an_inverted_box(box):
    image = torch.rand(1, 1, 8, 8, requires_grad=True)
    for aligned in (True, False):
        found = ops.roi_align(image, torch.tensor([box]).float(), 2, 1., 0, 'avg', aligned)
        if aligned:  # else each side has at least one pixel
            assert not found.any()
        found.sum().backward()
    assert ops.roi_align(image, torch.tensor([box]).float(), 2, 1., 2, 'avg', True).isfinite().all()


@ours
def test_roi_pool_takes_the_maximum_from_floor_to_ceil():
    maps = torch.rand(2, 3, 12, 15, requires_grad=True)
    rois = torch.tensor([[0, 3., 4, 60, 90], [1, -30, 2, 100, 50], [1, 200, 5, 260, 20],
                         [0, 50, 50, 30, 60]])
    height, width, scale = 3, 2, .13
    found = ops.roi_pool(maps, rois, (height, width), scale)
    wanted = []
    for image, *box in rois.tolist():
        x1, y1, x2, y2 = (value * scale for value in (*box[:2], box[2] + 1, box[3] + 1))
        for row in range(height):
            for column in range(width):
                top, bottom, left, right = (
                    min(max(edge, 0), limit) for edge, limit in (
                        (math.floor(y1 + row * (y2 - y1) / height), 12),
                        (math.ceil(y1 + (row + 1) * (y2 - y1) / height), 12),
                        (math.floor(x1 + column * (x2 - x1) / width), 15),
                        (math.ceil(x1 + (column + 1) * (x2 - x1) / width), 15)))
                cells = maps[int(image), :, top:bottom, left:right]
                empty = not cells.numel() or x2 <= x1
                wanted.append(torch.zeros(3) if empty else cells.amax((1, 2)))
    wanted = torch.stack(wanted).view(4, height, width, 3).permute(0, 3, 1, 2)
    assert torch.equal(found, wanted)
    weights = torch.rand_like(found)
    torch.testing.assert_close(*(torch.autograd.grad((one * weights).sum(), maps)[0]
                                 for one in (found, wanted)))


@pytest.mark.parametrize('groups', [1, 2])
def test_deformable_convolutions_have_the_gradients_of_their_outputs(groups):
    x, weight, bias, offset, mask = (
        torch.rand(*shape, dtype=torch.float64, requires_grad=True) for shape in (
            (2, 4, 5, 6), (2, 4 // groups, 3, 2), (2,), (2, 12 * groups, 3, 7),
            (2, 6 * groups, 3, 7)))
    settings = ((2, 1), (1, 1), (1, 1), groups, groups)  # stride, padding, dilation
    assert gradcheck(lambda *given: ops.deform_conv2d(*given, *settings), (x, offset, weight))
    assert gradcheck(lambda *given: ops.modulated_deform_conv2d(*given, *settings),
                     (x, offset, mask, weight, bias))


def test_a_deformable_convolution_starts_with_mmcvs_gradients():
    """With padding and zero offsets, samples at -1 give no gradient."""
    x, weight = torch.rand(1, 1, 4, 4), torch.rand(1, 1, 3, 3)
    offset = torch.zeros(1, 18, 4, 4, requires_grad=True)
    ops.deform_conv2d(x, offset, weight, 1, 1).sum().backward()
    corner = offset.grad.view(3, 3, 2, 4, 4)[..., 0, 0]  # by kernel row and column, of the corner
    assert not corner[0].any() and not corner[:, 0].any() and corner[1:, 1:].all()


@pytest.mark.parametrize('gamma', [1.5, 2.])
@ours
def test_focal_losses(gamma):
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    target, weight = torch.tensor([0, 1, 2, 3, 1, 0]), torch.rand(4, dtype=torch.float64)
    p = logits.sigmoid()
    found = ops.sigmoid_focal_loss(logits, target, gamma, .25, weight, 'sum')
    hit = one_hot(target, 4).bool()
    wanted = -torch.where(hit, .25 * (1 - p) ** gamma * p.log(), .75 * p ** gamma * (1 - p).log())
    compare_losses(found, (wanted * weight[target, None]).sum(), logits)
    found = ops.softmax_focal_loss(logits, target, gamma, .25, weight, 'sum')
    cost = cross_entropy(logits, target, reduction='none')
    wanted = (.25 * (1 - (-cost).exp()) ** gamma * cost * weight[target]).sum()
    compare_losses(found, wanted, logits)


def compare_losses(found, wanted, logits):
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(one, logits)[0] for one in (found, wanted)))


@ours
def test_focal_losses_of_background_and_ignored_targets():
    logits = torch.randn(2, 3)
    every, weighted = (ops.sigmoid_focal_loss(logits, torch.tensor([3, 3]), 2., .25, weight, 'none')
                       for weight in (None, torch.rand(3)))
    assert torch.equal(every, weighted) and every.all()
    assert not ops.softmax_focal_loss(logits, torch.tensor([-1, -1]), 2., .25, None, 'none').any()


@ours
def test_deformable_attention_is_mmcvs_own_in_pytorch():
    from mmcv.ops.multi_scale_deform_attn import (
        MultiScaleDeformableAttnFunction,
        multi_scale_deformable_attn_pytorch,
    )
    shapes, starts = torch.tensor([[4, 3], [2, 5]]), torch.tensor([0, 12])
    value, locations, weights = (
        torch.rand(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 22, 2, 3), (2, 4, 2, 2, 2, 2), (2, 4, 2, 2, 2)))

    def attend(value, locations, weights):
        return MultiScaleDeformableAttnFunction.apply(
            value, shapes, starts, locations, weights, 2)

    torch.testing.assert_close(
        attend(value, locations, weights),
        multi_scale_deformable_attn_pytorch(value, shapes, locations, weights))
    assert gradcheck(attend, (value, locations, weights))


@ours
@pytest.mark.parametrize('dtype', [torch.float16, torch.float64])
def test_other_precisions(dtype):
    maps = torch.rand(1, 2, 8, 8, requires_grad=True)
    rois = torch.tensor([[0, 1., 1, 6, 7]])
    grads = []
    for precision in (torch.float32, dtype):
        given = maps.to(precision)
        loss = sum(ops.roi_align(given, rois.to(precision), 2, 1., 0, mode, True).sum()
                   for mode in ('avg', 'max'))
        loss = loss + ops.roi_pool(given, rois.to(precision), 2, 1.).sum()
        loss = loss + ops.sigmoid_focal_loss(given[0, 0], torch.arange(8), 2., .25, None, 'sum')
        grads.append(torch.autograd.grad(loss, maps)[0])
    torch.testing.assert_close(*grads, atol=1e-2, rtol=1e-2)


@ours
def test_a_missing_operator_names_the_command_that_compiles_it():
    with pytest.raises(NotImplementedError, match='nms_match.*MMCV_WITH_OPS=1.* pip install'):
        ops.nms_match(torch.rand(2, 5), .5)


@ours
def test_mmcvs_report_of_the_environment():
    from mmcv.utils import collect_env
    assert 'lape_mm.mmcv_ext on torchvision' in collect_env()['MMCV Compiler']


def test_masked_convolution_is_a_convolution_where_the_mask_is():
    from mmcv.ops import MaskedConv2d
    layer, image = MaskedConv2d(3, 5, 3, padding=1), torch.randn(1, 3, 6, 7)
    mask = torch.rand(1, 6, 7) > .5
    with torch.no_grad():
        torch.testing.assert_close(layer(image, mask), layer(image) * mask)


@pytest.mark.parametrize('groups, name', [(1, 'carafe'), (2, 'carafe'), (2, 'carafe_naive')])
def test_carafe_is_mmcvs_definition(groups, name):
    from mmcv import ops
    carafe = getattr(ops, name)
    features = torch.randn(2, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    masks = torch.randn(2, groups * 9, 6, 10, dtype=torch.float64, requires_grad=True)
    expected = torch.zeros(2, 4, 6, 10, dtype=torch.float64)
    padded = torch.nn.functional.pad(features.detach(), (1, 1, 1, 1))
    for channel in range(4):
        for row in range(6):
            for column in range(10):
                group = channel // (4 // groups)
                near = padded[:, channel, row // 2:row // 2 + 3, column // 2:column // 2 + 3]
                weights = masks.detach()[:, group * 9:group * 9 + 9, row, column]
                expected[:, channel, row, column] = (near.flatten(1) * weights).sum(1)
    torch.testing.assert_close(carafe(features, masks, 3, groups, 2).detach(), expected)
    # mmcv's own naive backward pass wants a GPU
    assert name == 'carafe_naive' or torch.autograd.gradcheck(
        lambda *given: carafe(*given, 3, groups, 2), (features, masks))


@pytest.mark.parametrize('kind', ['collect', 'distribute'])
def test_masks_of_psanet(kind):
    from mmcv.ops import PSAMask
    layer, mask = PSAMask(kind, (3, 5)), torch.randn(2, 15, 4, 3, dtype=torch.float64)
    expected = torch.zeros(2, 12, 4, 3, dtype=torch.float64)
    for row in range(4):
        for column in range(3):
            for down in range(max(0, 1 - row), min(3, 5 - row)):
                for right in range(max(0, 2 - column), min(5, 5 - column)):
                    value, to = mask[:, down * 5 + right, row, column], (row + down - 1,
                                                                         column + right - 2)
                    if kind == 'collect':
                        expected[:, to[0] * 3 + to[1], row, column] = value
                    else:
                        expected[:, row * 3 + column, to[0], to[1]] = value
    torch.testing.assert_close(layer(mask), expected)
    assert torch.autograd.gradcheck(layer, mask.requires_grad_())


@ours
def test_modulated_deform_conv_reads_the_first_values_of_larger_offsets():
    """As DyHead hands them to the coarser level."""
    torch.manual_seed(0)
    image, weight = torch.rand(2, 3, 4, 4), torch.rand(5, 3, 3, 3)
    offset, mask = torch.randn(2, 18, 8, 8), torch.rand(2, 9, 8, 8)
    results = []
    for cut in (False, True):
        given = [value.clone().requires_grad_() for value in (offset, mask)]
        read = [value.flatten(1)[:, :value.shape[1] * 16].view(2, -1, 4, 4) if cut else value
                for value in given]
        found = ops.modulated_deform_conv2d(image, *read, weight, None, 1, 1)
        found.square().sum().backward()
        results.append([found, *(value.grad for value in given)])
    for one, other in zip(*results):
        torch.testing.assert_close(one, other)
