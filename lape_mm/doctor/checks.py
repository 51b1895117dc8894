"""What the doctor looks at, each check on its own."""
from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from lape_mm.requirements import (
    TOOLBOXES,
    install_hint,
    installed,
    missing,
    numbers,
    plain_mmcv,
    untested,
)
from lape_mm.wording import first_line

from .report import ONEDL, Doctor, version_of

PYTHONS = ((3, 10), (3, 13))  # as in pyproject.toml
OLDEST = {'torch': '2.7', 'timm': '1.0.16'}
# distributions that provide the same module
TWINS = (('onedl-mmengine', 'mmengine'), ('onedl-mmcv', 'mmcv'), ('onedl-mmcv', 'mmcv-lite'),
         ('onedl-mmdetection', 'mmdet'), ('onedl-mmsegmentation', 'mmsegmentation'),
         ('onedl-mmpretrain', 'mmpretrain'))


def check_python(doctor: Doctor) -> None:
    """The interpreter, against what the package is made for."""
    text = f'Python {sys.version.split()[0]} ({sys.executable})'
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        doctor.say('ok', text)
    else:
        doctor.say('BROKEN', f'{text}: lape_mm needs {PYTHONS[0][0]}.{PYTHONS[0][1]} to '
                   f'{PYTHONS[1][0]}.{PYTHONS[1][1]}', 'uv venv --python 3.11, or another '
                   'environment with such a Python')


def check_torch(doctor: Doctor) -> None:
    """torch, torchvision, timm, and a first computation on each device."""
    if missing('torch'):
        doctor.broken.add('torch')
        doctor.say('BROKEN', 'torch is not installed', 'pip install torch torchvision')
    else:
        torch = doctor.attempt('torch', remedy='pip install --force-reinstall torch torchvision')
        if torch and old(doctor, 'torch', torch, 'pip install --upgrade torch torchvision'):
            doctor.say('ok', f'torch {torch.__version__}')
            check_cuda(doctor, torch)
    for name in ('torchvision', 'timm'):
        if missing(name):
            # torchvision is what the toolboxes ask for, not we
            doctor.broken.add(name)
            doctor.say('note' if name == 'torchvision' else 'BROKEN', f'{name} is not installed',
                       f'pip install {name}')
        elif module := doctor.attempt(name, ('torch',)):
            if old(doctor, name, module, f'pip install --upgrade {name}'):
                doctor.say('ok', f'{name} {version_of(module)}')


def old(doctor: Doctor, name: str, module, remedy: str) -> bool:
    """Whether a module is new enough; says so where it is not."""
    least = OLDEST.get(name)
    if least and numbers(version_of(module)) < numbers(least):
        doctor.broken.add(name)
        doctor.say('BROKEN', f'{name} {version_of(module)} is older than {least}', remedy)
        return False
    return True


def check_cuda(doctor: Doctor, torch) -> None:
    """A GPU, if this torch sees one."""
    if torch.cuda.is_available():
        try:
            value = float(torch.ones((), device='cuda') + 1)
            names = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
            doctor.say('ok', f'CUDA {torch.version.cuda}: {", ".join(names)} (1 + 1 is {value:g})')
        except Exception as error:
            doctor.say('BROKEN', f'CUDA {torch.version.cuda} does not compute: '
                       f'{first_line(error, kind=True)}', 'install a torch that is built for '
                       'this GPU and driver: https://pytorch.org/get-started/locally')
    elif shutil.which('nvidia-smi'):
        kind = f'for CUDA {torch.version.cuda}' if torch.version.cuda else 'without CUDA'
        doctor.say('note', f'there is an NVIDIA driver, but torch (built {kind}) sees no GPU: '
                   'runs on the CPU', 'https://pytorch.org/get-started/locally names the torch '
                   'for your driver')
    else:
        doctor.say('note', 'no GPU: runs on the CPU')


def check_mmcv(doctor: Doctor) -> None:
    """mmengine, mmcv, and which operators are in use."""
    for one, other in TWINS:
        if installed(one) and installed(other):
            doctor.say('BROKEN', f'{one} and {other} are both installed, and provide the same '
                       'module', f'pip uninstall -y {other} {one} && {ONEDL}')
    for name in ('mmengine', 'mmcv'):
        if missing(name):
            doctor.broken.add(name)
            doctor.say('BROKEN', f'{name} is not installed', install_hint(name).split(': ', 1)[1])
        elif module := doctor.attempt(name, ('torch', 'mmengine')):
            doctor.say('ok', f'{name} {version_of(module)}')
    if doctor.attempt('mmcv._ext', ('torch', 'torchvision', 'mmcv')):
        run_operator(doctor)
    torch_version = installed('torch')
    if installed('mmengine') and torch_version and numbers(torch_version) >= (2, 6):
        doctor.say('note', f'mmengine {installed("mmengine")} cannot load its own checkpoints '
                   f"under torch {torch_version}; lape_mm's tools can", ONEDL)


