"""Settings of joinings. tests/backbones and the goldens hold the presets to the equations."""
import pytest
import torch

from lape_mm.position import PRESETS, Joining, build_joining

DEPTH, DIM, TOKENS = 4, 8, 6


def norms_of(joining):
    *layers, last = (joining.pe_norm(layer, dim=DIM, eps=1e-6) for layer in (*range(DEPTH), None))
    for norm in [*layers, last]:
        if norm is not None:
            torch.nn.init.normal_(norm.weight)
            torch.nn.init.normal_(norm.bias)
    return layers, last


def apply(norm, x):
    mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias


def test_unshare_delivers_a_table_a_layer():
    tables = list(torch.randn(DEPTH, 1, TOKENS, DIM))
    joining = PRESETS['unshare']
    assert joining.num_tables(DEPTH) == DEPTH
    plan = joining.plan(tables, [None] * DEPTH)
    assert all(given is table for given, table in zip(plan.residual, tables))
    assert plan.pre_attn == (None,) * DEPTH and plan.post_norm is None


@pytest.mark.parametrize('last', [1, 2, 3])
def test_table_5_last_receives_what_layer_k_receives(last):
    joining = Joining(first_layer=1, last=last)
    layers, norm = norms_of(joining)
    plan = joining.plan([torch.randn(1, TOKENS, DIM)], layers, norm)
    torch.testing.assert_close(plan.post_norm, apply(norm, plan.pre_attn[last]), rtol=0, atol=1e-5)


def test_figure_5b_delivers_to_the_last_norm_alone():
    joining = Joining(last=0)
    layers, last = norms_of(joining)
    assert layers == [None] * DEPTH and last is not None
    plan = joining.plan([torch.randn(1, TOKENS, DIM)], layers, last)
    assert plan.pre_attn == (None,) * DEPTH and plan.post_norm is not None


def test_class_token_follows_the_papers():
    token = {name: build_joining(name, depth=12)[1] for name in PRESETS}
    assert token == {'default': True, 'share': True, 'unshare': True, 'lape': True, 'pvg': False,
                     'mpvg': False}
    assert build_joining('default', depth=12, class_token=False)[1] is False
    # figure 6a: PVG with a class token, written out
    spec = dict(add_to_input=True, first_layer=1, hierarchical=True, last=None)
    assert build_joining(spec, depth=12, class_token=True) == (PRESETS['pvg'], True)
    assert build_joining(spec, depth=12)[1] is False


@pytest.mark.parametrize('spec, options, words', [
    ('LAPE', {}, ["'LAPE'", "'lape'", "'mpvg'"]),
    ('pvg', dict(class_token=True), ["'pvg'", 'class_token']),
    ('mpvg', dict(class_token=True), ["'mpvg'", 'class_token']),
    ('mpvg', dict(depth=1), ['depth=1']),
    ('default', dict(depth=0), ['depth=0']),
    (dict(first_layer=2), {}, ['first_layer=2', '0, 1 or None']),
    (dict(first_layer=True), {}, ['first_layer=True']),
    (dict(first_layer=1, last=12), {}, ['last=12', '11']),
    (dict(last=3), {}, ['last=3']),
    (dict(last=-1), {}, ['last=-1']),
    (dict(last=False), {}, ['last=False']),
    (dict(hierarchical=None), {}, ['hierarchical=None']),
    (dict(add_to_input='yes'), {}, ["add_to_input='yes'", 'True or False']),
    (dict(add_to_input=False), {}, ['nowhere']),
    (dict(first=0), {}, ["'first'", 'first_layer']),
    (None, {}, ['None', "'default'"]),
    (['mpvg'], {}, ["['mpvg']"]),
])
def test_errors_name_the_value_and_what_is_allowed(spec, options, words):
    with pytest.raises(ValueError) as error:
        build_joining(spec, **{'depth': 12, **options})
    for word in words:
        assert word in str(error.value)
