"""lape_mm.runtime against PyTorch, on ONNX files of one operator; it imports no torch."""
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

onnx = pytest.importorskip('onnx')
pytest.importorskip('onnxruntime')
from onnx import TensorProto, helper  # noqa: E402
from PIL import Image  # noqa: E402

from lape_mm.runtime import Model, paste, stretch  # noqa: E402


def model(task, size, drop=(), **notes):
    """Its logits are the image's channels (segmenter), or their mean."""
    operator = 'Identity' if task == 'segmenter' else 'ReduceMean'
    more = {} if task == 'segmenter' else dict(keepdims=0)
    inputs = ['image'] if task == 'segmenter' else ['image', 'axes']
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, ['logits'], **more)], 'graph',
        [helper.make_tensor_value_info('image', TensorProto.FLOAT, ['n', 3, *size])],
        [helper.make_tensor_value_info('logits', TensorProto.FLOAT, None)],
        [helper.make_tensor('axes', TensorProto.INT64, [2], [2, 3])][:len(inputs) - 1])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    for key, value in dict(dict(task=task, img_size=size, mean=None, swaps_channels=False),
                           **notes).items():
        if key in drop:
            continue
        entry = made.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value)
    return Model(made.SerializeToString())


def noise(height, width):
    """A smooth RGB picture."""
    small = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height)))


def test_it_imports_no_torch():
    code = ('import sys, lape_mm.runtime; assert not {"torch", "mmengine", "timm", "cv2"} '
            '& set(sys.modules), sys.modules.keys()')
    subprocess.run([sys.executable, '-c', code], check=True)


def test_label_maps_are_those_of_the_given_picture():
    picture = noise(48, 80)  # windows overlap, the last ends at the edge
    truth = picture[..., ::-1].argmax(axis=2)
    found = model('segmenter', (32, 32), stride=(20, 20), names='abc')(picture)
    assert (found.label_map == truth).all() and found.names == ('a', 'b', 'c')
    assert (model('segmenter', (64, 96))(picture).label_map == truth).all()  # padded
    assert (model('segmenter', (32, 32), channels='RGB')(picture).label_map
            == picture.argmax(axis=2)).all()
    portrait = model('segmenter', (32, 32), scale=(24, 200), keep_ratio=True)(noise(80, 48))
    assert portrait.label_map.shape == (80, 48)


def test_classes_are_those_of_the_middle():
    picture = np.zeros((64, 128, 3), np.uint8)
    picture[16:48, 48:80] = 100, 50, 0
    found = model('classifier', (16, 16), keep_ratio=True, crop_pct=.5, channels='RGB')(picture)
    assert found.labels.tolist() == [0, 1, 2] and found.scores[0] == pytest.approx(1)


def test_pictures(tmp_path):
    runner, picture = model('segmenter', (32, 48), channels='RGB'), noise(32, 48)
    truth = picture.argmax(axis=2)
    path = tmp_path / 'turned.png'
    turned = Image.fromarray(picture).transpose(Image.Transpose.ROTATE_90)
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    turned.save(path, exif=exif)
    for given in (picture, Image.fromarray(picture).convert('RGBA'), path, str(path)):
        assert (runner(given).label_map == truth).all()
    grey = Image.fromarray(picture[..., 0].astype(np.uint16) << 8)
    assert (runner(grey).label_map == 0).all()
    path.write_text('text')
    for wrong, said in [(path, 'turned.png: cannot be read as an image'),
                        (picture / 255, r'\(32, 48, 3\) of float64'),
                        (picture[..., 0], 'expected an RGB array')]:
        with pytest.raises(ValueError, match=said):
            runner(wrong)
    with pytest.raises(ValueError, match='expected a file that tools/export_onnx.py'):
        model('segmenter', (8, 8), drop=['task'])


def test_interpolation():
    plane = torch.rand(7, 9)
    for size in ((20, 30), (5, 4), (7, 18)):
        expected = F.interpolate(plane[None, None], size, mode='bilinear')[0, 0]
        np.testing.assert_allclose(stretch(Image.fromarray(plane.numpy()), size), expected,
                                   atol=1e-5)
    masks, boxes = torch.rand(4, 28, 28), torch.tensor([
        [3.2, 4.7, 30.1, 22.9], [0., 0., 40., 30.], [38.5, 0., 40., 2.], [10., 10., 10.4, 30.]])
    rows, columns = torch.arange(30) + .5, torch.arange(40) + .5
    low, sides = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
    x = (columns - low[:, :1]) / sides[:, :1] * 2 - 1
    y = (rows - low[:, 1:]) / sides[:, 1:] * 2 - 1
    grid = torch.stack([x[:, None].expand(-1, 30, -1), y[:, :, None].expand(-1, -1, 40)], -1)
    expected = F.grid_sample(masks[:, None], grid, align_corners=False)[:, 0] >= .5
    assert (paste(masks.numpy(), boxes.numpy(), (30, 40)) == expected.numpy()).mean() > .999
