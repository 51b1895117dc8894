"""Outputs of the official implementations, and of the equations in float64, reproduced.

Every case of the folder is a file with the settings, official weights, input and output of a
model. LAPE_GOLDENS names another folder. A case that cannot be run fails.
"""
import os
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lape_mm.backbones import CeiT, CompactTransformer, DeiT, Swin, T2TViT, ViTAdapter
from lape_mm.checkpoints import load_backbone, read_checkpoint, segmenter_state
from lape_mm.requirements import install_hint, missing

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get('LAPE_GOLDENS') or HERE / 'data/goldens')
# mmcv_ops.pt holds mmcv's operators, and no model
CASES = sorted(path for path in FOLDER.glob('*.pt') if path.stem != 'mmcv_ops')
POSITIONS = {'learnable': 'learnable', '1D_sin': 'sincos_1d', '2D_sin': 'sincos_2d',
             '2D_RPE': 'relative'}
JOININGS = {'basic': 'default', 'LN': 'lape', 'LaPE': 'lape', 'share': 'share',
            'unshare': 'unshare'}


def load_into(model, case, tmp_path, layer_name='blocks.{}'.format, **wrapped):
    """The case's weights through a file, as a user would have them, all of them found.

    ``layer_name`` names the l-th layer: where the PE norms go that a case holds by number.
    """
    state = {key: value.float() if value.is_floating_point() else value
             for key, value in (wrapped or case['state_dict']).items()}
    for norm in case.get('pe_norms') or ():
        for part in ('weight', 'bias'):
            state[f'{layer_name(norm["layer"])}.pe_norm.{part}'] = norm[part]
    for part, value in (case.get('last_pe_norm') or {}).items():
        if isinstance(value, torch.Tensor):
            state[f'last_pe_norm.{part}'] = value
    torch.save({'model': state}, tmp_path / 'case.pth')
    report = load_backbone(model, tmp_path / 'case.pth', min_share=1., source_grid=model.grid)
    assert not report.missing and not report.new, report
    classifiers = ('head', 'classifier.fc', 'cls_token', 'pos_embed[:, 0:1]')
    assert all(key.startswith(classifiers) for key in report.unused), report.unused
    return report


def linear(name, x, state):
    return F.linear(x, state[f'{name}.weight'].to(x), state[f'{name}.bias'].to(x))


def logits(model, case, state):
    pooled, = model(case['input'].to(next(model.parameters()).dtype))
    return linear('head', pooled, state)


def sizes(config):
    return {key: config[key] for key in ('embed_dim', 'depth', 'num_heads', 'mlp_ratio',
                                         'qkv_bias')}


def run_lape(case, tmp_path, dtype):
    config, state = case['config'], case['state_dict']
    model = DeiT(arch=sizes(config), img_size=config['img_size'], patch_size=config['patch_size'],
                 position=POSITIONS[config['pe']], joining=JOININGS[config['join_type']],
                 distilled='dist_token' in state, norm_eps=config['norm_eps'])
    load_into(model, case, tmp_path)
    model = model.eval().to(dtype)
    if model.dist_token is None:
        return logits(model, case, state)
    (pooled, dist), = model(case['input'].to(dtype))
    return (linear('head', pooled, state) + linear('head_dist', dist, state)) / 2


def run_mpvg_ref(case, tmp_path, dtype):
    config = dict(case['config'])
    joining = config['method']
    changes = {'layer0': ('first_layer', lambda value: 0 if value else 1),
               'x_plus_pe': ('add_to_input', bool), 'hierarchical': ('hierarchical', bool),
               'last_pe_source': ('last', int)}
    given = {setting: convert(config[key]) for key, (setting, convert) in changes.items()
             if key in config}
    layerwise = any('blocks.1.pe_norm' in key for key in case['state_dict'])
    if given or not layerwise and 'last_pe_norm.weight' in case['state_dict'] \
            or joining in ('pvg', 'mpvg') and config['class_token']:
        joining = {'add_to_input': True, 'first_layer': 1 if layerwise else None,
                   'hierarchical': True,
                   'last': 0 if 'last_pe_norm.weight' in case['state_dict'] else None, **given}
    model = DeiT(arch=sizes(config), img_size=config['img_size'], joining=joining,
                 patch_size=config['patch_size'], class_token=config['class_token'],
                 norm_eps=config['norm_eps'])
    load_into(model, case, tmp_path)
    return logits(model.eval().to(dtype), case, case['state_dict'])


