import pytest
import torch

pytest.importorskip('mmengine')
from lape_mm.backbones import DeiT, ViTAdapter  # noqa: E402
from lape_mm.runs.engine import (  # noqa: E402
    FreezingOptimWrapperConstructor,
    LayerDecayOptimWrapperConstructor,
)

ARCH = dict(embed_dim=24, depth=4, num_heads=3)
WRAPPER = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1., weight_decay=.1))


class Model(torch.nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = torch.nn.Linear(24, 3)


def settings(model, optimizer):
    """(learning rate, weight decay) by parameter."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: (group['lr'], group['weight_decay'])
            for group in optimizer.param_groups for parameter in group['params']}


def decayed(model, **paramwise):
    return settings(model, LayerDecayOptimWrapperConstructor(WRAPPER, paramwise)(model).optimizer)


def test_rates_follow_the_official_rule():
    model = Model(DeiT(arch=ARCH, img_size=32, joining='mpvg'))
    found = decayed(model, layer_decay_rate=.5)
    assert set(found) == {name for name, _ in model.named_parameters()}
    assert found['backbone.pos_embed'] == (.5 ** 5, 0.)
    assert found['backbone.patch_embed.proj.weight'] == (.5 ** 5, .1)
    assert found['backbone.blocks.0.attn.qkv.weight'] == (.5 ** 4, .1)
    assert found['backbone.blocks.3.mlp.fc1.bias'] == (.5, 0.)
    # a PE norm learns with its layer, the last one with the last norm
    assert found['backbone.blocks.1.pe_norm.weight'] == (.5 ** 3, 0.)
    assert found['backbone.last_pe_norm.weight'] == found['backbone.norm.weight'] == (1., 0.)
    assert found['head.weight'] == (1., .1) and found['head.bias'] == (1., 0.)
    faster = decayed(model, layer_decay_rate=.5, pe_norm_lr_mult=10)
    assert {name for name in found if faster[name] != found[name]} == {
        name for name in found if 'pe_norm' in name}
    assert faster['backbone.blocks.1.pe_norm.bias'] == (10 * .5 ** 3, 0.)


def test_adapter_parts_do_not_decay_with_depth():
    arch = dict(ARCH, conv_inplane=8, deform_num_heads=4)
    model = Model(ViTAdapter(arch=arch, img_size=64, joining='lape'))
    found = decayed(model, layer_decay_rate=.5)
    assert found['backbone.interactions.0.injector.attn.value_proj.weight'] == (1., .1)
    assert found['backbone.level_embed'] == (1., 0.)
    assert found['backbone.blocks.0.gamma1'] == (.5 ** 4, 0.)
    official = decayed(model, layer_decay_rate=.5, decay_embeddings=True)
    assert official['backbone.level_embed'] == (1., .1)
    assert official['backbone.pos_embed'] == (.5 ** 5, .1)


def test_defaults_frozen_backbones_and_unshared_tables():
    frozen = Model(DeiT(arch=ARCH, img_size=32, joining='unshare', frozen=True))
    assert decayed(frozen) == {'head.weight': (1., .1), 'head.bias': (1., 0.)}
    found = decayed(Model(DeiT(arch=ARCH, img_size=32, joining='unshare')))
    assert found['backbone.pos_embed1'] == (1., .1) and found['backbone.cls_token'] == (1., 0.)


@pytest.mark.parametrize('paramwise, said', [
    (dict(layer_decay=.9), "'layer_decay'.*layer_decay_rate"),
    (dict(layer_decay_rate=1.5), '1.5'), (dict(pe_norm_lr_mult=0), 'pe_norm_lr_mult=0'),
    (dict(layer_decay_rate=0), '0')])
def test_wrong_settings(paramwise, said):
    with pytest.raises(ValueError, match=said):
        LayerDecayOptimWrapperConstructor(WRAPPER, paramwise)


def test_a_detector_in_a_model_decays_like_the_detector():
    outer = torch.nn.Module()
    outer.detector = Model(DeiT(arch=ARCH))
    assert decayed(outer) == {f'detector.{name}': value
                              for name, value in decayed(outer.detector).items()}


def test_another_backbone_is_refused():
    with pytest.raises(TypeError, match='Linear'):
        decayed(Model(torch.nn.Linear(3, 3)))


def test_frozen_parameters_stay_out_of_the_optimizer():
    model = torch.nn.ModuleDict(dict(body=torch.nn.Linear(2, 2), head=torch.nn.Linear(2, 1)))
    model.body.norm = torch.nn.LayerNorm(2)
    wrapper = FreezingOptimWrapperConstructor(WRAPPER, dict(custom_keys={
        'body': dict(lr_mult=.01), 'body.norm': dict(lr_mult=0.)}))(model)
    rates = {name: rate for name, (rate, _) in settings(model, wrapper.optimizer).items()}
    assert rates == {'body.weight': .01, 'body.bias': .01, 'head.weight': 1., 'head.bias': 1.}
    model.head(model.body.norm(model.body(torch.ones(3, 2)))).sum().backward()
    assert model.body.norm.weight.grad is not None  # for DistributedDataParallel
    wrapper.step()
    assert torch.equal(model.body.norm.weight, torch.ones(2))
