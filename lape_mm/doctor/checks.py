"""What the doctor checks."""
from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from lape_mm.requirements import TOOLBOXES, installed, missing, numbers, plain_mmcv, untested
from lape_mm.wording import first_line

from .report import ONEDL, Doctor, hint, version_of

PYTHONS = ((3, 10), (3, 13))  # as in pyproject.toml
OLDEST = {'torch': '2.7', 'timm': '1.0.16'}
# distributions that provide the same module
TWINS = (('onedl-mmengine', 'mmengine'), ('onedl-mmcv', 'mmcv'), ('onedl-mmcv', 'mmcv-lite'),
         ('onedl-mmdetection', 'mmdet'), ('onedl-mmsegmentation', 'mmsegmentation'),
         ('onedl-mmpretrain', 'mmpretrain'))


def check_python(doctor: Doctor) -> None:
    """The interpreter's version."""
    text = f'Python {sys.version.split()[0]} ({sys.executable})'
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        doctor.say('ok', text)
    else:
        doctor.say('BROKEN', f'{text}: lape_mm needs 3.10 to 3.13',
                   'uv venv --python 3.11, or another environment with such a Python')


def check_torch(doctor: Doctor) -> None:
    """torch, torchvision and timm, and a computation on the GPU."""
    both = 'pip install --force-reinstall torch torchvision'
    if torch := check_module(doctor, 'torch', remedy=both):
        check_cuda(doctor, torch)
    check_module(doctor, 'torchvision', ('torch',))
    check_module(doctor, 'timm', ('torch', 'torchvision'))


def check_module(doctor: Doctor, name: str, needs: tuple[str, ...] = (), remedy: str = '') -> Any:
    """A module that can be imported and is new enough, else None."""
    module = doctor.attempt(name, needs, remedy)
    if module is None:
        return None
    version, oldest = version_of(module), OLDEST.get(name)
    if oldest and numbers(version) < numbers(oldest):
        doctor.blame(name, f'{name} {version} is older than {oldest}',
                     f'pip install --upgrade torch torchvision {name}')
        return None
    doctor.say('ok', f'{name} {version}')
    return module


