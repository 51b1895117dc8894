"""The checks before a run leave right configs alone; what they say of wrong ones is in
tests/reliability/test_mistakes.py."""
import contextlib
import io
from pathlib import Path

import pytest

pytest.importorskip('mmengine')

import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.registry import HOOKS, METRICS, MODELS  # noqa: E402
from torch import nn  # noqa: E402

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402
from lape_mm.runs.checks.build import check_builds, check_channels  # noqa: E402
from lape_mm.runs.checks.preflight import check_values  # noqa: E402
from lape_mm.runs.checks.settings import (  # noqa: E402
    accepted,
    check_call,
    check_settings,
    places,
    wrong_kind,
)
from lape_mm.runs.errors import Report  # noqa: E402

ROOT = Path(__file__).parents[3] / 'configs'
CONFIGS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob('*.py')
                 if '_base_' not in path.parts)
# one of each folder, and all quick starts
SOME = {name for index, name in enumerate(CONFIGS) if name.startswith('quickstart')
        or name.split('/')[0] != CONFIGS[index - 1].split('/')[0]}


def load(path):
    cfg = Config.fromfile(path)
    if lacking := missing(*TOOLBOXES[cfg.default_scope]):
        pytest.skip(f'needs {", ".join(lacking)}')
    return cfg


@pytest.mark.parametrize('name', CONFIGS)
def test_names_of_every_config(name):
    report = Report(load(ROOT / name))
    check_settings(report)
    assert report.lines() == report.warnings == []


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[] if name in SOME else [pytest.mark.long]) for name in CONFIGS])
def test_values_of_every_config(name):
    report = Report(load(ROOT / name))
    check_values(report, 'train')
    check_channels(report, check_builds(report))
    assert report.lines() == []


# mistakes in the toolboxes' own configs, and what needs packages that are no part of the stack
KNOWN = ("'by_epoch'", "'MOTChallengeMetrics'", 'CocoMetric has no setting', "'wd_mult'",
         "models=", '_delete=', 'unknown dataset', "{'max_epochs': 10}: lacks 'type'")


@pytest.mark.long
@pytest.mark.parametrize('scope', TOOLBOXES)
def test_names_of_the_toolboxes_own_configs(scope):
    """Their mistakes are found, and no others: about 2000 configs, of which a dozen have one."""
    if missing(*TOOLBOXES[scope]):
        pytest.skip(f'needs {scope}')
    found, count = [], 0
    for path in (Path(__import__(scope).__file__).parent / '.mim/configs').rglob('*.py'):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                cfg = Config.fromfile(path)
        except Exception:  # what needs other packages, or is only a base
            continue
        if '_base_' in path.parts or cfg.get('default_scope') != scope \
                or not isinstance(cfg.get('model', {}).get('type'), str):
            continue
        report = Report(cfg)
        check_settings(report)
        count += 1
        found += [f'{path}: {line}' for line in report.lines()
                  if not any(word in line for word in KNOWN)]
    assert count > 400 and not found, '\n'.join(found)


