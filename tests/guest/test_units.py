# SPDX-License-Identifier: LGPL-2.1-or-later
"""The units on booted hosts: the service under all its confinement, the timer's service next to it, and shutdowns.

The hosts are datacow (nocow=False), so that there is something to do.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from journalkeeper.bus import names
from journalkeeper.cli.doctor import DOCTOR_RULES
from journalkeeper.health.finding import name_rule
from journalkeeper.health.verdict import HEALTH
from journalkeeper.model import MIB
from journalkeeper.probe import scratch_volume
from journalkeeper.service.daemon import CHECK_S
from journalkeeper.service.log import Event
from tests.guest import steps
from tests.guest.conftest import EVERYDAY, datacow_guest
from tests.guest.host import Guest
from tests.guest.steps import eventually, extents, history, property_of, verify
from tests.journal_files import OLD_NS, archive_name, put
from tests.unit.test_health_rules import FOUND, finding
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


WORDS = frozenset(map(name_rule, HEALTH))


@pytest.fixture
def enabled(guest: Guest) -> Iterator[Guest]:
    """Yield the host with the service enabled and running."""
    guest.run("systemctl", "enable", "--now", UNIT)
    yield guest
    guest.run("systemctl", "disable", "--now", UNIT)


class Views(NamedTuple):
    """The verdict in each place that shows it.

    `reasons` are the words of `status -j`, `doctor` those of the problems that doctor finds by the same rules. `bus` is
    the property Health, and `metric` journalkeeper_healthy; both are None where no service answers. `remedy` is the
    command that `status` names.
    """

    exit_status: int
    line: str
    reasons: list[str]
    doctor: list[str]
    bus: str | None = None
    metric: str | None = None
    remedy: str = ""


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
        document["verdict"].partition(" Try: ")[2],
    )


def health_on_the_bus(guest: Guest) -> str | None:
    """Return Health; None if the service does not have its name. The call does not start it."""
    get = f"call {names.BUS_NAME} {names.MANAGER_PATH} org.freedesktop.DBus.Properties Get ss {names.MANAGER} Health"
    said = guest.shell(f"busctl --json=short --auto-start=no --timeout=5s {get} || true")
    return str(json.loads(said)["data"][0]["data"]) if said else None


def is_well(views: Views) -> bool:
    return views[0] == 0 and views.line.startswith("OK: ") and views[2:] == ([], [], "ok", "1", "")


class Trouble(NamedTuple):
    """The command that causes a trouble, its rule, and the beginning of the line.

    The remedy that `status` names ends it, or `end` where the remedy only shows the cause. `inside` is what the bus and
    the metric show, which keeps its value where the service cannot write it. `after` is run when all is well again.
    """

    cause: str
    rule: str
    line: str
    end: str = ""
    inside: tuple[str | None, str | None] = ("act", "0")
    after: str = "true"


JOURNALD = "systemd-journald.service"
UNHEARD = (None, None)
STOP_JOURNALD = f"systemctl stop systemd-journald.socket systemd-journald-dev-log.socket {JOURNALD}"
DOWN, BAD, SILENT, UNWRITABLE = "keeper-down", "bad-configuration", "journald-silent", "directory-unwritable"
CANNOT, CONF, LATE = "The service cannot write to ", "/etc/journalkeeper.conf", "/srv/late"
JOURNAL = "/var/log/journal"
HANG = (
    f"cd /run/systemd/system; mkdir {UNIT}.d; printf '[Service]\\nTimeoutStopSec=5s\\n' >{UNIT}.d/hang.conf"
    f"; systemctl daemon-reload; systemctl kill --signal=STOP {UNIT}"
)
UNHANG = f"rm -r /run/systemd/system/{UNIT}.d; systemctl daemon-reload"
LATE_MOUNT = (
    f"mkdir -p {CONF}.d {LATE}/$(cat /etc/machine-id); cd {CONF}.d"
    f"; printf '[Watch]\\nDirectories=/var/log/journal {LATE}\\n' >late.conf; systemctl restart {UNIT}"
)
BREAK, MEND = (f"{words} {CONF}; systemctl restart {UNIT} || true" for words in ("echo Nonsense=1 >>", "sed -i '$d'"))
TROUBLES = {
    "stopped": Trouble(f"systemctl stop {UNIT}", DOWN, f"{UNIT} is enabled but does not run", inside=UNHEARD),
    "masked": Trouble(f"systemctl mask --now {UNIT}", DOWN, f"{UNIT} is masked", inside=UNHEARD),
    "masked-runtime": Trouble(f"systemctl mask --runtime --now {UNIT}", DOWN, f"{UNIT} is masked", inside=UNHEARD),
    "hung": Trouble(HANG, "keeper-hung", f"{UNIT} runs and does not answer", inside=UNHEARD, after=UNHANG),
    "bus": Trouble(
        "systemctl stop dbus.socket dbus.service", DOWN, f"{UNIT} runs but is not on the system bus", inside=UNHEARD
    ),
    "old": Trouble(
        "cd /usr/lib/journalkeeper/venv/lib/python3*/site-packages/journalkeeper; cp __init__.py /run"
        "; sed -i 's/^__version__ = .*/__version__ = \"9.9\"/' __init__.py",
        "keeper-old",
        "The running service is still version ",
        inside=("ok", "1"),
        after="cp /run/__init__.py /usr/lib/journalkeeper/venv/lib/python3*/site-packages/journalkeeper/"
        f"; systemctl restart {UNIT}",
    ),
    "paused": Trouble("journalkeeper pause", "keeper-paused", "The service is paused"),
    "configuration": Trouble(BREAK, BAD, f"{CONF}:", MEND, inside=UNHEARD),
    "other configuration": Trouble(
        f"sed -i s/PressureMax=.*/PressureMax=99%/ {CONF}", BAD, "The configuration on disk was changed"
    ),
    "immutable": Trouble("chattr +i /var/log/journal", UNWRITABLE, f"{CANNOT}/var/log/journal: it is immutable"),
    "owner": Trouble("chown nobody /var/log/journal", UNWRITABLE, f"{CANNOT}/var/log/journal: its owner"),
    "mode": Trouble("chmod u-w /var/log/journal", UNWRITABLE, f"{CANNOT}/var/log/journal: its owner"),
    "mount": Trouble(LATE_MOUNT, UNWRITABLE, f"{CANNOT}{LATE}"),
    "host's mount": Trouble(
        "mount --bind /var/log/journal /var/log/journal; mount -o remount,bind,ro /var/log/journal",
        UNWRITABLE,
        "/var/log/journal is mounted read-only.",
        after="umount --lazy /var/log/journal",
    ),
    "host's mount at the start": Trouble(
        f"mount --bind /var/log /var/log; mount -o remount,bind,ro /var/log; systemctl restart {UNIT}",
        UNWRITABLE,
        "/var/log is mounted read-only.",
        after="umount --lazy /var/log",
    ),
    "metrics missing": Trouble(
        f"rm -r {COLLECTOR}", UNWRITABLE, f"{CANNOT}{COLLECTOR}: it does not", inside=("act", None)
    ),
    "metrics immutable": Trouble(
        f"chattr +i {COLLECTOR}", UNWRITABLE, f"{CANNOT}{COLLECTOR}: it is", inside=("act", "1")
    ),
    "metrics owner": Trouble(
        f"chown nobody {COLLECTOR}", UNWRITABLE, f"{CANNOT}{COLLECTOR}: its o", inside=("act", "1")
    ),
    "journald-stopped": Trouble(STOP_JOURNALD, SILENT, f"{JOURNALD} is stopped"),
    "journald-masked": Trouble(
        f"systemctl mask --runtime {JOURNALD}; {STOP_JOURNALD}", SILENT, f"{JOURNALD} is masked"
    ),
    "journald-hung": Trouble(f"systemctl kill --signal=STOP {JOURNALD}", SILENT, f"{JOURNALD} does not answer"),
}
"""What a booted host can meet."""

EDITOR = '#!/bin/sh\nfor file; do :; done\nsed -i "/^### Anything between/a $EDITED" "$file"\n'


def apply_remedy(guest: Guest, remedy: str) -> None:
    """Run a remedy at a terminal, as an admin would: what `systemctl edit` is to contain stands behind "#"."""
    editor = guest.root / "usr/local/bin/edit"
    editor.write_text(EDITOR)
    editor.chmod(0o755)
    edited = remedy.partition("# ")[2].replace("] ", "]\\n")
    guest.shell(f"export SYSTEMD_EDITOR=edit EDITED={shlex.quote(edited)}\nscript -qec {shlex.quote(remedy)} /dev/null")


@pytest.mark.parametrize("name", TROUBLES)
def test_every_view_agrees_during_a_trouble_which_the_named_remedy_ends(enabled: Guest, name: str) -> None:
    """It takes long because each look starts eight commands."""
    trouble = TROUBLES[name]

    def is_found() -> bool:
        views = look(enabled)
        agree = trouble.rule in views.reasons and views.doctor == views.reasons
        own = views.exit_status == 1 and views.line.startswith(f"Act: {trouble.line}")
        return agree and own and (views.bus, views.metric) == trouble.inside

    assert eventually(lambda: is_well(look(enabled))), look(enabled)
    enabled.shell(trouble.cause)
    try:
        assert eventually(is_found), look(enabled)  # systemd restarts a service that fails: it runs for a moment
    finally:
        apply_remedy(enabled, trouble.end or look(enabled).remedy)
    assert eventually(lambda: is_well(look(enabled))), look(enabled)
    enabled.shell(trouble.after)


SHOWN = {
    *("directory-unwatched", "files-failing", "keeper-failing", "not-btrfs"),
    *("record-locked", "record-unwritten", "waits", "window-closed"),
}
"""The rules whose remedy shows the cause, and changes nothing."""

TRIED = {"damaged": "btrfs/test_doctor.py", "no-room": "btrfs/test_doctor.py", "history": "guest/test_host.py"}


def test_every_remedy_is_executed_or_only_shows_the_cause() -> None:
    executed = {trouble.rule for trouble in TROUBLES.values()} | ADVICE.keys() | TRIED.keys()
    assert executed | SHOWN == set(map(name_rule, DOCTOR_RULES))


def test_a_host_as_debian_ships_it_has_the_commands_of_every_remedy(guest: Guest) -> None:
    commands = {line.split()[0] for rule, _, given in FOUND for line in finding(rule, given).remedy}
    guest.shell(f"for each in {' '.join(commands)}; do command -v $each; done")


MAN = Path(__file__).parent.parent.parent / "configs/man/journalkeeper.service.8.in"
MESSAGES = re.findall("(?m)^Environment='NOTIFY=.*$", MAN.read_text())
CHECK, MESSENGER = "journalkeeper-check.service", "journalkeeper-notify@"


def set_message(guest: Guest, assignment: str) -> None:
    drop_in = guest.root / f"etc/systemd/system/{MESSENGER}.service.d/override.conf"
    drop_in.parent.mkdir(parents=True, exist_ok=True)
    drop_in.write_text(f"[Service]\n{assignment}\n")
    guest.run("systemctl", "daemon-reload")


def fake(guest: Guest, name: str, script: str) -> None:
    program = guest.root / f"usr/local/bin/{name}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_message_is_sent_when_the_verdict_turns_and_only_then(enabled: Guest) -> None:
    """Where no command is set, messages are in the journal. The check waits for a minute by sleep(1)."""
    fake(enabled, "sleep", "true")
    began = enabled.shell("date +%s").strip()
    read = "--identifier=journalkeeper _TRANSPORT=stdout PRIORITY=5 --output=cat"

    def sent() -> list[str]:
        said = enabled.shell(f"journalctl --sync; journalctl --since=@{began} {read} || true")
        return re.findall("(?m)^(?:Act|OK): .*", said)

    def check(number: int) -> str:
        """Check twice, and return the newest of so many messages."""
        for _ in range(2):
            enabled.run("systemctl", "start", CHECK, check=False)
            assert eventually(lambda: len(sent()) >= number), log_of(enabled, f"{MESSENGER}*")
        assert len(sent()) == number
        return "".join(sent()[-1:])

    assert eventually(lambda: is_well(look(enabled))), look(enabled)
    assert check(0) == ""
    enabled.run("journalkeeper", "pause")
    assert check(1).startswith("Act: The service is paused")
    enabled.run("journalkeeper", "resume")
    assert eventually(lambda: is_well(look(enabled))), look(enabled)
    assert check(2).startswith("OK: ")
    (enabled.root / "usr/local/bin/sleep").unlink()


@pytest.mark.parametrize("example", MESSAGES, ids=["mail", "web", "desktop"])
def test_each_command_of_the_manual_page_gets_the_verdict(guest: Guest, example: str) -> None:
    """The programs in which the commands end only note what they get."""
    for name in ("sendmail", "curl", "notify-send"):
        fake(guest, name, '{ echo "$(id -un) ${0##*/} $*"; cat; } >>/var/tmp/sent')
    guest.shell("id alice || useradd alice; install -m 666 /dev/null /var/tmp/sent")
    set_message(guest, example)
    guest.run("systemctl", "start", f"{MESSENGER}{CHECK}")
    sent = guest.shell("cat /var/tmp/sent")
    host = guest.shell("uname -n").strip()
    guest.run("systemctl", "stop", f"{MESSENGER}{CHECK}")
    assert sent.startswith("alice notify-send journalkeeper Act: " if "alice" in example else "root ")
    assert "alice" in example or f"journalkeeper on {host}" in sent
    assert sent.count("Act: ") == 1, sent
    assert guest.shell("cat /var/tmp/sent").count("Act: ") == 2


def find_advice(guest: Guest, rule: str) -> dict[str, Any] | None:
    guest.run("journalctl", "--sync", check=False)
    found = json.loads(guest.run("journalkeeper", "doctor", "-j").stdout)["findings"]
    return next((one for one in found if one["rule"] == rule), None)


START = f"systemctl start {UNIT}"
WAIT_LONG = """python3 -c "import glob, os, sqlite3, time
then_us = time.time_ns() // 1000 - 2 * 86400 * 10**6
made = [(os.fsencode(one), then_us, 'budget') for one in glob.glob('/var/log/journal/*/system@*')]
with sqlite3.connect('/var/lib/journalkeeper/history.db') as history:
    history.executemany('INSERT INTO waiting VALUES (?, ?, ?)', made)"
