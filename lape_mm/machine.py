"""Describes the machine, the package versions and the commit behind a measurement."""
from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

import torch

from lape_mm.mmcv_ext import compiled
from lape_mm.requirements import TESTED, installed

PACKAGES = ('torchvision', 'numpy', *TESTED)


def processor() -> str:
    """The CPU's name."""
    path = Path('/proc/cpuinfo')
    found = re.search(r'model name\s*:(.*)', path.read_text()) if path.exists() else None
    return found[1].strip() if found else platform.processor()


def machine() -> dict[str, str | int | None]:
    """CPU, number of cores, number of torch threads, GPU (or None), and Python version."""
    return dict(cpu=processor(), cores=os.cpu_count(), threads=torch.get_num_threads(),
                gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
                python=platform.python_version())


def versions() -> dict[str, str]:
    """Versions of the installed `PACKAGES`, and where mmcv's operators come from."""
    found = {name: version for name in PACKAGES if (version := installed(name))}
    if any('mmcv' in name for name in found):
        found['mmcv operators'] = 'compiled' if compiled() else 'lape_mm.mmcv_ext, on torchvision'
    return found


def commit(folder: str | os.PathLike = Path(__file__).parent) -> str | None:
    """Short hash of a folder's commit, plus `` and changes`` if files differ; None without git."""
    def git(*words: str) -> str:
        return subprocess.run(['git', *words], cwd=folder, text=True, capture_output=True,
                              check=True).stdout.strip()
    try:
        # an installed package may lie within someone else's repository
        if not git('ls-files', '--', '.'):
            return None
        name = git('rev-parse', '--short', 'HEAD')
        return name + (' and changes' if git('status', '--porcelain', '-uno') else '')
    except (OSError, subprocess.CalledProcessError):
        return None
