"""The documents: links lead to files and headings that are there, and programs and flags that they name exist."""

import dataclasses
import re

import pytest
from conftest import ROOT

from inception_mg import config

PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', ROOT / 'SECURITY.md', *sorted((ROOT / 'docs').glob('*.md'))]
PROGRAMS = {path.name: path.read_text() for path in (ROOT / 'scripts').glob('[!_]*.py')}
OF_OTHERS = {  # Of absl, python -m build, sbatch, quickstart.sh, docker, kubectl, useradd and TensorFlow's serving.
    'dir', 'tag_set', 'signature_def', 'inputs', 'port', 'rest_api_port', 'model_name', 'model_base_path',
    'help', 'helpfull', 'outdir', 'cluster', 'build', 'cap', 'home', 'max', 'prefix', 'read', 'rm', 'system',
    'tmpfs', 'user', 'signal'}


def flags() -> set[str]:
    """The names of all flags of all programs."""
    of_config = {field.name for part in vars(config).values() if dataclasses.is_dataclass(part)
                 for field in dataclasses.fields(part)}
    return of_config | {name for text in PROGRAMS.values() for name in re.findall(r"DEFINE_\w+\('(\w+)'", text)}


def links(text: str) -> list[str]:
    """What a page's links and pictures lead to, those into the network left out."""
    return [target for target in re.findall(r'\]\(([^)\s]+)\)', text) if not re.match(r'[a-z]+:', target)]


def anchors(text: str) -> set[str]:
    """The names that headings have on GitHub."""
    headings = re.findall(r'^#+ (.+)$', re.sub(r'^```.*?^```', '', text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}


def wrong_links(page, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for link in links(text):
        name, _, anchor = link.partition('#')
        target = (page.parent / name) if name else page
        if not target.exists() or anchor and anchor not in anchors(target.read_text()):
            wrong.append(link)
    return wrong


def wrong_flags(text: str) -> set[str]:
    """The flags that a page names and no program has; --noNAME is NAME."""
    known = flags() | OF_OTHERS
    return {name for name in re.findall(r'(?<![\w-])--([a-z]\w*)', text)
            if name not in known and name.removeprefix('no') not in known}


def wrong_files(text: str) -> set[str]:
    """Paths of code that a page names in backquotes, or programs, and that are not there."""
    named = set(re.findall(r'\b(?:scripts|tests|dist|inception_mg)/[\w/]+\.(?:py|sh)\b', text))
    return {name for name in named if not (ROOT / name).exists()}


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_programs_and_flags_exist(page):
    text = page.read_text()
    assert wrong_links(page, text) == []
    assert wrong_files(text) == set()
    assert wrong_flags(text) == set()


def test_what_is_wrong_is_seen():
    page = ROOT / 'README.md'
    text = ('[a](nowhere.md) [b](docs/modes.md#no-such-heading) [c](https://example.org) [d](docs/modes.md) '
            '`scripts/walk.py` --nodistort --num_gpus=2 --num_gnus=3 -- x')
    assert wrong_links(page, text) == ['nowhere.md', 'docs/modes.md#no-such-heading']
    assert wrong_files(text) == {'scripts/walk.py'} and wrong_flags(text) == {'num_gnus'}


def test_every_program_is_in_the_list_of_programs():
    listed = (ROOT / 'docs' / 'programs.md').read_text()
    assert [name for name in PROGRAMS if name != 'common.py' and f'scripts/{name}' not in listed] == []


def test_the_readme_stays_short_and_has_the_two_commands():
    text = (ROOT / 'README.md').read_text()
    assert len(text.splitlines()) <= 110
    assert all(line in text for line in ('scripts/quickstart.sh ', 'scripts/test.sh ', 'source .venv/bin/activate'))
