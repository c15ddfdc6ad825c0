# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service on a bus of its own with a real polkitd: who may, what is answered, and days without a bus.

What is done to files, and what a flood of nonsense does not do to them, is in tests/btrfs/test_bus_daemon.py.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from journalkeeper.bus import names, objects
from journalkeeper.bus.server import RETRY_S
from journalkeeper.history.store import NAME
from journalkeeper.service.daemon import BUS_S
from tests.bus import PrivateBus
from tests.daemon import Daemon
from tests.patience import eventually

pytestmark = pytest.mark.root

WRITES = [
    ("Defragment", "[]", "", "0"),
    ("Cancel", "/org/journalkeeper1/job/1"),
    ("Pause", "1"),
    ("Resume",),
    ("Rescan",),
    ("Reload",),
]
DENIED = "org.freedesktop.DBus.Error.AccessDenied"
MANAGE_FOR_NOBODY = """
polkit.addRule(function(action, subject) {
    if (action.id == "org.journalkeeper1.manage" && subject.user == "nobody")
        return polkit.Result.YES;
});
"""


@pytest.fixture(scope="module", autouse=True)
def polkit(bus: PrivateBus) -> None:
    bus.start_polkit()


@contextmanager
def ruled(bus: PrivateBus, rule: str | None) -> Iterator[None]:
    """Another rule of polkit's for a moment, or with None no polkit."""
    bus.stop_polkit()
    if rule is not None:
        bus.start_polkit(rule)
    try:
        yield
    finally:
        bus.stop_polkit()
        bus.start_polkit()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A directory without journals, for a service of the test's own."""
    (tmp_path / "journal").mkdir()
    return tmp_path / "journal"


