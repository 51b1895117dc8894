"""What is missing is named with the command that installs it."""
import subprocess
import sys

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
    code = ('import importlib.util, sys\n'
            'from lape_mm import requirements\n'
            "path = importlib.util.find_spec('lape_mm.requirements').origin\n"
            "spec = importlib.util.spec_from_file_location('alone', path)\n"
            'before = set(sys.modules)\n'
            'spec.loader.exec_module(importlib.util.module_from_spec(spec))\n'
            'assert not set(sys.modules) - before, set(sys.modules) - before')
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0
