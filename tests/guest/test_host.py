# SPDX-License-Identifier: LGPL-2.1-or-later
"""One host's life with journalkeeper, from a user's shell: installed, upgraded, rebooted, removed.

Each test continues with the host of the test before. The host is as Debian ships it, with its / in a subvolume of
which there are snapshots, as snapper makes them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from journalkeeper.health.evidence import Journal
from journalkeeper.model import GIB
from journalkeeper.model.units import parse_size
from journalkeeper.observe.machine import read_journal
from tests.adapters import test_packages as packages
from tests.adapters.test_units import EXPOSURE
from tests.guest.host import Guest
from tests.guest.steps import (
    CHECKOUT,
    INSTALL,
    archive,
    dated_back,
    eventually,
    extents,
    history,
    install,
    plan,
    property_of,
    verify,
)

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow]

QUICK = "[Watch]\nSettleSec=1s\nNocowSettleSec=5s\n[Window]\nPressureMax=100%\n"
SERVICE = "journalkeeper.service"
SERVICES = [SERVICE, "journalkeeper-shutdown.service"]
UNITS = sorted(path.name for path in (CHECKOUT / "units").iterdir() if path.suffix in (".service", ".timer"))
AGED = 100
"""A file of this many extents was not mended."""

BUS = ("org.journalkeeper1", "/org/journalkeeper1", "org.journalkeeper1.Manager")
METRICS = "/var/lib/prometheus/node-exporter"
LOAD = "i=0; while :; do i=$((i+1)); echo load $i; sleep 0.02; done"
SHOP = "shop"
"""A log namespace's name."""

VARYING = r"/(__pycache__|apt|dpkg|source)(/|$)|^/var/lib/systemd|^/etc/\.updated|\.cache$"
"""Paths that systemd, Python and the distribution's packages make and remove."""


def all_paths(guest: Guest) -> set[str]:
    """Return the paths of programs, settings and state on the host, without those that vary."""
    found = guest.shell("find /usr /etc /opt /var/lib -xdev").splitlines()
    return {path for path in found if not re.search(VARYING, path)}


@pytest.fixture(scope="module")
def fresh(guest: Guest) -> set[str]:
    """Return the host's paths before journalkeeper is installed."""
    return all_paths(guest)


class Aged(NamedTuple):
    """The names of two archives that journald left in many extents. One is in a snapshot, too."""

    shared: str
    own: str


@pytest.fixture(scope="module")
def aged(guest: Guest, fresh: set[str]) -> Aged:
    """Age the journal of the host before journalkeeper is installed."""
    assert "/usr/bin/journalkeeper" not in fresh
    shared = archive(guest)
    guest.snapshot("before")
    guest.shell("chattr -C /var/log/journal/*/; journalctl --rotate")  # as on hosts that were never told of +C
    own = archive(guest)
    assert all(extents(guest)[name] > AGED for name in (shared, own))
    return Aged(shared, own)


def outcomes(guest: Guest) -> set[tuple[int, str]]:
    """Return the time and the file of each outcome in the history."""
    return {(one["when_us"], one["path"]) for one in history(guest)}


def reason(guest: Guest, name: str) -> str:
    """Return the reason why `journalkeeper plan` skips a file."""
    (why,) = [str(one["reason"]) for one in plan(guest)["skipped"] if one["path"].endswith(f"/{name}")]
    return why


