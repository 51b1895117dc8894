"""What report.html says of images: scores and confusions by hand."""
import pytest
import torch

pytest.importorskip('mmengine')

from mmengine.structures import BaseDataElement, InstanceData, PixelData  # noqa: E402

from lape_mm.runs.report import confusions, judge  # noqa: E402


def test_boxes_by_hand():
    truth = InstanceData(bboxes=torch.tensor([[0., 0, 10, 10], [20, 20, 40, 40], [50, 50, 60, 60]]),
                         labels=torch.tensor([0, 1, 1]))
    found = InstanceData(  # right, right place but wrong class, nothing there, below the score
        bboxes=torch.tensor([[20., 20, 40, 38], [0, 0, 10, 9], [80, 80, 90, 90], [50, 50, 60, 60]]),
        labels=torch.tensor([0, 0, 1, 1]), scores=torch.tensor([.5, .9, .8, .2]))
    score, matrix = judge(BaseDataElement(gt_instances=truth, pred_instances=found), 2)
    assert matrix.tolist() == [[1, 0, 0], [1, 0, 1], [0, 1, 0]]
    assert score == pytest.approx(2 * 1 / (3 + 3))
    assert set(confusions(matrix, ('cat', 'dog'))) == {
        ('dog → cat', 1), ('dog → background', 1), ('background → dog', 1)}
    empty = InstanceData(bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long))
    nothing = InstanceData(**empty, scores=torch.zeros(0))
    assert judge(BaseDataElement(gt_instances=empty, pred_instances=nothing), 2)[0] == 1
    assert judge(BaseDataElement(gt_instances=empty, pred_instances=found), 2)[0] == 0


def test_label_maps_and_classes_by_hand():
    truth, found = torch.tensor([[[0, 0, 1, 255]]]), torch.tensor([[[0, 1, 1, 2]]])
    score, matrix = judge(BaseDataElement(gt_sem_seg=PixelData(data=truth),
                                          pred_sem_seg=PixelData(data=found)), 3)
    assert matrix[:3, :3].tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert score == pytest.approx((1 / 2 + 1 / 2) / 2)
    score, matrix = judge(BaseDataElement(pred_score=torch.tensor([.2, .7, .1]),
                                          gt_label=torch.tensor([0])), 3)
    assert score == pytest.approx(.2) and matrix[0, 1] == matrix.sum() == 1
    assert judge(BaseDataElement(pred_score=torch.ones(3)), 3) is None
