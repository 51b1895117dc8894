"""Names in a config: of types, of their settings, and of what the run reads at the top.

mmengine finds a misspelt name when it builds that part of a run, which for some is hours later, and
a name that nothing reads never. Here every dict that the run builds from is held against the
constructor that it goes to, before anything is built. Below ``model`` modules edit the dicts that
they hand on, so that only what would pass unnoticed is looked for there:
`lape_mm.runs.checks.trial` builds all of it.
"""
from __future__ import annotations

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

from ..config import walk
from .calls import check_call, check_part, resolve, unknown_type
from .signatures import accepted, hint, nearest, short

# what mmengine and this package read beside the runner's own arguments
READ = ('activation_checkpointing', 'compile', 'custom_imports', 'efficient_conv_bn_eval',
        'find_unused_parameters', 'model_wrapper_cfg', 'scenes', 'sync_bn')
# paramwise_cfg of mmengine's constructor, which looks its settings up one by one
PARAMWISE = ('custom_keys', 'bias_lr_mult', 'bias_decay_mult', 'norm_decay_mult',
             'dwconv_decay_mult', 'flat_decay_mult', 'bypass_duplicate', 'dcn_offset_lr_mult')


@dataclass(frozen=True)
class Place:
    """A dict of a config that one constructor gets.

    Attributes:
        where: its dotted path.
        node: what stands there.
        build: the registry that its ``type`` is a name of, or the function that takes it.
        default: the type where none is named.
        supplied: arguments that the run adds.
        taken: keys that the run takes out before.
    """

    where: str
    node: Any
    build: Any
    default: str | None = None
    supplied: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()


def check_settings(report) -> None:
    """Reports unknown names of types, settings and keys at the top; see `preflight.Report`."""
    check_top(report)
    if not check_toolbox(report):
        return  # all else would be unknown, too
    for place in places(report.cfg):
        check_place(report, place)
    check_model(report)
    check_optimizer(report)


def check_top(report) -> None:
    """Keys at the top that are nearly ones the run reads; all others are the config's variables."""
    known = {*signature(Runner.__init__).parameters, *READ} - {'self', 'cfg'}
    for name in report.cfg:
        found = nearest(name, known, cutoff=.85)
        if name in known or not found or name.startswith(f'{found[0]}_'):
            continue
        report.add(name, f'{name}={short(report.cfg[name])}: nothing reads this key, did you mean '
                   f'{found[0]!r}?')


def check_toolbox(report) -> bool:
    """Whether the model is of the toolbox that the config is for; reports it if it is not."""
    cfg = report.cfg
    kind, scope = (cfg.get('model') or {}).get('type'), cfg.get('default_scope')
    if not isinstance(kind, str) or resolve(kind, registry.MODELS, scope) is not None:
        return True
    report.add('model', unknown_type(kind, registry.MODELS, scope))
    return False


def places(cfg: Mapping) -> Iterator[Place]:
    """All dicts of a config, but those below ``model``, that constructors get."""
    for part in ('train', 'val', 'test'):
        yield from loader_places(cfg.get(f'{part}_dataloader'), f'{part}_dataloader')
        yield from evaluator_places(cfg.get(f'{part}_evaluator'), f'{part}_evaluator')
    given = ('runner', 'dataloader', 'evaluator')
    loop: Any = cfg.get('train_cfg')
    named = not isinstance(loop, Mapping) or 'type' in loop
    yield Place('train_cfg', loop, registry.LOOPS, None if named else 'EpochBasedTrainLoop'
                if loop.get('by_epoch', True) else 'IterBasedTrainLoop', given,
                () if named else ('by_epoch',))
    yield Place('val_cfg', cfg.get('val_cfg'), registry.LOOPS, 'ValLoop', given)
    yield Place('test_cfg', cfg.get('test_cfg'), registry.LOOPS, 'TestLoop', given)

    schedule: Any = cfg.get('param_scheduler')
    several = isinstance(schedule, Mapping) and 'type' not in schedule  # by optimizer
    for name, part in schedule.items() if several else [('', schedule)]:
        yield from each(Place('.'.join(filter(None, ['param_scheduler', name])), part,
                              registry.PARAM_SCHEDULERS, supplied=('optimizer', 'epoch_length'),
                              taken=('convert_to_iter_based',)))
    for name, hook in (cfg.get('default_hooks') or {}).items():
        yield Place(f'default_hooks.{name}', hook, registry.HOOKS, taken=('priority',))
    yield from each(Place('custom_hooks', cfg.get('custom_hooks'), registry.HOOKS,
                          taken=('priority',)))
    visualizer = cfg.get('visualizer')
    yield Place('visualizer', visualizer, registry.VISUALIZERS, supplied=('name', 'save_dir'))
    if isinstance(visualizer, Mapping):
        yield from each(Place('visualizer.vis_backends', visualizer.get('vis_backends'),
                              registry.VISBACKENDS, supplied=('save_dir',)))
    yield Place('log_processor', cfg.get('log_processor'), registry.LOG_PROCESSORS, 'LogProcessor')
    yield Place('model_wrapper_cfg', cfg.get('model_wrapper_cfg'), registry.MODEL_WRAPPERS,
                'MMDistributedDataParallel', ('module', 'device_ids'))
    yield Place('randomness', cfg.get('randomness'), Runner.set_randomness, supplied=('self',))
    yield Place('auto_scale_lr', cfg.get('auto_scale_lr'), auto_scale_lr)
    yield Place('env_cfg', cfg.get('env_cfg'), env_cfg)
    yield Place('env_cfg.mp_cfg', (cfg.get('env_cfg') or {}).get('mp_cfg'), set_multi_processing)


