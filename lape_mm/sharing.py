"""Saves backbones to folders and to the Hugging Face Hub, with huggingface_hub's mixin."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from torch import nn

from lape_mm.registry import WEIGHT_INITIALIZERS

CONFIG, WEIGHTS = 'config.json', 'model.safetensors'
NOT_ARGUMENTS = ('type', 'init_cfg', 'lape_mm_version', 'backbone')
CARD = """---
{{ card_data }}
---
A backbone of lape_mm, {{ kind }}, with {{ parameters }} parameters and
{{ joining }}. config.json has its arguments.

```python
import lape_mm
model = lape_mm.{{ kind }}.from_pretrained('THIS_FOLDER_OR_REPOSITORY')
```
"""


class HubBackbone(PyTorchModelHubMixin, nn.Module, library_name='lape_mm', license='apache-2.0',
                  tags=['vision-transformer', 'position-embedding'], model_card_template=CARD):
    """Adds `save_pretrained`, `push_to_hub` and `from_pretrained` to a backbone.

    The mixin records the constructor's arguments. Loading requires every weight to fit; PE is
    resized for another ``img_size``.
    """

    _hub_mixin_config: Any  # the mixin's record of the arguments; it has no public accessor
    folded: Any
    grid: tuple[int, int]
    joining: Any

    def save_pretrained(self, save_directory, **options):
        """Writes a model's weights, config and card; ValueError if they could not rebuild it."""
        if self.folded is not None:
            raise ValueError('a folded backbone has no position embedding: save the unfolded one')
        with torch.device('meta'):
            built = type(self)(**self.hub_arguments())
        was, now = _built(built), _built(self)
        if changed := [name for name in {**was, **now} if was.get(name) != now.get(name)]:
            raise ValueError('the model was changed after it was built, or has an argument that '
                             f'JSON cannot hold: config.json could not rebuild {changed[0]}')
        return super().save_pretrained(save_directory, **options)

    def hub_arguments(self) -> dict[str, Any]:
        """The constructor's arguments, with ``init_cfg`` set to None."""
        return dict(self._hub_mixin_config or {}, init_cfg=None)

    def _save_pretrained(self, save_directory: Path) -> None:
        super()._save_pretrained(save_directory)
        config = {'type': f'lape_mm.{type(self).__name__}', **self.hub_arguments()}
        (save_directory / CONFIG).write_text(json.dumps(config, indent=2) + '\n')

    def generate_model_card(self, *args, **options):
        count = sum(parameter.numel() for parameter in self.parameters())
        return super().generate_model_card(
            *args, **options, kind=type(self).__name__, joining=self.joining,
            parameters=f'{count:,}')

    @classmethod
    def _from_pretrained(cls, *, model_id: str, config: dict | None = None,
                         map_location: str = 'cpu', **options):
        if not config:
            raise ValueError(f'{model_id} has no {CONFIG}, which describes the model')
        where = {key: options.pop(key) for key in (
            'revision', 'cache_dir', 'force_download', 'local_files_only', 'token')}
        for key in ('proxies', 'resume_download', 'strict'):  # unused options of the mixin
            options.pop(key, None)
        saved = config.get('backbone', config)  # version 0.1.0 nested it
        if (kind := saved.get('type', '').removeprefix('lape_mm.')) not in ('', cls.__name__):
            raise ValueError(f'{model_id} is a {kind}: load it by {kind}.from_pretrained')
        saved, arguments = (
            {key: value for key, value in values.items() if key not in NOT_ARGUMENTS}
            for values in (saved, {**saved, **options}))
        path = Path(model_id, WEIGHTS) if Path(model_id).is_dir() else \
            hf_hub_download(model_id, WEIGHTS, **where)
        model = cls(**arguments)
        # only the saved config tells the table's grid; the table's length does not
        grid = (model if arguments.get('img_size') == saved.get('img_size') else cls(**saved)).grid
        WEIGHT_INITIALIZERS.build(dict(type='lape_mm.BackboneWeights', checkpoint=str(path),
                                       source_grid=grid, exact=True))(model)
        return model.eval().to(map_location)


def _built(model: nn.Module) -> dict[str, Any]:
    """A model's plain attributes, its modules as text, and its tensors' shapes."""
    plain = {name: value for name, value in vars(model).items()
             if name[0] != '_' and name not in ('training', 'init_cfg', 'frozen_children')}
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    return {**shapes, **plain, 'its modules': str(model)}