def run_operator(doctor: Doctor) -> None:
    """Non-maximum suppression of two boxes, on the CPU and on the GPU if there is one."""
    import torch

    from lape_mm.mmcv_ext import compiled
    kind = 'compiled' if compiled() else "lape_mm's, on torchvision"
    for device in ('cpu', 'cuda')[:1 + torch.cuda.is_available()]:
        try:
            from mmcv.ops import nms
            boxes = torch.tensor([[0., 0, 4, 4], [0, 0, 4, 5]], device=device)
            _, kept = nms(boxes, torch.tensor([.9, .8], device=device), iou_threshold=.5)
            doctor.say('ok', f"mmcv's operators on {device}: {kind} ({len(kept)} of 2 boxes kept)")
        except Exception as error:
            doctor.broken.add('mmcv._ext')
            # compiled for another torch, or without the CUDA toolkit for the CPU alone
            doctor.say('BROKEN', f"mmcv's operators on {device}: {kind}: "
                       f'{first_line(error, kind=True)}',
                       plain_mmcv() if compiled() else 'pip install --force-reinstall torchvision')


def check_toolboxes(doctor: Doctor) -> None:
    """mmpretrain, mmdet and mmseg; none that is merely missing is called broken."""
    absent = 0
    for toolbox, needed in TOOLBOXES.items():
        if missing(toolbox):
            absent += 1
            doctor.broken.add(toolbox)
            doctor.say('note', f'{toolbox} is not installed: its configs cannot be run',
                       install_hint(toolbox).split(': ', 1)[1])
        elif module := doctor.attempt(toolbox, needed[:-1]):
            doctor.say('ok', f'{toolbox} {version_of(module)}')
    if absent == len(TOOLBOXES):
        doctor.say('BROKEN', 'there is no toolbox: backbones can be used, tools/train.py cannot',
                   ONEDL)


def check_models(doctor: Doctor) -> None:
    """A backbone of ours, forward and backward."""
    if doctor.attempt('lape_mm.backbones', ('torch', 'timm', 'mmengine')):
        import torch

        from lape_mm.backbones import ViTAdapter
        try:
            arch = dict(embed_dim=24, depth=4, num_heads=3, conv_inplane=8, deform_num_heads=3)
            maps = ViTAdapter(arch=arch, img_size=32, joining='mpvg')(torch.rand(1, 3, 64, 64))
            sum(level.sum() for level in maps).backward()
            doctor.say('ok', 'lape_mm: a ViT-Adapter computes maps and gradients')
        except Exception as error:
            doctor.say('BROKEN', 'lape_mm: a ViT-Adapter does not run: '
                       f'{first_line(error, kind=True)}', 'pip install --force-reinstall '
                       '--no-deps lape_mm; if it stays, please report it with this output')


def check_folder(doctor: Doctor, folder: str, what: str) -> None:
    """Whether files can be written into a folder, or where it would be made."""
    path = Path(folder).expanduser().absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        doctor.say('BROKEN', f'{what}: nothing can be written into {existing} '
                   f'({error.strerror or error})', 'choose another folder with --work-dir, or '
                   f'make it yours: sudo chown -R "$USER" {existing}')
        return
    free = shutil.disk_usage(existing).free / 2 ** 30
    if free < 2:
        doctor.say('note', f'{what}: {free:.1f} GiB are free on the disk of {existing}',
                   'df -h shows which disk has room; --work-dir moves a run there')
    else:
        doctor.say('ok', f'{what}: {path} can be written, {free:.0f} GiB free')


def check_config(doctor: Doctor, path: str) -> None:
    """What a run of a config needs, by the checks that stand before each run."""
    if causes := sorted(doctor.broken & {'torch', 'timm', 'mmengine', 'lape_mm.backbones'}):
        doctor.say('note', f'{path}: not tried, since {", ".join(causes)} does not work')
        return
    from lape_mm.runs.checks.preflight import check_config as check_settings
    from lape_mm.runs.checks.preflight import check_files
    from lape_mm.runs.config import load_config
    from lape_mm.runs.errors import RunError
    try:
        cfg = load_config(path)
        check_settings(cfg, 'train')
        check_folder(doctor, cfg.work_dir, 'work_dir')
        scenes = cfg.get('scenes')
        if scenes and not os.path.isdir(scenes['root']):
            doctor.say('ok', f'{path}: its data is drawn into {scenes["root"]} when a run starts')
            check_folder(doctor, scenes['root'], 'data')
            return
        check_files(cfg, 'train')
        doctor.say('ok', f'{path}: data, classes and checkpoints are there')
    except RunError as error:
        for problem in error.problems:
            text, _, remedy = problem.partition(': pip ' if ': pip ' in problem else '; ')
            doctor.say('BROKEN', f'{path}: {text}', f'pip {remedy}' if ': pip ' in problem
                       else remedy)
    except Exception as error:
        doctor.say('BROKEN', f'{path}: {first_line(error, kind=True)}', 'see the config')


def check_versions(doctor: Doctor) -> None:
    """Versions that the tests have not run on."""
    for line in untested():
        doctor.say('note', line)


def checks(config: str | None) -> Iterator[Callable[[Doctor], None]]:
    """What is looked at, in order."""
    yield from (check_python, check_torch, check_mmcv, check_toolboxes, check_models)
    yield check_versions
    if config:
        yield lambda doctor: check_config(doctor, config)
    else:
        yield lambda doctor: check_folder(doctor, 'work_dirs', 'runs')
