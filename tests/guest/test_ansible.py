# SPDX-License-Identifier: LGPL-2.1-or-later
"""The Ansible role on booted hosts, Debian 12 and 13 in one inventory, by the commands of the collection's page.

The source that is installed is a copy, because the role sees a change of the checkout as an upgrade. A test takes long
because each playbook takes 10 to 30 s.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from journalkeeper.probe.scratch_volume import ScratchVolume
from journalkeeper.service.log import Event
from tests import ansible
from tests.adapters import test_packages as packages
from tests.ansible import COLLECTION, Control, Played, program
from tests.guest import base
from tests.guest.conftest import require_guest
from tests.guest.host import Guest
from tests.guest.steps import archive, dated_back, eventually, property_of
from tests.guest.test_isolate import lend_disk

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow, pytest.mark.long]

PAGE = (COLLECTION / "README.md").read_text()
(SITE,) = re.findall(r"(?ms)^```yaml\n(.*?)^```$", PAGE)
(COMMANDS,) = re.findall(r"(?ms)^```sh\n(.*?)^```$", PAGE)
DROPIN = "etc/journalkeeper.conf.d/50-ansible.conf"
RETENTION = "etc/systemd/journald.conf.d/60-journalkeeper-retention.conf"
CHANGES = (
    "find /etc /usr /var/lib /opt -xdev -newer /run/before -printf '%p\\n' | grep -v -e /var/lib/systemd -e pycache"
)
UNITS = ("journalkeeper.service", "journalkeeper-shutdown.service", "journalkeeper-defrag.timer")


class Fleet(NamedTuple):
    """Hosts of both releases, their controller, and the results of the page's commands there."""

    hosts: list[Guest]
    control: Control
    checked: Played
    first: Played
    touched: list[str]

    def play(self, variables: Mapping[str, object], *words: str) -> Played:
        """Run the page's playbook with other values."""
        return self.control.play("site.yml", "--extra-vars", json.dumps(variables), *words)


def command(control: Control, line: str, *words: str) -> Played:
    """Run one of the page's commands with further words."""
    name, *rest = shlex.split(line)
    done = control.run(program(name), *rest, *words)
    assert name == "ansible-playbook" or done.status == 0, done.said
    return done


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Run the page's commands on fresh hosts."""
    require_guest()
    if reason := ansible.missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        volume = stack.enter_context(ScratchVolume("8G"))
        hosts = [stack.enter_context(Guest(name, volume=volume, name=name, nocow=False)) for name in base.SYSTEMD]
        for host in hosts:
            host.boot()
            host.shell("sleep 0.02; touch /run/before; sleep 0.02")
        control = Control(tmp_path_factory.mktemp("site"), {host.name: host.command() for host in hosts}, link=False)
        ansible.copy_source(control.home / "journalkeeper")
        (control.home / "site.yml").write_text(SITE)
        install, check, play = COMMANDS.splitlines()
        command(control, install)
        checked = command(control, check)
        seen = f"{CHANGES} || true; systemctl list-units --no-legend 'journalkeeper*'"
        changes = [host.shell(seen) for host in hosts]
        yield Fleet(hosts, control, checked, command(control, play, "-v"), changes)


def states(host: Guest) -> list[str]:
    return [f"{property_of(host, unit, 'UnitFileState')} {property_of(host, unit, 'ActiveState')}" for unit in UNITS]


def in_force(host: Guest) -> dict[str, str]:
    """Return the directives that differ from their defaults."""
    values = json.loads(host.run("journalkeeper", "check-config", "--json=short").stdout)["values"]
    return {row["key"]: row["value"] for row in values if not row["default"]}


def test_check_mode_shows_what_would_be_and_changes_nothing(fleet: Fleet) -> None:
    assert fleet.checked.status == 0, fleet.checked.said
    assert all(count > 0 for count in fleet.checked.changed.values())
    assert "+BytesPerDay=2G" in fleet.checked.said
    assert fleet.touched == ["", ""]


def test_the_pages_commands_install_configure_and_run_it(fleet: Fleet) -> None:
    assert fleet.first.status == 0, fleet.first.why()
    assert len(re.findall(r'"journalkeeper_status": \{', fleet.first.said)) == len(fleet.hosts)
    for host in fleet.hosts:
        assert in_force(host) == {"BytesPerDay": "2G", "Compress": "zstd:5"}
        assert states(host) == ["enabled active", "enabled active", "disabled inactive"]
        assert "50-ansible.conf" not in property_of(host, "journalkeeper.service", "DropInPaths")


def test_a_second_run_changes_nothing(fleet: Fleet) -> None:
    again = fleet.play({})
    assert (again.status, again.changed) == (0, dict.fromkeys(base.SYSTEMD, 0)), again.why()


