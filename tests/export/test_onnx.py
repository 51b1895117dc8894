"""A file is written only if onnxruntime reproduces PyTorch's outputs."""
import json
import os

import pytest
import torch

for module in ('onnx', 'onnxruntime', 'onnxscript', 'mmengine', 'mmpretrain', 'mmseg', 'mmdet'):
    pytest.importorskip(module, reason=f'{module} is not installed')

from pathlib import Path  # noqa: E402

from mmengine.config import Config  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402

from lape_mm.export import onnx as export  # noqa: E402
from lape_mm.export.onnx import Graph, quantise  # noqa: E402

ROOT = Path(__file__).parents[2]
NORMALISED = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
SIZES = dict(embed_dim=24, depth=2, num_heads=3)
DEIT = dict(type='lape_mm.DeiT', arch=SIZES, img_size=32, joining='mpvg')
ADAPTER = dict(type='lape_mm.ViTAdapter', img_size=32, joining='lape',
               arch=dict(SIZES, depth=4, conv_inplane=8, deform_num_heads=3))
SEGMENTER = dict(data_preprocessor=dict(type='SegDataPreProcessor', bgr_to_rgb=True, **NORMALISED),
                 type='EncoderDecoder', test_cfg=dict(mode='whole'))
CONFIGS = {
    'classifier': ('mmpretrain', dict(
        type='ImageClassifier', backbone=DEIT,
        data_preprocessor=dict(to_rgb=True, **NORMALISED),
        head=dict(type='LinearClsHead', num_classes=5, in_channels=24))),
    'distilled': ('mmpretrain', dict(
        type='lape_mm.DistilledClassifier', backbone=dict(DEIT, distilled=True, joining='lape'),
        data_preprocessor=dict(to_rgb=True, **NORMALISED),
        head=dict(type='lape_mm.DistilledClsHead', num_classes=5, in_channels=24))),
    'segmenter': ('mmseg', dict(
        SEGMENTER, backbone=dict(DEIT, out_indices=(1,), joining='pvg'),
        decode_head=dict(type='SegmenterMaskTransformerHead', in_channels=24, channels=24,
                         embed_dims=24, num_heads=3, num_layers=1, num_classes=5))),
    'upernet': ('mmseg', dict(
        SEGMENTER, backbone=dict(ADAPTER, variant='segmentation'),
        decode_head=dict(type='UPerHead', in_channels=[24] * 4, in_index=[0, 1, 2, 3],
                         channels=8, num_classes=5, norm_cfg=dict(type='BN')))),
    'mask_rcnn': ('mmdet', None),
}


def build(name):
    torch.manual_seed(0)
    scope, config = CONFIGS[name]
    init_default_scope(scope)
    if name == 'mask_rcnn':
        config = Config.fromfile(ROOT / 'configs/quickstart/mask_rcnn.py').model
        config.backbone, config.neck.in_channels = ADAPTER, [24] * 4
    return MODELS.build(config)


def images(side=32, count=2):
    torch.manual_seed(1)
    return list(torch.randint(0, 256, (count, 3, side, side)))


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[] if name in ('classifier', 'segmenter') else [pytest.mark.long])
    for name in CONFIGS])
def test_parity(name, tmp_path):
    model = build(name)  # UperNet's pools do not divide its grids
    if name == 'mask_rcnn':  # random boxes have ties; more than 20 enlarges rounding beyond 1e-5
        model.roi_head.bbox_head.fc_cls.weight.data *= 20
    out = tmp_path / 'folder' / 'model.onnx'
    difference = export.export_onnx(model, images(), out, notes={'joining': 'mpvg'})
    assert difference <= 1e-5
    assert os.listdir(out.parent) == ['model.onnx']
    content = out.read_bytes()
    graph = Graph(model, (32, 32)).eval()
    for batch in (2, 5):  # neither is one that the exporter compared
        x = torch.stack(images(count=batch)).float()
        with torch.no_grad():
            expected = graph(x)
        ours = export.run_onnx(content, x)
        assert len(ours) == len(expected) == (4 if name == 'mask_rcnn' else 1)
        for a, b in zip(ours, expected):
            assert a.shape == b.shape and len(a) == batch
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * b.abs().max().item())
        if name in ('upernet', 'segmenter'):
            assert ours[0].shape == (batch, 5, 32, 32)


