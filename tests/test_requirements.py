"""What is missing is named with the command that installs it."""
import subprocess
import sys
from importlib.util import find_spec

import pytest

from lape_mm import requirements
from lape_mm.requirements import build_mmcv, install_hint, missing, require


def test_hints():
    assert 'pip install "lape_mm[onedl]"' in install_hint('mmdet')
    assert 'upstream' in install_hint('mmdet')
    assert 'MMCV_WITH_OPS=1' in install_hint('mmcv._ext')


@pytest.mark.parametrize(('have', 'setuptools', 'mmcv'), [
    ((), '"setuptools>=77,<82"', 'onedl-mmcv'),
    (('onedl-mmcv', ), '"setuptools>=77,<82"', 'onedl-mmcv'),
    (('mmcv', ), '"setuptools<70"', '"mmcv==2.1.0"')])
def test_mmcv_is_built_with_what_it_builds_with(have, setuptools, mmcv, monkeypatch):
    monkeypatch.setattr(requirements, 'installed', lambda name: '2' if name in have else None)
    first, then = build_mmcv().split(' && ')
    assert first.startswith(f'pip install {setuptools} ')
    assert then.startswith('MMCV_WITH_OPS=1 pip') and then.endswith(f' {mmcv}')
    assert build_mmcv(cuda=True) == f'{first} && FORCE_CUDA=1 {then}'


def test_missing():
    assert missing('json', 'no_such_module', 'no_such.inner') == ['no_such_module',
                                                                  'no_such.inner']


def test_require():
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
