"""A checkpoint that is evaluated is the model's own, entire."""
from types import SimpleNamespace

import pytest

pytest.importorskip('mmengine')

import torch  # noqa: E402

from lape_mm.runs.errors import RunError  # noqa: E402
from lape_mm.runs.loading import check_classes, check_fits, check_tested  # noqa: E402


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
