"""No checkpoint file runs code or ends a process; each bad one is named."""
import os
import sys
from collections import Counter
from functools import partial

import pytest

pytest.importorskip('mmengine', reason='hostile files name classes of it')

import fuzz  # noqa: E402
import small_runs as runs  # noqa: E402
import torch  # noqa: E402
from crafted import Call  # noqa: E402

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402


def check(outcomes, count):
    results = Counter(outcome.result for outcome in outcomes)
    bad = [outcome for outcome in outcomes if outcome.result in fuzz.BAD]
    assert not bad and len(outcomes) == count == results['refused'] + results['read'], bad[:9]
    assert any(outcome.kind == 'code' for outcome in outcomes), 'no hostile file among them'
    for outcome in outcomes:  # the others may be harmless, as a mutant may be
        expected = dict(sound='read', code='refused', safetensors='refused', other='refused')
        assert outcome.result == expected.get(outcome.kind, outcome.result), outcome


def test_some_files(tmp_path):
    check(fuzz.run(120, seed=7, folder=tmp_path, most_hostile=70), 120)


@pytest.mark.long
def test_a_thousand_files(tmp_path):
    check(fuzz.run(1200, seed=0, folder=tmp_path), 1200)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """The checkpoint of a run of one epoch."""
    if lacking := missing(*TOOLBOXES['mmpretrain']):
        pytest.skip(f'needs {", ".join(lacking)}')
    folder = tmp_path_factory.mktemp('trained')
    os.environ['LAPE_MM_SCENES'] = str(folder / 'scenes')
    given = runs.arguments('deit', folder / 'run', options={'train_cfg.max_epochs': 1})
    assert runs.run(given, folder / 'log') == 0, (folder / 'log').read_text()
    yield runs.last(folder / 'run')
    del os.environ['LAPE_MM_SCENES']


def tool_here(name, arguments):
    sys.path.insert(0, str(runs.ROOT / 'tools'))
    sys.modules.pop(name, None)  # `test` is also a package of Python itself
    torch.set_num_threads(1)
    return __import__(name).main(arguments)


def tool(name, checkpoint, log, *more):
    """Runs tools/NAME.py on a checkpoint: exit status and what it has printed."""
    given = runs.arguments('deit', log.parent / 'run', options={'train_cfg.max_epochs': 2})
    options = [f'{key}={value}' for key, value in given.cfg_options.items()] + [*more]
    status = runs.wait(runs.fork(partial(tool_here, name, [
        given.config, *(['--resume'] if name == 'train' else []), str(checkpoint),
        '--work-dir', given.work_dir, '--joining', 'mpvg', '--cfg-options', *options]), log))
    return status, log.read_text()


def change(content, *path, value=None):
    """Sets an entry of nested dicts and lists, or deletes it."""
    *outer, last = path
    for key in outer:
        content = content[key]
    if value is None:
        del content[last]
    else:
        content[last] = value


CHANGES = {
    'code': dict(path=('meta', 'x'), said='refused'),
    'integers': dict(path=('state_dict', 'backbone.norm.weight'),
                     value=torch.ones(96, dtype=torch.int64), said='is a tensor of torch.int64'),
    'nan': dict(path=('state_dict', 'backbone.norm.weight'), value=torch.full((96,), float('nan')),
                said='not finite'),
    'text': dict(path=('state_dict', 'backbone.norm.weight'), value='text', said='is a str'),
    'other weights': dict(path=('state_dict', 'backbone.norm.weight'), said='missing: 1')}
RUNS = {
    'no message hub': dict(path=('message_hub',), said="KeyError: 'message_hub'"),
    'no iteration': dict(path=('meta', 'iter'), said="KeyError: 'iter'"),
    'another optimizer': dict(path=('optimizer', 'param_groups'), value=[{}], said='ValueError'),
    'strange schedule': dict(path=('param_schedulers',), value=3, said='TypeError')}


QUICK = {('test', 'code'), ('test', 'integers'), ('train', 'code'), ('train', 'text'),
         ('train', 'no message hub')}


@pytest.mark.parametrize('name, change_of', [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.long)
    for case in (('test', 'code'), ('test', 'integers'), *(
        ('train', name) for name in (*CHANGES, *RUNS)))])
def test_tools_name_a_strange_checkpoint(name, change_of, trained, tmp_path):
    content, wanted = torch.load(trained, weights_only=False), {**CHANGES, **RUNS}[change_of]
    mark = tmp_path / 'ran'
    value = Call(os.mkdir, str(mark)) if change_of == 'code' else wanted.get('value')
    change(content, *wanted['path'], value=value)
    torch.save(content, tmp_path / 'strange.pth')
    status, printed = tool(name, tmp_path / 'strange.pth', tmp_path / 'log')
    assert status == 2 and not mark.exists() and 'Traceback' not in printed, printed
    errors = [line for line in printed.splitlines() if 'error: ' in line]
    assert len(errors) == 1 and str(tmp_path / 'strange.pth') in errors[0], printed
    assert wanted['said'] in errors[0] and errors[0] == printed.splitlines()[-1]


@pytest.mark.parametrize('name', ['train', 'test'])
def test_a_config_in_a_checkpoint_is_not_run(name, trained, tmp_path):
    """mmengine would run it on resuming, to compare the number of GPUs."""
    content, mark = torch.load(trained, weights_only=False), tmp_path / 'ran'
    config = f'import os\nos.mkdir({str(mark)!r})\ngpu_ids = range(8)'
    content['meta'].update(config=config, cfg=config)
    content['message_hub']['runtime_info']['cfg'] = config
    torch.save(content, tmp_path / 'other.pth')
    status, printed = tool(name, tmp_path / 'other.pth', tmp_path / 'log')
    assert status == 0 and not mark.exists(), printed
    if name == 'train':  # and the next checkpoint has the config of its own run
        last = torch.load(tmp_path / 'run/epoch_2.pth', weights_only=False)
        assert 'max_epochs = 2' in last['message_hub']['runtime_info']['cfg'].replace('=2', ' = 2')


def test_a_checkpoint_has_no_file_deleted(trained, tmp_path):
    """mmengine deletes the message hub's best checkpoint when there is a better one."""
    content, folder = torch.load(trained, weights_only=False), tmp_path / 'precious'
    folder.mkdir()
    info = content['message_hub']['runtime_info']
    info.update(best_ckpt=str(folder), best_score=-1.)
    content['message_hub']['resumed_keys'].update(best_ckpt=True, best_score=True)
    torch.save(content, tmp_path / 'other.pth')
    status, printed = tool('train', tmp_path / 'other.pth', tmp_path / 'log',
                           'default_hooks.checkpoint.save_best=accuracy/top1')
    assert status == 0 and list((tmp_path / 'run').glob('best_*.pth')), printed
    assert folder.is_dir() and f'{folder}' in printed and 'is left alone' in printed


def test_trusted_code_is_run_and_named(trained, tmp_path):
    content, mark = torch.load(trained, weights_only=False), tmp_path / 'ran'
    content['meta']['x'] = Call(os.mkdir, str(mark))
    torch.save(content, tmp_path / 'mine.pth')
    given = runs.arguments('deit', tmp_path / 'run', resume=str(tmp_path / 'mine.pth'),
                           options={'train_cfg.max_epochs': 2}, trust_checkpoint=True)
    status = runs.run(given, tmp_path / 'log')
    printed = (tmp_path / 'log').read_text()
    assert status == 0 and mark.exists(), printed
    assert f'--trust-checkpoint: {tmp_path / "mine.pth"} is loaded without a check' in printed
