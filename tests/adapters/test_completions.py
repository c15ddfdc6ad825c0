# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completions in the shells themselves: bash's function is called, fish is asked, zsh reads its file."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.cli.parser import COMMANDS
from tests.adapters.command import need, ran

Tab = Callable[[str], str]
NAMES = tuple(command.name for command in COMMANDS)
BASH = """
source {made}/bash/journalkeeper
COMP_LINE={line} COMP_POINT=${{#COMP_LINE}}
read -ra COMP_WORDS <<<"${{COMP_LINE//=/ = }}"
[[ $COMP_LINE != *[\\ =] ]] || COMP_WORDS+=("")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
compopt() {{ :; }}
function=$(complete -p journalkeeper | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function journalkeeper "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(params=["bash", "fish"])
def tab(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> Tab:
    """What each shell offers where there are journal files, others, and a journal below."""
    need(request.param)
    for name in ("old.journal", "torn.journal~", "new.conf", "journal/0123/system.journal"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def press(line: str) -> str:
        script = f"source {made}/fish/journalkeeper.fish; complete -C {shlex.quote(line)}"
        words = ["fish", "--no-config", "-c", script]
        if request.param == "bash":
            words = ["bash", "--norc", "-c", BASH.format(made=made, line=shlex.quote(line))]
        return ran(*words, check=True, cwd=tmp_path, env={**os.environ, "HOME": f"{tmp_path}"}).stdout

    return press


@pytest.mark.parametrize(
    ("line", "offered", "others"),
    [
        ("journalkeeper ", NAMES, ("old.journal",)),
        (
            "journalkeeper defrag --",
            ("--dry-run", "--allow-unshare", "--directory", "--json"),
            ("--since", "--version", "--upkeep"),
        ),
        ("journalkeeper scan --json=", ("short", "pretty", "off"), NAMES),
        ("journalkeeper scan ./", ("old.journal", "torn.journal~", "journal"), ("new.conf",)),
        ("journalkeeper scan -D ./", ("journal",), ("old.journal", "new.conf")),
        ("journalkeeper check-config --config ./", ("new.conf",), ()),
        ("journalkeeper status ./", (), ("old.journal", "new.conf")),
    ],
)
def test_the_words_that_tab_offers(tab: Tab, line: str, offered: tuple[str, ...], others: tuple[str, ...]) -> None:
    words = set(re.findall(r"(?m)^(?:--\w+=|\./)?([\w.~-]+?)[=/]?(?: |\t|$)", tab(line)))
    assert words >= set(offered)
    assert not words & set(others)


def test_zsh_reads_its_file(made: Path) -> None:
    need("zsh")
    assert ran("zsh", "-n", made / "zsh/_journalkeeper", check=True).stderr == ""
