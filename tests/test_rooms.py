"""Dependencies point one way, so that a user with one toolbox needs no other."""
import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / 'lape_mm'
TOOLBOXES = {'mmdet', 'mmseg', 'mmpretrain'}
STACK = TOOLBOXES | {'mmengine', 'mmcv'}
ROOMS = {
    'position': STACK | {f'lape_mm.{room}' for room in ('backbones', 'checkpoints', 'engine',
                                                        'datasets', 'runs')},
    # mmcv's operator is imported where it is called, and only if it is there
    'backbones': TOOLBOXES | {f'lape_mm.{room}' for room in ('checkpoints', 'engine', 'datasets',
                                                            'runs')},
    'checkpoints': STACK - {'mmengine'} | {'lape_mm.engine', 'lape_mm.datasets', 'lape_mm.runs'},
    'analysis': STACK | {f'lape_mm.{room}' for room in ('engine', 'export', 'datasets', 'runs')},
    'export': STACK | {f'lape_mm.{room}' for room in ('checkpoints', 'engine', 'datasets',
                                                      'runs')},
    'timm': STACK | {'lape_mm.engine', 'lape_mm.datasets', 'lape_mm.runs'},
    'engine': STACK - {'mmengine'} | {'lape_mm.datasets', 'lape_mm.runs'},
    'datasets': STACK | {'torch', 'lape_mm.backbones', 'lape_mm.runs'},
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


@pytest.mark.parametrize('room', ROOMS)
def test_a_room_imports_nothing_from_above(room):
    modules = [(path.name, module) for path in (PACKAGE / room).glob('*.py')
               for module in imported(path)]
    assert modules
    for file, module in modules:
        parts = module.split('.')
        names = {'.'.join(parts[:length]) for length in (1, 2)}
        assert not names & ROOMS[room], f'{room}/{file} imports {module}'
