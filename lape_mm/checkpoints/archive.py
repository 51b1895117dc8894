"""Whether a file of torch.save is what it says, found out before torch loads it.

Every size that the file declares is compared with what is there, so that loading takes memory and
time in proportion to the file. Torch itself compares few of them.
"""
from __future__ import annotations

import io
import mmap
import os
import struct
import zipfile
from typing import BinaryIO

from .rehearsal import Rehearsal
from .short_list import ITEMSIZES, Name, Refusal, Storage, expect

MAGIC, PROTOCOL = 0x1950a86a20f9469cfc6c, 1001  # what a file of torch before 1.6 starts with
LONGEST_DIRECTORY = 2 ** 24  # bytes; some 200,000 tensors


def check_archive(path: str | os.PathLike, *, checksums: bool = True) -> None:
    """Refuses a file that holds anything but a checkpoint, or less or more than it declares.

    What has to hold: the archive is as torch.save writes it, uncompressed, with checksums that
    fit; the pickle names nothing but what `short_list` has; each storage has just the bytes that
    are there for it, and each tensor lies within its storage; all tensors together, a storage
    counted as often as it is looked into, take no more than four times the file's size and 64 MiB;
    see `rehearsal` for the limits of the rest.

    Args:
        path: of the file.
        checksums: whether the weights are read, to be compared with their checksums.

    Raises:
        Refusal: it does not.
        Exception: of many kinds, where the file is damaged.
    """
    size = os.path.getsize(path)
    most_bytes = 4 * size + 2 ** 26
    with open(path, 'rb') as file:
        start = file.read(4)
        if start == b'PK\x03\x04':
            _check_zip(file, size, most_bytes, checksums)
        elif start.startswith(b'\x80\x02'):
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stream:
                _check_old(stream, size, most_bytes)
        else:
            raise Refusal(f'no checkpoint: it begins with {start!r}' if start else 'an empty file')


def _check_zip(file: BinaryIO, size: int, most_bytes: int, checksums: bool) -> None:
    _check_directory(file, size)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        names = [entry.orig_filename for entry in entries]
        folder = names[0].partition('/')[0] + '/'  # as torch finds it
        if f'{folder}data.pkl' not in names:
            raise Refusal('no checkpoint: a zip archive of other things')
        if f'{folder}constants.pkl' in names:
            raise Refusal('a TorchScript program, which is code')
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1
               or entry.compress_size != entry.file_size for entry in entries):
            raise Refusal('its parts are compressed or encrypted, which torch.save does not do')
        # torch does not tell upper from lower case
        if len({name.lower() for name in names}) < len(names) \
                or names != [entry.filename for entry in entries]:
            raise Refusal('damaged: two of its parts have one name')
        if sum(entry.file_size for entry in entries) > size:
            raise Refusal('its parts declare more bytes than the file has')
        if checksums and archive.testzip():
            raise Refusal('damaged: a checksum does not fit')
        sizes = {entry.filename: entry.file_size for entry in entries}
        kinds: dict[str, str] = {}

        def storage(saved_id) -> Storage:
            word, kind, key, location, count = saved_id
            found = _storage(word, kind, location, count)
            expect(isinstance(key, str) and kinds.setdefault(key, kind.text) == kind.text
                   and sizes.get(f'{folder}data/{key}') == count * found.itemsize, 'a storage')
            return found

        Rehearsal(storage, most_bytes).run(io.BytesIO(archive.read(f'{folder}data.pkl')))


def _check_directory(file: BinaryIO, size: int) -> None:
    """Refuses an archive that Python's reader and torch's could read differently, or without end.

    Its list of entries has to stand right before its end, where the end says.
    """
    end = size - 22
    file.seek(max(0, size - 98))
    tail = file.read()
    expect(len(tail) >= 22, 'the end of the archive')
    mark, length, offset, comment = struct.unpack('<4s8x2LH', tail[-22:])
    if tail[-42:-38] == b'PK\x06\x07':  # sizes of 64 bits stand before it
        end = size - 98
        at, = struct.unpack('<Q', tail[-34:-26])
        expect(at == end and tail.startswith(b'PK\x06\x06'), 'the end of the archive')
        length, offset = struct.unpack('<2Q', tail[40:56])
    if mark != b'PK\x05\x06' or comment or offset + length != end:
        raise Refusal('damaged or truncated: its list of parts is not where it should be')
    if length > LONGEST_DIRECTORY:
        raise Refusal('its list of parts is too long')


def _check_old(stream: mmap.mmap, size: int, most_bytes: int) -> None:
    """The format before torch 1.6: five pickles, then the storages one after the other."""
    storages: dict[str, Storage] = {}

    def storage(saved_id) -> Storage:
        word, kind, key, location, count, view = saved_id
        found = _storage(word, kind, location, count)
        expect(isinstance(key, str) and view is None
               and storages.setdefault(key, found) == found, 'a storage')
        return found

    def nothing(saved_id) -> Storage:
        raise Refusal('damaged: a tensor where none should be')

    head = Rehearsal(nothing, most_bytes)
    if (head.run(stream), head.run(stream)) != (MAGIC, PROTOCOL):
        raise Refusal('no checkpoint: another pickle')
    head.run(stream)  # about the machine that wrote it
    Rehearsal(storage, most_bytes).run(stream)
    keys = head.run(stream)
    expect(isinstance(keys, list) and len(keys) == len(storages) and set(keys) == set(storages),
           'the list of storages')
    for key in keys:
        found = storages[key]
        count = stream.read(8)
        start = stream.tell()
        if len(count) < 8 or start + found.count * found.itemsize > size:
            raise Refusal('damaged or truncated: its weights are not all there')
        expect(int.from_bytes(count, 'little') == found.count, 'the size of a storage')
        stream.seek(start + found.count * found.itemsize)


def _storage(word, kind, location, count) -> Storage:
    expect(word == 'storage' and isinstance(kind, Name) and kind.text in ITEMSIZES
           and isinstance(location, str) and location != 'meta'
           and isinstance(count, int) and count >= 0, 'a storage')
    return Storage(count, ITEMSIZES[kind.text])
