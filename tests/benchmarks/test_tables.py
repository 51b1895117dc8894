import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / 'benchmarks'))

import tables  # noqa: E402


def test_the_readme_shows_the_records_as_they_are():
    _, _, rest = tables.README.read_text().partition(tables.MARKS[0])
    shown, end, _ = rest.partition(tables.MARKS[1])
    assert end and shown.strip() == tables.table()


def test_a_missed_bar_is_shown_as_missed(tmp_path, monkeypatch):
    record = dict(cpu='CPU', threads=2, torch='2.11.0', commit='abc', bars=[
        dict(what='a / b', figure=dict(median=1.2345, quartiles=[1.1, 1.3]), limit=1., holds=False),
        dict(what='MB', figure=dict(median=243.88, quartiles=[243., 244.]), limit=300.,
             holds=True)])
    (tmp_path / 'growth.json').write_text(json.dumps(record))
    monkeypatch.setattr(tables, 'HERE', tmp_path)
    assert tables.table().splitlines()[2:4] == [
        '| a / b | 1.23 (1.1 to 1.3) | 1 | **missed** |', '| MB | 244 (243 to 244) | 300 | holds |']
    assert 'commit abc' in tables.table() and 'startup' not in tables.table()
