import pytest
import torch

from lape_mm.backbones import DeiT, ViTAdapter
from lape_mm.engine import LayerDecayOptimWrapperConstructor

ARCH = dict(embed_dim=24, depth=4, num_heads=3)


class Model(torch.nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = torch.nn.Linear(24, 3)


def settings(model, **paramwise):
    wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1., weight_decay=.1))
    optimizer = LayerDecayOptimWrapperConstructor(wrapper, paramwise)(model).optimizer
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: (group['lr'], group['weight_decay'])
            for group in optimizer.param_groups for parameter in group['params']}


def test_rates_follow_the_official_rule():
    model = Model(DeiT(arch=ARCH, img_size=32, joining='mpvg'))
    found = settings(model, layer_decay_rate=.5)
    assert set(found) == {name for name, _ in model.named_parameters()}
    assert found['backbone.pos_embed'] == (.5 ** 5, 0.)
    assert found['backbone.patch_embed.proj.weight'] == (.5 ** 5, .1)
    assert found['backbone.blocks.0.attn.qkv.weight'] == (.5 ** 4, .1)
    assert found['backbone.blocks.3.mlp.fc1.bias'] == (.5, 0.)
    # a layer's PE norm learns with its layer, the last one with the last norm
    assert found['backbone.blocks.1.pe_norm.weight'] == (.5 ** 3, 0.)
    assert found['backbone.last_pe_norm.weight'] == found['backbone.norm.weight'] == (1., 0.)
    assert found['head.weight'] == (1., .1) and found['head.bias'] == (1., 0.)


def test_adapter_parts_do_not_decay_with_depth():
    arch = dict(ARCH, conv_inplane=8, deform_num_heads=4)
    model = Model(ViTAdapter(arch=arch, img_size=64, joining='lape'))
    found = settings(model, layer_decay_rate=.5)
    assert found['backbone.interactions.0.injector.attn.value_proj.weight'] == (1., .1)
    assert found['backbone.level_embed'] == (1., 0.)
    assert found['backbone.blocks.0.gamma1'] == (.5 ** 4, 0.)
    official = settings(model, layer_decay_rate=.5, decay_embeddings=True)
    assert official['backbone.level_embed'] == (1., .1)
    assert official['backbone.pos_embed'] == (.5 ** 5, .1)


def test_no_decay_by_default_and_frozen_parts_are_left_out():
    model = Model(DeiT(arch=ARCH, img_size=32, joining='unshare', frozen=True))
    assert settings(model) == {'head.weight': (1., .1), 'head.bias': (1., 0.)}


def test_unshared_tables_decay_as_officially():
    found = settings(Model(DeiT(arch=ARCH, img_size=32, joining='unshare')))
    assert found['backbone.pos_embed1'] == (1., .1) and found['backbone.cls_token'] == (1., 0.)


@pytest.mark.parametrize('paramwise, words', [
    (dict(layer_decay=.9), ["'layer_decay'", 'layer_decay_rate']),
    (dict(layer_decay_rate=1.5), ['1.5']), (dict(layer_decay_rate=0), ['0'])])
def test_errors(paramwise, words):
    with pytest.raises(ValueError) as error:
        settings(Model(DeiT(arch=ARCH, img_size=32)), **paramwise)
    assert all(word in str(error.value) for word in words)


def test_another_backbone_is_refused():
    with pytest.raises(TypeError, match='Linear'):
        settings(Model(torch.nn.Linear(3, 3)))
