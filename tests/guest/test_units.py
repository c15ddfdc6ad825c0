# SPDX-License-Identifier: LGPL-2.1-or-later
"""The units on booted hosts: the service under all its confinement, the timer's service beside it, and shutdowns.

The hosts are datacow (nocow=False), where there is something to do.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from functools import partial

import pytest

from journalkeeper.service.log import Event
from tests.guest import steps
from tests.guest.conftest import datacow_guest
from tests.guest.host import Guest
from tests.guest.steps import eventually, extents, history, property_of
from tests.journal_files import archive_name, put
from tests.trust import limits
from tests.volumes import disk_bytes

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow]

QUICK = "[Watch]\nSettleSec=1s\n[Nocow]\nNocow=no\n[Window]\nPressureMax=100%\n"
AGED = 100
"""An active file or archive of this many extents was not mended."""

SYNCS = 4
"""Seconds, and journald's flushes where it makes one each second."""


@pytest.fixture(scope="module")
def guest(release: str) -> Iterator[Guest]:
    """A datacow host with journalkeeper, on which nothing is enabled yet."""
    with datacow_guest(release) as host:
        steps.install(host, QUICK, "--no-start")
        yield host


def archive(guest: Guest) -> str:
    """An archive that there is something to do about."""
    made = steps.archive(guest)
    assert extents(guest)[made] > AGED
    return made


def test_the_service_compresses_an_archive_under_its_confinement(guest: Guest) -> None:
    made = archive(guest)
    guest.run("systemctl", "start", "journalkeeper.service")
    assert eventually(lambda: extents(guest)[made] < AGED), guest.shell("journalctl -u journalkeeper -o cat")
    scanned = guest.shell("journalkeeper scan --json=short")
    assert re.search(rf'"path": ?"[^"]*/{re.escape(made)}".*?"compressed": ?true', scanned)
    assert property_of(guest, "journalkeeper.service", "SubState") == "running"
    guest.run("journalctl", "--verify")


@pytest.mark.parametrize("unit", ["journalkeeper.service", "journalkeeper-defrag.service"])
def test_what_came_free_is_known_under_its_confinement(guest: Guest, unit: str) -> None:
    """By compsize outside of the guest. systemd says nothing of the unit that measures, and it goes with who asks."""
    guest.run("systemctl", "stop", "journalkeeper.service")
    made = archive(guest)
    path = f"/var/log/journal/{guest.machine_id}/{made}"
    outside = guest.root / path.lstrip("/")
    guest.run("sync", "-f", path)
    before = disk_bytes(outside)
    time.sleep(2)  # SettleSec=
    guest.run("systemctl", "start", unit)

    def done() -> list[tuple[int, int]]:
        return [(one["disk_bytes_before"], one["disk_bytes_after"]) for one in history(guest, path)]

    assert eventually(lambda: len(done()) == 1)
    assert done() == [(before, disk_bytes(outside))]
    if unit == "journalkeeper.service":
        reclaimed = before - disk_bytes(outside)
        assert eventually(lambda: int(manager_property(guest, "BytesReclaimed")) >= reclaimed > 0)
    guest.run("systemctl", "stop", unit)
    assert eventually(lambda: property_of(guest, "journalkeeper-measure.socket", "ActiveState") == "inactive")
    assert "measure@" not in guest.run("journalctl", "--output=short", "--boot", "_PID=1").stdout


REMOTE_PROGRAM = "usr/lib/systemd/systemd-journal-remote"
STRANGER = 1000
"""A user who is not root, as systemd-journal-remote's."""


def capabilities(guest: Guest) -> set[str]:
    """Those that the service has, and those that it could get."""
    pid = property_of(guest, "journalkeeper.service", "MainPID")
    said = guest.shell(f"grep -E '^Cap(Prm|Eff|Bnd):' /proc/{pid}/status")
    return {line.split()[1] for line in said.splitlines()}


