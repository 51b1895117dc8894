"""Backbones as folders to share: safetensors, a config that rebuilds them, and a model card.

`save_pretrained` writes what `from_pretrained` reads. The files are named as by huggingface_hub's
mixins, and ``hf upload OWNER/NAME FOLDER`` puts them on the Hugging Face Hub. Nothing in such a
folder is executed.
"""
from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from lape_mm import __version__
from lape_mm.backbones.encoder import Encoder
from lape_mm.checkpoints.files import CheckpointError, read_checkpoint
from lape_mm.checkpoints.transfer import match
from lape_mm.registry import MODELS
from lape_mm.wording import some

WEIGHTS, CONFIG, CARD = 'model.safetensors', 'config.json', 'README.md'
HUB = 'https://huggingface.co'
TEMPLATE = '''---
library_name: lape_mm
license: apache-2.0
tags:
- vision-transformer
- position-embedding
- {tag}
---

# {name}

{description}

`lape_mm.{kind}` with joining `{joining}`: {count:,} parameters.

```python
from lape_mm.sharing import from_pretrained

backbone = from_pretrained("{repo}").eval()
```

In a config of mmpretrain, mmdet or mmseg:

```python
backbone = dict(
    type='lape_mm.{kind}',
    init_cfg=dict(checkpoint='{checkpoint}'),
{arguments})
```

Written by lape_mm {version}. Methods: LaPE (Yu et al., ICCV 2023), PVG and MPVG (Lee et al., AAAI
2025).
'''


def save_pretrained(model: Encoder, folder: str | os.PathLike, *, name: str | None = None,
                    description: str = '', repo_id: str | None = None) -> Path:
    """Writes a backbone into a folder.

    Args:
        model: a backbone of this package.
        folder: made if it is not there; files of the same names are replaced.
        name: title of the card; the folder's name by default.
        description: what it was trained on, and how; the card says it.
        repo_id: ``owner/name`` on the Hub, for the card's examples; without it they name the
            folder, which nobody else has.

    Returns:
        the folder.

    Raises:
        ValueError: it is no backbone, is folded or changed since it was built, or an argument of
            it cannot be written as JSON.
    """
    from safetensors.torch import save_model  # comes with timm
    if not isinstance(model, Encoder) or model.folded is not None:
        raise ValueError('save_pretrained takes a backbone of lape_mm that is not folded, got '
                         f'{type(model).__name__}')
    config = dict(type=f'lape_mm.{type(model).__name__}', **model.arguments)
    config.pop('init_cfg', None)
    try:
        text = json.dumps(dict(lape_mm_version=__version__, backbone=config), indent=2)
    except TypeError as error:
        raise ValueError(f'an argument of {config["type"]}: {error}') from None
    check_builds(model, config)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        part = Path(draft)
        save_model(model, str(part / WEIGHTS), metadata=dict(format='pt'))
        (part / CONFIG).write_text(text + '\n')
        (part / CARD).write_text(model_card(model, config, name=name or folder.resolve().name,
                                            description=description, folder=folder,
                                            repo_id=repo_id))
        for file in (WEIGHTS, CONFIG, CARD):
            os.replace(part / file, folder / file)
    return folder


def from_pretrained(source: str | os.PathLike, *, revision: str | None = None, **changes) \
        -> Encoder:
    """A backbone from a folder, or from the Hugging Face Hub.

    Args:
        source: a folder of `save_pretrained`, or ``owner/name`` on the Hub, which is downloaded.
        revision: branch, tag or commit on the Hub.
        changes: arguments of the backbone to be other than saved, such as ``drop_path_rate`` or
            ``with_cp``; with another ``img_size`` the position embedding is resized.

    Raises:
        CheckpointError: a file is missing or damaged, or the weights do not fit.
        ValueError: the config, with the changes, builds no backbone.
    """
    folder = Path(source)
    if not folder.is_dir():
        folder = download(str(source), revision)
    config = read_config(folder / CONFIG)
    model = build({**config, **changes})
    # a table's length does not tell its grid; the one that it was saved with is known
    grid = build(config).grid if 'img_size' in changes else model.grid
    fitting, report = match(model, read_checkpoint(folder / WEIGHTS), grid)
    if lost := [*report.missing, *report.new, *report.unused]:
        raise CheckpointError(f'{folder / WEIGHTS} does not fit {CONFIG}: {some(lost, 1, str)}')
    model.load_state_dict(fitting)
    return model


def read_config(path: Path) -> dict:
    """The backbone's config in a folder.

    Raises:
        CheckpointError: there is none, or another one.
    """
    try:
        config = json.loads(path.read_text())['backbone']
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'{path}: no config of save_pretrained '
                              f'({type(error).__name__})') from None
    if not isinstance(config, dict) or not isinstance(config.get('type'), str):
        raise CheckpointError(f'{path}: its backbone names no type')
    return config


def build(config: Mapping) -> Encoder:
    """A backbone of this package from its config; what else a config might name is refused."""
    kind = str(config['type']).removeprefix('lape_mm.')
    MODELS.import_from_location()
    cls = MODELS.module_dict.get(kind)
    if not isinstance(cls, type) or not issubclass(cls, Encoder):
        known = sorted(name for name, entry in MODELS.module_dict.items()
                       if isinstance(entry, type) and issubclass(entry, Encoder))
        raise ValueError(f'type={config["type"]!r}: expected one of {known}')
    # weights come from the folder alone
    return cls(**{key: value for key, value in config.items() if key not in ('type', 'init_cfg')})


def check_builds(model: Encoder, config: Mapping) -> None:
    """Raises ValueError unless the config builds a model with exactly these weights."""
    built = {name: value.shape for name, value in build(config).state_dict().items()}
    own = {name: value.shape for name, value in model.state_dict().items()}
    if differing := sorted(name for name in {*built, *own} if built.get(name) != own.get(name)):
        raise ValueError(f'the model has been changed since it was built: {differing[0]} is '
                         f'{tuple(own.get(differing[0], ()))}, was '
                         f'{tuple(built.get(differing[0], ()))}')


def model_card(model: nn.Module, config: Mapping, *, name: str, description: str, folder: Path,
               repo_id: str | None) -> str:
    """The text of the card."""
    kind = config['type'].removeprefix('lape_mm.')
    joining = config.get('joining', 'default')
    arguments = ''.join(f'    {key}={value!r},\n' for key, value in config.items() if key != 'type')
    return TEMPLATE.format(
        name=name, kind=kind, joining=joining, repo=repo_id or folder, arguments=arguments,
        # a config reads files and addresses, no names on the Hub
        checkpoint=f'{HUB}/{repo_id}/resolve/main/{WEIGHTS}' if repo_id else folder / WEIGHTS,
        tag=joining if isinstance(joining, str) else 'custom-joining', version=__version__,
        description=description or 'Nothing is said about its training: please add data, recipe '
        'and results.', count=sum(value.numel() for value in model.parameters()))


def download(repo_id: str, revision: str | None) -> Path:
    """A repository's files from the Hub.

    Raises:
        CheckpointError: it cannot be had.
    """
    from huggingface_hub import snapshot_download  # comes with timm
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=[WEIGHTS, CONFIG]))
    except Exception as error:  # of the Hub, of the network, or an invalid name
        raise CheckpointError(f'{repo_id}: neither a folder nor to be had from the Hugging Face '
                              f'Hub ({type(error).__name__})') from None
