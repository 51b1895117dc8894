"""What can be said of a command without carrying it out.

Its options are those that the tool knows, its config and settings pass the checks that come before
a run, and what it reads is in the repository, was made by a command above it on the page, or is
plainly the reader's own.
"""
import ast
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from docs_pages import ROOT, Command, is_placeholder
from mmengine.config import Config

from lape_mm.runs.checks.preflight import check_config
from lape_mm.runs.config import load_config, settle_loaders
from lape_mm.runs.data import recipe, settle

# what the reader has to bring, beside names in capitals
BROUGHT = {
    'deit_tiny_patch16_224.pth': "DeiT's or timm's weights, which the reader downloads",
    'photos': "the reader's own images",
    'T2T-ViT-7.pth': "T2T-ViT's weights, which the reader downloads",
}
STAND_IN = 'configs/quickstart/upernet.py'
KINDS = ('tools/', 'benchmarks/', 'docs/', '-m', '$SITE/')


class Page:
    """The files that the commands of a page have made so far."""

    def __init__(self):
        self.made: list[str] = []

    def needs(self, *paths: str) -> None:
        for path in map(str, filter(None, paths)):
            assert self.has(path), (f'{path} is not in the repository, no command above makes it, '
                                    'and it is no placeholder')

    def has(self, path: str) -> bool:
        return (is_placeholder(path) or path in BROUGHT or (ROOT / path).exists()
                or any(Path(path).is_relative_to(made) for made in self.made))

    def makes(self, *paths: str) -> None:
        self.made += [str(path) for path in paths if path]


def check(command: Command, page: Page) -> None:
    """Raises AssertionError, RunError or SystemExit where a command would not do.

    Called in a folder that has the repository's configs.
    """
    program, *words = command.words
    if program == 'bash':  # dist_train.sh CONFIG GPUS ..., as train.py takes the rest
        script, config, *words = words
        assert (ROOT / script).is_file() and 'train' in script, script
        words = ['tools/train.py', config, *words[1:]]
    if words[0] == '-c':
        compile(words[1], command.where, 'exec')
    elif words[0].startswith('tools/'):
        check_tool(Path(words[0]).stem, words[1:], page)
    elif words[0] == '-m':
        check_module(words[1], words[2:], page)
    else:
        script = words[0].replace('$SITE', str(Path(find_spec('mmengine').origin).parents[1]))
        check_options(ROOT / script, words[1:])
        if words[0].startswith('benchmarks/'):
            page.needs(*(word for word in words[1:] if '/' in word or '.' in word[1:]))


def check_tool(tool: str, words: list[str], page: Page) -> None:
    args = parser_of(tool)(words)
    options = getattr(args, 'cfg_options', None) or {}
    page.needs(*(value for key, value in options.items() if key.endswith('.checkpoint')),
               *(getattr(args, key, None) for key in ('checkpoint', 'images', 'source')))
    if 'config' in args:
        if getattr(args, 'data', None):  # all that is known of the run is where it writes
            settle(args)
            page.needs(args.data)
            page.makes(args.work_dir)
            args.data = None
        # short names, and as an installed wheel has it
        args.config = recipe(args.config).replace('lape_mm::', 'configs/')
        installed = '::' in args.config  # of another package
        page.needs(*[args.config][installed:])
        cfg = None
        config = STAND_IN if is_placeholder(args.config) else args.config
        if installed or Path(config).is_file():
            cfg = preflighted(config, repr(sorted(options.items())), repr(args.joining),
                              getattr(args, 'backbone', None),
                              'train' if tool == 'train' else 'test')
            work_dir = getattr(args, 'work_dir', None) or cfg.work_dir
            if cfg.get('scenes'):
                page.makes(cfg.scenes.root)
        if tool == 'train' and cfg:
            page.makes(*(Path(work_dir, name) for name in checkpoints(cfg)))
    for entry in getattr(args, 'compare', None) or []:
        page.needs(entry.partition('=')[2])
    if tool == 'gallery':
        page.needs(*(folder.partition('=')[2] for folder in args.folders))
    for key in ('out', 'show_dir', 'write'):
        page.makes(getattr(args, key, None))


def check_module(module: str, words: list[str], page: Page) -> None:
    if module == 'lape_mm' and words:  # the tools by name
        check_tool(words[0], words[1:], page)
        return
    spec = find_spec(module)
    assert spec, f'there is no module {module}'
    path = Path(spec.origin)
    check_options(path.with_name('__main__.py') if path.stem == '__init__' else path, words)
    if module == 'lape_mm.datasets.scenes':
        page.makes(words[1])
    else:
        page.needs(*words)


def parser_of(tool: str):
    sys.path.insert(0, str(ROOT / 'tools'))
    loaded = sys.modules.pop(tool, None)  # `test` is also a package of Python itself
    try:
        return __import__(tool).parse_args
    finally:
        sys.path.remove(str(ROOT / 'tools'))
        sys.modules.pop(tool)
        if loaded:
            sys.modules[tool] = loaded


@cache
def preflighted(config: str, options: str, joining: str, backbone: str | None,
                mode: str) -> Config:
    """A config with the options of a command, after all checks but those of the data."""
    cfg = load_config(config, options=dict(ast.literal_eval(options)),
                      joining=ast.literal_eval(joining), backbone=backbone)
    settle_loaders(cfg)
    check_config(cfg, mode)
    return cfg


def checkpoints(cfg: Config) -> list[str]:
    """Names that a whole run leaves."""
    loop, last = cfg.train_cfg, 'last_checkpoint'
    return [last, f'epoch_{loop.max_epochs}.pth' if 'max_epochs' in loop else
            f'iter_{loop.max_iters}.pth']


def check_options(script: Path, words: list[str]) -> None:
    """Options of a script that is not imported: those that it, or what lies beside it, adds."""
    assert script.is_file(), f'there is no {script}'
    known = {'--help'}.union(*map(options_in, [script, *imported_beside(script)]))
    for word in words:
        if word.startswith('-') and not word.lstrip('-').replace('.', '').isdigit():
            assert word in known, f'{script.name} has no option {word}'


def options_in(script: Path) -> set[str]:
    return set(re.findall(r"'(--?[a-z][\w-]*)'", script.read_text()))


def imported_beside(script: Path) -> list[Path]:
    names = re.findall(r'^(?:from|import) \.?(\w+)', script.read_text(), re.MULTILINE)
    return [path for name in names if (path := script.with_name(f'{name}.py')).is_file()]
