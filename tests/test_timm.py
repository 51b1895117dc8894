"""timm's public procedure for its own models, over ours: forward, backward, configs, features."""
import copy
import math

import pytest
import timm
import torch
from timm.models import group_parameters, save_for_hf
from timm.models._hub import has_hf_hub

import lape_mm.timm as ours
from lape_mm import fold
from lape_mm.checkpoints.files import CheckpointError

NAMES = [f'lape_mm_{name}' for name in (
    'deit_tiny_patch16_224.lape', 'deit_tiny_patch16_224.mpvg',
    'swin_tiny_patch4_window7_224.mpvg', 'ceit_tiny_patch16_224.lape',
    'ceit_tiny_patch16_224.mpvg', 't2t_vit_7.pvg', 'vit_lite_7_4_32.mpvg', 'cct_7_3x1_32.mpvg')]
LITTLE = dict(embed_dim=24, depth=3, num_heads=3)


def size_of(name):
    return 32 if '_32.' in name else 64


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def little(joining='mpvg', **kwargs):
    return timm.create_model(f'lape_mm_deit_tiny_patch16_224.{joining}',
                             **{'arch': LITTLE, 'img_size': 64, 'num_classes': 7, **kwargs})


def test_every_joining_is_a_tag():
    for name, architecture in ours.ARCHITECTURES.items():
        for joining in architecture.joinings:
            cfg = timm.models.get_pretrained_cfg(f'{name}.{joining}')
            assert (cfg.architecture, cfg.tag) == (name, joining)
            assert not timm.models.is_model_pretrained(f'{name}.{joining}')
        assert f'{name}.mpvg' in timm.list_models(f'{name}.*', include_tags=True)


@pytest.fixture(scope='module', params=NAMES)
def named_model(request):
    torch.manual_seed(0)
    name = request.param
    model = timm.create_model(name, num_classes=9, img_size=size_of(name)).eval()
    return name, model, torch.rand(2, 3, size_of(name), size_of(name))


def test_forward_backward_and_default_cfg(named_model):
    name, model, img = named_model
    logits = model(img)
    assert logits.shape == (2, 9) and logits.isfinite().all()
    logits.square().mean().backward()
    assert not [key for key, value in model.named_parameters()
                if value.requires_grad and value.grad is None]
    model.zero_grad()

    cfg, state = model.default_cfg, model.state_dict()
    assert cfg is model.pretrained_cfg and cfg['tag'] == name.split('.')[1]
    assert cfg['classifier'] + '.weight' in state
    assert cfg['first_conv'] is None or cfg['first_conv'] + '.weight' in state
    assert cfg['num_classes'] == (100 if cfg['input_size'][1] == 32 else 1000)
    assert ours.ARCHITECTURES[name.split('.')[0]].cls.__name__ == type(model).__name__


def test_features_head_and_reset(named_model):
    _, model, img = named_model
    model = copy.deepcopy(model)
    with torch.no_grad():
        features = model.forward_features(img)
        pooled = model.forward_head(features, pre_logits=True)
        assert features.shape[-1] == model.num_features == model.head_hidden_size
        assert pooled.shape == (2, model.num_features)
        expected = model(img)
        torch.testing.assert_close(model.forward_head(features), expected, rtol=1e-4, atol=1e-5)
        assert model.get_classifier() is model.head and model.head.out_features == 9
        model.reset_classifier(0)
        assert model.num_classes == 0
        torch.testing.assert_close(model(img), pooled, rtol=1e-4, atol=1e-5)
        model.reset_classifier(0, '')
        assert model(img).shape == features.shape
        model.reset_classifier(5, model.own_pool)
        assert model(img).shape == (2, 5)
    with pytest.raises(ValueError, match='global_pool'):
        model.reset_classifier(5, 'max')


