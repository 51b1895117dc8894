"""Builds what costs nothing before a run, so that a value that it refuses ends in a line that says
where it stands, and not in a traceback, perhaps hours later.

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
from typing import Any

import torch
from mmengine import registry
from mmengine.config import Config
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from lape_mm.wording import first_line

from ..config import walk
from ..errors import RunError
from .report import Report
from .settings import Place, places
from .signatures import check_names, resolve, unknown_type

UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
NUMERAL = re.compile(r'[+-]?[\d.]+(e[+-]?\d+)?')
LAYERS = ('conv_cfg', 'norm_cfg', 'act_cfg')  # mmcv does not say which type it cannot find
# of metrics: read or made at once; the ones that can do without are built without
FILES = ('ann_file', 'output_dir')
FILELESS = ('CocoMetric', 'IoUMetric')
OURS = ('mmengine.', 'lape_mm.')  # whose hooks do nothing when they are built


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


def check_builds(report: Report) -> nn.Module | None:
    """Builds what can be built and reports what cannot.

    Args:
        report: takes the problems; the names in its config are known, see `check_settings`.

    Returns:
        the model, whose parameters have no values; None where there is none.
    """
    with registry.MODELS.switch_scope_and_registry(report.scope), silence():
        for place in places(report.cfg):
            if isinstance(place.node, Mapping):
                try_place(report, place)
        try_optimizer(report)
        return try_model(report)


def try_model(report: Report) -> nn.Module | None:
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


def try_place(report: Report, place: Place) -> None:
    """Builds a loader of nothing, a step of a pipeline, a metric, or a hook."""
    node = {key: value for key, value in place.node.items() if key not in place.taken}
    if place.build is DataLoader:
        node = {key: value for key, value in node.items()
                if key not in ('collate_fn', 'worker_init_fn')}
        if place.node.get('batch_sampler'):
            node.update(batch_size=1, batch_sampler=[[0]])
        else:
            node['sampler'] = [0]
        nothing: Any = range(1)
        trying(report, place.where, place.node, lambda: DataLoader(nothing, **node))
        return
    if place.build not in (registry.METRICS, registry.HOOKS, registry.TRANSFORMS):
        return
    cls = resolve(node['type'], place.build, report.scope)
    name, module = getattr(cls, '__name__', ''), getattr(cls, '__module__', '')
    if place.build is registry.METRICS and name in FILELESS:
        node = {key: value for key, value in node.items() if key not in FILES}
    elif place.build is registry.METRICS and any(key in node for key in FILES) \
            or place.build is registry.HOOKS and not module.startswith(OURS):
        return
    trying(report, place.where, node, lambda: place.build.build(deepcopy(node)))


def try_optimizer(report: Report) -> None:
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
    number = dict(params=[nn.Parameter(torch.zeros(1))])
    optimizer = trying(report, 'optim_wrapper.optimizer', settings, lambda:
                       registry.OPTIMIZERS.build(dict(settings), default_args=number))
    if optimizer is None:
        return
    given = dict(optimizer=optimizer)
    if wrapper.setdefault('type', 'OptimWrapper') != 'AmpOptimWrapper':  # which wants a GPU
        trying(report, 'optim_wrapper', wrapper,
               lambda: registry.OPTIM_WRAPPERS.build(wrapper, default_args=given))
    for place in places(report.cfg):
        if place.build is registry.PARAM_SCHEDULERS and isinstance(place.node, Mapping):
            trying(report, place.where, place.node,
                   lambda node=place.node: registry.PARAM_SCHEDULERS.build(
                       deepcopy(node), default_args=dict(given, epoch_length=1)))


def trying(report: Report, where: str, node: Mapping, build: Callable):
    """What ``build`` gives; None where it fails, which is reported."""
    try:
        return build()
    except Exception as error:  # a constructor may raise anything
        explain(report, where, node, error)


def explain(report: Report, where: str, node: Mapping, error: Exception) -> None:
    """Reports which part of ``node`` could not be built, why, and what is allowed."""
    text = str(error.args[0]).strip() if error.args else ''
    if 'process group' in text and report.cfg.get('launcher', 'none') != 'none':
        return  # there will be one
    parts: dict[str, Mapping] = dict(walk({where: node}))
    path, part = culprit(parts, error, where)
    if match := UNEXPECTED.search(text):
        found, name = len(report.found), match[1]
        for path_of, one in parts.items() if name not in part else [(path, part)]:
            for among in (registry.MODELS, registry.TASK_UTILS, registry.TRANSFORMS):
                if name in one and (build := resolve(one.get('type'), among, report.scope)):
                    check_names(report, path_of, build, {name: one[name]})
                    break
        if len(report.found) > found:
            return
    if isinstance(error, KeyError):  # a type that a registry does not have
        among = registry.TASK_UTILS if '::task util' in text else registry.MODELS
        words, found = re.findall(r'[\w.]+', text), len(report.found)
        for path_of, one in parts.items():
            kind = one.get('type')
            if (kind in words or path_of in [f'{path}.{name}' for name in LAYERS]) \
                    and resolve(kind, among, report.scope) is None:
                report.add(path_of, unknown_type(kind, among, report.scope))
        if len(report.found) > found:
            return
    line = first_line(text) if text else source_of(error)
    if type(error) is not ValueError:  # whose text says what is wrong
        line = f'{type(error).__name__}: {line}'
    numerals = [f'{key}={value!r}' for key, value in part.items()
                if isinstance(value, str) and NUMERAL.fullmatch(value)]
    report.add(path, line + (
        f'; a string in the place of a number: {", ".join(numerals)}' if numerals else ''))


def culprit(parts: Mapping[str, Mapping], error: Exception, where: str) -> tuple[str, Mapping]:
    """The dict that was being built when an error was raised, the outermost where that is unclear.

    Args:
        parts: path -> dict, the outermost first.
        error: as it came through mmengine's registries.
        where: path of the outermost.
    """
    built = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == 'build_from_cfg':
            built = frame.f_locals['cfg']
    found = [(path, part) for path, part in parts.items()
             if built is not None and part.get('type') == built.get('type')]
    # of several with this type the one with these settings, unless its parent added some
    found = [(path, part) for path, part in found if part == built][:1] or found
    return found[0] if len(found) == 1 else (where, parts[where])


def source_of(error: Exception) -> str:
    """The line that raised an error without words."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f'{last.line} ({last.filename}:{last.lineno})'
