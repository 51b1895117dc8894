"""mmcv's operators from torchvision and PyTorch, where the compiled extension is absent.

`install` appends a finder to `sys.meta_path`. Python asks it last, so it finds `mmcv._ext` only
where mmcv was installed without compiled operators; nothing of mmcv is written or patched. The
module it finds is `operators.py` of this folder, under the name `mmcv._ext`.

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
    """Finds `mmcv._ext` in `operators.py`."""

    def find_spec(self, fullname: str, path=None, target=None) -> ModuleSpec | None:
        return spec_from_file_location(NAME, OPERATORS) if fullname == NAME else None


def install() -> None:
    """Appends the finder, once."""
    if not any(isinstance(finder, OperatorFinder) for finder in sys.meta_path):
        sys.meta_path.append(OperatorFinder())


def compiled() -> bool:
    """Whether mmcv is installed with compiled operators, for whichever devices. Imports nothing."""
    spec = find_spec('mmcv')
    return bool(spec and spec.origin and any(Path(spec.origin).parent.glob('_ext.*')))
