"""Parts of a run that cost nothing are built once beforehand, so that a value that they refuse ends
in a line that says where it stands, and not in a traceback, perhaps hours later.

The model is built without values (on torch's device 'meta'), the optimizer and its schedules for
one number, metrics without their files. Data sets are not built, nor hooks of other packages.
"""
from __future__ import annotations

import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from typing import Any

import torch
from mmengine import registry
from mmengine.config import Config
from mmengine.registry import Registry
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from ..config import walk
from ..errors import RunError
from .calls import check_names, resolve, unknown_type
from .report import Report
from .settings import Place, places

UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
UNREGISTERED = re.compile(r'(\S+) is not in the (?:\w+::)?([\w ]+) registry')
LAYERS = ('conv_cfg', 'norm_cfg', 'act_cfg', 'upsample_cfg')
# of metrics: read or made at once; the ones that can do without are built without
FILES = ('ann_file', 'output_dir')
FILELESS = ('CocoMetric', 'IoUMetric')
SILENT = ('mmengine.', 'lape_mm.')  # whose hooks do nothing when they are built


class WithoutValues(TorchFunctionMode):
    """Within, weights are made on the device 'meta'.

    Other than under ``torch.device('meta')`` ranges have values: many a module asks them for the
    drop rates of its layers.
    """

    MAKE = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in self.MAKE and kwargs.get('device') is None:
            kwargs = {**kwargs, 'device': 'meta'}
        return func(*args, **kwargs)


