"""--auto-scale-lr counts the images that a step of the optimizer sees."""
import logging
from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip('mmengine')

import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.optim import OptimWrapper, OptimWrapperDict  # noqa: E402
from mmengine.runner import Runner  # noqa: E402

from lape_mm.runs import session  # noqa: E402
from lape_mm.runs.errors import RunError  # noqa: E402
from lape_mm.runs.learning_rate import count_accumulation, set_auto_scale_lr  # noqa: E402


def test_auto_scale_lr():
    cfg = Config(dict(auto_scale_lr=dict(base_batch_size=8)))
    set_auto_scale_lr(cfg)
    assert cfg.auto_scale_lr.enable
    with pytest.raises(RunError, match='base_batch_size'):
        set_auto_scale_lr(Config(dict()))


def wrapper(counts):
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    return OptimWrapper(torch.optim.SGD([dict(params=weights[:1], lr=1e-3),
                                         dict(params=weights[1:], lr=4e-3)], lr=1.),
                        accumulative_counts=counts)


def rates(optim_wrapper):
    return [group['lr'] for group in optim_wrapper.optimizer.param_groups]


def scaled(optim_wrapper, caplog, *, batch=2, base=16, enable=True, processes=1):
    """After mmengine's own scaling, made to count accumulation; what was logged."""
    runner = SimpleNamespace(_train_dataloader=dict(batch_size=batch), world_size=processes,
                             logger=logging.getLogger('rates'), param_schedulers=None)
    runner.scale_lr = partial(Runner.scale_lr, runner)
    count_accumulation(runner)
    with caplog.at_level(logging.INFO, 'rates'):
        runner.scale_lr(optim_wrapper, dict(enable=enable, base_batch_size=base))
    return caplog.text


@pytest.mark.parametrize('batch, counts, base, ratio', [
    (2, 8, 16, 1.), (2, 1, 16, 1 / 8), (6, 3, 16, 18 / 16), (16, 2, 8, 4.), (1, 3, 16, 3 / 16)])
def test_accumulated_batches_are_of_one_step(batch, counts, base, ratio, caplog):
    optim_wrapper = wrapper(counts)
    text = scaled(optim_wrapper, caplog, batch=batch, base=base)
    assert rates(optim_wrapper) == pytest.approx([ratio * 1e-3, ratio * 4e-3], rel=1e-12)
    if counts > 1:
        assert f'accumulates {counts} batches' in text
        assert f'total batch is {batch * counts} images' in text
        assert f'scaled by {ratio:g} altogether' in text
    else:
        assert 'accumulates' not in text


def test_of_several_optimizers_each_has_its_own(caplog):
    pair = OptimWrapperDict(one=wrapper(1), other=wrapper(4))
    scaled(pair, caplog)
    assert rates(pair['one']) == pytest.approx([1e-3 / 8, 4e-3 / 8])
    assert rates(pair['other']) == pytest.approx([1e-3 / 2, 4e-3 / 2])


def test_nothing_is_scaled_unless_asked(caplog):
    optim_wrapper = wrapper(8)
    assert scaled(optim_wrapper, caplog, enable=False) == ''
    assert rates(optim_wrapper) == [1e-3, 4e-3]
    runner = SimpleNamespace(scale_lr=lambda *args: None)
    count_accumulation(runner)
    runner.scale_lr(optim_wrapper, None)
    assert rates(optim_wrapper) == [1e-3, 4e-3]


def test_every_run_counts_them(monkeypatch, caplog):
    runner = SimpleNamespace(
        _train_dataloader=dict(batch_size=2), world_size=1, logger=logging.getLogger('rates'),
        param_schedulers=None, load_or_resume=None, register_hook=lambda hook: None)
    runner.scale_lr = partial(Runner.scale_lr, runner)
    for check in ('check_config', 'check_files'):
        monkeypatch.setattr(session, check, lambda cfg, mode: None)
    monkeypatch.setattr(session.Runner, 'from_cfg', lambda cfg: runner)
    optim_wrapper = wrapper(8)
    session.build_runner(Config(dict(launcher='none')), 'train').scale_lr(
        optim_wrapper, dict(enable=True, base_batch_size=16))
    assert rates(optim_wrapper) == [1e-3, 4e-3]
