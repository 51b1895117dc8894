"""The tools as modules."""
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / 'tools'


@pytest.fixture
def load():
    """Imports tools/NAME.py."""
    def load(name):
        spec = spec_from_file_location(name, TOOLS / f'{name}.py')
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return load