def test_a_changed_value_is_shown_then_reloaded_without_a_restart(fleet: Fleet) -> None:
    pids = [property_of(host, "journalkeeper.service", "MainPID") for host in fleet.hosts]
    value = {"journalkeeper_history_keep_sec": "30d"}
    shown = fleet.play(value, "--check", "--diff", "--tags", "configure")
    assert "+KeepSec=30d" in shown.said
    assert all("KeepSec" not in in_force(host) for host in fleet.hosts)
    assert fleet.play(value, "--tags=configure,service").status == 0
    assert [property_of(host, "journalkeeper.service", "MainPID") for host in fleet.hosts] == pids
    for host in fleet.hosts:
        assert in_force(host)["KeepSec"] == "30d"
        assert eventually(partial(host.shell, f"journalctl --quiet MESSAGE_ID={Event.RELOADED}"))


def test_the_units_may_write_to_a_directory_elsewhere_after_a_restart(fleet: Fleet) -> None:
    pids = [property_of(host, "journalkeeper.service", "MainPID") for host in fleet.hosts]
    value = {"journalkeeper_metrics_textfile": "/srv/metrics/journalkeeper.prom"}
    assert fleet.play(value, "--tags=configure,service").status == 0
    for host, pid in zip(fleet.hosts, pids, strict=True):
        assert all("/srv/metrics" in property_of(host, unit, "ReadWritePaths") for unit in UNITS[:2])
        assert property_of(host, "journalkeeper.service", "MainPID") != pid
    assert fleet.play({}, "--tags=configure,service").status == 0
    assert all("/srv" not in property_of(host, "journalkeeper.service", "ReadWritePaths") for host in fleet.hosts)


def test_a_value_that_check_config_refuses_is_taken_back(fleet: Fleet) -> None:
    first, second = fleet.hosts
    before = (first.root / DROPIN).read_text()
    (first.root / "etc/journalkeeper.conf").write_text("[Watch]\nSettleSec=20min\nNocowSettleSec=20min\n")
    done = fleet.play({"journalkeeper_watch_nocow_settle_sec": "11min"})
    assert "NocowSettleSec=11min must be at least SettleSec=20min" in done.said
    assert done.failed == {first.name: 1, second.name: 0}
    assert (first.root / DROPIN).read_text() == before
    assert [path.name for path in (first.root / DROPIN).parent.iterdir()] == ["50-ansible.conf"]
    assert in_force(second)["NocowSettleSec"] == "11min"
    (first.root / "etc/journalkeeper.conf").unlink()


def test_journald_keeps_a_longer_history_once_a_host_knows_what_fits(fleet: Fleet) -> None:
    wanted = {"journalkeeper_retention": True}

    def started() -> list[str]:
        return [property_of(host, "systemd-journald.service", "ExecMainStartTimestamp") for host in fleet.hosts]

    young = fleet.play(wanted, "--tags=retention")
    assert (young.status, young.changed) == (0, dict.fromkeys(base.SYSTEMD, 0)), young.said
    assert not any((host.root / RETENTION).exists() for host in fleet.hosts)
    with ExitStack() as stack:
        for host in fleet.hosts:
            host.run("systemctl", "stop", UNITS[0])  # or it would rotate, too
            archives = [archive(host) for _ in range(2)]
            (host.root / "etc/all.conf").write_text("[Defrag]\nMinReclaim=4K\n")  # they are small
            paths = [f"/var/log/journal/{host.machine_id}/{name}" for name in archives]
            host.run("journalkeeper", "defrag", "--now", "--config", "/etc/all.conf", *paths)
            # no +C and no rotation now: another archive is another ratio
            (host.root / "etc/journalkeeper.conf").write_text("[Watch]\nSettleSec=10min\n")
            host.run("systemctl", "start", UNITS[0])
            stack.enter_context(dated_back(host))  # a journal of less than a day shows no rate
        before = started()
        done = fleet.play(wanted, "--tags=retention")
        assert (done.status, min(done.changed.values()) > 0) == (0, True), done.said
        written = [(host.root / RETENTION).read_text() for host in fleet.hosts]
        assert all("SystemMaxUse=" in text for text in written)
        assert not set(started()) & set(before)
        again = fleet.play(wanted, "--tags=retention")
        assert (again.status, again.changed) == (0, dict.fromkeys(base.SYSTEMD, 0)), again.why()
        assert [(host.root / RETENTION).read_text() for host in fleet.hosts] == written
    for host in fleet.hosts:
        (host.root / "etc/journalkeeper.conf").unlink()
    assert fleet.play({"journalkeeper_retention": False}, "--tags=retention").status == 0
    assert not any((host.root / RETENTION).exists() for host in fleet.hosts)