def test_normalisation_is_that_of_the_toolboxes():
    for name in CONFIGS:
        model = build(name)
        seen = []
        model.backbone.register_forward_pre_hook(
            lambda module, args, seen=seen: seen.append(args[0]))
        raw = images()
        with torch.no_grad():
            Graph(model.eval(), (32, 32)).eval()(torch.stack(raw).float())
        expected = model.data_preprocessor.eval()(dict(inputs=raw))['inputs']
        torch.testing.assert_close(seen[-1], expected)


def test_metadata_and_names(tmp_path):
    import onnxruntime
    export.export_onnx(build('classifier'), images(), tmp_path / 'm.onnx',
                       notes={'joining': 'mpvg'})
    session = onnxruntime.InferenceSession(tmp_path / 'm.onnx')
    notes = {key: json.loads(value)
             for key, value in session.get_modelmeta().custom_metadata_map.items()}
    means = notes.pop('mean') + notes.pop('std')
    assert means == pytest.approx(NORMALISED['mean'] + NORMALISED['std'])
    assert notes == dict(task='classifier', img_size=[32, 32], swaps_channels=True, folded=True,
                         int8=None, joining='mpvg')
    assert [entry.name for entry in session.get_inputs()] == ['image']
    assert [entry.name for entry in session.get_outputs()] == ['logits']
    assert isinstance(session.get_inputs()[0].shape[0], str)


@pytest.mark.parametrize('how, product', [
    ('dynamic', 'MatMulInteger'), ('static', 'DequantizeLinear')])
def test_int8(how, product, tmp_path):
    import onnx
    plain, small = tmp_path / 'plain.onnx', tmp_path / 'small.onnx'
    export.export_onnx(build('classifier'), images(), plain)
    content = quantise(plain.read_bytes(), how, images())
    small.write_bytes(content)
    graph = onnx.load(small).graph
    makers = {output: node.op_type for node in graph.node for output in node.output}
    assert product in makers.values()
    for node in graph.node:
        if node.op_type in ('Softmax', 'LayerNormalization'):
            assert {makers.get(name) for name in node.input}.isdisjoint({'DequantizeLinear'})
    assert onnx.load(small).metadata_props == onnx.load(plain).metadata_props
    x = torch.stack(images(count=4)).float()
    before, = export.run_onnx(plain.read_bytes(), x)
    after, = export.run_onnx(content, x)
    assert 0 < (before - after).abs().max() < .05 * before.abs().max()


class WrongOnceExported(torch.nn.Module):
    """A head that the exporter sees with other outputs."""

    def __init__(self, head, wrong):
        super().__init__()
        self.head, self.wrong = head, wrong

    def forward(self, feats):
        scores = self.head(feats)
        return self.wrong(scores) if torch.compiler.is_exporting() else scores


@pytest.mark.parametrize('wrong', [
    lambda x: x + 2e-4 * x.abs().max(), lambda x: x * float('nan'), lambda x: x[:, :1]],
    ids=['shifted', 'nan', 'other shape'])
def test_nothing_is_written_if_the_outputs_differ(tmp_path, wrong):
    model = build('classifier')
    model.head = WrongOnceExported(model.head, wrong)
    with pytest.raises(ValueError, match='differ by .* nothing was written') as error:
        export.export_onnx(model, images(), tmp_path / 'm.onnx')
    assert '\n' not in str(error.value) and not os.listdir(tmp_path)


def test_mistakes(tmp_path):
    out = tmp_path / 'm.onnx'
    with pytest.raises(ValueError, match='no classifier, segmenter or detector'):
        export.export_onnx(torch.nn.Linear(2, 2), images(), out)
    model = build('classifier')
    model.head = WrongOnceExported(model.head, lambda x: x.unknown())
    with pytest.raises(ValueError, match='cannot export ImageClassifier') as error:
        export.export_onnx(model, images(), out)
    assert '\n' not in str(error.value) and not os.listdir(tmp_path)
