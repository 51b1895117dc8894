"""The short list of what a checkpoint may hold, each by a stand-in that says what it would take.

Weights, an optimizer's state, what mmengine's message hub and metrics add, and plain Python values.
"""
from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

ENTRY = 100  # bytes that an entry of a dict or a set takes, about
MOST_DIMENSIONS = 64  # torch's own limit

ITEMSIZES = {f'torch.{name}Storage': size for name, size in dict(
    Double=8, Float=4, Half=2, BFloat16=2, Long=8, Int=4, Short=2, Char=1, Byte=1, Bool=1).items()}
DTYPES = {f'torch.{name}' for name in (
    'float64', 'float32', 'float16', 'bfloat16', 'int64', 'int32', 'int16', 'int8', 'uint8',
    'bool')}
BUFFER = 'mmengine.logging.history_buffer.HistoryBuffer'
STATISTICS = ('min', 'max', 'mean', 'current')


class Refusal(ValueError):
    """Why a file is not loaded, in one line that does not name the file."""


@dataclass(frozen=True)
class Name:
    """A class or function that a pickle names."""

    text: str


@dataclass(frozen=True)
class Storage:
    """Memory that tensors look into: so many numbers of so many bytes."""

    count: int
    itemsize: int


@dataclass(slots=True)
class Built:
    """An object whose content plays no part any more.

    Attributes:
        kind: 'tensor', 'array', 'dtype', 'bytes', 'buffer', 'statistic', 'arguments' or 'other'.
        size: bytes of a number of a dtype, or length of bytes.
        name: of a statistic.
    """

    kind: str
    size: int = 0
    name: str = ''


class ShortList:
    """What the pickles of one file may name and call.

    Args:
        most_bytes: that all it builds may take, each object counted as if its memory were its own:
            what is named once in a file can be built from it a million times.

    Attributes:
        hooks: of the tensors, all of which have to be empty in the end.
    """

    def __init__(self, most_bytes: int):
        self.most_bytes, self.spent = most_bytes, 0
        self.hooks: list = []
        self.calls = {
            'torch._utils._rebuild_tensor_v2': self._tensor,
            'torch._utils._rebuild_parameter': _parameter,
            'torch.Size': _size, 'torch.device': _device,
            'collections.OrderedDict': self._ordered, 'collections.Counter': self._counter,
            '_codecs.encode': self._bytes, 'numpy.dtype': _dtype, BUFFER: lambda: Built('buffer'),
            # what DeiT's and LaPE's trainers keep of their command line: values, and nothing else
            'argparse.Namespace': lambda: Built('arguments')}
        for module in ('builtins', '__builtin__'):
            self.calls.update({f'{module}.set': self._set, f'{module}.getattr': _statistic,
                               f'{module}.bytes': _no_bytes})
        for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
            self.calls.update({f'{module}._reconstruct': _array, f'{module}.scalar': _number})
        self.names = {*self.calls, *ITEMSIZES, *DTYPES, 'numpy.ndarray'}

    def name(self, text: str) -> Name:
        """A class or function by its dotted name."""
        if text not in self.names:
            raise Refusal(f'refused, since loading it would run or build {text!r}; whoever trusts '
                          'its author can load it with --trust-checkpoint')
        return Name(text)

    def call(self, function, arguments):
        """What a function of the list returns."""
        expect(isinstance(function, Name) and function.text in self.calls
               and isinstance(arguments, tuple), 'a call')
        return self.calls[function.text](*arguments)

    def set_state(self, target, state) -> None:
        """Gives an object its state, as unpickling does."""
        expect(isinstance(target, (OrderedDict, Built)) and isinstance(state, (dict, tuple)),
               'a state')
        kind = target.kind if isinstance(target, Built) else 'dict'
        if kind == 'dict':  # the versions of a state dict's modules
            versions = state.get('_metadata', {})
            self._spend(len(versions) * ENTRY)
            expect(set(state) <= {'_metadata'} and isinstance(versions, dict) and all(
                isinstance(entry, dict) and set(entry) <= {'version'}
                and isinstance(entry.get('version'), (int, type(None)))
                for entry in versions.values()), '_metadata')
        elif kind == 'dtype':
            expect(state[1] in ('<', '>', '|', '=')
                   and state[2:] == (None, None, None, -1, -1, 0), "an array's dtype")
        elif kind == 'array':
            _, shape, dtype, fortran, data = state
            expect(_counts(shape) and _is(dtype, 'dtype') and _is(data, 'bytes')
                   and isinstance(fortran, bool) and math.prod(shape) * dtype.size == data.size,
                   'an array')
            self._spend(data.size)
        elif kind == 'arguments':
            expect(isinstance(state, dict) and all(isinstance(name, str) for name in state),
                   'a Namespace')
            self._spend(len(state) * ENTRY)
        else:
            expect(kind == 'buffer' and _is_history(state), 'a HistoryBuffer')

    def _spend(self, size: int) -> None:
        self.spent += size
        if self.spent > self.most_bytes:
            raise Refusal(f'it would take more than {self.most_bytes:,} bytes, far beyond the '
                          "file's own size")

    def _tensor(self, storage, offset, shape, stride, requires_grad, hooks, metadata=None) -> Built:
        expect(isinstance(storage, Storage) and _counts((offset,)) and _counts(shape)
               and _counts(stride) and len(shape) == len(stride)
               and isinstance(requires_grad, bool) and type(hooks) is OrderedDict
               and not metadata, 'a tensor')
        self.hooks.append(hooks)
        count = math.prod(shape)
        reach = offset + sum((n - 1) * step for n, step in zip(shape, stride)) + 1 if count else 0
        if reach > storage.count:
            raise Refusal(f'damaged: a tensor of shape {str(shape)[:100]} is declared in memory of '
                          f'{storage.count} numbers')
        self._spend(count * storage.itemsize)
        return Built('tensor')

    def _bytes(self, text, encoding) -> Built:
        expect(isinstance(text, str) and encoding == 'latin1', 'a string of bytes')
        self._spend(len(text))
        return Built('bytes', len(text.encode('latin1')))

    def _ordered(self, pairs=()) -> OrderedDict:
        expect(isinstance(pairs, (list, tuple)), 'an OrderedDict')
        self._spend(len(pairs) * ENTRY)
        return OrderedDict((key_of_a_dict(key), value) for key, value in pairs)  # by Python 2

    def _counter(self, counts) -> dict:
        expect(isinstance(counts, dict), 'a Counter')
        self._spend(len(counts) * ENTRY)
        return counts

    def _set(self, items=()) -> list:
        expect(isinstance(items, (list, tuple)), 'a set')
        self._spend(len(items) * ENTRY)
        return [key_of_a_dict(item) for item in items]


