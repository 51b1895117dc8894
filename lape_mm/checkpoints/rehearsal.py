"""What unpickling a checkpoint would build, gone through beforehand with stand-ins.

torch's ``weights_only`` runs no code of a file, but it builds whatever the file declares: a tensor
beyond its storage, terabytes of zeros, a dict whose keys take for ever to hash. Here the same
opcodes are followed, and nothing is built but plain containers and stand-ins (`short_list`).
"""
from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from .short_list import DTYPES, Name, Refusal, ShortList, Storage, expect, key_of_a_dict

MOST_OPCODES = 2_000_000  # 1,000 tensors with an optimizer's state take 100,000
DEEPEST = 50  # containers in one another
MOST_ENTRIES = 20_000_000  # of all containers, each as often as it is met
PLAIN = {'BININT', 'BININT1', 'BININT2', 'LONG1', 'BINFLOAT', 'BINUNICODE', 'SHORT_BINSTRING'}
CONSTANTS = {'NONE': None, 'NEWTRUE': True, 'NEWFALSE': False, 'EMPTY_TUPLE': ()}
TUPLES = {'TUPLE1': 1, 'TUPLE2': 2, 'TUPLE3': 3}


class Rehearsal:
    """Follows the pickles of one file.

    Args:
        storage: from a storage's persistent id, a tuple, to a `Storage`; a Refusal if it has none.
        most_bytes: see `ShortList`.
    """

    def __init__(self, storage: Callable[[tuple], Storage], most_bytes: int):
        self.storage, self.allowed, self.opcodes = storage, ShortList(most_bytes), 0

    def run(self, stream: Any):
        """What the pickle at the stream's position stands for; the stream is read to its end.

        Args:
            stream: a binary file, or an mmap of one.

        Raises:
            Refusal: it would build something else than what checkpoints hold, or too much.
            Exception: of many kinds, where it is no well-formed pickle.
        """
        stack, marks, memo = [], [], {}
        value: Any  # of the type that the opcode says
        for opcode, value, _ in pickletools.genops(stream):
            self.opcodes += 1
            if self.opcodes > MOST_OPCODES:
                raise Refusal(f'it would take more than {MOST_OPCODES:,} steps to unpickle')
            name = opcode.name
            if name in PLAIN:
                if isinstance(value, str):
                    value.encode()  # half of a surrogate pair could not even be printed
                stack.append(value)
            elif name in CONSTANTS:
                stack.append(CONSTANTS[name])
            elif name in ('BINPUT', 'LONG_BINPUT'):
                memo[value] = stack[-1]
            elif name in ('BINGET', 'LONG_BINGET'):
                stack.append(memo[value])
            elif name == 'EMPTY_DICT':
                stack.append({})
            elif name == 'EMPTY_LIST':
                stack.append([])
            elif name in TUPLES:
                count = TUPLES[name]
                stack[-count:] = [tuple(stack[-count:])]
            elif name == 'MARK':
                marks.append(stack)
                stack = []
            elif name in ('TUPLE', 'APPENDS', 'SETITEMS'):
                items, stack = stack, marks.pop()
                if name == 'TUPLE':
                    stack.append(tuple(items))
                else:
                    (_append if name == 'APPENDS' else _set_items)(stack[-1], items)
            elif name == 'APPEND':
                item = stack.pop()
                _append(stack[-1], [item])
            elif name == 'SETITEM':
                item, key = stack.pop(), stack.pop()
                _set_items(stack[-1], [key, item])
            elif name == 'GLOBAL':
                stack.append(self.allowed.name(value.replace(' ', '.')))
            elif name in ('REDUCE', 'NEWOBJ'):
                arguments = stack.pop()
                stack[-1] = self.allowed.call(stack[-1], arguments)
            elif name == 'BUILD':
                state = stack.pop()
                self.allowed.set_state(stack[-1], state)
            elif name == 'BINPERSID':
                stack[-1] = self.storage(stack[-1])
            elif name == 'STOP':
                expect(not any(self.allowed.hooks), 'a tensor')  # filled after it was built
                _measure(stack[-1])
                return stack[-1]
            elif name != 'PROTO' or value != 2:
                raise Refusal('not pickled as torch.save does, which writes no '
                              + (f'protocol {value}' if name == 'PROTO' else name))


def _append(target, items: list) -> None:
    expect(type(target) is list, 'a list')
    target.extend(items)


def _set_items(target, items: list) -> None:
    expect(isinstance(target, dict) and len(items) % 2 == 0, 'a dict')
    for key, item in zip(items[::2], items[1::2]):
        target[key_of_a_dict(key)] = item


def _measure(content) -> None:
    """Refuses what is nested too deep, or in itself, or would be endless if written out."""
    known: dict[int, tuple[int, int]] = {}

    def measure(node, depth: int) -> tuple[int, int]:
        """The levels in a node, and its entries."""
        if not isinstance(node, (dict, list, tuple)) or not node:
            expect(not isinstance(node, Storage)
                   and (not isinstance(node, Name) or node.text in DTYPES), 'an entry')
            return 0, 1
        if depth < DEEPEST and id(node) not in known:
            below = [measure(child, depth + 1)
                     for child in (node.values() if isinstance(node, dict) else node)]
            known[id(node)] = (1 + max(levels for levels, _ in below),
                               1 + sum(entries for _, entries in below))
        if depth + known.get(id(node), (DEEPEST, 0))[0] > DEEPEST:
            raise Refusal(f'damaged: nested in more than {DEEPEST} levels')
        return known[id(node)]

    if measure(content, 0)[1] > MOST_ENTRIES:
        raise Refusal(f'damaged: more than {MOST_ENTRIES:,} entries')
