"""The doctor names the cause, and the command that repairs it, in broken environments."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lape_mm.mmcv_ext
from lape_mm.doctor import Doctor, check_config
from lape_mm.requirements import missing, plain_mmcv

ROOT = Path(__file__).parents[1]
# a finder before all others, which hides the modules it names
HIDING = '''
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = staticmethod(lambda name, *rest: (
    None if name.split('.')[0] in {names!r} else find(name, *rest)))
'''
TORCH = '''
__version__ = '{version}'
class cuda:
    is_available = staticmethod(lambda: False)
'''
OPS = {'mmcv/_ext.py': '', 'mmcv/ops.py': ''}
# stand-ins that work, as far as the doctor looks at them
WORKING = {'torch.py': TORCH.format(version='2.11.0'), 'torchvision.py': '', 'mmseg.py': '',
           'timm.py': "__version__ = '1.0.31'", 'mmengine.py': '', 'mmdet.py': '',
           'mmpretrain.py': '', 'mmcv/__init__.py': "__version__ = '2.3.6'", **OPS}
REFUSES = '''
import mmcv
assert mmcv.__version__ < '2.2.0', (
    f'MMCV=={mmcv.__version__} is used but incompatible. Please install mmcv>=2.0.0rc4, <2.2.0.')
'''


def examine(folder, files=None, hidden=(), config=()):
    """The doctor's lines and exit status, with ``files`` first in the path."""
    fakes = folder / 'fakes'
    fakes.mkdir()
    for name, text in {**(files or {}), 'sitecustomize.py': HIDING.format(names=hidden)}.items():
        (fakes / name).parent.mkdir(exist_ok=True)
        (fakes / name).write_text(text)
    result = subprocess.run(
        [sys.executable, '-W', 'ignore', '-m', 'lape_mm.doctor', *config], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={
            **os.environ, 'PYTHONPATH': f'{fakes}:{ROOT}', 'PYTHONDONTWRITEBYTECODE': '1'})
    assert 'Traceback' not in result.stdout, result.stdout
    return result.stdout.splitlines(), result.returncode


def broken(lines):
    """The causes, each with its remedy."""
    return [(line[8:], following.strip()) for line, following in zip(lines, lines[1:])
            if line.startswith('BROKEN')]


def without(*names, **changed):
    return {name: text for name, text in WORKING.items() if name not in names} | changed


@pytest.mark.parametrize(('files', 'hidden', 'cause', 'remedy'), [
    ({'torch.py': TORCH.format(version='1.13.1')}, (), 'torch 1.13.1 is older than 2.7',
     'pip install --upgrade torch'),
    ({}, ('torch',), 'torch is not installed', 'pip install torch'),
    ({'torch.py': "raise OSError('libcudart.so.13: cannot open shared object file')"}, (),
     'torch cannot be imported: OSError: libcudart', '--force-reinstall torch'),
    ({**WORKING, 'torchvision.py':
      "raise RuntimeError('operator torchvision::nms does not exist')"}, (),
     'torchvision cannot be imported: RuntimeError: operator', 'torch torchvision'),
    ({**WORKING, 'mmcv/_ext.py': "raise ImportError('_ext.so: undefined symbol: _ZN3c10')"}, (),
     'mmcv._ext cannot be imported: ImportError: _ext.so', plain_mmcv()),
    ({**WORKING, 'mmdet.py': REFUSES, 'mmcv/ops.py': 'from torch_ops import nms',
      'torch_ops.py': 'def nms(*args, **kwargs): return None, [0]',
      'torch.py': WORKING['torch.py'] + '\ntensor = lambda *args, **kwargs: None\n'}, (),
     'mmdet cannot be imported: AssertionError: MMCV==2.3.6', 'mmcv-lite==2.1.0'),
    ({**WORKING, 'mmengine.py': 'import pkg_resources', 'pkg_resources.py':
      """raise ModuleNotFoundError("No module named 'pkg_resources'", name='pkg_resources')"""},
     (), 'mmengine cannot be imported: ModuleNotFoundError', 'setuptools<82'),
    (without('mmengine.py'), ('mmengine',), 'mmengine is not installed', 'lape_mm[onedl]'),
])
def test_a_cause_and_its_remedy(tmp_path, files, hidden, cause, remedy):
    lines, status = examine(tmp_path, files, hidden)
    found = broken(lines)
    assert status == 1
    # our own code, and an operator, cannot run on a torch of two lines
    found = [entry for entry in found if not entry[0].startswith(('lape_mm', "mmcv's operators"))]
    assert len(found) == 1, lines  # what rests on the cause is not blamed
    assert found[0][0].startswith(cause) and remedy in found[0][1], lines
    assert 'broken, first: ' in lines[-1]


@pytest.mark.long
@pytest.mark.skipif(bool(missing('mmengine')), reason='needs mmengine')
def test_a_missing_toolbox_is_broken_only_for_its_configs(tmp_path):
    config = str(ROOT / 'configs/quickstart/mask_rcnn.py')
    lines, status = examine(tmp_path, hidden=('mmdet', 'mmseg', 'mmpretrain'), config=[config])
    assert status == 1
    assert any(line.startswith('note') and 'mmdet is not installed' in line for line in lines)
    text, = (line for line in lines if f'{config}: mmdet is not installed' in line)
    assert text.startswith('BROKEN') and 'lape_mm[onedl]' in text


@pytest.mark.skipif(bool(missing('mmpretrain')), reason='needs mmpretrain')
def test_missing_data_and_a_folder_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    (tmp_path / 'work_dirs').write_text('a file where a folder should be')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('LAPE_MM_IMAGENET', str(tmp_path / 'nowhere'))
    check_config(Doctor(), str(ROOT / 'configs/deit/deit-tiny-mpvg_4xb256-300e_in1k.py'))
    folder, choose, data, *_ = (line for line in capsys.readouterr().out.splitlines()
                                if line.startswith(('BROKEN', ' ')))
    assert f'writing into {tmp_path}/work_dirs: NotADirectory' in folder and '--work-dir' in choose
    assert 'nowhere does not exist' in data and 'LAPE_MM_IMAGENET' in data


@pytest.mark.long
def test_a_sound_environment(tmp_path):
    lines, status = examine(tmp_path, config=[str(ROOT / 'configs/quickstart/deit.py')])
    assert status == 0 and lines[-1] == 'everything works', lines
    kind = 'compiled' if lape_mm.mmcv_ext.compiled() else "lape_mm's, on torchvision"
    assert any(f"mmcv's operators on cpu: {kind}" in line for line in lines), lines
