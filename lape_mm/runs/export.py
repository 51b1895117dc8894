"""What tools/export_onnx.py does: turns a config and a checkpoint into an ONNX file."""
from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS
from rich.console import Console
from torch import Tensor, nn

from lape_mm.checkpoints.files import dataset_meta
from lape_mm.checkpoints.layouts import unwrap
from lape_mm.export.onnx import BATCHES, NEEDED, OPSET, export_onnx
from lape_mm.requirements import install_hint, missing
from lape_mm.wording import first_line

from .arguments import apply_trust
from .checks.build import build_model
from .config import load_config, lookup, our_backbones
from .errors import RunError
from .images import find_images, fit, read_image, test_steps, turns_channels
from .loading import check_fits

CALIBRATION = 64  # images for static quantisation


def export(args: Namespace) -> None:
    """Exports a model, or raises RunError; ``args`` are those of tools/export_onnx.py."""
    apply_trust(args)
    if lacking := missing(*NEEDED):
        raise RunError(install_hint(lacking[0]))
    # cheap checks before minutes of work
    if Path(args.out).is_dir() or not args.out.endswith('.onnx'):
        raise RunError(f'{args.out}: expected a file name that ends with .onnx')
    cfg = load_config(args.config, options=args.cfg_options, joining=args.joining,
                      backbone=args.backbone)
    turned = turns_channels(cfg)
    own_size, notes = preparation(cfg)
    given = args.img_size or own_size
    if given is None:
        raise RunError("the config's test pipeline has no size: give --img-size")
    size = height, width = given[0], given[-1]
    most = CALIBRATION if args.int8 == 'static' else max(BATCHES)
    # the exported model takes BGR, as OpenCV reads it
    images = [fit(torch.from_numpy(read_image(path)).permute(2, 0, 1), size)
              for path in find_images(args.images, most)] if args.images else \
        [image.flip(0) if turned else image for image in test_images(cfg, size, most)]
    joining = next((backbone.get('joining', 'default') for _, backbone in our_backbones(cfg)), None)
    model, notes['names'] = load_trained(cfg, args.checkpoint)
    try:
        with Console(stderr=True).status('exporting, and comparing with PyTorch'):
            difference = export_onnx(
                model, images, args.out, turned=turned, int8=args.int8,
                notes=dict(notes, config=Path(args.config).name, joining=joining))
    except (ValueError, OSError) as error:
        raise RunError(str(error)) from error
    print(f'{args.out}: opset {OPSET}, images of {height} x {width} pixels in batches of any '
          f'size, {os.path.getsize(args.out) / 1e6:.1f} MB; onnxruntime and PyTorch differ by '
          f'{difference:.1e} on batches of {" and ".join(map(str, BATCHES))}'
          + (f', before {args.int8} INT8 quantisation' if args.int8 else ''))


def load_trained(cfg: Config, checkpoint: str) -> tuple[nn.Module, list[str]]:
    """A config's model with a checkpoint's weights, and the checkpoint's class names."""
    model = build_model(cfg).eval()
    content = check_fits(model, checkpoint)
    model.load_state_dict(unwrap(content))
    meta = dataset_meta(content) or lookup(cfg, 'test_dataloader.dataset.metainfo') or {}
    return model, [str(name) for name in meta.get('classes') or ()]


def preparation(cfg: Config) -> tuple[tuple[int, int] | None, dict]:
    """Returns the size (h, w) of the model's input or sliding window, or None, and metadata.

    The metadata tells `lape_mm.runtime` how the test pipeline prepares an image: ``channels``,
    ``keep_ratio``, ``interpolation``; for classifiers ``crop_pct`` (cropped side / resized side),
    for segmenters ``scale`` (h, w) and ``stride``, for detectors ``mask_threshold``.
    """
    steps, bgr = test_steps(cfg)
    resize, crop = (next((step for step in steps if word in str(step['type'])), {})
                    for word in ('Resize', 'CenterCrop'))
    keep = bool(resize.get('keep_ratio') or resize.get('edge'))
    scale = pair(resize.get('scale'))  # mmcv's is (w, h), or with keep_ratio in either order
    if scale:
        scale = (min(scale), max(scale)) if keep else scale[::-1]
    backend = 'pillow ' if resize.get('backend') == 'pillow' else ''
    notes = dict(channels='BGR' if bgr else 'RGB', keep_ratio=keep,
                 interpolation=backend + resize.get('interpolation', 'bilinear'))
    model, test_cfg = cfg.model, cfg.model.get('test_cfg') or {}
    if cfg.default_scope == 'mmpretrain':
        size = pair(crop.get('crop_size')) or scale or pair(model.backbone.get('img_size'))
        return size, dict(notes, crop_pct=min(size) / min(scale) if size and scale else 1.)
    if cfg.default_scope == 'mmdet':
        divisor = model.data_preprocessor.get('pad_size_divisor', 1)
        return pair([-(-side // divisor) * divisor for side in scale or ()]), dict(
            notes, mask_threshold=test_cfg.get('rcnn', {}).get('mask_thr_binary', .5))
    if test_cfg.get('mode') == 'slide':
        return pair(test_cfg['crop_size']), dict(notes, scale=scale, stride=test_cfg['stride'])
    return (None if keep else scale) or pair(model.data_preprocessor.get('size')), dict(
        notes, scale=scale)


def pair(size: Any) -> tuple[int, int] | None:
    """A side, or a pair of sides, as a pair; None if ``size`` is empty."""
    return (size, size) if isinstance(size, int) else (size[0], size[1]) if size else None


def test_images(cfg: Config, size: tuple[int, int], most: int) -> list[Tensor]:
    """The first images of the config's test data, (3, *size) each; RunError if that fails."""
    from .session import draw_scenes
    draw_scenes(cfg)
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader')
    try:
        dataset = DATASETS.build(loader['dataset'])
        return [fit(dataset[index]['inputs'], size) for index in range(min(len(dataset), most))]
    except Exception as error:  # a data set is anybody's code
        raise RunError(f"the config's test images cannot be read ({first_line(error)}): give a "
                       'folder of images with --images') from error
