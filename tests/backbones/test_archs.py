"""The named architectures: timm's models at random weights, and ViT-Adapter over each family."""
import pytest
import timm
import torch
from tiny_models import flat, gap

from lape_mm import DeiT, ViTAdapter, fold
from lape_mm.backbones.archs import ARCHS, DEFAULTS
from lape_mm.checkpoints import load_backbone

NAMES = ['augreg_tiny', 'clip_base', 'deit3_small', 'dinov2_small', 'dinov2_giant_reg',
         'dinov3_base', 'dinov3_small_plus', 'eva02_tiny', 'eva02_base', 'rope_small',
         'rope_mixed_small', 'rope_ape_small', 'rope_mixed_ape_small', 'rope_gap_medium']
FAMILIES = ['deit3_small', 'dinov2_small_reg', 'dinov3_small', 'eva02_tiny', 'eva02_base',
            'rope_mixed_ape_small', 'rope_gap_medium', 'clip_base']
TINY = dict(embed_dim=48, depth=3, num_heads=3)


def patch_of(name):
    return {**DEFAULTS, **ARCHS[name].defaults}['patch_size']


def shrunk(name, **more):
    """The arguments of a named architecture in tiny sizes."""
    return dict(ARCHS[name].defaults, arch={**ARCHS[name].settings, **TINY, **more})


def timms(name, **options):
    return timm.create_model(ARCHS[name].timm.split('.')[0], num_classes=0, **TINY, **options)


def randomise(model):
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        # attention has to depend on the position
        std = .5 if 'qkv' in name or '_proj.weight' in name else .1
        torch.nn.init.normal_(parameter, std=std if parameter.ndim > 1 else .3)
    return model.eval()


@torch.no_grad()
def compare(theirs, ours, tmp_path, size):
    """Loads timm's weights; the patches after the last norm, and the pooled vector, agree."""
    torch.save(randomise(theirs).state_dict(), tmp_path / 'timm.pth')
    report = load_backbone(ours.eval(), str(tmp_path / 'timm.pth'), min_share=1.)
    assert report.share == 1 and not report.missing
    image = torch.randn(2, 3, *size)
    expected = theirs.forward_features(image)
    ours.out_indices = (ours.depth - 1,)
    patches = ours(image)[0].flatten(2).transpose(1, 2)
    assert (patches - expected[:, theirs.num_prefix_tokens:]).abs().max() < 1e-4
    ours.out_indices = ()
    theirs.global_pool = 'token' if ours.pools_class_token else 'avg'
    pooled = theirs.forward_head(expected, pre_logits=True)
    assert (ours(image)[0] - pooled).abs().max() < 1e-4


@pytest.mark.parametrize('name', NAMES)
def test_tokens_are_timms(name, tmp_path):
    for size in ((3 * patch_of(name), 5 * patch_of(name)), (4 * patch_of(name),) * 2):
        ours = DeiT(**{**shrunk(name), 'img_size': size})
        compare(timms(name, img_size=size), ours, tmp_path, size)


@pytest.mark.parametrize('name', ['dinov2_small', 'dinov3_small', 'eva02_tiny'])
def test_another_size_than_that_of_the_table_is_timms(name, tmp_path):
    patch = patch_of(name)
    ours = DeiT(**{**shrunk(name), 'img_size': 8 * patch})
    compare(timms(name, img_size=8 * patch, dynamic_img_size=True), ours, tmp_path,
            (5 * patch, 11 * patch))


def test_norms_of_q_and_k_and_no_bias_are_timms(tmp_path):
    options = dict(qk_norm=True, qkv_bias=False)
    compare(timms('augreg_tiny', img_size=64, **options),
            DeiT(arch=dict(TINY, **options), img_size=64), tmp_path, (64, 64))


def test_every_name_is_of_published_weights_with_their_normalisation():
    for name, arch in ARCHS.items():
        if arch.timm:
            cfg = timm.models.get_pretrained_cfg(arch.timm, allow_unregistered=False)
            assert (tuple(cfg.mean), tuple(cfg.std)) == arch.normalisation, name
            assert cfg.license.lower() == arch.license.lower(), name
            assert cfg.input_size[1] == {**DEFAULTS, **arch.defaults}['img_size'], name


@pytest.mark.parametrize('name', ['mae_large', 'deit3_huge', 'dinov2_giant_reg', 'dinov3_huge_plus',
                                  'eva02_large', 'rope_gap_betwixt'])
def test_parameters_are_as_many_as_timms(name):
    with torch.device('meta'):
        theirs = timm.create_model(ARCHS[name].timm.split('.')[0], num_classes=0)
        ours = DeiT(arch=name)
    ours, theirs = (sum(parameter.numel() for parameter in model.parameters())
                    for model in (ours, theirs))
    if 'dinov3' in name:  # biases of q and v, which timm leaves out because they are zero
        arch = ARCHS[name].settings
        theirs += 2 * arch['depth'] * arch['embed_dim']
    if name == 'dinov2_giant_reg':  # timm adds the slot to the class token
        theirs += ARCHS[name].settings['embed_dim']
    assert ours == theirs


def adapter(name, joining='default', **options):
    arguments = shrunk(name, embed_dim=24, depth=4, conv_inplane=8, deform_num_heads=3)
    model = ViTAdapter(**{**arguments, 'img_size': 56, 'joining': joining, **options})
    for key, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=.5 if key.startswith('blocks') else .1)
    return model


