#!/usr/bin/env python
"""--backbone on one plain config of every algorithm folder of mmdet and mmseg.

    python benchmarks/sweep.py

Each config is loaded with --backbone, checked, built, and does one training and one validation
step on two small images, in a process of its own. Writes benchmarks/sweep.json and the page
docs/any_config_table.md. With names of its configs (mmdet::...) it tries only these anew.
"""
import argparse
import json
import multiprocessing
import os
import site
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from copy import deepcopy
from importlib import import_module
from io import StringIO
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.optim import build_optim_wrapper
from mmengine.structures import PixelData

from lape_mm.runs.checks.build import build_model
from lape_mm.runs.config import configs_of, load_config, lookup, walk
from lape_mm.runs.errors import RunError

ROOT = Path(__file__).parents[1]
BARS = dict(mmseg=47, mmdet=95)
COMMON = ('coco', 'ade20k', 'cityscapes')
RESULTS = ('works', 'refused', 'fails')
LIMIT = 600  # seconds
FEW = dict(nms_pre=100, max_per_img=100, num=32, nms_post=100)
ADAMW = dict(optimizer=dict(type='AdamW', lr=1e-4))  # for trackers that are only tested
SIZES = dict(mmdet=(128, 256, 512), mmseg=(64, 128, 512))  # some losses need larger maps


def plain_configs(package: str) -> list[str]:
    """A config with a model of each folder: ResNet-50 and a common data set first, then the
    shortest name."""
    chosen, root = [], configs_of(package)
    for folder in sorted(path for path in root.iterdir() if path.name != '_base_'):
        names = sorted(folder.glob('*.py'), key=lambda path: (
            'r50' not in path.name, not any(one in path.name for one in COMMON), len(path.name),
            path.name))
        found = next((path for path in names if has_model(path)), None)
        if found:
            chosen.append(f'{package}::{found.relative_to(root)}')
    return chosen


def has_model(path: Path) -> bool:
    """Whether a config has a model, or cannot be read."""
    try:
        return 'model' in Config.fromfile(path)
    except Exception:
        return 'model' in path.read_text() or '_base_' in path.read_text()


def attempt(name: str, backbone: str, pipe) -> None:
    """Sends the result of one config and its reason."""
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    result = '', ''
    for size in SIZES[name.split('::')[0]]:
        try:
            with redirect_stdout(StringIO()):
                result = 'works', try_config(name, backbone, size)
            break
        except RunError as error:
            result = 'refused', str(error)
            break
        except Exception as error:
            result = 'fails', f'{type(error).__name__}: {" ".join(str(error).split())[:300]}'
    pipe.send(result)


def try_config(name: str, backbone: str | None, size: int, options: dict | None = None) -> str:
    """Loads, checks and builds a config, and does one training and one validation step.

    Returns:
        names of the backbone's parameters without a gradient, '' for none.
    """
    cfg = load_config(name, backbone=backbone, options=options)
    for _, node in walk({'model': cfg.model}):
        node.pop('teacher_ckpt', None)  # not fetched
        if str(node.get('type')).endswith('SyncBN'):  # for one process
            node.type = 'BN'
        # no large batches and fewer boxes, to be quick
        node.pop('batch_augments', None)
        if 'mean' in node and 'size' in node:
            node.size = (size, size)
        for key in FEW.keys() & node.keys():
            node[key] = min(node[key], FEW[key])
    torch.manual_seed(0)
    for name in ('iter', 'epoch'):  # augmentation in a preprocessor asks for it
        MessageHub.get_current_instance().update_info(name, 0)
    model = build_model(cfg)
    model.train()
    data = images(cfg, size)
    wrapper = dict(cfg.get('optim_wrapper') or ADAMW, type='OptimWrapper')
    for key in ('dtype', 'loss_scale'):
        wrapper.pop(key, None)
    optimizer = build_optim_wrapper(model, wrapper)
    grads = {}
    optimizer.zero_grad = lambda *_, **__: grads.update(
        (one, p.grad is not None) for one, p in model.named_parameters() if p.requires_grad)
    losses = model.train_step(deepcopy(data), optimizer)
    if not all(torch.isfinite(value).all() for value in losses.values()):
        raise FloatingPointError(f'losses {losses}')
    model.eval()
    with torch.no_grad():
        model.val_step(images(cfg, size, validation=True))
    return ' '.join(one for one, there in grads.items() if not there and 'backbone' in one)


