"""--amp, --auto-scale-lr, --ema and --act-checkpoint."""
from __future__ import annotations

from mmengine.config import Config
from mmengine.device import get_device

from .config import our_backbones
from .errors import RunError

WRAPPERS = ('OptimWrapper', 'AmpOptimWrapper', 'lape_mm.BFloat16OptimWrapper')


def set_amp(cfg: Config, kind: str) -> None:
    """Turns on mixed precision in a config, in place.

    Args:
        kind: 'fp16' (mmengine's wrapper) or 'bf16' (ours, which also works on the CPU; detectors
            keep their heads in float32).

    Raises:
        RunError: fp16 on the CPU, or an optimizer wrapper of another kind in the config.
    """
    wrapper = cfg.optim_wrapper
    if (present := wrapper.get('type', 'OptimWrapper')) not in WRAPPERS:
        raise RunError(f'--amp {kind} cannot change optim_wrapper.type={present!r}: expected one '
                       f'of {", ".join(WRAPPERS)}')
    for setting in ('dtype', 'loss_scale', 'features_only'):
        wrapper.pop(setting, None)
    if kind == 'bf16':
        wrapper.update(type='lape_mm.BFloat16OptimWrapper',
                       features_only=cfg.get('default_scope') == 'mmdet')
    elif get_device() == 'cpu':
        raise RunError('--amp fp16 needs a GPU; use --amp bf16 on the CPU')
    else:
        wrapper.update(type='AmpOptimWrapper', dtype='float16', loss_scale='dynamic')


def set_auto_scale_lr(cfg: Config) -> None:
    """Turns on mmengine's scaling of the learning rate by the total batch size."""
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise RunError('--auto-scale-lr: the config has no auto_scale_lr.base_batch_size')
    cfg.auto_scale_lr.enable = True


def set_ema(cfg: Config) -> None:
    """Adds mmengine's EMAHook, which validates with averaged weights, unless there is one."""
    hooks = cfg.get('custom_hooks') or []
    if not any(str(hook.get('type')).endswith('EMAHook') for hook in hooks):
        cfg.custom_hooks = [*hooks, dict(type='EMAHook', momentum=.0002, update_buffers=True)]


def set_act_checkpoint(cfg: Config) -> None:
    """Turns on gradient checkpointing in every backbone of ours; RunError if there is none."""
    found = [node for _, node in our_backbones(cfg)]
    for node in found:
        node['with_cp'] = True
    if not found:
        raise RunError('--act-checkpoint: the config has no backbone of lape_mm')