def test_intermediates(named_model):
    name, model, img = named_model
    with torch.no_grad():
        final, maps = model.forward_intermediates(img)
        torch.testing.assert_close(final, model.forward_features(img))
        assert len(maps) == len(model.feature_info)
        for info, value in zip(model.feature_info, maps):
            side = math.ceil(size_of(name) / info['reduction'])
            assert value.shape == (2, info['num_chs'], side, side)
        two = model.forward_intermediates(img, indices=[0, 1], intermediates_only=True,
                                          stop_early=True, output_fmt='NLC')
        for value, early in zip(maps, two):
            torch.testing.assert_close(early, value.flatten(2).transpose(1, 2))
        last, = model.forward_intermediates(img, indices=1, norm=True, intermediates_only=True)
        if 'ceit' not in name:  # whose last norm stands behind the layer-wise attention
            tokens = final.flatten(1, -2) if final.ndim == 4 else final[:, model.num_prefix_tokens:]
            torch.testing.assert_close(last.flatten(2).transpose(1, 2), tokens)


@pytest.mark.parametrize('name', [*NAMES, 'lape_mm_vit_adapter_tiny_patch16.mpvg'])
def test_features_only(name):
    model = timm.create_model(name, img_size=size_of(name), features_only=True)
    channels, reductions = model.feature_info.channels(), model.feature_info.reduction()
    assert len(channels) >= 3
    outputs = model(torch.rand(1, 3, 48, size_of(name)))
    for value, width, reduction in zip(outputs, channels, reductions, strict=True):
        sides = (math.ceil(side / reduction) for side in (48, size_of(name)))
        assert value.shape == (1, width, *sides)
    sum(value.mean() for value in outputs).backward()
    assert not [key for key, value in model.named_parameters()
                if value.requires_grad and value.grad is None]


def test_features_of_early_layers_are_those_of_the_whole_model():
    whole = little().eval()
    part = little(features_only=True, out_indices=(0, 1)).eval()
    part.model.load_state_dict(whole.state_dict(), strict=False)
    assert not any(key.startswith(('model.blocks.2', 'model.head', 'model.norm', 'model.last_pe'))
                   for key in part.state_dict())
    img = torch.rand(1, 3, 64, 64)
    maps = whole.forward_intermediates(img, indices=[0, 1], intermediates_only=True)
    for value, expected in zip(part(img), maps, strict=True):
        torch.testing.assert_close(value, expected)


def test_a_pyramid_has_no_classifier():
    with pytest.raises(ValueError, match='features_only=True'):
        timm.create_model('lape_mm_vit_adapter_tiny_patch16.lape')


@pytest.mark.parametrize('name', [NAMES[0], NAMES[2], NAMES[5]])
def test_set_input_size_resizes_pe_as_a_forward_does(name):
    model, img = timm.create_model(name, num_classes=3).eval(), torch.rand(1, 3, 96, 64)
    trained = {key for key, value in model.named_parameters() if value.requires_grad}
    with torch.no_grad():
        expected = model(img)
        model.set_input_size((96, 64))
        torch.testing.assert_close(model(img), expected)
    assert model.grid == model.grid_of((96, 64))
    assert {key for key, value in model.named_parameters() if value.requires_grad} == trained
    with pytest.raises(ValueError, match='patch_size'):
        model.set_input_size(patch_size=8)


def test_groups_follow_the_depth(named_model):
    name, model, _ = named_model
    for coarse in (False, True):
        groups = group_parameters(model, model.group_matcher(coarse=coarse))
        first = next(key for key, names in groups.items() if 'pos_embed' in names)
        last = next(key for key, names in groups.items() if 'norm.weight' in names)
        assert first == 0 and last >= max(key for key in groups if key != float('inf')) - 1
        assert sorted(sum(groups.values(), [])) == sorted(dict(model.named_parameters()))
        assert all(key.startswith('head.') for key in groups.get(float('inf'), []))
    blocks = 12 if 'deit' in name or 'ceit' in name or 'swin' in name else 7
    fine = group_parameters(model, model.group_matcher())
    merging = 3 if 'swin' in name else 0
    assert len({key for key in fine}) in (blocks + merging + 2, blocks + merging + 3)
    assert model.no_weight_decay() <= {key for key, _ in model.named_parameters()} | {'cls_token'}


