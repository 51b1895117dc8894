"""A classification checkpoint becomes the backbone of something else, and the report is true."""
import pytest
import torch

from lape_mm.backbones import DeiT, Swin, ViTAdapter
from lape_mm.checkpoints import CheckpointError, load_backbone
from lape_mm.position import resize_table

ARCH = dict(embed_dim=24, depth=4, num_heads=3)
ADAPTER = dict(ARCH, conv_inplane=8, deform_num_heads=4)
JOININGS = ['default', 'lape', 'pvg', 'mpvg']


def classifier(joining='default', **options):
    torch.manual_seed(1)
    model = DeiT(**{'arch': ARCH, 'img_size': 64, 'joining': joining, **options})
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def save(model, path, *, prefix='', wrapper=None, **more):
    state = {prefix + key: value for key, value in model.state_dict().items()}
    state.update(more)
    torch.save({wrapper: state} if wrapper else state, path)
    return str(path)


def same_vit(model, source):
    theirs = source.state_dict()
    return [name for name, _ in model.vit_parameters() if name in theirs
            and theirs[name].shape == model.state_dict()[name].shape
            and not torch.equal(model.state_dict()[name], theirs[name])]


@pytest.mark.parametrize('joining, prefix, wrapper', [
    ('default', '', None), ('lape', '', 'model'), ('pvg', 'backbone.', 'state_dict'),
    ('mpvg', 'module.', 'state_dict_ema'), ('mpvg', 'model.backbone.', 'state_dict')])
def test_classifier_to_adapter(tmp_path, joining, prefix, wrapper):
    source = classifier(joining)
    path = save(source, tmp_path / 'c.pth', prefix=prefix, wrapper=wrapper,
                **{'head.weight': torch.ones(10, 24)})
    model = ViTAdapter(arch=ADAPTER, img_size=64, joining=joining,
                       init_cfg=dict(type='Pretrained', checkpoint=path))
    model.init_weights()
    report = load_backbone(model, path)
    assert report.share == 1. and not report.missing and not report.resized
    assert not same_vit(model, source)
    assert any(name.endswith('head.weight') for name in report.unused)
    assert 'level_embed' in report.new and 'blocks.0.gamma1' in report.new
    has_norm = joining == 'mpvg'
    assert ('norm.weight' in report.found) == has_norm != ('norm.weight' in report.unused)
    assert '100.00 %' in str(report)


@pytest.mark.parametrize('joining, img_size', [('default', 96), ('mpvg', (48, 80))])
def test_position_is_resized(tmp_path, joining, img_size):
    source = classifier(joining)
    path = save(source, tmp_path / 'c.pth')
    model = DeiT(arch=ARCH, img_size=img_size, joining=joining, out_indices=(3,))
    report = load_backbone(model, path)
    assert report.share == 1. and 'pos_embed' in report.resized
    assert f'4 x 4 to {model.grid[0]} x {model.grid[1]}' in str(report)
    expected = resize_table(source.pos_embed, old=(4, 4), new=model.grid,
                            num_prefix_tokens=source.num_prefix_tokens)
    assert torch.equal(model.pos_embed, expected)


def test_slots_are_told_by_tokens_and_named(tmp_path):
    # class token to none: the slot is dropped
    report = load_backbone(DeiT(arch=ARCH, img_size=64, joining='pvg'),
                           save(classifier('default'), tmp_path / 'a.pth'), min_share=.9)
    assert 'pos_embed[:, 0:1]' in report.unused and 'cls_token' in report.unused
    assert 'blocks.1.pe_norm.weight' in report.missing and report.share < 1
    # none to a ViT-Adapter's unused slot: new by design, and no weight that could be missing
    model = ViTAdapter(arch=ADAPTER, img_size=64)
    slot = model.pos_embed[:, 0].clone()
    report = load_backbone(model, save(classifier(class_token=False), tmp_path / 'b.pth'))
    assert report.share == 1. and 'pos_embed[:, 0:1]' in report.new
    assert torch.equal(model.pos_embed[:, 0], slot)
    # none to a class token that is used: missing weights, which no share makes up for
    model = DeiT(arch=ARCH, img_size=64)
    fail(model, tmp_path / 'b.pth', 'not in the file: cls_token', 'allow_missing')
    report = load_backbone(model, str(tmp_path / 'b.pth'), allow_missing=['cls_token'])
    assert 'cls_token' in report.missing
    total = sum(p.numel() for p in model.parameters())
    assert report.share == pytest.approx(1 - 2 * 24 / total)


