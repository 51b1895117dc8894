import pytest
import tables


@pytest.mark.parametrize('page', tables.PAGES, ids=lambda page: page.name)
def test_the_pages_show_the_records_as_they_are(page):
    _, _, rest = page.read_text().partition(tables.MARKS[0])
    shown, end, _ = rest.partition(tables.MARKS[1])
    assert end and shown.strip() == tables.PAGES[page]()


def test_only_the_text_between_the_marks_is_replaced(tmp_path):
    page = tmp_path / 'page.md'
    page.write_text('\n'.join(['before', tables.MARKS[0], 'old', tables.MARKS[1], 'after']))
    tables.write(page, 'new')
    tables.write(page, 'new')
    assert page.read_text().splitlines() == [
        'before', tables.MARKS[0], 'new', tables.MARKS[1], 'after']
