# SPDX-License-Identifier: LGPL-2.1-or-later
"""The man pages that configs/man/make writes, and the examples in them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tests.adapters.command import ran

CHECKOUT = Path(__file__).parent.parent.parent
PAGES = sorted(f"man{path.stem[-1]}/{path.stem}" for path in (CHECKOUT / "configs/man").glob("*.in"))
assert PAGES, "configs/man has no pages"


def make(directory: Path) -> Path:
    """Run configs/man/make with this Python, and return `directory`, which it writes to."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "86400"}
    ran(CHECKOUT / "configs/man/make", directory, sys.executable, check=True, env=environment)
    return directory


def examples(page: Path) -> list[str]:
    """Return the text of the blocks between .EX and .EE, as a reader would copy it."""
    blocks = re.findall(r"(?ms)^\.EX\n(.*?)^\.EE$", page.read_text())
    typed = {r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(ti": "~", r"\(ha": "^", r"\e": "\\", r"\&": ""}
    return [re.sub(r"\\(?:-|\(..|e|&)", lambda found: typed[found[0]], block) for block in blocks]


def commands(page: Path) -> list[str]:
    """Return the lines of the examples that call a program, without the remark at their end."""
    lines = [line for block in examples(page) for line in block.splitlines() if not line.startswith(("#", "[", " "))]
    called = re.compile(r"(?:\w+=\S* )*(?:sudo )?(?:journalkeeper|systemctl|journalctl|busctl) ")
    return [re.split(r" {2,}", line)[0] for line in lines if called.match(line)]