def test_the_journal_moves_into_a_subvolume_and_back(fleet: Fleet) -> None:
    def isolated() -> list[bool]:
        return [(host.root / "var/log/journal").stat().st_ino == 256 for host in fleet.hosts]

    for wanted in (True, False):
        for changed in (1, 0):
            done = fleet.play({"journalkeeper_isolate": wanted}, "--tags=isolate")
            assert (done.status, done.changed) == (0, dict.fromkeys(base.SYSTEMD, changed)), done.said
            assert isolated() == [wanted] * len(fleet.hosts)
    first = fleet.hosts[0]
    first.shell("systemctl stop journalkeeper; journalctl --relinquish-var; mv /var/log/journal /var/log/aside")
    try:
        done = fleet.play({"journalkeeper_isolate": True}, "--tags=isolate", f"--limit={first.name}")
        assert (done.status, set(done.changed.values())) == (0, {0}), done.said
    finally:
        first.shell("mv /var/log/aside /var/log/journal; journalctl --flush; systemctl start journalkeeper")


def test_the_journal_moves_to_the_top_of_the_volume_and_back(fleet: Fleet) -> None:
    host = fleet.hosts[0]  # both have one volume
    lend_disk(host)
    host.shell("systemctl daemon-reload; systemctl start disk.service")
    wanted = {"journalkeeper_isolate": True, "journalkeeper_isolate_flat": True}
    for variables, words, changed, is_flat in (
        (wanted, ["--check"], 0, False),
        (wanted, [], 1, True),
        (wanted, [], 0, True),
        ({"journalkeeper_isolate": True}, [], 0, True),
        ({"journalkeeper_isolate": False, "journalkeeper_isolate_flat": True}, [], 1, False),
    ):
        done = fleet.play(variables, "--tags=isolate", f"--limit={host.name}", *words)
        assert (done.status, done.changed) == (0, {host.name: changed}), done.said
        assert (host.run("findmnt", "/var/log/journal", check=False).returncode == 0) is is_flat


def test_a_mode_enables_its_units_and_disables_the_others(fleet: Fleet) -> None:
    assert fleet.play({"journalkeeper_mode": "timer"}, "--tags=service").status == 0
    assert [states(host) for host in fleet.hosts] == [["disabled inactive", "enabled active", "enabled active"]] * 2
    assert fleet.play({"journalkeeper_mode": "none"}, "--tags=service").status == 0
    assert [states(host) for host in fleet.hosts] == [["disabled inactive"] * 3] * 2
    assert fleet.play({}, "--tags=service").status == 0
    assert [states(host)[0] for host in fleet.hosts] == ["enabled active"] * 2


def test_another_source_is_an_upgrade_and_a_restart(fleet: Fleet) -> None:
    pids = [property_of(host, "journalkeeper.service", "MainPID") for host in fleet.hosts]
    version = fleet.control.home / "journalkeeper/journalkeeper/__init__.py"
    version.write_text(re.sub(r'__version__ = "(.*)"', r'__version__ = "\1.post1"', version.read_text()))
    done = fleet.play({})
    assert done.status == 0, done.said
    for host, pid in zip(fleet.hosts, pids, strict=True):
        assert host.run("journalkeeper", "--version").stdout.endswith(".post1\n")
        assert property_of(host, "journalkeeper.service", "MainPID") != pid


def leftovers(host: Guest) -> str:
    return host.shell("find /etc /usr /var -xdev -iname '*journalkeeper*' -not -path '/var/tmp/*'")


def test_absent_leaves_the_history_and_purge_leaves_nothing(fleet: Fleet) -> None:
    gone = {"journalkeeper_state": "absent"}
    assert fleet.play(gone).status == 0
    for host in fleet.hosts:
        assert (host.root / "var/lib/journalkeeper").is_dir()
        assert host.shell("ls -d /usr/bin/journalkeeper /usr/lib/journalkeeper 2>/dev/null || true") == ""
        assert not (host.root / DROPIN).exists()
    assert fleet.play({**gone, "journalkeeper_purge": True}).status == 0
    for host in fleet.hosts:
        assert leftovers(host) == ""
        assert host.run("systemctl", "--failed", "--no-legend").stdout == ""


def test_a_package_is_installed_configured_before_its_first_start_and_purged(fleet: Fleet, tmp_path: Path) -> None:
    """On Debian 13, which has all libraries."""
    host = next(host for host in fleet.hosts if host.release == "trixie")
    deb = packages.one(packages.build("deb", tmp_path), "*.deb")
    gone = {"journalkeeper_state": "absent", "journalkeeper_purge": True}
    method = {"journalkeeper_install_method": "package", "journalkeeper_package": str(deb)}
    assert fleet.play(gone, "--limit=trixie").status == 0
    done = fleet.play(method, "--limit=trixie")
    assert done.status == 0, done.said
    assert in_force(host) == {"BytesPerDay": "2G", "Compress": "zstd:5"}
    assert states(host) == ["enabled active", "enabled active", "disabled inactive"]
    written, started = (
        (host.root / DROPIN).stat().st_ctime,
        property_of(host, "journalkeeper.service", "ActiveEnterTimestamp"),
    )
    assert written <= float(host.run("date", f"--date={started}", "+%s").stdout) + 1  # whole seconds
    assert fleet.play(method, "--limit=trixie").changed == {"trixie": 0}
    assert fleet.play({**gone, **method}, "--limit=trixie").status == 0
    assert leftovers(host) == ""
