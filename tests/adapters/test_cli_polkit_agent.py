# SPDX-License-Identifier: LGPL-2.1-or-later
"""polkit's agent: there for a plain user at a terminal, as long as the service is asked, and then gone."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from journalkeeper.cli.terminal import AGENT as PROGRAM
from tests.nobody import NOBODY

AGENT = """#!/bin/sh
echo "$$ $*" >>"$MARK"
eval "exec $2>&-"
exec sleep 60
"""
ASK = (
    # imported before: the user may not be able to read the checkout
    "import os, subprocess; from journalkeeper.cli.terminal import run_polkit_agent;"
    "user = int(os.environ['ASKS']); os.setgroups([]); os.setgid(user); os.setuid(user);\n"
    "with run_polkit_agent():\n"
    "    mark = os.environ['MARK']\n"
    "    print(open(mark).read() if os.path.exists(mark) else 'none')"
)

pytestmark = pytest.mark.root


@pytest.fixture
def place() -> Path:
    """A directory that everybody gets into."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    return path


def ask(place: Path, *, user: int = NOBODY, terminal: bool = True, agent: str | None = AGENT) -> str:
    """What is seen of the agent while it should be there."""
    if agent is not None:
        (place / PROGRAM).write_text(agent)
        (place / PROGRAM).chmod(0o755)
    environment = {**os.environ, "PATH": f"{place}:/usr/bin:/bin", "MARK": f"{place}/mark", "ASKS": f"{user}"}
    environment["PYTHONPATH"] = f"{Path(__file__).parent.parent.parent}"
    if agent is None:
        environment["PATH"] = f"{place}"
    ours, theirs = pty.openpty()
    ends = theirs if terminal else subprocess.DEVNULL
    words = [sys.executable, "-c", ASK]
    done = subprocess.run(
        words, env=environment, stdin=ends, stderr=ends, stdout=subprocess.PIPE, text=True, check=True
    )
    os.close(ours)
    os.close(theirs)
    return done.stdout.strip()


def test_a_plain_user_at_a_terminal_has_an_agent_as_long_as_it_is_needed(place: Path) -> None:
    process, *words = ask(place).split()
    assert words[0] == "--notify-fd"
    assert words[2:] == ["--fallback"]
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.parametrize(("user", "terminal"), [(0, True), (NOBODY, False)])
def test_root_and_programs_are_asked_nothing(place: Path, user: int, *, terminal: bool) -> None:
    assert ask(place, user=user, terminal=terminal) == "none"


def test_an_agent_that_ends_at_once_or_is_not_there_keeps_nobody_waiting(place: Path) -> None:
    assert ask(place, agent="#!/bin/sh\nexit 1\n") == "none"
    (place / PROGRAM).unlink()
    assert ask(place, agent=None) == "none"
