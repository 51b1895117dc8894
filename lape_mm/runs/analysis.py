"""What tools/analyze_position.py does: writes a report from configs and checkpoints."""
from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config
from rich.console import Console
from torch import nn

from lape_mm.analysis.pe_per_layer import find_encoder
from lape_mm.analysis.write import Analysis, analyse, write_report
from lape_mm.checkpoints import CheckpointError, load_backbone
from lape_mm.checkpoints.layouts import unwrap
from lape_mm.wording import short

from .arguments import apply_trust
from .arguments import joining as read_joining
from .checks.build import build_model
from .config import load_config, our_backbones
from .errors import RunError
from .images import find_images, load_images
from .loading import check_fits


def analyze(args: Namespace) -> None:
    """Writes the report and prints its path; ``args`` are those of tools/analyze_position.py."""
    apply_trust(args)
    # find all mistakes in configs before minutes of work
    wanted = [(load_config(args.config, options=args.cfg_options, backbone=args.backbone,
                           joining=args.joining), args.checkpoint)]
    for text in args.compare or ():
        config, joining, checkpoint = read_other(text, args.config)
        wanted.append((load_config(config, options=args.cfg_options if config == args.config
                                   else None, joining=joining), checkpoint))
    built = [build_model(cfg) for cfg, _ in wanted]
    sizes = [args.img_size or own_size(model) for model in built]
    paths = find_images(args.images, args.num_images)
    models: dict[str, Analysis] = {}
    for (cfg, checkpoint), model, size in zip(wanted, built, sizes):
        found = load_weights(model, checkpoint)
        images, pictures = load_images(cfg, model, paths, (size[0], size[-1]))
        chosen = {name: setting(cfg, name) for name in ('joining', 'position', 'arch')}
        label = chosen['joining']
        with Console(stderr=True).status(f'running {checkpoint}'):
            models[f'{label} ({len(models) + 1})' if label in models else label] = analyse(
                model, images, **chosen, config=Path(cfg.filename).name,
                checkpoint=f'{Path(checkpoint).name} ({found})')
    try:
        with Console(stderr=True).status('drawing'):
            rows = write_report(models, pictures, Path(args.out),
                                f'Position embedding in {Path(args.config).stem}')
    except OSError as error:
        raise RunError(f'--out {args.out}: {error}') from error
    print(f'{", ".join(models)}: {len(rows)} figures, arrays and rows from {len(paths)} images')
    print(f'report: {short(Path(args.out, "report.html"))}')


def load_weights(model: nn.Module, checkpoint: str) -> str:
    """Loads a whole model's or a backbone's checkpoint; returns text that says which it was."""
    try:
        content = check_fits(model, checkpoint)
    except RunError as whole:
        try:
            # norms of PE are 1 % of the weights, and none may be missing
            report = load_backbone(find_encoder(model), checkpoint, min_share=1.)
        except (CheckpointError, ValueError) as error:
            raise RunError(f'{whole.problems[0]}. Nor does it fit the backbone alone: '
                           f'{str(error).removeprefix(f"{checkpoint}: ")}') from error
        if lost := [name for name in report.unused
                    if re.search('pe_norm|pos_embed|bias_table', name) and '[' not in name]:
            raise RunError(f'{checkpoint} has {lost[0]}, which the config\'s joining does not '
                           'use: pass the joining that it was trained with to --joining') from None
        return 'backbone alone' + (
            f', {len(report.new)} entries as initialised' if report.new else '')
    model.load_state_dict(unwrap(content))
    return 'whole model'


def own_size(model: nn.Module) -> tuple[int, int]:
    """The image size (h, w), in pixels, that the position embedding is made for."""
    try:
        encoder = find_encoder(model)
    except ValueError as error:
        raise RunError(str(error)) from error
    return encoder.grid[0] * encoder.stride, encoder.grid[1] * encoder.stride


def read_other(text: str, config: str) -> tuple[str, str | dict | None, str]:
    """Parses --compare JOINING=CHECKPOINT or CONFIG.py=CHECKPOINT: config, joining, checkpoint."""
    # a joining may contain = signs, and so may the checkpoint's path
    found = re.fullmatch(r'((?:dict\(|{).*?[)}]|[^=]+)=(.+)', text)
    if not found:
        raise RunError(f'--compare {text}: expected JOINING=CHECKPOINT or CONFIG.py=CHECKPOINT')
    what, checkpoint = found.groups()
    return (what, None, checkpoint) if what.endswith('.py') else \
        (config, read_joining(what), checkpoint)


def setting(cfg: Config, name: str) -> str:
    """A backbone argument of the config as text; a dict as ``key=value, ..``."""
    value = next(node for _, node in our_backbones(cfg)).get(name, 'default')
    return ', '.join(f'{key}={one}' for key, one in value.items()) \
        if isinstance(value, Mapping) else str(value)
