"""The loader of a run: that its workers end with it."""
import subprocess
import sys

import pytest

pytest.importorskip('mmengine')

ENDS = '''
import sys
from torch.utils.data import DataLoader
from lape_mm.engine.samples import guarded_loader

loader = guarded_loader(DataLoader(range(8), batch_size=2, num_workers=2, persistent_workers={}),
                        report='report', part='{}')
batches = iter(loader)
print(next(batches))
kept = [loader, batches]
kept.append(kept)  # as a runner, which refers to itself
sys.modules['kept'] = kept
'''


HANGS = '''
import sys, time
from torch.utils.data import DataLoader, Dataset
from lape_mm.engine.samples import guarded_loader

class Hanging(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(1000 * (index >= 2))
        return index

loader = guarded_loader(DataLoader(Hanging(), batch_size=2, num_workers=1), report='report',
                        part='val')
sys.modules['kept'] = batches = iter(loader)
print(next(batches))
'''


def test_a_worker_that_hangs_ends_too(tmp_path):
    ended = subprocess.run([sys.executable, '-c', HANGS], cwd=tmp_path, capture_output=True,
                           text=True, timeout=120)
    assert ended.stdout == 'tensor([0, 1])\n', ended.stderr


@pytest.mark.parametrize('persistent', [True, False])
@pytest.mark.parametrize('part', ['train', 'val'])
def test_workers_end_with_the_process(part, persistent, tmp_path):
    """Though they ignore SIGTERM, by which multiprocessing ends what is left at the exit."""
    ended = subprocess.run([sys.executable, '-c', ENDS.format(persistent, part)], cwd=tmp_path,
                           capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == 'tensor([0, 1])\n' and not ended.stderr
