"""Backbones as folders and repositories of the Hugging Face Hub, by huggingface_hub's mixin."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from torch import nn

from lape_mm.registry import WEIGHT_INITIALIZERS

CONFIG, WEIGHTS = 'config.json', 'model.safetensors'
NOT_ARGUMENTS = ('type', 'init_cfg', 'lape_mm_version', 'backbone')


class HubBackbone(PyTorchModelHubMixin, nn.Module, library_name='lape_mm', license='apache-2.0',
                  tags=['vision-transformer', 'position-embedding']):
    """Adds `save_pretrained`, `push_to_hub` and `from_pretrained` to a backbone.

    The mixin keeps the arguments of the constructor. Weights are read as by ``init_cfg``, but all
    of them have to fit; with another ``img_size`` the position embedding is resized.
    """

    _hub_mixin_config: Any  # the arguments of the constructor that JSON can hold
    folded: Any
    grid: tuple[int, int]

    def _save_pretrained(self, save_directory: Path) -> None:
        if self.folded is not None:
            raise ValueError('a folded backbone has no position embedding left to share: save the '
                             'one that it was folded from')
        arguments = dict(self._hub_mixin_config or {}, init_cfg=None)
        built, own = type(self)(**arguments).state_dict(), self.state_dict()
        if changed := [name for name in {**own, **built} if name not in own or name not in built
                       or own[name].shape != built[name].shape]:
            raise ValueError('the model was changed after it was built, and config.json could not '
                             f'rebuild {changed[0]}: build it with these settings')
        super()._save_pretrained(save_directory)
        config = {'type': f'lape_mm.{type(self).__name__}', **arguments}
        (save_directory / CONFIG).write_text(json.dumps(config, indent=2) + '\n')

    @classmethod
    def _from_pretrained(cls, *, model_id: str, config: dict | None = None, **options):
        where = {key: options.pop(key) for key in (
            'revision', 'cache_dir', 'force_download', 'local_files_only', 'token')}
        saved = (config or {}).get('backbone', config) or {}  # as version 0.1.0 nested it
        if (kind := saved.get('type', '').removeprefix('lape_mm.')) not in ('', cls.__name__):
            raise ValueError(f'{model_id} is a {kind}: load it by {kind}.from_pretrained')
        saved, arguments = (
            {key: value for key, value in values.items() if key not in NOT_ARGUMENTS}
            for values in (saved, {**saved, **options}))
        path = Path(model_id, WEIGHTS) if Path(model_id).is_dir() else \
            hf_hub_download(model_id, WEIGHTS, **where)
        model = cls(**arguments)
        # the length of a table does not tell its grid; the saved config does
        grid = (model if arguments.get('img_size') == saved.get('img_size') else cls(**saved)).grid
        WEIGHT_INITIALIZERS.build(dict(type='lape_mm.BackboneWeights', checkpoint=str(path),
                                       source_grid=grid, exact=True))(model)
        return model.eval()


def __getattr__(name: str):
    if name in ('from_pretrained', 'save_pretrained'):  # functions in version 0.1.0
        raise ImportError(f'lape_mm.sharing.{name} is now a method of every backbone, which reads '
                          f'the same folders: lape_mm.DeiT.{name}(..)')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
