"""What a constructor takes, from the signatures of its class and bases; what a ``type`` names."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from inspect import Parameter, signature
from typing import NamedTuple

from mmengine.registry import Registry
from torch import nn

from lape_mm.requirements import TOOLBOXES, missing
from lape_mm.retired import RETIRED

from .report import Report

FEW = 15  # at most this many types are listed in full
ALIKE = .82  # similarity at which an unknown name beside **kwargs counts as misspelt
# arguments that the run itself supplies
SUPPLIED = {'self', 'runner', 'dataloader', 'evaluator', 'optimizer', 'params', 'dataset',
            'sampler', 'batch_size', 'save_dir'}


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

    A constructor with ``**kwargs`` also takes what the next class in the MRO takes. It stays open,
    because it may read further names itself.
    """
    functions = [build]
    if isinstance(build, type):
        functions = [vars(cls)['__init__'] for cls in build.__mro__
                     if '__init__' in vars(cls) and cls not in (object, nn.Module)]
    parameters: dict[str, Parameter] = {}
    required: tuple[str, ...] = ()
    for function in functions:
        try:
            # a decorator such as mmcv's deprecated_api_warning may accept old names too
            entries = signature(function, follow_wrapped=function is build).parameters.values()
        except (TypeError, ValueError):  # compiled
            break
        named = {entry.name: entry for entry in entries if entry.name != 'self' and entry.kind in (
            Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
        if function is functions[0]:
            required = tuple(name for name, entry in named.items()
                             if entry.default is Parameter.empty)
        parameters = {**named, **parameters}
        if all(entry.kind is not Parameter.VAR_KEYWORD for entry in entries):
            return Accepted(parameters, required, function is not functions[0])
    return Accepted(parameters, required, True)


def check_call(report: Report, where: str, build: Callable, settings: Mapping, *,
               edited: bool = False) -> None:
    """Reports unknown and missing settings, and strings in place of numbers.

    Args:
        report: collects the problems.
        where: dotted path of the settings.
        build: a class or function.
        settings: what the config passes to it.
        edited: whether other code adds and removes settings; then only misspelt ones are reported.
    """
    known = accepted(build)
    for name, value in settings.items():
        if expected := wrong_kind(known.parameters.get(name), value):
            report.add(where, f'{name}={value!r} of {build.__name__}: expected {expected}')
        elif name not in known.parameters and (
                nearest(name, known.parameters, ALIKE) if known.open else not edited):
            report.add(where, unknown_setting(build.__name__, known.parameters, name, value))
    for name in () if edited else known.required:
        if name not in settings and name not in SUPPLIED:
            report.add(where, f'{build.__name__} needs {name!r}')


def unknown_setting(owner: str, known: Iterable[str], name: str, value: object) -> str:
    """The message for an unknown setting, with the allowed ones."""
    allowed = ', '.join(one for one in known if one not in SUPPLIED)
    hint = ''.join(f', did you mean {one!r}?' for one in nearest(name, known))
    return (f'{name}={short(value)}: {owner} has no setting {name!r}{hint}, expected one of '
            f'{allowed}')


def wrong_kind(parameter: Parameter | None, value: object) -> str | None:
    """What a parameter expects instead of a string, from annotation or default; None if unknown."""
    if parameter is None or not isinstance(value, str) or isinstance(parameter.default, str):
        return None
    kind = parameter.annotation
    name = kind.__name__ if isinstance(kind, type) else str(kind).removesuffix(' | None')
    if name == '_empty' or set('[|') & set(name) and 'str' not in name:
        name = type(parameter.default).__name__
    return dict(bool='True or False', int='a number', float='a number').get(name)


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
    prefix, dot, _ = kind.partition('.')
    known = []
    with among.switch_scope_and_registry(prefix if dot and find_spec(prefix) else scope) as own:
        own.import_from_location()
        while own is not None:
            known += [f'{prefix}.{name}' if dot else name for name in own.module_dict]
            own = None if dot else own.parent
    if alike := nearest(kind, known, count=3):
        return f'{text}, did you mean {" or ".join(map(repr, alike))}?'
    return text + (f', expected one of {", ".join(sorted(known))}' if len(known) <= FEW else '')


def nearest(name: str, known: Iterable[str], cutoff: float = .6, count: int = 1) -> list[str]:
    """The names most similar to ``name``, ignoring case."""
    by_lower = {other.lower(): other for other in known}
    return [by_lower[found] for found in get_close_matches(name.lower(), by_lower, count, cutoff)]


def short(value: object, most: int = 60) -> str:
    """A value's repr, cut off."""
    text = repr(value)
    return text if len(text) <= most else f'{text[:most - 2]}..'