def test_distilled_checkpoint(tmp_path):
    source = classifier('lape')
    table = torch.cat([source.pos_embed[:, :1], torch.randn(1, 1, 24), source.pos_embed[:, 1:]], 1)
    path = save(source, tmp_path / 'd.pth', wrapper='model', dist_token=torch.ones(1, 1, 24),
                pos_embed=table.detach(), **{'head_dist.weight': torch.ones(10, 24)})
    model = DeiT(arch=ARCH, img_size=64, joining='lape')
    report = load_backbone(model, path)
    assert report.share == 1.
    assert {'dist_token', 'head_dist.weight', 'pos_embed[:, 1:2]'} <= set(report.unused)
    assert torch.equal(model.pos_embed, source.pos_embed)


@pytest.mark.parametrize('joining', ['lape', 'mpvg'])
@pytest.mark.parametrize('img_size', [(224, 256), (64, 96)])
def test_an_adapters_own_oblong_grid(tmp_path, joining, img_size):
    # 14 x 16 tokens and a slot are 15 x 15: a length alone would mislead
    source = ViTAdapter(arch=ADAPTER, img_size=img_size, joining=joining)
    path = save(source, tmp_path / 'v.pth')
    model = ViTAdapter(arch=ADAPTER, img_size=img_size, joining=joining)
    assert load_backbone(model, path).share == 1.
    assert torch.equal(model.pos_embed, source.pos_embed)


def test_mmpretrain_names(tmp_path):
    source, names = classifier('default'), {}
    for key, value in source.state_dict().items():
        for ours, theirs in (
                ('patch_embed.proj', 'patch_embed.projection'), ('blocks', 'layers'),
                ('attn.qkv.', 'attn.attn.in_proj_'), ('attn.proj', 'attn.attn.out_proj'),
                ('norm1', 'ln1'), ('norm2', 'ln2'), ('mlp.fc1', 'ffn.layers.0.0'),
                ('mlp.fc2', 'ffn.layers.1')):
            key = key.replace(ours, theirs)
        names['backbone.' + ('ln1.' + key[5:] if key.startswith('norm.') else key)] = value
    torch.save({'state_dict': names}, tmp_path / 'm.pth')
    model = DeiT(arch=ARCH, img_size=64)
    report = load_backbone(model, str(tmp_path / 'm.pth'))
    assert report.share == 1. and not report.unused and not same_vit(model, source)


def test_half_precision_and_unbatched_sinusoids(tmp_path):
    source = classifier(position='sincos_1d')
    state = {key: value.half() for key, value in source.state_dict().items()}
    state['pos_embed'] = state['pos_embed'][0]
    torch.save(state, tmp_path / 'h.pth')
    model = DeiT(arch=ARCH, img_size=64, position='sincos_1d')
    assert load_backbone(model, str(tmp_path / 'h.pth')).share == 1.
    assert model.pos_embed.dtype == torch.float32


def fail(model, path, *words, **options):
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointError) as error:
        load_backbone(model, str(path), **options)
    message = str(error.value)
    assert message.startswith(str(path)) and '\n' not in message
    assert all(word in message for word in words), message
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])  # nothing half-loaded


def test_another_model_is_refused(tmp_path):
    model = DeiT(arch=ARCH, img_size=64)
    wide = DeiT(arch=dict(ARCH, embed_dim=48), img_size=64)
    fail(model, save(wide, tmp_path / 'wide.pth'), 'min_share=0.95', 'pos_embed', '48', '24')
    shallow = DeiT(arch=dict(ARCH, depth=3), img_size=64)
    fail(model, save(shallow, tmp_path / 'shallow.pth'), 'blocks.3.')
    torch.save({'state_dict': {'conv1.weight': torch.ones(3)}}, tmp_path / 'resnet.pth')
    fail(model, tmp_path / 'resnet.pth', 'no ViT', 'conv1.weight')
    torch.save({'epoch': 3}, tmp_path / 'empty.pth')
    fail(model, tmp_path / 'empty.pth', 'no weights', 'epoch')
    fail(model, tmp_path / 'nowhere.pth', 'no such file')


