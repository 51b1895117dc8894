"""PositionHook: what it logs, and that it does nothing between two logs."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip('mmengine')
from mmengine.registry import HOOKS  # noqa: E402

from lape_mm.analysis.pe_per_layer import pe_per_layer  # noqa: E402
from lape_mm.backbones import DeiT, Swin  # noqa: E402

SIZES = dict(embed_dim=24, depth=3, num_heads=3)


def drive(model, iterations, interval, shape=(2, 3, 32, 32), passes=1):
    """Runs the hook as mmengine's loop does, on random images: rows logged, images."""
    hook, rows, images = HOOKS.build(dict(type='lape_mm.PositionHook', interval=interval)), [], []
    log = SimpleNamespace(add_scalars=lambda scalars, step: rows.append((step, scalars)))
    runner = SimpleNamespace(model=torch.nn.Sequential(model), visualizer=log, iter=0)
    hook.before_train(runner)
    for index in range(iterations):
        runner.iter = index
        hook.before_train_iter(runner, index)
        images.append(torch.randn(*shape))
        for _ in range(passes):
            runner.model(images[-1])[0].sum().backward()
        hook.after_train_iter(runner, index)
    return rows, images


def test_the_numbers_are_those_of_the_iteration():
    torch.manual_seed(0)
    model = DeiT(arch=SIZES, img_size=32, joining='mpvg')
    torch.nn.init.normal_(model.norm.bias)
    rows, images = drive(model, 4, interval=2)
    assert [step for step, _ in rows] == [2, 4]
    scalars = rows[-1][1]
    assert set(scalars) == {f'position/{name}/layer{layer}' for layer in range(3) for name in
                            ('correlation', 'norm')} | {
        f'position/last_norm/{name}_variance' for name in ('beta', 'gamma')}
    entries, seen = pe_per_layer(model, 32), []
    model.blocks[2].norm1.register_forward_hook(
        lambda module, args, output: seen.append(output.mean(0).detach().double().ravel()))
    model(images[3])
    expected = np.corrcoef(seen[0], entries[2].values.ravel())[0, 1]
    assert scalars['position/correlation/layer2'] == pytest.approx(expected, abs=1e-6)
    assert scalars['position/norm/layer1'] == pytest.approx(
        np.linalg.norm(entries[1].values, axis=1).mean())
    beta = model.norm.bias.detach().double().numpy()
    assert scalars['position/last_norm/beta_variance'] == pytest.approx(beta.var(), rel=1e-5)


def test_it_computes_nothing_between_two_logs(monkeypatch):
    model, plans = DeiT(arch=SIZES, img_size=32, joining='lape'), []
    monkeypatch.setattr(model, 'make_plan', lambda grid, make=model.make_plan: (
        plans.append(grid), make(grid))[1])
    rows, _ = drive(model, 20, interval=10, shape=(1, 3, 32, 32))
    # one for each forward pass, and what `pe_per_layer` asks for at each log
    assert [step for step, _ in rows] == [10, 20] and len(plans) - 20 <= 3 * len(rows)


@pytest.mark.parametrize('model, settings, height, shown', [
    (Swin, dict(arch=dict(embed_dim=8, depths=(1, 1), num_heads=(1, 2), window_size=4),
                joining='lape'), 64, True),
    (DeiT, dict(arch=SIZES, joining='lape', position='relative'), 32, False),
    (DeiT, dict(arch=SIZES, joining='pvg', with_cp=True), 64, True)])
def test_other_models_sizes_and_repeated_passes(model, settings, height, shown):
    model = model(img_size=32, **settings)
    rows, _ = drive(model, 2, interval=1, shape=(1, 3, height, 32), passes=2)
    assert len(rows) == 2 and ('position/correlation/layer1' in rows[1][1]) == shown
    assert 'position/last_norm/gamma_variance' in rows[1][1]


def test_what_is_refused():
    hook = HOOKS.build(dict(type='lape_mm.PositionHook'))
    with pytest.raises(ValueError, match='no backbone of lape_mm'):
        hook.before_train(SimpleNamespace(model=torch.nn.Linear(1, 1)))