"""
BUDGET = (
    "cd /etc; mkdir -p journalkeeper.conf.d; printf '[Budget]\\nBytesPerDay=1M\\n' >journalkeeper.conf.d/budget.conf"
)
STARVE = f"{BUDGET}; {START}; systemctl stop {UNIT}; {WAIT_LONG}{START}"
CROWD = """cd /var/log/journal/$(cat /etc/machine-id); made=$(ls system@* | tail -1)
for one in $(seq %d); do printf -v name 'system@%%032x-%%016x-%%016x.journal' 1 $one $one; %s; done
"""
CROWDED = f"/var/log/journal/*/system@{1:032x}-*"
FILL = "head -c 4096 $made >$name; fallocate -l 16M $name"
FULL = "mkdir /full; for one in $(seq 999); do fallocate -l 64M /full/$one || break; done; rm /full/[123]"
ADVICE = {
    "fragmented": "true",
    "keeper-starved": STARVE,
    "limit-reached": CROWD % (7300, ": >$name") + START,
    "volume-full": f"{CROWD % (40, FILL)}{FULL}; {START}",
    "nocow-snapshots": "chattr +C /var/log/journal/$(cat /etc/machine-id)",
    "nocow-redundant": "chattr +C /var/log/journal/$(cat /etc/machine-id)"
    "; until btrfs -q balance start -dconvert=dup /; do sleep 1; done",  # a volume that was full frees its chunks late
    "pinned-by-snapshots": "true",
    "volatile": "mkdir -p /etc/systemd/journald.conf.d; cd /etc/systemd/journald.conf.d"
    f"; printf '[Journal]\\nStorage=volatile\\n' >volatile.conf; systemctl restart {JOURNALD}",
}
"""What causes each finding, beside fragmented archives and, for two of the rules, a snapshot."""


LONG = {"limit-reached", "volume-full"}
"""They take a minute each."""


@pytest.mark.parametrize("rule", [pytest.param(one, marks=[pytest.mark.long] * (one in LONG)) for one in ADVICE])
def test_the_commands_that_doctor_prints_end_the_finding(guest: Guest, rule: str) -> None:
    made = [archive(guest) for _ in range(4 if rule == "pinned-by-snapshots" else 1)]
    snapshot = guest.volume.mountpoint / "snapshot"
    if "snapshots" in rule:
        scratch_volume.run("btrfs", "subvolume", "snapshot", guest.root, snapshot)
    guest.shell(ADVICE[rule])
    time.sleep(2)  # SettleSec=
    try:
        assert eventually(lambda: find_advice(guest, rule))
        found = find_advice(guest, rule)
        assert found is not None
        for remedy in found["remedy"]:
            apply_remedy(guest, remedy)
        assert eventually(lambda: find_advice(guest, rule) is None), find_advice(guest, rule)
    finally:
        if snapshot.exists():
            scratch_volume.run("btrfs", "subvolume", "delete", snapshot)
        guest.shell(f"systemctl stop {UNIT}; rm -rf /full /etc/journalkeeper.conf.d/budget.conf {CROWDED}")
        guest.shell("chattr -C /var/log/journal/$(cat /etc/machine-id); btrfs -q balance start -dconvert=single,soft /")
    assert rule != "fragmented" or extents(guest)[made[0]] < AGED
    if rule == "volatile":
        verify(guest)  # its messages are in order
        guest.shell(f"rm /etc/systemd/journald.conf.d/{{volatile,zz-storage}}.conf; systemctl restart {JOURNALD}")


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


def test_under_its_confinement_the_service_sees_the_battery(guest: Guest) -> None:
    """A tree in the place of sysfs's has the battery that this machine lacks. The timer's run rests, a user's not."""
    made = archive(guest)
    supply, supplies = "/srv/supplies/BAT0", "/sys/class/power_supply"
    files = "echo Battery >type; echo Discharging >status"
    guest.shell(
        f"mkdir -p {supply}; cd {supply}; {files}; mount --bind /srv/supplies {supplies}; systemctl start {UNIT}"
    )
    get = f"busctl get-property {MANAGER} StateReason"
    try:
        assert eventually(lambda: "for mains power (OnBattery=no)" in guest.shell(get))
        for command, rests in (("plan", True), ("defrag -n --upkeep", True), ("defrag -n", False)):
            guest.run("systemctl", "stop" if "-n" in command else "start", UNIT)
            said = guest.shell(f"until journalkeeper {command}; do sleep 1; done")
            assert ("battery: The service rests" in said) is rests
        guest.run("systemctl", "start", UNIT)
        assert extents(guest)[made] > AGED
        guest.shell(f"echo Charging >{supply}/status; systemctl reload {UNIT}")
        assert eventually(lambda: extents(guest)[made] < AGED)
    finally:
        guest.shell(f"systemctl stop {UNIT}; umount {supplies}")