def test_it_has_no_capability_but_where_there_is_journal_remote(guest: Guest) -> None:
    """By the generator: with the program there, it gets those that files of its user take, and does them."""
    content = limits.archived(guest.journal / archive(guest))
    remote = guest.journal.parent / "remote"
    remote.mkdir()
    torn = put(remote, content, archive_name(1, "remote-one"))
    torn.chmod(0o600)
    for path in (remote, torn):
        os.chown(path, STRANGER, STRANGER)
    program = guest.root / REMOTE_PROGRAM
    try:
        guest.run("systemctl", "restart", "journalkeeper.service")
        assert capabilities(guest) == {"0000000000000000"}
        program.touch(mode=0o755)
        guest.run("systemctl", "daemon-reload")
        guest.run("systemctl", "restart", "journalkeeper.service")
        assert capabilities(guest) == {"000000001000000a"}, "CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LEASE"
        done = partial(history, guest, f"/var/log/journal/remote/{torn.name}")
        assert eventually(done), guest.shell("journalkeeper plan")
        assert torn.stat().st_uid == STRANGER
        assert torn.read_bytes() == content
    finally:
        program.unlink(missing_ok=True)
        shutil.rmtree(remote)
        guest.run("systemctl", "daemon-reload")
        guest.run("systemctl", "restart", "journalkeeper.service")


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
    """A unit may write to what was there as it started, so the service ends, and systemd starts it again."""
    guest.run("systemctl", "restart", "journalkeeper.service")
    before = property_of(guest, "journalkeeper.service", "NRestarts")
    guest.shell(f"{REPLACED[way]}; systemctl restart systemd-journald; journalctl --flush")
    try:
        made = steps.archive(guest)  # which may be mended before it is an archive
        assert eventually(lambda: extents(guest)[made] < AGED, 60), guest.shell("journalctl -u journalkeeper")
        ends = way != "mounted"  # a mount comes into the service's namespace as it is
        assert property_of(guest, "journalkeeper.service", "NRestarts") == f"{int(before) + ends}"
        plan = guest.shell("journalkeeper plan; journalkeeper status || true")
        assert "read-only" not in plan
        assert "not writable" not in plan
    finally:
        if way == "mounted":
            guest.run("umount", "--lazy", JOURNAL)
        guest.shell("rm -rf /var/log/away /var/away; systemctl restart systemd-journald journalkeeper")


def test_with_too_few_descriptors_it_loses_nothing_and_works_when_it_may_have_more(guest: Guest, release: str) -> None:
    """On one release; the long form is tests/trust/limits.py."""
    if release == "bookworm":
        return
    tried = limits.descriptors(limits.Host(guest), 14)
    assert (tried.lost, tried.unclean) == ([], [])
    assert tried.seen != "all done"


def test_it_works_without_the_unit_that_measures(guest: Guest) -> None:
    guest.run("systemctl", "stop", "journalkeeper.service")
    guest.run("systemctl", "mask", "journalkeeper-measure.socket")
    try:
        made = archive(guest)
        guest.run("systemctl", "start", "journalkeeper.service")
        assert eventually(lambda: extents(guest)[made] < AGED)
    finally:
        guest.run("systemctl", "unmask", "journalkeeper-measure.socket")
        guest.run("systemctl", "stop", "journalkeeper.service")


def manager_property(guest: Guest, name: str) -> str:
    """A property of org.journalkeeper1.Manager."""
    names = ("org.journalkeeper1", "/org/journalkeeper1", "org.journalkeeper1.Manager")
    return guest.run("busctl", "get-property", *names, name).stdout.split()[1]


def test_what_it_did_is_in_the_journal_by_fields(guest: Guest) -> None:
    guest.run("systemctl", "stop", "journalkeeper.service")  # or it would mend the file before it is an archive
    made = archive(guest)
    guest.run("systemctl", "start", "journalkeeper.service")
    match = (f"MESSAGE_ID={Event.DONE}", "--output=export")
    assert eventually(lambda: f"/{made}\n" in guest.run("journalctl", *match).stdout), guest.shell(
        f"journalkeeper explain /var/log/journal/{guest.machine_id}/{made}; journalkeeper status; "
        "journalctl --output=short-precise --unit=journalkeeper.service --lines=40"
    )
    fields = guest.run("journalctl", *match).stdout.split("\n\n")
    (entry,) = [one for one in fields if f"/{made}\n" in one]
    assert "_SYSTEMD_UNIT=journalkeeper.service\n" in entry
    assert "_TRANSPORT=journal\n" in entry
    assert int(re.findall(r"JOURNALKEEPER_EXTENTS_BEFORE=(\d+)", entry)[0]) > AGED


@pytest.mark.parametrize("unit", ["journalkeeper.service", "journalkeeper-defrag.service"])
def test_metrics_are_written_under_its_confinement_for_another_user_to_read(guest: Guest, unit: str) -> None:
    place = "/var/lib/prometheus/node-exporter"
    guest.shell(
        f"systemctl stop journalkeeper.service; mkdir -p {place} /etc/journalkeeper.conf.d\n"
        f"printf '[Metrics]\\nTextfile={place}\\n' >/etc/journalkeeper.conf.d/metrics.conf"
    )
    guest.run("systemctl", "start", unit)
    try:
        assert eventually(lambda: "journalkeeper.prom" in guest.run("ls", place).stdout)
        said = guest.run("setpriv", "--reuid=nobody", "cat", f"{place}/journalkeeper.prom").stdout
        assert "\njournalkeeper_last_run_success 1\n" in said
    finally:
        guest.shell(f"rm -r {place} /etc/journalkeeper.conf.d; systemctl restart journalkeeper.service")


