"""mmcv's operators on torchvision and PyTorch, for an mmcv without its compiled extension.

`install` appends a finder to `sys.meta_path`. Python asks it last, so a compiled `mmcv._ext` comes
first. Without one, the finder loads this folder's `operators.py` under that name. No file or
function of mmcv is changed.

This file imports neither torch nor mmcv: it runs before anything imports `mmcv.ops`.
"""
from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path

NAME = 'mmcv._ext'
OPERATORS = Path(__file__).with_name('operators.py')


class OperatorFinder(MetaPathFinder):
    """Makes `import mmcv._ext` load `operators.py`."""

    def find_spec(self, fullname: str, path=None, target=None) -> ModuleSpec | None:
        return spec_from_file_location(NAME, OPERATORS) if fullname == NAME else None


def install() -> None:
    """Appends the finder to `sys.meta_path`, once."""
    if not any(isinstance(finder, OperatorFinder) for finder in sys.meta_path):
        sys.meta_path.append(OperatorFinder())


def compiled() -> bool:
    """Whether mmcv is installed with compiled operators, for any device. Imports nothing."""
    spec = find_spec('mmcv')
    return bool(spec and spec.origin and any(Path(spec.origin).parent.glob('_ext.*')))
