"""Official weights in files as their releases write them: all of each is found."""
from pathlib import Path

import pytest
import torch

from lape_mm import backbones
from lape_mm.checkpoints import load_backbone, read_checkpoint

GOLDENS = Path(__file__).parents[1] / 'data/goldens'
WRAPPERS = {
    'bare': lambda state: state,
    'model': lambda state: {'model': state, 'optimizer': {'state': {}}, 'epoch': 299},
    'state_dict': lambda state: {'state_dict': state, 'epoch': 3},
    'state_dict_ema with module.': lambda state: {
        'state_dict_ema': {f'module.{key}': value for key, value in state.items()}},
    'model with module.': lambda state: {
        'model': {f'module.{key}': value for key, value in state.items()}},
}


@pytest.mark.parametrize('wrapper', WRAPPERS)
def test_everything_is_found(wrapper, tmp_path):
    case = read_checkpoint(GOLDENS / 'lape_learnable_LaPE.pt')
    config = case['config']
    model = backbones.DeiT(
        arch={key: config[key] for key in ('embed_dim', 'depth', 'num_heads')},
        img_size=config['img_size'], patch_size=config['patch_size'], joining='lape')
    torch.save(WRAPPERS[wrapper](case['state_dict']), tmp_path / 'official.pth')
    report = load_backbone(model, str(tmp_path / 'official.pth'), min_share=1.)
    assert report.share == 1. and not report.missing and not report.new, report
    assert set(report.unused) == {'head.weight', 'head.bias'}


def test_an_mmdet_style_adapter(tmp_path):
    case = read_checkpoint(GOLDENS / 'vit_adapter_det_window.pt')
    config, state = case['config'], case['state_dict']
    model = backbones.ViTAdapter(
        arch=dict(embed_dim=config['embed_dim'], depth=config['depth'],
                  num_heads=config['num_heads'], conv_inplane=config['conv_inplane'],
                  deform_num_heads=config['deform_num_heads'],
                  deform_ratio=config['deform_ratio']),
        img_size=config['pretrain_size'], interaction_indexes=config['interaction_indexes'])
    torch.save({'meta': {}, 'state_dict': {
        **{f'backbone.{key}': value for key, value in state.items()},
        'neck.fpn_convs.0.conv.weight': torch.ones(1)}}, tmp_path / 'detector.pth')
    report = load_backbone(model, str(tmp_path / 'detector.pth'), min_share=1.)
    assert not report.missing and not report.new, report
    assert list(report.unused) == ['neck.fpn_convs.0.conv.weight']


def test_timms_swin_merges_at_the_start_of_a_stage(tmp_path):
    timm = pytest.importorskip('timm')
    theirs = timm.create_model('swin_tiny_patch4_window7_224', img_size=32, window_size=2,
                               embed_dim=8, num_heads=(1, 2, 4, 8), depths=(2, 2, 2, 2)).eval()
    torch.save(theirs.state_dict(), tmp_path / 'timm.pth')
    ours = backbones.Swin(arch=dict(embed_dim=8, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8),
                                    window_size=2), img_size=32, position=None).eval()
    report = load_backbone(ours, str(tmp_path / 'timm.pth'), min_share=1.)
    assert not report.missing, report
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(image)[0], theirs.forward_head(
            theirs.forward_features(image), pre_logits=True), rtol=0, atol=1e-5)


def test_the_average_of_the_weights_comes_first(tmp_path):
    model = backbones.DeiT(arch=dict(embed_dim=24, depth=2, num_heads=3), img_size=32)
    average = model.state_dict()
    torch.save({'state_dict': {key: torch.zeros_like(value) for key, value in average.items()},
                'state_dict_ema': average}, tmp_path / 'both.pth')
    other = backbones.DeiT(arch=dict(embed_dim=24, depth=2, num_heads=3), img_size=32)
    load_backbone(other, str(tmp_path / 'both.pth'), min_share=1.)
    assert torch.equal(other.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight)
