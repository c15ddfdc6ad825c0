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
from typing import NamedTuple

import pytest

from journalkeeper.bus import names
from journalkeeper.health.finding import word
from journalkeeper.health.rules import HEALTH
from journalkeeper.probe import scratch_volume
from journalkeeper.service.log import Event
from tests.guest import steps
from tests.guest.conftest import datacow_guest
from tests.guest.host import Guest
from tests.guest.steps import eventually, extents, history, property_of, verify
from tests.journal_files import archive_name, put
from tests.volumes import disk_bytes

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow]

UNIT = "journalkeeper.service"
TIMED = "journalkeeper-defrag.service"
COLLECTOR = "/var/lib/prometheus/node-exporter"
QUICK = (
    "[Watch]\nSettleSec=1s\nNocowSettleSec=1s\n[Nocow]\nNocow=no\n[Window]\nPressureMax=100%\n"
    f"[Metrics]\nTextfile={COLLECTOR}\n"
)
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
    assert eventually(lambda: property_of(guest, UNIT, "ActiveState") == "active")  # it answers before it is ready
    assert property_of(guest, UNIT, "BusName") == names.BUS_NAME
    guest.shell(f"systemctl disable --now {UNIT}")
    assert "not found" in guest.shell(f"{read} 2>&1 || true")
    assert property_of(guest, UNIT, "ActiveState") == "inactive"


WORDS = frozenset(map(word, HEALTH))


@pytest.fixture
def enabled(guest: Guest) -> Iterator[Guest]:
    """Yield the host with the service enabled and running."""
    guest.run("systemctl", "enable", "--now", UNIT)
    yield guest
    guest.run("systemctl", "disable", "--now", UNIT)


class Views(NamedTuple):
    """The verdict in each place that shows it.

    `reasons` are the words of `status -j`, `doctor` those of the problems that doctor finds by the same rules. `bus` is
    the property Health, and `metric` journalkeeper_healthy; both are None where no service answers.
    """

    exit_status: int
    line: str
    reasons: list[str]
    doctor: list[str]
    bus: str | None = None
    metric: str | None = None


def look(guest: Guest) -> Views:
    """Ask each place once."""
    status = guest.run("journalkeeper", "status", check=False)
    document = json.loads(guest.run("journalkeeper", "status", "-j", check=False).stdout)
    doctor = json.loads(guest.run("journalkeeper", "doctor", "-j").stdout)["findings"]
    found = [one["rule"] for one in doctor if one["severity"] == "problem" and one["rule"] in WORDS]
    bus = health_on_the_bus(guest)
    text = guest.shell(f"cat {COLLECTOR}/journalkeeper.prom || true")
    metric = re.search(r"(?m)^journalkeeper_healthy (\S+)$", text)
    return Views(
        status.returncode,
        status.stdout.partition("\n\n")[0].replace("\n", " "),
        [one.partition(":")[0] for one in document["health_reasons"]],
        found,
        bus,
        None if bus is None or metric is None else metric[1],
    )


def health_on_the_bus(guest: Guest) -> str | None:
    """Return Health; None if the service does not have its name. The call does not start it."""
    get = f"call {names.BUS_NAME} {names.MANAGER_PATH} org.freedesktop.DBus.Properties Get ss {names.MANAGER} Health"
    said = guest.shell(f"busctl --json=short --auto-start=no {get} || true")
    return str(json.loads(said)["data"][0]["data"]) if said else None


def is_well(views: Views) -> bool:
    return views[0] == 0 and views.line.startswith("OK: ") and views[2:] == ([], [], "ok", "1")


class Trouble(NamedTuple):
    """The commands that cause and end a trouble, its rule, the beginning of the line, and bus and metric."""

    cause: str
    end: str
    rule: str
    line: str
    inside: tuple[str | None, str | None] = (None, None)


