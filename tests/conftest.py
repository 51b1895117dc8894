"""What tests of several folders need."""
import os
from shutil import which

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


@pytest.fixture
def browser():
    """Chromium without a window, which logs its requests."""
    webdriver = pytest.importorskip('selenium.webdriver', reason='needs selenium')
    if not which('chromium') or not which('chromedriver'):
        pytest.skip('needs chromium and chromedriver')
    options = webdriver.ChromeOptions()
    options.binary_location = which('chromium')
    options.set_capability('goog:loggingPrefs', {'performance': 'ALL'})
    for word in ('--headless=new', '--no-sandbox', '--disable-gpu', '--window-size=1400,1400',
                 '--disable-dev-shm-usage'):
        options.add_argument(word)
    driver = webdriver.Chrome(options=options,
                              service=webdriver.ChromeService(which('chromedriver')))
    yield driver
    driver.quit()


def pytest_collection_modifyitems(items):
    """The longest file first, so that the other worker has all the others meanwhile."""
    items.sort(key=lambda item: item.path.name != 'test_quickstart.py')
