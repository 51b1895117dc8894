"""What a file makes of an image that OpenCV reads is what the config's pipeline and model make."""
from argparse import Namespace
from pathlib import Path

import pytest
import torch

for module in ('cv2', 'onnx', 'onnxruntime', 'onnxscript', 'mmengine', 'mmpretrain', 'mmseg'):
    pytest.importorskip(module, reason=f'{module} is not installed')

import cv2  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
from mmengine.dataset import pseudo_collate  # noqa: E402
from mmengine.registry import DATASETS, MODELS, init_default_scope  # noqa: E402

from lape_mm.runs.config import load_config  # noqa: E402
from lape_mm.runs.errors import RunError  # noqa: E402
from lape_mm.runs.export import export  # noqa: E402
from lape_mm.runs.images import turns_channels  # noqa: E402

ROOT = Path(__file__).parents[2] / 'configs'


@pytest.mark.parametrize('name, size', [
    ('deit', 64), pytest.param('upernet', 128, marks=pytest.mark.long),
    pytest.param('segmenter', 64, marks=pytest.mark.long)])
def test_a_file_takes_what_opencv_reads(name, size, tmp_path, monkeypatch, forgetful):
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path / 'scenes'))
    options = {'scenes.num_train': 8, 'scenes.num_val': 8}
    cfg = load_config(str(ROOT / f'quickstart/{name}.py'), options=options)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).eval()
    checkpoint, out = tmp_path / 'model.pth', tmp_path / 'model.onnx'
    torch.save(model.state_dict(), checkpoint)
    export(Namespace(config=cfg.filename, checkpoint=str(checkpoint), out=str(out), opset=18,
                     img_size=[size], images=None, joining=None, cfg_options=options))
    data = DATASETS.build(cfg.val_dataloader.dataset)[0]
    inputs = model.data_preprocessor(pseudo_collate([data]), False)['inputs']
    with torch.no_grad():
        expected = model(inputs, mode='tensor') if name == 'deit' else \
            model.encode_decode(inputs, [data['data_samples'].metainfo])
    image = cv2.resize(cv2.imread(data['data_samples'].img_path), (size, size))
    image = image.transpose(2, 0, 1)[None]
    session = onnxruntime.InferenceSession(out)
    found, = session.run(None, {'image': image.astype(np.float32)})
    scale = expected.abs().max()
    assert (torch.from_numpy(found) - expected).abs().max() <= 1e-4 * scale
    # else the test could not see an image whose channels are the wrong way round
    turned, = session.run(None, {'image': image[:, ::-1].astype(np.float32)})
    assert (torch.from_numpy(turned) - expected).abs().max() > 1e-2 * scale


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