@pytest.fixture(scope="module")
def daemon(bus: PrivateBus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A service on an empty directory that is not on btrfs: it has nothing to do, and says so."""
    base = tmp_path_factory.mktemp("service")
    (base / "journal").mkdir()
    with Daemon(base, base / "journal", bus) as daemon:
        yield daemon


def property_(bus: PrivateBus, name: str, *, nobody: bool = False) -> object:
    words = ["--json=short", "get-property", names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, name]
    done = bus.run("busctl", f"--address={bus.address}", *words, nobody=nobody, check=True)
    return json.loads(done.stdout)["data"]


# Who may


def test_the_list_of_writing_methods_is_complete() -> None:
    assert {name for name, *_ in WRITES} == {one.name for one in objects.MANAGER.methods if one.action is not None}


@pytest.mark.parametrize("words", WRITES, ids=lambda words: words[0])
def test_nobody_is_denied_every_writing_method(bus: PrivateBus, daemon: Daemon, words: tuple[str, ...]) -> None:
    done = bus.gdbus(*words, nobody=True)
    assert done.returncode != 0
    assert DENIED in done.stderr
    assert "Traceback" not in done.stderr
    assert property_(bus, "Paused") is False


def test_nobody_reads_everything(bus: PrivateBus, daemon: Daemon) -> None:
    for name in (row.bus for row in objects.MANAGER.properties):
        assert property_(bus, name, nobody=True) is not None
    for member, words in (
        (f"{names.PROPERTIES}.GetAll", [names.MANAGER]),
        (f"{names.INTROSPECTABLE}.Introspect", []),
        (f"{names.PEER}.Ping", []),
    ):
        done = bus.gdbus(member, *words, nobody=True)
        assert (done.returncode, done.stderr) == (0, "")
    done = bus.gdbus("Plan", "[]", "", "0", nobody=True)
    assert "org.journalkeeper1.Error.NotBtrfs" in done.stderr
    assert "journalkeeper works only on btrfs" in done.stderr


def test_root_may_without_polkit_and_nobody_may_not(bus: PrivateBus, daemon: Daemon) -> None:
    with ruled(bus, None):
        assert bus.gdbus("Resume").returncode == 0
        done = bus.gdbus("Resume", nobody=True)
        assert DENIED in done.stderr
        assert "try as root" in done.stderr


def test_polkit_permits_that_action_and_nothing_else(bus: PrivateBus, daemon: Daemon) -> None:
    with ruled(bus, MANAGE_FOR_NOBODY):
        assert bus.gdbus("Pause", "0", nobody=True).returncode == 0
        assert property_(bus, "Paused") is True
        assert property_(bus, "State") == "paused"
        assert bus.gdbus("Resume", nobody=True).returncode == 0
        assert property_(bus, "Paused") is False
        assert DENIED in bus.gdbus("Defragment", "[]", "", "0", nobody=True).stderr


def test_polkit_is_asked_for_a_dialog_only_where_the_call_allows_it(bus: PrivateBus, daemon: Daemon) -> None:
    """What polkit was asked is seen on the bus: the flag is the last but one argument."""
    words = ["busctl", f"--address={bus.address}", "--json=short", "--match=member='CheckAuthorization'", "monitor"]
    monitor = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def resume(allowed: str) -> None:
        words = [f"--allow-interactive-authorization={allowed}", "call", names.BUS_NAME, names.MANAGER_PATH]
        done = bus.run("busctl", f"--address={bus.address}", *words, names.MANAGER, "Resume", nobody=True)
        assert done.returncode != 0

    try:
        assert monitor.stdout is not None
        resume("yes")
        while not select.select([monitor.stdout], [], [], 0.2)[0]:
            resume("yes")  # the monitor was not there yet; 257 does not say when it is
        resume("no")
        asked = [json.loads(monitor.stdout.readline())["payload"]["data"]]
        while asked[-1][-2] != 0:
            asked.append(json.loads(monitor.stdout.readline())["payload"]["data"])
    finally:
        monitor.terminate()
        monitor.communicate()
    assert {flags for *_, flags, _ in asked[:-1]} == {1}
    assert {action for _, action, *_ in asked} == {names.ACTION_MANAGE}
    assert {subject[0] for subject, *_ in asked} == {"system-bus-name"}


# What is answered


WRONG = [
    (("Rescan", "7"), "InvalidArgs"),
    (("Pausen",), "UnknownMethod"),
    (("org.journalkeeper1.Nothing.Do",), "AccessDenied"),
    ((f"{names.PROPERTIES}.Get", names.MANAGER, "Nothing"), "UnknownProperty"),
    ((f"{names.PROPERTIES}.Get", "org.Nothing", "State"), "UnknownInterface"),
    ((f"{names.PROPERTIES}.Set", names.MANAGER, "Paused", "<true>"), "UnknownMethod"),
    ((f"{names.PROPERTIES}.GetAll", "x" * 1000), "UnknownInterface"),
    (("Cancel", "/org/journalkeeper1/job/77"), "org.journalkeeper1.Error.NoSuchJob"),
    (("Defragment", "['/etc/passwd']", "", "0"), "org.journalkeeper1.Error.InvalidArgument"),
    (("Plan", "[]", "", "64"), "org.journalkeeper1.Error.InvalidArgument"),
    (("ListFiles", "0"), "org.journalkeeper1.Error.Busy"),
]


@pytest.mark.parametrize(("words", "name"), WRONG, ids=lambda value: str(value)[:60])
def test_a_wrong_call_has_a_named_error(bus: PrivateBus, daemon: Daemon, words: tuple[str, ...], name: str) -> None:
    done = bus.gdbus(*words)
    assert done.returncode != 0
    assert re.search(rf"{re.escape(name)}: .+", done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_an_object_that_is_not_there_has_an_error(bus: PrivateBus, daemon: Daemon) -> None:
    for path in ("/nothing", "/org/journalkeeper1/job/1", "/org/journalkeeper1/file/_2fx", "/org/journalkeeper1/file"):
        done = bus.gdbus(f"{names.PROPERTIES}.GetAll", names.JOB, path=path)
        assert f"{names.BUS}.Error.UnknownObject: there is no object" in done.stderr, done.stderr


def test_a_job_that_comes_to_nothing_has_its_error_as_result(bus: PrivateBus, daemon: Daemon) -> None:
    done = bus.gdbus("Defragment", "[]", "", "0")
    found = re.search(r"/org/journalkeeper1/job/\d+", done.stdout)
    assert found is not None, done
    assert eventually(lambda: "Error.NotBtrfs" in bus.gdbus("Result", found[0], nobody=True).stderr)
    shown = [property_(bus, name) for name in ("Health", "HealthReasons", "State")]
    assert shown == ["ok", [], "idle"]
    assert str(property_(bus, "StateReason")).endswith("/journal is not on btrfs; there is nothing to do")
    assert not (daemon.state / NAME).exists()


# Days without a bus


def test_without_a_bus_the_service_runs_and_says_so_once(tmp_path: Path, journal: Path) -> None:
    with Daemon(tmp_path, journal, None) as daemon:
        assert eventually(lambda: "not on btrfs" in daemon.log())
        assert daemon.log().count("no connection to the system bus") == 1
        assert daemon.stop() == 0


def test_a_bus_that_nobody_listens_at_is_said_once_and_tried_again(tmp_path: Path, journal: Path) -> None:
    with PrivateBus() as bus:
        bus.stop()
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(str(bus.socket))
            with Daemon(tmp_path, journal, bus, wait=False) as daemon:
                refused = f"(unix:path={bus.socket}): Connection refused; the service works without it"
                assert eventually(lambda: daemon.logged(refused))
                os.kill(daemon.pid, signal.SIGSTOP)  # without a socket it would say "No such file or directory"
                bus.socket.unlink()
                bus.start()
                os.kill(daemon.pid, signal.SIGCONT)
                assert eventually(lambda: bus.has(names.BUS_NAME))
                assert daemon.log().count("no connection to the system bus") == 1


def test_a_bus_that_refuses_the_name_is_said_once(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error has the name of the connection, which is another one each time."""
    monkeypatch.setattr("tests.bus.DBUS", tmp_path)
    (tmp_path / "org.journalkeeper1.conf").write_text("<busconfig></busconfig>")
    with PrivateBus() as bus, Daemon(tmp_path, journal, bus, wait=False) as daemon:
        assert eventually(lambda: "is not allowed to own the service" in daemon.log())
        time.sleep(RETRY_S + 1)
        assert daemon.log().count("no connection to the system bus") == 1


def test_a_service_that_is_ready_can_be_called(tmp_path: Path, journal: Path) -> None:
    with PrivateBus() as bus:
        bus.freeze()
        try:
            with Daemon(tmp_path, journal, bus, wait=False) as daemon:
                time.sleep(BUS_S / 2)
                assert "READY=1" not in daemon.said
                bus.thaw()
                assert eventually(lambda: "READY=1" in daemon.said)
                assert bus.has(names.BUS_NAME)
                bus.freeze()
            with Daemon(tmp_path, journal, bus, wait=False) as daemon:
                assert eventually(lambda: "READY=1" in daemon.said)
        finally:
            bus.thaw()


def test_a_second_service_waits_for_the_name(tmp_path: Path, journal: Path) -> None:
    with PrivateBus() as bus, Daemon(tmp_path / "1", journal, bus) as one, Daemon(tmp_path / "2", journal, bus) as two:
        assert eventually(lambda: two.logged("<4>another process has the name org.journalkeeper1"))
        assert one.stop() == 0
        assert eventually(lambda: bus.gdbus("Resume").returncode == 0)  # the bus may know the first one's end later
        assert not one.logged("another process")
