"""--data, --epochs, --img-size, --batch, --lr and --dry: edits every setting that each affects."""
from __future__ import annotations

import colorsys
import math
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from timm.layers import to_2tuple, to_ntuple

from lape_mm.datasets.folders import TASKS, Data, read_folder, write_index
from lape_mm.shipped import shipped

from .checks.data_sets import heads
from .checks.settings import nearest
from .config import lookup, walk
from .errors import RunError, rank

# the short names of our recipes; tiny unless a name ends with another size
RECIPES = {
    'mask_rcnn': 'mask_rcnn/mask-rcnn_vit-adapter-{}-default_fpn_8xb2-ms-3x_coco.py',
    'upernet': 'upernet/upernet_vit-adapter-{}-default_8xb2-160k_ade20k-512x512.py',
    'segmenter': 'segmenter/segmenter_deit-{}-default_mask_8xb1-160k_ade20k-512x512.py',
    'deit': 'deit/deit-{}-default_4xb256-300e_in1k.py'}
OPTIONS = ('data', 'epochs', 'img_size', 'batch', 'lr', 'ignore_index', 'reduce_zero_label', 'dry')
LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
DRY = {'mmdet': 224, 'mmseg': 128, 'mmpretrain': 64}  # pixels
# what a pipeline calls sizes in pixels
SIZES = ('scale', 'scales', 'crop_size', 'img_scale', 'size', 'border', 'random_size_range')
# what schedules and hooks count in epochs or iterations
TIMES = ('begin', 'end', 'milestones', 'T_max', 'switch_epoch', 'num_last_epochs', 'val_begin')


def recipe(name: str) -> str:
    """The config of a short name such as ``mask_rcnn_small``; other names stay as they are."""
    if '/' in name or '::' in name or os.path.exists(name):
        return name
    stem, _, size = name.rpartition('_')
    if size not in ('tiny', 'small', 'base'):
        stem, size = name, 'tiny'
    path = shipped('configs') / RECIPES.get(stem, '').format(size)
    if not path.is_file() and (alike := nearest(stem, RECIPES)):
        raise RunError(f'there is no config {name}, did you mean {alike[0]!r}?')
    return str(path) if path.is_file() else name


def settle(args: Namespace) -> None:
    """Checks that the options agree, and names the work folder after config and data."""
    if args.ignore_index == 0:
        args.ignore_index, args.reduce_zero_label = None, True
    if not args.data and (args.dry or args.reduce_zero_label or args.ignore_index is not None):
        raise RunError('--dry, --ignore-index and --reduce-zero-label need --data FOLDER')
    if args.lr and args.auto_scale_lr:
        raise RunError('--auto-scale-lr would change the rate that --lr sets: leave one out')
    if args.data and not args.work_dir:
        name = f'{Path(args.config).stem}_{Path(args.data).resolve().name}'
        args.work_dir = str(Path('work_dirs', name + ('_dry' if args.dry else '')))


