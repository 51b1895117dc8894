"""Checks of the backbones' arguments. Each error names the value and the allowed ones."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real

from timm.layers import to_2tuple


def is_count(value, least: int = 1) -> bool:
    """Whether a value is a whole number, not a bool, of at least ``least``."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_count(name: str, value, least: int = 1) -> None:
    """Raises ValueError unless a value is a whole number of at least ``least``."""
    if not is_count(value, least):
        raise ValueError(f'{name}={value!r}: expected a whole number of at least {least}')


def check_positive(name: str, value) -> None:
    """Raises ValueError unless a value is a number above 0."""
    if not isinstance(value, Real) or not 0 < float(value) < float('inf'):
        raise ValueError(f'{name}={value!r}: expected a number above 0')


def check_rate(name: str, value) -> None:
    """Raises ValueError unless a value is a probability below 1."""
    if not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise ValueError(f'{name}={value!r}: expected 0 <= rate < 1')


def image_sides(img_size: int | Sequence[int], patch: int) -> tuple[int, int]:
    """Returns (h, w) in pixels; ValueError unless both are at least ``patch``."""
    sides = tuple(to_2tuple(img_size))
    if len(sides) != 2 or not all(is_count(side, patch) for side in sides):
        raise ValueError(f'img_size={img_size!r}: expected a side or (h, w) of at least {patch} '
                         'pixels, the side of a patch')
    return sides


def resolve_arch(arch: str | Mapping, known: Mapping[str, Mapping], details: Mapping,
                 needed: Sequence[str] = ('embed_dim', 'depth', 'num_heads')) -> dict:
    """Returns all sizes of an architecture, which is a name in ``known`` or a dict.

    A dict must have the ``needed`` sizes; for others, ``details`` has the names and defaults. Whole
    numbers must be at least 1, or 0 if that is the default; other numbers must be above 0.
    """
    if not isinstance(arch, Mapping):
        if not isinstance(arch, str) or arch not in known:
            raise ValueError(f'arch={arch!r}: expected one of {list(known)} or a dict')
        return {**details, **known[arch]}
    unknown = sorted(set(arch) - set(needed) - set(details))
    missing = [key for key in needed if key not in arch]
    if unknown or missing:
        what = (f'arch.{unknown[0]}={arch[unknown[0]]!r} is unknown' if unknown else
                f'arch lacks {missing[0]!r}')
        raise ValueError(f'{what}: expected a dict of {list(needed)} and optionally '
                         f'{list(details)}')
    for key, value in arch.items():
        example = details.get(key, 1)
        for size in value if isinstance(value, (list, tuple)) else [value]:
            if type(example) is int:
                check_count(f'arch.{key}', size, min(example, 1))
            elif type(example) is float:
                check_positive(f'arch.{key}', size)
    heads = arch['num_heads'] if isinstance(arch['num_heads'], Sequence) else [arch['num_heads']]
    for stage, count in enumerate(heads):
        if (dim := arch['embed_dim'] * 2 ** stage) % count:
            raise ValueError(f'arch: embed_dim={dim} does not divide by num_heads={count}')
    return {**details, **arch}


def check_out_indices(out_indices: Sequence[int] | None, count: int, what: str) \
        -> tuple[int, ...]:
    """Returns the chosen layers or stages, counted from 0; () for None.

    They must rise and end with the last one, whose parameters would otherwise get no gradient.
    """
    if out_indices is None:
        return ()
    given = out_indices if isinstance(out_indices, Sequence) else ()
    chosen = tuple(index + count if index < 0 else index
                   for index in given if is_count(index, -count))
    if len(chosen) < len(given) or chosen[-1:] != (count - 1,) \
            or list(chosen) != sorted(set(chosen)):
        raise ValueError(f'out_indices={out_indices!r}: expected rising {what} of '
                         f'0..{count - 1} that end with the last one')
    return chosen
