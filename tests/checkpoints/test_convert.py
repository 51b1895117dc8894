"""Official layouts to ours and back, to the bit, and what cannot be expressed."""
from pathlib import Path

import pytest
import torch

from lape_mm.backbones import DeiT
from lape_mm.checkpoints import CheckpointError, load_backbone, read_checkpoint
from lape_mm.checkpoints.convert import TARGETS, convert

GOLDENS = Path(__file__).parents[1] / 'data/goldens'
# golden -> the layout that it is in
OFFICIAL = {
    'lape_learnable_basic': 'lape', 'lape_learnable_LaPE': 'lape',
    'lape_learnable_unshare': 'lape', 'lape_distilled_LaPE': 'lape', 'lape_2D_RPE_LN': 'lape',
    'lape_1D_sin_LaPE': 'lape', 'lape_2D_sin_LaPE': 'lape',
    'vit_adapter_det_window': 'vit_adapter', 'vit_adapter_seg_global': 'vit_adapter',
}
# goldens of layouts that are read, and not written
READ = {'segmenter_mask': 'segmenter', 'swin_ape': 'swin', 'ceit': 'ceit', 't2t_performer': 't2t',
        'cct_learnable': 'compact'}


def official(name, folder):
    """A golden's state dict in a file as its release writes it, and the same in memory."""
    state = read_checkpoint(GOLDENS / f'{name}.pt')['state_dict']
    target = TARGETS[OFFICIAL[name]]
    state = {target.prefix + key: value for key, value in state.items()}
    content = {target.wrapper: state, 'epoch': 3} if target.wrapper else state
    torch.save(content, folder / 'official.pth')
    return folder / 'official.pth', state


def weights(path, wrapper):
    content = read_checkpoint(path)
    return content[wrapper] if wrapper else content


def assert_equal(ours, theirs):
    assert set(ours) == set(theirs), set(ours) ^ set(theirs)
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype and torch.equal(ours[key], value), key


@pytest.mark.parametrize('name', OFFICIAL)
def test_there_and_back_is_exact(name, tmp_path):
    between = 'ours.safetensors' if 'sin' in name else 'ours.pth'
    source, state = official(name, tmp_path)
    layout = OFFICIAL[name]
    convert(source, tmp_path / between, 'lape_mm')
    convert(tmp_path / between, tmp_path / 'back.pth', layout)
    assert_equal(weights(tmp_path / 'back.pth', TARGETS[layout].wrapper), state)


@pytest.mark.parametrize('distilled', [False, True])
@pytest.mark.parametrize('to', ['timm', 'deit', 'lape', 'mmpretrain'])
def test_our_classifier_there_and_back(to, distilled, tmp_path):
    model = DeiT(arch=dict(embed_dim=24, depth=2, num_heads=3), img_size=32, distilled=distilled)
    head = 'head.layers.head' if distilled else 'head.fc'
    state = {**{f'backbone.{key}': value for key, value in model.state_dict().items()},
             f'{head}.weight': torch.randn(5, 24), f'{head}.bias': torch.randn(5)}
    if distilled:
        state.update({'head.layers.head_dist.weight': torch.randn(5, 24),
                      'head.layers.head_dist.bias': torch.randn(5)})
    torch.save({'state_dict': state}, tmp_path / 'ours.pth')
    convert(tmp_path / 'ours.pth', tmp_path / 'theirs.safetensors', to)
    convert(tmp_path / 'theirs.safetensors', tmp_path / 'back.pth', 'lape_mm')
    assert_equal(weights(tmp_path / 'back.pth', 'state_dict'), state)


