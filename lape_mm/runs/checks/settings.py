"""Names in a config: types, their settings, and keys at the top level.

mmengine finds a misspelt name when it builds that part of a run, sometimes hours later, and never
finds a key that nothing reads. Here every dict is compared with the constructor that it goes to
before anything is built. Modules edit the dicts that they hand on to parts of the model, so that
`lape_mm.runs.checks.build` builds the model instead; here it is only searched for strings in place
of numbers and for misspelt names beside ``**kwargs``.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from mmengine import registry
from mmengine.registry import Registry
from mmengine.runner import Runner
from mmengine.utils.dl_utils.setup_env import set_multi_processing
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader

from ..config import entries, walk
from .report import Report
from .signatures import (
    ALIKE,
    accepted,
    check_call,
    check_names,
    nearest,
    resolve,
    short,
    unknown_type,
)

# what mmengine and this package read beside the runner's own arguments
READ = ('activation_checkpointing', 'compile', 'custom_imports', 'efficient_conv_bn_eval',
        'find_unused_parameters', 'model_wrapper_cfg', 'scenes', 'sync_bn')
MULTIPLIERS = ('DefaultOptimWrapperConstructor', 'FreezingOptimWrapperConstructor')


# dicts without a constructor: these signatures list what mmengine reads
def auto_scale_lr(enable=False, base_batch_size=1):
    """Of the runner."""


def env_cfg(cudnn_benchmark=False, mp_cfg=None, dist_cfg=None, resource_limit=4096):
    """Of the runner."""


def paramwise_cfg(custom_keys=None, bias_lr_mult=1., bias_decay_mult=1., norm_decay_mult=1.,
                  dwconv_decay_mult=1., flat_decay_mult=1., bypass_duplicate=False,
                  dcn_offset_lr_mult=1.):
    """Of DefaultOptimWrapperConstructor."""


def custom_keys(lr_mult=1., decay_mult=1., **of_the_group):
    """Of paramwise_cfg; other names are for those who read the groups."""


@dataclass(frozen=True)
class Place:
    """Dicts of a config that go to one constructor.

    Attributes:
        where: their dotted path; in `PLACES` a regular expression.
        build: the registry that ``type`` is a name of, or the function that takes the dict.
        default: the type where none is named.
        supplied: arguments that the run adds.
        taken: keys that the run removes first.
        node: the dict.
    """

    where: str
    build: Any
    default: str | None = None
    supplied: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    node: Any = None


LOADER = r'(train|val|test)_dataloader'
DATASET = LOADER + r'\.dataset(\.datasets?|\.\d+)*'  # with all those that it wraps
GIVEN = ('runner', 'dataloader', 'evaluator')
PLACES = (
    Place(LOADER, DataLoader, supplied=('dataset',), taken=(
        'sampler', 'batch_sampler', 'dataset', 'num_batch_per_epoch',
        'disable_subprocess_warning')),
    Place(LOADER + r'\.sampler', registry.DATA_SAMPLERS, supplied=('dataset', 'seed')),
    Place(LOADER + r'\.batch_sampler', registry.DATA_SAMPLERS, supplied=('sampler', 'batch_size')),
    Place(LOADER + r'\.(collate_fn|worker_init_fn)', registry.FUNCTIONS,
          supplied=('data_batch', 'worker_id', 'num_workers', 'rank', 'seed')),
    Place(DATASET, registry.DATASETS),
    Place(DATASET + r'\.pipeline\.\d+', registry.TRANSFORMS),
    Place(r'(val|test)_evaluator(\.metrics)?(\.\d+)?', registry.METRICS),
    Place('train_cfg', registry.LOOPS, supplied=GIVEN),
    Place('val_cfg', registry.LOOPS, 'ValLoop', GIVEN),
    Place('test_cfg', registry.LOOPS, 'TestLoop', GIVEN),
    Place('optim_wrapper', registry.OPTIM_WRAPPERS, 'OptimWrapper', ('optimizer',),
          ('constructor', 'paramwise_cfg', 'optimizer')),
    Place(r'optim_wrapper\.optimizer', registry.OPTIMIZERS, supplied=('params',)),
    Place(r'optim_wrapper\.clip_grad', clip_grad_norm_, supplied=('parameters',), taken=('type',)),
    Place(r'optim_wrapper\.paramwise_cfg', paramwise_cfg),
    Place(r'optim_wrapper\.paramwise_cfg\.custom_keys\..+', custom_keys),
    Place(r'param_scheduler(\.\d+)?', registry.PARAM_SCHEDULERS,
          supplied=('optimizer', 'epoch_length'), taken=('convert_to_iter_based',)),
    Place(r'default_hooks\.[^.]+', registry.HOOKS, taken=('priority',)),
    Place(r'custom_hooks\.\d+', registry.HOOKS, taken=('priority',)),
    Place('visualizer', registry.VISUALIZERS, supplied=('name', 'save_dir')),
    Place(r'visualizer\.vis_backends(\.\d+)?', registry.VISBACKENDS, supplied=('save_dir',)),
    Place('log_processor', registry.LOG_PROCESSORS, 'LogProcessor'),
    Place('model_wrapper_cfg', registry.MODEL_WRAPPERS, 'MMDistributedDataParallel',
          ('module', 'device_ids')),
    Place('randomness', Runner.set_randomness, supplied=('self',)),
    Place('auto_scale_lr', auto_scale_lr),
    Place('env_cfg', env_cfg),
    Place(r'env_cfg\.mp_cfg', set_multi_processing),
)


def check_settings(report: Report) -> None:
    """Reports unknown names of types, settings and keys at the top."""
    check_top(report)
    cfg, scope = report.cfg, report.scope
    kind = (cfg.get('model') or {}).get('type')
    if isinstance(kind, str) and resolve(kind, registry.MODELS, scope) is None:
        report.add('model', unknown_type(kind, registry.MODELS, scope))
        return  # of another toolbox: all else would be unknown, too
    for place in places(cfg):
        check_place(report, place)
    check_model(report)
    constructor = (cfg.get('optim_wrapper') or {}).get('constructor')
    among = registry.OPTIM_WRAPPER_CONSTRUCTORS
    if constructor is not None and resolve(constructor, among, scope) is None:
        report.add('optim_wrapper.constructor', unknown_type(constructor, among, scope))


def check_top(report: Report) -> None:
    """Reports top-level keys that look misspelt; all others are the config's own variables."""
    known = {*signature(Runner.__init__).parameters, *READ} - {'self', 'cfg'}
    for name in report.cfg:
        found = nearest(name, known, .85)
        if name not in known and found and not name.startswith(f'{found[0]}_'):
            report.add(name, f'{name}={short(report.cfg[name])}: nothing reads this key, did you '
                       f'mean {found[0]!r}?')


