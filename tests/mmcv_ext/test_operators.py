"""mmcv's public operators on `lape_mm.mmcv_ext`, held to recorded outputs of the compiled ones.

`data/mmcv_ops.pt` has cases that mmcv 2.3.6's compiled CPU operators produced. Where mmcv has no
CPU operator to record, the reference is its definition, written out here.
"""
import math
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import one_hot

import lape_mm.mmcv_ext

pytest.importorskip('mmcv')

from mmcv import ops  # noqa: E402

CASES = torch.load(Path(__file__).parents[1] / 'data/mmcv_ops.pt', weights_only=True)['cases']
CASES = [case for case in CASES if case.get('pool_mode') != 'max']  # which no config uses
OUTPUTS = ('dets', 'inds', 'output', 'grad_output', 'grad_input')
ours = pytest.mark.skipif(lape_mm.mmcv_ext.compiled(), reason='mmcv has compiled operators here')


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
def test_roi_align_reads_channels_last_maps():
    maps = torch.rand(2, 3, 17, 23)
    rois = torch.tensor([[0, 3., 4, 60, 90], [1, 10, 2, 100, 50]])
    found = [ops.roi_align(x, rois, (7, 5), .125, 0, 'avg', True)
             for x in (maps, maps.contiguous(memory_format=torch.channels_last))]
    torch.testing.assert_close(*found)


@ours
@pytest.mark.parametrize('box', [(0, math.nan, 0, 4, 4), (0, 0, 0, math.inf, 4)])
def test_roi_align_refuses_invalid_boxes(box):
    with pytest.raises(ValueError, match='boxes must be finite'):
        ops.roi_align(torch.rand(1, 1, 8, 8), torch.tensor([box]).float(), 2, 1., 2, 'avg', True)


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
def test_focal_loss(gamma):
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    target, weight = torch.tensor([0, 1, 2, 4, 1, 0]), torch.rand(4, dtype=torch.float64)  # 4: none
    found = ops.sigmoid_focal_loss(logits, target, gamma, .25, weight, 'sum')
    p, hit = logits.sigmoid(), one_hot(target, 5)[:, :4].bool()
    wanted = -torch.where(hit, .25 * (1 - p) ** gamma * p.log(), .75 * p ** gamma * (1 - p).log())
    wanted = (wanted * torch.cat([weight, torch.ones(1)])[target, None]).sum()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(one, logits)[0] for one in (found, wanted)))


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
        loss = ops.roi_align(given, rois.to(precision), 2, 1., 0, 'avg', True).sum()
        loss = loss + ops.sigmoid_focal_loss(given[0, 0], torch.arange(8), 2., .25, None, 'sum')
        grads.append(torch.autograd.grad(loss, maps)[0])
    torch.testing.assert_close(*grads, atol=1e-2, rtol=1e-2)


@ours
def test_a_missing_operator_names_the_command_that_compiles_it():
    with pytest.raises(NotImplementedError, match='nms_match.*MMCV_WITH_OPS=1.* pip install'):
        ops.nms_match(torch.rand(2, 5), .5)
    with pytest.raises(NotImplementedError, match="pool_mode='max'"):
        ops.roi_align(torch.rand(1, 1, 8, 8), torch.rand(1, 5), 2, 1., 2, 'max', True)


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


@pytest.mark.parametrize('groups', [1, 2])
def test_carafe_is_mmcvs_definition(groups):
    from mmcv.ops import carafe
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
    assert torch.autograd.gradcheck(lambda *given: carafe(*given, 3, groups, 2),
                                    (features, masks))


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
