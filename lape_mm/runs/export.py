"""tools/export_onnx.py: from a config and a checkpoint to an ONNX file."""
from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS
from rich.console import Console
from torch import Tensor

from lape_mm.checkpoints.layouts import unwrap
from lape_mm.checkpoints.loader import install_safe_loader
from lape_mm.export.onnx import BATCHES, NEEDED, OPSETS, ExportError, export_onnx
from lape_mm.requirements import install_hint, missing
from lape_mm.wording import first_line

from .arguments import apply_trust
from .checks.build import build_model
from .config import load_config, our_backbones
from .errors import RunError
from .images import find_images, fit, read_image, turns_channels
from .loading import check_fits


def export(args: Namespace) -> None:
    """Exports the model, compares it with PyTorch, writes the file and describes it.

    Args:
        args: config, checkpoint, out, img_size (side, or height and width), images (None or a
            folder), opset, joining, cfg_options, trust_checkpoint.

    Raises:
        RunError: something is missing, or the file's outputs differ from PyTorch's.
    """
    apply_trust(args)
    if lacking := missing(*NEEDED):
        raise RunError([install_hint(module) for module in lacking])
    # cheap checks before minutes of work
    if not OPSETS[0] <= args.opset <= OPSETS[1]:
        raise RunError(f'--opset {args.opset}: expected {OPSETS[0]} to {OPSETS[1]}')
    if Path(args.out).is_dir() or not args.out.endswith('.onnx'):
        raise RunError(f'{args.out}: expected a file name that ends with .onnx')
    height, width = size = (args.img_size * 2)[:2]
    if min(size) < 1:
        raise RunError(f'--img-size {height} {width}: expected at least one pixel')
    cfg = load_config(args.config, options=args.cfg_options, joining=args.joining,
                      backbone=getattr(args, 'backbone', None))
    turned = turns_channels(cfg)
    # BGR as OpenCV reads it, which is what the exported model takes
    images = [fit(torch.from_numpy(read_image(path)).permute(2, 0, 1), size)
              for path in find_images(args.images, max(BATCHES))] if args.images else \
        [image.flip(0) if turned else image for image in validation_images(cfg, size)]
    joining = next((backbone.get('joining', 'default') for _, backbone in our_backbones(cfg)), None)
    install_safe_loader()
    model = build_model(cfg).eval()
    model.load_state_dict(unwrap(check_fits(model, args.checkpoint)))
    try:
        with Console(stderr=True).status('exporting, and comparing with PyTorch'):
            difference = export_onnx(
                model, images, args.out, opset=args.opset, turned=turned,
                notes=dict(config=Path(args.config).name, joining=joining))
    except ExportError as error:
        raise RunError(str(error)) from error
    print(f'{args.out}: opset {args.opset}, images of {height} x {width} pixels in batches of any '
          f'size; onnxruntime and PyTorch differ by {difference:.1e} of the output\'s scale on '
          f'batches of {" and ".join(map(str, BATCHES))}')


def validation_images(cfg: Config, size: tuple[int, int]) -> list[Tensor]:
    """The first images of the config's test data, (3, *size) each.

    Raises:
        RunError: the data cannot be read.
    """
    from .session import draw_scenes
    draw_scenes(cfg)
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader')
    try:
        dataset = DATASETS.build(loader['dataset'])
        return [fit(dataset[index]['inputs'], size)
                for index in range(min(len(dataset), max(BATCHES)))]
    except Exception as error:  # a data set is anybody's code
        raise RunError(f"the config's test images cannot be read ({first_line(error)}): give a "
                       'folder of images by --images') from error
