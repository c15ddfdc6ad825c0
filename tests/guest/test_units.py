# SPDX-License-Identifier: LGPL-2.1-or-later
"""The units on booted hosts: the service under all its confinement, the timer's service next to it, and shutdowns.

The hosts are datacow (nocow=False), so that there is something to do.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from functools import partial

import pytest

from journalkeeper.bus import names
from journalkeeper.service.log import Event
from tests.guest import steps
from tests.guest.conftest import datacow_guest
from tests.guest.host import Guest
from tests.guest.steps import eventually, extents, history, property_of
from tests.journal_files import archive_name, put
from tests.volumes import disk_bytes

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow]

UNIT = "journalkeeper.service"
TIMED = "journalkeeper-defrag.service"
COLLECTOR = "/var/lib/prometheus/node-exporter"
QUICK = f"[Watch]\nSettleSec=1s\n[Nocow]\nNocow=no\n[Window]\nPressureMax=100%\n[Metrics]\nTextfile={COLLECTOR}\n"
MANAGER = f"{names.BUS_NAME} {names.MANAGER_PATH} {names.MANAGER}"
AGED = 100
"""An active file or archive of this many extents was not mended."""


@pytest.fixture(scope="module")
def guest(release: str) -> Iterator[Guest]:
    """A datacow host with journalkeeper, on which no unit is enabled yet."""
    with datacow_guest(release) as host:
        host.run("mkdir", "-p", COLLECTOR)
        steps.install(host, QUICK, "--no-start")
        yield host


def archive(guest: Guest) -> str:
    """Return the name of a new archive that needs work."""
    made = steps.archive(guest)
    assert extents(guest)[made] > AGED
    return made


def log_of(guest: Guest, unit: str = UNIT) -> str:
    return guest.shell(f"journalctl --output=cat --unit={unit}")


def test_a_call_on_the_bus_starts_the_service_only_where_it_is_enabled(guest: Guest) -> None:
    read = f"runuser -u nobody -- busctl --json=short get-property {MANAGER} Paused"
    assert "not found" in guest.shell(f"{read} 2>&1 || true")  # installed, and never enabled
    assert property_of(guest, UNIT, "ActiveState") == "inactive"
    guest.shell(f"systemctl enable {UNIT}")
    assert json.loads(guest.shell(read))["data"] is False
    assert property_of(guest, UNIT, "ActiveState") == "active"
    assert property_of(guest, UNIT, "BusName") == names.BUS_NAME
    guest.shell(f"systemctl disable --now {UNIT}")
    assert "not found" in guest.shell(f"{read} 2>&1 || true")
    assert property_of(guest, UNIT, "ActiveState") == "inactive"


@pytest.mark.parametrize("unit", [UNIT, TIMED])
def test_under_its_confinement_a_unit_compresses_measures_and_writes_metrics(guest: Guest, unit: str) -> None:
    """compsize outside of the guest measures the same. The unit that measures leaves no message of systemd's."""
    guest.shell(f"systemctl stop {UNIT}; rm -f {COLLECTOR}/journalkeeper.prom")
    made = archive(guest)
    path = f"/var/log/journal/{guest.machine_id}/{made}"
    outside = guest.root / path.lstrip("/")
    guest.run("sync", "-f", path)
    before = disk_bytes(outside)
    time.sleep(2)  # SettleSec=
    guest.run("systemctl", "start", unit)

    def done() -> list[tuple[int, int]]:
        return [(one["disk_bytes_before"], one["disk_bytes_after"]) for one in history(guest, path)]

    assert eventually(lambda: len(done()) == 1), log_of(guest, unit)
    assert done() == [(before, disk_bytes(outside))]
    assert extents(guest)[made] < AGED
    metrics = ("setpriv", "--reuid=nobody", "cat", f"{COLLECTOR}/journalkeeper.prom")
    success = "\njournalkeeper_last_run_success 1\n"
    assert eventually(lambda: success in guest.run(*metrics, check=False).stdout)
    if unit == UNIT:
        entries = guest.run("journalctl", f"MESSAGE_ID={Event.DONE}", "--output=export").stdout.split("\n\n")
        (entry,) = [one for one in entries if f"/{made}\n" in one]
        assert {f"_SYSTEMD_UNIT={UNIT}", "_TRANSPORT=journal"} <= set(entry.splitlines())
        assert int(re.findall(r"JOURNALKEEPER_EXTENTS_BEFORE=(\d+)", entry)[0]) > AGED
    guest.run("systemctl", "stop", unit)
    assert eventually(lambda: property_of(guest, "journalkeeper-measure.socket", "ActiveState") == "inactive")
    assert "measure@" not in guest.run("journalctl", "--output=short", "--boot", "_PID=1").stdout
    guest.run("journalctl", "--verify")


REMOTE_PROGRAM = "usr/lib/systemd/systemd-journal-remote"
STRANGER = 1000
"""A user who is not root, as systemd-journal-remote's."""


def capabilities(guest: Guest) -> set[str]:
    """Return the capabilities that the service has, and those that it could get."""
    pid = property_of(guest, UNIT, "MainPID")
    said = guest.shell(f"grep -E '^Cap(Prm|Eff|Bnd):' /proc/{pid}/status")
    return {line.split()[1] for line in said.splitlines()}


