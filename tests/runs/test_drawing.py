"""Small images are enlarged, together with what is drawn on them."""
import pytest

pytest.importorskip('mmengine')

import cv2  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from mmengine.structures import BaseDataElement, InstanceData, PixelData  # noqa: E402

from lape_mm.runs.drawing import draw_large, enlarge  # noqa: E402


def test_what_is_drawn_on_a_small_image_grows_with_it():
    """A box around the mask, and a label map that is the mask, still agree."""
    masks = torch.zeros(1, 8, 10, dtype=torch.bool)
    masks[0, 2:4, 3:7] = True
    sample = BaseDataElement(
        pred_instances=InstanceData(bboxes=torch.tensor([[3., 2., 7., 4.]]), masks=masks),
        pred_sem_seg=PixelData(data=masks.int()))
    large = enlarge(sample, 3)
    expected = np.zeros((1, 24, 30), bool)
    expected[0, 6:12, 9:21] = True
    assert large.pred_instances.bboxes.tolist() == [[9, 6, 21, 12]]
    assert np.array_equal(large.pred_instances.masks, expected)
    assert np.array_equal(large.pred_sem_seg.data, expected)
    assert sample.pred_instances.bboxes.tolist() == [[3, 2, 7, 4]]  # the model's own stays


@pytest.mark.parametrize('side, drawn', [(64, 320), (128, 384), (400, 400)])
def test_a_detectors_picture_is_large_enough_to_read(side, drawn, tmp_path, forgetful):
    pytest.importorskip('mmdet')
    from mmdet.structures import DetDataSample
    from mmdet.visualization import DetLocalVisualizer
    visualizer = DetLocalVisualizer(name=f'of {side}')
    visualizer.dataset_meta = dict(classes=('disc',), palette=[(255, 0, 0)])
    box = InstanceData(bboxes=torch.tensor([[8., 8., 48., 48.]]), labels=torch.tensor([0]))
    draw_large(visualizer.add_datasample, 'x', np.zeros((side, side, 3), np.uint8),
               DetDataSample(gt_instances=box), draw_pred=False,
               out_file=str(tmp_path / 'x.png'))
    picture = cv2.imread(str(tmp_path / 'x.png'))
    assert picture.shape == (drawn, drawn, 3)
    scale = drawn / side  # the box's left side is where it was
    assert picture[round(30 * scale), round(8 * scale) - 3:round(8 * scale) + 3].any()
