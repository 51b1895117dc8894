"""Predictions of files, hostile uploads, and the page in a real browser."""
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip('onnxruntime')
pytest.importorskip('mmengine')

from lape_mm.demo.drawing import draw  # noqa: E402
from lape_mm.demo.page import checked  # noqa: E402
from lape_mm.demo.predict import results  # noqa: E402
from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402
from lape_mm.runtime import Prediction  # noqa: E402

ROOT = Path(__file__).parents[2]


def detector(scores=(.9, .2)):
    masks = np.zeros((2, 40, 60), bool)
    masks[0, 5:20, 10:30] = masks[1, 30:, 40:] = True
    return Prediction(('cat', 'dog'), np.array([1, 0]), np.array(scores, np.float32),
                      np.array([[10, 5, 30, 20], [40, 30, 60, 40]], np.float32), masks)


def test_entries_are_coco_results():
    pytest.importorskip('pycocotools')
    from pycocotools import mask as coder
    entry, = results(detector(), Path('000042.jpg'), .3)
    assert (entry['image_id'], entry['category_id'], entry['category']) == (42, 1, 'dog')
    assert entry['bbox'] == [10, 5, 20, 15]
    coded = json.loads(json.dumps(entry['segmentation']))
    np.testing.assert_array_equal(coder.decode(coded).astype(bool), detector().masks[0])
    assert len(list(results(detector(), Path('a.jpg'), .1))) == 2


def test_what_is_drawn():
    plain = Image.new('RGB', (60, 40), 'black')
    high, low = (np.asarray(draw(plain, detector(), score)) for score in (.5, .1))
    assert high.shape == (320, 480, 3)  # 8 times as large
    assert high[80, 160].any() and not high[280, 400].any() and low[280, 400].any()
    assert not np.asarray(draw(plain, detector(), .95)).any()
    label_map = np.zeros((40, 60), int)
    label_map[:, 30:] = 1
    drawn = np.asarray(draw(plain, Prediction(('road', 'sky'), label_map=label_map)))
    assert (drawn[-1, 0] != drawn[-1, -1]).any()
    classes = Prediction(('cat', 'dog'), np.array([1, 0]), np.array([.8, .2]))
    assert np.asarray(draw(plain, classes)).any()


