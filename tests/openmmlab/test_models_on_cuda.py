"""The quick start's Mask R-CNN, UperNet and Segmenter on fake CUDA tensors."""
import pytest
import torch
from fake_cuda import DTYPES, fake_cuda, precision
from quickstarts import ROOT, need

from lape_mm.backbones.sampling import mmcv_cuda_op
from lape_mm.mmcv_ext import compiled

SIDE = 64
META = dict(img_shape=(SIDE, SIDE), ori_shape=(SIDE, SIDE), pad_shape=(SIDE, SIDE),
            scale_factor=(1., 1.))
pytestmark = pytest.mark.usefixtures('forgetful')


def build(scope, name):
    need(scope)
    if compiled() if scope == 'mmdet' else mmcv_cuda_op():
        pytest.skip("mmcv's compiled operators take no fake tensors")
    from mmengine.config import Config
    from mmengine.registry import MODELS, DefaultScope
    DefaultScope.get_instance('cuda', scope_name=scope)
    with MODELS.switch_scope_and_registry(scope) as registry:
        return registry.build(Config.fromfile(ROOT / f'configs/quickstart/{name}.py').model)


def images():
    return torch.zeros(2, 3, SIDE, SIDE, device='cuda')


@pytest.mark.parametrize('name', ['upernet', 'segmenter'])
def test_losses_and_predictions_of_segmenters(name):
    model = build('mmseg', name)
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample
    with fake_cuda():
        model.to('cuda')
        labels = torch.zeros(1, SIDE, SIDE, dtype=torch.int64, device='cuda')
        samples = [SegDataSample(metainfo=META, gt_sem_seg=PixelData(data=labels))] * 2
        for dtype in DTYPES.values():
            with precision(model, dtype):
                losses = model.train().loss(images(), samples)
            assert all(value.is_cuda for value in losses.values())
            assert all(value.dtype == torch.float32 for value in losses.values())
        with precision(model, torch.float16), torch.no_grad():
            found, _ = model.eval()(images(), mode='predict')
        assert found.pred_sem_seg.data.is_cuda


@pytest.mark.parametrize('dtype', DTYPES.values(), ids=DTYPES)
def test_forward_of_mask_rcnn(dtype):
    model = build('mmdet', 'mask_rcnn')
    from mmdet.structures import DetDataSample
    samples = [DetDataSample(metainfo=META)] * 2
    model.rpn_head.test_cfg.min_bbox_size = -1  # would ask whether any box is smaller
    with fake_cuda():
        model.to('cuda')
        with precision(model.backbone, dtype):
            features = model.extract_feat(images())
        if dtype == torch.bfloat16:  # lape_mm.BFloat16OptimWrapper hands them to the heads so
            dtype, features = torch.float32, [level.float() for level in features]
        with precision(model.roi_head, dtype):
            proposals = model.rpn_head.predict(features, samples, rescale=False)
            outputs = model.roi_head.forward(features, proposals, samples)
        assert len(outputs) == 3
        assert all(output.is_cuda and output.dtype == dtype for output in (*features, *outputs))
