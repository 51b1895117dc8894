"""Tables 1 and 2 of the MPVG paper: our integers, and which of its cells they reach."""
import pytest

from lape_mm.parameters import PAPER, compare, parameter_table

COUNTS = {  # default, LaPE, PVG, MPVG
    (1, 'DeiT-Ti'): (5_717_416, 5_722_024, 5_721_256, 5_721_640),
    (1, 'DeiT-S'): (22_050_664, 22_059_880, 22_058_344, 22_059_112),
    (1, 'DeiT-B'): (86_567_656, 86_586_088, 86_583_016, 86_584_552),
    (1, 'Swin-Ti'): (28_589_410, 28_598_242, 28_598_242, 28_599_778),
    (1, 'CeiT-Ti'): (6_356_904, 6_361_512, 6_360_744, 6_361_128),
    (1, 'T2T-ViT-7'): (4_310_222, 4_313_806, 4_312_782, 4_313_294),
    (2, 'ViT-Lite-7/4'): (3_740_004, 3_743_588, 3_742_564, 3_743_076),
    (2, 'T2T-ViT-7'): (4_078_922, 4_082_506, 4_081_482, 4_081_994),
}


@pytest.fixture(scope='module')
def cells():
    return parameter_table()


def test_every_cell_has_its_integer(cells):
    counts = {}
    for cell in cells:
        counts.setdefault((cell.table, cell.model), []).append(cell.ours)
    assert {name: tuple(row) for name, row in counts.items()} == COUNTS
    assert len(PAPER) == 8 and len(cells) == 32


def test_what_differs_is_named_and_explained(cells):
    by = {}
    for cell in cells:
        by.setdefault(cell.agreement, set()).add((cell.model, cell.joining))
        assert bool(cell.note) == (cell.agreement != 'equal when truncated'), cell
    assert by['differs'] == {('DeiT-Ti', 'lape'), ('Swin-Ti', 'lape')}
    assert by['equal when rounded'] == {('CeiT-Ti', 'pvg'), ('ViT-Lite-7/4', 'lape')}


@pytest.mark.parametrize('ours, agreement', [
    (5_721_000, 'equal when truncated'), (5_721_999, 'equal when truncated'),
    (5_720_500, 'equal when rounded'), (5_720_499, 'differs'), (5_722_000, 'differs')])
def test_compare(ours, agreement):
    assert compare(ours, '5.721') == agreement
