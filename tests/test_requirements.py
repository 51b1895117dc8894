"""What is missing is named with the command that installs it."""
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lape_mm import requirements
from lape_mm.requirements import build_mmcv, missing, plain_mmcv, require

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(('have', 'setuptools', 'mmcv', 'plain'), [
    ((), '"setuptools>=77,<82"', 'onedl-mmcv', 'onedl-mmcv'),
    (('onedl-mmcv', ), '"setuptools>=77,<82"', 'onedl-mmcv', 'onedl-mmcv'),
    (('mmcv-lite', ), '"setuptools<70"', '"mmcv==2.1.0"', 'mmcv-lite==2.1.0')])
def test_mmcv_with_and_without_compiled_operators(have, setuptools, mmcv, plain, monkeypatch):
    monkeypatch.setattr(requirements, 'installed', lambda name: '2' if name in have else None)
    first, then = build_mmcv().split(' && ')
    assert first.endswith(f'pip install {setuptools} wheel ninja psutil')
    assert then.startswith('MMCV_WITH_OPS=1 ') and then.endswith(f' {mmcv}')
    assert plain_mmcv().endswith(plain) and 'MMCV_WITH_OPS' not in plain_mmcv()


def test_what_is_missing():
    assert missing('json', 'no_such_module') == ['no_such_module']
    require('json')
    with pytest.raises(ImportError, match='no_such_module is not installed: pip install'):
        require('json', 'no_such_module')


def test_needs_nothing():
    path = find_spec('lape_mm.requirements').origin
    code = ('import importlib.util, sys\n'
            f'spec = importlib.util.spec_from_file_location("alone", {path!r})\n'
            'spec.loader.exec_module(importlib.util.module_from_spec(spec))\n'
            'heavy = {"torch", "timm", "numpy", "mmengine"} & set(sys.modules)\n'
            'assert not heavy, heavy')
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0


def test_uv_and_pip_fix_the_same_versions():
    tomllib = pytest.importorskip('tomllib')  # from Python 3.11
    fixed = tomllib.loads((ROOT / 'pyproject.toml').read_text())['tool']['uv']
    lines = (ROOT / 'requirements/constraints.txt').read_text().splitlines()
    assert fixed['constraint-dependencies'] == [line for line in lines if not line.startswith('#')]
    assert all('==' in pin for pin in fixed['constraint-dependencies'])