TROUBLES = (
    Trouble(
        f"systemctl stop {UNIT}",
        f"systemctl start {UNIT}",
        "keeper-down",
        "journalkeeper.service is enabled but does not run",
    ),
    Trouble(
        f"echo Nonsense=1 >>/etc/journalkeeper.conf; systemctl restart {UNIT} || true",
        f"sed -i '$d' /etc/journalkeeper.conf; systemctl restart {UNIT}",
        "bad-configuration",
        "/etc/journalkeeper.conf:",
    ),
    Trouble(
        "chattr +i /var/log/journal",
        "chattr -i /var/log/journal",
        "directory-unwritable",
        "The service cannot write to /var/log/journal: it is immutable",
        ("act", "0"),
    ),
)


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.rule)
def test_every_view_of_the_verdict_agrees_during_a_trouble_and_after_it(enabled: Guest, trouble: Trouble) -> None:
    """It takes long because each look starts eight commands."""

    def is_found() -> bool:
        views = look(enabled)
        own = (1, True, trouble.inside)
        agree = trouble.rule in views.reasons and views.doctor == views.reasons
        return agree and (views.exit_status, views.line.startswith(f"Act: {trouble.line}"), views[4:]) == own

    assert eventually(lambda: is_well(look(enabled))), look(enabled)
    enabled.shell(trouble.cause)
    try:
        assert eventually(is_found), look(enabled)  # systemd restarts a service that fails: it runs for a moment
    finally:
        enabled.shell(trouble.end)
    assert eventually(lambda: is_well(look(enabled))), look(enabled)


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

        def entries() -> list[str]:
            said = guest.run("journalctl", f"MESSAGE_ID={Event.DONE}", "--output=export").stdout
            return [one for one in said.split("\n\n") if f"/{made}\n" in one]

        assert eventually(entries)
        (entry,) = entries()
        assert {f"_SYSTEMD_UNIT={UNIT}", "_TRANSPORT=journal"} <= set(entry.splitlines())
        assert int(re.findall(r"JOURNALKEEPER_EXTENTS_BEFORE=(\d+)", entry)[0]) > AGED
    guest.run("systemctl", "stop", unit)
    assert eventually(lambda: property_of(guest, "journalkeeper-measure.socket", "ActiveState") == "inactive")
    assert "measure@" not in guest.run("journalctl", "--output=short", "--boot", "_PID=1").stdout
    verify(guest)


STRANGER = 1000
"""A user who is not root, as systemd-journal-remote's."""


def capabilities(guest: Guest) -> set[str]:
    """Return the capabilities that the service has, and those that it could get."""
    pid = property_of(guest, UNIT, "MainPID")
    said = guest.shell(f"grep -E '^Cap(Prm|Eff|Bnd):' /proc/{pid}/status")
    return {line.split()[1] for line in said.splitlines()}


def test_it_has_no_capability_until_the_admin_takes_those_for_remote(guest: Guest) -> None:
    """Without them the verdict stays OK. Without CAP_LEASE, a file that is not closed would count as open."""
    content = (guest.journal / archive(guest)).read_bytes()
    remote = guest.journal.parent / "remote"
    remote.mkdir()
    names = (archive_name(1, "remote-one"), "remote-two@0000000000000001-0000000000000002.journal~")
    files = [put(remote, content, name) for name in names]
    for path in (remote, *files):
        os.chown(path, STRANGER, STRANGER)
    for path in files:
        path.chmod(0o600)
    try:
        guest.run("systemctl", "restart", UNIT)
        assert capabilities(guest) == {"0000000000000000"}
        assert eventually(lambda: is_well(look(guest))), look(guest)
        skipped = json.loads(guest.run("journalkeeper", "plan", "-j", check=False).stdout)["skipped"]  # 1: unreadable
        assert {one["reason"] for one in skipped if "/remote/" in one["path"]} == {"unreadable"}
        guest.run(steps.INSTALL, "--remote")
        assert capabilities(guest) == {"000000001000000a"}, "CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LEASE"
        for path in files:
            done = partial(history, guest, f"/var/log/journal/remote/{path.name}")
            assert eventually(done), guest.shell("journalkeeper plan")
            assert (path.stat().st_uid, path.read_bytes()) == (STRANGER, content)
    finally:
        shutil.rmtree(remote)
        guest.shell("rm -f /etc/systemd/system/journalkeeper*.service.d/50-remote.conf; systemctl daemon-reload")
        guest.run("systemctl", "restart", UNIT)


