"""tools/analyze_position.py: what it parses, whole runs of every task, mistakes in one line."""
import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip('mmengine')
pytest.importorskip('matplotlib')
from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from quickstarts import SCOPES, config  # noqa: E402

from lape_mm.runs.config import load_config  # noqa: E402


@pytest.fixture(autouse=True)
def own_log(forgetful):
    """A logger of an earlier test writes to where that test's output went."""


@pytest.fixture
def tool(load):
    return load('analyze_position')


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    """Two folders of pictures of different sizes, as class folders are."""
    import cv2
    folder = tmp_path_factory.mktemp('images')
    random = np.random.default_rng(0)
    for name, size in (('a/1.png', (70, 90)), ('a/2.png', (90, 70)), ('b/1.png', (80, 80))):
        (folder / name).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(folder / name), random.integers(0, 255, (*size, 3), dtype=np.uint8))
    return folder


def checkpoint(path, task, joining, part=None):
    """Weights as they are initialised, of the whole model or of its backbone."""
    cfg = load_config(config(task), joining=joining)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    torch.save({'model': (model if part is None else getattr(model, part)).state_dict()}, path)
    return str(path)


@pytest.fixture
def undrawn(monkeypatch):
    """Without drawing, whose own tests are tests/analysis/test_report.py; a stub of a picture."""
    from matplotlib.figure import Figure

    from lape_mm.analysis import write
    monkeypatch.setattr(write, 'SECTIONS', [
        section._replace(draw=lambda *_: Figure(figsize=(1, 1))) for section in write.SECTIONS])


def test_what_is_compared():
    from lape_mm.runs.analysis import read_other
    for text, found in (('pvg=p.pth', ('c.py', 'pvg', 'p.pth')),
                        ('dict(last=0)=d.pth', ('c.py', {'last': 0}, 'd.pth')),
                        ('b.py=x.pth', ('b.py', None, 'x.pth'))):
        assert read_other(text, 'c.py') == found


@pytest.mark.parametrize('task', SCOPES)
def test_every_task_has_a_report(tool, task, images, tmp_path, undrawn, capsys):
    weights = checkpoint(tmp_path / 'w.pth', task, 'mpvg')
    assert tool.main([config(task), weights, '--joining', 'mpvg', '--images', str(images),
                      '--out', str(tmp_path / 'out'), '--num-images', '2']) == 0
    assert 'report.html' in capsys.readouterr().out.splitlines()[-1]
    summary = json.loads((tmp_path / 'out/summary.json').read_text())
    keys = {row['key'] for row in summary['rows']}
    assert keys >= {'similarity', 'heatmaps', 'correlation', 'last_norm', 'token_norms',
                    'attention_distance', 'attention'}
    assert ('features' in keys) == (task != 'deit')
    assert summary['models']['mpvg']['checkpoint'] == 'w.pth (whole model)'
    assert summary['models']['mpvg']['images'].startswith('2 of ')


def test_a_backbone_alone_and_a_comparison(tool, images, tmp_path, undrawn):
    whole = checkpoint(tmp_path / 'w.pth', 'deit', 'lape')
    backbone = checkpoint(tmp_path / 'b.pth', 'deit', 'lape', part='backbone')
    other = checkpoint(tmp_path / 'o.pth', 'deit', dict(first_layer=1))
    assert tool.main([config('deit'), whole, '--joining', 'lape', '--images', str(images),
                      '--out', str(tmp_path / 'out'), '--compare', f'lape={backbone}',
                      f'dict(first_layer=1)={other}']) == 0
    summary = json.loads((tmp_path / 'out/summary.json').read_text())
    assert list(summary['models']) == ['lape', 'lape (2)', 'first_layer=1']
    assert summary['models']['lape (2)']['checkpoint'] == 'b.pth (backbone alone)'
    # each as initialised, but by the same way: one PE norm a layer, ones and zeros
    assert len(summary['rows'][0]['numbers']['lape (2)']['mean similarity of two patches']) == 6


def test_images_reach_the_backbone_as_in_a_test(images, tmp_path):
    """The pipeline and preprocessor of the config against those of its own test loader."""
    checkpoint(tmp_path / 'w.pth', 'deit', 'mpvg')
    from mmengine.dataset import Compose

    from lape_mm.runs.images import find_images, load_images
    cfg = load_config(config('deit'))
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    paths = find_images(str(images), 3)
    assert [path.relative_to(images).as_posix() for path in paths] == \
        ['a/1.png', 'b/1.png', 'a/2.png']
    found, pictures = load_images(cfg, model, paths, (64, 64))
    pipeline = Compose(cfg.test_dataloader.dataset.pipeline)
    for path, image, picture in zip(paths, found, pictures):
        packed = pipeline(dict(img_path=str(path), gt_label=0))
        batch = model.data_preprocessor(dict(inputs=[packed['inputs']],
                                             data_samples=[packed['data_samples']]))
        torch.testing.assert_close(image, batch['inputs'][0])
        # a picture is RGB, which this pipeline hands over
        np.testing.assert_allclose(picture, packed['inputs'].permute(1, 2, 0) / 255, atol=1e-6)


@pytest.mark.parametrize('change, said', [
    (dict(checkpoint='no.pth'), 'no.pth: no such file'),
    (dict(checkpoint='s3://a/b.pth'), 's3://a/b.pth: expected a local file or an http(s) address'),
    (dict(images='no_folder'), 'no_folder: holds no image'),
    (dict(images='bad'), 'x.png: cannot be read as an image'),
    (dict(joining='foo'), "joining='foo': expected one of"),
    (dict(joining='default'), 'does not fit the config'),
    (dict(joining='pvg'), 'which the config\'s joining does not use'),
    (dict(compare='nothing'), 'expected JOINING=CHECKPOINT or CONFIG.py=CHECKPOINT'),
    (dict(compare='no.py=no.pth'), 'there is no config no.py'),
])
def test_mistakes(tool, capsys, tmp_path, images, change, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('bad').mkdir()
    Path('bad/x.png').write_text('no image')
    values = dict(config=config('deit'), joining='mpvg', images=str(images), num_images='1',
                  compare='', **{'checkpoint': checkpoint(tmp_path / 'w.pth', 'deit', 'mpvg')})
    values.update(change)
    argv = [values['config'], values['checkpoint'], '--joining', values['joining'], '--images',
            values['images'], '--out', str(tmp_path / 'out'), '--num-images',
            values['num_images']]
    assert tool.main(argv + (['--compare', values['compare']] if values['compare'] else [])) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and said in error and error.count('\n') == 1
    assert not (tmp_path / 'out').exists()
