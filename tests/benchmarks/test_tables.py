import json
import sys
from pathlib import Path

import pytest

pytest.importorskip('mmengine', reason='rich comes with it')
sys.path.insert(0, str(Path(__file__).parents[2] / 'benchmarks'))

import tables  # noqa: E402


@pytest.mark.parametrize('page', tables.PAGES, ids=lambda page: page.name)
def test_the_pages_show_the_records_as_they_are(page):
    _, _, rest = page.read_text().partition(tables.MARKS[0])
    shown, end, _ = rest.partition(tables.MARKS[1])
    assert end and shown.strip() == tables.PAGES[page]()


def figure(value):
    return dict(median=value, quartiles=[value - .1, value + .1])


def test_records_as_tables(tmp_path, monkeypatch):
    record = dict(
        claim='Speed.', cpu='CPU', threads=2, torch='2.11.0', commit='abc',
        measured={'inference': {'a': [2., 4., 3.], 'b': [1.]}},
        ratios={'inference': {'a': {'b': figure(1.234)}, 'b': {'b': figure(1.)}}},
        bars=[dict(what='a / b', figure=figure(1.234), limit=1., holds=False),
              dict(what='MB', figure=figure(243.75), limit=300., holds=True)])
    (tmp_path / 'vit_adapter.json').write_text(json.dumps(record))
    monkeypatch.setattr(tables, 'HERE', tmp_path)
    assert tables.bars().splitlines()[2:4] == [
        '| a / b | 1.234 (1.134-1.334) | 1 | **missed** |',
        '| MB | 243.750 (243.650-243.850) | 300 | holds |']
    assert 'commit abc' in tables.bars() and 'startup' not in tables.tables()
    assert '| a | 3 | 1.234 (1.134-1.334) |' in tables.tables()
