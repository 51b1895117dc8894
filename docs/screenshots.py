#!/usr/bin/env python
"""Takes the docs' screenshots in headless Chromium: the demo, report.html and this site.

    uv run python tools/train.py configs/quickstart/mask_rcnn.py
    uv run --isolated --only-group docs sphinx-build -q docs build/site
    uv run python docs/screenshots.py work_dirs/mask_rcnn build/site

writes docs/screenshot_*.jpg. Needs Debian's chromium and chromium-driver.
"""
import argparse
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from shutil import which

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

DOCS = Path(__file__).parent
PORT = 7899


def keep(browser: webdriver.Chrome, name: str) -> None:
    """Saves what the browser shows."""
    picture = Image.open(BytesIO(browser.get_screenshot_as_png())).convert('RGB')
    picture.save(DOCS / f'screenshot_{name}.jpg', quality=80, optimize=True)


def demo(browser: webdriver.Chrome, work_dir: Path, image: Path) -> None:
    """The demo with one image, its boxes and masks drawn."""
    weights = (work_dir / 'last_checkpoint').read_text().strip()
    page = subprocess.Popen([sys.executable, '-m', 'lape_mm', 'demo',
                             'configs/quickstart/mask_rcnn.py', weights,
                             '--images', str(image.parent), '--port', str(PORT)])

    def opened(_) -> bool:
        if page.poll() is not None:
            sys.exit('the demo ended, see above')
        browser.get(f'http://127.0.0.1:{PORT}')
        return bool(browser.find_elements(By.CSS_SELECTOR, '#image input[type=file]'))
    try:
        wait = WebDriverWait(browser, 120, ignored_exceptions=[Exception])
        wait.until(opened)
        browser.find_element(By.CSS_SELECTOR, '#image input[type=file]').send_keys(
            str(image.resolve()))
        wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, '#out0 img'))
        time.sleep(2)  # the picture fades in
        keep(browser, 'demo')
    finally:
        page.terminate()


def main() -> None:
    """Takes all three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('work_dir', type=Path, help="the quick start's, with its report")
    parser.add_argument('site', type=Path, help='folder of the built docs')
    args = parser.parse_args()
    options = webdriver.ChromeOptions()
    options.binary_location = which('chromium')
    for word in ('--headless=new', '--no-sandbox', '--disable-gpu', '--hide-scrollbars',
                 '--window-size=1280,960', '--disable-dev-shm-usage'):
        options.add_argument(word)
    browser = webdriver.Chrome(options, webdriver.ChromeService(which('chromedriver')))
    try:
        for name, file in (('report', max(args.work_dir.glob('*/report.html'))),
                           ('site', args.site / 'index.html')):
            browser.get(file.resolve().as_uri())
            time.sleep(1)
            keep(browser, name)
        demo(browser, args.work_dir, next(Path('data/scenes/coco/val2017').glob('*')))
    finally:
        browser.quit()


if __name__ == '__main__':
    main()
