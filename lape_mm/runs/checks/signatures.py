"""What a constructor takes, by the signatures of its class and bases; what a ``type`` names."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from inspect import Parameter, signature
from typing import NamedTuple

from mmengine import registry
from mmengine.hooks import EMAHook
from mmengine.registry import Registry
from torch import nn

from lape_mm.requirements import TOOLBOXES, missing

from .report import Report

FEW = 15  # up to this number, all types are listed
ALIKE = .82  # similarity at which an unknown name beside **kwargs counts as misspelt


class Accepted(NamedTuple):
    """What a constructor or function takes.

    Attributes:
        parameters: name -> parameter.
        required: names without a default.
        open: whether it takes other names as well.
    """

    parameters: dict[str, Parameter]
    required: tuple[str, ...]
    open: bool


@cache
def accepted(build: Callable) -> Accepted:
    """The arguments of a class or function.

    A constructor with ``**kwargs`` also takes what the next one in its class's order takes. It
    stays open, because it may read further names itself.
    """
    functions = [build]
    if isinstance(build, type):
        functions = [vars(cls)['__init__'] for cls in build.__mro__
                     if '__init__' in vars(cls) and cls not in (object, nn.Module)]
    parameters: dict[str, Parameter] = {}
    required: tuple[str, ...] | None = None
    for function in functions:
        try:
            # a constructor's decorator may take old names, too: mmcv's deprecated_api_warning
            entries = list(signature(function, follow_wrapped=function is build)
                           .parameters.values())
        except (TypeError, ValueError):  # compiled
            break
        named = [entry for entry in entries[isinstance(build, type):] if entry.kind in (
            Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
        parameters = {**{entry.name: entry for entry in named}, **parameters}
        if required is None:
            required = tuple(entry.name for entry in named if entry.default is Parameter.empty)
        if all(entry.kind is not Parameter.VAR_KEYWORD for entry in entries):
            return Accepted(parameters, required, function is not functions[0])
    return Accepted(parameters, required or (), True)


def check_call(report: Report, where: str, build: Callable, settings: Mapping,
               supplied: Sequence[str] = ()) -> None:
    """Reports unknown and missing settings, and strings in the place of numbers.

    Args:
        report: collects the problems.
        where: dotted path of the settings.
        build: a class or function.
        settings: what the config gives it.
        supplied: arguments added by the run.
    """
    check_names(report, where, build, settings, supplied)
    for name in accepted(build).required:
        if name not in settings and name not in supplied:
            report.add(where, f'{build.__name__} needs {name!r}')


def check_names(report: Report, where: str, build: Callable, settings: Mapping,
                supplied: Sequence[str] = ()) -> None:
    """`check_call` for some of the settings."""
    known, scope = accepted(build), report.scope
    if isinstance(build, type) and issubclass(build, EMAHook):
        # keeps its **kwargs for the averaged model, which it builds when the run starts
        kind = settings.get('ema_type', 'ExponentialMovingAverage')
        if (average := resolve(kind, registry.MODELS, scope)) is None:
            report.add(where, unknown_type(kind, registry.MODELS, scope))
            return
        known = Accepted({**known.parameters, **accepted(average).parameters}, (), False)
    allowed = [name for name in known.parameters if name not in supplied]
    for name, value in settings.items():
        if expected := wrong_kind(known.parameters.get(name), value):
            report.add(where, f'{name}={value!r} of {build.__name__}: expected {expected}')
        elif name not in known.parameters and (
                not known.open or nearest(name, known.parameters, ALIKE)):
            report.add(where, f'{name}={short(value)}: {build.__name__} has no setting {name!r}'
                       f'{hint(name, allowed)}, expected one of {", ".join(allowed)}')


def wrong_kind(parameter: Parameter | None, value) -> str | None:
    """What the parameter expects instead of a string, by its default and annotation; or None."""
    if parameter is None or not isinstance(value, str) or isinstance(parameter.default, str):
        return None
    annotation, words = parameter.annotation, set()
    if annotation is not Parameter.empty:
        text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        words = set(re.findall(r'\w+', text)) - {
            'None', 'NoneType', 'Optional', 'Tensor', 'Union', 'torch', 'typing'}
        if not words <= {'bool', 'int', 'float', 'Number'}:  # it may well be a string
            return None
    if isinstance(parameter.default, bool) or words == {'bool'}:
        return 'True or False'
    return 'a number' if words or isinstance(parameter.default, (int, float)) else None


def resolve(kind, among: Registry, scope: str | None) -> Callable | None:
    """What a ``type`` stands for; None for an unknown one."""
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    if among is registry.FUNCTIONS:  # toolboxes have no child of it
        return among.get(kind)
    with among.switch_scope_and_registry(scope) as own:
        return own.get(kind)


def unknown_type(kind, among: Registry, scope: str | None) -> str:
    """Says that there is no such ``type``, and suggests similar ones."""
    if not isinstance(kind, str):
        return f'type={short(kind)}: expected the name of a {among.name}'
    text, known = f'type={kind!r}: there is no such {among.name}', []
    prefix, dot, _ = kind.partition('.')
    if dot and find_spec(prefix):
        with among.switch_scope_and_registry(prefix) as own:
            own.import_from_location()
            known = [f'{prefix}.{other}' for other in own.module_dict]
    else:
        with among.switch_scope_and_registry(scope) as own:
            while own is not None:
                known += own.module_dict
                own = own.parent
        text += f' for default_scope={scope!r}' if scope else ''
    owners = [name for name, needed in TOOLBOXES.items() if name != scope and find_spec(name)
              and not missing(*needed) and resolve(kind, among, name)]
    if owners:
        return (f'{text}; {" and ".join(owners)} has one: is default_scope right? Otherwise write '
                f'type={f"{owners[0]}.{kind}"!r}')
    if alike := nearest(kind, known, count=3):
        return f'{text}, did you mean {" or ".join(map(repr, alike))}?'
    return text + (f', expected one of {", ".join(sorted(known))}' if len(known) <= FEW else '')


def nearest(name: str, known: Iterable[str], cutoff: float = .6, count: int = 1) -> list[str]:
    """The names most similar to ``name``, ignoring case."""
    by_lower = {other.lower(): other for other in known}
    return [by_lower[found] for found in get_close_matches(name.lower(), by_lower, count, cutoff)]


def hint(name: str, known: Iterable[str]) -> str:
    """', did you mean ..' if a known name is similar."""
    found = nearest(name, known)
    return f', did you mean {found[0]!r}?' if found else ''


def short(value, most: int = 60) -> str:
    """A value's repr, cut off."""
    text = repr(value)
    return text if len(text) <= most else f'{text[:most - 2]}..'
