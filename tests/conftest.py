"""What tests of several folders need."""
import os

import pytest

# before torch comes: two workers share the cores, and a second thread gains tiny tensors nothing
os.environ.setdefault('OMP_NUM_THREADS', '1')


@pytest.fixture
def forgetful():
    """mmengine keeps loggers, visualizers and scopes for a whole process: not beyond a test."""
    import torch
    from quickstarts import forget
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    forget()


def pytest_collection_modifyitems(items):
    """The longest file first, so that the other worker has all the others meanwhile."""
    items.sort(key=lambda item: item.path.name != 'test_quickstart.py')
