"""The toolboxes' own inferencers take our configs and checkpoints, for images and for a folder."""
import shutil

import numpy as np
import pytest
from quickstarts import CONFIGS, draw, forget, save_untrained

from lape_mm.checkpoints import install_safe_loader


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """scope -> config file, checkpoint, and the inputs: two images, and a folder of them."""
    from mmengine.runner import CheckpointLoader
    monkeypatch.setattr(CheckpointLoader, '_schemes', dict(CheckpointLoader._schemes))
    install_safe_loader()

    def prepare(scope):
        cfg, images = draw(scope, tmp_path, monkeypatch)
        (tmp_path / 'images').mkdir()
        for image in images[:2]:
            shutil.copy(image, tmp_path / 'images')
        return (str(CONFIGS[scope]), save_untrained(cfg, tmp_path / 'untrained.pth'),
                (list(map(str, images[:2])), str(tmp_path / 'images')))
    yield prepare
    forget()


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_detection_and_segmentation(scope, prepared, tmp_path):
    config, checkpoint, inputs = prepared(scope)
    from importlib import import_module
    apis = import_module(f'{scope}.apis')
    kind = apis.DetInferencer if scope == 'mmdet' else apis.MMSegInferencer
    inferencer = kind(model=config, weights=checkpoint, device='cpu')
    for number, given in enumerate(inputs):
        out = tmp_path / f'out_{number}'
        predictions = inferencer(given, out_dir=str(out))['predictions']
        assert len(predictions) == len(list((out / 'vis').iterdir())) == 2
        for entry in predictions:
            assert 'masks' in entry if scope == 'mmdet' else np.asarray(entry).shape == (128, 128)


def test_classification(prepared):
    config, checkpoint, inputs = prepared('mmpretrain')
    from mmpretrain import ImageClassificationInferencer
    inferencer = ImageClassificationInferencer(model=config, pretrained=checkpoint, device='cpu')
    images, folder = (sorted(inferencer(given), key=lambda entry: float(entry['pred_score']))
                      for given in inputs)
    for one, other in zip(images, folder, strict=True):
        assert len(one['pred_scores']) == 6 and one['pred_class'] in (
            'disc', 'square', 'triangle', 'star', 'ring', 'cross')
        np.testing.assert_allclose(one['pred_scores'], other['pred_scores'], atol=1e-5)
