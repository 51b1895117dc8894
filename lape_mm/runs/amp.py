"""--amp: float16 by mmengine's wrapper, bfloat16 by ours, which works on the CPU too."""
from mmengine.config import Config
from mmengine.device import get_device

from .errors import RunError

WRAPPERS = ('OptimWrapper', 'AmpOptimWrapper', 'lape_mm.BFloat16OptimWrapper')


def set_amp(cfg: Config, kind: str) -> None:
    """Turns mixed precision on, in place: 'fp16', or 'bf16', in detectors without the heads.

    Raises:
        RunError: fp16 on the CPU, or an optimizer wrapper of another kind in the config.
    """
    wrapper = cfg.optim_wrapper
    if (present := wrapper.get('type', 'OptimWrapper')) not in WRAPPERS:
        raise RunError(f'--amp {kind}: optim_wrapper.type={present!r} cannot be turned into mixed '
                       f'precision, expected one of {", ".join(WRAPPERS)}')
    for setting in ('dtype', 'loss_scale', 'features_only'):
        wrapper.pop(setting, None)
    if kind == 'bf16':
        wrapper.update(type='lape_mm.BFloat16OptimWrapper',
                       features_only=cfg.get('default_scope') == 'mmdet')
    elif get_device() == 'cpu':
        raise RunError('--amp fp16 needs a GPU: on the CPU there is --amp bf16')
    else:
        wrapper.update(type='AmpOptimWrapper', dtype='float16', loss_scale='dynamic')