def test_a_copy_gets_its_group_and_acl_back_and_the_service_sees_the_load_of_disks(guest: Guest) -> None:
    """That takes the users of the host (PrivateUsers=no), and all of /proc (ProcSubset=all)."""
    guest.run("systemctl", "stop", UNIT)
    content = (guest.journal / archive(guest)).read_bytes()
    copied = put(guest.journal, content, archive_name(1, "system"), nocow=True)
    os.chown(copied, 0, guest.journal.stat().st_gid)  # which a copy inherits
    copied.chmod(0o640)
    scratch_volume.run("setfacl", "-m", f"u:{STRANGER}:r", copied)
    before = scratch_volume.run("getfacl", "--numeric", copied)
    guest.run("systemctl", "start", UNIT)
    inside = f"/var/log/journal/{guest.machine_id}/{copied.name}"
    assert eventually(lambda: history(guest, inside)), guest.shell("journalkeeper plan")
    assert scratch_volume.run("getfacl", "--numeric", copied) == before
    pid = property_of(guest, UNIT, "MainPID")
    for name in ("diskstats", "pressure/io"):
        assert guest.shell(f"nsenter --mount --target {pid} cat /proc/{name}") != ""


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
def test_a_journal_directory_that_is_replaced_is_mended(guest: Guest, way: str) -> None:
    """A unit may write only to the directory that was there at its start, so the service ends and systemd restarts it.

    It takes long because systemd waits before it restarts the service.
    """
    guest.run("systemctl", "restart", UNIT)
    assert eventually(lambda: property_of(guest, UNIT, "StatusText"))  # it has looked: before, it knows no directory
    before = property_of(guest, UNIT, "NRestarts")
    guest.shell(f"{REPLACED[way]}; systemctl restart systemd-journald; journalctl --flush")
    try:
        made = steps.archive(guest)  # which may be mended before it is an archive
        assert eventually(lambda: extents(guest)[made] < AGED), log_of(guest)
        ends = way != "mounted"  # a mount comes into the service's namespace as it is
        assert property_of(guest, UNIT, "NRestarts") == f"{int(before) + ends}"
        plan = guest.shell("until journalkeeper plan; do sleep 1; done; journalkeeper status || true")
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


def test_an_installation_with_a_wrong_configuration_names_the_line_and_starts_nothing(guest: Guest) -> None:
    guest.run("systemctl", "stop", UNIT)
    wrong = guest.root / "etc/journalkeeper.conf.d/wrong.conf"
    wrong.parent.mkdir(exist_ok=True)
    wrong.write_text("[Watch]\nNonsense=1\n")
    done = guest.run(steps.INSTALL, check=False)
    wrong.unlink()
    assert done.returncode == 1
    assert "wrong.conf:2: Nonsense" in done.stderr
    assert "This is its plan" not in done.stdout
    assert property_of(guest, UNIT, "ActiveState") == "inactive"
    guest.run("systemctl", "start", UNIT)


def test_a_fragmented_file_is_not_left_to_the_next_boot(guest: Guest) -> None:
    """It acts while journald runs and writes to /var: its own end is in the journal, and so is the rotation.

    On a busy machine that can take longer than 15 s. Beside 6 small archives of other tests, HistoryLoss= would forbid
    the rotation, and the file would be defragmented.
    """
    patient = guest.root / "etc/systemd/system/journalkeeper-shutdown.service.d/patient.conf"
    patient.parent.mkdir()
    patient.write_text("[Service]\nTimeoutStopSec=5min\n")
    guest.run("systemctl", "daemon-reload")
    guest.run("systemctl", "stop", UNIT)  # it would work on the file meanwhile
    guest.run("systemctl", "enable", "--now", "journalkeeper-shutdown.service")
    guest.run("journalctl", "--vacuum-files=1")
    before = extents(guest)
    guest.age(40)
    aged = extents(guest)["system.journal"]
    assert aged > 4 * AGED
    guest.reboot()
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
