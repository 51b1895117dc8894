"""A backbone goes into a folder and comes out of it as it was, offline."""
import json
import pickle
from functools import partial

import pytest

pytest.importorskip('mmengine')
pytest.importorskip('safetensors')

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tiny_models import build  # noqa: E402

from lape_mm import DeiT, Swin, ViTAdapter, fold  # noqa: E402
from lape_mm.checkpoints import CheckpointError, load_backbone  # noqa: E402
from lape_mm.position import build_joining  # noqa: E402

ARCH = dict(embed_dim=24, depth=4, num_heads=3)
BUILDS = {
    'DeiT': lambda **kwargs: DeiT(arch=ARCH, img_size=32, joining='mpvg', **kwargs),
    'dict': lambda **kwargs: DeiT(arch=ARCH, img_size=(32, 48), joining=dict(last=0), **kwargs),
    **{name: partial(build, name, joining) for name, joining in (
        ('ViTAdapter', 'lape'), ('Swin', 'pvg'), ('CeiT', 'lape'),
        ('T2TViT transformer', 'default'), ('CCT', 'mpvg'))},
}


def shared(model, folder):
    model.save_pretrained(folder)
    return folder


def same(model, other):
    ours, theirs = model.state_dict(), other.state_dict()
    return set(ours) == set(theirs) and all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize('name', BUILDS)
def test_it_comes_back_as_it_was(name, tmp_path):
    torch.manual_seed(0)
    model = BUILDS[name](drop_path_rate=.1, init_cfg=dict(checkpoint='/home/me/x.pth')).eval()
    folder = shared(model, tmp_path / 'shared')
    assert sorted(path.name for path in folder.iterdir()) == [
        'README.md', 'config.json', 'model.safetensors']
    assert '/home/me' not in (folder / 'config.json').read_text()
    again = type(model).from_pretrained(folder)
    assert type(again) is type(model) and not again.training and same(again, model)
    img = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        for value, expected in zip(again(img), model(img), strict=True):
            assert torch.equal(value, expected)
    assert type(model).from_pretrained(folder, drop_path_rate=0.).drop_path_rates[-1] == 0


def write_as_0_1_0(model, folder, **arguments):
    """The files of version 0.1.0's save_pretrained, without the card."""
    from safetensors.torch import save_model
    folder.mkdir()
    save_model(model, str(folder / 'model.safetensors'), metadata=dict(format='pt'))
    (folder / 'config.json').write_text(json.dumps(dict(
        lape_mm_version='0.1.0', backbone=dict(type=f'lape_mm.{type(model).__name__}',
                                               **arguments))))
    return folder


def test_folders_of_version_0_1_0(tmp_path):
    model = BUILDS['dict']().eval()
    folder = write_as_0_1_0(model, tmp_path / 'old', arch=ARCH, img_size=[32, 48],
                            joining=dict(last=0))
    assert same(DeiT.from_pretrained(folder), model)
    assert DeiT.from_pretrained(folder, img_size=(64, 48)).grid == (4, 3)
    with pytest.raises(ValueError, match='is a DeiT: load it by DeiT.from_pretrained'):
        Swin.from_pretrained(folder)


def test_position_embedding_is_resized_to_another_image_size(tmp_path):
    model = BUILDS['dict']().eval()
    larger = DeiT.from_pretrained(shared(model, tmp_path / 'shared'), img_size=(64, 48))
    assert larger.grid == (4, 3)
    img = torch.rand(1, 3, 64, 48)
    with torch.no_grad():
        torch.testing.assert_close(larger(img), model(img))


def test_a_joining_object_and_a_classifier_of_timm(tmp_path):
    joining, _ = build_joining('mpvg', depth=4)
    model = DeiT(arch=ARCH, img_size=32, joining=joining)
    assert same(DeiT.from_pretrained(shared(model, tmp_path / 'a')), model)
    pytest.importorskip('timm')
    from lape_mm.timm.entries import DeiTClassifier
    model = DeiTClassifier(arch=ARCH, img_size=32, joining='pvg', num_classes=7)
    again = DeiTClassifier.from_pretrained(shared(model, tmp_path / 'b'))
    assert same(again, model) and again.head.out_features == 7


def test_it_is_a_checkpoint_for_every_other_backbone(tmp_path):
    folder = shared(BUILDS['DeiT'](), tmp_path)
    other = ViTAdapter(arch=dict(ARCH, conv_inplane=8, deform_num_heads=3), img_size=64,
                       joining='mpvg')
    assert load_backbone(other, folder / 'model.safetensors').share == 1


def test_copies_and_pickles_are_shared_as_their_originals(tmp_path):
    model = BUILDS['DeiT']()
    again = pickle.loads(pickle.dumps(model))
    assert same(DeiT.from_pretrained(shared(again, tmp_path)), model)


def test_what_cannot_be_shared(tmp_path):
    with pytest.raises(ValueError, match='folded'):
        fold(BUILDS['DeiT'](), 32).save_pretrained(tmp_path)
    model = BUILDS['DeiT']()
    model.norm = torch.nn.LayerNorm(12)
    with pytest.raises(ValueError, match='changed after it was built.* norm.weight'):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_config_json_could_not_rebuild(tmp_path):
    folder = shared(BUILDS['DeiT'](), tmp_path / 'shared')
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    arch = dict(embed_dim=12, depth=2, num_heads=3)
    for options in (dict(out_indices=range(2)), dict(norm_eps=np.float32(1e-3))):
        with pytest.raises(ValueError, match='could not rebuild'):
            DeiT(arch=arch, img_size=32, **options).save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == written
    (folder / 'config.json').unlink()
    with pytest.raises(ValueError, match='has no config.json'):
        DeiT.from_pretrained(folder)


def test_weights_that_do_not_fit(tmp_path):
    folder = shared(BUILDS['DeiT'](), tmp_path / 'shared')
    with pytest.raises(CheckpointError, match='does not fit the model: .*pe_norm'):
        DeiT.from_pretrained(folder, joining='default', class_token=False)
    (folder / 'model.safetensors').write_bytes(b'')
    with pytest.raises(CheckpointError, match=str(folder)):
        DeiT.from_pretrained(folder)


def test_the_hub_is_asked_for_what_is_no_folder(tmp_path, monkeypatch):
    model, asked = BUILDS['DeiT'](), []
    folder = shared(model, tmp_path / 'shared')

    def download(repo_id, filename, revision, **options):
        asked.append((repo_id, filename, revision))
        return str(folder / filename)

    for user in ('huggingface_hub.hub_mixin', 'lape_mm.sharing'):
        monkeypatch.setattr(f'{user}.hf_hub_download', download)
    assert same(DeiT.from_pretrained('somebody/deit', revision='v1'), model)
    assert asked == [('somebody/deit', name, 'v1') for name in ('config.json', 'model.safetensors')]
    head = pytest.importorskip('yaml').safe_load((folder / 'README.md').read_text().split('---')[1])
    assert head['library_name'] == 'lape_mm' and 'position-embedding' in head['tags']
