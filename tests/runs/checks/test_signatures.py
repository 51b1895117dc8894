"""What constructors take, by their signatures and sources."""
import math

import pytest
from torch import nn

from lape_mm.runs.checks.signatures import accepted, hint, nearest, short, wrong_kind


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


class Swallows(Base):
    def __init__(self, size, **kwargs):
        super().__init__(size)


class Keeps(Base):
    def __init__(self, size, **kwargs):
        super().__init__(size)
        self.options = kwargs


class LooksUp(Base):
    def __init__(self, size, **kwargs):
        self.depth = kwargs.pop('depth', 3)
        self.width = kwargs['width'] if 'width' in kwargs else kwargs.get('breadth')
        super().__init__(size, **kwargs)


class Renews(Base):
    def __init__(self, size, **kwargs):
        kwargs = {'ratio': 2., **kwargs}
        super().__init__(size, **kwargs)


class Part(nn.Module):
    def __init__(self, dim, **kwargs):
        super().__init__(**kwargs)


class Rests(Keeps):
    def __init__(self, shape, **kwargs):
        super().__init__(**kwargs)


def function(a, b=1, **kwargs):
    return kwargs


@pytest.mark.parametrize('build, names, is_open', [
    (Base, 'size name ratio flag', False),
    (HandsOn, 'size colour name ratio flag', False),
    (HandsOnByName, 'size name ratio flag', False),
    (Inherits, 'size colour name ratio flag', False),
    (Swallows, 'size', False),
    (Keeps, 'size', True),
    (LooksUp, 'size depth width breadth name ratio flag', False),
    (Renews, 'size name ratio flag', False),
    (Part, 'dim', False),
    (Rests, 'shape size', True),
    (function, 'a b', True),
    (len, 'obj', None), (math.hypot, '', None), (object, '', False)])
def test_what_is_accepted(build, names, is_open):
    known = accepted(build)
    if is_open is not None:
        assert set(known.parameters) == set(names.split()) and known.open is is_open
    assert known.swallows is (build is Swallows)


def test_what_is_required():
    assert accepted(Base).required == ('size',)
    assert accepted(HandsOnByName).required == ()  # the base's may be given by position
    assert accepted(function).required == ('a',)


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
