"""The exported heads against mmdet's own."""
from pathlib import Path

import pytest
import torch

for module in ('onnx', 'onnxruntime', 'onnxscript', 'torchvision', 'mmengine', 'mmdet'):
    pytest.importorskip(module, reason=f'{module} is not installed')

from mmengine.config import Config  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402

from lape_mm.export import onnx as export  # noqa: E402
from lape_mm.export.onnx import Graph  # noqa: E402

ROOT = Path(__file__).parents[2]
SIZE = 64, 96


def build(by_class=False, mask=True):
    """The quick start's Mask R-CNN, smaller; boxes and masks of each class as in COCO's configs."""
    init_default_scope('mmdet')
    torch.manual_seed(0)
    model = Config.fromfile(ROOT / 'configs/quickstart/mask_rcnn.py').model
    model.backbone.update(
        arch=dict(embed_dim=24, depth=4, num_heads=3, conv_inplane=8, deform_num_heads=3),
        windows=None, interaction_indexes=None, img_size=32)
    model.neck.in_channels = [24] * 4
    model.roi_head.bbox_head.reg_class_agnostic = not by_class
    model.roi_head.mask_head.class_agnostic = not by_class
    if not mask:
        model.type = 'FasterRCNN'
        del model.roi_head.mask_head, model.roi_head.mask_roi_extractor
    built = MODELS.build(model).eval()
    with torch.no_grad():  # sure of something, and with boxes that differ by class
        built.roi_head.bbox_head.fc_cls.weight *= 10
        built.roi_head.bbox_head.fc_reg.weight *= 5
        built.rpn_head.rpn_reg.weight *= 3
    return built


def images(count=3):
    torch.manual_seed(1)
    return list(torch.randint(0, 256, (count, 3, *SIZE)))


@pytest.mark.parametrize('by_class, mask', [(False, True), (True, True), (True, False)])
def test_detections_are_those_of_mmdet(by_class, mask):
    model = build(by_class, mask)
    graph = Graph(model, SIZE).eval()
    with torch.no_grad():
        batch = torch.stack(images()).float()
        maps = model.extract_feat(graph.normalise(batch))
        found, expected = graph(batch), graph.detector.reference(maps)
    assert len({label for one in expected for label in one.labels.tolist()}) > 1
    for index, one in enumerate(expected):
        boxes, scores, labels, *masks = (part[index] for part in found)
        count = len(one.scores)
        assert boxes.shape == (20, 4) and count and bool(masks) == mask
        torch.testing.assert_close(boxes[:count], one.bboxes, rtol=0, atol=1e-4)
        torch.testing.assert_close(scores[:count], one.scores)
        assert labels[:count].tolist() == one.labels.tolist()
        assert not scores[count:].any() and (labels[count:] == -1).all()
        if mask:
            from lape_mm.runtime import paste
            wide = ((boxes[:, 2:] - boxes[:, :2]).amin(1) > 1)[:count]
            pasted = paste(masks[0][:count][wide].numpy(), boxes[:count][wide].numpy(), SIZE)
            different = torch.from_numpy(pasted) != one.masks[wide]
            assert wide.any() and different.sum() <= .001 * one.masks[wide].sum()


def test_other_detectors_are_refused_by_name():
    model = build()
    model.roi_head.mask_head = torch.nn.Identity()
    with pytest.raises(ValueError, match='MaskRCNN: its roi_head.mask_head is a Identity'):
        Graph(model, SIZE)
    model = build()
    model.roi_head.test_cfg.nms.type = 'soft_nms'
    with pytest.raises(ValueError, match="MaskRCNN: nms={'type': 'soft_nms', .* cannot be"):
        Graph(model, SIZE)
    del model.rpn_head
    with pytest.raises(ValueError, match='MaskRCNN: its rpn_head is a NoneType; ONNX export needs'):
        Graph(model, SIZE)


@pytest.mark.long
def test_a_file_that_detects_something_else_is_refused(tmp_path):
    model, out = build(by_class=True), tmp_path / 'm.onnx'
    assert export.export_onnx(model, images(), out) < 1e-4
    blank = torch.full((1, 3, *SIZE), 100.)
    assert len(export.run_onnx(out.read_bytes(), blank)) == 4
    graph, batch = Graph(model, SIZE).eval(), torch.stack(images()).float()
    with torch.no_grad():
        model.roi_head.bbox_head.fc_reg.bias += .2
    with pytest.raises(ValueError, match=r'\d+ of \d+ detections .* no partner'):
        export.compare_detections(out.read_bytes(), graph, batch)