def expect(condition: bool, what: str) -> None:
    """Raises a Refusal unless the condition holds."""
    if not condition:
        raise Refusal(f'damaged: {what} in it is not what it should be')


def key_of_a_dict(key):
    """The key itself, if it is one that takes no time to hash.

    Tuples of tuples of .. can take for ever, and end the process; large integers can be chosen to
    collide.
    """
    if isinstance(key, (str, type(None))) or isinstance(key, int) and abs(key) < 2 ** 31:
        return key
    raise Refusal('damaged: a dict in it has a key that is neither text nor a small integer')


def _is(value, kind: str) -> bool:
    return isinstance(value, Built) and value.kind == kind


def _counts(values) -> bool:
    """Whether it is a tuple of integers of at least 0, such as a shape."""
    return isinstance(values, tuple) and len(values) <= MOST_DIMENSIONS \
        and all(isinstance(n, int) and n >= 0 for n in values)


def _size(shape) -> tuple:
    expect(_counts(shape), 'a size')
    return shape


def _device(kind, index=0) -> Built:
    expect(isinstance(kind, str) and isinstance(index, int), 'a device')
    return Built('other')


def _parameter(tensor, requires_grad, hooks) -> Built:
    expect(_is(tensor, 'tensor') and isinstance(requires_grad, bool)
           and type(hooks) is OrderedDict and not hooks, 'a parameter')
    return tensor


def _dtype(code, align=False, copy=True) -> Built:
    found = re.fullmatch(r'[biuf]([1248])', code) if isinstance(code, str) else None
    size = int(found[1]) if found else 0
    expect(size > 0, "an array's dtype")
    return Built('dtype', size)


def _no_bytes(*content) -> Built:
    expect(not content, 'a string of bytes')
    return Built('bytes')


def _array(kind, shape, code) -> Built:
    expect(kind == Name('numpy.ndarray') and shape == (0,), 'an array')
    return Built('array')


def _number(dtype, data) -> Built:
    expect(_is(dtype, 'dtype') and _is(data, 'bytes') and data.size == dtype.size,
           'a number of numpy')
    return Built('other')


def _statistic(owner, name) -> Built:
    expect(owner == Name(BUFFER) and name in STATISTICS, 'a statistic of a HistoryBuffer')
    return Built('statistic', name=name)


def _is_history(state: Mapping) -> bool:
    """Whether it is the state of mmengine's HistoryBuffer, which changes its class as well."""
    methods = state.get('statistics_methods', {})
    return set(state) - {'statistics_methods'} == {'max_length', '_log_history', '_count_history'} \
        and isinstance(state['max_length'], int) and state['max_length'] > 0 \
        and _is(state['_log_history'], 'array') and _is(state['_count_history'], 'array') \
        and isinstance(methods, dict) and set(methods) <= set(STATISTICS) \
        and all(value == Built('statistic', name=name) for name, value in methods.items())
