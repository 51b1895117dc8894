"""When `lape_mm.mmcv_ext` steps in."""
import os
import subprocess
import sys

import pytest


def run(code, *folders):
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                          env={**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, folders))})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_the_package_imports_no_torch():
    found = run('import sys, lape_mm\n'
                'print(*{"torch", "mmengine", "mmcv", "timm", "numpy"} & set(sys.modules))')
    assert found == []


def test_importing_the_package_leaves_setuptools_alone():
    """torch's compiler imports it."""
    assert run('import lape_mm, setuptools; print(setuptools.__name__)') == ['setuptools']


@pytest.mark.parametrize('compiled', [False, True])
def test_compiled_operators_come_first(tmp_path, compiled):
    (tmp_path / 'mmcv').mkdir()
    (tmp_path / 'mmcv/__init__.py').write_text('')
    if compiled:
        (tmp_path / 'mmcv/_ext.py').write_text('')
    found = run('import lape_mm, importlib.util as util\n'
                'print(util.find_spec("mmcv._ext").origin, lape_mm.mmcv_ext.compiled())', tmp_path)
    assert found[0].endswith('mmcv/_ext.py' if compiled else 'mmcv_ext/operators.py')
    assert found[1] == str(compiled)
