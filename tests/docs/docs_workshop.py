"""A reader's clone in a temporary folder, with small stand-ins for what pages take for granted."""
from pathlib import Path

import timm
import torch
from docs_pages import ROOT
from mmengine.config import Config
from PIL import Image
from quickstarts import save_untrained

from lape_mm.datasets.scenes import main as draw

LINKED = ('configs', 'tools', 'benchmarks', 'docs', 'lape_mm')
FEW = ['--num-train', '12', '--num-val', '6']
# checkpoint that a page's Python reads -> the config whose untrained model stands in for it
CHECKPOINTS = {
    'work_dirs/mask_rcnn/epoch_6.pth': 'configs/quickstart/mask_rcnn.py',
}


def link(folder: Path) -> None:
    """The repository's folders, as in the root of a clone."""
    for part in LINKED:
        (folder / part).symlink_to(ROOT / part)


def stand_ins(text: str) -> None:
    """Makes the checkpoints and the drawn data that Python blocks name."""
    for path, config in CHECKPOINTS.items():
        if path in text:
            save_untrained(Config.fromfile(config), path)
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