@MODELS.register_module(force=True)
class Awkward(nn.Module):
    def __init__(self, width=4, fail=None, needs_values=False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        assert torch.linspace(0, .1, 3)[1].item() < .1  # ranges have values
        if fail == 'silently':
            raise AssertionError
        if fail:
            raise ValueError(fail)
        if needs_values:
            self.weight.sum().item()


class TestBuild:
    def lines(self, **model):
        report = Report(Config(dict(default_scope='mmengine', model=dict(type='Awkward', **model))))
        built = check_builds(report)
        return built, report.lines()

    def test_the_model_has_no_values(self):
        model, lines = self.lines()
        assert model.weight.is_meta and lines == []
        # what cannot be done without values is left to the run
        assert self.lines(needs_values=True) == (None, [])

    @pytest.mark.parametrize('settings, said', [
        (dict(fail='too wide'), 'model: too wide'),
        (dict(fail='silently'), f'model: AssertionError: raise AssertionError ({__file__}:'),
        (dict(width='4'), "model: TypeError: zeros(): argument 'size'"),
        (dict(other=4), "model: TypeError: Awkward.__init__() got an unexpected keyword argument")])
    def test_an_error_is_named(self, settings, said):
        built, (line,) = self.lines(**settings)
        assert built is None and line.startswith(said)

    def test_a_part_that_reads_values_is_not_run_on_the_cpu(self):
        model, report, seen = nn.Module(), Report(Config(dict(model={}))), []
        model.backbone = nn.Conv2d(3, 4, 1)
        model.backbone.register_forward_pre_hook(
            lambda part, given: seen.append(given[0].device.type) or given[0].sum().item())
        check_channels(report, model)
        assert seen == ['meta'] and report.lines() == []

    def test_what_is_not_built(self):
        """Hooks of others may do anything, and metrics may read hundreds of megabytes."""
        def fail(*args, **kwargs):
            raise AssertionError
        for among, name in ((HOOKS, 'AwkwardHook'), (METRICS, 'AwkwardMetric')):
            among.register_module(name, force=True)(type(name, (), {'__init__': fail}))
        report = Report(Config(dict(
            default_scope='mmengine', custom_hooks=[dict(type='AwkwardHook')],
            val_evaluator=dict(type='AwkwardMetric', ann_file='x.json'))))
        check_builds(report)
        assert report.lines() == []
        report.cfg.val_evaluator.pop('ann_file')
        check_builds(report)
        assert len(report.lines()) == 1

    def test_the_config_is_left_as_it_is(self):
        cfg = load(ROOT / 'quickstart/deit.py')
        before = cfg.pretty_text
        report = Report(cfg)
        check_settings(report)
        check_values(report, 'train')
        check_channels(report, check_builds(report))
        assert cfg.pretty_text == before
        torch.empty(2).sum().item()  # and no tensor is without values any more


def test_places():
    cfg = Config(dict(
        train_dataloader=dict(
            sampler=dict(type='S'), dataset=dict(
                type='ConcatDataset', datasets=[dict(type='A', pipeline=[dict(type='T')]),
                                                dict(type='B')])),
        val_evaluator=[dict(type='M'), dict(type='N')],
        test_evaluator=dict(metrics=[dict(type='O')]),
        custom_hooks=[dict(type='H')], default_hooks=dict(timer=None)))
    found = {place.where for place in places(cfg) if place.node is not None}
    assert found == {
        'train_dataloader', 'train_dataloader.sampler', 'train_dataloader.dataset',
        'train_dataloader.dataset.datasets.0', 'train_dataloader.dataset.datasets.0.pipeline.0',
        'train_dataloader.dataset.datasets.1', 'val_evaluator.0', 'val_evaluator.1',
        'test_evaluator.metrics.0', 'custom_hooks.0'}


def test_names_at_the_top():
    report = Report(Config(dict(
        train_dataloder=1, image_size=3, train_pipeline=[], val_dataloader_2=1, data_root='x',
        norm_cfg={}, max_epochs=3, classes=[], tta_model={}, vis_backends=[])))
    check_settings(report)
    assert list(report.lines()) == [
        "train_dataloder: train_dataloder=1: nothing reads this key, did you mean "
        "'train_dataloader'?"]


class Base:
    def __init__(self, size: int, *, name='x', ratio: float = 1., flag=True):
        pass


class HandsOn(Base):
    def __init__(self, size, colour=None, **kwargs):
        super().__init__(size, **kwargs)


class HandsOnByName(Base):
    def __init__(self, *args, **rest):
        Base.__init__(self, *args, **rest)


class Part(nn.Module):
    def __init__(self, dim, **kwargs):
        super().__init__(**kwargs)


@pytest.mark.parametrize('build, names, is_open', [
    (Base, 'size name ratio flag', False), (HandsOn, 'size colour name ratio flag', True),
    (HandsOnByName, 'size name ratio flag', True), (Part, 'dim', True), (object, '', True)])
def test_what_is_accepted(build, names, is_open):
    known, others = accepted(build)
    assert set(known) == set(names.split()) and others is is_open


@pytest.mark.parametrize('build, settings, said', [
    (Base, dict(nam='y'), "nam='y': Base has no setting 'nam', did you mean 'name'?"),
    (Base, dict(other=1), "other=1: Base has no setting 'other', expected one of size, name, "),
    (HandsOn, dict(colours=1), "did you mean 'colour'?"),
    (HandsOn, dict(other=1), ''),  # may be looked up in **kwargs
    (HandsOn, dict(ratio='1'), "ratio='1' of HandsOn: expected a number")])
def test_settings_of_a_call(build, settings, said):
    report = Report(Config())
    check_call(report, 'a.b', build, dict(settings, size=1))
    line, = report.lines() or ['']
    assert said in line and bool(said) is line.startswith('a.b: ')


def takes(number=1, ratio=.5, flag=False, either: 'int | str' = 1, text='a', unknown=None,
          count: int = None, exact: 'float | None' = None, tensor: 'float | list' = .1):
    pass


@pytest.mark.parametrize('name, expected', [
    ('number', 'a number'), ('ratio', 'a number'), ('flag', 'True or False'), ('either', None),
    ('text', None), ('unknown', None), ('count', 'a number'), ('exact', 'a number'),
    ('tensor', 'a number')])
def test_a_string_in_the_place_of_something_else(name, expected):
    parameter = accepted(takes)[0][name]
    assert wrong_kind(parameter, '1') == expected
    assert wrong_kind(parameter, 1) is None and wrong_kind(None, '1') is None
