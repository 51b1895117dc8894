"""model_zoo.md shows the metafiles as they are."""
import sys

import pytest
from docs_pages import ROOT

pytest.importorskip('yaml')
sys.path.insert(0, str(ROOT / 'docs'))

import list_models  # noqa: E402


def test_the_page_shows_the_metafiles_as_they_are():
    _, _, rest = list_models.PAGE.read_text().partition(list_models.MARKS[0])
    shown, end, _ = rest.partition(list_models.MARKS[1])
    assert end and shown.strip() == list_models.tables()
