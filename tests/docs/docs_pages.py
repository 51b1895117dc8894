"""README and docs/*.md as blocks and commands: what a reader copies."""
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted((ROOT / 'docs').rglob('*.md'))]
FENCE = re.compile(r'^( *)(`{3,}|:{3,})(\S*)[^\n]*\n(.*?)^\1\2 *$', re.MULTILINE | re.DOTALL)
INLINE = re.compile(r'`((?:uv run |python |LAPE_MM_\w+=\S+ )[^`\n]+)`')
LOOP = re.compile(r'^for (\w+) in ([^;\n]+); do\n(.*?)^done[^\n]*\n', re.MULTILINE | re.DOTALL)
ASKED = re.compile(r'[A-Z]+=\$\((.*)\)$')
PLACEHOLDER = re.compile(r'[A-Z][A-Z0-9_]*(\.\w+)?$|(\./)?path/to/')


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block, or a command in the running text (``inline``)."""

    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f'{self.page}:{self.line}'


@dataclass
class Command:
    """One command line, words as a shell hands them on.

    Attributes:
        words: without ``uv run`` and settings of the environment.
        environment: set for this command, or by an ``export`` before it.
    """

    where: str
    words: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.where}: {shlex.join(self.words)}'


def is_placeholder(word: str) -> bool:
    """CONFIG, CHECKPOINT, LAPE.pth, path/to/...: the reader puts his own there."""
    return bool(PLACEHOLDER.match(word))


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text()
    return [Block(name(page), text[:match.start()].count('\n') + 1, match[3],
                  re.sub(rf'^{match[1]}', '', match[4], flags=re.MULTILINE))
            for match in FENCE.finditer(text)]


def inline_commands(page: Path) -> list[Block]:
    """Commands in running text and tables."""
    text = FENCE.sub(lambda match: '\n' * match[0].count('\n'), page.read_text())
    return [Block(name(page), text[:match.start()].count('\n') + 1, 'inline', match[1])
            for match in INLINE.finditer(text)]


def commands(found: list[Block]) -> list[Command]:
    """The commands of blocks of one page; loops are written out, `export` goes on to the next."""
    exported: dict[str, str] = {}
    return [command for block in found for command in _commands(block, exported)]


def _commands(block: Block, exported: dict[str, str]) -> list[Command]:
    text = block.text.rstrip('\n') + '\n'
    text = LOOP.sub(lambda loop: ''.join(
        re.sub(rf'\${loop[1]}\b', value, loop[3]) for value in loop[2].split()), text)
    made = []
    for line in re.sub(r'\\\n\s*', ' ', text).splitlines():
        if asked := ASKED.match(line):  # NAME=$(command)
            line = asked[1]
        words = shlex.split(line.strip().removesuffix('&'), comments=True)
        own = {}
        exporting = words[:1] == ['export']
        for word in words[exporting:]:
            key, equals, value = word.partition('=')
            if not equals or not re.fullmatch(r'[A-Z][A-Z0-9_]*', key):
                break
            own[key] = value
        words = words[exporting + len(own):]
        if not words:
            exported.update(own)
            continue
        if words[:2] == ['uv', 'run']:
            del words[:2]
            while words[0].startswith('-'):
                del words[:2 if words[0] in ('--only-group', '--with') else 1]
        environment = {**exported, **own}
        made.append(Command(block.where, [Template(word).safe_substitute(environment)
                                          for word in words], environment))
    return made
