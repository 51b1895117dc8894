"""The command lines: what they parse, and that mistakes end in one line and status 2."""
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('mmengine')

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / 'tools').glob('*.sh'))


@pytest.fixture
def tool(monkeypatch):
    """Imports tools/NAME.py, whose folder is no package."""
    def load(name):
        monkeypatch.syspath_prepend(str(ROOT / 'tools'))
        # `test` is also a package of Python itself
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)
    yield load
    for name in ('train', 'test'):
        sys.modules.pop(name, None)


def test_train_arguments(tool):
    args = tool('train').parse_args([
        'c.py', '--resume', '--amp', 'bf16', '--auto-scale-lr', '--joining', "{'last': 0}",
        '--cfg-options', 'a.b=1', 'c=2', '--work-dir', 'w', '--local-rank', '1'])
    assert (args.config, args.resume, args.amp, args.auto_scale_lr) == ('c.py', 'auto', 'bf16', 1)
    assert args.joining == {'last': 0} and args.cfg_options == {'a.b': 1, 'c': 2}
    assert args.work_dir == 'w' and args.launcher == 'none'
    assert tool('train').parse_args(['c.py', '--resume', 'x.pth']).resume == 'x.pth'


def test_test_arguments(tool):
    args = tool('test').parse_args(['c.py', 'x.pth', '--out', 'o.pkl', '--show-dir', 'd'])
    assert (args.config, args.checkpoint, args.out, args.show_dir) == \
        ('c.py', 'x.pth', 'o.pkl', 'd')


@pytest.mark.parametrize('name, argv, said', [
    ('train', ['no.py'], 'there is no config no.py'),
    ('train', ['no.py', '--joining', 'foo'], "joining='foo': expected one of 'default'"),
    ('train', ['no.py', '--joining', '{last}'], 'expected a Python dict'),
    ('test', ['no.py', 'no.pth'], 'there is no config no.py'),
])
def test_mistakes(tool, capsys, name, argv, said):
    assert tool(name).main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and said in error and error.count('\n') == 1


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda path: path.name)
def test_scripts(script):
    assert subprocess.run(['bash', '-n', script]).returncode == 0
    run = subprocess.run(['bash', script], capture_output=True, text=True)
    assert run.returncode == 2 and run.stderr.startswith('usage: ')