def run_vit_adapter(case, tmp_path, dtype):
    config = case['config']
    assert config.get('n_points', 4) == 4 and config['patch_size'] == 16
    joining = config.get('method', 'default')
    table = case['state_dict']['pos_embed'].shape[1]
    grid = config['pretrain_size'] // 16
    windows = [size if used else None
               for used, size in zip(config['window_attn'], config['window_size'])]
    model = ViTAdapter(
        arch=dict(embed_dim=config['embed_dim'], depth=config['depth'],
                  num_heads=config['num_heads'], mlp_ratio=config['mlp_ratio'],
                  conv_inplane=config['conv_inplane'], ffn_ratio=config['cffn_ratio'],
                  deform_num_heads=config['deform_num_heads'],
                  deform_ratio=config['deform_ratio'], deform_points=config['n_points']),
        variant={'det': 'detection', 'seg': 'segmentation'}[config['variant']],
        img_size=config['pretrain_size'], windows=windows, joining=joining,
        interaction_indexes=config['interaction_indexes'],
        class_token=False if table == grid ** 2 else None,
        layer_scale='blocks.0.gamma1' in case['state_dict'],
        norm_eps=config.get('norm_eps', 1e-6))
    load_into(model, case, tmp_path)
    return model.eval().to(dtype)(case['input'].to(dtype))


