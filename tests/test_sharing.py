"""A backbone goes into a folder and comes out of it as it was, offline."""
import json
import pickle
import re
import shutil

import pytest

pytest.importorskip('mmengine')
pytest.importorskip('safetensors')

import torch  # noqa: E402

from lape_mm import CeiT, CompactTransformer, DeiT, Swin, T2TViT, ViTAdapter, fold  # noqa: E402
from lape_mm.checkpoints import CheckpointError, load_backbone  # noqa: E402
from lape_mm.registry import MODELS  # noqa: E402
from lape_mm.sharing import from_pretrained, save_pretrained  # noqa: E402

ARCH = dict(embed_dim=24, depth=4, num_heads=3)
BUILDS = {
    'DeiT': lambda **kwargs: DeiT(arch=ARCH, img_size=32, joining='mpvg', **kwargs),
    'dict': lambda **kwargs: DeiT(arch=ARCH, img_size=(32, 48), joining=dict(last=0), **kwargs),
    'ViTAdapter': lambda **kwargs: ViTAdapter(
        arch=dict(ARCH, conv_inplane=8, deform_num_heads=3), img_size=32, joining='lape', **kwargs),
    'Swin': lambda **kwargs: Swin(arch=dict(embed_dim=12, depths=(1, 1), num_heads=(1, 2)),
                                  img_size=32, joining='pvg', **kwargs),
    'CeiT': lambda **kwargs: CeiT(arch=ARCH, img_size=32, joining='lape', **kwargs),
    'T2TViT': lambda **kwargs: T2TViT(arch=dict(ARCH, token_dim=8), img_size=32, **kwargs),
    'CCT': lambda **kwargs: CompactTransformer(arch='cct_7_3x1', joining='mpvg', **kwargs),
}


@pytest.mark.parametrize('name', BUILDS)
def test_it_comes_back_as_it_was(name, tmp_path):
    torch.manual_seed(0)
    model = BUILDS[name](drop_path_rate=.1).eval()
    folder = save_pretrained(model, tmp_path / 'shared')
    assert sorted(path.name for path in folder.iterdir()) == [
        'README.md', 'config.json', 'model.safetensors']
    again = from_pretrained(folder).eval()
    assert type(again) is type(model) and again.arguments == {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in json.loads(json.dumps(model.arguments)).items()}
    img = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        for value, expected in zip(again(img), model(img), strict=True):
            assert torch.equal(value, expected)
    changed = from_pretrained(folder, drop_path_rate=0.)
    assert changed.drop_path_rates[-1] == 0


def test_position_embedding_is_resized_to_another_image_size(tmp_path):
    model = BUILDS['dict']().eval()
    folder = save_pretrained(model, tmp_path / 'shared')
    larger = from_pretrained(folder, img_size=(64, 48)).eval()
    assert larger.grid == (4, 3)
    img = torch.rand(1, 3, 64, 48)
    with torch.no_grad():
        torch.testing.assert_close(larger(img), model(img))


def test_the_card_says_how_to_use_it(tmp_path):
    model = BUILDS['dict']()
    folder = save_pretrained(model, tmp_path / 'shared', name='A title', description='Of cats.')
    card = (folder / 'README.md').read_text()
    yaml = pytest.importorskip('yaml')
    head = yaml.safe_load(card.split('---')[1])
    assert head['library_name'] == 'lape_mm' and 'position-embedding' in head['tags']
    count = sum(value.numel() for value in model.parameters())
    assert '# A title' in card and 'Of cats.' in card and f'{count:,} parameters' in card
    first, second = re.findall(r'```python\n(.*?)```', card, re.S)
    names = {}
    exec(first, names)
    assert torch.equal(names['backbone'].pos_embed, model.pos_embed)
    exec(second, names)
    built = MODELS.build(names['backbone'])
    built.init_weights()
    for key, value in model.state_dict().items():
        assert torch.equal(built.state_dict()[key], value), key


def test_the_card_on_the_hub_names_addresses(tmp_path, monkeypatch):
    model, asked = BUILDS['DeiT'](), []
    folder = save_pretrained(model, tmp_path / 'shared', repo_id='somebody/deit')
    first, second = re.findall(r'```python\n(.*?)```', (folder / 'README.md').read_text(), re.S)
    assert 'from_pretrained("somebody/deit")' in first and str(tmp_path) not in first + second
    names = {}
    exec(second, names)
    address = 'https://huggingface.co/somebody/deit/resolve/main/model.safetensors'
    assert names['backbone']['init_cfg'] == dict(checkpoint=address)

    def fetch(url, path):
        asked.append(url)
        shutil.copyfile(folder / 'model.safetensors', path)

    monkeypatch.setattr(torch.hub, 'download_url_to_file', fetch)
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    built = MODELS.build(names['backbone'])
    built.init_weights()
    for key, value in model.state_dict().items():
        assert torch.equal(built.state_dict()[key], value), key
    assert asked == [address]


def test_it_is_a_checkpoint_for_every_other_backbone(tmp_path):
    folder = save_pretrained(BUILDS['DeiT'](), tmp_path)
    other = ViTAdapter(arch=dict(ARCH, conv_inplane=8, deform_num_heads=3), img_size=64,
                       joining='mpvg')
    assert load_backbone(other, folder / 'model.safetensors').share == 1


def test_copies_and_pickles_know_their_arguments():
    model = BUILDS['DeiT']()
    assert pickle.loads(pickle.dumps(model)).arguments == model.arguments
    assert model.arguments['joining'] == 'mpvg'


def test_what_cannot_be_shared(tmp_path):
    with pytest.raises(ValueError, match='Linear'):
        save_pretrained(torch.nn.Linear(1, 1), tmp_path)
    with pytest.raises(ValueError, match='not folded'):
        save_pretrained(fold(BUILDS['DeiT'](), 32), tmp_path)
    model = BUILDS['DeiT']()
    model.norm = torch.nn.LayerNorm(12)
    with pytest.raises(ValueError, match='changed since it was built: norm'):
        save_pretrained(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_folders_that_are_not_whole(tmp_path):
    folder = save_pretrained(BUILDS['DeiT'](), tmp_path / 'shared')
    config = json.loads((folder / 'config.json').read_text())
    with pytest.raises(CheckpointError, match='does not fit config.json: .*pe_norm'):
        from_pretrained(folder, joining='default', class_token=False)
    for kind, error in (('torch.nn.Linear', 'expected one of'), ('fold', 'expected one of')):
        config['backbone']['type'] = kind
        (folder / 'config.json').write_text(json.dumps(config))
        with pytest.raises(ValueError, match=error):
            from_pretrained(folder)
    (folder / 'config.json').write_text('{')
    with pytest.raises(CheckpointError, match='no config'):
        from_pretrained(folder)


def test_the_hub_is_asked_for_what_is_no_folder(tmp_path, monkeypatch):
    hub = pytest.importorskip('huggingface_hub')
    model = BUILDS['DeiT']()
    folder, asked = save_pretrained(model, tmp_path / 'shared'), []

    def snapshot_download(repo_id, revision, allow_patterns):
        asked.append((repo_id, revision))
        if repo_id != 'somebody/deit':
            raise OSError('offline')
        return str(folder)

    monkeypatch.setattr(hub, 'snapshot_download', snapshot_download)
    again = from_pretrained('somebody/deit', revision='v1')
    assert torch.equal(again.pos_embed, model.pos_embed) and asked == [('somebody/deit', 'v1')]
    with pytest.raises(CheckpointError, match='somebody/else: neither a folder'):
        from_pretrained('somebody/else')
