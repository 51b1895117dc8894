"""Is an image file whole? Decoders fill up a truncated one with grey."""
from __future__ import annotations

import mmap
import os
import re

# JPEG: a marker is FF and its kind; in a scan FF 00 is a byte FF, FF D0 to D7 are restarts, and FFs
# may stand before any. 02 to BF and those that stand alone are passed over.
MARKER = re.compile(rb'\xff([\xc0-\xcf\xd9-\xfe])')
END, SCAN = 0xd9, 0xda
PNG = b'\x89PNG'


def check_whole(path: str | None) -> None:
    """Raises ValueError for a JPEG or PNG file that ends before its image does.

    What stands behind the image, such as the film of a phone's motion photo, does not matter.
    """
    if path is None or not os.path.isfile(path) or not os.path.getsize(path):  # kept elsewhere
        return
    with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for begin, whole in ((b'\xff\xd8', jpeg_is_whole), (PNG, png_is_whole)):
            if data[:len(begin)] == begin and not whole(data):
                raise ValueError(f'{path}: the file is truncated')


def jpeg_is_whole(data) -> bool:
    """Whether the end marker of the image is there.

    From segment to segment, each as long as it says: a thumbnail within one has an end marker of
    its own. After the segment that begins a scan come its data, up to the next marker.

    Args:
        data: the file, bytes or mmap.
    """
    place, scanned = 2, False
    while found := MARKER.search(data, place):
        kind = found[1][0]
        if kind == END:
            return scanned
        scanned = scanned or kind == SCAN
        place = found.end() + int.from_bytes(data[found.end():found.end() + 2], 'big')
    return False


def png_is_whole(data) -> bool:
    """Whether the chunks of a PNG, (length, kind, content, checksum) each, lead to its last."""
    place = 8  # behind the signature
    while place + 8 <= len(data):
        if data[place + 4:place + 8] == b'IEND':
            return True
        place += 12 + int.from_bytes(data[place:place + 4], 'big')
    return False
