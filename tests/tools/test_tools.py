"""The command lines: what they parse, and that mistakes end in one line and status 2."""
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('mmengine')

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / 'tools').glob('*.sh'))


HELP = '''
import contextlib, io, sys
from lape_mm.__main__ import main
for name, *argv in {calls!r}:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main([name, *argv])
        except SystemExit:
            pass
    assert 'usage: ' in said.getvalue(), (name, said.getvalue())
    heavy = {{'torch', 'timm', 'mmengine', 'mmcv', 'numpy'}} & sys.modules.keys()
    assert not heavy, (name, heavy)
'''


@pytest.fixture
def tool(load):
    return load


def test_help_and_wrong_options_are_answered_at_once():
    """Without the imports that take seconds."""
    calls = [[path.stem, '--help'] for path in sorted((ROOT / 'tools').glob('*.py'))]
    assert calls
    subprocess.run([sys.executable, '-c', HELP.format(
        calls=[[''], *calls, ['train', '--no-such-option'], ['train', 'c.py', '--amp', 'fp8']])],
        cwd=ROOT, check=True)


def test_help_names_the_code_bases(tool, capsys):
    from lape_mm.checkpoints.convert import TARGETS
    with pytest.raises(SystemExit):
        tool('convert_checkpoint').parse_args(['--help'])
    *first, last = TARGETS
    assert f'{", ".join(first)} or {last}' in ' '.join(capsys.readouterr().out.split())


def test_train_arguments(tool):
    args = tool('train').parse_args([
        'c.py', '--resume', '--amp', 'bf16', '--auto-scale-lr', '--joining', "{'last': 0}",
        '--cfg-options', 'a.b=1', 'c=2', '--work-dir', 'w'])
    assert (args.config, args.resume, args.amp, args.auto_scale_lr) == ('c.py', 'auto', 'bf16', 1)
    assert args.joining == {'last': 0} and args.cfg_options == {'a.b': 1, 'c': 2}
    assert args.work_dir == 'w' and args.launcher == 'none'
    assert tool('train').parse_args(['c.py', '--resume', 'x.pth']).resume == 'x.pth'


@pytest.mark.parametrize('name, argv, said', [
    ('train', ['no.py'], 'there is no config no.py'),
    ('train', ['no.py', '--joining', '{last}'], 'expected a Python dict'),
    ('test', ['no.py', 'no.pth'], 'there is no config no.py'),
    ('train', ['https://a.b/c.py'], 'config https://a.b/c.py: a config is Python code'),
    ('test', ['s3://a/c.py', 'no.pth'], 'a config is Python code'),
])
def test_mistakes(tool, capsys, name, argv, said):
    assert tool(name).main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and said in error and error.count('\n') == 1


@pytest.mark.parametrize('text, said', [
    ("train_cfg = dict(type='lape_mm.DeviceTrainLoop', compile=True, max_epochs=3)",
     "train_cfg: type='lape_mm.DeviceTrainLoop' has been removed: write by_epoch="),
    ("custom_hooks = [dict(type='lape_mm.FoldHook', img_size=32)]",
     "custom_hooks.0: type='lape_mm.FoldHook' has been removed: delete this hook")])
def test_configs_that_name_what_is_gone(tool, capsys, tmp_path, text, said):
    config = tmp_path / 'model.py'
    config.write_text(f"default_scope = 'mmpretrain'\n{text}\n")
    assert tool('train').main([str(config), '--resume']) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and said in error and error.count('\n') == 1


@pytest.mark.parametrize('name, argv', [
    ('train', ['c.py']), ('test', ['c.py', 'x.pth']),
    ('export_onnx', ['c.py', 'x.pth', 'o.onnx', '--img-size', '64']),
    ('analyze_position', ['c.py', 'x.pth', '--images', 'i', '--out', 'o'])])
def test_trust_is_off_unless_asked_for(tool, name, argv):
    parse = tool(name).parse_args
    assert parse(argv).trust_checkpoint is False
    assert parse([*argv, '--trust-checkpoint']).trust_checkpoint is True


def test_trust_in_a_conversion(tool, capsys, monkeypatch, tmp_path):
    import types

    import torch

    from lape_mm import DeiT
    monkeypatch.setattr('lape_mm.checkpoints.files.print_log', lambda text, **_: print(text))
    source, out = tmp_path / 'theirs.pth', tmp_path / 'ours.pth'
    model = DeiT(arch=dict(embed_dim=12, depth=1, num_heads=3), img_size=32, joining='default')
    torch.save({'model': model.state_dict(), 'args': types.SimpleNamespace(lr=1)}, source)
    convert = tool('convert_checkpoint').main
    argv = [str(source), str(out), '--to', 'lape_mm']
    assert convert(argv) == 2 and not out.exists()
    error = capsys.readouterr().err
    assert error.count('\n') == 1 and 'types.SimpleNamespace' in error and '--trust-che' in error
    assert convert([*argv, '--trust-checkpoint']) == 0 and out.is_file()
    assert f'--trust-checkpoint: {source} is loaded without a check' in ''.join(capsys.readouterr())
    assert convert([str(source), str(tmp_path / 'b.pth'), '--to', 'lape_mm']) == 2  # not for good
    capsys.readouterr()
    assert convert([str(source), str(tmp_path / 'c.pth'), '--to', 'swin']) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: --to swin: expected one of lape_mm, timm, ')
    assert error.count('\n') == 1


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda path: path.name)
def test_scripts(script):
    assert subprocess.run(['bash', '-n', script]).returncode == 0
    run = subprocess.run(['bash', script], capture_output=True, text=True)
    assert run.returncode == 2 and run.stderr.startswith('usage: ')