def auto_scale_lr(enable=False, base_batch_size=1):
    """What mmengine looks up in a config's dict of this name; so is `env_cfg`."""


def env_cfg(cudnn_benchmark=False, mp_cfg=None, dist_cfg=None, resource_limit=4096):
    """See `auto_scale_lr`."""


def each(place: Place) -> Iterator[Place]:
    """A place for each entry of a list, or the place itself where there is one dict."""
    if isinstance(place.node, (list, tuple)):
        for index, node in enumerate(place.node):
            yield replace(place, where=f'{place.where}.{index}', node=node)
    else:
        yield place


def loader_places(loader, where: str) -> Iterator[Place]:
    """A loader's own settings, its samplers, and its datasets with their pipelines."""
    batches = ('sampler', 'batch_sampler')
    yield Place(where, loader, DataLoader, supplied=('dataset',), taken=(
        *batches, 'dataset', 'num_batch_per_epoch', 'disable_subprocess_warning'))
    if not isinstance(loader, Mapping):
        return
    for name, supplied in zip(batches, (('dataset', 'seed'), ('sampler', 'batch_size'))):
        yield Place(f'{where}.{name}', loader.get(name), registry.DATA_SAMPLERS,
                    supplied=supplied)
    for name, argument in (('collate_fn', 'data_batch'), ('worker_init_fn', 'worker_id')):
        if isinstance(function := loader.get(name), Mapping):
            yield Place(f'{where}.{name}', function, registry.FUNCTIONS,
                        supplied=(argument, 'num_workers', 'rank', 'seed'))
    yield from dataset_places(loader.get('dataset'), f'{where}.dataset')


def dataset_places(dataset, where: str) -> Iterator[Place]:
    """A dataset, those that it wraps, and the steps of their pipelines."""
    if isinstance(dataset, (list, tuple)):
        for index, entry in enumerate(dataset):
            yield from dataset_places(entry, f'{where}.{index}')
        return
    yield Place(where, dataset, registry.DATASETS)
    if not isinstance(dataset, Mapping):
        return
    for name in ('dataset', 'datasets'):
        if isinstance(dataset.get(name), (Mapping, list, tuple)):
            yield from dataset_places(dataset[name], f'{where}.{name}')
    steps = dataset.get('pipeline')
    if isinstance(steps, (list, tuple)):
        for index, step in enumerate(steps):
            yield Place(f'{where}.pipeline.{index}', step, registry.TRANSFORMS)


def evaluator_places(evaluator, where: str) -> Iterator[Place]:
    """An evaluator's metrics, and the evaluator itself where the config names one."""
    if isinstance(evaluator, Mapping) and 'metrics' in evaluator:
        yield Place(where, evaluator, registry.EVALUATOR, 'Evaluator')
        evaluator, where = evaluator['metrics'], f'{where}.metrics'
    yield from each(Place(where, evaluator, registry.METRICS))


