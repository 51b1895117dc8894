"""Checks the names in a config: types, their settings, and top-level keys.

Compares every dict with the constructor that receives it, before anything is built. Inside the
model, only likely misspellings are reported, because modules edit the dicts of their parts.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from inspect import Parameter, signature
from typing import Any, NamedTuple

from mmengine import registry
from mmengine.registry import Registry
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

from lape_mm.datasets.scenes import prepare
from lape_mm.requirements import TOOLBOXES, missing
from lape_mm.retired import RETIRED

from ..config import entries, walk
from ..errors import Report

# keys that mmengine and this package read besides the runner's arguments
READ = ('activation_checkpointing', 'compile', 'custom_imports', 'efficient_conv_bn_eval',
        'find_unused_parameters', 'model_wrapper_cfg', 'scenes', 'sync_bn')
MULTIPLIERS = ('DefaultOptimWrapperConstructor', 'FreezingOptimWrapperConstructor')
LOADER = r'(train|val|test)_dataloader'
DATASET = LOADER + r'\.dataset(\.datasets?|\.\d+)*'  # and the data sets that it wraps
FEW = 15  # at most this many types are listed in full
ALIKE = .82  # similarity at which an unknown name counts as misspelt
# arguments that the run itself supplies
SUPPLIED = {'self', 'runner', 'dataloader', 'evaluator', 'optimizer', 'params', 'dataset',
            'sampler', 'batch_size', 'save_dir'}
EXPECTED = {'bool': 'True or False', 'int': 'a number', 'float': 'a number'}


class Place(NamedTuple):
    """A dict of a config, and what receives it."""

    where: str  # its dotted path; in `PLACES` a regular expression
    build: Any  # the registry of its type, the function that takes it, or the keys that are read
    default: str | None = None  # its type if it names none
    taken: tuple[str, ...] = ()  # keys that the run removes first
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
    # a top-level key that resembles no known one is the config's own variable
    known = {*signature(Runner.__init__).parameters, *READ} - {'self', 'cfg'}
    for name in report.cfg:
        found = nearest(name, known, .85)
        if name not in known and found and not name.startswith(f'{found[0]}_'):
            report.add(name, f'{name}={short(report.cfg[name])}: nothing reads this key, did you '
                       f'mean {found[0]!r}?')
    kind = (report.cfg.get('model') or {}).get('type')
    if isinstance(kind, str) and resolve(kind, registry.MODELS, report.scope) is None:
        report.add('model', unknown_type(kind, registry.MODELS, report.scope))
        return  # with another toolbox's model, all else would be unknown too
    for place in places(report.cfg):
        check_place(report, place)
    for where, node in walk({'model': report.cfg.get('model')}):
        check_part(report, where, node)


def places(cfg: Mapping) -> Iterator[Place]:
    """Yields the dicts outside the model, each with the constructor that receives it."""
    constructor = (cfg.get('optim_wrapper') or {}).get('constructor', MULTIPLIERS[0])
    for where, node in entries({key: cfg[key] for key in cfg if key != 'model'}):
        for place in PLACES:
            if node is None or isinstance(node, (list, tuple)) \
                    or not re.fullmatch(place.where, where):
                continue
            if where.startswith('optim_wrapper.paramwise_cfg') \
                    and str(constructor).split('.')[-1] not in MULTIPLIERS:
                continue  # this constructor has settings of its own
            if isinstance(node, Mapping) and 'metrics' in node:  # an Evaluator
                continue
            if where == 'train_cfg' and 'type' not in node and 'by_epoch' in node:
                place = place._replace(taken=('by_epoch',), default=(
                    'EpochBasedTrainLoop' if node['by_epoch'] else 'IterBasedTrainLoop'))
            yield place._replace(where=where, node=node)


def check_place(report: Report, place: Place) -> None:
    """Compares one dict with the constructor that receives it."""
    node, build, where = place.node, place.build, place.where
    if not isinstance(node, Mapping):
        if isinstance(node, (str, int, float)):  # other objects are built already
            report.add(where, f'{short(node)}: expected a dict')
        return
    settings = {key: value for key, value in node.items()
                if key not in ('_scope_', '_delete_', *place.taken)}
    if isinstance(build, tuple):
        for name in settings:
            if name not in build:
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


def check_part(report: Report, where: str, node: Mapping) -> None:
    """Compares one dict of the model with the constructor that its type names."""
    kind, scope = node.get('type'), report.scope
    registries = registry.MODELS, registry.TASK_UTILS
    build = next(filter(None, (resolve(kind, among, scope) for among in registries)), None)
    if isinstance(build, type):
        check_call(report, where, build, {key: value for key, value in node.items()
                                          if key != 'type'}, edited=True)
    if build or not isinstance(kind, str):
        return
    certain = kind in RETIRED or where.endswith(('norm_cfg', 'act_cfg', 'conv_cfg'))
    for among in registries:  # other types, such as a function's, may be in no registry
        if certain or re.search(r'(^|\.)[A-Z]', kind) \
                and get_close_matches(kind, types(among, scope), 1, ALIKE):
            report.add(where, unknown_type(kind, among, scope))
            return


@cache
def accepted(build: Callable) -> tuple[dict[str, Parameter], bool]:
    """The arguments of a function or of a class and its bases, and whether it may take others."""
    functions = [build]
    if isinstance(build, type):
        functions = [vars(cls)['__init__'] for cls in build.__mro__
                     if '__init__' in vars(cls) and cls not in (object, nn.Module)]
    parameters: dict[str, Parameter] = {}
    for function in functions:
        try:
            # a decorator such as mmcv's deprecated_api_warning may accept old names too
            entries = signature(function, follow_wrapped=function is build).parameters.values()
        except (TypeError, ValueError):  # compiled
            break
        named = {entry.name: entry for entry in entries if entry.name != 'self' and entry.kind in (
            Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
        parameters = {**named, **parameters}
        if all(entry.kind is not Parameter.VAR_KEYWORD for entry in entries):
            return parameters, function is not functions[0]
    return parameters, True


def check_call(report: Report, where: str, build: Callable, settings: Mapping, *,
               edited: bool = False) -> None:
    """Reports wrong, unknown, missing settings; with ``edited``, only wrong or misspelt ones."""
    known, others = accepted(build)
    for name, value in settings.items():
        if expected := wrong_kind(known.get(name), value):
            report.add(where, f'{name}={value!r} of {build.__name__}: expected {expected}')
        elif name not in known and (nearest(name, known, ALIKE) or not (others or edited)):
            report.add(where, unknown_setting(build.__name__, known, name, value))
    for name, parameter in () if edited or others else known.items():
        if parameter.default is parameter.empty and name not in {*settings, *SUPPLIED}:
            report.add(where, f'{build.__name__} needs {name!r}')


def unknown_setting(owner: str, known: Iterable[str], name: str, value: object) -> str:
    """The message for an unknown setting, with the allowed ones."""
    allowed = ', '.join(one for one in known if one not in SUPPLIED)
    hint = ''.join(f', did you mean {one!r}?' for one in nearest(name, known))
    return (f'{name}={short(value)}: {owner} has no setting {name!r}{hint}, expected one of '
            f'{allowed}')


def wrong_kind(parameter: Parameter | None, value: object) -> str | None:
    """What a parameter expects instead of a string ``value``; None if a string may be right."""
    if parameter is None or not isinstance(value, str) or isinstance(parameter.default, str) \
            or 'str' in str(parameter.annotation):
        return None
    kind = getattr(parameter.annotation, '__name__', str(parameter.annotation))
    return EXPECTED.get(kind.removesuffix(' | None')) or EXPECTED.get(
        type(parameter.default).__name__)


def resolve(kind: object, among: Registry, scope: str | None) -> Callable | None:
    """The class or function of a ``type``; None if unknown."""
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    with among.switch_scope_and_registry(scope) as own:
        return own.get(kind)


def unknown_type(kind: object, among: Registry, scope: str | None) -> str:
    """The message for an unknown ``type``, with similar ones."""
    if not isinstance(kind, str):
        return f'type={short(kind)}: expected the name of a {among.name}'
    if kind in RETIRED:
        return f'type={kind!r} has been removed: {RETIRED[kind]}'
    text = f'type={kind!r}: unknown {among.name}'
    if owners := [name for name, needed in TOOLBOXES.items() if name != scope
                  and not missing(*needed) and resolve(kind, among, name)]:
        return (f'{text} for default_scope={scope!r}; {" and ".join(owners)} has one: is '
                f'default_scope right? Otherwise write type={f"{owners[0]}.{kind}"!r}')
    known = types(among, scope)
    if alike := nearest(kind, known, count=3):
        return f'{text}, did you mean {" or ".join(map(repr, alike))}?'
    return text + (f', expected one of {", ".join(sorted(known))}' if len(known) <= FEW else '')


def types(among: Registry, scope: str | None) -> list[str]:
    """The types that a config of this scope may name; this package's with their prefix."""
    known: dict[str, None] = {}
    for name, own in {'': among, **among.children}.items():
        if name in ('', scope, 'lape_mm'):
            own.import_from_location()
            prefix = 'lape_mm.' if name == 'lape_mm' else ''
            known |= dict.fromkeys(f'{prefix}{one}' for one in own.module_dict)
    return [*known]


def nearest(name: str, known: Iterable[str], cutoff: float = .6, count: int = 1) -> list[str]:
    """The names most similar to ``name``, ignoring case."""
    by_lower = {other.lower(): other for other in known}
    return [by_lower[found] for found in get_close_matches(name.lower(), by_lower, count, cutoff)]


def short(value: object, most: int = 60) -> str:
    """A value's repr, cut off."""
    text = repr(value)
    return text if len(text) <= most else f'{text[:most - 2]}..'
