# SPDX-License-Identifier: LGPL-2.1-or-later
"""What configs/man/make makes, for the tests of it.

Pages are read as a reader gets them, rendered by mandoc.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.adapters.command import ran

CHECKOUT = Path(__file__).parent.parent.parent
PAGES = (
    "man1/journalkeeper.1",
    "man1/journalkeeper-commands.1",
    "man5/journalkeeper.conf.5",
    "man5/journalkeeper-json.5",
    "man5/org.journalkeeper1.5",
    "man7/journalkeeper-figures.7",
    "man7/journalkeeper-fleet.7",
    "man7/journalkeeper-news.7",
    "man7/journalkeeper-reasons.7",
    "man7/journalkeeper-trust.7",
    "man8/journalkeeper.service.8",
)


def make(directory: Path) -> Path:
    """Pages and completions, below `directory`."""
    ran(CHECKOUT / "configs/man/make", directory, check=True)
    return directory


def rendered(page: Path) -> str:
    """The page's text, no paragraph broken into lines."""
    text = ran("mandoc", "-T", "utf8", "-O", "width=1000", page, check=True).stdout
    return re.sub(r".\x08", "", text).replace("\N{HYPHEN}", "-").replace("\N{MINUS SIGN}", "-")


def examples(page: Path) -> list[str]:
    """The blocks that a reader would copy: what is between .EX and .EE."""
    blocks = re.findall(r"(?ms)^\.EX\n(.*?)^\.EE$", page.read_text())
    typed = {r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(ti": "~", r"\(ha": "^", r"\e": "\\", r"\&": ""}
    return [re.sub(r"\\(?:-|\(..|e|&)", lambda found: typed[found[0]], block) for block in blocks]


def commands(page: Path) -> list[str]:
    """The lines of the examples that call a program, without the remark behind them."""
    lines = [line for block in examples(page) for line in block.splitlines() if not line.startswith(("#", "[", " "))]
    called = re.compile(r"(?:\w+=\S* )*(?:sudo )?(?:journalkeeper|systemctl|journalctl|busctl) ")
    return [re.split(r" {2,}", line)[0] for line in lines if called.match(line)]
