"""Names in a config: types, their settings, and keys at the top level.

mmengine reports a misspelt name when it builds that part of a run, sometimes hours later, and never
reports a key that nothing reads. Here every dict is compared with the constructor that receives it,
before anything is built. The model is different: modules edit the dicts of their parts, so it is
only searched for strings in place of numbers and for misspelt names beside ``**kwargs``;
`lape_mm.runs.checks.build` builds it.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any, NamedTuple

from mmengine import registry
from mmengine.registry import Registry
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from lape_mm.datasets.scenes import prepare

from ..config import entries, walk
from .report import Report
from .signatures import ALIKE, check_call, nearest, resolve, short, unknown_setting, unknown_type

# keys that mmengine and this package read besides the runner's arguments
READ = ('activation_checkpointing', 'compile', 'custom_imports', 'efficient_conv_bn_eval',
        'find_unused_parameters', 'model_wrapper_cfg', 'scenes', 'sync_bn')
MULTIPLIERS = ('DefaultOptimWrapperConstructor', 'FreezingOptimWrapperConstructor')
LOADER = r'(train|val|test)_dataloader'
DATASET = LOADER + r'\.dataset(\.datasets?|\.\d+)*'  # and the data sets that it wraps


class Place(NamedTuple):
    """Dicts of a config that one constructor receives.

    Attributes:
        where: their dotted path; in `PLACES` a regular expression.
        build: the registry of their ``type``, the function that takes them, or the names that
            mmengine reads.
        default: the type of a dict without one.
        taken: keys that the run removes first.
        node: the dict.
    """

    where: str
    build: Any
    default: str | None = None
    taken: tuple[str, ...] = ()
    node: Any = None


PLACES = (
    Place(LOADER, DataLoader, taken=('num_batch_per_epoch', 'disable_subprocess_warning')),
    Place(LOADER + r'\.(batch_)?sampler', registry.DATA_SAMPLERS),
    Place(DATASET, registry.DATASETS),
    Place(DATASET + r'\.pipeline\.\d+', registry.TRANSFORMS),
    Place(r'(val|test)_evaluator(\.metrics)?(\.\d+)?', registry.METRICS),
    Place('train_cfg', registry.LOOPS),
    Place('val_cfg', registry.LOOPS, 'ValLoop'),
    Place('test_cfg', registry.LOOPS, 'TestLoop'),
    Place('optim_wrapper', registry.OPTIM_WRAPPERS, 'OptimWrapper',
          ('constructor', 'paramwise_cfg')),
    Place(r'optim_wrapper\.optimizer', registry.OPTIMIZERS),
    Place(r'optim_wrapper\.clip_grad', ('max_norm', 'norm_type', 'error_if_nonfinite', 'type',
                                        'clip_value', 'foreach')),
    Place(r'optim_wrapper\.paramwise_cfg', (
        'custom_keys', 'bias_lr_mult', 'bias_decay_mult', 'norm_decay_mult', 'dwconv_decay_mult',
        'flat_decay_mult', 'bypass_duplicate', 'dcn_offset_lr_mult')),
    Place(r'optim_wrapper\.paramwise_cfg\.custom_keys\..+', ('lr_mult', 'decay_mult')),
    Place(r'param_scheduler(\.\d+)?', registry.PARAM_SCHEDULERS,
          taken=('convert_to_iter_based',)),
    Place(r'(default_hooks|custom_hooks)\.[^.]+', registry.HOOKS, taken=('priority',)),
    Place('visualizer', registry.VISUALIZERS),
    Place(r'visualizer\.vis_backends(\.\d+)?', registry.VISBACKENDS),
    Place('log_processor', registry.LOG_PROCESSORS, 'LogProcessor'),
    Place('randomness', Runner.set_randomness),
    Place('auto_scale_lr', ('enable', 'base_batch_size')),
    Place('env_cfg', ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit')),
    Place('scenes', prepare),
)


def check_settings(report: Report) -> None:
    """Reports unknown types, settings and top-level keys."""
    check_top(report)
    kind = (report.cfg.get('model') or {}).get('type')
    if isinstance(kind, str) and resolve(kind, registry.MODELS, report.scope) is None:
        report.add('model', unknown_type(kind, registry.MODELS, report.scope))
        return  # with another toolbox's model, all else would be unknown too
    for place in places(report.cfg):
        check_place(report, place)
    for where, node in walk({'model': report.cfg.get('model')}):
        build = resolve(node.get('type'), registry.MODELS, report.scope) or resolve(
            node.get('type'), registry.TASK_UTILS, report.scope)
        if isinstance(build, type):
            check_call(report, where, build, {key: value for key, value in node.items()
                                              if key != 'type'}, edited=True)


def check_top(report: Report) -> None:
    """Reports top-level keys that look misspelt; all others are the config's own variables."""
    known = {*signature(Runner.__init__).parameters, *READ} - {'self', 'cfg'}
    for name in report.cfg:
        found = nearest(name, known, .85)
        if name not in known and found and not name.startswith(f'{found[0]}_'):
            report.add(name, f'{name}={short(report.cfg[name])}: nothing reads this key, did you '
                       f'mean {found[0]!r}?')


def places(cfg: Mapping) -> Iterator[Place]:
    """All dicts that constructors receive, except the model."""
    constructor = (cfg.get('optim_wrapper') or {}).get('constructor', MULTIPLIERS[0])
    for where, node in entries({key: cfg[key] for key in cfg if key != 'model'}):
        for place in PLACES:
            if node is None or isinstance(node, (list, tuple)) \
                    or not re.fullmatch(place.where, where):
                continue
            if where.startswith('optim_wrapper.paramwise_cfg') \
                    and str(constructor).split('.')[-1] not in MULTIPLIERS:
                continue  # this constructor has settings of its own
            if isinstance(node, Mapping) and (
                    where == 'optim_wrapper' and 'constructor' in node and 'optimizer' not in node
                    or where == 'param_scheduler' and 'type' not in node  # of several optimizers
                    or place.build is registry.METRICS and 'metrics' in node):  # an Evaluator
                continue
            if where == 'train_cfg' and 'type' not in node and 'by_epoch' in node:
                place = place._replace(taken=('by_epoch',), default=(
                    'EpochBasedTrainLoop' if node['by_epoch'] else 'IterBasedTrainLoop'))
            yield place._replace(where=where, node=node)


def check_place(report: Report, place: Place) -> None:
    """Compares one dict with the constructor that receives it."""
    node, build, where = place.node, place.build, place.where
    if not isinstance(node, Mapping):
        # other objects are built already; a name in custom_keys may have dots
        if isinstance(node, (str, int, float)) and 'custom_keys.' not in where:
            report.add(where, f'{short(node)}: expected a dict')
        return
    settings = {key: value for key, value in node.items()
                if key not in ('_scope_', '_delete_', *place.taken)}
    if isinstance(build, tuple):
        for name in settings:
            # other names of custom_keys are for those who read the optimizer's groups
            if name not in build and ('custom_keys.' not in where or nearest(name, build, ALIKE)):
                report.add(where, unknown_setting(where.split('.')[-1], build, name, node[name]))
        return
    if isinstance(build, Registry):
        scope, kind = node.get('_scope_', report.scope), settings.pop('type', place.default)
        if kind is None:
            report.add(where, f"{short(settings)}: lacks 'type'")
            return
        build = resolve(kind, build, scope)
        if build is None:
            report.add(where, unknown_type(kind, place.build, scope))
            return
    check_call(report, where, build, settings)
