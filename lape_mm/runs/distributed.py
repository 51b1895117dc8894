"""Several processes without a GPU, which mmengine's own set-up does not foresee."""
from __future__ import annotations

import os

import torch
from mmengine.config import Config
from torch import distributed

from .errors import RunError


def settle_distributed(cfg: Config) -> None:
    """Sets a config up for gloo where a run has several processes and there is no GPU.

    BatchNorm is not synchronised then, since torch synchronises it on GPUs alone.

    Raises:
        RunError: a launcher that needs GPUs, or that has not set its environment variables.
    """
    if cfg.get('launcher', 'none') == 'none' or torch.cuda.is_available():
        return
    if cfg.launcher != 'pytorch':
        raise RunError(f'--launcher {cfg.launcher}: there is no GPU; without one, expected '
                       'pytorch (torchrun, tools/dist_train.sh)')
    if lacking := [name for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR',
                                     'MASTER_PORT') if name not in os.environ]:
        raise RunError(f'--launcher pytorch: {lacking[0]} is not set; start the run with '
                       'tools/dist_train.sh or torchrun')
    if not distributed.is_initialized():
        distributed.init_process_group('gloo')
    cfg.sync_bn = None
    cfg.model_wrapper_cfg = dict(
        type='lape_mm.CpuDataParallel', broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False))