def edit(cfg: Config, args: Namespace) -> None:
    """Applies the options in `OPTIONS` to a freshly read config; RunError if one does not fit."""
    notes: list[str] = []
    images, epochs, side = 0, args.epochs, args.img_size
    if args.data:
        data = read_data(cfg, args)
        images = len(data.train)
        set_data(cfg, data, args)
        notes += data.notes
        if args.dry:
            epochs, side = epochs or 2, side or DRY[cfg.default_scope]
            for loader in LOADERS:
                cfg[loader].num_workers = 0
    batch = cfg.train_dataloader.get('batch_size', 1)
    if args.batch or images:
        batch = args.batch or min(batch, 2 if args.dry else max(2, images // 10))
        cfg.train_dataloader.batch_size = batch
        notes.append(f'batches of {batch} images per process')
        if not args.lr and (base := lookup(cfg, 'auto_scale_lr.base_batch_size')):
            cfg.auto_scale_lr.enable = True
            notes[-1] += f'; the learning rate, made for {base} per step, is scaled'
    if args.lr:
        set_lr(cfg, args.lr)
    if side:
        notes.append(set_img_size(cfg, side))
    world = int(os.environ.get('WORLD_SIZE', os.environ.get('SLURM_NTASKS', 1)))
    set_epochs(cfg, epochs, math.ceil(images / (batch * world)), notes)
    if args.dry:
        cfg.train_cfg.val_interval = cfg.train_cfg.get('max_epochs') or cfg.train_cfg.max_iters
    if rank() == 0:
        print(*(f'data: {note}' for note in notes), sep='\n', flush=True)


def read_data(cfg: Config, args: Namespace) -> Data:
    """Reads the folder of --data for the config's toolbox; with --dry, only a few images."""
    scope = cfg.get('default_scope')
    if scope not in DRY or not all(cfg.get(name) for name in ('model', *LOADERS)):
        raise RunError(f'--data: the config needs a default_scope of {", ".join(DRY)}, a model, '
                       f'and {", ".join(LOADERS)}')
    if scope != 'mmseg' and (args.reduce_zero_label or args.ignore_index is not None):
        raise RunError('--ignore-index and --reduce-zero-label are for label maps')
    try:
        data = read_folder(args.data, scope, ignore_index=args.ignore_index,
                           reduce_zero_label=bool(args.reduce_zero_label))
    except ValueError as error:
        raise RunError(f'--data {error}') from error
    if args.dry:
        for part, count in ((data.train, 8), (data.val, 4)):
            few = [sample for sample in part if sample.objects] or part
            part[:] = few[::-(-len(few) // count)]
        data.notes.append(f'--dry: {len(data.train)} training, {len(data.val)} validation images')
    return data


def set_data(cfg: Config, data: Data, args: Namespace) -> None:
    """Adapts a config's loaders, heads and evaluators to a folder's data."""
    cfg.pop('scenes', None)
    cfg.data_root = str(data.root)
    scope, count = cfg.default_scope, len(data.classes)
    masks = scope == 'mmdet' and set_masks(cfg, data)
    index = write_index(data, Path(args.work_dir, 'data'))
    metainfo = dict(classes=data.classes, palette=[
        tuple(round(255 * part) for part in colorsys.hsv_to_rgb(number * .618 % 1, .8, .95))
        for number in range(count)])
    for name, split in zip(LOADERS, ('train', 'val', 'val')):
        node = source = cfg[name].dataset
        while 'dataset' in source or 'datasets' in source:  # keep only wrappers that mix images
            mixes = 'pipeline' in source
            source = source['dataset'] if 'dataset' in source else source['datasets'][0]
            node = source if mixes else node
        pipeline = source.get('pipeline') or []
        steps = [kind_of(step) for step in pipeline]
        needed = {'LoadImageFromFile', *(() if scope == 'mmpretrain' else ('LoadAnnotations',))}
        if split == 'train' and not needed <= {*steps} or scope == 'mmdet' and any(
                step.get('with_seg') for step in pipeline):  # maps of stuff
            raise RunError(f'--data: the pipeline of {name} ({", ".join(steps)}) reads other data '
                           f'than {" or ".join(TASKS[scope])}; choose another config')
        made = [dict(one, data_root=cfg.data_root, metainfo=metainfo, test_mode=split == 'val',
                     pipeline=pipeline) for one in index[split]]
        if scope == 'mmdet':
            made[0]['filter_cfg'] = source.get('filter_cfg')
        node.clear()
        node.update(made[0] if len(made) == 1 else dict(type='ConcatDataset', datasets=made))
    if kind_of(cfg.train_dataloader.get('sampler')) == 'RepeatAugSampler':
        cfg.train_dataloader.sampler = ConfigDict(type='DefaultSampler', shuffle=True)
        data.notes.append('each image once per epoch; the recipe shows it three times')
    set_classes(cfg, count)
    set_evaluators(cfg, index['val'][0]['ann_file'], masks, count)
    if args.ignore_index:
        set_ignored(cfg, args.ignore_index)


def set_masks(cfg: Config, data: Data) -> bool:
    """Whether to train masks; removes the mask head if the data has no outlines."""
    loading = [node for _, node in walk({name: cfg[name] for name in LOADERS})
               if node.get('with_mask')]
    objects = [one for sample in data.train + data.val for one in sample.objects]
    bare = [one for one in objects if not one['segmentation']]
    if not loading:
        return False
    if len(bare) < len(objects):
        for one in bare:
            x, y, width, height = one['bbox']
            one['segmentation'] = [[x, y, x + width, y, x + width, y + height, x, y + height]]
        if bare:
            data.notes.append(f'{len(bare)} of {len(objects)} objects have only a box, which '
                              'serves as their outline')
        return True
    if not lookup(cfg, 'model.roi_head.mask_head') or cfg.model.type not in (
            'MaskRCNN', 'CascadeRCNN'):
        raise RunError(f'--data {data.root}: has boxes without outlines, which {cfg.model.type} '
                       'needs; choose a config of a box detector, or annotate polygons')
    del cfg.model.roi_head['mask_head']
    cfg.model.roi_head.pop('mask_roi_extractor', None)
    for node in loading:
        node['with_mask'] = False
    data.notes.append('boxes without outlines: the model is trained without its mask head')
    return False


def set_classes(cfg: Config, count: int) -> None:
    """Sets the number of classes in all heads, and of class weights in their losses."""
    old = 0
    for path, classes in list(heads(cfg.model)):
        lookup(cfg, path)['num_classes'], old = count, classes
    if 'num_classes' in (cfg.get('data_preprocessor') or {}):
        cfg.data_preprocessor.num_classes = count
    for path, node in walk(cfg.model):
        if 'num_classes' in node and path.rpartition('.')[2].startswith('loss'):
            node['num_classes'] = count
        if 'num_things_classes' in node:
            old = node['num_things_classes'] + node['num_stuff_classes']
            node.update(num_things_classes=count, num_stuff_classes=0)
        weights = node.get('class_weight')
        if isinstance(weights, list) and old and len(weights) - old in (0, 1):
            node['class_weight'] = [1.] * count + weights[old:]
        if 'topk' in node and cfg.default_scope == 'mmpretrain':
            node['topk'] = fitting(node['topk'], count)


def fitting(topk: Any, count: int) -> tuple[int, ...]:
    """The values of topk below the number of classes, or (1,) if there are none."""
    return tuple(rank for rank in to_ntuple(1)(topk) if rank < count) or (1, )


def kind_of(node: Any) -> str:
    """The ``type`` of a dict, without a toolbox's prefix."""
    return str((node or {}).get('type')).split('.')[-1]


def set_evaluators(cfg: Config, index: str, masks: bool, count: int) -> None:
    """Gives validation and test the toolbox's usual metric for this data."""
    kind, best = {'mmdet': ('CocoMetric', 'coco/bbox_mAP'), 'mmseg': ('IoUMetric', 'mIoU'),
                  'mmpretrain': ('Accuracy', 'accuracy/top1')}[cfg.default_scope]
    for name in ('val_evaluator', 'test_evaluator'):
        old = cfg.get(name)
        old = old[0] if isinstance(old, list) else old
        new = ConfigDict(old if kind_of(old) == kind else dict(type=kind))
        if kind == 'CocoMetric':
            new.update(ann_file=index, metric=['bbox', 'segm'] if masks else 'bbox',
                       format_only=False)
        elif kind == 'Accuracy':
            new.topk = fitting(new.get('topk', 1), count)
        cfg[name] = new
    if lookup(cfg, 'default_hooks.checkpoint.save_best'):
        cfg.default_hooks.checkpoint.save_best = best


def set_ignored(cfg: Config, index: int) -> None:
    """Sets the ignored id wherever a config counts label ids or pads with them."""
    for path, _ in list(heads(cfg.model)):
        lookup(cfg, path)['ignore_index'] = index
    for _, node in walk({key: cfg.get(key) for key in (
            *LOADERS, 'model', 'data_preprocessor', 'val_evaluator', 'test_evaluator')}):
        if kind_of(node) in ('BaseSegDataset', 'IoUMetric', 'RandomCrop'):
            node['ignore_index'] = index
        elif 'seg_pad_val' in node or kind_of(node) == 'SegDataPreProcessor':
            node['seg_pad_val'] = index


def set_lr(cfg: Config, rate: float) -> None:
    """Sets the learning rate, unscaled; the final rates of schedules keep their ratio to it."""
    optimizer = lookup(cfg, 'optim_wrapper.optimizer')
    if not optimizer or 'lr' not in optimizer:
        raise RunError('--lr: the config has no optim_wrapper.optimizer.lr')
    for _, node in walk({'schedule': cfg.get('param_scheduler')}):
        if node.get('eta_min'):
            node['eta_min'] *= rate / optimizer['lr']
    optimizer['lr'] = rate
    if cfg.get('auto_scale_lr'):
        cfg.auto_scale_lr.enable = False


def set_img_size(cfg: Config, side: int) -> str:
    """Scales all sizes so that a crop, or a detector's shorter side, has ``side`` pixels."""
    steps = [node for _, node in walk(cfg.test_dataloader) if 'type' in node]
    sizes = [*(step.get('crop_size') for step in steps),
             *(lookup(cfg, f'{where}data_preprocessor.size') for where in ('', 'model.')),
             *(step.get('scale') or step.get('img_scale') for step in steps)]
    old = next((min(to_2tuple(size)) for size in sizes if size), None)
    if old is None:
        raise RunError('--img-size: the test pipeline of the config resizes no image')

    def scaled(value):
        if isinstance(value, (list, tuple)):
            return type(value)(map(scaled, value))
        return round(value * side / old) if isinstance(value, int) and abs(value) >= 16 else value
    for path, node in walk({key: cfg.get(key) for key in (
            *LOADERS, 'data_preprocessor', 'custom_hooks', 'model')}):
        model = path.startswith('model') and 'data_preprocessor' not in path
        for key in SIZES if not model else ('crop_size', 'stride') if path.endswith(
                'test_cfg') else ():
            if key in node:
                node[key] = scaled(node[key])
        if 'batch_augments' in path and 'size' in node:  # after padding to whole patches
            node['size'] = tuple(length + -length % 32 for length in node['size'])
        if model and node.get('img_size') in (old, (old, old), [old, old]):
            node['img_size'] = scaled(node['img_size'])
    return f'images of {side} pixels, not {old}; crops and scales in proportion'


def set_epochs(cfg: Config, epochs: int | None, per_epoch: int, notes: list[str]) -> None:
    """Sets the length of a run (None keeps it); warm-up, milestones and intervals scale with it.

    An epoch has ``per_epoch`` batches, 0 if unknown.
    """
    loop = cfg.train_cfg
    whole = 'max_epochs' in loop
    unit = 'max_epochs' if whole else 'max_iters'
    if epochs and not whole and not (per_epoch and unit in loop):
        raise RunError('--epochs: the config counts iterations, so it needs --data FOLDER; or pass '
                       '--cfg-options train_cfg.max_iters=N')
    old = loop[unit]
    new = (epochs if whole else epochs * per_epoch) if epochs else old

    def scaled(value):
        if isinstance(value, (list, tuple)):
            return sorted({scaled(entry) for entry in value})
        return min(new, max(1, round(value * new / old))) if 0 < value < math.inf else value

    def scale(node):
        node.update({key: scaled(node[key]) for key in TIMES if key in node})
    kept, schedules = [], cfg.get('param_scheduler') or []
    for node in schedules if isinstance(schedules, list) else [schedules]:
        if node.get('by_epoch', True) == whole:
            scale(node)
        elif whole and per_epoch and not node.get('begin'):  # a warm-up in iterations
            node['end'] = min(node.get('end', math.inf), max(1, new * per_epoch // 10))
        span = node.get('end', math.inf) - node.get('begin', 0)
        if node.get('convert_to_iter_based'):
            span *= per_epoch or math.inf
        warms = {'start_factor', 'factor'} & node.keys()  # mmengine never leaves a one-step warm-up
        if span > (1 if warms else 0):
            kept.append(node)
    cfg.param_scheduler = kept
    for node in (loop, *(cfg.get('custom_hooks') or [])):
        scale(node)
    if 'dynamic_intervals' in loop:
        loop['dynamic_intervals'] = [(scaled(at), step) for at, step in loop['dynamic_intervals']]
    loop[unit] = new
    every = loop.get('val_interval', 1)
    loop['val_interval'] = every = min(new, every if whole else max(scaled(every), per_epoch))
    saving = lookup(cfg, 'default_hooks.checkpoint')
    if saving and saving.get('by_epoch', True) == whole:
        saving['interval'] = min(saving.get('interval', 1), new) if whole else every
    if per_epoch:
        if logging := lookup(cfg, 'default_hooks.logger'):
            logging['interval'] = min(logging.get('interval', 10), max(1, per_epoch // 4))
        total = new * per_epoch if whole else new
        notes.append(f'{total / per_epoch:.4g} epochs of {per_epoch} iterations'
                     + ('' if epochs else ", the recipe's; --epochs sets another length"))
