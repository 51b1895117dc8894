"""What holds for every backbone."""
import pytest
import torch
import torch.nn.functional as F
from tiny_models import ADAPTER, MODELS, SIZES, SWIN, build, flat, gap, side_of

from lape_mm.mmcv_ext import compiled
from lape_mm.position import PRESETS

JOININGS = [*PRESETS, dict(first_layer=1, last=2),
            dict(add_to_input=False, first_layer=1, hierarchical=False, last=0)]


def backward(outputs):
    sum((output.float() * torch.randn_like(output.float())).sum() for output in outputs).backward()


def idle(model, name):
    """Parameters whose gradient is zero by design."""
    if name == 'attention_pool.bias':  # a softmax over the tokens ignores a shared offset
        return True
    # under a class token, the patches of CeiT's last layer reach no output
    return type(model).__name__ == 'CeiT' and model.has_class_token and 'blocks.2.leff' in name


@pytest.mark.parametrize('joining', JOININGS, ids=str)
@pytest.mark.parametrize('name', MODELS)
def test_every_parameter_gets_a_finite_gradient(name, joining):
    if name == 'Swin' and joining == 'unshare':
        pytest.skip('Swin has no table a layer')
    torch.manual_seed(0)
    options = dict(position='learnable', drop_path_rate=.1)
    if name in ('DeiT', 'Swin') and joining == 'mpvg':
        options['out_indices'] = (0, 1) if name == 'Swin' else (0, 2)
    model = build(name, joining, **options)
    backward(flat(model(torch.randn(4, 3, side_of(name), side_of(name)))))
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.isfinite().all(), parameter_name
            assert parameter.grad.abs().sum() > 0 or idle(model, parameter_name), parameter_name


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=['bf16', 'fp16'])
@pytest.mark.parametrize('name', MODELS)
def test_half_precision_is_close_and_has_finite_gradients(name, dtype):
    torch.manual_seed(0)
    model = build(name, 'mpvg').eval()
    image = torch.randn(2, 3, side_of(name), side_of(name))
    expected = model(image)
    with torch.autocast('cpu', dtype=dtype):
        outputs = model(image)
    assert gap(outputs, expected) < .1
    bound = {'ViTAdapter': .02, 'Swin': .05}.get(name, .1)
    for ours, exact in zip(flat(outputs), flat(expected), strict=True):
        assert (ours.float() - exact).abs().mean() < bound * exact.abs().mean()
    backward(flat(outputs))
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters()
               if parameter.requires_grad)


@torch.no_grad()
@pytest.mark.parametrize('position', ['learnable', 'sincos_1d', 'sincos_2d'])
@pytest.mark.parametrize('name', MODELS)
def test_any_image_size(name, position):
    model = build(name, 'mpvg', position=position).eval()
    for height, width in (MODELS[name][1], (33, 17), (model.stride, model.stride + 1)):
        image = torch.randn(2, 3, height, width)
        outputs = flat(model(image))
        assert all(output.isfinite().all() for output in outputs)
        if name not in ('ViTAdapter', 'CCT'):  # whose convolutions see the border
            padded = F.pad(image, (0, -width % model.stride, 0, -height % model.stride))
            assert gap(outputs, flat(model(padded))) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize('joining', ['default', 'lape', 'pvg', 'mpvg'])
@pytest.mark.parametrize('name', [name for name in MODELS if name != 'ViTAdapter'])
def test_position_reaches_the_output_and_no_plan_is_stale(name, joining):
    torch.manual_seed(0)
    model, image = build(name, joining).eval(), torch.randn(1, 3, side_of(name), side_of(name))
    before = flat(model(image))[0].clone()
    model(torch.randn(1, 3, *MODELS[name][1]))
    torch.testing.assert_close(flat(model(image))[0], before)
    model.pos_embed.data.add_(torch.randn_like(model.pos_embed))  # as mmengine's EMA writes
    assert not torch.allclose(before, flat(model(image))[0])