def check_place(report, place: Place) -> None:
    """Holds one dict against the constructor that it goes to."""
    node, scope = place.node, report.cfg.get('default_scope')
    if node is None:
        return
    if not isinstance(node, Mapping):
        if isinstance(node, (str, int, float, list, tuple)):
            report.add(place.where, f'{short(node)}: expected a dict')
        return  # something built already
    build = place.build
    settings = {key: value for key, value in node.items() if key not in ('_scope_', '_delete_')}
    if isinstance(build, Registry):
        kind = settings.pop('type', place.default)
        if kind is None:
            report.add(place.where, f"{short(dict(settings))}: lacks 'type'")
            return
        build = resolve(kind, build, node.get('_scope_', scope))
        if build is None:
            report.add(place.where, unknown_type(kind, place.build, node.get('_scope_', scope)))
            return
    settings = {key: value for key, value in settings.items() if key not in place.taken}
    check_call(report, place.where, build, settings, place.supplied)


def check_model(report) -> None:
    """Names that a part of the model takes and never looks at, and strings for numbers."""
    scope = report.cfg.get('default_scope')
    for where, node in walk({'model': report.cfg.get('model')}):
        for among in (registry.MODELS, registry.TASK_UTILS):
            build = resolve(node.get('type'), among, scope)
            if isinstance(build, type):
                check_part(report, where, build, node)
                break


def check_optimizer(report) -> None:
    """Wrapper, optimizer, clipping, and the options of single parameters."""
    wrapper, scope = report.cfg.get('optim_wrapper'), report.cfg.get('default_scope')
    if not isinstance(wrapper, Mapping):
        return
    if not isinstance(optimizer := wrapper.get('optimizer'), Mapping):
        if optimizer is None and 'constructor' not in wrapper:
            report.add('optim_wrapper', f"{short(dict(wrapper))}: lacks 'optimizer'")
        return  # several optimizers, by a constructor of the user's own
    check_place(report, Place('optim_wrapper', wrapper, registry.OPTIM_WRAPPERS, 'OptimWrapper',
                              ('optimizer',), ('constructor', 'paramwise_cfg', 'optimizer')))
    # the first argument, whatever its name, takes the parameters
    build = resolve(optimizer.get('type'), registry.OPTIMIZERS, scope)
    entries = list(accepted(build).parameters) if build else []
    check_place(report, Place('optim_wrapper.optimizer', optimizer, registry.OPTIMIZERS,
                              supplied=tuple(entries[:1])))
    clipping = wrapper.get('clip_grad')
    if isinstance(clipping, Mapping):
        by_value = clipping.get('type') == 'value'
        check_place(report, Place(
            'optim_wrapper.clip_grad', clipping, clip_grad_value_ if by_value else clip_grad_norm_,
            supplied=('parameters',), taken=('type',)))

    constructor = wrapper.get('constructor', 'DefaultOptimWrapperConstructor')
    among = registry.OPTIM_WRAPPER_CONSTRUCTORS
    cls = resolve(constructor, among, scope)
    if cls is None:
        report.add('optim_wrapper.constructor', unknown_type(constructor, among, scope))
        return
    options = wrapper.get('paramwise_cfg')
    if cls.__name__ not in ('DefaultOptimWrapperConstructor', 'FreezingOptimWrapperConstructor') \
            or not isinstance(options, Mapping):
        return
    where = 'optim_wrapper.paramwise_cfg'
    for name, value in options.items():
        if name not in PARAMWISE:
            report.add(where, f'{name}={short(value)}: {cls.__name__} looks up no {name!r}'
                       f'{hint(name, PARAMWISE)}, expected one of {", ".join(PARAMWISE)}')
    for key, multipliers in (options.get('custom_keys') or {}).items():
        for name in multipliers if isinstance(multipliers, Mapping) else ():
            # what it does not look up becomes an attribute of the group, for whoever reads it
            if name not in ('lr_mult', 'decay_mult', *entries) and (alike := nearest(
                    name, ('lr_mult', 'decay_mult'), cutoff=.7)):
                report.add(f'{where}.custom_keys.{key}', f'{name}={multipliers[name]!r}: '
                           f'{cls.__name__} looks up no {name!r}, did you mean {alike[0]!r}?')
