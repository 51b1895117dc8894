"""What --amp, --auto-scale-lr, --ema, --act-checkpoint, --strict-data and --tta do to a config."""
from __future__ import annotations

from argparse import Namespace
from copy import deepcopy

from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from timm.layers import to_2tuple

from .config import set_backbones
from .errors import RunError

WRAPPERS = ('OptimWrapper', 'AmpOptimWrapper', 'lape_mm.BFloat16OptimWrapper')
# the toolboxes' own models for test-time augmentation, and the factors of the test scale
TTA_MODELS: dict[str, dict] = dict(
    mmpretrain=dict(type='AverageClsScoreTTA'), mmseg=dict(type='SegTTAModel'),
    mmdet=dict(type='DetTTAModel',
               tta_cfg=dict(nms=dict(type='nms', iou_threshold=.5), max_per_img=100)))
RATIOS = dict(mmpretrain=(1.,), mmdet=(.75, 1., 1.25), mmseg=(.5, .75, 1., 1.25, 1.5, 1.75))
META = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'pad_shape', 'scale_factor', 'flip',
        'flip_direction', 'sample_idx')


def apply_options(cfg: Config, args: Namespace) -> None:
    """Applies the options of tools/train.py to a config, in place."""
    if getattr(args, 'amp', None):
        set_amp(cfg, args.amp)
    if getattr(args, 'act_checkpoint', False):
        set_backbones(cfg, '--act-checkpoint', with_cp=True)
    for name, change in dict(ema=set_ema, auto_scale_lr=set_auto_scale_lr,
                             strict_data=set_strict_data).items():
        if getattr(args, name, False):
            change(cfg)


def set_amp(cfg: Config, kind: str) -> None:
    """Turns on mixed precision: 'fp16' (mmengine's) or 'bf16' (ours, also for the CPU)."""
    wrapper = cfg.optim_wrapper
    if (present := wrapper.get('type', 'OptimWrapper')) not in WRAPPERS:
        raise RunError(f'--amp {kind} cannot change optim_wrapper.type={present!r}: expected one '
                       f'of {", ".join(WRAPPERS)}')
    if kind == 'fp16' and get_device() == 'cpu':
        raise RunError('--amp fp16 needs a GPU; use --amp bf16 on the CPU')
    for setting in ('dtype', 'loss_scale', 'features_only'):
        wrapper.pop(setting, None)
    if kind == 'fp16':
        wrapper.update(type='AmpOptimWrapper', dtype='float16', loss_scale='dynamic')
    else:  # detectors' heads stay in float32
        wrapper.update(type='lape_mm.BFloat16OptimWrapper',
                       features_only=cfg.default_scope == 'mmdet')


def set_auto_scale_lr(cfg: Config) -> None:
    """Turns on mmengine's scaling of the learning rate by the total batch size."""
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise RunError('--auto-scale-lr: the config has no auto_scale_lr.base_batch_size')
    cfg.auto_scale_lr.enable = True


def set_ema(cfg: Config) -> None:
    """Adds mmengine's EMAHook (validates with averaged weights), unless the config has one."""
    hooks = cfg.get('custom_hooks') or []
    if not any(str(hook.get('type')).endswith('EMAHook') for hook in hooks):
        cfg.custom_hooks = [*hooks, dict(type='EMAHook', momentum=.0002, update_buffers=True)]


def set_strict_data(cfg: Config) -> None:
    """Makes a bad sample end the run; RunError without `lape_mm.ExactRunHook`."""
    hooks = [*(cfg.get('default_hooks') or {}).values(), *(cfg.get('custom_hooks') or [])]
    found = [hook for hook in hooks if hook and hook.get('type') == 'lape_mm.ExactRunHook']
    for hook in found:
        hook.strict_data = True
    if not found:
        raise RunError('--strict-data: the config has no hook lape_mm.ExactRunHook')


def set_tta(cfg: Config) -> None:
    """Makes a test average over flips and scales: the config's ``tta_pipeline``, or `RATIOS`."""
    scope, dataset = cfg.default_scope, cfg.test_dataloader.dataset
    parts = {**cfg.model, **(cfg.model.get('roi_head') or {})}
    if scope == 'mmdet' and parts.get('mask_head'):
        raise RunError('--tta: mmdet only averages boxes, but this model predicts masks')
    dataset.pipeline = deepcopy(
        cfg.get('tta_pipeline') or augmented(dataset.pipeline, RATIOS[scope]))
    cfg.model = ConfigDict(cfg.get('tta_model') or TTA_MODELS[scope], module=cfg.model)
    if scope == 'mmpretrain':  # its hook cannot draw several versions of an image
        cfg.default_hooks.pop('visualization', None)


def augmented(pipeline: list, ratios: tuple[float, ...]) -> list:
    """A test pipeline that loads each image once and repeats it over scales and flips."""
    names = [str(step['type']).split('.')[-1] for step in pipeline]
    if not names[-1].startswith('Pack'):
        raise RunError(f'--tta: the test pipeline ends with {names[-1]}, expected Pack...')
    steps = [[step] for step in pipeline]
    for at, step in enumerate(pipeline):
        if names[at] == 'Resize' and 'scale' in step:
            steps[at] = [dict(step, scale=tuple(round(side * ratio) for side in to_2tuple(
                step['scale']))) for ratio in ratios]
    keys = dict.fromkeys((*pipeline[-1].get('meta_keys', ()), *META))
    steps[-1] = [dict(pipeline[-1], meta_keys=tuple(keys))]
    start = 1 + next((at for at, name in enumerate(names) if name.startswith('LoadImage')), -1)
    # flip before loading the ground truth, which keeps its own orientation
    place = next((at for at, name in enumerate(names) if name.startswith('LoadAnn')), -1)
    steps.insert(place, [dict(type='RandomFlip', prob=prob, direction='horizontal')
                         for prob in (0., 1.)])
    return [*pipeline[:start], ConfigDict(type='TestTimeAug', transforms=steps[start:])]
