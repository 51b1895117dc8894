"""What a figure was measured with: machine, versions and commit."""
from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from lape_mm.mmcv_ext import compiled

PACKAGES = ('torch', 'torchvision', 'timm', 'numpy', 'onedl-mmengine', 'onedl-mmcv',
            'onedl-mmpretrain', 'onedl-mmdetection', 'onedl-mmsegmentation', 'mmengine', 'mmcv',
            'mmcv-lite', 'mmpretrain', 'mmdet', 'mmsegmentation')


def processor() -> str:
    """The CPU's name."""
    try:
        with open('/proc/cpuinfo') as lines:
            return next(line.split(':', 1)[1].strip() for line in lines
                        if line.startswith('model name'))
    except (OSError, StopIteration):
        return platform.processor()


def machine() -> dict[str, str | int | None]:
    """CPU, its cores, torch's threads, the GPU's name or None, and the Python that runs."""
    return dict(cpu=processor(), cores=os.cpu_count(), threads=torch.get_num_threads(),
                gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
                python=platform.python_version())


def versions() -> dict[str, str]:
    """Of what is installed of `PACKAGES`, and whose code mmcv's operators are."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if any('mmcv' in name for name in found):
        found['mmcv operators'] = 'compiled' if compiled() else 'lape_mm.mmcv_ext, on torchvision'
    return found


def commit(folder: str | os.PathLike = Path(__file__).parent) -> str | None:
    """The commit of a folder's repository, this package's by default; None outside of one.

    Returns:
        Its short name, and `` and changes`` where tracked files differ from it.
    """
    def git(*words: str) -> str:
        return subprocess.run(['git', *words], cwd=folder, text=True, capture_output=True,
                              check=True).stdout.strip()
    try:
        # a package that is installed into the environment of someone else's repository
        if not git('ls-files', '--', '.'):
            return None
        name = git('rev-parse', '--short', 'HEAD')
        return name + (' and changes' if git('status', '--porcelain', '-uno') else '')
    except (OSError, subprocess.CalledProcessError):
        return None
