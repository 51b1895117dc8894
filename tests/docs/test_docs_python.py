"""Every Python block of README and docs is run, page by page, in one namespace a page."""
import pytest

pytest.importorskip('mmengine')
for toolbox in ('mmpretrain', 'mmdet', 'mmseg'):
    pytest.importorskip(toolbox)

from docs_pages import PAGES, blocks, commands, name  # noqa: E402
from docs_workshop import draw_few, forget, link, stand_ins, without_network  # noqa: E402

PYTHON = {page: found for page in PAGES
          if (found := [block for block in blocks(page) if block.language == 'python'])}


@pytest.mark.parametrize('page', PYTHON, ids=name)
def test_python(page, tmp_path, monkeypatch, capsys):
    from mmengine.runner import CheckpointLoader
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CheckpointLoader, '_schemes', dict(CheckpointLoader._schemes))
    without_network(monkeypatch)
    link(tmp_path)
    # the configs that the page has the reader write, and the data that it draws
    for command in commands([block for block in blocks(page) if block.language == 'bash']):
        if command.file:
            (tmp_path / command.file).write_text(command.text)
        elif command.words[1:3] == ['-m', 'lape_mm.datasets.scenes']:
            draw_few(command)
    stand_ins(''.join(block.text for block in PYTHON[page]))
    for folder in ('data/mine/val2017', 'data/my_maps/images/validation',
                   'data/scenes/coco/val2017'):
        for picture in sorted(tmp_path.glob(f'{folder}/*'))[1:]:  # to look at one takes seconds
            picture.unlink()
    space = {}
    try:
        for block in PYTHON[page]:
            forget()
            exec(compile(block.text, block.where, 'exec'), space)
    finally:
        forget()
    printed = capsys.readouterr().out
    assert 'print(' not in ''.join(block.text for block in PYTHON[page]) or printed
