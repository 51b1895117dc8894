"""Checks an installation, and names the command that repairs what is broken.

    python -m lape_mm.doctor [CONFIG]

Every import happens inside a check, since it may fail. Checks that depend on a broken module are
skipped, so each cause is named once. The exit status is 1 if something is broken.
"""
from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from lape_mm import requirements
from lape_mm.requirements import TOOLBOXES, missing, numbers, plain_mmcv
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
    # upstream mmdet 3.3.0 and mmsegmentation 1.2.2 refuse mmcv 2.2 and later
    'is used but incompatible': f'{plain_mmcv(upstream=True)} (the mmcv that upstream accepts), or '
                                f'the forks, which accept later ones: {ONEDL}',
}


class Doctor:
    """Prints findings as they come, and remembers what is broken."""

    def __init__(self) -> None:
        self.causes: list[str] = []
        self.broken: set[str] = set()

    def say(self, status: str, text: str, remedy: str = '', module: str = '') -> None:
        """Prints a finding ('ok', 'note' or 'BROKEN') and the command that repairs the module."""
        print(f'{status:<7} {text}', flush=True)
        if remedy:
            print(f'{"":<7}   fix: {remedy}', flush=True)
        if status == 'BROKEN':
            self.causes.append(text)
            self.broken.add(module)

    def attempt(self, what: str, check: Callable[[], Any], remedy: str, module: str = '') -> None:
        """Runs a check, and prints ok or the error that it raised."""
        try:
            check()
        except Exception as error:  # a broken package can raise anything
            self.say('BROKEN', f'{what}: {first_line(error, kind=True)}', remedy, module)
        else:
            self.say('ok', what)

    def module(self, name: str, *needs: str, remedy: str = '') -> Any:
        """Imports a module and reports on it; returns None if it cannot be imported."""
        if causes := sorted(self.broken & set(needs)):
            self.say('note', f'{name}: skipped, because {", ".join(causes)} is broken or missing')
            self.broken.add(name)
            return None
        if '.' not in name and missing(name):
            self.say('BROKEN', f'{name} is not installed', hint(name), name)
            return None
        try:
            module = import_module(name)
        except Exception as error:
            self.say('BROKEN', f'{name} cannot be imported: {first_line(error, kind=True)}',
                     remedy_of(error) or remedy, name)
            return None
        version = str(getattr(module, '__version__', ''))
        oldest = requirements.TESTED[name][0] if name in ('torch', 'timm') else ''
        if numbers(version) < numbers(oldest):
            self.say('BROKEN', f'{name} {version} is older than {oldest}',
                     f'pip install --upgrade torch torchvision {name}', name)
        elif '.' not in name:
            self.say('ok', f'{name} {version}')
        return module


def hint(module: str | None) -> str:
    """The command that installs a module."""
    return requirements.install_hint(module.partition('.')[0]).partition(': ')[2] if module else ''


def remedy_of(error: Exception) -> str:
    """The command that fixes an import error, or '' if none is known."""
    known = (remedy for sign, remedy in REMEDIES.items() if sign in str(error))
    return next(known, hint(error.name if isinstance(error, ModuleNotFoundError) else None))


def check_torch(doctor: Doctor) -> None:
    """Checks Python, torch, torchvision and timm, and computes something on the GPU."""
    supported = (3, 10) <= sys.version_info[:2] <= (3, 13)  # as in pyproject.toml
    doctor.say('ok' if supported else 'BROKEN', f'Python {sys.version.split()[0]} '
               f'({sys.executable}); lape_mm supports 3.10 to 3.13', '' if supported else
               'uv venv --python 3.11, or any other supported version')
    torch = doctor.module('torch', remedy='pip install --force-reinstall torch torchvision')
    remedy = 'https://pytorch.org/get-started/locally names the torch for your GPU and driver'
    if torch and torch.cuda.is_available():
        doctor.attempt(f'CUDA {torch.version.cuda} on {torch.cuda.get_device_name()}',
                       lambda: torch.ones((), device='cuda').add(1).item(), remedy)
    elif torch:
        driver = shutil.which('nvidia-smi')
        doctor.say('note', f'torch sees no GPU{", but an NVIDIA driver is there" if driver else ""}'
                   ': runs on the CPU', remedy if driver else '')
    doctor.module('torchvision', 'torch')
    doctor.module('timm', 'torch', 'torchvision')