def run_segmenter(case, tmp_path, dtype):
    if missing('mmseg'):
        (pytest.fail if os.environ.get('LAPE_GOLDENS') else pytest.skip)(install_hint('mmseg'))
    from mmengine.registry import init_default_scope
    from mmseg.registry import MODELS
    init_default_scope('mmseg')
    config, encoder, decoder = (case['config'], case['config']['encoder'],
                                case['config']['decoder'])
    joining = config.get('method', 'default')
    if config.get('decoder_type', 'mask') == 'mask':
        head = dict(type='SegmenterMaskTransformerHead', in_channels=decoder['d_encoder'],
                    channels=decoder['d_model'], num_classes=config['n_cls'],
                    num_layers=decoder['n_layers'], num_heads=decoder['n_heads'],
                    embed_dims=decoder['d_model'], dropout_ratio=0.,
                    mlp_ratio=decoder['d_ff'] // decoder['d_model'])
    else:
        head = dict(type='FCNHead', in_channels=decoder['d_encoder'], num_convs=0,
                    channels=decoder['d_encoder'], num_classes=config['n_cls'],
                    concat_input=False, dropout_ratio=0.)
    depth = encoder['n_layers']
    model = MODELS.build(dict(
        type='EncoderDecoder', decode_head=dict(head, loss_decode=dict(type='CrossEntropyLoss')),
        test_cfg=dict(mode='whole'), backbone=dict(
            type='lape_mm.DeiT', img_size=encoder['image_size'],
            patch_size=encoder['patch_size'], joining=joining, out_indices=(depth - 1,),
            norm_eps=config.get('norm_eps', 1e-5), interpolation='bilinear',
            distilled='encoder.dist_token' in case['state_dict'],
            arch=dict(embed_dim=encoder['d_model'], depth=depth, num_heads=encoder['n_heads'],
                      mlp_ratio=encoder['d_ff'] / encoder['d_model']))))
    state = segmenter_state(case)
    wanted = {key: value for key, value in model.state_dict().items()
              if not key.startswith('backbone.')}
    official = {key: value for key, value in state.items() if not key.startswith('backbone.')}
    assert set(official) == set(wanted)
    model.load_state_dict({key: value.float() for key, value in official.items()}, strict=False)
    load_into(model.backbone, case, tmp_path,
              **{key.removeprefix('backbone.'): value for key, value in state.items()
                 if key.startswith('backbone.')})
    model = model.eval().to(dtype)
    image, patch = case['input'].to(dtype), encoder['patch_size']
    maps = model.decode_head(model.backbone(image))
    # the official model upsamples to the image padded to whole patches, and crops
    whole = F.interpolate(maps, scale_factor=patch, mode='bilinear', align_corners=False)
    return whole[..., :image.shape[2], :image.shape[3]]


def run_compact(case, tmp_path, dtype):
    config, state = case['config'], case['state_dict']
    sequence = 'classifier.attention_pool.weight' in state
    model = CompactTransformer(
        arch=dict(embed_dim=config['embedding_dim'], depth=config['num_layers'],
                  num_heads=config['num_heads'], mlp_ratio=config['mlp_ratio'],
                  kernel_size=config['kernel_size'], conv_layers=config.get('n_conv_layers', 0),
                  pool='sequence' if sequence else 'class'),
        img_size=config['img_size'], in_channels=config['n_input_channels'],
        joining=config.get('method', 'default'), norm_eps=config['norm_eps'],
        position={'learnable': 'learnable',
                  'sine': 'sincos_1d'}[config['positional_embedding']])
    if config['positional_embedding'] == 'sine':
        torch.testing.assert_close(model.pos_embed, state['classifier.positional_emb'])
    load_into(model, case, tmp_path)
    head = {f'head.{part}': state[f'classifier.fc.{part}'] for part in ('weight', 'bias')}
    return logits(model.eval().to(dtype), case, head)


def run_swin(case, tmp_path, dtype):
    config = case['config']
    names = [f'layers.{stage}.blocks.{block}' for stage, depth in enumerate(config['depths'])
             for block in range(depth)]
    model = Swin(arch={key: config[key] for key in ('embed_dim', 'depths', 'num_heads',
                                                    'mlp_ratio', 'qkv_bias', 'window_size')},
                 img_size=config['img_size'], patch_size=config['patch_size'],
                 in_channels=config['in_chans'], joining=config.get('method', 'default'),
                 position='learnable' if config['ape'] else None, norm_eps=config['norm_eps'])
    load_into(model, case, tmp_path, layer_name=names.__getitem__)
    return logits(model.eval().to(dtype), case, case['state_dict'])


def run_t2t(case, tmp_path, dtype):
    config = case['config']
    model = T2TViT(arch=dict(sizes(config), token_dim=config['token_dim']),
                   img_size=config['img_size'], in_channels=config['in_chans'],
                   tokens=config['tokens_type'], joining=config.get('method', 'default'),
                   norm_eps=config['norm_eps'])
    load_into(model, case, tmp_path)
    return logits(model.eval().to(dtype), case, case['state_dict'])


def run_ceit(case, tmp_path, dtype):
    config = case['config']
    model = CeiT(arch=dict(sizes(config), stem_channels=config['stem_channels']),
                 img_size=config['img_size'], joining=config.get('method', 'default'),
                 norm_eps=config['norm_eps'])
    report = load_into(model, case, tmp_path)
    # the statistics of BatchNorm are no parameters, and yet none may be left behind
    assert {name for name, _ in model.named_buffers()} <= set(report.found)
    return logits(model.eval().to(dtype), case, case['state_dict'])


FAMILIES = ((r'mpvg_ref_', run_mpvg_ref), (r'lape_', run_lape),
            (r'(derived_)?vit_adapter_', run_vit_adapter),
            (r'(derived_)?swin_', run_swin),
            (r'(derived_)?segmenter_', run_segmenter),
            (r'(derived_)?(vitlite|cvt|cct)_', run_compact),
            (r'(derived_)?t2t_', run_t2t), (r'(derived_)?ceit', run_ceit))


def tolerance(name, dtype):
    """Absolute, of every element of the output."""
    if name.startswith('derived_t2t_'):  # its official performer always runs in float32
        return 1e-5
    if dtype == torch.float64:
        return 1e-10
    # the order of a sum alone moves ViT-Adapter's outputs by 4e-5, as a run in float64 shows
    return 5e-5 if name.startswith('vit_adapter_') else 2e-5


def runner_of(name):
    return next((run for pattern, run in FAMILIES if re.match(pattern, name)), None)


def test_goldens_are_there():
    assert CASES, f'no goldens in {FOLDER}'


@torch.no_grad()
@pytest.mark.parametrize('path', CASES, ids=lambda path: path.stem)
def test_golden(path, tmp_path):
    run = runner_of(path.stem)
    assert run is not None, f'{path.stem}: a case of no family known here'
    case = read_checkpoint(path)
    expected = case['output'] if isinstance(case['output'], (list, tuple)) else [case['output']]
    dtype = expected[0].dtype
    output = run(case, tmp_path, dtype)
    output = output if isinstance(output, (list, tuple)) else [output]
    assert len(output) == len(expected)
    for ours, theirs in zip(output, expected):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance(path.stem, dtype))