def bus(guest: Guest, verb: str, *words: str, user: str | None = None) -> tuple[int, str]:
    done = guest.run("busctl", "--system", verb, *BUS, *words, user=user, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_boot_takes_as_long_as_systemd_reports(guest: Guest) -> None:
    guest.run("journalctl", "--sync")
    found = read_journal(str(guest.journal.parent), 10_000)
    assert isinstance(found, Journal)
    boot = found.boots[-1]
    assert boot.userspace_us is not None
    assert boot.flush_us is not None
    assert boot.userspace_us / 1e6 == pytest.approx(guest.boot_seconds(), rel=0.01)
    assert 0 < boot.flush_us / 1e6 < guest.flush_seconds()  # the unit also starts journalctl


@pytest.mark.usefixtures("aged")
def test_one_command_installs_it_enables_and_starts_it_and_shows_its_status(guest: Guest) -> None:
    """It takes long because pip makes a virtual environment on the host."""
    said = install(guest, QUICK)
    planned, _, status = said.partition("  systemctl reload journalkeeper\n")
    assert "The service starts now. This is its plan:" in planned
    assert "compress" in planned
    assert "Service: " in status
    assert [property_of(guest, unit, "ActiveState") for unit in SERVICES] == ["active", "active"]
    assert guest.run("systemctl", "is-enabled", *SERVICES).stdout.split() == ["enabled", "enabled"]
    assert guest.run("systemctl", "--failed", "--no-legend", "--plain").stdout == ""
    assert "journalkeeper" in guest.run("journalctl", "--list-catalog").stdout
    manifest = guest.shell("cat /usr/lib/journalkeeper/manifest").splitlines()
    assert guest.shell(f"ls -d {' '.join(manifest)} | wc -l").strip() == str(len(manifest))


def test_archives_are_rewritten_and_the_history_has_the_bytes_beside_a_snapshot(guest: Guest, aged: Aged) -> None:
    assert eventually(lambda: all(extents(guest)[name] < AGED for name in aged))
    assert eventually(lambda: {reason(guest, name) for name in aged} == {"recorded"})  # once they have settled
    beside = {os.path.basename(one["path"]): one["unshared_bytes"] for one in history(guest)}
    assert beside[aged.own] == 0 < beside[aged.shared]


def test_doctor_finds_no_problem_and_makes_nearly_all_checks(guest: Guest) -> None:
    """On a busy machine one fsync of half a second delays a whole burst of `age`, and the service can answer late."""
    document: dict[str, Any] = {}

    def has_no_problem() -> bool:
        found = guest.run("journalkeeper", "doctor", "--check", "--json=short", check=False)
        document.update(json.loads(found.stdout))
        problems = {one["rule"] for one in document["findings"] if one["severity"] == "problem"}
        assert found.returncode == bool(problems)
        return problems <= {"waits"}

    assert eventually(has_no_problem), document["findings"]
    assert {one["rule"] for one in document["unknown"]} <= {"waits", "history"}  # the host is young
    assert {"keeper-down", "keeper-failing", "volatile"} <= set(document["passed"])
    assert document["journal"]["complete"]


def test_retention_apply_raises_journalds_limit_and_undo_restores_it(guest: Guest) -> None:
    def limit() -> str:
        guest.run("systemctl", "restart", "systemd-journald")
        said = ("journalctl", "--output=cat", "--lines=1", "MESSAGE_ID=ec387f577b844b8fa948f33cad9a75e6")
        return str(re.findall(r"max ([\d.]+[GM])", guest.run(*said).stdout)[0])

    before = limit()
    # a journal of less than a day shows no rate
    with dated_back(guest):
        assert eventually(lambda: guest.run("journalkeeper", "retention", check=False).returncode == 0)
        document = json.loads(guest.run("journalkeeper", "retention", "-j").stdout)
        assert document["proposed_use_bytes"] > 2 * document["limit_bytes"]
        guest.run("journalkeeper", "retention", "--apply")
        # SystemKeepFree= may allow less on a small disk
        assert parse_size(before) < parse_size(limit()) < document["proposed_use_bytes"] + GIB
    guest.run("journalkeeper", "retention", "--undo")
    assert limit() == before


def test_the_plan_keeps_a_journal_in_snapshots_datacow(guest: Guest) -> None:
    assert "C" not in guest.shell("lsattr -d /var/log/journal/*/").split()[0]
    skipped = plan(guest)["skipped"]
    assert "snapshots" in {one["reason"] for one in skipped if one["path"] == f"/var/log/journal/{guest.machine_id}"}


@pytest.mark.parametrize("unit", UNITS)
def test_this_systemd_accepts_every_installed_unit(guest: Guest, unit: str) -> None:
    said = guest.run("systemd-analyze", "verify", "--man=no", f"/usr/lib/systemd/system/{unit}")
    assert said.stdout + said.stderr == ""
    if unit.endswith(".service") and "notify" not in unit:  # which runs the administrator's command
        guest.run("systemd-analyze", "security", "--no-pager", f"--threshold={EXPOSURE}", unit)


def test_a_namespace_is_compacted_like_the_main_journal(guest: Guest) -> None:
    guest.run("systemd-run", "--quiet", "--wait", f"--property=LogNamespace={SHOP}", "echo", "open")
    guest.run("systemctl", "start", f"systemd-journald@{SHOP}.service")
    guest.run("systemctl", "is-active", f"systemd-journald@{SHOP}.service")
    place = f"/var/log/journal/{guest.machine_id}.{SHOP}"
    assert eventually(lambda: "C" in guest.shell(f"lsattr -d {place}").split()[0])
    assert f"{guest.machine_id}.{SHOP}" in plan(guest)["window"]
    guest.age(40, namespace=SHOP)
    guest.run("journalctl", f"--namespace={SHOP}", "--rotate")

    def archived() -> list[int]:
        return [count for name, count in extents(guest, SHOP).items() if name.startswith("system@")]

    assert eventually(archived)  # on a busy machine journald is later than its answer
    assert eventually(lambda: all(count < AGED for count in archived()))
    verify(guest, f"--namespace={SHOP}")


def test_an_upgrade_under_load_and_a_reboot_keep_the_history(guest: Guest) -> None:
    """It takes long because pip makes a virtual environment, and the host boots."""
    before = outcomes(guest)
    assert before
    pid = property_of(guest, SERVICE, "MainPID")
    guest.run("systemd-run", "--quiet", "--unit=load", "bash", "-c", LOAD)
    guest.run(INSTALL)
    guest.run("systemctl", "stop", "load")
    said = guest.run("journalctl", "--output=cat", "--unit=load").stdout
    numbers = [int(number) for number in re.findall(r"(?m)^load (\d+)$", said)]
    assert numbers == list(range(1, len(numbers) + 1)), "no message is lost"
    assert len(numbers) > 100
    assert property_of(guest, SERVICE, "ActiveState") == "active"
    assert property_of(guest, SERVICE, "MainPID") != pid
    gone, back = (int(property_of(guest, SERVICE, f"Inactive{edge}TimestampMonotonic")) for edge in ("Enter", "Exit"))
    assert 0 <= back - gone < 10_000_000, "it ends once, when everything is in place"
    guest.reboot()
    # after the boot, and not within it
    assert eventually(lambda: [property_of(guest, unit, "ActiveState") for unit in SERVICES] == ["active", "active"])
    assert before <= outcomes(guest)
    said = guest.run("journalctl", "--boot=-1", "--output=cat", "--unit=journalkeeper-shutdown.service").stdout
    assert "Stopped journalkeeper-shutdown.service" in said


def test_the_timer_fires_on_a_host_without_the_service(guest: Guest) -> None:
    guest.run("systemctl", "disable", "--now", SERVICE)
    soon = guest.root / "etc/systemd/system/journalkeeper-defrag.timer.d/soon.conf"
    soon.parent.mkdir()
    soon.write_text("[Timer]\nOnBootSec=\nOnCalendar=\nOnActiveSec=1s\nRandomizedDelaySec=0\nAccuracySec=1s\n")
    guest.run("systemctl", "daemon-reload")
    guest.run("systemctl", "enable", "--now", "journalkeeper-defrag.timer")
    finished = ("journalctl", "--output=cat", "--unit=journalkeeper-defrag.service")
    assert eventually(lambda: "Finished journalkeeper-defrag.service" in guest.run(*finished).stdout)
    assert property_of(guest, "journalkeeper-defrag.service", "Result") == "success"
    guest.shell("rm -r /etc/systemd/system/journalkeeper-defrag.timer.d; systemctl daemon-reload")
    guest.run("systemctl", "enable", "--now", SERVICE)


def test_uninstall_leaves_only_the_paths_that_it_lists_and_purge_leaves_none(guest: Guest, fresh: set[str]) -> None:
    listed = guest.run("dpkg", "--listfiles", *installed_since(guest)).stdout.splitlines()
    have_metrics(guest)
    guest.run("systemctl", "stop", SERVICE)
    guest.age(40)  # before a shutdown that would be rotated away
    before = set(extents(guest))
    said = guest.run(INSTALL, "--uninstall").stderr
    assert set(extents(guest)) == before  # what the shutdown's unit does at its stop, it has not done
    assert [line for line in said.splitlines() if not line.startswith(("kept: ", "removed"))] == []
    nocow = guest.shell("lsattr -d /var/log/journal/*/ | sed -n 's,^[^ ]*C[^ ]* \\(.*\\)/$,\\1,p'").split()
    assert nocow
    assert [path for path in nocow if f"kept: +C of {path}: " not in said] == []
    left = all_paths(guest) - fresh - set(listed) - {METRICS, "/var/lib/prometheus"}
    kept = {path for path in left if f"kept: {path}\n" in said}
    assert kept == {
        "/etc/journalkeeper.conf",
        "/etc/journalkeeper.conf.d",
        "/var/lib/journalkeeper",
        f"{METRICS}/journalkeeper.prom",
    }
    assert {path for path in left if not path.startswith(tuple(kept))} == set()
    assert guest.run("systemctl", "list-units", "--all", "--no-legend", "journalkeeper*").stdout == ""
    assert "journalkeeper" not in guest.run("journalctl", "--list-catalog").stdout
    assert bus(guest, "get-property", "State")[0] != 0
    guest.run(INSTALL, "--uninstall", "--purge")
    guest.shell(f"rmdir --parents --ignore-fail-on-non-empty {METRICS}")
    assert all_paths(guest) - fresh - set(listed) == set()
    assert guest.run("systemctl", "--failed", "--no-legend", "--plain").stdout == ""


def have_metrics(guest: Guest) -> None:
    """Configure a metrics file, and wait until the service has written it."""
    guest.shell(f"mkdir -p {METRICS} /etc/journalkeeper.conf.d")
    (guest.root / "etc/journalkeeper.conf.d/metrics.conf").write_text(f"[Metrics]\nTextfile={METRICS}\n")
    guest.run("systemctl", "restart", SERVICE)
    assert eventually((guest.root / METRICS.lstrip("/") / "journalkeeper.prom").exists)


def installed_since(guest: Guest) -> list[str]:
    """Return the packages that were installed since the first boot, by dpkg's log, and base-files."""
    log = guest.shell("cat /var/log/dpkg.log 2>/dev/null || :")
    boot = guest.shell("stat -c %w /var/log/journal/*/ | sort | head -1").strip()[:19]
    found = re.findall(r"(?m)^(\S+ \S+) status installed (\S+):\S+ ", log)
    return ["base-files", *sorted({name for when, name in found if when > boot})]


@pytest.fixture(scope="module")
def package(release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package for a release of Debian on this machine, and return its path."""
    kind = "deb12" if release == "bookworm" else "deb"
    return packages.one(packages.build(kind, tmp_path_factory.mktemp(kind)), "*.deb")


@pytest.mark.long
def test_its_package_installs_and_purges_all_of_it(guest: Guest, package: Path, fresh: set[str]) -> None:
    """On the host that has just been purged."""
    shutil.copy(package, guest.root / "opt/source/journalkeeper.deb")
    apt = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet=2", "--yes", "--no-install-recommends")
    guest.run(*apt, "install", "/opt/source/journalkeeper.deb")
    assert [property_of(guest, unit, "ActiveState") for unit in SERVICES] == ["active", "active"]
    assert guest.run("systemctl", "is-enabled", "journalkeeper-defrag.timer", check=False).stdout == "disabled\n"
    assert bus(guest, "get-property", "State", user="user")[0] == 0
    guest.shell("printf '[Defrag]\\nCompress=no\\n' >/etc/journalkeeper.conf; journalkeeper check-config")
    refused = guest.run(INSTALL, check=False)
    assert refused.returncode == 1
    assert "remove the package" in refused.stderr
    guest.run(*apt, "reinstall", "/opt/source/journalkeeper.deb")
    assert property_of(guest, SERVICE, "ActiveState") == "active"
    have_metrics(guest)
    said = guest.run(*apt, "remove", "journalkeeper").stdout
    assert f"kept: {METRICS}/journalkeeper.prom\n" in said
    guest.run(*apt, "purge", "journalkeeper")
    guest.shell(f"rmdir --parents --ignore-fail-on-non-empty {METRICS}")
    listed = guest.run("dpkg", "--listfiles", *installed_since(guest), check=False).stdout.splitlines()
    assert all_paths(guest) - fresh - set(listed) == set()
    assert guest.run("systemctl", "list-units", "--all", "--no-legend", "journalkeeper*").stdout == ""
