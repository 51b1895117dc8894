"""One dict of a config held against the constructor that its ``type`` names."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

from mmengine import registry
from mmengine.registry import Registry
from mmengine.runner import Runner

from lape_mm.requirements import TOOLBOXES, missing

from .signatures import Accepted, accepted, hint, nearest, short, wrong_kind

FEW = 15  # types that are listed one and all


def check_call(report, where: str, build: Callable, settings: Mapping,
               supplied: Sequence[str] = ()) -> None:
    """Reports settings that a constructor does not know, needs, or takes as numbers alone."""
    check_names(report, where, build, settings, supplied)
    for name in accepted(build).required:
        if name not in settings and name not in supplied:
            report.add(where, f'{title(build)} needs {name!r}')


def check_names(report, where: str, build: Callable, settings: Mapping,
                supplied: Sequence[str] = ()) -> None:
    """Reports settings that a constructor does not know, or takes as numbers alone."""
    scope, kind = report.cfg.get('default_scope'), settings.get('ema_type')
    if kind is not None and resolve(kind, registry.MODELS, scope) is None:
        report.add(where, unknown_type(kind, registry.MODELS, scope))
    known = passed_on(build, settings, scope)
    allowed = [name for name in known.parameters if name not in supplied]
    for name, value in settings.items():
        if name in known.parameters:
            if expected := wrong_kind(known.parameters[name], value):
                report.add(where, f'{name}={value!r} of {title(build)}: expected {expected}')
        elif not known.open:
            report.add(where, f'{name}={short(value)}: {title(build)} has no setting {name!r}'
                       f'{hint(name, allowed)}, expected one of {", ".join(allowed)}')


def check_part(report, where: str, build: Callable, settings: Mapping) -> None:
    """As `check_names`, for a part of a model, as far as building it would not tell.

    A setting that its constructor swallows is a mistake if it is much like another one. Otherwise
    it is a warning: the toolboxes' own configs have some.
    """
    known = accepted(build)
    check_names(report, where, build, {
        name: value for name, value in settings.items() if name in known.parameters})
    for name, value in settings.items() if known.swallows else ():
        if name in known.parameters or name == 'type':
            continue
        if nearest(name, known.parameters, cutoff=.82):
            check_names(report, where, build, {name: value})
        else:
            report.warn(where, f'{name}={short(value)}: {title(build)} does not look at it, it '
                        f'takes {", ".join(known.parameters)}')


def title(build: Callable) -> str:
    """The name of a class or function."""
    return getattr(build, '__name__', str(build))


def passed_on(build: Callable, settings: Mapping, scope: str | None) -> Accepted:
    """What a constructor takes, for some open ones with what takes the rest of it later on."""
    known = accepted(build)
    family = [base.__name__ for base in build.__mro__] if isinstance(build, type) else []
    rest: Callable | None = None
    if 'CheckpointHook' in family:  # at the first checkpoint
        rest = Runner.save_checkpoint
    elif 'EMAHook' in family:  # before the first iteration
        rest = resolve(settings.get('ema_type', 'ExponentialMovingAverage'), registry.MODELS,
                       scope)
    elif 'VisualizationHook' in family and build.__module__.startswith('mmpretrain.'):
        # at the first picture
        from mmpretrain.visualization import UniversalVisualizer
        rest = UniversalVisualizer.visualize_cls
    if not known.open or rest is None:
        return known
    more = {name: entry for name, entry in accepted(rest).parameters.items()
            if name not in ('self', 'model', 'image', 'data_sample')}
    return replace(known, parameters={**known.parameters, **more}, open=False)


def resolve(kind, among: Registry, scope: str | None) -> Callable | None:
    """What a ``type`` stands for; None for an unknown one."""
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    if among is registry.FUNCTIONS:  # which toolboxes have no child of
        return among.get(kind)
    with among.switch_scope_and_registry(scope) as own:
        return own.get(kind)


def unknown_type(kind, among: Registry, scope: str | None) -> str:
    """Says that a ``type`` is none, and what is like it."""
    if not isinstance(kind, str):
        return f'type={short(kind)}: expected the name of a {among.name}'
    text, known = f'type={kind!r}: there is no such {among.name}', []
    prefix, dot, name = kind.partition('.')
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
    if owners := [name for name in installed() if name != scope and resolve(kind, among, name)]:
        return (f'{text}; {" and ".join(owners)} has one: is default_scope right? Otherwise write '
                f'type={f"{owners[0]}.{kind}"!r}')
    if alike := nearest(kind, known, 3):
        return f'{text}, did you mean {" or ".join(map(repr, alike))}?'
    if len(known) <= FEW:
        text += f', expected one of {", ".join(sorted(known))}'
    return text


def installed() -> list[str]:
    """The toolboxes that can be imported."""
    return [name for name, needed in TOOLBOXES.items()
            if find_spec(name) and not missing(*needed)]