def test_it_has_no_capability_except_where_journal_remote_is_installed(guest: Guest) -> None:
    """There the generator grants what files of that program's user require, and the service rewrites them."""
    content = (guest.journal / archive(guest)).read_bytes()
    remote = guest.journal.parent / "remote"
    remote.mkdir()
    torn = put(remote, content, archive_name(1, "remote-one"))
    torn.chmod(0o600)
    for path in (remote, torn):
        os.chown(path, STRANGER, STRANGER)
    program = guest.root / REMOTE_PROGRAM
    try:
        guest.run("systemctl", "restart", UNIT)
        assert capabilities(guest) == {"0000000000000000"}
        program.touch(mode=0o755)
        guest.run("systemctl", "daemon-reload")
        guest.run("systemctl", "restart", UNIT)
        assert capabilities(guest) == {"000000001000000a"}, "CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LEASE"
        done = partial(history, guest, f"/var/log/journal/remote/{torn.name}")
        assert eventually(done), guest.shell("journalkeeper plan")
        assert torn.stat().st_uid == STRANGER
        assert torn.read_bytes() == content
    finally:
        program.unlink(missing_ok=True)
        shutil.rmtree(remote)
        guest.run("systemctl", "daemon-reload")
        guest.run("systemctl", "restart", UNIT)


JOURNAL = "/var/log/journal"
REPLACED = {
    "removed": f"rm -rf {JOURNAL}; sleep 1; mkdir {JOURNAL}",
    "subvolume": f"mv {JOURNAL} /var/log/away; btrfs subvolume create {JOURNAL}",
    "parent": f"mv /var/log /var/away; mkdir -p {JOURNAL}",
    "mounted": f"mkdir /srv/journal; mount --bind /srv/journal {JOURNAL}",
}


@pytest.mark.parametrize(
    "way", ["removed", "mounted", *(pytest.param(one, marks=pytest.mark.long) for one in ("subvolume", "parent"))]
)
def test_a_journal_directory_that_is_replaced_is_mended_within_a_minute(guest: Guest, way: str) -> None:
    """A unit may write only to the directory that was there at its start, so the service ends and systemd restarts it.

    It takes long because systemd waits before it restarts the service.
    """
    guest.run("systemctl", "restart", UNIT)
    before = property_of(guest, UNIT, "NRestarts")
    guest.shell(f"{REPLACED[way]}; systemctl restart systemd-journald; journalctl --flush")
    try:
        made = steps.archive(guest)  # which may be mended before it is an archive
        assert eventually(lambda: extents(guest)[made] < AGED, 60), log_of(guest)
        ends = way != "mounted"  # a mount comes into the service's namespace as it is
        assert property_of(guest, UNIT, "NRestarts") == f"{int(before) + ends}"
        plan = guest.shell("journalkeeper plan; journalkeeper status || true")
        assert "read-only" not in plan
        assert "not writable" not in plan
    finally:
        if way == "mounted":
            guest.run("umount", "--lazy", JOURNAL)
        guest.shell("rm -rf /var/log/away /var/away; systemctl restart systemd-journald journalkeeper")


def test_it_works_without_the_unit_that_measures(guest: Guest) -> None:
    guest.shell(f"systemctl stop {UNIT}; systemctl mask journalkeeper-measure.socket")
    try:
        made = archive(guest)
        guest.run("systemctl", "start", UNIT)
        assert eventually(lambda: extents(guest)[made] < AGED)
    finally:
        guest.run("systemctl", "unmask", "journalkeeper-measure.socket")


def test_systemctl_reloads_it_and_fails_where_the_configuration_is_wrong(guest: Guest) -> None:
    guest.run("systemctl", "start", UNIT)
    pid = property_of(guest, UNIT, "MainPID")
    wrong = guest.root / "etc/journalkeeper.conf.d/wrong.conf"
    wrong.parent.mkdir(exist_ok=True)
    wrong.write_text("[Watch]\nNonsense=1\n")
    assert guest.run("systemctl", "reload", UNIT, check=False).returncode == 1
    assert eventually(lambda: "wrong.conf:2: Nonsense" in log_of(guest))
    wrong.unlink()
    guest.run("systemctl", "reload", UNIT)
    reloaded = ("journalctl", "--output=cat", f"MESSAGE_ID={Event.RELOADED}")
    assert eventually(lambda: guest.run(*reloaded, check=False).stdout != "")
    assert property_of(guest, UNIT, "MainPID") == pid


def test_the_timers_service_is_skipped_while_the_service_runs(guest: Guest) -> None:
    guest.run("systemctl", "start", UNIT)
    guest.run("systemctl", "start", TIMED)
    assert "Skipped due to 'exec-condition'" in log_of(guest, TIMED)


@pytest.mark.parametrize("how", ["reboot", "soft-reboot"])
def test_a_fragmented_file_is_not_left_to_the_next_boot(guest: Guest, release: str, how: str) -> None:
    """It acts while journald runs and writes to /var: its own end is in the journal, and so is the rotation."""
    if how == "soft-reboot" and release == "bookworm":
        return  # systemd 252 has none
    guest.run("systemctl", "enable", "--now", "journalkeeper-shutdown.service")
    before = extents(guest)
    guest.age(40)
    aged = extents(guest)["system.journal"]
    assert aged > 4 * AGED
    guest.soft_reboot() if how == "soft-reboot" else guest.reboot()
    after = extents(guest)
    made = [name for name in after.keys() - before.keys() if name.startswith("system@")]
    assert made, guest.shell("journalkeeper history; journalkeeper plan --active --now")
    assert after["system.journal"] < aged  # 4 to 271 seen: the boot's own messages and flush are in it
    assert property_of(guest, "journalkeeper-shutdown.service", "SubState") == "exited"
    said = log_of(guest, "journalkeeper-shutdown.service")
    assert "Stopped journalkeeper-shutdown.service" in said
    assert "timed out" not in said


def test_a_whole_file_is_left_to_the_next_boot_as_it_is(guest: Guest) -> None:
    guest.run("systemctl", "enable", "--now", "journalkeeper-shutdown.service")
    guest.shell("chattr +C /var/log/journal/*/; journalctl --rotate")
    before = extents(guest)
    guest.reboot()
    assert extents(guest).keys() == before.keys()
