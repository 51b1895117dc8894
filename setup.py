"""Ships configs/, tools/ and model-index.yml inside the package, as OpenMMLab packages do.

An installed wheel holds copies below ``lape_mm/.mim`` (what ``mim`` and mmengine's
``lape_mm::...`` config names look for); an editable install holds links to the checkout.
Everything else about the package stands in pyproject.toml.
"""
import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SHIPPED = ('configs', 'tools', 'model-index.yml')


class BuildWithMim(build_py):
    """build_py that adds the ``.mim`` folder."""

    def run(self):
        super().run()
        root = ROOT if self.editable_mode else Path(self.build_lib).resolve()
        target = root / 'lape_mm' / '.mim'
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in SHIPPED:
            source, copy = ROOT / name, target / name
            if self.editable_mode:
                copy.symlink_to(os.path.relpath(source, target))
            elif source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns('__pycache__'))
            else:
                shutil.copy(source, copy)


setup(cmdclass={'build_py': BuildWithMim})
