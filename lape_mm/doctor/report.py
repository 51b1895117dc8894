"""The doctor's report, and the commands that repair known import errors."""
from __future__ import annotations

from importlib import import_module
from typing import Any

from lape_mm.requirements import install_hint, missing, plain_mmcv
from lape_mm.wording import first_line

ONEDL = 'pip install "lape_mm[onedl]"'
NUMPY = 'pip install "numpy<2"  (upstream OpenMMLab was built for it)'
# part of an import error -> the command that repairs it
REMEDIES = {
    "No module named 'pkg_resources'":
        'pip install "setuptools<82"  (later versions have no pkg_resources)',
    'libGL.so': 'pip install opencv-python-headless, or install the system package libgl1',
    'torchvision::nms':
        'pip install --force-reinstall torch torchvision  (from one index, together)',
    'numpy.core': NUMPY, '_ARRAY_API': NUMPY, 'compiled using NumPy 1': NUMPY,
    'undefined symbol': f'{plain_mmcv()}  (mmcv was compiled for another torch)',
}


class Doctor:
    """Prints findings as they come, and keeps them.

    Attributes:
        findings: (status, text) each; the status is 'ok', 'note' or 'BROKEN'.
        broken: modules that cannot be used.
    """

    def __init__(self):
        self.findings: list[tuple[str, str]] = []
        self.broken: set[str] = set()

    def say(self, status: str, text: str, remedy: str = '') -> None:
        """Prints a finding, and the command that repairs it."""
        self.findings.append((status, text))
        print(f'{status:<7} {text}', flush=True)
        if remedy:
            print(f'{"":<7}   mend: {remedy}', flush=True)

    def blame(self, module: str, text: str, remedy: str) -> None:
        """Says that a module is broken."""
        self.broken.add(module)
        self.say('BROKEN', text, remedy)

    def attempt(self, module: str, needs: tuple[str, ...] = (), remedy: str = '') -> Any:
        """Imports a module; None if it fails, or if a module that it needs is broken."""
        if causes := sorted(self.broken & set(needs)):
            self.broken.add(module)
            self.say('note', f'{module}: skipped, because {", ".join(causes)} is broken or missing')
            return None
        if '.' not in module and missing(module):
            self.blame(module, f'{module} is not installed', hint(module))
            return None
        try:
            return import_module(module)
        except Exception as error:  # a broken package can raise anything
            self.blame(module, f'{module} cannot be imported: {first_line(error, kind=True)}',
                       remedy_of(module, error) or remedy)
            return None


def hint(module: str) -> str:
    """The command that installs a module."""
    return install_hint(module).partition(': ')[2]


def remedy_of(module: str, error: Exception) -> str:
    """The command that repairs an import error, '' if none is known."""
    text = str(error)
    if isinstance(error, AssertionError) and 'incompatible' in text:
        # upstream mmdet 3.3.0 and mmsegmentation 1.2.2 refuse mmcv 2.2 and later
        return (f'{plain_mmcv(upstream=True)} (the mmcv that upstream {module} accepts), or the '
                f'forks, which accept later ones: {ONEDL}')
    for sign, remedy in REMEDIES.items():
        if sign in text:
            return remedy
    if isinstance(error, ModuleNotFoundError) and error.name:
        return hint(error.name.partition('.')[0])
    return ''


def version_of(module: Any) -> str:
    """A module's version, '?' if it has none."""
    return str(getattr(module, '__version__', '?'))
