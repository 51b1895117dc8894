"""Pages carried out from top to bottom, with few images and short runs.

A command is left to `test_docs_commands.py` where the reader's own names stand in it (CONFIG), or
where its config's data are not of the page's making (COCO, ADE20K, ImageNet, CIFAR-100).
"""
import os
import runpy
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip('mmengine')
for toolbox in ('mmpretrain', 'mmdet', 'mmseg'):
    pytest.importorskip(toolbox)

from docs_checks import BROUGHT, checkpoints, parser_of  # noqa: E402
from docs_pages import ROOT, blocks, commands, is_placeholder  # noqa: E402
from docs_workshop import link, save_deit  # noqa: E402
from quickstarts import forget  # noqa: E402

from lape_mm.runs.config import load_config  # noqa: E402

# page -> how many of its commands have to be carried out
CARRIED_OUT = {
    'README.md': 1, 'docs/quickstart.md': 5, 'docs/weights.md': 3, 'docs/export.md': 3,
    'docs/analysis.md': 6, 'docs/joinings.md': 1}
SCENES = {'scenes.num_train': 12, 'scenes.num_val': 6}
LOADERS = {'train_dataloader.batch_size': 3, 'train_dataloader.num_workers': 0,
           'val_dataloader.num_workers': 0, 'test_dataloader.num_workers': 0}


def follow(command, first: dict) -> bool:
    """Carries a command out; False where it is none of ours or the reader's own."""
    program, script, *words = [*command.words, '']
    words = words[:-1]
    if program != 'python' or any(is_placeholder(word.split('=')[-1]) for word in words):
        return False
    made_elsewhere = {'tools/gallery.py': 'pictures/', 'benchmarks/onnx_accuracy.py': '.onnx'}
    if any(made_elsewhere.get(script, '\0') in word and not Path(word.split('=')[-1]).exists()
           for word in words):  # by a command with the reader's names
        return False
    if script == '-m' and words[0] == 'lape_mm.doctor':
        assert runs('lape_mm.doctor', words[1:]) in (0, 1)
    elif script.startswith('tools/') and script != 'tools/param_table.py':
        return use(Path(script).stem, words, first)
    elif script == 'benchmarks/onnx_accuracy.py':
        assert runs(str(ROOT / script), words) in (0, None)
    else:
        return False
    return True


def use(tool: str, words: list[str], first: dict) -> bool:
    """Runs a tool, small; ``first`` has the options of the first run that the page has of a config.

    A later command of the same config needs them, too.
    """
    args = parser_of(tool)(words)
    more = {}
    if 'config' in args:
        cfg = load_config(args.config, options=args.cfg_options, joining=args.joining)
        data = cfg.test_dataloader.dataset.get('data_root') or ''
        if not cfg.get('scenes') and not Path(data).is_dir():
            return False
        given = dict(args.cfg_options or {})
        more = {**first.setdefault(args.config, given), **shorter(cfg), **given}
        if 'work_dir' not in args:
            more = {key: value for key, value in more.items()
                    if 'train_cfg' not in key and 'param_scheduler' not in key}
    for word in BROUGHT:
        if word in ' '.join(words) and not Path(word).exists():
            save_deit(word)
    options = [f'{key}={value}'.replace(' ', '') for key, value in more.items()]
    assert runs(str(ROOT / f'tools/{tool}.py'),
                [*words, *(['--cfg-options', *options] if options else [])]) == 0, words
    if tool == 'train':
        folder = Path(args.work_dir or cfg.work_dir)
        for promised in checkpoints(cfg)[1:]:
            made = Path((folder / 'last_checkpoint').read_text().strip())
            if made.resolve() != (folder / promised).resolve():
                shutil.copy(made, folder / promised)
    return True


def shorter(cfg) -> dict:
    """Options that make a few iterations of a run; quick starts draw few scenes."""
    unit, count = ('epochs', 1) if 'max_epochs' in cfg.train_cfg else ('iters', 2)
    return {**LOADERS, **(SCENES if cfg.get('scenes') else {}),
            f'train_cfg.max_{unit}': count, 'train_cfg.val_interval': count}


def runs(script: str, words: list[str]) -> int | None:
    """A script or module in this process; its exit status."""
    forget()
    before = list(sys.argv)
    sys.argv = [script, *words]
    try:
        start = runpy.run_path if os.sep in script else runpy.run_module
        start(script, run_name='__main__')
    except SystemExit as end:
        return end.code or 0
    finally:
        sys.argv = before
        forget()
    return None


@pytest.mark.long
@pytest.mark.parametrize('page', CARRIED_OUT)
def test_page(page, tmp_path, monkeypatch):
    from mmengine.runner import CheckpointLoader
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CheckpointLoader, '_schemes', dict(CheckpointLoader._schemes))
    monkeypatch.delenv('LAPE_MM_SCENES', raising=False)
    link(tmp_path)
    first: dict[str, dict] = {}
    given = commands([block for block in blocks(ROOT / page) if block.language == 'bash'])
    followed = [str(command) for command in given if follow(command, first)]
    assert len(followed) >= CARRIED_OUT[page], followed
