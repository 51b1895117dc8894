"""Reads a config and applies the tools' options to it."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import deepcopy
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from lape_mm.position import build_joining
from lape_mm.registry import MODELS
from lape_mm.requirements import TOOLBOXES, install_hint, missing
from lape_mm.shipped import shipped

from .errors import RunError, rank

ABSENT = object()  # a setting that a config does not have


def load_config(path: str, *, options: Mapping | None = None, backbone: str | None = None,
                joining: str | Mapping | None = None, work_dir: str | None = None,
                edit: Callable[[Config], None] | None = None) -> Config:
    """Reads a config and applies --backbone, `edit`, --cfg-options, --joining, --work-dir.

    ``path`` is a file, or ``PACKAGE::CONFIG`` for a config that a package ships. ``edit`` changes
    the config in place. RunError if the config or an option is bad, or the toolbox is not
    installed. With --backbone, prints a line "key: was -> is" for each changed setting.
    """
    package, shipped_one, name = path.partition('::')
    if shipped_one:
        path = str(configs_of(package) / name)
    if '://' in path:
        raise RunError(f'config {path}: a config is Python code, and this one would run: download '
                       'it, read it, and give its path')
    if not Path(path).is_file():
        raise RunError(f'there is no config {path}')
    try:
        cfg = Config.fromfile(path)
    except Exception as error:  # a config is code: anything may happen in it
        raise RunError(f'config {path} cannot be read: {type(error).__name__}: {error}') from error
    scope = (options or {}).get('default_scope', cfg.get('default_scope'))
    if scope not in TOOLBOXES:
        raise RunError(f'config {path}: default_scope={scope!r}, expected one of '
                       f'{", ".join(TOOLBOXES)}')
    if lacking := missing(*TOOLBOXES[scope]):
        raise RunError([install_hint(module) for module in lacking])
    if backbone:
        from .backbone import set_backbone
        before = deepcopy(cfg.to_dict())
        set_backbone(cfg, backbone)
    if edit is not None:
        edit(cfg)
    merge_options(cfg, options or {})
    if joining is not None:
        try:
            build_joining(joining, depth=1000)  # above any model's: building this one takes longer
        except ValueError as error:
            raise RunError(f'--joining: {error}') from error
        set_backbones(cfg, '--joining', joining=joining)
    if backbone and rank() == 0:
        print(*changes(before, cfg.to_dict()), sep='\n')
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs', Path(path).stem))
    return cfg


def configs_of(package: str) -> Path:
    """The folder of a package's configs. mmengine's search would install upstream over a fork."""
    if package == 'lape_mm':
        return shipped('configs')
    if package not in TOOLBOXES:
        raise RunError(f'{package}::, expected lape_mm::, {"::, ".join(TOOLBOXES)}::')
    if (spec := find_spec(package)) is None:
        raise RunError(install_hint(package))
    folder = Path(str(spec.origin)).parent
    return next((found for found in (folder / '.mim/configs', folder.parent / 'configs')
                 if found.is_dir()), folder)


def entries(node, path: str = '') -> Iterator[tuple[str, Any]]:
    """Yields each value inside a dict or list with its dotted path, outer values first."""
    if path:
        yield path, node
    children = node.items() if isinstance(node, Mapping) else enumerate(
        node if isinstance(node, (list, tuple)) else ())
    for key, child in list(children):
        yield from entries(child, f'{path}.{key}' if path else str(key))


def walk(node) -> Iterator[tuple[str, MutableMapping]]:
    """Yields each dict of a config with its dotted path, outer dicts first."""
    return ((path, one) for path, one in entries(node) if isinstance(one, MutableMapping))


def our_backbones(cfg: Config) -> Iterator[tuple[str, MutableMapping]]:
    """Yields path and dict of each lape_mm backbone in a config."""
    MODELS.import_from_location()
    names = {name for name, cls in MODELS.module_dict.items()
             if 'joining' in signature(cls).parameters}
    for path, node in walk(dict(cfg.items())):
        kind = node.get('type')
        if str(getattr(kind, '__name__', kind)).removeprefix('lape_mm.') in names:
            yield path, node


def set_backbones(cfg: Config, option: str, **settings: Any) -> None:
    """Changes settings of every lape_mm backbone, in place; RunError if there is none."""
    found = [node for _, node in our_backbones(cfg)]
    for node in found:
        node.update(settings)
    if not found:
        raise RunError(f'{option}: {cfg.filename or "the config"} has no backbone of lape_mm')


def merge_options(cfg: Config, options: Mapping) -> None:
    """Merges --cfg-options. A dict replaces a joining or name; ``LIST.N.type`` may add an entry."""
    for key, value in options.items():
        where, _, entry = key.removesuffix('.type').rpartition('.')
        entries = lookup(cfg, where)
        if key.endswith('.type') and isinstance(entries, list) and entry == str(len(entries)):
            entries.append(ConfigDict())
        replaces = isinstance(value, Mapping) and (
            key.endswith('.joining') or isinstance(lookup(cfg, key), str))
        try:
            cfg.merge_from_dict({key: {**value, '_delete_': True} if replaces else value})
        except (AttributeError, KeyError, TypeError) as error:
            raise RunError(f'--cfg-options {key}={value}: {error}') from error
        if replaces:  # mmengine leaves the key if there was nothing to delete
            lookup(cfg, key).pop('_delete_', None)


def settle_loaders(cfg: Config) -> None:
    """Drops worker settings that torch refuses once ``num_workers`` is 0."""
    for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        loader = cfg.get(name) or {}
        if not loader.get('num_workers'):
            loader.pop('persistent_workers', None)
            loader.pop('prefetch_factor', None)


def lookup(cfg: Config, key: str):
    """The value at a dotted key; None if it is not set."""
    return dict(entries(dict(cfg.items()))).get(key)


def write_config(cfg: Config, path: str, work_dir: str | None = None) -> None:
    """Writes a config with its bases and options into one new file for OpenMMLab's tools."""
    target = Path(path)
    if target.suffix != '.py' or target.exists() or not target.absolute().parent.is_dir():
        raise RunError(f'--write {path}: expected a new .py file in a folder that exists')
    own = Config({key: value for key, value in cfg.items()
                  if work_dir or key not in ('work_dir', 'launcher')})
    target.write_text(f'# {Path(cfg.filename or "").name} with the options of a command line\n'
                      + own.pretty_text)
    print(f'written: {path}')


def changes(old: Any, new: Any, path: str = '') -> Iterator[str]:
    """Yields "key: was -> is" for each changed setting, or for a dict whose ``type`` changed."""
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping) and (
            old.get('type') == new.get('type') or not path):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from changes(old.get(key, ABSENT), new.get(key, ABSENT),
                               f'{path}.{key}' if path else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and any(
            isinstance(one, Mapping) for one in old):
        for index, (before, after) in enumerate(zip(old, new)):
            yield from changes(before, after, f'{path}.{index}')
    else:
        was, now = ('not set' if value is ABSENT else repr(value) for value in (old, new))
        yield f'{path}: {was} -> {now}'
