"""Joinings against the equations of the MPVG paper, written out here once more and plainly."""
import pytest
import torch
import torch.nn.functional as F

from lape_mm.position import PRESETS, Joining, PositionPlan, build_joining

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


def equations(name, pos, layers, last):
    """Equations 1 (default), 5-7 (LaPE), 8-10 (PVG) and 11 (MPVG), layer by layer."""
    residual, pre_attn, post_norm = [None] * DEPTH, [None] * DEPTH, None
    if name == 'share':
        residual = [pos] * DEPTH
    if name in ('default', 'pvg', 'mpvg'):
        residual[0] = pos
    if name == 'lape':
        pos_l = pos
        for layer in range(DEPTH):
            pos_l = pre_attn[layer] = apply(layers[layer], pos_l)
    if name in ('pvg', 'mpvg'):
        pos_l = pos
        for layer in range(1, DEPTH):
            pos_l = pre_attn[layer] = apply(layers[layer], pos_l)
    if name == 'mpvg':
        post_norm = apply(last, pos)
    return PositionPlan(tuple(residual), tuple(pre_attn), (None,) * DEPTH, post_norm)


def assert_same(plan, expected):
    for ours, theirs in zip((*plan.residual, *plan.pre_attn, plan.post_norm),
                            (*expected.residual, *expected.pre_attn, expected.post_norm)):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize('name', ['default', 'share', 'lape', 'pvg', 'mpvg'])
def test_presets_follow_the_equations(name):
    torch.manual_seed(0)
    joining = PRESETS[name]
    layers, last = norms_of(joining)
    pos = torch.randn(1, TOKENS, DIM)
    assert_same(joining.plan([pos], layers, last), equations(name, pos, layers, last))


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


def test_table_6_rows_differ_as_named():
    pos = torch.randn(1, TOKENS, DIM)
    for settings, check in (
            (dict(first_layer=0, last=0), lambda plan: plan.pre_attn[0] is not None),
            (dict(first_layer=1, last=0, add_to_input=False),
             lambda plan: plan.residual[0] is None)):
        joining = Joining(**settings)
        assert check(joining.plan([pos], *norms_of(joining)))
    joining = Joining(first_layer=1, hierarchical=False, last=0)
    layers, last = norms_of(joining)
    plan = joining.plan([pos], layers, last)
    for layer in (1, 2, 3):
        torch.testing.assert_close(plan.pre_attn[layer], apply(layers[layer], pos),
                                   rtol=0, atol=1e-5)


def test_figure_5b_delivers_to_the_last_norm_alone():
    joining = Joining(last=0)
    layers, last = norms_of(joining)
    assert layers == [None] * DEPTH and last is not None
    plan = joining.plan([torch.randn(1, TOKENS, DIM)], layers, last)
    assert plan.pre_attn == (None,) * DEPTH and plan.post_norm is not None


def test_norm_counts():
    count = {name: sum(norm is not None for norm in norms_of(joining)[0])
             for name, joining in PRESETS.items()}
    assert count == {'default': 0, 'share': 0, 'unshare': 0, 'lape': DEPTH, 'pvg': DEPTH - 1,
                     'mpvg': DEPTH - 1}
    assert [name for name, joining in PRESETS.items() if norms_of(joining)[1]] == ['mpvg']


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


def test_last_norm_equals_torch():
    norm = torch.nn.LayerNorm(DIM, eps=1e-6)
    x = torch.randn(2, 3, DIM)
    torch.testing.assert_close(apply(norm, x), F.layer_norm(x, (DIM,), eps=1e-6))
