"""Training and testing, from the config to the closing lines, for any of the toolboxes."""
from __future__ import annotations

import gc
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from mmengine.config import Config
from mmengine.runner import Runner

from lape_mm.checkpoints.files import CheckpointError
from lape_mm.checkpoints.loader import install_safe_loader
from lape_mm.engine.samples import BadSample
from lape_mm.engine.stop import RunStopped

from .amp import set_amp
from .arguments import apply_trust
from .checks.preflight import check_config, check_files
from .config import load_config, settle_loaders
from .distributed import settle_distributed
from .dump import dump_metric
from .errors import RunError
from .learning_rate import count_accumulation, set_auto_scale_lr
from .loading import check_tested, guard_loading
from .pictures import draw_tested
from .progress import progress
from .resume import earlier_run, newest_checkpoint
from .summary import print_testing, print_training


def train(args: Namespace) -> None:
    """tools/train.py.

    Args:
        args: config, work_dir, resume (None, 'auto' or a path), amp (None, 'fp16', 'bf16'),
            auto_scale_lr, strict_data, joining, cfg_options, trust_checkpoint, launcher.

    Raises:
        RunError: the run cannot start, or has stopped before its end.
    """
    apply_trust(args)
    cfg = load_config(args.config, options=args.cfg_options, joining=args.joining,
                      work_dir=args.work_dir)
    cfg.launcher = args.launcher
    cfg.overrides = overrides(args)
    if args.amp:
        set_amp(cfg, args.amp)
    if args.auto_scale_lr:
        set_auto_scale_lr(cfg)
    if getattr(args, 'strict_data', False):
        set_strict_data(cfg)
    if args.resume:
        set_resume(cfg, args.resume)
    resumes = args.resume or cfg.get('resume')
    earlier = None if resumes else earlier_run(cfg.work_dir, elsewhere(cfg))
    runner = build_runner(cfg, 'train')
    if earlier:
        runner.logger.warning(earlier)
    with one_line():
        runner.train()
    print_training(runner)


def overrides(args: Namespace) -> dict:
    """What the command line changes of a config, for the run's record."""
    named = {'--' + name.replace('_', '-'): value for name in (
        'joining', 'amp', 'auto_scale_lr', 'strict_data') if (value := getattr(args, name, None))}
    return {**named, **(args.cfg_options or {})}


@contextmanager
def one_line() -> Iterator[None]:
    """Within, what stops a run for a reason that its user has to know becomes a RunError."""
    try:
        yield
    except RunStopped as stop:
        raise RunError(str(stop), status=stop.status, own=True) from stop
    except BadSample as bad:  # from a worker it comes with a traceback before it
        raise RunError(str(bad).strip().splitlines()[-1].split('BadSample: ')[-1],
                       own=True) from bad
    except CheckpointError as error:
        raise RunError(str(error)) from error


def set_resume(cfg: Config, resume: str) -> None:
    """Goes on from a checkpoint, or from the last whole one of the work folder for 'auto'."""
    found: str | None = resume
    if resume == 'auto':
        found, damaged = newest_checkpoint(cfg.work_dir, elsewhere(cfg))
        for line in damaged:
            print(f'warning: not used: {line}', flush=True)
        print(f'resumes from {found}' if found else
              f'no checkpoint in {cfg.work_dir} yet: the run starts from its beginning', flush=True)
    cfg.resume = found is not None
    if found:  # else the run starts from the config's own
        cfg.started_from, cfg.load_from = cfg.get('load_from'), found


def elsewhere(cfg: Config) -> str | None:
    """The folder beside the work folder that the config's checkpoints go to."""
    return ((cfg.get('default_hooks') or {}).get('checkpoint') or {}).get('out_dir')


def set_strict_data(cfg: Config) -> None:
    """--strict-data: a bad sample ends the run.

    Raises:
        RunError: the config has no `lape_mm.ExactRunHook`.
    """
    for hook in [*(cfg.get('default_hooks') or {}).values(), *(cfg.get('custom_hooks') or [])]:
        if hook and hook.get('type') == 'lape_mm.ExactRunHook':
            hook.strict_data = True
            return
    raise RunError('--strict-data: the config has no hook lape_mm.ExactRunHook')


def test(args: Namespace) -> None:
    """tools/test.py.

    Args:
        args: config, checkpoint, work_dir, out, show_dir, joining, cfg_options,
            trust_checkpoint, launcher.

    Raises:
        RunError: the run cannot start.
    """
    apply_trust(args)
    cfg = load_config(args.config, options=args.cfg_options, joining=args.joining,
                      work_dir=args.work_dir)
    cfg.launcher = args.launcher
    cfg.load_from, cfg.resume = args.checkpoint, False
    if args.show_dir:
        draw_tested(cfg, args.show_dir)
    dump = dump_metric(cfg.default_scope, args.out) if args.out else None
    runner = build_runner(cfg, 'test')
    check_tested(runner, args.checkpoint)
    if dump:
        runner.test_evaluator.metrics.append(dump)
    with one_line():
        metrics = runner.test()
    print_testing(runner, metrics, args.checkpoint, out=args.out, show_dir=args.show_dir)


def build_runner(cfg: Config, mode: str) -> Runner:
    """Checks what the run needs, draws the embedded data set if the config has one, builds it."""
    install_safe_loader()
    settle_loaders(cfg)
    check_config(cfg, mode)
    if not gc.get_freeze_count():  # once a process: what a run leaves behind is to be collected
        # all is imported now: a full collection, such as mmengine's after reading a data set, would
        # look through it again, in a third of a second
        gc.freeze()
    draw_scenes(cfg)
    check_files(cfg, mode)
    settle_distributed(cfg)
    runner = Runner.from_cfg(cfg)
    guard_loading(runner)
    count_accumulation(runner)
    return runner


def draw_scenes(cfg: Config) -> None:
    """Draws the embedded data set if the config has one and it is not there yet."""
    if cfg.get('scenes'):
        from lape_mm.datasets.scenes import prepare
        try:
            prepare(**{'track': partial(progress, what='drawing the data'), **cfg.scenes})
        except (FileExistsError, ValueError) as error:
            raise RunError(f'scenes: {error}') from error
