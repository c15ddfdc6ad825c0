# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands of README and the pages that need a whole host, typed as they stand there on booted ones."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests import documents
from tests.ansible import copy_source
from tests.documents import OnGuest, how
from tests.guest.conftest import datacow_guest
from tests.guest.host import Guest

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow]

COMMANDS = documents.run_by(OnGuest)
INSTALL = "sudo configs/install"
ENDLESS_S = 3
"""After this timeout(1) ends a command that would go on."""


@pytest.fixture(scope="module")
def guest(release: str) -> Iterator[Guest]:
    """A fresh host, on which somebody has typed README's line, with the checkout where they are."""
    with datacow_guest(release) as host:
        copy_source(host.root / "root/checkout")
        host.age(20)
        yield host


def typed(guest: Guest, line: str, who: OnGuest) -> subprocess.CompletedProcess[str]:
    """What comes of a line in the checkout."""
    words = ["bash", "-c", line]
    if 124 in who.status:
        words = ["timeout", str(ENDLESS_S), *words]
    return guest.run("env", "--chdir=/root/checkout", *words, check=False)


def when(line: str) -> int:
    """Return a line's turn: the service is installed first; disabled, which no bus starts, and removed last."""
    if line == INSTALL:
        return 0
    return 3 if line.startswith(f"{INSTALL} --uninstall") else 2 if "systemctl disable" in line else 1


def test_every_command_does_what_it_says(guest: Guest) -> None:
    assert len(COMMANDS) > 10
    lines = {command.text: how(command) for command in COMMANDS}
    assert INSTALL in lines
    odd = []
    for line, who in sorted(lines.items(), key=lambda item: when(item[0])):
        assert isinstance(who, OnGuest)
        done = typed(guest, line, who)
        if done.returncode not in who.status:
            odd.append(f"{line}: {done.returncode}\n{done.stdout}{done.stderr}")
        assert line != INSTALL or not odd, odd
    assert odd == []