def test_what_it_says_gives_it_nothing_new_to_say(guest: Guest) -> None:
    """Its lines go into the file that it watches and are flushed every second here: a loop would go on for ever."""
    guest.shell(
        "mkdir -p /run/systemd/journald.conf.d\n"
        "printf '[Journal]\\nSyncIntervalSec=1s\\n' >/run/systemd/journald.conf.d/often.conf\n"
        "systemctl restart systemd-journald"
    )
    ours = "journalctl --output=cat _SYSTEMD_UNIT=journalkeeper.service | wc -l"
    try:
        guest.run("systemctl", "restart", "journalkeeper.service")
        before = int(guest.shell(ours))
        made = steps.archive(guest)
        assert eventually(lambda: extents(guest)[made] < AGED)
        time.sleep(SYNCS)  # what still had to be said of that
        said = int(guest.shell(ours))
        assert said > before
        time.sleep(2 * SYNCS)
        assert int(guest.shell(ours)) <= said + 1
    finally:
        guest.shell("rm /run/systemd/journald.conf.d/often.conf; systemctl restart systemd-journald")


def test_a_reload_and_a_wrong_configuration_leave_it_running(guest: Guest) -> None:
    guest.run("systemctl", "start", "journalkeeper.service")
    pid = property_of(guest, "journalkeeper.service", "MainPID")
    wrong = guest.root / "etc/journalkeeper.conf.d/wrong.conf"
    wrong.parent.mkdir()
    wrong.write_text("[Watch]\nNonsense=1\n")
    try:
        assert guest.run("systemctl", "reload", "journalkeeper.service", check=False).returncode == 1
        ours = ("journalctl", "-o", "cat", "-u", "journalkeeper.service")
        assert eventually(lambda: "wrong.conf:2: Nonsense" in guest.run(*ours).stdout)
        guest.run("systemctl", "kill", "--signal=HUP", "--kill-who=main", "journalkeeper.service")
        said = f"MESSAGE_ID={Event.NOT_RELOADED}"
        assert eventually(lambda: "wrong.conf:2" in guest.run("journalctl", "-o", "cat", said, check=False).stdout)
    finally:
        shutil.rmtree(wrong.parent)
    guest.run("systemctl", "reload", "journalkeeper.service")
    said = f"MESSAGE_ID={Event.RELOADED}"
    assert eventually(lambda: guest.run("journalctl", "-o", "cat", said, check=False).stdout != "")
    assert property_of(guest, "journalkeeper.service", "MainPID") == pid


def test_the_timers_service_is_passed_over_beside_the_service_and_works_without_it(guest: Guest) -> None:
    said = ("journalctl", "--output=cat", "--unit=journalkeeper-defrag.service")
    guest.run("systemctl", "start", "journalkeeper.service")
    finished = guest.run(*said).stdout.count("Finished")
    guest.run("systemctl", "start", "journalkeeper-defrag.service")
    assert "Skipped due to 'exec-condition'" in guest.run(*said).stdout
    assert guest.run(*said).stdout.count("Finished") == finished
    guest.run("systemctl", "stop", "journalkeeper.service")
    made = archive(guest)

    def settled_and_mended() -> bool:
        guest.run("systemctl", "start", "journalkeeper-defrag.service")
        return extents(guest)[made] < AGED

    assert eventually(settled_and_mended)
    assert guest.run(*said).stdout.count("Finished") > finished


def test_the_timer_waits_for_its_day(guest: Guest) -> None:
    guest.run("systemctl", "start", "journalkeeper-defrag.timer")
    assert "journalkeeper-defrag.service" in guest.run("systemctl", "list-timers", "--no-pager").stdout
    guest.run("systemctl", "stop", "journalkeeper-defrag.timer")


def down_and_up(guest: Guest, how: str) -> None:
    if how == "soft-reboot":
        guest.soft_reboot()
        return
    guest.poweroff(how=how)
    guest.boot()


@pytest.mark.parametrize("how", ["poweroff", "reboot", "kexec", "soft-reboot"])
def test_a_fragmented_file_is_not_left_to_the_next_boot(guest: Guest, release: str, how: str) -> None:
    """It acts while journald runs and writes to /var: its own end is in the journal, and so is the rotation."""
    if how == "soft-reboot" and release == "bookworm":
        return  # systemd 252 has none
    guest.run("systemctl", "enable", "--now", "journalkeeper-shutdown.service")
    before = extents(guest)
    guest.age(40)
    aged = extents(guest)["system.journal"]
    assert aged > 4 * AGED
    down_and_up(guest, how)
    after = extents(guest)
    made = [name for name in after.keys() - before.keys() if name.startswith("system@")]
    assert made, guest.shell("journalkeeper history; journalkeeper plan --active --now")
    assert after["system.journal"] < aged  # 4 to 271 seen: the boot's own messages and flush are in it
    assert property_of(guest, "journalkeeper-shutdown.service", "SubState") == "exited"
    said = guest.shell("journalctl --no-pager -o cat -u journalkeeper-shutdown.service")
    assert "Stopped journalkeeper-shutdown.service" in said
    assert "timed out" not in said


def test_a_whole_file_is_left_to_the_next_boot_as_it_is(guest: Guest) -> None:
    guest.run("systemctl", "enable", "--now", "journalkeeper-shutdown.service")
    guest.shell("chattr +C /var/log/journal/*/; journalctl --rotate")
    before = extents(guest)
    down_and_up(guest, "reboot")
    assert extents(guest).keys() == before.keys()
