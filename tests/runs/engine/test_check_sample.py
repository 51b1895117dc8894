"""Whole and truncated JPEG and PNG files, with what cameras and phones add to them."""
import io

import numpy as np
import pytest

pytest.importorskip('mmengine')

from PIL import Image  # noqa: E402

from lape_mm.runs.engine.check_sample import check_whole  # noqa: E402

NOISE = np.random.default_rng(0)
FILM = b'\0\0\0\x18ftypmp42' + NOISE.bytes(2 * 2 ** 20)


def encoded(kind='JPEG', side=200, **options):
    file = io.BytesIO()
    noise = NOISE.integers(0, 255, (side, side, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, kind, **options)
    return file.getvalue()


def with_thumbnail(image):
    """With an EXIF segment that holds a whole JPEG."""
    exif = b'Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0' + encoded(side=40)
    return image[:2] + b'\xff\xe1' + (len(exif) + 2).to_bytes(2, 'big') + exif + image[2:]


IMAGES = {
    'baseline': lambda: encoded(quality=95),
    'progressive': lambda: encoded(progressive=True),
    'restarts': lambda: encoded(quality=95, restart_marker_blocks=2),
    'comment': lambda: encoded(comment=b'\xff\xd9'),
    'thumbnail': lambda: with_thumbnail(encoded(progressive=True)),
    'png': lambda: encoded('PNG'),
}


@pytest.fixture(params=IMAGES)
def image(request):
    found = IMAGES[request.param]()
    Image.open(io.BytesIO(found)).load()  # Pillow reads it
    return found


def test_bytes_after_the_image_are_fine(image, tmp_path):
    path = tmp_path / 'a.jpg'
    for behind in (b'', b'\0', b'written by a camera' * 50, FILM, b'\xff' * 100, image):
        path.write_bytes(image + behind)
        check_whole(str(path))


def test_a_truncated_image(image, tmp_path):
    path = tmp_path / 'a.jpg'
    least = 1 if image[0] == 0xff else 9  # a PNG's last chunk may lack its checksum
    for left in (len(image) - least, *range(12, len(image) - least, len(image) // 20)):
        path.write_bytes(image[:left])
        with pytest.raises(ValueError, match='a.jpg: the file is truncated'):
            check_whole(str(path))


def test_other_files_are_ignored(tmp_path):
    path = tmp_path / 'a.bin'
    for content in (b'', b'P6', b'GIF89a', b'\x89PN'):
        path.write_bytes(content)
        check_whole(str(path))
    check_whole(None)
    check_whole('s3://bucket/a.jpg')
