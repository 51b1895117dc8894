"""A checkpoint that is evaluated is the model's own, entire."""
from types import SimpleNamespace

import pytest

pytest.importorskip('mmengine')

import torch  # noqa: E402

from lape_mm.runs.errors import RunError  # noqa: E402
from lape_mm.runs.loading import (  # noqa: E402
    CheckpointError,
    FittingWeightsHook,
    check_classes,
    check_fits,
    check_tested,
)


@pytest.fixture
def saved(tmp_path):
    def save(**changes):
        state = {**torch.nn.Linear(3, 2).state_dict(), **changes}
        path = str(tmp_path / 'model.pth')
        torch.save({'state_dict': {key: value for key, value in state.items()
                                   if value is not None}}, path)
        return path
    return save


def test_its_own_weights_fit(saved):
    check_fits(torch.nn.Linear(3, 2), saved())
    check_fits(torch.nn.DataParallel(torch.nn.Linear(3, 2)), saved())  # as distributed ones do


@pytest.mark.parametrize('changes, said', [
    (dict(bias=None), 'missing: 1, first bias'),
    (dict(pe_norm=torch.ones(2)), 'unknown to the model: 1, first pe_norm'),
    (dict(weight=torch.ones(3, 3)), 'of another shape: 1, first weight')])
def test_others_are_refused(saved, changes, said):
    path = saved(**changes)
    with pytest.raises(RunError) as error:
        check_fits(torch.nn.Linear(3, 2), path)
    assert path in str(error.value) and said in str(error.value) and '--joining' in str(error.value)


def test_a_file_of_the_removed_deploy_tool(tmp_path):
    path = tmp_path / 'model.pth'
    torch.save({'state_dict': {**torch.nn.Linear(3, 2).state_dict(),
                               'backbone.folded.residual0': torch.zeros(1)}}, path)
    with pytest.raises(RunError, match='model.pth: is folded.* use the checkpoint that it was'):
        check_fits(torch.nn.Linear(3, 2), str(path))
    for resume in (False, True):
        with pytest.raises(CheckpointError, match='is folded'):
            started(torch.load(path), resume=resume)


def test_a_class_that_was_learnt_under_another_label():
    content = dict(meta=dict(dataset_meta=dict(classes=('disc', 'square', 'star'))))
    check_classes(content, ('disc', 'square', 'star'))
    check_classes(content, ('disk', 'square', 'Star'))  # spelt otherwise
    check_classes({}, ('square', 'disc'))  # a file of weights alone
    check_classes(dict(meta=dict(dataset_meta=dict(classes=7))), ('square', 'disc'))
    with pytest.raises(RunError, match="class 'square' as label 1, which the config tests as "
                       "label 0: expected the classes in the order disc, square, star, in the"):
        check_classes(content, ('square', 'disc', 'star'))
    cranes = ('crane', 'ox', 'crane')
    check_classes(dict(meta=dict(dataset_meta=dict(classes=cranes))), cranes)
    with pytest.raises(RunError, match="class 'star' as label 2"):
        check_classes(content, ('disc', 'star'))


@pytest.mark.parametrize('metainfo', [
    dict(classes=('b', 'a')), [dict(classes=('a', 'b')), dict(classes=('b', 'a'))]])
def test_the_classes_of_all_data_are_compared(metainfo, tmp_path):
    path, model = str(tmp_path / 'model.pth'), torch.nn.Linear(3, 2)

    def run(metainfo):
        data = SimpleNamespace(dataset=SimpleNamespace(metainfo=metainfo))
        return SimpleNamespace(model=model, test_loop=SimpleNamespace(dataloader=data))
    torch.save(dict(state_dict=model.state_dict(), meta=dict(
        dataset_meta=dict(classes=('a', 'b')))), path)
    check_tested(run(None), path)
    check_tested(run(dict(classes=('a', 'b'))), path)
    with pytest.raises(RunError, match="class 'b' as label 1"):
        check_tested(run(metainfo), path)


class Whole(torch.nn.Module):
    """A model with a backbone, as a toolbox's."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 5)


def started(checkpoint, resume=False):
    """A run's start from a checkpoint, and what the hooks after ours then see."""
    runner = SimpleNamespace(model=Whole(), cfg=dict(resume=resume))
    FittingWeightsHook().after_load_checkpoint(runner, checkpoint)
    return checkpoint


@pytest.mark.parametrize('wrap', [
    lambda state: state, lambda state: {'model': state, 'epoch': 3},
    lambda state: {'state_dict': state}])
def test_a_start_from_weights_that_match_nothing_is_refused(wrap):
    backbone = Whole().backbone.state_dict()
    with pytest.raises(CheckpointError, match='backbone.weight') as error:
        started(wrap(backbone))
    assert 'model.backbone.init_cfg.checkpoint' in str(error.value)
    with pytest.raises(CheckpointError, match="of the model's weights"):  # a name, another shape
        started(wrap({'backbone.weight': torch.ones(7, 3)}))


def test_a_start_from_part_of_the_weights_is_none_of_these():
    state = Whole().state_dict()
    part = {'backbone.weight': state['backbone.weight'], 'head.weight': torch.ones(9, 2)}
    assert started({'state_dict': dict(part)}) == {'state_dict': part}
    started({'state_dict': {f'module.{name}': value for name, value in part.items()}})
    # without a wrapper, mmengine's EMAHook would end in KeyError: 'state_dict'
    assert started(dict(part)) == {'state_dict': part}


def test_a_start_with_an_average_of_the_weights():
    from mmengine.hooks import EMAHook
    hook, model = EMAHook(), Whole()
    runner = SimpleNamespace(model=model, cfg=dict(resume=False), _resume=False)
    hook.before_run(runner)
    checkpoint = started(dict(Whole().state_dict()))
    hook.after_load_checkpoint(runner, checkpoint)
    for name, value in checkpoint['state_dict'].items():
        assert torch.equal(hook.ema_model.module.state_dict()[name], value)
