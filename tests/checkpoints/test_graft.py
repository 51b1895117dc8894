"""A joining grafted onto weights without it begins as what was pre-trained, and learns."""
import pytest
import torch

from lape_mm.backbones import DeiT, ViTAdapter
from lape_mm.checkpoints import CheckpointError, load_backbone

ARCH = dict(embed_dim=24, depth=4, num_heads=3)
ADAPTER = dict(ARCH, conv_inplane=8, deform_num_heads=4)


ROPE = dict(position='rope_dinov3', reg_tokens=2, qkv_bias='qv', layer_scale=.1)


def pretrained(path, **options):
    """A classifier's file with weights of a trained size."""
    model = build(DeiT, **options)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=.2)
    torch.save(model.state_dict(), path)
    return str(path)


def build(kind, more={}, **options):  # noqa: B006
    torch.manual_seed(2)
    more = dict(more)
    position = more.pop('position', None)
    return kind(arch=dict(ADAPTER if kind is ViTAdapter else ARCH, **more), img_size=64,
                position=position, **options)


def pe_parameters(model):
    return {name: value for name, value in model.named_parameters() if 'pe_norm' in name}


@pytest.mark.parametrize('kind, more, joining', [
    (DeiT, {}, 'pvg'), (DeiT, {}, 'mpvg'), (DeiT, ROPE, 'mpvg'), (DeiT, ROPE, 'lape'),
    (ViTAdapter, {}, 'pvg'), (ViTAdapter, {}, dict(first_layer=0, last=2)),
    (ViTAdapter, ROPE, 'pvg'), (ViTAdapter, ROPE, 'mpvg')])
def test_it_begins_as_the_default_and_every_norm_learns(tmp_path, kind, more, joining):
    path = pretrained(tmp_path / 'vit.pth', more=more)
    last = dict(last_norm=joining not in ('pvg', 'lape')) if kind is ViTAdapter else {}
    model, default = build(kind, more, joining=joining, class_token=False), build(
        kind, more, class_token=False, **last)
    report = load_backbone(model, path, graft=True)
    load_backbone(default, path, min_share=.9)
    assert report.share == 1. and not report.missing
    assert set(report.grafted) == {*pe_parameters(model), *(['pos_embed'] if more else [])}
    # the adapter's random numbers follow those of other norms
    model.load_state_dict({name: value for name, value in default.state_dict().items()
                           if name in report.new and '[' not in name}, strict=False)
    image = torch.randn(2, 3, 96, 64)
    with torch.no_grad():
        for one, other in zip(model.eval()(image), default.eval()(image), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)

    assert not any(value.any() for value in pe_parameters(model).values())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()
    for _ in range(10):
        loss = sum(level.square().mean() for level in model(image))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
    for name, value in pe_parameters(model).items():
        assert 0 < value.abs().max() < .01, name


def test_without_graft_the_warning_names_it(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr('lape_mm.checkpoints.transfer.print_log',
                        lambda text, **options: said.append(text))
    model = build(DeiT, joining='pvg')
    report = load_backbone(model, pretrained(tmp_path / 'vit.pth'), min_share=.9)
    assert len(report.missing) == 6 and not report.grafted
    assert (model.blocks[1].pe_norm.weight == 1).all()
    assert 'init_cfg.graft=True' in said[-1]


@pytest.mark.parametrize('joining, words', [
    ('lape', 'to the tokens'), ('share', 'to the tokens'),
    (dict(first_layer=1, norm='norm'), 'no gain')])
def test_what_cannot_begin_as_the_file_is_refused(tmp_path, joining, words):
    model = build(DeiT, joining=joining)
    with pytest.raises(CheckpointError, match=f'(?s)graft=True.*{words}.*pvg'):
        load_backbone(model, pretrained(tmp_path / 'vit.pth'), graft=True)


def test_a_file_with_all_norms_is_loaded_as_it_is(tmp_path):
    path = pretrained(tmp_path / 'mpvg.pth', joining='mpvg')
    model = build(DeiT, joining='mpvg')
    report = load_backbone(model, path, graft=True)
    assert not report.grafted and model.blocks[1].pe_norm.weight.any()
