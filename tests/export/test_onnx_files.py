"""A file in lape_mm.runtime predicts what the config's pipeline and model do."""
from argparse import Namespace
from pathlib import Path

import pytest
import torch

for module in ('cv2', 'onnx', 'onnxruntime', 'onnxscript', 'mmengine', 'mmpretrain', 'mmseg'):
    pytest.importorskip(module, reason=f'{module} is not installed')

import cv2  # noqa: E402
import numpy as np  # noqa: E402
from mmengine.dataset import Compose, pseudo_collate  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from torchvision.ops import box_iou  # noqa: E402

from lape_mm.runs.config import load_config  # noqa: E402
from lape_mm.runs.errors import RunError  # noqa: E402
from lape_mm.runs.export import export  # noqa: E402
from lape_mm.runs.images import turns_channels  # noqa: E402
from lape_mm.runtime import Model  # noqa: E402

ROOT = Path(__file__).parents[2] / 'configs'


# image sizes that each config's pipeline brings to the file's, by another way each
@pytest.mark.parametrize('name, size', [
    ('deit', (90, 140)), pytest.param('upernet', (128, 128), marks=pytest.mark.long),
    pytest.param('segmenter', (100, 150), marks=pytest.mark.long),
    pytest.param('mask_rcnn', (256, 256), marks=pytest.mark.long)])
def test_the_runtime_predicts_what_the_toolbox_does(name, size, tmp_path, monkeypatch, forgetful):
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path / 'scenes'))
    options = {'scenes.num_train': 8, 'scenes.num_val': 8}
    cfg = load_config(str(ROOT / f'quickstart/{name}.py'), options=options)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).eval()
    if name == 'mask_rcnn':  # detects something
        model.roi_head.bbox_head.fc_cls.weight.data *= 10
    checkpoint, out = tmp_path / 'model.pth', tmp_path / 'model.onnx'
    torch.save(dict(state_dict=model.state_dict(), meta=dict(dataset_meta=dict(classes=list(
        'abcdef')))), checkpoint)
    export(Namespace(config=cfg.filename, checkpoint=str(checkpoint), out=str(out),
                     img_size=None, images=None, joining=None, backbone=None, int8=None,
                     cfg_options=options))
    scene = next(path for path in sorted((tmp_path / 'scenes').rglob('*.*'))
                 if path.suffix in ('.jpg', '.JPEG', '.png') and 'annotations' not in path.parts
                 and 'val' in str(path.relative_to(tmp_path)))
    path = str(tmp_path / 'image.png')
    cv2.imwrite(path, cv2.resize(cv2.imread(str(scene)), size[::-1],
                                 interpolation=cv2.INTER_NEAREST))
    steps = [step for step in cfg.test_dataloader.dataset.pipeline
             if 'LoadAnnotations' not in step['type']]
    data = Compose(steps)(dict(img_path=path, img_id=0, seg_fields=[]))
    with torch.no_grad():
        expected = model.test_step(pseudo_collate([data]))[0]
    found = Model(out)(path)
    assert found.names[:6] == tuple('abcdef')  # a number for a class without a name
    if name == 'deit':
        scores = np.empty_like(found.scores)
        scores[found.labels] = found.scores
        np.testing.assert_allclose(scores, expected.pred_score, atol=1e-3)
    elif name == 'mask_rcnn':
        instances = expected.pred_instances
        overlap = box_iou(instances.bboxes, torch.from_numpy(found.boxes))
        overlap[instances.labels[:, None] != torch.from_numpy(found.labels)] = 0
        best, index = overlap.max(1)
        assert len(instances) and len(found.labels) and (best > .95).float().mean() > .8
        agree = instances.masks.numpy() == found.masks[index]
        assert agree[best > .95].mean() > .98
        assert found.masks.shape[1:] == size
    else:
        same = found.label_map == expected.pred_sem_seg.data[0].numpy()
        assert same.shape == size and same.mean() > .99


@pytest.mark.parametrize('name, turned', [
    ('quickstart/deit.py', True), ('deit/deit-tiny-mpvg_4xb256-300e_in1k.py', True),
    ('quickstart/upernet.py', False), ('quickstart/mask_rcnn.py', False),
    ('vit_lite/vit-lite-7-mpvg_1xb128-310e_cifar100.py', False),
    ('studies/deit_imagenet-mini.py', False)])
def test_pipelines_that_turn_the_channels(name, turned):
    cfg = load_config(str(ROOT / name))
    init_default_scope(cfg.default_scope)
    __import__(f'{cfg.default_scope}.datasets')
    assert turns_channels(cfg) is turned


def test_another_colour_is_refused():
    cfg = load_config(str(ROOT / 'quickstart/deit.py'))
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(
        type='ColorTransform', magnitude=1., prob=1., random_negative_prob=0.))
    with pytest.raises(RunError, match=r'turns the colour \[10, 90, 200\] into'):
        turns_channels(cfg)
