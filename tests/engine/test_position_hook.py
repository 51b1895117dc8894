"""PositionHook: what it logs, to which backends, and that it does nothing in between."""
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip('mmengine')
from mmengine.registry import HOOKS  # noqa: E402

from lape_mm.analysis.pe_per_layer import pe_per_layer  # noqa: E402
from lape_mm.backbones import DeiT, Swin  # noqa: E402

SIZES = dict(embed_dim=24, depth=3, num_heads=3)


class Logged:
    def __init__(self):
        self.rows = []

    def add_scalars(self, scalars, step):
        self.rows.append((step, scalars))


def drive(model, iterations, interval, shape=(2, 3, 32, 32), passes=1):
    """The hook within a loop as mmengine's, over random images; what was logged, and the images."""
    hook = HOOKS.build(dict(type='lape_mm.PositionHook', interval=interval))
    runner = SimpleNamespace(model=torch.nn.Sequential(model), visualizer=Logged(), iter=0)
    hook.before_train(runner)
    images = []
    for index in range(iterations):
        runner.iter = index
        hook.before_train_iter(runner, index)
        images.append(torch.randn(*shape))
        for _ in range(passes):
            runner.model(images[-1])[0].sum().backward()
        hook.after_train_iter(runner, index)
    return runner.visualizer.rows, images


def test_the_numbers_are_those_of_the_iteration():
    torch.manual_seed(0)
    model = DeiT(arch=SIZES, img_size=32, joining='mpvg')
    torch.nn.init.normal_(model.norm.bias)
    rows, images = drive(model, 4, interval=2)
    assert [step for step, _ in rows] == [2, 4]
    step, scalars = rows[-1]
    assert set(scalars) == {f'position/{name}/layer{layer}' for layer in range(3) for name in
                            ('correlation', 'norm')} | {
        f'position/last_norm/{name}_variance' for name in ('beta', 'gamma')}
    entries = pe_per_layer(model, 32)
    seen = {}
    handle = model.blocks[2].norm1.register_forward_hook(
        lambda module, args, output: seen.update(tokens=output.mean(0)))
    model(images[3])
    handle.remove()
    assert scalars['position/correlation/layer2'] == pytest.approx(np.corrcoef(
        seen['tokens'].detach().double().ravel(), entries[2].values.ravel())[0, 1], abs=1e-6)
    assert scalars['position/norm/layer1'] == pytest.approx(
        np.linalg.norm(entries[1].values, axis=1).mean())
    beta = model.norm.bias.detach().double().numpy()
    assert scalars['position/last_norm/beta_variance'] == pytest.approx(beta.var(), rel=1e-5)


def test_it_costs_nothing_between_its_iterations(monkeypatch):
    """Counted, since a time is not repeatable: hooks, plans and calls, over 100 iterations."""
    model = DeiT(arch=SIZES, img_size=32, joining='lape')
    plans = []
    monkeypatch.setattr(model, 'make_plan', lambda grid, make=model.make_plan: (
        plans.append(grid), make(grid))[1])
    from lape_mm.engine.position_hook import PositionHook
    notes = []
    monkeypatch.setattr(PositionHook, '_note', lambda self, layer, *rest, note=PositionHook._note:
                        (notes.append(layer), note(self, layer, *rest))[1])
    rows, _ = drive(model, 100, interval=50, shape=(1, 3, 32, 32))
    assert [step for step, _ in rows] == [50, 100]
    assert notes == [0, 1, 2] * 2
    # one a forward, and for each log what `pe_per_layer` asks for
    assert len(plans) - 100 <= 3 * len(rows)
    assert not any(module._forward_hooks or module._forward_pre_hooks
                   for module in model.modules())


def test_the_default_interval_is_rare_enough():
    """Were a log as dear as a whole step, it would still be below 1 % of a hundred."""
    assert HOOKS.build(dict(type='lape_mm.PositionHook')).interval >= 100


def test_swin_other_sizes_and_layers_that_receive_nothing():
    swin = Swin(arch=dict(embed_dim=8, depths=(1, 1), num_heads=(1, 2), window_size=4),
                img_size=32, joining='lape')
    (_, scalars), = drive(swin, 1, interval=1, shape=(1, 3, 40, 32))[0]
    assert 'position/correlation/layer1' in scalars
    model = DeiT(arch=SIZES, img_size=32, joining='lape', position='relative')
    (_, scalars), = drive(model, 1, interval=1)[0]
    assert set(scalars) == {'position/last_norm/beta_variance', 'position/last_norm/gamma_variance'}


def test_checkpointed_layers_and_several_batches_are_noted_once():
    model = DeiT(arch=SIZES, img_size=32, joining='pvg', with_cp=True)
    rows, _ = drive(model, 2, interval=1, passes=2)
    assert len(rows) == 2 and 'position/correlation/layer2' in rows[1][1]


def test_what_is_refused():
    with pytest.raises(ValueError, match='expected at least 1'):
        HOOKS.build(dict(type='lape_mm.PositionHook', interval=0))
    hook = HOOKS.build(dict(type='lape_mm.PositionHook'))
    with pytest.raises(ValueError, match='no backbone of lape_mm'):
        hook.before_train(SimpleNamespace(model=torch.nn.Linear(1, 1)))


def test_a_runs_own_backends_get_it(tmp_path):
    """mmengine's runner and its file backend, over a toy model around a backbone."""
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Toy(BaseModel):
        def __init__(self):
            super().__init__()
            self.backbone = DeiT(arch=SIZES, img_size=32, joining='mpvg')

        def forward(self, inputs, mode):
            return dict(loss=self.backbone(torch.stack(inputs))[0].mean())

    data = [dict(inputs=torch.randn(3, 32, 32)) for _ in range(4)]
    Runner(model=Toy(), work_dir=str(tmp_path), default_scope='mmengine',
           train_dataloader=dict(dataset=data, batch_size=1, num_workers=0,
                                 sampler=dict(type='DefaultSampler', shuffle=False)),
           train_cfg=dict(by_epoch=True, max_epochs=1),
           optim_wrapper=dict(optimizer=dict(type='SGD', lr=.01)),
           custom_hooks=[dict(type='lape_mm.PositionHook', interval=2)],
           visualizer=dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')]),
           experiment_name='position_hook').train()
    scalars, = tmp_path.glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in scalars.read_text().splitlines()]
    logged = [row for row in rows if 'position/correlation/layer2' in row]
    assert [row['step'] for row in logged] == [2, 4]