def test_arguments_of_create_model():
    model = timm.create_model('lape_mm_deit_tiny_patch16_224', joining=dict(last=0), arch=LITTLE,
                              in_chans=1, num_classes=3, drop_rate=.5, drop_path_rate=.2)
    model.set_grad_checkpointing()
    assert model.with_cp
    assert model.joining.last == 0 and model.head_drop.p == .5 and model.drop_path_rates[-1] == .2
    assert model.eval()(torch.rand(1, 1, 50, 70)).shape == (1, 3)
    with pytest.raises(RuntimeError, match='No pretrained weights'):
        little(pretrained=True)


@pytest.fixture
def deit_file(tmp_path):
    """A file as DeiT's trainer writes it, of timm's own model at 224 pixels."""
    from argparse import Namespace
    theirs = timm.create_model('deit_tiny_patch16_224', embed_dim=24, depth=3, num_heads=3).eval()
    path = tmp_path / 'deit.pth'
    torch.save({'model': theirs.state_dict(), 'epoch': 3, 'args': Namespace(lr=1.)}, path)
    return theirs, str(path)


def test_load_pretrained_takes_deits_weights(deit_file):
    theirs, path = deit_file
    model = little('default', num_classes=1000, img_size=224).eval()
    model.load_pretrained(path)
    img = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(model(img), theirs(img), rtol=1e-4, atol=1e-5)
    # on another grid, and with what the joining adds missing
    little('default', num_classes=1000, img_size=96).load_pretrained(path)
    with pytest.raises(CheckpointError, match='deit.pth.*pe_norm'):
        little('lape', num_classes=1000).load_pretrained(path)


def test_weights_of_another_architecture_are_refused(tmp_path):
    path = str(tmp_path / 'scaled.pth')
    torch.save(timm.models.VisionTransformer(
        embed_dim=24, depth=3, num_heads=3, init_values=.1).state_dict(), path)
    with pytest.raises(CheckpointError, match='6 of its weights.*blocks.0.ls1.gamma'):
        little('default').load_pretrained(path)
    with pytest.raises(CheckpointError, match='6 of its weights.*blocks.0.ls1.gamma'):
        little('default', pretrained=True, pretrained_cfg_overlay=dict(file=path))


def test_a_distillation_token_is_refused():
    with pytest.raises(ValueError, match='distilled=True.*DistilledClassifier'):
        little('lape', distilled=True)
    assert little('lape', distilled=False).dist_token is None


def test_a_file_as_pretrained_weights(deit_file):
    theirs, path = deit_file
    model = timm.create_model('lape_mm_deit_tiny_patch16_224.default', arch=LITTLE, num_classes=4,
                              img_size=96, in_chans=1, pretrained=True,
                              pretrained_cfg_overlay=dict(file=path))
    assert model.head.out_features == 4
    torch.testing.assert_close(model.blocks[1].attn.qkv.weight, theirs.blocks[1].attn.qkv.weight)
    assert model.pos_embed.shape == (1, 37, 24) and model.patch_embed.proj.in_channels == 1


@pytest.mark.skipif(not has_hf_hub(), reason='this timm does not know this huggingface_hub')
def test_saved_as_timm_saves_and_created_again(tmp_path):
    model = little('pvg').eval()
    save_for_hf(model, tmp_path)
    again = timm.create_model(f'local-dir:{tmp_path}', pretrained=True).eval()
    assert again.pretrained_cfg['tag'] == 'pvg'
    img = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(img), again(img))


def test_a_classifier_folds():
    model = little().eval()
    img = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        folded = fold(model, 64)
        torch.testing.assert_close(folded(img), model(img))
        torch.testing.assert_close(folded.forward_head(folded.forward_features(img)), model(img))
