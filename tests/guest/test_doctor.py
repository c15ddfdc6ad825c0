# SPDX-License-Identifier: LGPL-2.1-or-later
"""doctor -D reads the disk of a booted host, on which journalkeeper is not installed: a boot."""

from __future__ import annotations

import pytest

from journalkeeper.health.evidence import Journal
from journalkeeper.observe.journal import read_journal
from tests.guest.host import Guest

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow]


def test_a_boot_takes_as_long_as_systemd_reports(guest: Guest) -> None:
    guest.run("journalctl", "--sync")
    found = read_journal(str(guest.journal.parent), 10_000)
    assert isinstance(found, Journal)
    boot = found.boots[-1]
    assert boot.userspace_us is not None
    assert boot.flush_us is not None
    assert boot.userspace_us / 1e6 == pytest.approx(guest.boot_seconds(), rel=0.01)
    assert 0 < boot.flush_us / 1e6 < guest.flush_seconds()  # the unit also starts journalctl