@pytest.mark.parametrize('name', MODELS)
def test_gradient_checkpointing_changes_no_gradient(name):
    torch.manual_seed(0)
    model, gradients = build(name, 'mpvg').eval(), []
    image = torch.randn(2, 3, side_of(name), side_of(name))
    for with_cp in type(model).checkpointing:
        model.with_cp = with_cp
        model.zero_grad()
        sum(output.square().sum() for output in flat(model(image))).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.requires_grad])
    for plain, *recomputed in zip(*gradients, strict=True):
        for other in recomputed:
            torch.testing.assert_close(plain, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', MODELS)
def test_frozen_takes_no_gradient_and_stays_in_evaluation_mode(name):
    model = build(name, 'mpvg', frozen=True, drop_path_rate=.5).train()
    trained = {key for key, value in model.named_parameters() if value.requires_grad}
    vit = {key for key, _ in model.vit_parameters()}
    assert not trained & vit and bool(trained) == (name == 'ViTAdapter')
    assert not any(layer.training for layer in model.layers_in_order())
    if trained:
        backward(model(torch.randn(2, 3, 64, 32)))
        assert {key for key, value in model.named_parameters() if value.grad is not None} == trained
    else:
        image = torch.randn(2, 3, side_of(name), side_of(name))
        assert gap(model(image), model(image)) == 0


@torch.no_grad()
@pytest.mark.parametrize('joining', ['default', 'mpvg'])
@pytest.mark.parametrize('name', MODELS)
def test_outputs_seen_by_a_hook_stay_unchanged(name, joining):
    torch.manual_seed(0)
    model = build(name, joining).eval()
    for module in model.modules():
        if hasattr(module, 'inplace'):  # torch's own in-place ReLU
            module.inplace = False
    seen = []

    def look(module, given, output):
        outputs = output if isinstance(output, (tuple, list)) else [output]
        seen.extend((type(module).__name__, entry, entry.clone()) for entry in outputs
                    if isinstance(entry, torch.Tensor))
    handle = torch.nn.modules.module.register_module_forward_hook(look)
    try:
        model(torch.randn(1, 3, *MODELS[name][1]))
    finally:
        handle.remove()
    assert len(seen) > 20
    assert not [part for part, entry, copy in seen if not entry.equal(copy)]


@torch.no_grad()
@pytest.mark.parametrize('name, stages, strides', [
    ('DeiT', (1, -1), (16, 16)), ('Swin', (0, 1), (4, 8)), ('ViTAdapter', None, (4, 8, 16, 32))])
def test_maps_of_any_image_size(name, stages, strides):
    model = build(name, 'mpvg', **(dict(out_indices=stages) if stages else {})).eval()
    for size in ((48, 90), (33, 17)):
        maps = model(torch.randn(2, 3, *size))
        sides = [tuple(-(-side // stride) for side in size) for stride in strides]
        assert [tuple(m.shape[2:]) for m in maps] == sides
        # mmcv's compiled operators count on it
        assert not compiled() or all(m.is_contiguous() for m in maps)


DEPTHS = {
    'DeiT': {'patch_embed.proj.weight': 0, 'blocks.1.attn.qkv.weight': 2},
    'CeiT': {'patch_embed.backbone.bn.weight': 0, 'blocks.2.leff.conv1.bias': 3,
             'lca.attn.qkv.weight': 4, 'pos_layer_embed': 4},
    'T2TViT': {'patch_embed.attention1.kqv.weight': 0, 'blocks.2.pe_norm.bias': 3},
    'CCT': {'patch_embed.conv_layers.0.0.weight': 0, 'attention_pool.weight': 4},
    'Swin': {'patch_embed.norm.weight': 0, 'layers.0.blocks.1.pe_norm.weight': 2,
             'layers.0.downsample.reduction.weight': 2, 'layers.1.blocks.0.norm2.bias': 3,
             'layers.1.blocks.1.attn.relative_position_bias_table': 4, 'norm0.bias': 5},
}


@pytest.mark.parametrize('name', DEPTHS)
def test_layer_depth_and_weight_decay(name):
    model = build(name, 'mpvg', **(dict(out_indices=(0, 1)) if name == 'Swin' else {}))
    depth = {key: model.get_layer_depth(f'backbone.{key}', 'backbone.')
             for key, _ in model.named_parameters()}
    last = len(model.layers_in_order()) + 1
    expected = {'pos_embed': 0, 'last_pe_norm.bias': last, 'norm.bias': last, **DEPTHS[name]}
    assert {key: depth[key] for key in expected} == {
        key: (value, last + 1) for key, value in expected.items()}
    exempt = {key for key in depth if key in ('cls_token', 'pos_embed')
              and not (name == 'T2TViT' and key == 'pos_embed')} | {
              key for key in depth if 'relative_position_bias_table' in key}
    assert model.no_weight_decay() & set(depth) == exempt


@pytest.mark.parametrize('name, options, words', [
    ('DeiT', dict(arch='larger'), ["'larger'", 'tiny', 'dinov2_small']),
    ('DeiT', dict(arch=dict(SIZES, mlp='glu')), ["arch.mlp='glu'", 'swiglu_norm']),
    ('DeiT', dict(arch=dict(SIZES, num_heads=4), position='rope'), ['multiple of 4', '6']),
    ('DeiT', dict(arch=dict(embed_dim=24, depth=3)), ["'num_heads'"]),
    ('DeiT', dict(arch=dict(SIZES, width=3)), ['width=3', 'embed_dim']),
    ('DeiT', dict(arch=dict(SIZES, embed_dim=25)), ['25', '3']),
    ('DeiT', dict(interpolation='nearest'), ["'nearest'", 'bicubic']),
    ('DeiT', dict(drop_path_rate=1.), ['1.0']),
    *(('DeiT', dict(out_indices=wrong), [str(wrong), '0..2'])
      for wrong in ((0, 1), (2, 2), (-4, 2), ())),
    *((name, dict(position=wrong), [f'position={wrong!r}: expected', "'learnable'"])
      for name in MODELS if name != 'Swin'
      for wrong in ('rope_2', 'rope+rope_mixed', 'learnable+sincos_1d', 'relative+rope')),
    *((name, dict(position=wrong), [f'position={wrong!r}: expected', "'learnable'"])
      for name in ('CeiT', 'T2TViT', 'CCT') for wrong in (None, 'rope')),
    ('ViTAdapter', dict(position='relative'), ["'relative'", 'sincos_2d']),
    ('CCT', dict(position='relative'), ["'relative'", 'sincos_1d']),
    ('DeiT', dict(joining='mpvg', class_token=True), ['class_token']),
    ('DeiT', dict(init_cfg=[dict(checkpoint='a.pth')]), ['init_cfg=[', 'dict(checkpoint=']),
    ('DeiT', dict(init_cfg=dict(type='Constant')), ["'Constant'", "'Pretrained'"]),
    ('DeiT', dict(position='relative', joining='pvg'), ["'default'", "'lape'"]),
    ('DeiT', dict(position='relative', window_size=2), ['window_size=2', "'relative'"]),
    ('DeiT', dict(with_cp='adapter'), ["'adapter'", 'True']),
    ('ViTAdapter', dict(variant='det'), ["'det'", 'detection']),
    ('ViTAdapter', dict(windows=[2, None]), ['[2, None]', '4 entries']),
    ('ViTAdapter', dict(interaction_indexes=[(0, 1), (3, 3)]), ['(3, 3)', '0..3']),
    ('ViTAdapter', dict(interaction_indexes=[(0, 1), (2, 3)], variant='segmentation'), ['four']),
    ('ViTAdapter', dict(arch=dict(ADAPTER, depth=6)), ['depth=6', 'interaction_indexes']),
    ('ViTAdapter', dict(arch=dict(ADAPTER, deform_num_heads=5)), ['5', '24']),
    ('ViTAdapter', dict(with_cp='all'), ["'all'", "'adapter'"]),
    ('ViTAdapter', dict(joining=dict(add_to_input=False, last=0), last_norm=False), ['nowhere']),
    ('Swin', dict(arch=dict(embed_dim=8, depths=(1, 1))), ["'num_heads'"]),
    ('Swin', dict(arch=dict(SWIN, num_heads=(1, 2, 4))), ['depths', 'num_heads', '(1, 2, 4)']),
    ('Swin', dict(arch=dict(SWIN, num_heads=2)), ['num_heads=2', 'each stage']),
    ('Swin', dict(arch=dict(SWIN, depths=(2, 0))), ['depths=0', 'at least 1']),
    ('Swin', dict(arch=dict(SWIN, window_size=0)), ['window_size=0']),
    ('Swin', dict(arch=dict(SWIN, num_heads=(3, 2))), ['8', '3']),
    ('Swin', dict(joining='unshare'), ["'unshare'", "'share'", "'mpvg'"]),
    ('Swin', dict(joining='lape', position=None), ["'lape'", "'default'", "'learnable'"]),
    ('Swin', dict(position='relative'), ["'relative'", 'sincos_2d']),
    ('CeiT', dict(arch=dict(SIZES, patch_size=4)), ['patch_size=4', 'stem_channels']),
    ('T2TViT', dict(arch=dict(SIZES, token_dim=7)), ['token_dim=7']),
    ('T2TViT', dict(tokens='convolution'), ["'convolution'", "'performer'", "'transformer'"]),
    ('CCT', dict(arch=dict(SIZES, pool='mean')), ["'mean'", 'sequence']),
    ('CCT', dict(arch=dict(SIZES, conv_layers=1)), ['kernel_size=4', 'odd']),
    ('CCT', dict(arch=dict(SIZES, kernel_size=0)), ['kernel_size=0', 'at least 1']),
    ('CCT', dict(arch=dict(SIZES, conv_layers=-1)), ['conv_layers=-1']),
    ('CCT', dict(attn_drop_rate=1.), ['attn_drop_rate=1.0']),
    ('CVT', dict(class_token=True), ["pool='sequence'"]),
])
def test_errors_name_the_value_and_what_is_allowed(name, options, words):
    with pytest.raises(ValueError) as error:
        build(name, **{'joining': 'default', **options}).init_weights()
    assert all(word in str(error.value) for word in words), error.value
