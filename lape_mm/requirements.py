"""Names missing packages and the commands that install them. Imports no other package."""
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

# modules that a toolbox of OpenMMLab imports; torchvision replaces mmcv's compiled operators
TOOLBOXES = {name: ('mmengine', 'mmcv', 'torchvision', name)
             for name in ('mmpretrain', 'mmdet', 'mmseg')}
# distribution -> first and last tested version (oldest torch and timm: tested without toolboxes)
TESTED = {
    'torch': ('2.7.0', '2.11.0'),
    'timm': ('1.0.16', '1.0.31'),
    **{name: (only, only) for name, only in {
        'onedl-mmengine': '0.10.12', 'onedl-mmcv': '2.3.6', 'onedl-mmdetection': '3.5.1',
        'onedl-mmsegmentation': '1.4.2', 'onedl-mmpretrain': '1.3.6',
        # upstream, see requirements/openmmlab.txt
        'mmengine': '0.10.7', 'mmcv': '2.1.0', 'mmcv-lite': '2.1.0', 'mmdet': '3.3.0',
        'mmsegmentation': '1.2.2', 'mmpretrain': '1.2.0'}.items()},
}
STACK = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain')
EXTRAS = {  # module -> the extra that installs it
    **dict.fromkeys(STACK, 'onedl'),
    **dict.fromkeys(('onnx', 'onnxruntime', 'onnxscript'), 'export'), 'gradio': 'demo'}


def installed(distribution: str) -> str | None:
    """A distribution's version, or None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


# uv's environments have no pip; find_spec('pip') would disable the distutils of setuptools
PIP = 'pip' if installed('pip') else 'uv pip'


def plain_mmcv(*, upstream: bool | None = None) -> str:
    """The command that reinstalls mmcv without compiled operators, upstream's or the fork's."""
    if _upstream() if upstream is None else upstream:
        return f'{PIP} uninstall -y mmcv onedl-mmcv; {PIP} install --no-deps mmcv-lite==2.1.0'
    return f'{PIP} install --force-reinstall --no-deps --no-cache-dir onedl-mmcv'


def build_mmcv() -> str:
    """The command that compiles mmcv's operators; for a GPU it also needs the CUDA toolkit."""
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
    """A line that says that ``module`` is missing and how to install it."""
    package = f'"lape_mm[{EXTRAS[module]}]"' if module in EXTRAS else module
    more = f" (upstream OpenMMLab's {module} works as well)" if 'onedl' in package else ''
    return f'{module} is not installed: pip install {package}{more}'


def missing(*modules: str) -> list[str]:
    """Those of the top-level ``modules`` that are not installed."""
    return [module for module in modules if find_spec(module) is None]


def require(*modules: str) -> None:
    """Raises ImportError with an `install_hint` for each missing module."""
    if lacking := missing(*modules):
        raise ImportError('; '.join(install_hint(module) for module in lacking))


def untested() -> list[str]:
    """A line for each installed package outside its tested versions."""
    return [f'lape_mm has not been tested with {name} {found}, only with {first} to {last}'
            for name, (first, last) in TESTED.items() if (found := installed(name))
            and not numbers(first) <= numbers(found) <= numbers(last)]


def numbers(text: str) -> tuple[int, ...]:
    """A version's first three numbers, for comparing."""
    return tuple(int(number) for number in re.findall(r'\d+', text.split('+')[0])[:3])
