"""Options that several tools share. ``--help`` imports neither torch nor mmengine."""
import argparse
import ast
from collections.abc import Callable

from .errors import RunError


class OptionsAction(argparse.Action):
    """mmengine's KEY=VALUE options, and dicts written as Python: KEY="{'a': 1}"."""

    def __call__(self, parser, namespace, values, option_string=None):
        from mmengine.config import DictAction
        literals = {}
        for value in list(values):
            key, joint, text = value.partition('=')
            if not joint:
                parser.error(f'{option_string}: {value!r} is not of the form KEY=VALUE')
            if text.lstrip().startswith(('{', 'dict(')):
                literals[key] = literal(text)
                values.remove(value)
        DictAction(self.option_strings, self.dest)(parser, namespace, values, option_string)
        getattr(namespace, self.dest).update(literals)


def literal(text: str) -> dict:
    """Parses a Python dict, ``{...}`` or ``dict(...)``; RunError if the text is neither."""
    try:
        node = ast.parse(text.strip(), mode='eval').body
        if isinstance(node, ast.Call) and ast.unparse(node.func) == 'dict' and not node.args:
            value = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
        else:
            value = ast.literal_eval(node)
    except (SyntaxError, ValueError):
        value = None
    if not isinstance(value, dict) or None in value:
        raise RunError(f"{text}: expected a Python dict such as {{'last': 0}} or dict(last=0)")
    return value


def joining(text: str) -> str | dict:
    """--joining: a name, or a dict of settings."""
    return literal(text) if text.lstrip().startswith(('{', 'dict(')) else text


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the options that edit a config."""
    parser.add_argument('--backbone', metavar='NAME', help='replace the backbone with '
                        'vit_adapter_ARCH, deit_ARCH or swin_ARCH, such as vit_adapter_tiny; '
                        'prints what changes')
    parser.add_argument('--joining', type=joining, help='how position embedding joins: a name, or '
                        'settings such as "dict(last=0)"; applies to every lape_mm backbone of '
                        'the config, after --cfg-options')
    parser.add_argument('--cfg-options', nargs='+', action=OptionsAction, metavar='KEY=VALUE',
                        help='override settings of the config; index lists by number '
                        '(train_dataloader.dataset.pipeline.2.scale=(1024,256)), write dicts as in '
                        'Python')


def above_zero(kind: type) -> Callable[[str], float]:
    """An argparse type: a number above 0 of type ``kind``."""
    def read(text: str) -> float:
        if (value := kind(text)) <= 0:
            raise argparse.ArgumentTypeError(f'{text}: expected a number above 0')
        return value
    return read


class SizeAction(argparse.Action):
    """Takes a side in pixels, or height and width."""

    def __call__(self, parser, namespace, values, option_string=None):
        if len(values) > 2:
            parser.error(f'{option_string}: expected a side, or height and width, got {values}')
        setattr(namespace, self.dest, values)


def add_size(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds --img-size; ``what`` ends its help text."""
    parser.add_argument('--img-size', nargs='+', type=above_zero(int), action=SizeAction,
                        metavar='PIXELS', help=f'side, or height and width, {what}')


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds the options for a folder of data, and for the length and size of a run."""
    group = parser.add_argument_group('your own data', 'docs/your_own_data.md shows the layouts')
    group.add_argument('--data', metavar='FOLDER', help='train on these images: COCO, PASCAL VOC, '
                       'YOLO, label maps, or a folder per class; the config is adapted')
    group.add_argument('--epochs', type=above_zero(int), metavar='N',
                       help='length of the run; warm-up and milestones scale with it')
    group.add_argument('--img-size', type=above_zero(int), metavar='PIXELS',
                       help="side of a classifier's or segmentation model's crops, shorter side of "
                       "a detector's images; other sizes scale with it")
    group.add_argument('--batch', type=above_zero(int), metavar='N', help='images per process')
    group.add_argument('--lr', type=above_zero(float), metavar='RATE',
                       help="learning rate (default: the recipe's; --data and --batch scale it)")
    zero = group.add_mutually_exclusive_group()
    zero.add_argument('--ignore-index', type=int, metavar='ID',
                      help='id to ignore in label maps; 0 means --reduce-zero-label')
    zero.add_argument('--reduce-zero-label', action='store_true', default=None,
                      help='0 in label maps is unlabelled; classes start at 1')
    group.add_argument('--dry', action='store_true', default=None,
                       help='try everything with a few small images and two epochs')


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Adds --trust-checkpoint."""
    parser.add_argument('--trust-checkpoint', action='store_true',
                        help='load checkpoints without a check and run any code in them: only '
                        'for files whose author you trust')


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Adds the options of tools/predict.py and tools/demo.py."""
    parser.add_argument('--score', type=float, default=.3,
                        help='show objects with at least this score, 0..1 (default: 0.3)')
    parser.add_argument('--joining', type=joining, nargs='+',
                        help="the checkpoints' joining: one for all, or one for each")
    add_trust(parser)


def apply_trust(args: argparse.Namespace) -> None:
    """Applies --trust-checkpoint to this process."""
    from lape_mm.checkpoints.files import trust_checkpoints
    trust_checkpoints(getattr(args, 'trust_checkpoint', False))


def add_common(parser: argparse.ArgumentParser) -> None:
    """Adds the options that training and testing share, named as in OpenMMLab's tools."""
    parser.add_argument('--work-dir', help='folder of logs and checkpoints (default: '
                        'work_dirs/<name of the config>)')
    add_model(parser)
    add_trust(parser)
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none')
