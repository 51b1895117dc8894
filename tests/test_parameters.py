"""Tables 1 and 2 of the MPVG paper: our integers, and which of its cells they reach."""
import pytest
from torch import device

from lape_mm import backbones
from lape_mm.parameters import PAPER, parameter_table

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
OTHERS = [  # not in the paper's tables, without a classifier
    ('ViTAdapter', dict(joining='default'), 7_966_640),
    ('ViTAdapter', dict(joining='lape'), 7_971_248),
    # no class-token slot, eleven norms; MPVG adds the last LayerNorm and its norm of PE
    ('ViTAdapter', dict(joining='pvg'), 7_970_672),
    ('ViTAdapter', dict(joining='mpvg', variant='segmentation'), 7_970_672 + 384 + 384),
    ('ViTAdapter', dict(arch='small'), 27_503_888),
    ('ViTAdapter', dict(arch='base'), 99_495_392),
    ('Swin', dict(position=None), 28_288_354 - 769_000),
    ('Swin', dict(arch='small', position=None), 49_606_258 - 769_000),
    ('Swin', dict(arch='base', position=None), 87_768_224 - 1_025_000),
    ('CompactTransformer', dict(arch='cct_7_3x1'), 3_783_269 - 25_700),
    ('CompactTransformer', dict(arch='cct_7_3x1', joining='lape'), 3_786_853 - 25_700),
    # ViT-Lite without class token and slot (2 x 256), with the pooling's 256 + 1
    ('CompactTransformer', dict(arch='cvt_7_4'), 3_740_004 - 25_700 - 512 + 257),
]


@pytest.mark.parametrize('name, options, count', OTHERS, ids=str)
def test_models_outside_the_tables(name, options, count):
    with device('meta'):
        model = getattr(backbones, name)(**options)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.fixture(scope='module')
def cells():
    return parameter_table()


def test_every_cell_has_its_integer(cells):
    counts = {}
    for cell in cells:
        counts.setdefault((cell['table'], cell['model']), []).append(cell['ours'])
    assert {name: tuple(row) for name, row in counts.items()} == COUNTS
    assert len(PAPER) == 8 and len(cells) == 32


def test_what_differs_is_named_and_explained(cells):
    by = {}
    for cell in cells:
        agreement = cell['agreement']
        by.setdefault(agreement, set()).add((cell['model'], cell['joining']))
        assert bool(cell['note']) == (agreement != 'equal when truncated'), cell
    assert by['differs'] == {('DeiT-Ti', 'lape'), ('Swin-Ti', 'lape')}
    assert by['equal when rounded'] == {('CeiT-Ti', 'pvg'), ('ViT-Lite-7/4', 'lape')}
