"""Training and testing, from the config to the closing lines, for any of the toolboxes."""
from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from numbers import Real
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.dist import is_main_process, master_only
from mmengine.evaluator import BaseMetric, DumpResults
from mmengine.runner import Runner, find_latest_checkpoint

from lape_mm.checkpoints.loader import install_safe_loader
from lape_mm.machine import versions
from lape_mm.wording import short

from . import data
from .arguments import apply_trust
from .checks.preflight import check_config, check_files
from .config import load_config, settle_loaders, write_config
from .drawing import DRAWS, draw_tested, draw_truth
from .errors import RunError
from .loading import FittingWeightsHook, check_tested, one_line
from .options import apply_options, set_tta
from .progress import progress
from .report import ReportHook
from .resume import note_start, set_resume
from .runner import CheckedRunner


def train(args: Namespace) -> None:
    """Trains as tools/train.py does; ``args.resume`` is None, 'auto' or a path."""
    cfg = read_config(args)
    apply_options(cfg, args)
    if getattr(args, 'write', None):
        write_config(cfg, args.write, work_dir=args.work_dir)
        return
    named = {'--' + name.replace('_', '-'): value for name in (
        'backbone', 'joining', 'amp', 'auto_scale_lr', 'strict_data', 'ema', 'act_checkpoint',
        *data.OPTIONS) if (value := getattr(args, name, None))}
    cfg.overrides = {**named, **(args.cfg_options or {})}  # for the run's record
    if args.resume:
        set_resume(cfg, args.resume)
    runner = build_runner(cfg, 'train')
    note_start(runner, cfg.get('resume') and (args.resume or 'auto'))
    own = getattr(args, 'data', None) and is_main_process()
    if own:
        cfg.dump(os.path.join(cfg.work_dir, 'config.py'))
        print(f'truth:       {short(draw_truth(runner))}', flush=True)
    with one_line():
        runner.train()
    hub, latest = runner.message_hub, find_latest_checkpoint(runner.work_dir)
    metrics = {name.removeprefix('val/'): buffer.current()  # of the last validation
               for name, buffer in hub.log_scalars.items()
               if name.startswith('val/') and not name.endswith('time')}
    checkpoint = short(latest) if latest else 'none was saved'
    if (best := hub.runtime_info.get('best_ckpt')) and os.path.exists(best):
        checkpoint += f', best: {short(best)}'
    print_closing(runner, metrics, checkpoint, runner.log_dir)
    if own:
        print(f"config:      {short(os.path.join(cfg.work_dir, 'config.py'))}")


def test(args: Namespace) -> None:
    """Evaluates a checkpoint as tools/test.py does."""
    cfg = read_config(args)
    if getattr(args, 'tta', False):
        set_tta(cfg)
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
    print_closing(runner, metrics, short(args.checkpoint), args.show_dir or runner.log_dir)
    if args.out and is_main_process():
        print(f'predictions: {short(args.out)}')


def read_config(args: Namespace) -> Config:
    """Reads the config and applies the options that training and testing share."""
    apply_trust(args)
    changes = any(getattr(args, name, None) is not None for name in data.OPTIONS)
    if changes:
        data.settle(args)
    cfg = load_config(data.recipe(args.config), options=args.cfg_options,
                      backbone=getattr(args, 'backbone', None), joining=args.joining,
                      work_dir=args.work_dir,
                      edit=partial(data.edit, args=args) if changes else None)
    cfg.launcher = args.launcher
    return cfg


def build_runner(cfg: Config, mode: str) -> Runner:
    """Checks the config and its files, draws the built-in data set, and builds the runner."""
    install_safe_loader()
    settle_loaders(cfg)
    check_config(cfg, mode)
    draw_scenes(cfg)
    check_files(cfg, mode)
    settle_distributed(cfg)
    runner = CheckedRunner.from_cfg(cfg)
    runner.register_hook(FittingWeightsHook())
    runner.register_hook(ReportHook())
    # a line or two per parameter; the log file keeps them
    runner.logger.handlers[0].addFilter(lambda record: 'paramwise_options' not in str(record.msg))
    runner.logger.info(f"mmcv's operators: {versions().get('mmcv operators')}")
    return runner


def draw_scenes(cfg: Config) -> None:
    """Draws the built-in data set if the config has one that is not drawn yet."""
    if cfg.get('scenes'):
        from lape_mm.datasets.scenes import prepare
        try:
            prepare(**{'track': partial(progress, what='drawing the data'), **cfg.scenes})
        except (FileExistsError, TypeError, ValueError) as error:
            raise RunError(f'scenes: {error}') from error


def settle_distributed(cfg: Config) -> None:
    """Sets up a config for several CPU processes, where torch cannot synchronise BatchNorm."""
    if cfg.get('launcher', 'none') == 'none' or torch.cuda.is_available():
        return
    if cfg.launcher != 'pytorch' or 'WORLD_SIZE' not in os.environ:
        raise RunError(f'--launcher {cfg.launcher}: without a GPU, expected pytorch, started with '
                       'tools/dist_train.sh or torchrun, which set WORLD_SIZE and RANK')
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo')
    cfg.sync_bn = None
    cfg.model_wrapper_cfg = dict(
        type='lape_mm.CpuDataParallel', broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False))


class DumpLabelMaps(DumpResults):
    """Dumps ``img_path`` and ``pred_sem_seg`` (H, W), not the logits of 200 MB per image."""

    def process(self, data_batch, predictions) -> None:
        for prediction in predictions:
            labels = prediction['pred_sem_seg']['data'].squeeze(0).to('cpu')
            small = torch.uint8 if int(labels.max()) < 256 else torch.int32
            self.results.append(
                dict(img_path=prediction.get('img_path'), pred_sem_seg=labels.to(small)))


def dump_metric(scope: str, path: str) -> BaseMetric:
    """The metric that writes predictions to a .pkl file."""
    if not path.endswith(('.pkl', '.pickle')):
        raise RunError(f'--out {path}: expected a name that ends with .pkl')
    if scope == 'mmdet':
        from mmdet.evaluation import DumpDetResults  # masks as run lengths
        return DumpDetResults(out_file_path=path)
    return (DumpLabelMaps if scope == 'mmseg' else DumpResults)(out_file_path=path)


@master_only
def print_closing(runner: Runner, metrics: Mapping, checkpoint: str, folder: str) -> None:
    """Prints a run's closing lines; ``folder`` holds the run's pictures."""
    shown = ', '.join(f'{name} {float(value):.4g}' for name, value in metrics.items()
                      if isinstance(value, Real))
    print(f'metrics:     {shown or "none: no evaluation has run"}')
    print(f'checkpoint:  {checkpoint}')
    print(f'log:         {short(Path(runner.log_dir, f"{runner.timestamp}.log"))}')
    if (report := Path(runner.log_dir, 'report.html')).exists():
        print(f'report:      {short(report)}')
    pictures = [path for path in Path(folder).rglob('*') if path.suffix in ('.png', '.jpg')]
    option = f'default_hooks.visualization.{DRAWS[runner.cfg.default_scope][1]}=True'
    print('pictures:    ' + (f'{short(pictures[0].parent)} ({len(pictures)})' if pictures else
                             f'none (--cfg-options {option} draws some)'))
