"""A reader's clone in a temporary folder, with small stand-ins for what pages take for granted."""
from pathlib import Path

import timm
import torch
from docs_pages import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.utils import ManagerMixin
from PIL import Image

from lape_mm.datasets.scenes import main as draw

LINKED = ('configs', 'tools', 'benchmarks', 'docs')
FEW = ['--num-train', '12', '--num-val', '6']
# checkpoint that a page's Python reads -> the config whose untrained model stands in for it
CHECKPOINTS = {
    'work_dirs/mask_rcnn/epoch_6.pth': 'configs/quickstart/mask_rcnn.py',
}


def link(folder: Path) -> None:
    """The repository's folders, as in the root of a clone."""
    for part in LINKED:
        (folder / part).symlink_to(ROOT / part)


def forget(manager=ManagerMixin) -> None:
    """mmengine keeps loggers, visualizers and scopes for a whole process."""
    manager._instance_dict.clear()
    for kind in manager.__subclasses__():
        forget(kind)


def stand_ins(text: str) -> None:
    """Makes the checkpoints and the drawn data that Python blocks name."""
    for path, config in CHECKPOINTS.items():
        if path in text:
            save_untrained(config, path)
    if 'mask_rcnn.onnx' in text:
        save_detector('mask_rcnn.onnx')
        Image.new('RGB', (60, 40)).save('photo.jpg')
    if 'data/scenes/coco' in text:
        draw(['coco', 'data/scenes/coco', *FEW])


def save_detector(path: str) -> None:
    """An ONNX file that finds the same thing in every image."""
    import onnx
    made = onnx.parser.parse_model('''<ir_version: 9, opset_import: ["": 18]>
        g (float[n,3,8,8] image) => (float[1,1,4] boxes, float[1,1] scores, int64[1,1] labels) {
            boxes = Constant <value = float[1,1,4] {1, 1, 5, 5}> ()
            scores = Constant <value = float[1,1] {0.9}> ()
            labels = Constant <value = int64[1,1] {0}> ()
        }''')
    onnx.helper.set_model_props(made, dict(
        task='"detector"', img_size='[8, 8]', mean='null', swaps_channels='false',
        names='["disc"]'))
    onnx.save(made, path)


def save_untrained(config: str, path: str) -> None:
    """A checkpoint as training writes it, of a model that has seen nothing."""
    cfg = Config.fromfile(config)
    forget()
    torch.manual_seed(0)
    DefaultScope.get_instance('untrained', scope_name=cfg.default_scope)
    with MODELS.switch_scope_and_registry(cfg.default_scope) as registry:
        model = registry.build(cfg.model)
    metainfo = dict(cfg.val_dataloader.dataset.get('metainfo') or dict(classes=list('abcdef')))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save(dict(state_dict=model.state_dict(), meta=dict(dataset_meta=metainfo)), path)
    forget()


def save_deit(path: str) -> None:
    """In the place of DeiT's weights."""
    torch.save(dict(model=timm.create_model('deit_tiny_patch16_224').state_dict()), path)


def without_network(monkeypatch) -> None:
    """timm's `pretrained=True` gives random weights."""
    create = timm.create_model

    def untrained(name, **arguments):
        arguments.pop('pretrained', None)
        return create(name, **arguments)
    monkeypatch.setattr(timm, 'create_model', untrained)
