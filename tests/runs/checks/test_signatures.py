"""What constructors take, by their signatures."""
import pytest

pytest.importorskip('mmengine')

from mmengine.config import Config  # noqa: E402
from torch import nn  # noqa: E402

from lape_mm.runs.checks.report import Report  # noqa: E402
from lape_mm.runs.checks.signatures import (  # noqa: E402
    accepted,
    check_call,
    hint,
    nearest,
    short,
    wrong_kind,
)


class Base:
    def __init__(self, size: int, *, name='x', ratio: float = 1., flag=True):
        pass


class HandsOn(Base):
    def __init__(self, size, colour=None, **kwargs):
        super().__init__(size, **kwargs)


class HandsOnByName(Base):
    def __init__(self, *args, **rest):
        """Here ``rest`` is only a word."""
        Base.__init__(self, *args, **rest)


class Inherits(HandsOn):
    pass


class Part(nn.Module):
    def __init__(self, dim, **kwargs):
        super().__init__(**kwargs)


def function(a, b=1, **kwargs):
    return kwargs


@pytest.mark.parametrize('build, names, is_open', [
    (Base, 'size name ratio flag', False),
    (HandsOn, 'size colour name ratio flag', True),
    (HandsOnByName, 'size name ratio flag', True),
    (Inherits, 'size colour name ratio flag', True),
    (Part, 'dim', True), (function, 'a b', True), (object, '', True)])
def test_what_is_accepted(build, names, is_open):
    known = accepted(build)
    assert set(known.parameters) == set(names.split()) and known.open is is_open


def test_what_is_required():
    assert accepted(Base).required == ('size',)
    assert accepted(HandsOnByName).required == ()  # the base's may be given by position
    assert accepted(function).required == ('a',)


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
          count: int = None, exact: 'float | None' = None, sure: bool = None):
    pass


@pytest.mark.parametrize('name, expected', [
    ('number', 'a number'), ('ratio', 'a number'), ('flag', 'True or False'), ('either', None),
    ('text', None), ('unknown', None), ('count', 'a number'), ('exact', 'a number'),
    ('sure', 'True or False')])
def test_a_string_in_the_place_of_something_else(name, expected):
    parameter = accepted(takes).parameters[name]
    assert wrong_kind(parameter, '1') == expected
    assert wrong_kind(parameter, 1) is None and wrong_kind(None, '1') is None


def test_words():
    assert nearest('fpnn', ['FPN', 'PAFPN', 'RPN']) == ['FPN']
    assert hint('dpeth', ['depth', 'width']) == ", did you mean 'depth'?"
    assert hint('colour', ['depth', 'width']) == ''
    assert short('a' * 99) == "'" + 'a' * 57 + '..'
