"""Dependencies point one way, so that a user with one toolbox needs no other."""
import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / 'lape_mm'
TOOLBOXES = {'mmdet', 'mmseg', 'mmpretrain'}
STACK = TOOLBOXES | {'mmengine', 'mmcv'}
HARNESS = {'lape_mm.datasets', 'lape_mm.runs'}
# package -> what its modules must not import when they are loaded
FORBIDDEN = {
    'position': STACK | HARNESS | {'lape_mm.backbones', 'lape_mm.checkpoints'},
    # mmcv's operator is imported where it is called, and only if it is there
    'backbones': TOOLBOXES | HARNESS | {'lape_mm.checkpoints'},
    'checkpoints': STACK - {'mmengine'} | HARNESS,
    'analysis': STACK | HARNESS | {'lape_mm.export'},
    'export': STACK | HARNESS | {'lape_mm.checkpoints'},
    'timm': STACK | HARNESS,
    'runs/engine': STACK - {'mmengine'} | {'lape_mm.datasets'},
    'datasets': STACK | {'torch', 'lape_mm.backbones', 'lape_mm.runs'},
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


@pytest.mark.parametrize('package', FORBIDDEN)
def test_a_package_imports_nothing_from_above(package):
    modules = [(path.name, module) for path in (PACKAGE / package).glob('*.py')
               for module in imported(path)]
    assert modules
    for file, module in modules:
        parts = module.split('.')
        names = {'.'.join(parts[:length]) for length in (1, 2)}
        assert not names & FORBIDDEN[package], f'{package}/{file} imports {module}'
