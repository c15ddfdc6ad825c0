# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands: this program's in this process (conftest.py has the fixture), and other programs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Said(NamedTuple):
    """What a command line came to: its exit status and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What --json wrote; the command has succeeded and complained of nothing."""
        assert (self.status, self.err) == (0, "")
        return json.loads(self.out)

    @property
    def words(self) -> str:
        """Its output without line breaks and columns."""
        return " ".join(self.out.split())


Typed = Callable[..., Said]
"""Runs the words, with `engine` in place of the host's."""

Says = Callable[..., None]
"""Has journalctl say these entries, with `events`, `rest`, `end` and `stderr`."""


def need(*programs: str) -> None:
    """Skip where a program is not installed; tests/run installs them."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (tests/run installs it)")


def ran(*words: str | Path, check: bool = False, **more: Any) -> subprocess.CompletedProcess[str]:
    """A program that has ended, with what it wrote, and well with `check`; `more` is for subprocess.run()."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done
