"""A run that is killed at any moment and resumed ends with the weights of one that was not."""
import signal
import time

import pytest

pytest.importorskip('mmengine', reason='runs need a toolbox')

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402

import small_runs as runs  # noqa: E402


@pytest.fixture
def task(request, monkeypatch, tmp_path_factory):
    name = request.param
    if lacking := missing(*TOOLBOXES[runs.SCOPES[name]]):
        pytest.skip(f'needs {", ".join(lacking)}')
    runs.preload([runs.SCOPES[name]])
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path_factory.getbasetemp() / 'small_scenes'))
    return name


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('task', runs.TASKS, indirect=True)
def test_killed_and_resumed(task, workers, tmp_path):
    options = {'train_dataloader.num_workers': workers}
    log = tmp_path / 'log'
    whole, killed = tmp_path / 'whole', tmp_path / 'killed'
    assert runs.run(runs.arguments(task, whole, options=options), log) == 0, log.read_text()
    child = runs.fork(lambda: runs.train(runs.arguments(task, killed, options=options)), log)
    while not list(killed.glob('*_*.pth')):  # the first checkpoint; then somewhere after it
        time.sleep(.01)
    time.sleep(.2)
    runs.kill(child)
    assert runs.wait(child) == -signal.SIGKILL
    given = runs.arguments(task, killed, options=options, resume='auto')
    assert runs.run(given, log) == 0, log.read_text()
    assert 'resumed epoch' in log.read_text()
    assert runs.digest(runs.last(killed)) == runs.digest(runs.last(whole))
