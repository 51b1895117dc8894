"""--amp and --auto-scale-lr."""
import pytest

pytest.importorskip('mmengine')

import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.optim import OptimWrapper  # noqa: E402

from lape_mm.runs import options  # noqa: E402
from lape_mm.runs.engine import BFloat16OptimWrapper  # noqa: E402
from lape_mm.runs.errors import RunError  # noqa: E402
from lape_mm.runs.runner import CheckedRunner  # noqa: E402


class TestAmp:
    def cfg(self, **wrapper):
        return Config(dict(optim_wrapper=dict(
            **{'type': 'OptimWrapper', 'optimizer': dict(type='SGD', lr=1.), **wrapper})))

    def test_fp16(self, monkeypatch):
        monkeypatch.setattr(options, 'get_device', lambda: 'cuda')
        cfg = self.cfg()
        options.set_amp(cfg, 'fp16')
        assert cfg.optim_wrapper == dict(
            type='AmpOptimWrapper', dtype='float16', loss_scale='dynamic',
            optimizer=dict(type='SGD', lr=1.))
        monkeypatch.setattr(options, 'get_device', lambda: 'cpu')
        with pytest.raises(RunError, match='fp16 needs a GPU'):
            options.set_amp(self.cfg(), 'fp16')

    @pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
    def test_bf16(self, scope):
        cfg = self.cfg(type='AmpOptimWrapper', loss_scale='dynamic', dtype='float16')
        cfg.default_scope = scope
        options.set_amp(cfg, 'bf16')
        assert cfg.optim_wrapper == dict(
            type='lape_mm.BFloat16OptimWrapper', features_only=scope == 'mmdet',
            optimizer=dict(type='SGD', lr=1.))

    def test_another_wrapper(self):
        with pytest.raises(RunError, match="'DeepSpeedOptimWrapper'"):
            options.set_amp(self.cfg(type='DeepSpeedOptimWrapper'), 'bf16')

    @pytest.mark.parametrize('features_only', [False, True])
    def test_bfloat16_wrapper(self, features_only):
        model = Detector()
        wrapper = BFloat16OptimWrapper(
            optimizer=torch.optim.SGD(model.parameters(), lr=1.), features_only=features_only)
        with wrapper.optim_context(model):
            feature, out = model(torch.ones(1, 4))
        assert feature.dtype == (torch.float32 if features_only else torch.bfloat16)
        assert out.dtype == feature.dtype
        # bfloat16 has been at work in either case
        assert torch.equal(feature.float(), feature.bfloat16().float())
        before = model.backbone.weight.detach().clone()
        wrapper.update_params(out.float().sum())
        assert not torch.equal(model.backbone.weight, before)
        assert model(torch.ones(1, 4))[0].dtype == torch.float32


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def extract_feat(self, x):
        return (self.backbone(x),)

    def forward(self, x):
        feature, = self.extract_feat(x)
        return feature, self.head(feature)


@pytest.mark.parametrize('batch, counts, base, ratio', [
    (2, 8, 16, 1.), (2, 1, 16, 1 / 8), (16, 2, 8, 4.), (1, 3, 16, 3 / 16)])
@pytest.mark.parametrize('enable', [True, False])
def test_scaling_counts_accumulated_batches(batch, counts, base, ratio, enable, tmp_path,
                                            forgetful):
    wrapper = OptimWrapper(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3),
                           accumulative_counts=counts)
    cfg = Config(dict(optim_wrapper=dict(accumulative_counts=counts),
                      auto_scale_lr=dict(base_batch_size=base, enable=False)))
    if enable:
        options.set_auto_scale_lr(cfg)
    runner = CheckedRunner(
        torch.nn.Linear(1, 1), str(tmp_path), train_dataloader=dict(batch_size=batch),
        train_cfg=dict(by_epoch=True, max_epochs=1), optim_wrapper=wrapper, cfg=cfg)
    runner.scale_lr(wrapper, cfg.auto_scale_lr)
    assert wrapper.get_lr()['lr'] == pytest.approx([1e-3 * (ratio if enable else 1.)], rel=1e-12)


def test_scaling_needs_a_base():
    with pytest.raises(RunError, match='base_batch_size'):
        options.set_auto_scale_lr(Config(dict()))
