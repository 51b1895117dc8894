"""What the doctor found, and what mends the errors that imports are known to end in."""
from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module

from lape_mm.requirements import install_hint, plain_mmcv
from lape_mm.wording import first_line

ONEDL = 'pip install "lape_mm[onedl]"'
# what an import's error says -> what mends it
REMEDIES = (
    ("No module named 'pkg_resources'", 'pip install "setuptools<82"  (later ones have no '
     'pkg_resources)'),
    ('libGL.so', 'pip install opencv-python-headless, or install the system package libgl1'),
    ('torchvision::nms', 'pip install --force-reinstall torch torchvision  (of one source, '
     'together)'),
    ('numpy.core', 'pip install "numpy<2"  (upstream OpenMMLab was built for it)'),
    ('_ARRAY_API', 'pip install "numpy<2"  (upstream OpenMMLab was built for it)'),
    ('compiled using NumPy 1', 'pip install "numpy<2"'),
    ('undefined symbol', f'{plain_mmcv()}  (mmcv was compiled for another torch)'),
)


@dataclass
class Finding:
    """One line of the report.

    Attributes:
        status: 'ok', 'note' or 'BROKEN'.
        text: what was found.
        remedy: the command that mends it, '' where there is nothing to mend.
    """

    status: str
    text: str
    remedy: str = ''


@dataclass
class Doctor:
    """Runs the checks in order and keeps what they found.

    Attributes:
        findings: so far.
        broken: modules that cannot be used, which later checks ask for.
    """

    findings: list[Finding] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def say(self, status: str, text: str, remedy: str = '') -> None:
        """Notes a finding and prints it at once."""
        self.findings.append(Finding(status, text, remedy))
        print(f'{status:<7} {text}', flush=True)
        if remedy:
            print(f'{"":<7}   mend: {remedy}', flush=True)

    def attempt(self, module: str, needs: tuple[str, ...] = (), remedy: str = ''):
        """A module, or None where it cannot be imported, or rests on one that cannot."""
        if causes := sorted(self.broken & set(needs)):
            self.broken.add(module)
            self.say('note', f'{module}: not tried, since {", ".join(causes)} does not work')
            return None
        try:
            return import_module(module)
        except Exception as error:  # a broken package raises whatever it likes
            self.broken.add(module)
            self.say('BROKEN', f'{module} cannot be imported: '
                     f'{first_line(error, kind=True)}', remedy_of(module, error) or remedy)
            return None


def remedy_of(module: str, error: Exception) -> str:
    """What mends an import's error, as far as it is known."""
    text = str(error)
    if isinstance(error, AssertionError) and 'incompatible' in text:
        # upstream mmdet 3.3.0 and mmsegmentation 1.2.2 refuse mmcv 2.2 and later
        return (f'{plain_mmcv(upstream=True)} (what upstream {module} accepts), or the forks, '
                f'which take later ones: {ONEDL}')
    for sign, remedy in REMEDIES:
        if sign in text:
            return remedy
    if isinstance(error, ModuleNotFoundError) and error.name:
        return install_hint(error.name.split('.')[0]).split(': ', 1)[-1]
    return ''


def version_of(module) -> str:
    """A module's version, '?' where it does not say."""
    return str(getattr(module, '__version__', '?'))
