# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debian unstable has the newest systemd, journal file format and Python, as Fedora, Tumbleweed and Arch have them.

A few cheap tests on one host cover what could differ there. The other guest tests run on Debian 12 and 13.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.guest.base import tarball
from tests.guest.conftest import datacow_guest, require_guest
from tests.guest.host import Guest
from tests.guest.steps import archive, eventually, extents, history, install, verify

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow, pytest.mark.long, pytest.mark.may_skip]

# an archive whose header journald writes later than NocowSettleSec= is looked at an hour later, else after a minute
QUICK = "[Watch]\nSettleSec=1s\nNocowSettleSec=20s\n[Window]\nPressureMax=100%\n"
AGED = 100
"""A file of this many extents was not mended."""


@pytest.fixture(scope="module")
def sid() -> Iterator[Guest]:
    """Yield a booted host with a datacow journal and an aged archive, on which journalkeeper is installed."""
    require_guest()
    try:
        tarball("sid")
    except RuntimeError as error:  # on some days the packages of sid cannot be installed together
        pytest.skip(str(error))
    with datacow_guest("sid") as host:
        made = archive(host)
        assert extents(host)[made] > AGED
        install(host, QUICK)
        yield host


def test_the_directory_gets_c_journald_rotates_by_varlink_and_archives_are_compressed(sid: Guest) -> None:
    def actions() -> set[str]:
        sid.run("journalctl", "--sync")  # after which a rotation is allowed
        return {one["action"] for one in history(sid)}

    assert eventually(lambda: {"set-nocow", "rotate", "compress"} <= actions()), sid.shell("journalkeeper plan")
    assert "C" in sid.shell("lsattr -d /var/log/journal/*/").split()[0]
    assert "C" in sid.shell("lsattr /var/log/journal/*/system.journal").split()[0]
    archives = [name for name in extents(sid) if name.startswith("system@")]
    assert eventually(lambda: all(extents(sid)[name] < AGED for name in archives)), sid.shell(
        "journalkeeper plan; journalkeeper history"
    )
    verify(sid)
    assert int(sid.run("systemctl", "--version").stdout.split()[1]) >= 262


def test_the_newest_file_format_is_read(sid: Guest) -> None:
    """Every journal file is scanned with the number of entries that journalctl finds in it."""
    header = sid.shell("journalctl --header --file='/var/log/journal/*/system.journal'")
    assert re.search(r"Incompatible flags:.* COMPACT", header), header
    scanned = json.loads(sid.run("journalkeeper", "scan", "-j").stdout)
    assert {one["path"].rpartition("/")[2] for one in scanned} == set(extents(sid))
    assert {one["state"] for one in scanned} <= {"online", "offline", "archived"}
    shown = json.loads(sid.run("journalkeeper", "explain", "-j", f"/var/log/journal/{sid.machine_id}").stdout)
    assert shown["directories"][0]["retention"]["oldest_us"] > 0


def test_after_a_reboot_the_service_is_there_and_its_verdict_is_ok(sid: Guest) -> None:
    sid.reboot()
    assert eventually(lambda: sid.run("journalkeeper", "status", check=False).returncode == 0), sid.run(
        "journalkeeper", "status", check=False
    ).stdout
    assert sid.run("systemctl", "--failed", "--no-legend", "--plain").stdout == ""
