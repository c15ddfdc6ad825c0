# SPDX-License-Identifier: LGPL-2.1-or-later
"""The man pages have no formatting errors, and their hand-written parts agree with the code.

tests/btrfs/test_man_examples.py runs the examples of journalkeeper(1) and journalkeeper-commands(1).
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from journalkeeper.cli.parser import parse
from tests.adapters.command import need, ran
from tests.adapters.pages import CHECKOUT, PAGES, commands

WITHOUT_COMMANDS = ("figures.7", "news.7", "json.5", "reasons.7")


@pytest.mark.parametrize("page", PAGES)
def test_mandoc_and_man_report_no_error_in_a_page(made: Path, page: str) -> None:
    need("mandoc", "man", "groff")
    lint = ran("mandoc", "-T", "lint", made / page)
    assert lint.stdout + lint.stderr == ""
    environment = {**os.environ, "MANWIDTH": "80", "MANPAGER": "cat", "LC_ALL": "C.UTF-8"}
    read = ran("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", made / page, check=True, env=environment)
    assert read.stderr == ""
    assert "\N{HYPHEN}\n" not in read.stdout, "names are not broken"


README = re.findall(r"(?m)(?:`(?:sudo )?|^sudo )journalkeeper( [^`#\n]+)", (CHECKOUT / "README.md").read_text())


@pytest.mark.parametrize("page", [page for page in PAGES if not page.endswith(WITHOUT_COMMANDS)])
def test_every_example_of_a_page_is_a_valid_command_line(made: Path, page: str) -> None:
    found = commands(made / page)
    assert found
    for line in found:
        words = shlex.split(re.split(r" \|+ ", line)[0].removeprefix("sudo "))
        if "journalkeeper" in words:
            own = words[words.index("journalkeeper") + 1 :]
            assert parse(own).command or own == ["--help"]


@pytest.mark.parametrize("words", README)
def test_every_command_of_readme_is_valid(words: str) -> None:
    assert words.endswith("--help") or parse(shlex.split(words)).command
