"""tools/deploy.py: a folded model is a config and a checkpoint like any other."""
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip('mmpretrain')
from mmengine.config import Config  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402

from lape_mm.checkpoints import read_checkpoint  # noqa: E402
from lape_mm.runs.config import load_config  # noqa: E402
from lape_mm.runs.deploy import load_model  # noqa: E402
from lape_mm.runs.errors import RunError  # noqa: E402
from lape_mm.runs.loading import check_classes  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / 'tools'))

CONFIG = '''
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='lape_mm.DeiT', img_size=32, joining={joining!r},
                  arch=dict(embed_dim=24, depth=2, num_heads=3)),
    head=dict(type='LinearClsHead', num_classes=5, in_channels=24))
'''


@pytest.fixture
def trained(tmp_path, request):
    (tmp_path / 'c.py').write_text(CONFIG.format(joining=request.param))
    init_default_scope('mmpretrain')
    model = MODELS.build(Config.fromfile(tmp_path / 'c.py').model)
    torch.save({'state_dict': model.state_dict()}, tmp_path / 'c.pth')
    return tmp_path, model.eval()


def run(*argv):
    sys.modules.pop('deploy', None)
    import deploy
    return deploy.main([str(part) for part in argv])


@pytest.mark.parametrize('trained', ['default', 'lape', 'mpvg'], indirect=True)
def test_the_folded_model_gives_the_same(trained, capsys):
    folder, model = trained
    assert run(folder / 'c.py', folder / 'c.pth', folder / 'out', '--img-size', 48, 32) == 0
    assert 'folded for 48 x 32 pixels' in capsys.readouterr().out
    cfg = load_config(str(folder / 'out/model.py'))
    folded = load_model(cfg, str(folder / 'out/model.pth'))
    image = torch.randn(2, 3, 48, 32)
    with torch.no_grad():
        torch.testing.assert_close(folded(image), model(image), rtol=0, atol=1e-5)
    assert not any('pe_norm' in key for key in folded.state_dict())
    # a second run writes over nothing
    assert run(folder / 'c.py', folder / 'c.pth', folder / 'out', '--img-size', 32) == 2
    assert 'holds a model already' in capsys.readouterr().err


@pytest.mark.parametrize('trained', ['lape'], indirect=True)
def test_it_knows_the_classes_that_it_was_trained_with(trained):
    folder, model = trained
    named = dict(classes=('disc', 'square', 'star', 'ring', 'bar'), palette=[[0, 1, 2]] * 5)
    torch.save({'state_dict': model.state_dict(), 'optimizer': {}, 'meta': dict(
        iter=3, config='x = 1', dataset_meta=dict(named, colours=np.zeros(3)))}, folder / 'c.pth')
    assert run(folder / 'c.py', folder / 'c.pth', folder / 'out', '--img-size', 32) == 0
    content = read_checkpoint(folder / 'out/model.pth')
    assert set(content) == {'state_dict', 'meta'}
    assert set(content['meta']) == {'folded_from', 'img_size', 'dataset_meta'}
    assert content['meta']['dataset_meta'] == named  # an array is no plain data
    with pytest.raises(RunError, match="'square' as label 1"):
        check_classes(content, ('square', 'disc'))
    # as mmpretrain's inferencers do; mmdet's and mmseg's take the names from there, too
    from mmpretrain import get_model
    deployed = get_model(str(folder / 'out/model.py'), pretrained=str(folder / 'out/model.pth'))
    assert deployed._dataset_meta == named
    # of a file that names none, so that mmseg still goes by their number
    torch.save({'state_dict': model.state_dict()}, folder / 'c.pth')
    assert run(folder / 'c.py', folder / 'c.pth', folder / 'bare', '--img-size', 32) == 0
    assert set(read_checkpoint(folder / 'bare/model.pth')['meta']) == {'folded_from', 'img_size'}


@pytest.mark.parametrize('kind, sizes', [
    ('T2TViT', dict(embed_dim=24, depth=2, num_heads=3, token_dim=8)),
    ('DeiT', dict(embed_dim=24, depth=2, num_heads=3))])
def test_images_of_other_than_three_channels(kind, sizes, tmp_path):
    """The first weight of T2T-ViT's patch embedding with four dimensions is no convolution's."""
    text = CONFIG.format(joining='lape').replace('lape_mm.DeiT', f'lape_mm.{kind}')
    text = text.replace('arch=dict(embed_dim=24, depth=2, num_heads=3)',
                        f'in_channels=4, arch={sizes}')
    (tmp_path / 'c.py').write_text(text)
    init_default_scope('mmpretrain')
    model = MODELS.build(Config.fromfile(tmp_path / 'c.py').model)
    torch.save({'state_dict': model.state_dict()}, tmp_path / 'c.pth')
    assert run(tmp_path / 'c.py', tmp_path / 'c.pth', tmp_path / 'out', '--img-size', 32) == 0


@pytest.mark.parametrize('trained', ['mpvg'], indirect=True)
def test_what_cannot_be_compared_is_said(trained, capsys, monkeypatch):
    folder, _ = trained

    def fails(*args):
        raise RuntimeError('sizes differ\nin many lines')
    monkeypatch.setattr('lape_mm.runs.deploy.compare', fails)
    assert run(folder / 'c.py', folder / 'c.pth', folder / 'out', '--img-size', 32) == 2
    error, = capsys.readouterr().err.splitlines()
    assert 'for 32 x 32 pixels cannot be compared (RuntimeError: sizes differ)' in error
    assert not (folder / 'out').exists()


@pytest.mark.parametrize('trained', ['mpvg'], indirect=True)
def test_what_cannot_be_deployed_is_said(trained, capsys):
    folder, _ = trained
    assert run(folder / 'c.py', folder / 'c.pth', folder / 'out', '--img-size', 32,
               '--joining', 'default') == 2
    assert 'does not fit' in capsys.readouterr().err
    assert run(folder / 'c.py', folder / 'nothing.pth', folder / 'out', '--img-size', 32) == 2
    assert 'no such file' in capsys.readouterr().err
    assert not (folder / 'out').exists()
