"""tools/export_onnx.py: what it parses, and that mistakes end in one line and status 2."""
from pathlib import Path

import pytest

pytest.importorskip('mmengine')

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(load):
    return load('export_onnx')


def test_sizes(tool, capsys):
    assert tool.parse_args(['c.py', 'x', 'o', '--img-size', '64']).img_size == [64]
    assert tool.parse_args(['c.py', 'x', 'o', '--img-size', '64', '96']).img_size == [64, 96]
    assert tool.parse_args(['c.py', 'x', 'o']).img_size is None
    with pytest.raises(SystemExit):
        tool.parse_args(['c.py', 'x', 'o', '--img-size', '64', '96', '3'])
    assert '--img-size: expected a side, or height and width, got [64, 96, 3]' in \
        capsys.readouterr().err


@pytest.mark.parametrize('change, said', [
    (dict(out='o.pt'), 'expected a file name that ends with .onnx'),
    (dict(images='no_folder'), 'no_folder: holds no image'),
])
def test_mistakes(tool, capsys, monkeypatch, change, said):
    from lape_mm.runs import export
    monkeypatch.setattr(export, 'NEEDED', ())
    values = dict(config=str(ROOT / 'configs/quickstart/deit.py'), checkpoint='no.pth',
                  out='o.onnx', img_size='64', images='', joining='mpvg')
    values.update(change)
    assert tool.main([values['config'], values['checkpoint'], values['out'], '--img-size',
                      values['img_size'], '--images',
                      values['images'], '--joining', values['joining']]) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and said in error and error.count('\n') == 1


def test_a_missing_package_is_named_with_its_command(tool, capsys, monkeypatch):
    from lape_mm.runs import export
    monkeypatch.setattr(export, 'missing', lambda *_: ['onnxscript'])
    assert tool.main(['c.py', 'x.pth', 'o.onnx', '--img-size', '64']) == 2
    assert capsys.readouterr().err == \
        'error: onnxscript is not installed: pip install "lape_mm[export]"\n'