def test_it_has_no_capability_until_the_admin_takes_those_for_remote(guest: Guest) -> None:
    """Without them the verdict stays OK."""
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


MEASURES = "journalkeeper-measure@.service"
UNITS = Path(__file__).parents[2] / "units"


def list_calls(unit: str) -> list[str]:
    """Return what SystemCallFilter= of a unit grants, without the names that a call has on other machines."""
    granted = re.findall(r"(?m)^SystemCallFilter=([^~\n]+)$", (UNITS / unit).read_text())
    return [word for words in granted for word in words.split() if not word.endswith("_64")]


RIGHTS = [
    (TIMED, "ReadWritePaths=", "copied"),
    (TIMED, "ReadWritePaths=\nReadWritePaths=/var/log/journal", "metrics"),
    (TIMED, "RestrictAddressFamilies=none", "measured"),
    (TIMED, "ProcSubset=pid", "load"),
    (TIMED, "PrivateUsers=yes", "acl"),
    (TIMED, "CapabilityBoundingSet=~CAP_DAC_OVERRIDE", "remote"),
    (TIMED, "CapabilityBoundingSet=~CAP_FOWNER", "times"),
    (TIMED, "CapabilityBoundingSet=~CAP_LEASE", "unclosed"),
    *((TIMED, f"SystemCallFilter=~{one}", "copied") for one in list_calls(TIMED)),
    (MEASURES, "AmbientCapabilities=", "measured"),
    *((MEASURES, f"SystemCallFilter=~{one}", "measured") for one in list_calls(MEASURES)),
]
"""A unit's rights, each taken away by these lines, and what then no longer works."""

