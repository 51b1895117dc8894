"""Every backbone compiles as one graph, in evaluation and in a training step, and exports."""
import copy
import shutil

import pytest
import torch
from tiny_models import COMPACT, MODELS, build, flat, gap

from lape_mm import fold
from lape_mm.backbones import DeiT, ViTAdapter

LONG = pytest.mark.long
# MPVG fills most of the plan. LaPE has a class token, which cuts the last layer's queries
EVALUATED = [*((name, 'mpvg') for name in MODELS),
             *(pytest.param(name, 'lape', marks=LONG) for name in ('DeiT', 'CeiT', 'ViT-Lite'))]
TRAINED = [('DeiT', 'mpvg'), ('DeiT', 'lape'), ('CeiT', 'mpvg'), ('T2TViT', 'mpvg'),
           ('CCT', 'mpvg'), *(pytest.param(name, 'mpvg', marks=LONG)
                              for name in ('ViTAdapter', 'Swin'))]  # slow to trace
# aot_eager also traces the backward pass, but draws other numbers for dropout
BACKENDS = {'T2TViT': 'eager', 'CCT': 'eager'}


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def size_of(name):
    return (16, 24) if name in COMPACT else (32, 64)


def assert_same_gradients(model, expected, other, outputs):
    assert gap(outputs, expected) <= 1e-5
    for values in (expected, outputs):
        sum(output.square().mean() for output in flat(values)).backward()
    theirs = {name: value.grad for name, value in model.named_parameters() if value.requires_grad}
    scale = max(grad.abs().max() for grad in theirs.values() if grad is not None)
    for name, value in other.named_parameters():
        if (grad := theirs.get(name)) is None:
            assert value.grad is None, name
        else:
            assert (value.grad - grad).abs().max() <= 1e-5 * scale, name


@torch.no_grad()
@pytest.mark.parametrize('name, joining', EVALUATED)
def test_one_graph_in_evaluation(name, joining):
    torch.manual_seed(0)
    model, image = build(name, joining).eval(), torch.randn(2, 3, *size_of(name))
    compiled = torch.compile(model, fullgraph=True, backend='eager')
    assert gap(compiled(image), model(image)) <= 1e-5


@pytest.mark.parametrize('name, joining', TRAINED)
def test_one_graph_in_a_training_step(name, joining):
    torch.manual_seed(0)
    model, image = build(name, joining), torch.randn(2, 3, *size_of(name))
    other = copy.deepcopy(model)  # both move their running statistics
    compiled = torch.compile(other, fullgraph=True, backend=BACKENDS.get(name, 'aot_eager'))
    torch.manual_seed(1)
    expected = model(image)
    torch.manual_seed(1)
    assert_same_gradients(model, expected, other, compiled(image))


@torch.no_grad()
@pytest.mark.parametrize('joining', ['mpvg', pytest.param('lape', marks=LONG)])
def test_one_graph_for_images_of_any_size(joining):
    torch.manual_seed(0)
    model = DeiT(arch=dict(embed_dim=24, depth=2, num_heads=3), img_size=64,
                 joining=joining).eval()
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=count)
    for height, width in ((48, 80), (96, 32), (112, 128)):
        image = torch.randn(2, 3, height, width)
        assert gap(compiled(image), model(image)) <= 1e-5
    assert len(graphs) == 1


@torch.no_grad()
@pytest.mark.parametrize('name, joining', EVALUATED)
def test_the_folded_backbone_exports_with_a_dynamic_batch(name, joining):
    torch.manual_seed(0)
    model = fold(build(name, joining).eval(), size_of(name))
    program = torch.export.export(model, (torch.randn(2, 3, *size_of(name)),),
                                  dynamic_shapes=({0: torch.export.Dim('batch', max=1024)},),
                                  strict=False).module()
    for batch in (1, 3):
        image = torch.randn(batch, 3, *size_of(name))
        assert gap(program(image), model(image)) <= 1e-5


@torch.no_grad()
def test_an_export_samples_by_grid():
    model = ViTAdapter(arch=dict(embed_dim=24, depth=4, num_heads=3, conv_inplane=8,
                                 deform_num_heads=3), img_size=32).eval()
    image = torch.randn(2, 3, 64, 96)
    program = torch.export.export(model, (image,))
    names = [str(node.target) for node in program.graph.nodes]
    assert any('grid_sampler' in name for name in names)
    assert not any('embedding_bag' in name for name in names)
    assert gap(program.module()(image), model(image)) <= 1e-5


@LONG
@pytest.mark.skipif(not any(map(shutil.which, ('g++', 'clang++'))), reason='no C++ compiler')
def test_inductor(tmp_path, monkeypatch):
    # a cache of its own: an interrupted run leaves broken files in the shared one
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', str(tmp_path))
    torch.manual_seed(0)
    model = DeiT(arch=dict(embed_dim=24, depth=2, num_heads=3), img_size=32, joining='mpvg')
    image, other = torch.randn(2, 3, 32, 32), copy.deepcopy(model)
    compiled = torch.compile(other, fullgraph=True)
    assert_same_gradients(model, model(image), other, compiled(image))