def hostile(folder, count):
    """Sound images and what may be uploaded in their place: (path, whether it is an image)."""
    rng, pixels = random.Random(0), np.random.default_rng(0).integers(
        0, 255, (30, 40, 3)).astype(np.uint8)
    sound = folder / 'sound.jpg'
    Image.fromarray(pixels).save(sound)
    content = sound.read_bytes()
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    for number in range(count):
        kind, path = number % 10, folder / f'{number}.jpg'
        if kind == 0:
            path.write_text('no image at all')
        elif kind == 1:
            path.write_bytes(content[:rng.randrange(len(content) // 2)])
        elif kind == 2:
            path.write_bytes(rng.randbytes(500))
        elif kind == 3:
            Image.fromarray(pixels).save(path, exif=exif)
        elif kind == 4:
            Image.fromarray(pixels[..., 0].astype(np.uint16) * 256).save(path, 'PNG')
        elif kind == 5:
            Image.fromarray(pixels).save(path, 'GIF', save_all=True, append_images=[
                Image.fromarray(255 - pixels)])
        elif kind == 6:
            Image.fromarray(pixels).convert(rng.choice(['L', 'P', 'CMYK', '1'])).save(path, 'TIFF')
        elif kind == 7:
            Image.new('1', (9000, 9000)).save(path, 'PNG')  # small as a file
        elif kind == 8:
            path.write_bytes(b'')
        else:
            damaged = bytearray(content)
            for _ in range(20):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            path.write_bytes(damaged)
        yield path, {3: True, 4: True, 5: True, 6: True, 9: None}.get(kind, False)


def test_hostile_uploads_end_in_a_message(tmp_path):
    for path, sound in hostile(tmp_path, 200):
        try:
            picture = checked(str(path))
        except ValueError as error:
            assert not sound, (path, error)
            assert str(tmp_path) not in str(error) and len(str(error).splitlines()) == 1
        else:
            assert sound is not False and picture.mode == 'RGB'
            if path.stem.endswith('3'):
                assert picture.size == (30, 40)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """A Mask R-CNN of the quick start with random weights: its boxes have low scores."""
    if lacking := missing(*TOOLBOXES['mmdet']):
        pytest.skip(f'needs {", ".join(lacking)}')
    from lape_mm.runs.checks.build import build_model
    from lape_mm.runs.config import load_config
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp('demo') / 'random.pth'
    torch.save(build_model(load_config('configs/quickstart/mask_rcnn.py')).state_dict(), path)
    return path


@pytest.mark.long
def test_files_are_predicted(checkpoint, tmp_path):
    for name in ('train/one.png', 'val/one.png', 'two.png', 'two.bmp'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 120, 3)).astype(
            np.uint8)).save(tmp_path / name)
    (tmp_path / 'broken.jpg').write_text('text')
    cv2 = pytest.importorskip('cv2')
    video = cv2.VideoWriter(str(tmp_path / 'film.mp4'), cv2.VideoWriter.fourcc(*'mp4v'), 5,
                            (96, 64))
    for level in range(3):
        video.write(np.full((64, 96, 3), 50 * level, np.uint8))
    video.release()
    out = tmp_path / 'out'
    done = subprocess.run(
        [sys.executable, 'tools/predict.py', 'configs/quickstart/mask_rcnn.py', str(checkpoint),
         '--inputs', str(tmp_path), '--out', str(out), '--score', '0'],
        cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'left out' in done.stdout and '5 of 6 inputs' in done.stdout
    assert {path.relative_to(out).as_posix() for path in out.rglob('*.*')} == {
        'train/one.png', 'val/one.png', 'two.png', 'two.bmp', 'film.mp4', 'predictions.json'}
    entries = json.loads((out / 'predictions.json').read_text())
    assert {entry['image_id'] for entry in entries} == {
        'train/one.png', 'val/one.png', 'two.png', 'two.bmp', 'film.mp4'}
    drawn = cv2.VideoCapture(str(out / 'film.mp4'))
    assert sum(drawn.read()[0] for _ in range(4)) == 3


@pytest.fixture(scope='module')
def page(checkpoint):
    """The demo's address and process."""
    if lacking := missing('gradio'):
        pytest.skip(f'needs {", ".join(lacking)}')
    port = 7900 + os.getpid() % 100
    process = subprocess.Popen(
        [sys.executable, 'tools/demo.py', 'configs/quickstart/mask_rcnn.py', str(checkpoint),
         '--score', '0', '--port', str(port)], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    url = f'http://127.0.0.1:{port}'
    try:
        while True:
            try:
                urlopen(url).close()
                break
            except OSError:
                assert process.poll() is None, process.stdout.read()
                time.sleep(1)
        yield url, process
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.long
def test_the_page_in_a_browser(page, tmp_path, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 120, 3)).astype(
        np.uint8)).save(tmp_path / 'photo.png')
    (tmp_path / 'text.jpg').write_text('no image')
    wait = WebDriverWait(browser, 90)

    def upload(name):
        wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, '#image input[type=file]'))[
            0].send_keys(str(tmp_path / name))

    def picture(_=None):
        found = browser.find_elements(By.CSS_SELECTOR, '#out0 img')
        return found and found[0].get_attribute('src')
    browser.get(page[0])
    upload('photo.png')
    many = wait.until(picture)
    number = browser.find_element(By.CSS_SELECTOR, '#score input[type=number]')
    number.send_keys(Keys.CONTROL, 'a')
    number.send_keys('1', Keys.TAB)
    wait.until(lambda _: picture() not in (None, many))
    browser.refresh()
    upload('text.jpg')
    wait.until(lambda _: 'text.jpg cannot be read as an image'
               in browser.find_element(By.TAG_NAME, 'body').text)
    asked = browser.execute_script(
        "return performance.getEntriesByType('resource').map(one => one.name)")
    assert not [url for url in asked if not url.startswith((page[0], 'data:', 'blob:'))]


@pytest.mark.long
def test_200_hostile_uploads_to_the_page(page, tmp_path):
    """As a browser sends them: no traceback is shown, and the memory is back afterwards."""
    httpx, psutil = pytest.importorskip('httpx'), pytest.importorskip('psutil')
    url, process = page
    client = httpx.Client(base_url=url, timeout=60)
    function, = (one['id'] for one in client.get('/config').json()['dependencies']
                 if one['targets'][0][1] == 'upload')

    def answer(path):
        stored, = client.post('/gradio_api/upload', files={
            'files': (path.name, path.read_bytes(), 'image/jpeg')}).json()
        client.post('/gradio_api/queue/join', json={
            'data': [{'path': stored, 'meta': {'_type': 'gradio.FileData'}}, 0.],
            'fn_index': function, 'session_hash': path.stem}).raise_for_status()
        with client.stream('GET', '/gradio_api/queue/data', params={
                'session_hash': path.stem}) as lines:
            for line in lines.iter_lines():
                if 'process_completed' in line:
                    return json.loads(line.removeprefix('data: '))

    used = []
    for path, sound in hostile(tmp_path, 200):
        found = answer(path)
        assert 'Traceback' not in str(found) and 'File "' not in str(found)
        assert sound in (found['success'], None), (path, found)
        used.append(psutil.Process(process.pid).memory_info().rss / 2 ** 20)
    assert used[-1] < max(used[:60]) + 50