def places(cfg: Mapping) -> Iterator[Place]:
    """All dicts that go to constructors, except the model."""
    for where, node in entries({key: cfg[key] for key in cfg if key != 'model'}):
        if node is None or isinstance(node, (list, tuple)):
            continue
        for place in PLACES:
            if re.fullmatch(place.where, where) and (
                    found := settled(replace(place, where=where, node=node), cfg)):
                yield found


def settled(place: Place, cfg: Mapping) -> Place | None:
    """Fills in what depends on other settings; None for a place that is not checked."""
    where, node = place.where, place.node
    if not isinstance(node, Mapping):
        return None if place.build is custom_keys else place
    if where == 'train_cfg' and 'type' not in node:
        loop = 'EpochBasedTrainLoop' if node.get('by_epoch', True) else 'IterBasedTrainLoop'
        return replace(place, default=loop, taken=('by_epoch',))
    if place.build is registry.METRICS and 'metrics' in node:
        return replace(place, build=registry.EVALUATOR, default='Evaluator')
    if where == 'optim_wrapper.clip_grad' and node.get('type') == 'value':
        return replace(place, build=clip_grad_value_)
    # a dict for each of several optimizers
    others = where == 'param_scheduler' and 'type' not in node \
        or where == 'optim_wrapper' and not isinstance(node.get('optimizer'), Mapping)
    if where.startswith('optim_wrapper.paramwise_cfg'):  # constructors have their own
        kind = cfg['optim_wrapper'].get('constructor', MULTIPLIERS[0])
        others = str(kind).split('.')[-1] not in MULTIPLIERS
    return None if others else place


def check_place(report: Report, place: Place) -> None:
    """Compares one dict with the constructor that it goes to."""
    node, build = place.node, place.build
    if not isinstance(node, Mapping):
        if isinstance(node, (str, int, float)):  # else it is built already
            report.add(place.where, f'{short(node)}: expected a dict')
        return
    settings = {key: value for key, value in node.items()
                if key not in ('_scope_', '_delete_', *place.taken)}
    if isinstance(build, Registry):
        scope, kind = node.get('_scope_', report.scope), settings.pop('type', place.default)
        if kind is None:
            report.add(place.where, f"{short(dict(settings))}: lacks 'type'")
            return
        build = resolve(kind, build, scope)
        if build is None:
            report.add(place.where, unknown_type(kind, place.build, scope))
            return
    check_call(report, place.where, build, settings, place.supplied)


def check_model(report: Report) -> None:
    """Reports strings in place of numbers, and misspelt names that ``**kwargs`` would take."""
    for where, node in walk({'model': report.cfg.get('model')}):
        build = resolve(node.get('type'), registry.MODELS, report.scope) or resolve(
            node.get('type'), registry.TASK_UTILS, report.scope)
        if isinstance(build, type):
            known = accepted(build)
            check_names(report, where, build, {
                name: value for name, value in node.items() if name in known.parameters
                or known.open and name != 'type' and nearest(name, known.parameters, ALIKE)})
