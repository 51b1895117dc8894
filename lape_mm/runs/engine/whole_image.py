"""Detects truncated images, whose missing pixels decoders fill with grey."""
from __future__ import annotations

import mmap
import os
import re

# A JPEG marker is FF and its kind. Inside a scan, FF 00 is a data byte and FF D0-D7 are restarts.
MARKER = re.compile(rb'\xff([\xc0-\xcf\xd9-\xfe])')
END, SCAN = 0xd9, 0xda
PNG_END = b'\0\0\0\0IEND'  # the last chunk: length 0 and its kind


def check_whole(path: str | None) -> None:
    """Raises ValueError for a truncated JPEG or PNG file.

    Bytes after the image, such as the film of a motion photo, are fine.
    """
    if path is None or not os.path.isfile(path) or not os.path.getsize(path):
        return
    with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:2] == b'\xff\xd8' and not jpeg_is_whole(data) \
                or data[:4] == b'\x89PNG' and data.find(PNG_END) < 0:
            raise ValueError(f'{path}: the file is truncated')


def jpeg_is_whole(data) -> bool:
    """Whether a JPEG has an end marker after a scan.

    Jumps from segment to segment, because an embedded thumbnail has its own end marker.
    """
    place, scanned = 2, False
    while found := MARKER.search(data, place):
        kind = found[1][0]
        if kind == END:
            return scanned
        scanned = scanned or kind == SCAN
        place = found.end() + int.from_bytes(data[found.end():found.end() + 2], 'big')
    return False
