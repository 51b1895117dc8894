"""--tta: test-time augmentation by the toolboxes' own models."""
from __future__ import annotations

from copy import deepcopy

from mmengine.config import Config, ConfigDict

from .errors import RunError

MODELS = dict(mmpretrain=dict(type='AverageClsScoreTTA'), mmseg=dict(type='SegTTAModel'),
              mmdet=dict(type='DetTTAModel', tta_cfg=dict(
                  nms=dict(type='nms', iou_threshold=.5), max_per_img=100)))
RATIOS = dict(mmpretrain=(1.,), mmdet=(.75, 1., 1.25), mmseg=(.5, .75, 1., 1.25, 1.5, 1.75))
META = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'pad_shape', 'scale_factor', 'flip',
        'flip_direction', 'sample_idx')


def set_tta(cfg: Config) -> None:
    """Makes a test average over flips and scales, in place.

    A config's own ``tta_model`` and ``tta_pipeline`` come first; otherwise the test pipeline is
    repeated with its scales times `RATIOS`, plain and flipped.

    Raises:
        RunError: the model predicts masks of instances, which mmdet cannot average, or the test
            pipeline has no transform that packs.
    """
    scope = cfg.default_scope
    if scope == 'mmdet' and ((cfg.model.get('roi_head') or {}).get('mask_head')
                             or cfg.model.get('mask_head')):
        raise RunError('--tta: mmdet averages boxes alone, and this model predicts masks')
    dataset = cfg.test_dataloader.dataset
    model = cfg.get('tta_model') or ConfigDict(MODELS[scope])
    pipeline = cfg.get('tta_pipeline') or augmented(dataset.pipeline, RATIOS[scope])
    cfg.model = ConfigDict(model, module=cfg.model)
    if scope == 'mmpretrain':  # whose hook cannot draw several versions of an image
        cfg.default_hooks.pop('visualization', None)
    dataset.pipeline = deepcopy(pipeline)


def augmented(pipeline: list, ratios: tuple[float, ...]) -> list:
    """A test pipeline over scales and flips; the images are loaded once."""
    start = 1 + next((place for place, step in enumerate(pipeline)
                      if str(step['type']).split('.')[-1].startswith('LoadImage')), -1)
    pack = deepcopy(pipeline[-1])
    if not str(pack['type']).split('.')[-1].startswith('Pack'):
        raise RunError(f'--tta: the test pipeline ends with {pack["type"]}, expected Pack...')
    pack['meta_keys'] = tuple(dict.fromkeys((*pack.get('meta_keys', ()), *META)))
    flips = [dict(type='RandomFlip', prob=prob, direction='horizontal') for prob in (0., 1.)]
    steps = [[step] if not (step['type'] == 'Resize' and 'scale' in step) else [
        dict(step, scale=scaled(step['scale'], ratio)) for ratio in ratios]
        for step in pipeline[start:-1]]
    # before the ground truth is loaded, which keeps its own orientation
    place = next((at for at, step in enumerate(pipeline[start:-1])
                  if str(step['type']).startswith('LoadAnn')), len(steps))
    return [*pipeline[:start], ConfigDict(type='TestTimeAug', transforms=[
        *steps[:place], flips, *steps[place:], [pack]])]


def scaled(scale, ratio: float):
    """A side, or both, times a ratio."""
    return tuple(round(side * ratio) for side in scale) if isinstance(scale, (list, tuple)) \
        else round(scale * ratio)