def check_mmcv(doctor: Doctor) -> None:
    """Checks mmengine and mmcv, and runs an mmcv operator on the CPU and on any GPU."""
    for module, names in packages_distributions().items():
        if module in requirements.STACK and len(twins := sorted({*names})) > 1:
            doctor.say('BROKEN', f'{" and ".join(twins)} are both installed, and provide the same '
                       'module', f'pip uninstall -y {" ".join(twins)} && {ONEDL}')
    doctor.module('mmengine', 'torch')
    doctor.module('mmcv', 'torch', 'mmengine')
    if doctor.module('mmcv._ext', 'torch', 'torchvision', 'mmcv'):
        import torch

        from lape_mm.mmcv_ext import compiled

        def suppress(device: str) -> None:
            from mmcv.ops import nms
            boxes = torch.tensor([[0., 0, 4, 4], [0, 0, 4, 5]], device=device)
            nms(boxes, torch.tensor([.9, .8], device=device), iou_threshold=.5)

        # compiled operators may be for another torch, or for the CPU only
        kind, remedy = (('compiled', plain_mmcv()) if compiled() else
                        ("lape_mm's, on torchvision", 'pip install --force-reinstall torchvision'))
        for device in ('cpu', 'cuda')[:1 + torch.cuda.is_available()]:
            doctor.attempt(f"mmcv's operators on {device}: {kind}",
                           partial(suppress, device), remedy, 'mmcv._ext')


def check_toolboxes(doctor: Doctor) -> None:
    """Checks mmpretrain, mmdet and mmseg; one of them is enough."""
    absent = missing(*TOOLBOXES)
    for toolbox, needs in TOOLBOXES.items():
        if toolbox in absent:
            doctor.say('note', f'{toolbox} is not installed: its configs cannot run', hint(toolbox))
        else:
            doctor.module(toolbox, *needs[:-1])
    if len(absent) == len(TOOLBOXES):
        doctor.say('BROKEN', 'no toolbox is installed: backbones work, tools/train.py does not',
                   ONEDL)


def check_folder(doctor: Doctor, folder: str) -> None:
    """Checks that files can be written into a folder, or into its nearest existing parent."""
    path = Path(folder).expanduser().absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    doctor.attempt(f'writing into {existing}', lambda: tempfile.TemporaryFile(dir=existing).close(),
                   'choose another folder with --work-dir, or make it yours: '
                   f'sudo chown -R "$USER" {existing}')


def check_config(doctor: Doctor, path: str) -> None:
    """Checks a config, its data and its work directory, as before each run."""
    preflight = doctor.module('lape_mm.runs.checks.preflight', 'torch', 'timm', 'mmengine',
                              'lape_mm.backbones')
    if not preflight:
        return
    from lape_mm.runs.config import load_config
    try:
        cfg = load_config(path)
        preflight.check_config(cfg, 'train')
        check_folder(doctor, cfg.work_dir)
        scenes = cfg.get('scenes')
        if scenes and not Path(scenes['root']).is_dir():
            doctor.say('ok', f'{path}: the first run draws its data into {scenes["root"]}')
            return
        preflight.check_files(cfg, 'train')
        doctor.say('ok', f'{path}: data, classes and checkpoints are there')
    except Exception as error:  # each problem of a RunError ends with what to do
        for problem in getattr(error, 'problems', [first_line(error, kind=True)]):
            doctor.say('BROKEN', f'{path}: {problem}')


def main(argv: list[str] | None = None) -> int:
    """Prints the report; returns 1 if something is broken."""
    parser = argparse.ArgumentParser(prog='python -m lape_mm.doctor', description=(
        'Check an installation, and name the command that repairs what is broken.'))
    parser.add_argument('config', nargs='?', help='a config to check, with its data and folders')
    args = parser.parse_args(argv)
    doctor = Doctor()
    for check in (check_torch, check_mmcv, check_toolboxes):
        check(doctor)
    doctor.module('lape_mm.backbones', 'torch', 'timm', 'mmengine')
    for line in requirements.untested():
        doctor.say('note', line)
    if args.config:
        check_config(doctor, args.config)
    else:
        check_folder(doctor, 'work_dirs')
    print(f'\n{len(doctor.causes)} broken, first: {doctor.causes[0]}' if doctor.causes else
          '\neverything works')
    return int(bool(doctor.causes))


if __name__ == '__main__':
    sys.exit(main())
