"""The wheel and the sdist: what is in them, and that the wheel trains from an empty folder."""
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import lape_mm
from lape_mm.requirements import TOOLBOXES, missing

ROOT = Path(__file__).parents[1]
FEW = ['scenes.num_train=12', 'scenes.num_val=6', 'train_dataloader.batch_size=6',
       'train_dataloader.num_workers=0', 'train_cfg.max_epochs=1', 'train_cfg.val_interval=1']


def start(*argv, cwd, **env):
    run = subprocess.run([sys.executable, *map(str, argv)], cwd=cwd, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         env={**os.environ, **env})
    return run.returncode, run.stdout


def test_tools_by_name(tmp_path):
    status, said = start('-m', 'lape_mm', cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert status == 2 and 'usage: python -m lape_mm {analyze_position,' in said
    status, said = start('-m', 'lape_mm', 'param_table', '-h', cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert status == 0 and said.startswith('usage: python -m lape_mm param_table')


@pytest.fixture(scope='module')
def dist(tmp_path_factory):
    """The folder of a wheel and an sdist of this checkout, with what uv or pip has at hand."""
    folder = tmp_path_factory.mktemp('dist')
    tree = tmp_path_factory.mktemp('tree') / 'lape_mm'
    files = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, check=True)
    for name in files.stdout.decode().split('\0')[:-1]:
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    run = subprocess.run(['uv', 'build', '--quiet', '--python', sys.executable, '--out-dir', folder,
                          tree], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return folder


@pytest.mark.long
def test_what_is_in_them(dist):
    wheel, = dist.glob('*.whl')
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ('configs', 'tools'):
        ours = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob('*.*')
                if path.suffix in ('.py', '.yml', '.sh')}
        assert ours == {name.removeprefix('lape_mm/.mim/') for name in names
                        if name.startswith(f'lape_mm/.mim/{folder}/')}
    assert {'lape_mm/py.typed', 'lape_mm/.mim/model-index.yml',
            'lape_mm/.mim/configs/deit/metafile.yml'} <= names
    tops = {name.split('/')[0] for name in names}
    assert tops == {'lape_mm', f'lape_mm-{lape_mm.__version__}.dist-info'}
    sdist, = dist.glob('*.tar.gz')
    inside = {name.partition('/')[2] for name in tarfile.open(sdist).getnames()}
    assert {'pyproject.toml', 'setup.py', 'configs/quickstart/deit.py', 'tools/train.py'} <= inside
    assert not [name for name in inside if name.split('/')[0] in ('tests', 'benchmarks', 'data')]


@pytest.mark.long
@pytest.mark.skipif(bool(missing(*TOOLBOXES['mmpretrain'])), reason='needs mmpretrain')
def test_the_wheel_trains_from_an_empty_folder(dist, tmp_path):
    """Unpacked before the installed packages; .ci/wheel installs it into a new environment."""
    wheel, = dist.glob('*.whl')
    zipfile.ZipFile(wheel).extractall(tmp_path / 'site')
    (tmp_path / 'empty').mkdir()
    status, said = start('-m', 'lape_mm', 'train', 'lape_mm::quickstart/deit.py', '--cfg-options',
                         *FEW, cwd=tmp_path / 'empty', PYTHONPATH=str(tmp_path / 'site'),
                         LAPE_MM_SCENES='scenes')
    assert status == 0, said[-3000:]
    assert 'metrics:     accuracy/top1' in said
    assert (tmp_path / 'empty/work_dirs/deit/epoch_1.pth').is_file()
