"""What may stand in a config's dict: the arguments that a constructor takes, by name.

A constructor with ``**kwargs`` takes what the class above it takes if it hands them on, nothing
more if it never looks at them, and anything if it does something else with them: its source says
which.
"""
from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from inspect import Parameter

from torch import nn


@dataclass(frozen=True)
class Accepted:
    """What a constructor or function takes.

    Attributes:
        parameters: name -> parameter; None for a name that is only looked up in ``**kwargs``.
        required: names of the outermost constructor without a default.
        open: whether it takes other names as well.
        swallows: whether it takes them without looking at them, and is counted as closed.
    """

    parameters: dict[str, Parameter | None]
    required: tuple[str, ...]
    open: bool
    swallows: bool = False


@cache
def accepted(build: Callable) -> Accepted:
    """The arguments of a class or function, as far as its constructors hand them on."""
    parameters: dict[str, Parameter | None] = {}
    required: tuple[str, ...] | None = None
    for function in _functions(build):
        if function is None:
            break
        try:
            entries = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # compiled
            return Accepted(parameters, required or (), True)
        entries = entries[1:] if isinstance(build, type) else entries
        named = [entry for entry in entries
                 if entry.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
        if required is None:
            required = tuple(entry.name for entry in named if entry.default is Parameter.empty)
        for entry in named:
            parameters.setdefault(entry.name, entry)
        rest = next((entry.name for entry in entries if entry.kind is Parameter.VAR_KEYWORD), None)
        if rest is None:
            break
        looked_up, handed_on, elsewhere = uses(function, rest)
        for name in looked_up:
            parameters.setdefault(name, None)
        if elsewhere:
            return Accepted(parameters, required, True)
        if not handed_on:
            return Accepted(parameters, required, False, swallows=True)
    return Accepted(parameters, required or (), False)


def _functions(build: Callable) -> Iterator[Callable | None]:
    """The constructors of a class, its own first; None where there is nothing to hand on to."""
    if not isinstance(build, type):
        yield build
        return
    for cls in build.__mro__:
        if cls in (object, nn.Module):  # both refuse what reaches them
            yield None
        elif '__init__' in vars(cls):
            yield vars(cls)['__init__']
        elif '__new__' in vars(cls):
            yield vars(cls)['__new__']


def uses(function: Callable, rest: str) -> tuple[set[str], bool, bool]:
    """What a constructor does with its ``**rest``.

    Returns:
        names that it looks up, such as ``rest.pop('name')``; whether it hands them on to another
        constructor, ``super().__init__(**rest)``; whether it does anything else with them.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, SyntaxError, TypeError):  # there is no source
        return set(), False, True
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    looked_up, handed_on, elsewhere = set(), False, False
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or node.id != rest:
            continue
        outer = parents[node]
        if isinstance(node.ctx, ast.Store) or isinstance(outer, ast.Dict) and isinstance(
                parents[outer], ast.Assign):  # rest = {'extensions': .., **rest}
            elsewhere |= not _renewed(node.id, node, parents)
        elif isinstance(outer, ast.keyword) and isinstance(call := parents[outer], ast.Call) \
                and isinstance(call.func, ast.Attribute) and call.func.attr == '__init__':
            handed_on = True
        elif (name := _looked_up(node, outer, parents)) is not None:
            looked_up.add(name)
        else:
            elsewhere = True
    return looked_up, handed_on, elsewhere


def _renewed(name: str, node: ast.AST, parents: dict) -> bool:
    """Whether a node is part of ``name = {.., **name}``."""
    while not isinstance(node, ast.stmt):
        node = parents[node]
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and [
        getattr(target, 'id', None) for target in node.targets] == [name]


def _looked_up(node: ast.Name, outer: ast.AST, parents: dict) -> str | None:
    """'x' of ``rest.pop('x')``, ``rest.get('x')``, ``rest['x']`` and ``'x' in rest``."""
    found = None
    if isinstance(outer, ast.Attribute) and outer.attr in ('get', 'pop', 'setdefault') \
            and isinstance(call := parents[outer], ast.Call) and call.args:
        found = call.args[0]
    elif isinstance(outer, ast.Subscript) and outer.value is node:
        found = outer.slice
    elif isinstance(outer, ast.Compare) and outer.comparators == [node] \
            and isinstance(outer.ops[0], (ast.In, ast.NotIn)):
        found = outer.left
    return found.value if isinstance(found, ast.Constant) and isinstance(found.value, str) \
        else None


def wrong_kind(parameter: Parameter | None, value) -> str | None:
    """What was expected in the place of a string, going by default and annotation; else None."""
    if parameter is None or not isinstance(value, str) or isinstance(parameter.default, str):
        return None
    annotation = parameter.annotation
    if annotation is Parameter.empty:
        words = set()
    else:
        text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        words = set(re.findall(r'\w+', text)) - {
            'None', 'NoneType', 'Optional', 'Tensor', 'Union', 'torch', 'typing'}
        if not words <= {'bool', 'int', 'float', 'Number'}:  # it may well be a string
            return None
    if isinstance(parameter.default, bool) or words == {'bool'}:
        return 'True or False'
    if words or isinstance(parameter.default, (int, float)):
        return 'a number'
    return None


def nearest(name: str, known: Iterable[str], count: int = 1, cutoff: float = .6) -> list[str]:
    """The most alike of some names, whatever the case of their letters."""
    by_lower = {other.lower(): other for other in known}
    return [by_lower[found] for found in get_close_matches(name.lower(), by_lower, count, cutoff)]


def hint(name: str, known: Iterable[str]) -> str:
    """', did you mean ..' if there is a name much alike."""
    found = nearest(name, known)
    return f', did you mean {found[0]!r}?' if found else ''


def short(value, most: int = 60) -> str:
    """A value as it is written, cut off."""
    text = repr(value)
    return text if len(text) <= most else f'{text[:most - 2]}..'