def gammas(names, **options):
    """A classifier's weights, with layer scales under somebody's names."""
    return {**classifier(**options).state_dict(),
            **{name.format(layer): torch.full((24,), .1 * layer + number)
               for layer in range(4) for number, name in enumerate(names, 1)}}


@pytest.mark.parametrize('names', [
    ('blocks.{}.ls1.gamma', 'blocks.{}.ls2.gamma'), ('blocks.{}.gamma_1', 'blocks.{}.gamma_2'),
    ('blocks.{}.gamma1', 'blocks.{}.gamma2'),
    ('layers.{}.attn.gamma1.weight', 'layers.{}.ffn.gamma2.weight')])
def test_layer_scales_find_their_place_or_are_refused(tmp_path, names):
    torch.save(gammas(names), tmp_path / 'scaled.pth')
    model = ViTAdapter(arch=ADAPTER, img_size=64)
    report = load_backbone(model, str(tmp_path / 'scaled.pth'))
    assert 'blocks.3.gamma2' in report.found and not any('gamma' in key for key in report.unused)
    for layer, block in enumerate(model.blocks):
        assert torch.equal(block.gamma1, torch.full((24,), .1 * layer + 1))
        assert torch.equal(block.gamma2, torch.full((24,), .1 * layer + 2))
    plain = ViTAdapter(arch=ADAPTER, img_size=64, layer_scale=False)
    fail(plain, tmp_path / 'scaled.pth', ' 8 of its weights', names[0].format(0), 'layer_scale')
    fail(DeiT(arch=ARCH, img_size=64), tmp_path / 'scaled.pth', 'DeiT has no place for 8')


@pytest.mark.parametrize('name', [
    'blocks.3.attn.k_norm.weight', 'blocks.0.mlp.fc1_g.weight', 'norm_pre.weight',
    'reg_token', 'patch_embed.norm.weight', 'blocks.2.attn.relative_position_bias_table'])
def test_another_architecture_is_refused_though_all_is_found(tmp_path, name):
    path = save(classifier(), tmp_path / 'other.pth', prefix='backbone.', **{
        f'backbone.{name}': torch.ones(24), 'backbone.head.weight': torch.ones(5, 24)})
    fail(DeiT(arch=ARCH, img_size=64), path, f': {name}', 'another architecture', ' 1 of its')


def test_what_changes_no_layer_is_left_behind(tmp_path):
    left = ['dist_token', 'mask_token', 'fc_norm.weight', 'pre_logits.fc.weight', 'norm.weight',
            'blocks.4.attn.q_norm.weight', 'head.weight']
    path = save(classifier(), tmp_path / 'c.pth', **{name: torch.ones(24) for name in left})
    report = load_backbone(ViTAdapter(arch=ADAPTER, img_size=64, joining='default'), path,
                           source_grid=(4, 4))
    assert report.share == 1. and set(left) <= set(report.unused)


@pytest.mark.parametrize('joining', ['lape', 'mpvg'])
def test_norms_of_another_joining_are_left_behind_with_a_warning(tmp_path, joining):
    path = save(classifier(joining), tmp_path / 'c.pth')
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('lape_mm.checkpoints.transfer.print_log',
                      lambda text, logger=None, level=20: said.append((level, text)))
        report = load_backbone(DeiT(arch=ARCH, img_size=64, class_token=joining == 'lape'), path)
    assert report.share == 1. and 'blocks.1.pe_norm.weight' in report.unused
    warning, = [text for level, text in said if level > 20]
    assert path in warning and 'another joining' in warning and ' 7 more' in warning