@contextmanager
def silence() -> Iterator[None]:
    """Warnings and log lines are left to the run, which says them again."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logging.disable(before)


def check_builds(report) -> nn.Module | None:
    """Builds what can be built and reports what cannot, see `preflight.Report`.

    To be called for a config whose names are known, see `lape_mm.runs.checks.settings`.

    Returns:
        the model, whose parameters have no values; None where there is none.
    """
    with registry.MODELS.switch_scope_and_registry(report.cfg.get('default_scope')), silence():
        for place in places(report.cfg):
            if isinstance(place.node, Mapping):
                try_place(report, place)
        try_optimizer(report)
        return try_model(report)


def build_model(cfg: Config) -> nn.Module:
    """The model of a config, with values as initialised.

    Raises:
        RunError: it cannot be built; says which part, why, and what is allowed.
    """
    report = Report(cfg)
    registry.init_default_scope(cfg.default_scope)
    model = trying(report, 'model', cfg.model, lambda: registry.MODELS.build(cfg.model))
    if report.found:
        raise RunError(report.lines())
    return model


def try_model(report) -> nn.Module | None:
    """The model without values."""
    node = report.cfg.get('model')
    if not isinstance(node, Mapping):
        return None

    def build() -> nn.Module | None:
        try:
            with WithoutValues():
                return registry.MODELS.build(deepcopy(node))
        except RuntimeError:  # what cannot be done without values
            return None
    return trying(report, 'model', node, build)


def try_place(report, place: Place) -> None:
    """Builds a loader of nothing, a step of a pipeline, a metric, or a hook."""
    node = {key: value for key, value in place.node.items() if key not in place.taken}
    if place.build is DataLoader:
        for key in ('collate_fn', 'worker_init_fn'):
            node.pop(key, None)
        if place.node.get('batch_sampler'):
            node.pop('batch_size', None)
            node['batch_sampler'] = [[0]]
        else:
            node['sampler'] = [0]
        nothing: Any = range(1)
        trying(report, place.where, place.node, lambda: DataLoader(nothing, **node))
        return
    if place.build is registry.METRICS:
        cls = resolve(node['type'], registry.METRICS, report.cfg.get('default_scope'))
        if cls and cls.__name__ in FILELESS:
            node = {key: value for key, value in node.items() if key not in FILES}
        elif any(key in node for key in FILES):
            return
    elif place.build is registry.HOOKS:
        cls = resolve(node['type'], registry.HOOKS, report.cfg.get('default_scope'))
        if not (cls and cls.__module__.startswith(SILENT)):
            return
    elif place.build is not registry.TRANSFORMS:
        return
    trying(report, place.where, node, lambda: place.build.build(deepcopy(node)))


def try_optimizer(report) -> None:
    """Constructor, optimizer, wrapper and schedules, for one number."""
    node = report.cfg.get('optim_wrapper')
    if not isinstance(node, Mapping) or not isinstance(node.get('optimizer'), Mapping):
        return
    wrapper = {key: value for key, value in deepcopy(node).items()
               if key not in ('constructor', 'paramwise_cfg')}
    trying(report, 'optim_wrapper', node, lambda: registry.OPTIM_WRAPPER_CONSTRUCTORS.build(dict(
        type=node.get('constructor', 'DefaultOptimWrapperConstructor'),
        optim_wrapper_cfg=wrapper, paramwise_cfg=deepcopy(node.get('paramwise_cfg')))))
    settings = wrapper.pop('optimizer')

    def build():
        options = {key: value for key, value in settings.items() if key != 'type'}
        cls = resolve(settings['type'], registry.OPTIMIZERS, None)
        return cls([nn.Parameter(torch.zeros(1))], **options)
    optimizer = trying(report, 'optim_wrapper.optimizer', settings, build)
    if optimizer is None:
        return
    if wrapper.setdefault('type', 'OptimWrapper') != 'AmpOptimWrapper':  # which wants a GPU
        trying(report, 'optim_wrapper', wrapper, lambda: registry.OPTIM_WRAPPERS.build(
            wrapper, default_args=dict(optimizer=optimizer)))
    for place in places(report.cfg):
        if place.build is registry.PARAM_SCHEDULERS and isinstance(place.node, Mapping):
            trying(report, place.where, place.node,
                   lambda node=place.node: registry.PARAM_SCHEDULERS.build(
                       deepcopy(node), default_args=dict(optimizer=optimizer, epoch_length=1)))


def trying(report, where: str, node: Mapping, build: Callable):
    """What ``build`` gives; None where it fails, which is reported."""
    try:
        return build()
    except Exception as error:  # a constructor may raise anything
        explain(report, where, node, error)


def explain(report, where: str, node: Mapping, error: Exception) -> None:
    """Reports which part of ``node`` could not be built, why, and what is allowed."""
    scope = report.cfg.get('default_scope')
    text = str(error.args[0]).strip() if error.args else ''
    parts: dict[str, Mapping] = dict(walk({where: node}))
    if match := UNEXPECTED.search(text):
        found = len(report.found)
        for path, part in parts.items():
            for among in (registry.MODELS, registry.TASK_UTILS, registry.TRANSFORMS):
                build = match[1] in part and resolve(part.get('type'), among, scope)
                if build:
                    check_names(report, path, build, {match[1]: part[match[1]]})
                    break
        if len(report.found) > found:
            return
    if match := UNREGISTERED.search(text):
        kind, among = match[1].strip('"\''), registry_of(match[2], scope)
        unknown = [path for path, part in parts.items() if part.get('type') == kind]
        if unknown and among is not None:  # an empty registry counts as False
            for path in unknown:
                report.add(path, unknown_type(kind, among, scope))
            return
    if 'process group' in text and report.cfg.get('launcher', 'none') != 'none':
        return  # there will be one
    path, part = culprit(parts, error, where)
    if isinstance(error, KeyError):  # mmcv does not say of which layer
        for below in LAYERS:
            layer = part.get(below)
            kind = layer.get('type') if isinstance(layer, Mapping) else None
            if isinstance(kind, str) and resolve(kind, registry.MODELS, scope) is None:
                report.add(f'{path}.{below}', unknown_type(kind, registry.MODELS, scope))
                return
    line = text.splitlines()[0] if text else source_of(error)
    if type(error) is not ValueError:  # whose text says what is wrong
        line = f'{type(error).__name__}: {line}'
    numerals = [f'{key}={value!r}' for key, value in part.items()
                if isinstance(value, str) and is_numeral(value)]
    report.add(path, line + (
        f'; a string in the place of a number: {", ".join(numerals)}' if numerals else ''))


def registry_of(name: str, scope: str | None) -> Registry | None:
    """The registry that calls itself by a name, of mmengine or of a toolbox."""
    modules = [registry, *([import_module(f'{scope}.registry')] if scope else [])]
    return next((entry for module in modules for entry in vars(module).values()
                 if isinstance(entry, Registry) and entry.name == name), None)


def culprit(parts: Mapping[str, Mapping], error: Exception, where: str) -> tuple[str, Mapping]:
    """The dict that was being built when an error was raised, the outermost where that is unclear.

    Args:
        parts: path -> dict, the outermost first.
        error: as it came through mmengine's registries.
        where: path of the outermost.
    """
    built, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == 'build_from_cfg':
            built = trace.tb_frame.f_locals['cfg']
        trace = trace.tb_next
    found = [(path, part) for path, part in parts.items()
             if built is not None and part.get('type') == built.get('type')]
    # of several with this type the one with these settings, unless its parent added some
    found = [(path, part) for path, part in found if part == built][:1] or found
    return found[0] if len(found) == 1 else (where, parts[where])


def source_of(error: Exception) -> str:
    """The line that raised an error without words."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f'{last.line} ({last.filename}:{last.lineno})'


def is_numeral(text: str) -> bool:
    """Whether a string spells a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
