"""Builds what is cheap before the run, so that a bad value is reported in one line with its place.

The model is built on the meta device, the optimizer and its schedules with one parameter, and
metrics without their files. Data sets and other packages' hooks are not built.
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
from .signatures import accepted, resolve, unknown_setting, unknown_type

UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
FILES = {'ann_file', 'output_dir'}  # metrics read or create these when they are built
OURS = ('mmengine.', 'lape_mm.')  # building their hooks has no side effects


class WithoutValues(TorchFunctionMode):
    """Creates weights on the meta device, which stores no values.

    Unlike ``torch.device('meta')`` it spares ranges, because modules read drop rates from them.
    """

    MAKE = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in self.MAKE and kwargs.get('device') is None:
            kwargs = {**kwargs, 'device': 'meta'}
        return func(*args, **kwargs)


@contextmanager
def silence() -> Iterator[None]:
    """Suppresses warnings and log lines, because the run repeats them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logging.disable(before)


def build_model(cfg: Config) -> nn.Module:
    """Builds the model of a config, with initial weights.

    Raises:
        RunError: names the part that cannot be built, why, and what is allowed.
    """
    report = Report(cfg)
    registry.init_default_scope(cfg.default_scope)
    model = trying(report, 'model', cfg.model, lambda: registry.MODELS.build(cfg.model))
    if report.found:
        raise RunError(report.lines())
    return model


def check_builds(report: Report) -> nn.Module | None:
    """Builds the cheap parts and reports those that fail.

    Args:
        report: collects the problems; `check_settings` has checked the names.

    Returns:
        the model with parameters on the meta device, or None.
    """
    def model() -> nn.Module | None:
        try:
            with WithoutValues():
                return registry.MODELS.build(deepcopy(node))
        except RuntimeError:  # some code reads values
            return None

    def constructor() -> Any:
        return registry.OPTIM_WRAPPER_CONSTRUCTORS.build(dict(
            type=kind, optim_wrapper_cfg=wrapper, paramwise_cfg=paramwise))

    node, wrapper = report.cfg.get('model'), dict(deepcopy(report.cfg.get('optim_wrapper') or {}))
    kind = wrapper.pop('constructor', 'DefaultOptimWrapperConstructor')
    paramwise = wrapper.pop('paramwise_cfg', None)
    with registry.MODELS.switch_scope_and_registry(report.scope), silence():
        for place in places(report.cfg):
            if isinstance(place.node, Mapping):
                build_place(report, place)
        if 'optimizer' in wrapper:
            trying(report, 'optim_wrapper', dict(type=kind), constructor)
        return trying(report, 'model', node, model) if node else None


def build_place(report: Report, place: Place) -> None:
    """Builds one part of the run, with stand-ins for its data set, weights and optimizer."""
    node = {key: value for key, value in place.node.items() if key not in place.taken}
    if place.build is DataLoader:
        node.update(dataset=range(1), collate_fn=None, worker_init_fn=None, sampler=[0],
                    batch_sampler=None)
        trying(report, place.where, place.node, lambda: DataLoader(**node))
    number = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([number], lr=.1, momentum=.9)
    stand_ins: dict[Any, dict] = {
        registry.TRANSFORMS: {}, registry.METRICS: {}, registry.HOOKS: {},
        registry.OPTIMIZERS: dict(params=[number]),
        registry.OPTIM_WRAPPERS: dict(optimizer=optimizer),
        registry.PARAM_SCHEDULERS: dict(optimizer=optimizer, epoch_length=1)}
    if place.build not in stand_ins:
        return
    kind = node.setdefault('type', place.default)
    cls: Any = resolve(kind, place.build, report.scope)
    if cls.__name__ == 'CocoMetric':
        node.pop('ann_file', None)
    if place.build is registry.METRICS and FILES & set(node) \
            or place.build is registry.HOOKS and not cls.__module__.startswith(OURS) \
            or kind == 'AmpOptimWrapper':  # needs a GPU
        return
    trying(report, place.where, place.node, lambda: place.build.build(
        {**deepcopy(node), **stand_ins[place.build]}))


def trying(report: Report, where: str, node: Mapping, build: Callable):
    """Calls ``build``; reports an error and returns None."""
    try:
        return build()
    except Exception as error:  # a constructor may raise anything
        explain(report, where, node, error)


def explain(report: Report, where: str, node: Mapping, error: Exception) -> None:
    """Reports which part of ``node`` could not be built, why, and what is allowed."""
    text, scope = str(error.args[0]).strip() if error.args else '', report.scope
    if 'process group' in text and report.cfg.get('launcher', 'none') != 'none':
        return  # there will be one
    path, part = culprit(dict(walk({where: node})), error, where)
    kinds = (registry.MODELS, registry.TASK_UTILS, registry.TRANSFORMS,
             registry.OPTIM_WRAPPER_CONSTRUCTORS)
    line = text if type(error) is ValueError else f'{type(error).__name__}: {text}'
    if (match := UNEXPECTED.search(text)) and match[1] in part:
        build: Any = next(filter(None, (resolve(part.get('type'), among, scope)
                                        for among in kinds)), None)
        if build is not None:
            line = unknown_setting(build.__name__, accepted(build).parameters, match[1],
                                   part[match[1]])
    elif isinstance(error, KeyError):  # a type that no registry has; mmcv does not say which
        for below, one in walk({path: part}):
            kind = str(one.get('type', ''))
            if kind and (kind in text or 'None' in text) and not any(
                    resolve(kind, among, scope) for among in kinds):
                among = next((one for one in kinds if f'::{one.name} ' in text), kinds[0])
                path, line = below, unknown_type(kind, among, scope)
    elif not text:  # an assertion: quote its line
        last = traceback.extract_tb(error.__traceback__)[-1]
        line += f'{last.line} ({last.filename}:{last.lineno})'
    report.add(path, first_line(line, most=600))


def culprit(parts: Mapping[str, Mapping], error: Exception, where: str) -> tuple[str, Mapping]:
    """The dict whose build raised the error; the outermost if that is unclear.

    Args:
        parts: path -> dict, the outermost first.
        error: raised inside mmengine's registries.
        where: path of the outermost.
    """
    built: dict = {}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == 'build_from_cfg':
            built = frame.f_locals['cfg']
    found = [(path, part) for path, part in parts.items() if part.get('type') == built.get('type')]
    # among several of this type, the one with the same settings; its parent may have added some
    found = [(path, part) for path, part in found if part == built][:1] or found
    return found[0] if len(found) == 1 else (where, parts[where])
