"""The workers of a loader end with the process."""
import subprocess
import sys

import pytest

pytest.importorskip('mmengine')

LEFTOVERS = '''
import sys, time
from torch.utils.data import DataLoader, Dataset
from lape_mm.runs.engine.samples import GuardedLoader

class Hanging(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(1000 * (index >= 2))
        return index

kept = sys.modules['kept'] = []
for dataset, part, persistent in ((range(8), 'train', True), (range(8), 'val', False),
                                  (Hanging(), 'val', False)):
    loader = GuardedLoader(DataLoader(dataset, batch_size=2, num_workers=1,
                                      persistent_workers=persistent), report='report', part=part)
    batches = iter(loader)
    print(next(batches))
    kept += loader, batches, kept  # a cycle, like the runner's
'''


def test_workers_end_with_the_process(tmp_path):
    """They ignore SIGTERM, with which multiprocessing would end them at exit."""
    ended = subprocess.run([sys.executable, '-c', LEFTOVERS], cwd=tmp_path, capture_output=True,
                           text=True, timeout=120)
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    assert ended.stdout == 'tensor([0, 1])\n' * 3
