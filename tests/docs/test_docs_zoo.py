"""model_zoo.md shows the metafiles as they are."""
import sys

import pytest
from docs_pages import ROOT

pytest.importorskip('yaml')
sys.path.insert(0, str(ROOT / 'docs'))

import list_models  # noqa: E402


def test_the_page_shows_architectures_and_metafiles_as_they_are():
    for (start, end), make in list_models.PARTS.items():
        shown, found, _ = list_models.PAGE.read_text().partition(start)[2].partition(end)
        assert found and shown.strip() == make()
