"""Which of several runs' checkpoints in one folder is gone on from, and what is said of them."""
from types import SimpleNamespace

import pytest

pytest.importorskip('mmengine')

import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402

from lape_mm.runs.resume import newest_checkpoint, note_start  # noqa: E402
from lape_mm.runs.session import set_resume  # noqa: E402


def write(folder, name, iterations, time=None, *, weight=1., **meta):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    meta = {'iter': iterations, 'epoch': 0, **meta, **({'time': time} if time else {})}
    torch.save({'state_dict': {'weight': torch.full((2000,), weight)}, 'optimizer': {},
                'meta': meta}, path)
    return str(path)


def start(folder, log_folder, resume=None):
    """Notes a start; the warnings."""
    lines = []
    note_start(SimpleNamespace(work_dir=str(folder), timestamp=log_folder,
                               logger=SimpleNamespace(warning=lines.append)), resume)
    return lines


def test_a_config_keeps_what_it_starts_from(tmp_path, capsys):
    cfg = Config(dict(work_dir=str(tmp_path), load_from='coco.pth', resume=False))
    set_resume(cfg, 'auto')  # nothing is there yet
    assert (cfg.resume, cfg.load_from) == (False, 'coco.pth')
    assert 'the run starts from the beginning' in capsys.readouterr().out
    newest = write(tmp_path, 'epoch_1.pth', 10, '20240101_120000')
    set_resume(cfg, 'auto')
    assert (cfg.resume, cfg.load_from, cfg.started_from) == (True, newest, 'coco.pth')
    assert f'resumes from {newest}' in capsys.readouterr().out


def test_the_last_run_counts_and_ties_go_to_the_higher_iteration(tmp_path):
    """A longer run of other settings had been there before."""
    write(tmp_path, 'epoch_16.pth', 1600, '20240101_120000')
    write(tmp_path, 'epoch_4.pth', 400, '20240102_100000')
    newest = write(tmp_path, 'interrupted.pth', 450, '20240102_100500')
    write(tmp_path, 'iter_449.pth', 449, '20240102_100500')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_16.pth'))
    assert newest_checkpoint(str(tmp_path)) == (newest, [])


def test_without_a_time_it_is_the_oldest(tmp_path):
    write(tmp_path, 'epoch_16.pth', 1600)
    last = write(tmp_path, 'epoch_17.pth', 1700)
    assert newest_checkpoint(str(tmp_path)) == (last, [])
    newest = write(tmp_path, 'epoch_1.pth', 100, '20240101_120000')
    assert newest_checkpoint(str(tmp_path)) == (newest, [])


def test_also_from_the_folder_that_the_hook_writes_to(tmp_path):
    """mmengine notes the last one of its ``out_dir``."""
    write(tmp_path, 'epoch_9.pth', 900, '20240101_120000')
    newest = write(tmp_path / 'out', 'epoch_10.pth', 1000, '20240101_130000')
    (tmp_path / 'last_checkpoint').write_text(newest)
    assert newest_checkpoint(str(tmp_path)) == (newest, [])
    newest = write(tmp_path / 'out', 'interrupted.pth', 1100, '20240101_140000')
    assert newest_checkpoint(str(tmp_path)) == (newest, [])
    newest = write(tmp_path / 'out', 'model_12.pth', 1200, '20240101_150000')  # filename_tmpl
    (tmp_path / 'last_checkpoint').write_text(newest)
    assert newest_checkpoint(str(tmp_path)) == (newest, [])


def test_what_cannot_be_used_gives_way(tmp_path):
    whole = write(tmp_path, 'epoch_1.pth', 100, '20240101_120000')
    cut = tmp_path / 'epoch_2.pth'
    write(tmp_path, cut.name, 200, '20240101_130000')
    cut.write_bytes(cut.read_bytes()[:-200])
    nan = write(tmp_path, 'epoch_3.pth', 300, '20240101_140000', weight=float('nan'))
    turned = tmp_path / 'epoch_4.pth'  # a bit of its weights
    write(tmp_path, turned.name, 400, '20240101_150000')
    content = bytearray(turned.read_bytes())
    content[content.index(b'\x00\x00\x80?' * 8) + 2] ^= 1
    turned.write_bytes(content)
    strange = write(tmp_path, 'epoch_5.pth', 'many', '20240101_160000')
    found, lines = newest_checkpoint(str(tmp_path))
    assert found == whole and len(lines) == 4
    text = '\n'.join(lines)
    assert f'{cut}: ' in text and f'{nan}: ' in text and f'{turned}: damaged' in text
    assert f'{strange}: lacks an optimizer or meta.iter' in text
    assert newest_checkpoint(str(tmp_path / 'nothing')) == (None, [])


def test_an_earlier_runs_checkpoints_are_named_and_not_taken(tmp_path):
    """A new run that was killed before its first checkpoint has none to go on from."""
    first = write(tmp_path, 'epoch_9.pth', 900, '20240101_120000',
                  experiment_name='deit_20240101_110000')
    start(tmp_path, '20240102_100000')
    line = f'{first} is from an earlier run; --resume {first} continues that run'
    assert newest_checkpoint(str(tmp_path)) == (None, [line])
    own = write(tmp_path, 'epoch_1.pth', 100, '20240102_101000',
                  experiment_name='deit_20240102_100000')
    assert newest_checkpoint(str(tmp_path)) == (own, [line])
    start(tmp_path, '20240102_110000', 'auto')
    later = write(tmp_path, 'epoch_2.pth', 200, '20240102_111000',
                  experiment_name='deit_20240102_110000')
    assert newest_checkpoint(str(tmp_path)) == (later, [line])
    start(tmp_path, '20240102_120000', first)  # the user's own choice: all count again
    assert newest_checkpoint(str(tmp_path)) == (later, [])


def test_what_version_0_1_0_wrote_counts(tmp_path):
    newest = write(tmp_path, 'epoch_9.pth', 900, '20240101_120000')
    start(tmp_path, '20240102_110000', 'auto')
    assert newest_checkpoint(str(tmp_path)) == (newest, [])


def test_a_folder_that_holds_a_run_is_named(tmp_path):
    assert start(tmp_path, '20240102_100000') == []
    (tmp_path / 'notes.txt').touch()
    assert start(tmp_path, '20240102_110000') == []
    for number in range(6):
        (tmp_path / f'epoch_{number}.pth').touch()
    assert start(tmp_path, '20240102_120000', 'auto') == []
    line, = start(tmp_path, '20240102_130000')
    assert line.startswith(f'{tmp_path} holds a run already (epoch_0.pth')
    assert 'and 2 more' in line and 'overwrite' in line and '\n' not in line
    assert '--work-dir' in line and '--resume' in line
