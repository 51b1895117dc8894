"""OpenMMLab's own tools on our configs, from the installed packages: docs/openmmlab_tools.md."""
import json
import pickle
import re
import runpy
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image
from quickstarts import CONFIGS, ROOT, draw, forget, need, save_untrained
from tiny_models import build

matplotlib = pytest.importorskip('matplotlib')
DOCS = (ROOT / 'docs/openmmlab_tools.md').read_text()


def upstream(distribution):
    try:
        return bool(version(distribution))
    except PackageNotFoundError:  # the fork's is called onedl-mmdetection
        return False


@pytest.fixture
def tool(tmp_path, monkeypatch, capsys):
    """Runs a tool of an installed toolbox as a command line does; what it printed."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use('Agg')

    def run(scope, path, *argv):
        assert f'{scope}/.mim/tools/{path}' in DOCS
        file = Path(find_spec(scope).origin).parent / '.mim/tools' / path
        if not file.is_file():  # a checkout, or a wheel without tools
            pytest.skip(f'{scope} is installed without its tools')
        monkeypatch.setattr(sys, 'argv', [str(file), *map(str, argv)])
        forget()
        runpy.run_path(str(file), run_name='__main__')
        return capsys.readouterr().out
    yield run
    forget()
    matplotlib.pyplot.close('all')


def test_print_config(tool, tmp_path, monkeypatch):
    for scope, config in CONFIGS.items():
        need(scope)
        assert 'lape_mm.' in tool(scope, 'misc/print_config.py', config)


@pytest.mark.long
@pytest.mark.parametrize('scope, path', [
    ('mmdet', 'analysis_tools/browse_dataset.py'), ('mmseg', 'analysis_tools/browse_dataset.py'),
    ('mmpretrain', 'visualization/browse_dataset.py')])
def test_browse_dataset(tool, tmp_path, monkeypatch, scope, path):
    if scope == 'mmpretrain' and tuple(map(int, matplotlib.__version__.split('.')[:2])) >= (3, 11):
        pytest.skip("mmpretrain's tool needs matplotlib<3.11: pip install 'lape_mm[tools]'")
    draw(scope, tmp_path, monkeypatch)
    options = ['-n', 3] if scope == 'mmpretrain' else ['--not-show']
    tool(scope, path, CONFIGS[scope], '--output-dir', 'browsed', *options)
    assert len([file for file in Path('browsed').rglob('*') if file.is_file()]) >= 3


@pytest.mark.long
@pytest.mark.parametrize('scope, options', [
    ('mmdet', ['--num-images', 1]), ('mmseg', ['--shape', 128, 128]),
    ('mmpretrain', ['--shape', 64, 64])])
def test_get_flops(tool, tmp_path, monkeypatch, scope, options):
    draw(scope, tmp_path, monkeypatch)
    printed = tool(scope, 'analysis_tools/get_flops.py', CONFIGS[scope], *options)
    flops, params = (re.search(rf'{what}: ([\d.]+)(\w)', printed) for what in ('Flops', 'Params'))
    assert float(flops[1]) > 0 and flops[2] in 'MG' and float(params[1]) > 0 and params[2] == 'M'


def test_a_flop_counter_sees_through_deformable_attention():
    analysis = pytest.importorskip('mmengine.analysis')
    found = analysis.get_model_complexity_info(
        build('ViTAdapter', 'mpvg').eval(), (3, 64, 64), show_table=False, show_arch=False)
    assert found['flops'] > 1e6


@pytest.fixture
def log(tmp_path):
    """A log as a run writes it."""
    path = tmp_path / 'scalars.json'
    path.write_text(''.join(json.dumps(dict(
        lr=.1, loss=1 / step, data_time=.1, time=.2, epoch=1 + step // 5, iter=step, step=step))
        + '\n' for step in range(1, 10)))
    return path


@pytest.mark.parametrize('scope', CONFIGS)
def test_analyze_logs(tool, log, scope):
    need(scope)
    if scope == 'mmseg':
        pytest.importorskip('seaborn', reason="pip install 'lape_mm[tools]'")
    verb = [] if scope == 'mmseg' else ['plot_curve']
    # that of upstream takes seaborn's styles
    style = ['--style', 'ggplot'] if scope == 'mmdet' and not upstream('mmdet') else []
    tool(scope, 'analysis_tools/analyze_logs.py', *verb, log, '--keys', 'loss', *style,
         '--out', 'loss.png')
    assert Image.open('loss.png').size[0] > 100


@pytest.mark.long
def test_schedule(tool):
    need('mmpretrain')
    tool('mmpretrain', 'visualization/vis_scheduler.py', CONFIGS['mmpretrain'], '--not-show',
         '--save-path', 'rate.png', '--dataset-size', 128, '--cfg-options',
         'optim_wrapper.constructor=DefaultOptimWrapperConstructor')
    assert Image.open('rate.png').size[0] > 100


@pytest.mark.long
def test_confusion_matrix_of_a_classifier(tool, tmp_path, monkeypatch):
    cfg, _ = draw('mmpretrain', tmp_path, monkeypatch)
    checkpoint = save_untrained(cfg, tmp_path / 'untrained.pth')
    tool('mmpretrain', 'analysis_tools/confusion_matrix.py', CONFIGS['mmpretrain'], checkpoint,
         '--show-path', 'matrix.png', '--out', 'matrix.pkl')
    matrix = pickle.loads(Path('matrix.pkl').read_bytes())
    assert torch.as_tensor(matrix).sum() == 6 and Path('matrix.png').is_file()


@pytest.mark.long
def test_confusion_matrix_of_a_detector(tool, tmp_path, monkeypatch):
    """Of predictions as tools/test.py --out writes them: here none at all."""
    draw('mmdet', tmp_path, monkeypatch)
    empty = dict(bboxes=torch.zeros(0, 4), scores=torch.zeros(0),
                 labels=torch.zeros(0, dtype=torch.long))
    Path('predictions.pkl').write_bytes(pickle.dumps(
        [dict(img_id=index + 1, pred_instances=empty) for index in range(6)]))
    tool('mmdet', 'analysis_tools/confusion_matrix.py', CONFIGS['mmdet'], 'predictions.pkl',
         'matrix')
    assert Image.open('matrix/confusion_matrix.png').size[0] > 100
