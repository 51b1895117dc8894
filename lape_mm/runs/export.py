"""tools/export_onnx.py: from a config and a checkpoint to an ONNX file."""
from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS
from torch import Tensor, nn

from lape_mm.checkpoints.layouts import unwrap
from lape_mm.checkpoints.loader import install_safe_loader
from lape_mm.export.onnx import BATCHES, NEEDED, OPSETS, ExportError, export_onnx
from lape_mm.requirements import install_hint, missing
from lape_mm.wording import first_line

from .arguments import apply_trust
from .checks.build import build_model
from .config import load_config, our_backbones
from .errors import RunError
from .images import SUFFIXES, find_images, fit, turns_channels
from .loading import check_fits
from .progress import working


def export(args: Namespace) -> None:
    """Exports, compares and writes, and prints what the file is.

    Args:
        args: config, checkpoint, out, img_size (side, or height and width), images (None or a
            folder), opset, joining, cfg_options, trust_checkpoint.

    Raises:
        RunError: something is missing, or the file would not compute what the model does.
    """
    apply_trust(args)
    if lacking := missing(*NEEDED):
        raise RunError([install_hint(module) for module in lacking])
    # before minutes of work
    if not OPSETS[0] <= args.opset <= OPSETS[1]:
        raise RunError(f'--opset {args.opset}: expected {OPSETS[0]} to {OPSETS[1]}')
    if Path(args.out).is_dir() or not args.out.endswith('.onnx'):
        raise RunError(f'{args.out}: expected a file name that ends with .onnx')
    height, width = size = (args.img_size * 2)[:2]
    if min(size) < 1:
        raise RunError(f'--img-size {size[0]} {size[1]}: expected at least one pixel')
    cfg = load_config(args.config, options=args.cfg_options, joining=args.joining)
    turned = turns_channels(cfg)
    images = (folder_images(args.images, size) if args.images else
              [image.flip(0) if turned else image for image in validation_images(cfg, size)])
    joinings = [backbone.get('joining', 'default') for _, backbone in our_backbones(cfg)]
    model = load_model(cfg, args.checkpoint)
    try:
        with working('exporting, and comparing with PyTorch'):
            difference = export_onnx(
                model, images, args.out, opset=args.opset, turned=turned, notes={
                    'config': Path(args.config).name, 'joining': joinings[0] if joinings else None})
    except ExportError as error:
        raise RunError(str(error)) from error
    print(f'{args.out}: opset {args.opset}, images of {size[0]} x {size[1]} pixels in batches of '
          f'any size; onnxruntime and PyTorch differ by {difference:.1e} of the output\'s scale '
          f'on batches of {" and ".join(map(str, BATCHES))}')


def load_model(cfg: Config, checkpoint: str) -> nn.Module:
    """A config's model with all of a checkpoint's weights, in evaluation mode.

    Raises:
        RunError: the checkpoint cannot be read, or does not fit.
    """
    install_safe_loader()
    model = build_model(cfg)
    model.load_state_dict(unwrap(check_fits(model, checkpoint)))
    return model.eval()


def folder_images(folder: str, size: tuple[int, int]) -> list[Tensor]:
    """A few images of a folder, in OpenCV's BGR, resized to (h, w): (3, h, w), float32, 0..255.

    Raises:
        RunError: the folder holds no image that can be read.
    """
    import cv2
    images = []
    for path in find_images(folder):
        image = cv2.imread(str(path))
        if image is not None:
            images.append(fit(torch.from_numpy(image).permute(2, 0, 1), size))
        if len(images) == max(BATCHES):
            break
    if not images:
        raise RunError(f'--images {folder}: holds no image ({", ".join(SUFFIXES)}) that can be '
                       'read')
    return images


def validation_images(cfg: Config, size: tuple[int, int]) -> list[Tensor]:
    """The first images that the config's test pipeline gives, resized to (h, w).

    Raises:
        RunError: they are not there.
    """
    from .session import draw_scenes
    draw_scenes(cfg)
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader')
    try:
        dataset = DATASETS.build(loader['dataset'])
        return [fit(dataset[index]['inputs'], size)
                for index in range(min(len(dataset), max(BATCHES)))]
    except Exception as error:  # a data set is anybody's code
        raise RunError(f"the config's test images cannot be read ({first_line(error)}): "
                       'name a folder of images by --images') from error
