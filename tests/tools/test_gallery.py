"""tools/gallery.py: pictures of the same name side by side, the most different first."""
import base64
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('mmengine')
cv2 = pytest.importorskip('cv2')

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(load):
    return load('gallery')


@pytest.fixture
def folders(tmp_path):
    """Two models' pictures, of which the second differs in a quarter; and another one."""
    plain = np.full((16, 32, 3), 100, np.uint8)
    other = plain.copy()
    other[:8, :16] = 200
    for name, image in (('a/x_0.png', plain), ('b/x_0.png', plain), ('a/y_1.png', plain),
                        ('b/vis/y_1.png', other), ('a/z_2.png', plain), ('in/x.jpg', plain)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / name), image)
    return tmp_path


def decode(text):
    return cv2.imdecode(np.frombuffer(base64.b64decode(text), np.uint8), cv2.IMREAD_COLOR)


def test_the_page(tool, folders, capsys):
    out = folders / 'page.html'
    assert tool.main([f'<a>={folders}/a', f'b={folders}/b', '--out', str(out)]) == 0
    assert '2 of 2 pictures' in capsys.readouterr().out
    text = out.read_text()
    assert re.findall(r'<h2>(.*)</h2>', text) == ['y_1.png', 'x_0.png']
    assert re.findall(r'([\d.]+%) of the pixels differ', text) == ['25.0%', '0.0%']
    assert re.findall(r'<figcaption>(.*)</figcaption>', text) == \
        ['&lt;a&gt;', 'b', 'difference', '&lt;a&gt;', 'b', 'difference']
    images = [decode(found) for found in re.findall('base64,([^"]+)"', text)]
    assert images[1][2, 2].mean() == pytest.approx(200, abs=3)
    difference = images[2]
    assert difference[:7, :15].min() > 240 and difference[9:, 17:].max() < 15
    assert not re.search(r'https?://|<script|<link|url\(', text)


def test_of_three_models_no_difference_is_shown(tool, folders):
    out = folders / 'page.html'
    assert tool.main([*(f'{label}={folders}/{label[0]}' for label in ('a', 'b', 'a2')), '--out',
                      str(out), '--most', '1']) == 0
    text = out.read_text()
    assert text.count('<figure>') == 3 and 'differ' not in text


@pytest.mark.parametrize('argv, said', [
    (['a'], 'a: expected LABEL=FOLDER'),
    (['a=no_folder'], 'no_folder: holds no image'),
    (['a={}/a', 'b={}/in'], 'no picture of the same name'),
    (['a={}/a', 'a={}/b'], 'each LABEL once'),
])
def test_mistakes(tool, folders, capsys, argv, said):
    argv = [part.format(folders) for part in argv]
    assert tool.main([*argv, '--out', str(folders / 'p.html')]) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and said in error and error.count('\n') == 1
