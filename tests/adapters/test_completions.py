# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completions in the shells themselves: what TAB offers on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from journalkeeper.cli.parser import COMMANDS
from tests.adapters.command import need, ran
from tests.adapters.pages import make

PATIENCE_S = 60.0
SILENCE_S = 0.6
"""A shell that has said nothing for so long has offered all that it has."""

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78])|[\x07\x0e\x0f]")
pytestmark = pytest.mark.slow
NAMES = tuple(command.name for command in COMMANDS)

BASH = """PS1='> '
bind 'set show-all-if-ambiguous on' 'set page-completions off' 'set bell-style none'
bind 'set completion-query-items 0' 'set enable-bracketed-paste off'
source {made}/bash/journalkeeper
cd {here}
"""
ZSH = """PS1='> '; setopt nobeep autolist noautomenu; unsetopt promptsp promptcr zle_bracketed_paste 2>/dev/null
fpath=({made}/zsh $fpath); autoload -Uz compinit; compinit -u -D; LISTMAX=10000
unset zle_bracketed_paste
cd {here}
"""


class Terminal:
    """A shell on a terminal that is wide enough for everything."""

    def __init__(self, words: list[str], setup: str) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "3000", "LINES": "200", "HOME": os.environ["TMPDIR"]}
        environment.pop("ENV", None)
        self._shell = subprocess.Popen(
            ["setsid", "--wait", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        subprocess.run(["stty", "-F", os.ttyname(self._ours), "columns", "3000", "rows", "200"], check=False)
        self._said = ""
        for line in setup.splitlines():
            self._type(f"{line}\n")
        self._until("ready", "echo re''ady\n")

    def tab(self, line: str) -> str:
        """What is shown after TAB was pressed behind `line`; the line is not executed."""
        self._said = ""
        self._type(f"{line}\t")
        self._until("over", "\x15echo ov''er\n", settle=True)
        return self._said.replace(line, "", 1).replace("\\", "")  # zsh shows a name as it would be typed

    def close(self) -> None:
        self._type("\x15exit\n")
        self._shell.wait(PATIENCE_S)
        os.close(self._ours)

    def _type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def _until(self, word: str, text: str, *, settle: bool = False) -> None:
        """Type `text` when nothing more comes, and read up to `word`."""
        if settle:
            while self._read(SILENCE_S):
                pass
        self._type(text)
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(rf"(?m)^{word}\r?$", self._said):
            assert time.monotonic() < deadline, self._said
            self._read(1)

    def _read(self, patience_s: float) -> bool:
        if not select.select([self._ours], [], [], patience_s)[0]:
            return False
        self._said += ESCAPES.sub("", os.read(self._ours, 65536).decode(errors="replace")).replace("\r\n", "\n")
        return True


Tab = Callable[[str], str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with journal files, others, and a journal below it."""
    here = tmp_path_factory.mktemp("here")
    for name in ("old.journal", "torn.journal~", "new.conf", "journal/0123/system.journal", "journal/0123/x.journal~"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).touch()
    return here


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def tab(request: pytest.FixtureRequest, place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """What each shell offers."""
    need(request.param)
    made = make(tmp_path_factory.mktemp("made"))
    if request.param == "fish":
        yield lambda line: _fish(line, made, place)
        return
    words, setup = (
        (["bash", "--norc", "--noprofile", "-i"], BASH) if request.param == "bash" else (["zsh", "-f", "-i"], ZSH)
    )
    terminal = Terminal(words, setup.format(made=made, here=place))
    yield terminal.tab
    terminal.close()


def _fish(line: str, made: Path, place: Path) -> str:
    program = f"source {made}/fish/journalkeeper.fish; complete -C {shlex.quote(line)}"
    environment = {**os.environ, "HOME": os.environ["TMPDIR"]}
    return ran("fish", "--no-config", "-c", program, check=True, cwd=place, env=environment).stdout


def offered(text: str, *words: str) -> list[str]:
    """Those of `words` that the text has as words of their own."""
    return [word for word in words if re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w~-]|\.\w)", text)]


def test_every_command_is_offered(tab: Tab) -> None:
    assert offered(tab("journalkeeper "), *NAMES) == list(NAMES)


def test_a_command_that_is_begun_is_ended(tab: Tab) -> None:
    assert "frag" in tab("journalkeeper de")
    assert offered(tab("journalkeeper --no-pager -D /tmp de"), "scan") == []


def test_a_command_has_its_own_options_and_those_of_every_command(tab: Tab) -> None:
    flags = ("--dry-run", "--before-shutdown", "--allow-unshare", "--no-legend", "--directory", "--json")
    assert offered(tab("journalkeeper defrag --"), *flags, "--since", "--version") == list(flags)
    assert offered(tab("journalkeeper history --"), "--since", "--until", "--dry-run") == ["--since", "--until"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("journalkeeper scan --json=", ("short", "pretty", "off")),
        ("journalkeeper scan --json ", ("short", "pretty", "off")),
        ("journalkeeper defrag --compress=", ("zstd", "zlib", "lzo", "no")),
        ("journalkeeper history --since ", ("today", "yesterday", "now")),
    ],
)
def test_a_value_that_is_one_of_some_words_is_offered(tab: Tab, line: str, words: tuple[str, ...]) -> None:
    others = [name for name in NAMES if name not in line]
    assert offered(tab(line), *words, *others) == list(words)


def test_a_path_is_a_journal_file_or_leads_to_one(tab: Tab) -> None:
    text = tab("journalkeeper scan ./")
    assert offered(text, "old.journal", "torn.journal~") == ["old.journal", "torn.journal~"]
    assert "journal/" in text
    assert "new.conf" not in text


def test_before_anything_is_typed_the_files_of_the_directory_are_offered(tab: Tab, place: Path) -> None:
    text = tab(f"journalkeeper scan -D {place}/journal ")
    # zsh goes down one directory at a time
    assert "0123" in text
    assert offered(text, "old.journal", "new.conf") == []
    deeper = tab(f"journalkeeper scan -D {place}/journal {place}/journal/0123/")
    assert offered(deeper, "system.journal", "x.journal~") == ["system.journal", "x.journal~"]


def test_options_for_a_directory_and_for_a_file_offer_just_these(tab: Tab) -> None:
    assert offered(tab("journalkeeper scan -D ./"), "old.journal", "new.conf") == []
    assert "journal" in tab("journalkeeper scan -D ./")
    assert "new.conf" in tab("journalkeeper check-config --config ./")
    assert "new.conf" in tab("journalkeeper --config=./")


def test_an_argument_that_is_a_directory_offers_just_these(tab: Tab) -> None:
    assert "compare" in tab("journalkeeper lab ")
    text = tab("journalkeeper lab compare ./")
    assert "journal" in text
    assert offered(text, "old.journal", "new.conf") == []


def test_a_command_without_paths_offers_none(tab: Tab) -> None:
    assert offered(tab("journalkeeper status ./"), "old.journal", "new.conf") == []
