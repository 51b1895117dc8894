"""Every Python block of README and docs is run, page by page, in one namespace a page."""
import pytest

pytest.importorskip('mmengine')
for toolbox in ('mmpretrain', 'mmdet', 'mmseg'):
    pytest.importorskip(toolbox)

from docs_pages import PAGES, blocks, name  # noqa: E402
from docs_workshop import link, stand_ins, without_network  # noqa: E402
from quickstarts import forget  # noqa: E402

PYTHON = {page: found for page in PAGES
          if (found := [block for block in blocks(page) if block.language == 'python'])}


@pytest.mark.parametrize('page', PYTHON, ids=name)
def test_python(page, tmp_path, monkeypatch, capsys):
    from mmengine.runner import CheckpointLoader
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CheckpointLoader, '_schemes', dict(CheckpointLoader._schemes))
    without_network(monkeypatch)
    link(tmp_path)
    stand_ins(''.join(block.text for block in PYTHON[page]))
    for picture in sorted(tmp_path.glob('data/scenes/coco/val2017/*'))[1:]:
        picture.unlink()  # to look at one takes seconds
    space = {}
    try:
        for block in PYTHON[page]:
            forget()
            exec(compile(block.text, block.where, 'exec'), space)
    finally:
        forget()
    printed = capsys.readouterr().out
    assert 'print(' not in ''.join(block.text for block in PYTHON[page]) or printed