def test_what_is_no_weight_is_refused_not_cast(tmp_path):
    model, state = classifier(), classifier().state_dict()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for key, value, said in (
            ('blocks.0.mlp.fc1.bias', torch.ones(96, dtype=torch.int64), 'torch.int64'),
            ('pos_embed', torch.ones(1, 17, 24, dtype=torch.bool), 'torch.bool'),
            ('blocks.0.mlp.fc1.bias', 'text', 'is a str')):
        torch.save({'model': {**state, key: value}}, tmp_path / 'a.pth')
        with pytest.raises(CheckpointError, match=said) as error:
            load_backbone(model, str(tmp_path / 'a.pth'))
        assert str(error.value).startswith(str(tmp_path)) and key in str(error.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_told_otherwise_it_loads_what_there_is(tmp_path):
    model = DeiT(arch=ARCH, img_size=64)
    shallow = DeiT(arch=dict(ARCH, depth=3), img_size=64)
    path = save(shallow, tmp_path / 'shallow.pth')
    report = load_backbone(model, path, min_share=.5)
    assert .5 < report.share < .95 and 'blocks.3.norm1.weight' in report.missing
    assert torch.equal(model.blocks[2].mlp.fc1.weight, shallow.blocks[2].mlp.fc1.weight)
    with pytest.raises(ValueError, match='min_share=95'):
        load_backbone(model, path, min_share=95)


def test_two_vits_need_a_prefix(tmp_path):
    source, model = classifier(), DeiT(arch=ARCH, img_size=64)
    state = {f'{name}.{key}': value for name in ('teacher', 'student')
             for key, value in source.state_dict().items()}
    torch.save(state, tmp_path / 'two.pth')
    fail(model, tmp_path / 'two.pth', "'student.'", "'teacher.'", 'prefix')
    assert load_backbone(model, str(tmp_path / 'two.pth'), prefix='student.').share == 1.
    fail(model, tmp_path / 'two.pth', "'nobody.'", prefix='nobody.')


def test_a_grid_is_never_guessed(tmp_path):
    # 2 x 8 tokens into 4 x 4 and back: equal counts, another grid
    oblong, square = classifier(img_size=(32, 128)), classifier()
    fail(DeiT(arch=ARCH, img_size=(32, 128)), save(square, tmp_path / 'square.pth'), 'source_grid')
    model = DeiT(arch=ARCH, img_size=(32, 128))
    load_backbone(model, save(oblong, tmp_path / 'oblong.pth'), source_grid=(2, 8))
    assert torch.equal(model.pos_embed, oblong.pos_embed)
    fail(model, tmp_path / 'oblong.pth', 'source_grid=(5, 8)', source_grid=(5, 8))
    odd = classifier(img_size=(32, 48))
    fail(DeiT(arch=ARCH, img_size=64), save(odd, tmp_path / 'odd.pth'), 'source_grid', '7 tokens')
    model = DeiT(arch=ARCH, img_size=64)
    report = load_backbone(model, str(tmp_path / 'odd.pth'), source_grid=(2, 3))
    assert '2 x 3 to 4 x 4' in str(report)


def test_init_cfg_works_whatever_the_default_scope_is(tmp_path):
    from mmengine.registry import DefaultScope
    path = save(classifier(), tmp_path / 'c.pth')
    with DefaultScope.overwrite_default_scope('mmdet'):
        DeiT(arch=ARCH, img_size=64, init_cfg=dict(checkpoint=path)).init_weights()


def test_timms_swin_merges_at_the_start_of_a_stage(tmp_path):
    timm = pytest.importorskip('timm')
    theirs = timm.create_model('swin_tiny_patch4_window7_224', img_size=32, window_size=2,
                               embed_dim=8, num_heads=(1, 2, 4, 8), depths=(2, 2, 2, 2)).eval()
    torch.save(theirs.state_dict(), tmp_path / 'timm.pth')
    ours = Swin(arch=dict(embed_dim=8, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8),
                                    window_size=2), img_size=32, position=None).eval()
    report = load_backbone(ours, str(tmp_path / 'timm.pth'), min_share=1.)
    assert not report.missing, report
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(image)[0], theirs.forward_head(
            theirs.forward_features(image), pre_logits=True), rtol=0, atol=1e-5)


def test_the_average_of_the_weights_comes_first(tmp_path):
    model = classifier()
    average = model.state_dict()
    torch.save({'state_dict': {key: torch.zeros_like(value) for key, value in average.items()},
                'state_dict_ema': average}, tmp_path / 'both.pth')
    other = DeiT(arch=ARCH, img_size=64)
    load_backbone(other, str(tmp_path / 'both.pth'), min_share=1.)
    assert torch.equal(other.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight)