@pytest.mark.parametrize('name', FAMILIES)
def test_adapter_over_every_family(name):
    torch.manual_seed(0)
    for joining in ('default', 'lape', 'mpvg'):
        model = adapter(name, joining)
        for size in ((64, 64), (33, 90), (70, 46)):
            maps = model(torch.randn(2, 3, *size))
            assert [tuple(level.shape) for level in maps] == [
                (2, 24, *(-(-side // stride) for side in size)) for stride in (4, 8, 16, 32)]
    for dtype in (torch.float32, torch.bfloat16):
        model.zero_grad()
        with torch.autocast('cpu', dtype=dtype, enabled=dtype != torch.float32):
            maps = model(torch.randn(2, 3, 70, 64))
        sum((level.float() * torch.randn_like(level.float())).sum() for level in maps).backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), key
            # a shared offset of all keys has no effect
            assert parameter.grad.abs().sum() > 0 or key.endswith('k_norm.bias'), key


@torch.no_grad()
@pytest.mark.parametrize('joining', ['default', 'mpvg', 'unshare'])
def test_rotary_and_a_table_reach_the_output_and_fold(joining):
    torch.manual_seed(0)
    image = torch.randn(1, 3, 64, 48)
    outputs = []
    for position in ('learnable', 'learnable+rope', 'learnable+rope_mixed'):
        model = adapter('dinov2_small_reg', joining, position=position).eval()
        outputs.append(model(image))
        assert gap(fold(model, (64, 48))(image), outputs[-1]) < 1e-5
        for table in model.table_names:
            getattr(model, table).mul_(2)
        assert gap(model(image), outputs[-1]) > 1e-3
        if model.rope is not None and model.rope.freqs is not None:
            before = model(image)
            model.rope.freqs.mul_(2)
            assert gap(model(image), before) > 1e-3
    assert DeiT(**shrunk('dinov3_small')).table_names == []
    assert DeiT(**shrunk('dinov3_small'), joining='pvg').table_names == ['pos_embed']


@torch.no_grad()
def test_registers_see_all_windows_and_are_seen_in_each():
    torch.manual_seed(0)
    image = torch.randn(1, 3, 64, 64)
    whole = adapter('dinov3_small', windows=[None] * 4).eval()
    one = adapter('dinov3_small', windows=[4, 4, 4, None]).eval()  # one window
    four = adapter('dinov3_small', windows=[2, 2, 2, None]).eval()
    for model in (one, four):
        model.load_state_dict(whole.state_dict())
    assert gap(one(image), whole(image)) < 1e-5
    before = four(image)
    assert gap(before, whole(image)) > 1e-3
    four.reg_token.mul_(-1)
    assert gap(four(image), before) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize('variant', ['detection', 'segmentation'])
def test_patches_of_14_pixels_lie_where_they_are_in_the_image(variant):
    """A ViT that passes the mean of each patch through, over an adapter that adds nothing."""
    model = adapter('dinov2_small', variant=variant, last_norm=False).eval()
    for name, parameter in model.named_parameters():
        if not name.startswith('norm'):
            parameter.zero_()
        elif name.endswith('weight'):
            parameter.fill_((1 + 1e-5) ** .5)  # BatchNorm's eps
        else:
            parameter.zero_()
    model.patch_embed.proj.weight[0, 0] = 1 / 14 ** 2
    for width in (70, 100, 224):
        ramp = torch.arange(width) + .5
        image = ramp.expand(1, 3, 60, width)
        for stride, level in zip((4, 8, 16, 32), model(image)):
            centres = (torch.arange(level.shape[-1]) + .5) * stride
            # between the first and last patch that lie in the image
            inside = (centres >= 7) & (centres <= 14 * (width // 14) - 7)
            assert inside.any()
            torch.testing.assert_close(level[0, 0, 0, inside], centres[inside])


def test_timms_names_with_joinings():
    import lape_mm.timm as registered
    for arch in ARCHS.values():
        assert not arch.timm or f'lape_mm_{arch.timm.split(".")[0]}' in registered.ARCHITECTURES
    image = torch.randn(1, 3, 56, 42)
    for joining in ('default', 'mpvg'):
        model = timm.create_model(f'lape_mm_eva02_tiny_patch14_224.{joining}', num_classes=5).eval()
        assert model(image).shape == (1, 5)
        groups = timm.models.group_parameters(model, model.group_matcher())
        assert sorted(sum(groups.values(), [])) == sorted(dict(model.named_parameters()))
        torch.testing.assert_close(
            model(image), model.forward_head(model.forward_features(image)))
    maps = timm.create_model('lape_mm_vit_adapter_eva02_tiny.pvg', features_only=True)(image)
    assert [tuple(level.shape[2:]) for level in maps] == [(14, 11), (7, 6), (4, 3), (2, 2)]


@pytest.mark.long
def test_adapter_compiles_as_one_graph():
    torch.manual_seed(0)
    image = torch.randn(2, 3, 64, 96)
    for name in ('dinov2_small_reg', 'dinov3_small'):
        model = adapter(name, 'mpvg').eval()
        compiled = torch.compile(model, fullgraph=True, backend='eager')
        assert gap(compiled(image), model(image)) <= 1e-5
    torch.compiler.reset()


@pytest.mark.long
@pytest.mark.parametrize('name', ['dinov3_small', 'dinov2_small_reg', 'eva02_base'])
def test_adapter_exports(name, tmp_path):
    pytest.importorskip('onnxruntime')
    torch.manual_seed(0)
    model = fold(adapter(name, 'mpvg').eval(), (70, 96))
    image = torch.randn(2, 3, 70, 96)
    path = str(tmp_path / 'a.onnx')
    torch.onnx.export(model, (image,), path, dynamo=True, opset_version=18, verbose=False,
                      input_names=['image'])
    import onnxruntime
    outputs = onnxruntime.InferenceSession(path).run(None, {'image': image.numpy()})
    assert gap([torch.from_numpy(output) for output in outputs], flat(model(image))) < 1e-4
