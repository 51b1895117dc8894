"""The toolboxes' own inferencers take our configs and checkpoints, for images and for a folder."""
import shutil

import numpy as np
import pytest
from small_models import CONFIGS, draw, forget, pictures, save_untrained

from lape_mm.checkpoints import install_safe_loader


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """scope -> config file, checkpoint, images, and a folder of them."""
    from mmengine.runner import CheckpointLoader
    schemes = dict(CheckpointLoader._schemes)
    install_safe_loader()

    def prepare(scope):
        cfg = draw(scope, tmp_path, monkeypatch)
        checkpoint = save_untrained(scope, cfg, tmp_path / 'untrained.pth')
        images = pictures(tmp_path)[:2]
        (tmp_path / 'images').mkdir()
        for image in images:
            shutil.copy(image, tmp_path / 'images')
        return str(CONFIGS[scope]), checkpoint, images, str(tmp_path / 'images')
    yield prepare
    CheckpointLoader._schemes = schemes
    forget()


def test_detection(prepared, tmp_path):
    config, checkpoint, images, folder = prepared('mmdet')
    from mmdet.apis import DetInferencer
    inferencer = DetInferencer(model=config, weights=checkpoint, device='cpu', show_progress=False)
    assert inferencer.visualizer.dataset_meta['classes'][0] == 'disc'
    for inputs in (images, folder):
        out = tmp_path / ('of_folder' if inputs is folder else 'of_images')
        predictions = inferencer(inputs, out_dir=str(out))['predictions']
        assert len(predictions) == 2 and all('masks' in entry for entry in predictions)
        assert len(list((out / 'vis').iterdir())) == 2


def test_segmentation(prepared, tmp_path):
    config, checkpoint, images, folder = prepared('mmseg')
    from mmseg.apis import MMSegInferencer
    inferencer = MMSegInferencer(model=config, weights=checkpoint, device='cpu')
    for inputs in (images, folder):
        out = tmp_path / ('of_folder' if inputs is folder else 'of_images')
        predictions = inferencer(inputs, out_dir=str(out))['predictions']
        assert len(predictions) == 2
        for entry in predictions:
            assert np.asarray(entry).shape == (128, 128)
        assert len(list((out / 'vis').iterdir())) == 2


def test_classification(prepared):
    config, checkpoint, images, folder = prepared('mmpretrain')
    from mmpretrain import ImageClassificationInferencer
    inferencer = ImageClassificationInferencer(model=config, pretrained=checkpoint, device='cpu')
    expected = None
    for inputs in (images, folder):
        results = inferencer(inputs)
        assert len(results) == 2 and all(len(entry['pred_scores']) == 6 for entry in results)
        assert {entry['pred_class'] for entry in results} <= {
            'disc', 'square', 'triangle', 'star', 'ring', 'cross'}
        scores = sorted(float(entry['pred_score']) for entry in results)
        expected = expected or scores
        assert scores == pytest.approx(expected)