REMOTE = "/var/log/journal/remote"
REMOTE_RIGHTS = f"/etc/systemd/system/{TIMED}.d/50-remote.conf"
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def content(guest: Guest) -> bytes:
    return (guest.journal / archive(guest)).read_bytes()


def find_working(guest: Guest, content: bytes, unit: str, lines: str) -> dict[str, bool]:
    """Run the timer's service with these lines for `unit`, and return for each part of the work whether it was done.

    The work is a NOCOW archive with an ACL, and two files of systemd-journal-remote, one of which is not closed.
    """
    guest.shell(f"systemctl stop {UNIT}; rm -f {COLLECTOR}/journalkeeper.prom; install -d -o {STRANGER} {REMOTE}")
    remote, number = guest.root / REMOTE[1:], next(NUMBERS)
    copied = put(guest.journal, content, archive_name(number, "system-nocow"), nocow=True)
    os.chown(copied, 0, guest.journal.stat().st_gid)  # which a copy inherits
    copied.chmod(0o640)
    scratch_volume.run("setfacl", "-m", f"u:{STRANGER}:r", copied)
    acl = scratch_volume.run("getfacl", "--numeric", copied)
    closed = put(remote, content, archive_name(number, "remote-one"))
    unclosed = put(remote, content, f"remote-two@{number:016x}-{number:016x}.journal~")
    files = (closed, unclosed)
    for path in files:
        os.chown(path, STRANGER, STRANGER)
        path.chmod(0o600)
    with closed.open("r+b") as file:
        os.posix_fallocate(file.fileno(), len(content), MIB)
    os.utime(closed, ns=(OLD_NS, OLD_NS))
    taken = guest.root / f"etc/systemd/system/{unit}.d/taken.conf"
    taken.parent.mkdir(exist_ok=True)
    taken.write_text(f"[Service]\n{lines}\n")
    try:
        guest.shell(f"install -D --mode=644 {steps.SOURCE}/units/remote.conf {REMOTE_RIGHTS}; systemctl daemon-reload")
        time.sleep(1.5)  # SettleSec=
        began = guest.shell("date +%s").strip()
        guest.run("systemctl", "start", TIMED, check=False)
        done = {path: history(guest, f"/{path.relative_to(guest.root)}") for path in (copied, *files)}
        times = closed.stat()
        return {
            "copied": bool(done[copied]),
            "measured": any(one["disk_bytes_before"] for one in done[copied]),
            "acl": bool(done[copied]) and scratch_volume.run("getfacl", "--numeric", copied) == acl,
            "metrics": (guest.root / COLLECTOR[1:] / "journalkeeper.prom").exists(),
            "load": "Traceback" not in guest.shell(f"journalctl --unit={TIMED} --since=@{began}"),
            "remote": bool(done[closed]),
            "times": bool(done[closed]) and {times.st_mtime_ns, times.st_atime_ns} == {OLD_NS},
            "unclosed": bool(done[unclosed]),
        }
    finally:
        taken.unlink()
        shutil.rmtree(remote)
        guest.shell(f"rm {REMOTE_RIGHTS}; systemctl daemon-reload")


def test_with_its_rights_the_timers_service_does_all_of_its_work(guest: Guest, content: bytes) -> None:
    found = find_working(guest, content, TIMED, "")
    assert all(found.values()), found


@pytest.mark.long
@pytest.mark.parametrize("release", [EVERYDAY], indirect=True, scope="module")
@pytest.mark.parametrize(("unit", "lines", "lost"), RIGHTS)
def test_without_one_of_its_rights_a_part_of_the_work_fails(
    guest: Guest, content: bytes, unit: str, lines: str, lost: str
) -> None:
    assert not find_working(guest, content, unit, lines)[lost]


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
        if way != "removed":
            time.sleep(CHECK_S)
            guest.run("journalkeeper", "status", check=False)  # asked, it checks at once, and not up to 90 s later
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
    guest.shell("chattr +C /var/log/journal/*/; journalctl --rotate; rm -f /var/tmp/sent")
    set_message(guest, "Environment='NOTIFY=date >>/var/tmp/sent'")
    guest.run("systemctl", "start", f"{MESSENGER}{CHECK}")
    before = extents(guest)
    guest.reboot()
    assert extents(guest).keys() == before.keys()
    assert guest.shell("wc -l </var/tmp/sent") == "1\n", "a shutdown is no turn of the verdict"
