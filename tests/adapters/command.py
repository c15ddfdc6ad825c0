# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results of journalkeeper's commands in this process (conftest.py has the fixture), and of other programs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Said(NamedTuple):
    """The exit status and the output of a command line."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The document that -j wrote. The command has succeeded, without a word on stderr."""
        assert (self.status, self.err) == (0, "")
        return json.loads(self.out)

    @property
    def words(self) -> str:
        """The output without line breaks and columns."""
        return " ".join(self.out.split())


Typed = Callable[..., Said]
"""A function that runs the words, with `engine` in place of the host's."""

Says = Callable[..., None]
"""A function that has journalctl print these entries, with `events`, `rest`, `end` and `stderr`."""


def need(*programs: str) -> None:
    """Skip the test if a program is not installed. tests/run installs them."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (tests/run installs it)")


def ran(*words: str | Path, check: bool = False, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program and return its output. With `check` it must succeed. `more` is for subprocess.run()."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done
