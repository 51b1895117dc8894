"""A trained model, folded for one image size, as a config and a checkpoint of their own."""
from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from lape_mm.backbones import fold
from lape_mm.backbones.encoder import Encoder
from lape_mm.checkpoints.files import CheckpointError, dataset_meta
from lape_mm.checkpoints.layouts import unwrap
from lape_mm.checkpoints.loader import install_safe_loader

from .arguments import apply_trust
from .config import load_config, our_backbones
from .errors import RunError
from .loading import check_fits

TOLERANCE = 1e-5  # of the backbone's output in float32, relative to its scale


def load_model(cfg: Config, checkpoint: str) -> nn.Module:
    """A config's model with a checkpoint's weights, all of them, in evaluation mode.

    Raises:
        RunError: the checkpoint cannot be read, or does not fit.
    """
    return load_trained(cfg, checkpoint)[0]


def load_trained(cfg: Config, checkpoint: str) -> tuple[nn.Module, dict]:
    """`load_model`, and what else the checkpoint holds."""
    install_safe_loader()
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    content = check_fits(model, checkpoint)
    model.load_state_dict(unwrap(content))
    return model.eval(), content


def deploy(args: Namespace) -> None:
    """tools/deploy.py: folds, compares with the unfolded model, and writes both files.

    Args:
        args: config, checkpoint, out (a folder), img_size, joining, cfg_options,
            trust_checkpoint, force.

    Raises:
        RunError: something cannot be read, folded or written.
    """
    apply_trust(args)
    out = Path(args.out)
    files = out / 'model.py', out / 'model.pth'
    if any(file.exists() for file in files) and not args.force:
        raise RunError(f'{out} holds a model already: choose another folder, or --force')
    cfg = load_config(args.config, options=args.cfg_options, joining=args.joining)
    size = (args.img_size * 2)[:2]
    try:
        model: Any
        model, content = load_trained(cfg, args.checkpoint)
        folded = fold(model, size)
    except (CheckpointError, ValueError) as error:
        raise RunError(str(error)) from error
    try:
        difference = compare(model, folded, size)
    except Exception as error:  # a head may be anything
        first = (str(error).strip().splitlines() or [''])[0][:300]
        raise RunError(f'folded and unfolded outputs for {size[0]} x {size[1]} pixels cannot be '
                       f'compared ({type(error).__name__}: {first}): nothing was written'
                       ) from error
    if difference > TOLERANCE:
        raise RunError(f'folded and unfolded outputs differ by {difference:.1e} of their scale, '
                       f'more than {TOLERANCE:.0e}: nothing was written')
    for path, backbone in list(our_backbones(cfg)):
        encoder = model.get_submodule(path.removeprefix('model.'))
        kept = folded.get_submodule(path.removeprefix('model.'))
        plain = {key: value for key, value in backbone.items() if key != 'init_cfg'}
        backbone.clear()
        backbone.update(
            type='lape_mm.folded_backbone', img_size=size, backbone=plain,
            pooled_in_head=moved_to_head(encoder, kept))
    cfg.work_dir = f'work_dirs/{Path(args.config).stem}_folded'
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        config, weights = os.path.join(folder, 'model.py'), os.path.join(folder, 'model.pth')
        cfg.dump(config)
        meta: dict[str, Any] = {'folded_from': str(args.checkpoint), 'img_size': size}
        # inferencers and the check of a test's classes take them from there, and without the entry
        # from the number of classes
        if names := dataset_meta(content):
            meta['dataset_meta'] = names
        torch.save({'state_dict': folded.state_dict(), 'meta': meta}, weights)
        for part, file in zip((config, weights), files):
            os.replace(part, file)
    before, after = (sum(p.numel() for p in part.parameters()) for part in (model, folded))
    print(f'folded for {size[0]} x {size[1]} pixels: {before:,} parameters to {after:,}, outputs '
          f'differ by {difference:.1e} of their scale\n{files[0]}\n{files[1]}')


def moved_to_head(encoder: Encoder, folded: Encoder) -> bool:
    """Whether a classifier's bias holds what the folded backbone does not add any more."""
    return False


@torch.no_grad()
def compare(model: Any, folded: Any, size: tuple[int, int]) -> float:
    """The largest difference of the backbones' outputs on noise, relative to their scale.

    A final term that has moved into a classifier is compared with it.
    """
    worst = 0.
    for name, encoder in model.named_modules():
        if not isinstance(encoder, Encoder):
            continue
        image = torch.randn(2, encoder.in_channels, *size)
        theirs, ours = encoder(image), folded.get_submodule(name)(image)
        if moved_to_head(encoder, folded.get_submodule(name)):
            theirs, ours = (model.head.fc(theirs[-1]),), (folded.head.fc(ours[-1]),)
        for a, b in zip(ours, theirs):
            a, b = (x if isinstance(x, torch.Tensor) else torch.stack(x) for x in (a, b))
            worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp(min=1)).item())
    return worst