def test_timm_takes_the_file(tmp_path):
    timm = pytest.importorskip('timm')
    from timm.models import load_checkpoint
    ours = DeiT(arch='tiny').eval()
    state = {f'backbone.{key}': value for key, value in ours.state_dict().items()}
    state.update({'head.fc.weight': torch.randn(1000, 192), 'head.fc.bias': torch.randn(1000)})
    torch.save({'state_dict': state}, tmp_path / 'ours.pth')
    convert(tmp_path / 'ours.pth', tmp_path / 'timm.safetensors', 'timm')
    theirs = timm.create_model('deit_tiny_patch16_224').eval()
    load_checkpoint(theirs, str(tmp_path / 'timm.safetensors'), strict=True)
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        expected = ours(image)[0] @ state['head.fc.weight'].T + state['head.fc.bias']
        torch.testing.assert_close(theirs(image), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize('name', READ)
def test_what_is_read_becomes_ours_and_nothing_else(name, tmp_path):
    state = read_checkpoint(GOLDENS / f'{name}.pt')['state_dict']
    torch.save({'model': state}, tmp_path / 'official.pth')
    layout = READ[name]
    convert(tmp_path / 'official.pth', tmp_path / 'ours.pth', 'lape_mm')
    ours = weights(tmp_path / 'ours.pth', 'state_dict')
    assert 'backbone.pos_embed' in ours and any(key.startswith(('head', 'decode')) for key in ours)
    with pytest.raises(CheckpointError, match='timm cannot express this model'):
        convert(tmp_path / 'ours.pth', tmp_path / 'timm.pth', 'timm')
    with pytest.raises(CheckpointError, match=f'--to {layout}: expected one of lape_mm, '):
        convert(tmp_path / 'ours.pth', tmp_path / 'back.pth', layout)


@pytest.mark.parametrize('file', ['ours.pth', 'ours.safetensors'])
def test_what_version_0_1_0_kept_for_the_way_back_does_not_matter(file, tmp_path):
    model = DeiT(arch=dict(embed_dim=24, depth=2, num_heads=3), img_size=32)
    state = {f'backbone.{key}': value for key, value in model.state_dict().items()}
    index = {'blocks.0.attn.relative_position_index': torch.ones(4, 4, dtype=torch.int64)}
    if file.endswith('.pth'):
        torch.save({'state_dict': state, 'carried': {'lape': index}}, tmp_path / file)
    else:
        from safetensors.torch import save_file
        save_file({**state, **{f'carried/lape/{key}': value for key, value in index.items()}},
                  tmp_path / file)
    assert load_backbone(model, tmp_path / file, exact=True).share == 1.
    convert(tmp_path / file, tmp_path / 'deit.pth', 'deit')
    assert_equal(weights(tmp_path / 'deit.pth', 'model'), model.state_dict())


@pytest.mark.parametrize('options, to, words', [
    (dict(joining='lape'), 'timm', ['timm', 'pe_norm']),
    (dict(joining='unshare'), 'mmpretrain', ['pos_embed0']),
    (dict(position='relative'), 'timm', ['relative']),
    (dict(joining='pvg'), 'lape', ['class token']),
    (dict(joining='mpvg'), 'deit', ['pe_norm']),
    (dict(joining='default', class_token=False), 'mmpretrain', ['class token']),
    (dict(joining='default'), 'vit_adapter', ['level_embed']),
    (dict(joining='default'), 'nobody', ['--to nobody', 'lape, mmpretrain, vit_adapter']),
    (dict(joining=dict(add_to_input=True, first_layer=1), class_token=True), 'lape',
     ['blocks.0.pe_norm']),
    (dict(joining=dict(add_to_input=False, first_layer=0, norm='norm_scalar')), 'lape',
     ['LayerNorms']),
    (dict(img_size=(32, 80), position='relative'), 'lape', ['not square'])])
def test_what_cannot_be_expressed_is_said(options, to, words, tmp_path):
    model = DeiT(**{'arch': dict(embed_dim=24, depth=2, num_heads=3), 'img_size': 32, **options})
    torch.save(model.state_dict(), tmp_path / 'ours.pth')
    with pytest.raises(CheckpointError) as error:
        convert(tmp_path / 'ours.pth', tmp_path / 'theirs.pth', to)
    assert all(word in str(error.value) for word in words), error.value
    assert not (tmp_path / 'theirs.pth').exists()


def test_nothing_is_overwritten_unasked(tmp_path):
    source, _ = official('lape_learnable_basic', tmp_path)
    (tmp_path / 'there.pth').write_text('mine')
    with pytest.raises(CheckpointError, match='there.pth exists'):
        convert(source, tmp_path / 'there.pth', 'timm')
    assert (tmp_path / 'there.pth').read_text() == 'mine'
    convert(source, tmp_path / 'there.pth', 'timm', force=True)
    with pytest.raises(CheckpointError, match='nowhere'):
        convert(source, tmp_path / 'nowhere' / 'x.pth', 'timm')


def test_names_of_classes_go_along(tmp_path):
    """As tools/test.py compares them; to others' layouts nothing goes but weights."""
    model, named = DeiT(arch=dict(embed_dim=24, depth=2, num_heads=3), img_size=32), dict(
        classes=('a', 'b'))
    torch.save({'state_dict': {f'backbone.{key}': value
                               for key, value in model.state_dict().items()},
                'meta': dict(iter=3, dataset_meta=dict(named, seen=torch.ones(2)))},
               tmp_path / 'ours.pth')
    line = convert(tmp_path / 'ours.pth', tmp_path / 'theirs.pth', 'mmpretrain')
    assert read_checkpoint(tmp_path / 'theirs.pth')['meta'] == dict(dataset_meta=named)
    assert line.endswith('left out: meta (all but dataset_meta)')
    for out, to in (('deit.pth', 'deit'), ('ours.safetensors', 'lape_mm')):
        assert convert(tmp_path / 'ours.pth', tmp_path / out, to).endswith('left out: meta')
        assert 'meta' not in read_checkpoint(tmp_path / out)


def test_foreign_weights_and_what_is_left_out_are_named(tmp_path):
    state = DeiT(arch=dict(embed_dim=24, depth=2, num_heads=3), img_size=32).state_dict()
    torch.save({'model': dict(state, **{'blocks.0.ls1.gamma': torch.ones(24)})},
               tmp_path / 'foreign.pth')
    with pytest.raises(CheckpointError, match='blocks.0.ls1.gamma'):
        convert(tmp_path / 'foreign.pth', tmp_path / 'theirs.pth', 'mmpretrain')
    torch.save({'model': state, 'optimizer': {'state': {}}, 'epoch': 3}, tmp_path / 'run.pth')
    line = convert(tmp_path / 'run.pth', tmp_path / 'theirs.pth', 'timm')
    assert 'left out: optimizer, epoch' in line
