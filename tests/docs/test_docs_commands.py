"""Every command of README and docs: known options, settings that pass, files that are there.

What is neither checked nor on the short list `NOT_OURS` fails, so that a new block cannot slip in.
`test_docs_runs.py` carries the pages out.
"""
import re

import pytest

pytest.importorskip('mmengine')
for toolbox in ('mmpretrain', 'mmdet', 'mmseg'):
    pytest.importorskip(toolbox)

from docs_checks import KINDS, Page, check  # noqa: E402
from docs_pages import PAGES, ROOT, blocks, commands, inline_commands, name  # noqa: E402
from docs_workshop import link  # noqa: E402

# fenced blocks that no reader runs
SHOWN = {'': 'what a command prints, or a layout of files',
         '{toctree}': "the site's own", '{eval-rst}': "the site's own"}
# what commands begin with, and why no test carries them out
NOT_OURS = {
    'pip install': 'changes the environment; extras are checked against pyproject.toml',
    'pytest': 'is what runs this', 'ruff': '.ci/run does', 'sphinx-build': '.ci/run does',
    'git clone': 'needs the network',
    'mim train': 'MIM finds configs and tools in .mim, where tests/test_shipped.py looks for them',
    'python': 'the interpreter, named in passing',
    'bash tools/dist_train.sh': 'starts as many processes as GPUs; its options are checked',
}


def not_ours(words):
    line = ' '.join(words)
    return next((start for start in NOT_OURS if line == start or line.startswith(f'{start} ')
                 and start != 'python'), None)


@pytest.mark.parametrize('page', PAGES, ids=name)
def test_commands(page, tmp_path, monkeypatch):
    link(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = blocks(page)
    assert all(block.language in {'bash', 'python', *SHOWN} for block in found), [
        block.where for block in found]
    state, wrong = Page(), []
    given = commands([block for block in found if block.language == 'bash'])
    for block in inline_commands(page):
        given += commands([block])
    for command in given:
        start = not_ours(command.words)
        ours = command.words[0] == 'python' and (
            command.words[1:2] == ['-c'] or command.words[1:] and
            command.words[1].startswith(KINDS))
        if not (start or ours):
            wrong.append(f'{command}: neither checked nor listed in NOT_OURS')
            continue
        if start and not start.startswith('bash'):
            continue
        with monkeypatch.context() as patch:
            for key, value in command.environment.items():
                patch.setenv(key, value)
            try:
                check(command, state)
            except (Exception, SystemExit) as error:
                wrong.append(f"{type(error).__name__}: {error}: {command}")
    assert not wrong, '\n'.join(wrong)


def test_extras_are_those_of_the_package():
    project = (ROOT / 'pyproject.toml').read_text()
    for page in PAGES:
        for extra in re.findall(r'pip install [^\n`]*(?:lape_mm|\.)\[(\w+)\]', page.read_text()):
            assert re.search(rf'^{extra} = ', project, re.MULTILINE), (page, extra)
