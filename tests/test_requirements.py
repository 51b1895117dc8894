"""What is missing is named with the command that installs it."""
import subprocess
import sys
from importlib.util import find_spec

import pytest

from lape_mm.requirements import install_hint, missing, require


def test_hints():
    assert 'pip install "lape_mm[onedl]"' in install_hint('mmdet')
    assert 'upstream' in install_hint('mmdet')
    assert 'MMCV_WITH_OPS=1' in install_hint('mmcv._ext')


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
