"""docs/tutorial.ipynb: stored without outputs, and runs from top to bottom."""
import json
import os

import pytest
from docs_pages import ROOT

NOTEBOOK = ROOT / 'docs/tutorial.ipynb'


def test_it_is_stored_without_outputs():
    cells = json.loads(NOTEBOOK.read_text())['cells']
    code = [cell for cell in cells if cell['cell_type'] == 'code']
    assert len(code) >= 8 and NOTEBOOK.stat().st_size < 30_000
    for cell in code:
        assert cell['outputs'] == [] and cell['execution_count'] is None
        compile(''.join(cell['source']), NOTEBOOK.name, 'exec')


@pytest.mark.long
def test_it_runs_from_top_to_bottom(tmp_path, monkeypatch):
    if not os.environ.get('CI'):  # there it has to be installed
        pytest.importorskip('nbclient', reason='uv sync: it is in the dev group')
        pytest.importorskip('ipykernel', reason='uv sync: it is in the dev group')
    import nbformat
    from nbclient import NotebookClient
    pytest.importorskip('mmpretrain')
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get('PYTHONPATH')])))
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=900, kernel_name='python3',
                   resources=dict(metadata=dict(path=str(tmp_path)))).execute()
    printed = ''.join(output.get('text', '') for cell in notebook.cells
                      for output in cell.get('outputs', []))
    assert "100.00 % of the ViT's weights found" in printed
    assert sum('image/png' in output.get('data', {}) for cell in notebook.cells
               for output in cell.get('outputs', [])) == 3
