"""What tools/analyze_position.py does: writes a report from configs and checkpoints."""
from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import nn

from lape_mm.analysis.pe_per_layer import find_encoder
from lape_mm.analysis.write import Analysis, analyse, write_report
from lape_mm.backbones.encoder import Encoder
from lape_mm.checkpoints import CheckpointError, load_backbone
from lape_mm.checkpoints.layouts import unwrap
from lape_mm.requirements import install_hint, missing
from lape_mm.wording import short

from .arguments import apply_trust
from .arguments import joining as read_joining
from .checks.build import build_model
from .config import load_config, our_backbones
from .errors import RunError
from .images import find_images, load_images
from .loading import check_fits
from .progress import progress

UNKNOWN = r'pe_norm|pos_embed|bias_table'


def analyze(args: Namespace) -> None:
    """Writes the report and prints its path.

    Args:
        args: config, checkpoint, images (a folder), out (a folder), num_images, img_size (None,
            side, or height and width), joining, cfg_options, trust_checkpoint, compare (a list,
            see `read_other`).
    """
    apply_trust(args)
    if lacking := missing('matplotlib'):
        raise RunError([install_hint(module) for module in lacking])
    wanted = [(args.config, args.joining, args.checkpoint),
              *(read_other(text, args.config) for text in args.compare or ())]
    # find all mistakes in configs before minutes of work
    cfgs = [load_config(config, options=args.cfg_options if config == args.config else None,
                        joining=joining) for config, joining, _ in wanted]
    built = [build_model(cfg).eval() for cfg in cfgs]
    paths = find_images(args.images, args.num_images)
    models: dict[str, Analysis] = {}
    pictures: list = []
    for cfg, model, (config, _, checkpoint) in zip(cfgs, built, wanted):
        analysis, pictures = analyze_one(cfg, model, config, checkpoint, paths, args.img_size)
        label = setting(cfg, 'joining', 'default')
        same = sum(other.partition(' (')[0] == label for other in models)
        models[f'{label} ({same + 1})' if same else label] = analysis
    title = f'Position embedding in {Path(args.config).stem}'
    try:
        rows = write_report(models, pictures, Path(args.out), title,
                            partial(progress, what='figures'))
    except OSError as error:
        raise RunError(f'--out {args.out}: {error}') from error
    print(f'{", ".join(models)}: {len(rows)} figures, arrays and rows from {len(paths)} images')
    print(f'report: {short(Path(args.out, "report.html"))}')


def analyze_one(cfg: Config, model: nn.Module, config: str, checkpoint: str, paths: list[Path],
                img_size: list[int] | None) -> tuple[Analysis, list]:
    """Analyses one model; returns the analysis, and the images as pictures."""
    init_default_scope(cfg.default_scope)
    found = load_weights(model, checkpoint)
    try:
        encoder = find_encoder(model)
        size = (img_size[0], img_size[-1]) if img_size else own_size(encoder)
        images, pictures = load_images(cfg, model, paths, size)
        analysis = analyse(
            model, images, partial(progress, what=Path(checkpoint).name), **{
                'joining': setting(cfg, 'joining', 'default'),
                'position': setting(cfg, 'position'), 'arch': setting(cfg, 'arch'),
                'config': Path(config).name,
                'checkpoint': f'{Path(checkpoint).name} ({found})'})
    except ValueError as error:
        raise RunError(f'{checkpoint}: {error}') from error
    return analysis, pictures


def load_weights(model: nn.Module, checkpoint: str) -> str:
    """Loads a checkpoint of the whole model or of its backbone; returns which it was."""
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
                    if re.search(UNKNOWN, name) and '[' not in name]:
            raise RunError(f'{checkpoint} has {lost[0]}, which the config\'s joining does not '
                           'use: pass the joining that it was trained with to --joining') from None
        return 'backbone alone' + (
            f', {len(report.new)} entries as initialised' if report.new else '')
    model.load_state_dict(unwrap(content))
    return 'whole model'


def own_size(encoder: Encoder) -> tuple[int, int]:
    """The image size (height, width), in pixels, that the position embedding is made for."""
    height, width = encoder.grid
    return height * encoder.stride, width * encoder.stride


def read_other(text: str, config: str) -> tuple[str, str | dict | None, str]:
    """Parses --compare JOINING=CHECKPOINT or CONFIG.py=CHECKPOINT.

    Returns:
        Config, joining or None, and checkpoint.
    """
    # a joining may contain = signs inside brackets
    found = re.fullmatch(r'((?:dict\(|\{).*?[)}]|[^=]+)=(.+)', text)
    if not found:
        raise RunError(f'--compare {text}: expected JOINING=CHECKPOINT or CONFIG.py=CHECKPOINT')
    what, checkpoint = found.groups()
    if what.endswith('.py'):
        return what, None, checkpoint
    return config, read_joining(what), checkpoint


def setting(cfg: Config, name: str, default: str = "the backbone's default") -> str:
    """An argument of the config's backbone as text; a dict as its settings."""
    value = next(node for _, node in our_backbones(cfg)).get(name, default)
    return ', '.join(f'{key}={one}' for key, one in value.items()) \
        if isinstance(value, Mapping) else str(value)
