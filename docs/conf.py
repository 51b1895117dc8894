"""The site: `uv run --isolated --only-group docs sphinx-build -W docs build/site`.

The API reference is read from the sources (sphinx-autoapi) and imports nothing, so that neither
torch nor mmcv is needed. The pages ask for no other site: no fonts, no scripts, no pictures.
"""
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

project = 'lape_mm'
author = copyright = 'The lape_mm contributors'
version = release = re.search(r"__version__ = '(.+)'",
                              (ROOT / 'lape_mm/__init__.py').read_text())[1]
extensions = ['myst_nb', 'autoapi.extension', 'sphinx.ext.napoleon', 'sphinx_copybutton']
exclude_patterns = ['*.py']
# docstrings write `name` for code
default_role = 'code'
highlight_language = 'text'  # of blocks that name none: layouts of files, and what commands print

myst_heading_anchors = 3
myst_enable_extensions = ['colon_fence']
nb_execution_mode = 'off'  # tests/docs runs it

autoapi_dirs = [str(ROOT / 'lape_mm')]
autoapi_generate_api_docs = False
autoapi_keep_files = False
autodoc_typehints = 'none'

html_theme = 'furo'
html_title = f'lape_mm {release}'
html_static_path = ['site.css']
html_css_files = ['site.css']
html_copy_source = False
html_show_sphinx = False
copybutton_exclude = '.linenos, .gp, .go'
