"""Reports have all sections of every backbone and joining, on one self-contained page."""
import json
import re

import numpy as np
import pytest
import torch

pytest.importorskip('matplotlib')

from lape_mm import backbones  # noqa: E402
from lape_mm.analysis import measure, pe_per_layer, record  # noqa: E402
from lape_mm.analysis.write import analyse, write_report  # noqa: E402

SIZES = dict(embed_dim=24, depth=2, num_heads=3)
SWIN = dict(embed_dim=8, depths=(1, 1), num_heads=(1, 2), window_size=4)
MODELS = {  # class -> its arch
    'DeiT': SIZES, 'Swin': SWIN, 'CeiT': SIZES, 'T2TViT': dict(SIZES, token_dim=16),
    'ViTAdapter': dict(SIZES, depth=4, conv_inplane=8, deform_num_heads=3),
    'CompactTransformer': dict(SIZES, kernel_size=4, conv_layers=0, pool='sequence')}
JOININGS = ('default', 'share', 'unshare', 'lape', 'pvg', 'mpvg')
ALWAYS = {'similarity', 'heatmaps', 'correlation', 'attention_distance', 'attention'}


def build(kind, joining, **options):
    torch.manual_seed(0)
    model = getattr(backbones, kind)(arch=MODELS[kind], img_size=32, joining=joining, **options)
    for parameter in model.parameters():  # a constant table has no correlation
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=.1)
    return model


@pytest.mark.parametrize('kind, joining', [
    *((kind, 'mpvg') for kind in MODELS), *(('DeiT', joining) for joining in JOININGS[:-1]),
    ('Swin', 'default'), ('ViTAdapter', 'lape'), ('CeiT', 'lape')])
def test_a_model_has_all_its_sections(kind, joining):
    model = build(kind, joining)
    found = measure(pe_per_layer(model, 32), record(model, torch.randn(1, 3, 32, 32)))
    expected = set(ALWAYS)
    if model.norm is not None:
        expected |= {'last_norm'} if kind == 'CeiT' else {'last_norm', 'token_norms'}
    if kind == 'ViTAdapter':
        expected.add('features')
    assert set(found) == expected
    for key, (arrays, numbers) in found.items():
        assert numbers and json.loads(json.dumps(numbers)) == numbers
        for array, values in arrays.items():
            assert np.isfinite(values).all(), (key, array)
    layers = len(model.layers_in_order())
    assert len([array for array in found['similarity'][0] if array.startswith('map')]) == layers
    assert ('at the last LN' in found['correlation'][1]) == (joining == 'mpvg')
    assert all(-1 <= value <= 1 for value in found['correlation'][1]['by layer'])


def report(out, title='A <title> & more', **models):
    torch.manual_seed(0)
    images = torch.randn(2, 3, 32, 32)
    analyses = {label: analyse(model, images, joining=label) for label, model in models.items()}
    return write_report(analyses, torch.rand(2, 32, 32, 3).numpy(), out, title)


@pytest.fixture(scope='module')
def compared(tmp_path_factory):
    """One report of three models, with all kinds of sections."""
    out = tmp_path_factory.mktemp('report')
    adapter = build('ViTAdapter', 'mpvg')
    return out, report(out, relative=build('DeiT', 'lape', position='relative'),
                       mpvg=build('DeiT', 'mpvg'), adapter=adapter)


def test_the_page_needs_nothing_from_outside(compared):
    out, rows = compared
    text = (out / 'report.html').read_text()
    fetched = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(value.startswith('data:image/png;base64,') for value in fetched)
    assert not re.search(r'https?://|@import|url\(|<script|<link', text)
    assert len(re.findall(r'<img alt="[^"]+', text)) == len(rows)
    # what comes from a user is text
    assert 'A &lt;title&gt; &amp; more' in text and '<title> &' not in text


def test_every_file_of_the_summary_exists(compared):
    out, rows = compared
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['rows'] == json.loads(json.dumps(rows))
    assert set(summary['models']) == {'relative', 'mpvg', 'adapter'}
    assert {row['key'] for row in rows} == ALWAYS | {'bias', 'last_norm', 'token_norms',
                                                     'features'}
    for row in rows:
        png, pdf = row['figures']
        assert (out / png).read_bytes()[:4] == b'\x89PNG'
        assert (out / pdf).read_bytes()[:4] == b'%PDF'
        assert row['meaning'] and row['paper'] and row['numbers']
        with np.load(out / row['arrays']) as arrays:
            assert {name.split('.')[0] for name in arrays} == set(row['numbers'])
    with np.load(out / 'correlation.npz') as arrays:
        np.testing.assert_allclose(
            arrays['mpvg.correlation'],
            next(row for row in rows if row['key'] == 'correlation')['numbers']['mpvg']['by layer'],
            rtol=1e-6)


def test_a_section_that_a_model_lacks_is_left_out_for_it(compared):
    _, rows = compared
    numbers = {row['key']: set(row['numbers']) for row in rows}
    assert numbers['bias'] == {'relative'} and numbers['features'] == {'adapter'}
    assert numbers['correlation'] == {'mpvg', 'adapter'}