def images(cfg: Config, size: int | tuple[int, int], items: Sequence[int] = (3, 2),
           validation: bool = False) -> dict:
    """Random images and their ground truth, as a config's model gets them from its loader.

    Args:
        cfg: of any task.
        size: height and width, or the side of square images, in pixels.
        items: how many objects each image shows.
        validation: mmdet tests one image.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if cfg.default_scope == 'mmdet':
        return detection_images(cfg, (3, height, width), list(items[:1] if validation else items),
                                validation)
    if cfg.default_scope == 'mmseg':
        from mmseg.structures import SegDataSample
        count = min(numbers(cfg.model, 'num_classes'))
        samples = [SegDataSample(
            gt_sem_seg=PixelData(data=torch.randint(0, count, (1, height, width))),
            metainfo=dict(img_shape=(height, width), ori_shape=(height, width), flip=False,
                          pad_shape=(height, width), padding_size=[0] * 4,
                          img_padding_size=[0] * 4)) for _ in items]
    else:
        from mmpretrain.structures import DataSample
        samples = [DataSample().set_gt_label(1) for _ in items]
    pictures = torch.randint(0, 256, (len(items), 3, height, width), dtype=torch.uint8)
    return dict(inputs=list(pictures), data_samples=samples)


def detection_images(cfg: Config, shape: tuple[int, int, int], items: list[int],
                     validation: bool) -> dict:
    """mmdet's data, and its trackers'."""
    from mmdet.testing import demo_mm_inputs, demo_mm_proposals, demo_track_inputs
    count = min([value for value in numbers(cfg.model, 'num_classes') if value > 1], default=1)
    kind = lookup(cfg, 'model.data_preprocessor.type')
    if kind == 'TrackDataPreprocessor':
        return demo_track_inputs(1, len(items), None if validation else [0], shape,
                                 num_classes=count, with_mask=True)
    shapes = [shape] * len(items)
    data = demo_mm_inputs(len(items), shapes, num_items=items,
                          num_classes=min(max(count, 2), 200),
                          with_mask=any(word in str(cfg.to_dict()) for word in (
                              "'with_mask': True", 'LoadPanopticAnnotations')),
                          with_semantic=True, use_box_type=True)
    for sample, proposals in zip(data['data_samples'], demo_mm_proposals(shapes, 20)):
        if not cfg.model.get('rpn_head'):
            sample.proposals = proposals  # of Fast R-CNN
        sample.set_metainfo(dict(homography_matrix=torch.eye(3).numpy()))  # of Soft Teacher
        sample.gt_instances.labels = sample.gt_instances.labels.clamp(max=count - 1)
        if 'stuff' not in str(cfg.model) and 'semantic' not in str(cfg.model):
            del sample.gt_sem_seg
    if kind == 'MultiBranchDataPreprocessor' and not validation:
        branches = ('sup', 'unsup_teacher', 'unsup_student')
        return {key: {branch: data[key] for branch in branches} for key in data}
    return data


def numbers(node: Config, key: str) -> list[int]:
    """Every whole number of this name below a dict."""
    return [one[key] for _, one in walk(dict(node)) if isinstance(one.get(key), int)]


def isolated(name: str, backbone: str) -> dict:
    """`attempt` in a process that is forked from this one."""
    fork = multiprocessing.get_context('fork')
    here, there = fork.Pipe(duplex=False)
    start = time.perf_counter()
    process = fork.Process(target=attempt, args=(name, backbone, there))
    process.start()
    there.close()
    try:
        result, reason = here.recv() if here.poll(LIMIT) else ('fails', f'takes over {LIMIT} s')
    except EOFError:
        result, reason = 'fails', 'the process was killed'
    process.kill()
    process.join()
    seconds = round(time.perf_counter() - start, 1)
    reason = reason.replace(site.getsitepackages()[0], 'SITE')  # no path of this machine
    print(f'{result:8} {seconds:5.1f} s  {name}  {reason}', flush=True)
    return dict(config=name, result=result, reason=reason, seconds=seconds)


def page(record: dict) -> str:
    """The docs page."""
    lines = [f'# Configs that take `--backbone {record["backbone"]}`', '',
             'Made by `python benchmarks/sweep.py`: one plain config of every algorithm folder, '
             'built, with one training', 'and one validation step on random images. '
             '[Any config](any_config.md) says what `--backbone` does.', '',
             '| measured | works | refused | fails | bar |', '|---|---|---|---|---|']
    for package, bar in BARS.items():
        found = Counter(one['result'] for one in record['configs']
                        if one['config'].startswith(package))
        lines.append(f'| {package} | {" | ".join(str(found[one]) for one in RESULTS)} | {bar} |')
    for result in RESULTS:
        chosen = [one for one in record['configs'] if one['result'] == result]
        if chosen:
            lines += ['', f'## {result.capitalize()}', '']
        for one in chosen:
            # without the option's name, and the command that compiles mmcv
            reason = one['reason'].removeprefix(f'--backbone {record["backbone"]}: ')
            reason = f': {reason.partition(": uv pip")[0]}' if result != 'works' else ''
            lines.append(f'- `{one["config"]}`{reason}')
    return '\n'.join(lines) + '\n'


def main() -> int:
    """Sweeps, writes, and returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('configs', nargs='*')
    parser.add_argument('--backbone', default='vit_adapter_tiny')
    parser.add_argument('--jobs', type=int, default=2)
    args = parser.parse_args()
    names = args.configs or [name for package in BARS for name in plain_configs(package)]
    for package in BARS:  # once, before the forks
        import_module(f'{package}.utils').register_all_modules(init_default_scope=False)
    with ThreadPoolExecutor(args.jobs) as pool:
        found = list(pool.map(lambda name: isolated(name, args.backbone), names))
    record = ROOT / 'benchmarks/sweep.json'
    if args.configs:  # the others stay as they are
        before = json.loads(record.read_text())['configs'] if record.exists() else []
        found = list({one['config']: one for one in (*before, *found)}.values())
    kept = dict(backbone=args.backbone, configs=found)
    record.write_text(json.dumps(kept, indent=1) + '\n')
    (ROOT / 'docs/any_config_table.md').write_text(page(kept))
    works = Counter(one['config'].split('::')[0] for one in found if one['result'] == 'works')
    return int(any(works[package] < bar for package, bar in BARS.items()))


if __name__ == '__main__':
    sys.exit(main())
