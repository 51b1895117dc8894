"""Names what is not installed, together with the command that installs it.

Imports nothing but the standard library, so that it can speak when torch itself is missing.
"""
import re
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

# what a toolbox of OpenMMLab needs to be imported; torchvision has the operators that mmcv lacks
TOOLBOXES = {name: ('mmengine', 'mmcv', 'torchvision', name)
             for name in ('mmpretrain', 'mmdet', 'mmseg')}
# distribution -> the first and last version that the tests have run on (on the first of torch and
# timm without the toolboxes)
TESTED = {
    'torch': ('2.7.0', '2.11.0'),
    'timm': ('1.0.16', '1.0.31'),
    'onedl-mmengine': ('0.10.12', '0.10.12'),
    'onedl-mmcv': ('2.3.6', '2.3.6'),
    'onedl-mmdetection': ('3.5.1', '3.5.1'),
    'onedl-mmsegmentation': ('1.4.2', '1.4.2'),
    'onedl-mmpretrain': ('1.3.6', '1.3.6'),
    # upstream, see requirements/openmmlab.txt
    'mmengine': ('0.10.7', '0.10.7'),
    'mmcv': ('2.1.0', '2.1.0'),
    'mmcv-lite': ('2.1.0', '2.1.0'),
    'mmdet': ('3.3.0', '3.3.0'),
    'mmsegmentation': ('1.2.2', '1.2.2'),
    'mmpretrain': ('1.2.0', '1.2.0'),
}
STACK = {'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain'}
EXPORT = {'onnx', 'onnxruntime', 'onnxscript'}


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, None where there is none."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


# an environment of uv's has no pip (find_spec would turn the distutils of setuptools off)
PIP = 'pip' if installed('pip') else 'uv pip'


def plain_mmcv(*, upstream: bool | None = None) -> str:
    """The command that reinstalls mmcv without compiled operators, which lape_mm then provides.

    Args:
        upstream: upstream's mmcv, not the fork's; None for whichever is installed.
    """
    if _upstream() if upstream is None else upstream:
        return f'{PIP} uninstall -y mmcv onedl-mmcv; {PIP} install --no-deps mmcv-lite==2.1.0'
    return f'{PIP} install --force-reinstall --no-deps --no-cache-dir onedl-mmcv'


def build_mmcv() -> str:
    """The command that compiles mmcv's operators, of whichever is installed, for the present torch.

    With a setuptools that it builds with: the one that ``python -m venv`` brings is too old for the
    fork, a new one is too new for upstream. For a GPU it needs the CUDA toolkit as well.
    """
    upstream = _upstream()
    distribution, setuptools = (
        ('"mmcv==2.1.0"', '<70') if upstream else ('onedl-mmcv', '>=77,<82'))
    return (f'{f"{PIP} uninstall -y mmcv-lite; " if upstream else ""}'
            f'{PIP} install "setuptools{setuptools}" wheel ninja psutil && '
            f'MMCV_WITH_OPS=1 {PIP} install --no-build-isolation --force-reinstall --no-deps '
            f'--no-cache-dir {distribution}')


def _upstream() -> bool:
    return bool(installed('mmcv') or installed('mmcv-lite'))


def install_hint(module: str) -> str:
    """One line that says that ``module`` is missing and which command installs it."""
    if module in STACK:
        return (f'{module} is not installed: pip install "lape_mm[onedl]" installs the tested '
                f'stack (the {module} of upstream OpenMMLab works as well)')
    if module in EXPORT:
        return f'{module} is not installed: pip install "lape_mm[export]"'
    return f'{module} is not installed: pip install {module}'


def missing(*modules: str) -> list[str]:
    """Those of ``modules`` that cannot be found."""
    return [module for module in modules if not _found(module)]


def require(*modules: str) -> None:
    """Raises ImportError with the hint of each of ``modules`` that cannot be found."""
    if lacking := missing(*modules):
        raise ImportError('; '.join(install_hint(module) for module in lacking))


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a dotted name
        return False


def untested() -> list[str]:
    """A line for each installed package whose version lies outside the range that was tested."""
    lines = []
    for name, (first, last) in TESTED.items():
        found = installed(name)
        if found and not numbers(first) <= numbers(found) <= numbers(last):
            lines.append(f'{name} {found} has not been tested with lape_mm, which was with '
                         f'{first} to {last}')
    return lines


def warn_untested() -> None:
    """Warns of each installed package whose version lies outside the range that was tested."""
    for line in untested():
        warnings.warn(line, stacklevel=3)


def numbers(text: str) -> tuple[int, ...]:
    """A version's first three numbers, for comparing."""
    return tuple(int(number) for number in re.findall(r'\d+', text.split('+')[0])[:3])
