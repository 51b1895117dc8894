from types import SimpleNamespace

import pytest
import torch

from lape_mm.backbones import DeiT
from lape_mm.registry import HOOKS


def test_evaluation_sees_a_folded_copy_of_the_present_weights():
    model = DeiT(arch=dict(embed_dim=24, depth=2, num_heads=3), img_size=32, joining='mpvg')
    runner = SimpleNamespace(model=model)
    hook = HOOKS.build(dict(type='lape_mm.FoldHook', img_size=32))
    image = torch.randn(1, 3, 32, 32)
    for change in (0., 1.):
        model.pos_embed.data.add_(change)  # as an average of weights is put in place
        hook.before_val_iter(runner, 0)
        folded = runner.model
        assert folded is not model and folded.folded is not None and not folded.training
        hook.before_val_iter(runner, 1)
        assert runner.model is folded
        with torch.no_grad():
            torch.testing.assert_close(folded(image)[0], model.eval()(image)[0])
        hook.after_val_epoch(runner, metrics={})
        assert runner.model is model and model.folded is None
        model.train()
    hook.before_test_iter(runner, 0)
    with pytest.raises(ValueError, match='folded for 2 x 2'):
        runner.model(torch.randn(1, 3, 64, 64))
    hook.after_test_epoch(runner, metrics={})
    assert runner.model is model


def test_the_model_is_back_before_a_checkpoint_is_written():
    from mmengine.hooks import CheckpointHook, EMAHook
    from mmengine.runner.priority import get_priority
    hook = HOOKS.build(dict(type='lape_mm.FoldHook', img_size=32))
    assert get_priority(hook.priority) < get_priority(CheckpointHook.priority)
    assert get_priority(hook.priority) < get_priority(EMAHook.priority)