def check_cuda(doctor: Doctor, torch: Any) -> None:
    """The GPUs that torch sees."""
    if torch.cuda.is_available():
        names = ', '.join(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
        try:
            torch.ones((), device='cuda').add(1).item()
            doctor.say('ok', f'CUDA {torch.version.cuda}: {names}')
        except Exception as error:
            doctor.say('BROKEN', f'CUDA {torch.version.cuda} does not compute on {names}: '
                       f'{first_line(error, kind=True)}', 'install a torch that is built for '
                       'this GPU and driver: https://pytorch.org/get-started/locally')
    elif shutil.which('nvidia-smi'):
        doctor.say('note', f'torch {torch.__version__} sees no GPU, although there is an NVIDIA '
                   'driver: runs on the CPU', 'https://pytorch.org/get-started/locally names the '
                   'torch for your driver')
    else:
        doctor.say('note', 'no GPU: runs on the CPU')


def check_mmcv(doctor: Doctor) -> None:
    """mmengine, mmcv, and the operators in use."""
    for fork, upstream in TWINS:
        if installed(fork) and installed(upstream):
            doctor.say('BROKEN', f'{fork} and {upstream} are both installed, and provide the same '
                       'module', f'pip uninstall -y {upstream} {fork} && {ONEDL}')
    check_module(doctor, 'mmengine', ('torch',))
    check_module(doctor, 'mmcv', ('torch', 'mmengine'))
    if doctor.attempt('mmcv._ext', ('torch', 'torchvision', 'mmcv')):
        run_operator(doctor)
    if installed('mmengine'):  # upstream
        doctor.say('note', f'mmengine {installed("mmengine")} cannot load its own checkpoints '
                   "under torch 2.6 and later; lape_mm's tools can", ONEDL)


def run_operator(doctor: Doctor) -> None:
    """Non-maximum suppression on the CPU, and on a GPU if there is one."""
    import torch

    from lape_mm.mmcv_ext import compiled
    kind = 'compiled' if compiled() else "lape_mm's, on torchvision"
    for device in ('cpu', 'cuda')[:1 + torch.cuda.is_available()]:
        try:
            from mmcv.ops import nms
            boxes = torch.tensor([[0., 0, 4, 4], [0, 0, 4, 5]], device=device)
            nms(boxes, torch.tensor([.9, .8], device=device), iou_threshold=.5)
            doctor.say('ok', f"mmcv's operators on {device}: {kind}")
        except Exception as error:
            # compiled for another torch, or for the CPU alone
            doctor.blame('mmcv._ext', f"mmcv's operators on {device}: {kind}: "
                         f'{first_line(error, kind=True)}', plain_mmcv() if compiled() else
                         'pip install --force-reinstall torchvision')


def check_toolboxes(doctor: Doctor) -> None:
    """mmpretrain, mmdet and mmseg, of which one is enough."""
    absent = missing(*TOOLBOXES)
    for toolbox, needs in TOOLBOXES.items():
        if toolbox in absent:
            doctor.say('note', f'{toolbox} is not installed: its configs cannot run', hint(toolbox))
        else:
            check_module(doctor, toolbox, needs[:-1])
    if len(absent) == len(TOOLBOXES):
        doctor.say('BROKEN', 'no toolbox is installed: backbones work, tools/train.py does not',
                   ONEDL)


def check_model(doctor: Doctor) -> None:
    """A backbone, forward and backward."""
    if not doctor.attempt('lape_mm.backbones', ('torch', 'timm', 'mmengine')):
        return
    import torch

    from lape_mm.backbones import DeiT
    try:
        model = DeiT(arch=dict(embed_dim=24, depth=2, num_heads=3), img_size=32, joining='mpvg')
        model(torch.rand(1, 3, 32, 32))[0].sum().backward()
        doctor.say('ok', 'lape_mm: a DeiT computes outputs and gradients')
    except Exception as error:
        doctor.say('BROKEN', f'lape_mm: a DeiT does not run: {first_line(error, kind=True)}',
                   'pip install --force-reinstall --no-deps lape_mm; if that does not help, please '
                   'report it with this output')


def check_versions(doctor: Doctor) -> None:
    """Versions that the tests have not run on."""
    for line in untested():
        doctor.say('note', line)


def check_folder(doctor: Doctor, folder: str) -> None:
    """Whether files can be written into a folder, or where it would be made."""
    path = Path(folder).expanduser().absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        doctor.say('BROKEN', f'{existing} cannot be written ({error.strerror})', 'choose another '
                   f'folder with --work-dir, or make it yours: sudo chown -R "$USER" {existing}')
        return
    free = shutil.disk_usage(existing).free / 2 ** 30
    doctor.say('ok' if free >= 2 else 'note', f'{path}: {free:.1f} GiB free')


def check_config(doctor: Doctor, path: str) -> None:
    """A config, its data and its work directory, by the checks that precede each run."""
    if causes := sorted(doctor.broken & {'torch', 'timm', 'mmengine', 'lape_mm.backbones'}):
        doctor.say('note', f'{path}: skipped, because {", ".join(causes)} is broken or missing')
        return
    from lape_mm.runs.checks import preflight
    from lape_mm.runs.config import load_config
    from lape_mm.runs.errors import RunError
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
    except RunError as error:
        for problem in error.problems:
            # the checks end a problem with ': pip ..' or '; ' and what to do
            text, command, remedy = problem.partition(': pip ')
            if not command:
                text, _, remedy = problem.partition('; ')
            doctor.say('BROKEN', f'{path}: {text}', command.lstrip(': ') + remedy)
    except Exception as error:
        doctor.say('BROKEN', f'{path}: {first_line(error, kind=True)}')
