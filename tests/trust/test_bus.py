# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a user at the bus can do to the service, and what it tells them: little.

A server over made-up files (tests/trust/server.py) on a dbus-daemon of its own. What is done to
real files is in tests/btrfs/test_bus_daemon.py, who may do what in tests/adapters/test_bus_private.py.
"""

from __future__ import annotations

import grp
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from journalkeeper.bus import names
from tests import bus as beds
from tests.bus import REPOSITORY, PrivateBus, RawClient, raw_call
from tests.daemon import memory_kib
from tests.nobody import NOBODY, as_nobody
from tests.patience import eventually
from tests.trust import server as made

pytestmark = pytest.mark.root

LIST: Final = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.OBJECT_MANAGER, "GetManagedObjects")
STATE: Final = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.PROPERTIES, "GetAll", "s", names.MANAGER)
PLAN: Final = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "Plan", "a{sv}", {})
LIMITS: Final = "org.freedesktop.DBus.Error.LimitsExceeded"


@pytest.fixture
def bus() -> Iterator[PrivateBus]:
    if reason := beds.missing():
        pytest.skip(reason)
    with PrivateBus() as bus:
        yield bus


class Served:
    """The server's process, and what it has said."""

    def __init__(self, bus: PrivateBus, log: Path, files: int, length: int) -> None:
        environment = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": bus.address, "PYTHONPATH": f"{REPOSITORY}"}
        words = [sys.executable, "-m", "tests.trust.server", f"{files}", f"{length}"]
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT)
        assert eventually(lambda: bus.has(names.BUS_NAME)), self.log()

    def log(self) -> str:
        return self._log.read_text()

    def rss_kib(self) -> int:
        return memory_kib(self.process.pid)


@pytest.fixture
def serve(bus: PrivateBus, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start the server with so many files whose names are so long."""
    with ExitStack() as stack:

        def start(files: int = 3, length: int = 0) -> Served:
            served = Served(bus, tmp_path / "log", files, length)
            stack.callback(served.process.wait)
            stack.callback(served.process.kill)
            return served

        yield start


def owner(bus: PrivateBus) -> str:
    """Who has the name: another connection would have another name."""
    return bus.call("org.freedesktop.DBus", "GetNameOwner", "s", names.BUS_NAME).stdout


def gdbus(bus: PrivateBus, member: str, *words: str, path: str = names.MANAGER_PATH, nobody: bool = False) -> Any:
    """A call by a program that says the names of errors."""
    method = member if "." in member else f"{names.MANAGER}.{member}"
    where = ["--address", bus.address, "--dest", names.BUS_NAME, "--object-path", path]
    return bus.run("gdbus", "call", *where, "--method", method, *words, nobody=nobody)


@contextmanager
def hostile(attack: Callable[[], None]) -> Iterator[None]:
    """A process that is nobody's and does `attack`, until it is killed."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            attack()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def numbered(question: bytes, serial: int) -> bytes:
    """The same call once more: a bus refuses a second one of the same serial while the first is not answered."""
    return question[:8] + serial.to_bytes(4, "little") + question[12:]


def never_reads(bus: PrivateBus, questions: list[bytes], connections: int, times: int) -> Callable[[], None]:
    """Ask so often on so many connections, and read no answer."""

    def attack() -> None:
        clients = [RawClient(str(bus.socket)) for _ in range(connections)]
        for client in clients:
            client.socket.setblocking(False)
        wait = selectors.DefaultSelector()
        left = {}
        for client in clients:
            left[client] = b"".join(numbered(one, 3 + n) for n, one in enumerate(questions * times))
            wait.register(client.socket, selectors.EVENT_WRITE, client)
        while any(left.values()):
            for key, _ in wait.select():
                sent = key.data.socket.send(left[key.data][: 1 << 16])
                left[key.data] = left[key.data][sent:]
                if not left[key.data]:
                    wait.unregister(key.fileobj)
        signal.pause()  # or the connections would be closed

    return attack


# Its place on the bus

FLOODS: Final = [([LIST], 10, 20), ([STATE], 20, 2000)]


@pytest.mark.slow
@pytest.mark.parametrize(("questions", "connections", "times"), FLOODS, ids=["lists", "states"])
def test_a_user_who_reads_no_answer_takes_nobody_the_service(
    bus: PrivateBus, serve: Callable[..., Served], questions: list[bytes], connections: int, times: int
) -> None:
    """All answers together are several times of what a bus keeps of a service (127 MiB)."""
    served = serve(5000, 400)
    before, resident = owner(bus), served.rss_kib()
    waits: list[float] = []
    with hostile(never_reads(bus, questions, connections, times)):
        end = time.monotonic() + 40
        while time.monotonic() < end:
            began = time.monotonic()
            with RawClient(str(bus.socket)) as client:
                client.send(STATE)
                client.wait()
            waits.append(time.monotonic() - began)
            time.sleep(0.1)
        assert owner(bus) == before
        done = gdbus(bus, f"{names.OBJECT_MANAGER}.GetManagedObjects")
        assert done.returncode == 0, (done.stderr, served.log())
    assert max(waits) < 15
    assert "no system bus" not in served.log()
    assert served.rss_kib() - resident < 64 << 10


def test_a_user_who_reads_is_never_refused(bus: PrivateBus, serve: Callable[..., Served]) -> None:
    """Three times of what may be unread, one answer after the other."""
    served = serve(1000, 100)

    def reads() -> int:
        size = 0
        with RawClient(str(bus.socket)) as client:
            heard = answers(client)
            while size < 24 << 20:
                client.send(LIST)
                kind, length = next(heard)
                assert kind == beds.METHOD_RETURN
                size += length
        return size

    assert as_nobody(reads) >= 24 << 20
    assert "no system bus" not in served.log()


def answers(client: RawClient) -> Iterator[tuple[int, int]]:
    """The type and length of each answer."""
    data = b""
    while True:
        part = client.socket.recv(1 << 20)
        assert part
        data += part
        while len(data) >= 16:
            length = 16 + (int.from_bytes(data[12:16], "little") + 7) // 8 * 8 + int.from_bytes(data[4:8], "little")
            if len(data) < length:
                break
            kind, data = data[1], data[length:]
            if kind in {beds.METHOD_RETURN, beds.ERROR}:
                yield kind, length


@pytest.mark.slow
@pytest.mark.parametrize(
    ("member", "files"),
    [(f"{names.OBJECT_MANAGER}.GetManagedObjects", 20_000), (f"{names.INTROSPECTABLE}.Introspect", 80_000)],
    ids=["list", "introspection"],
)
def test_more_files_than_a_message_carries_are_an_error_and_no_end(
    bus: PrivateBus, serve: Callable[..., Served], member: str, files: int
) -> None:
    served = serve(files, 450)
    before = owner(bus)
    path = names.FILE_PATHS if "Introspect" in member else names.MANAGER_PATH
    done = gdbus(bus, member, path=path, nobody=True)
    assert LIMITS in done.stderr
    assert owner(bus) == before
    assert "no system bus" not in served.log()
    named = names.file_path(made.file(7, 450).path)
    assert gdbus(bus, f"{names.PROPERTIES}.GetAll", names.FILE, path=named).returncode == 0


def test_a_list_is_what_its_objects_are_one_by_one(bus: PrivateBus, serve: Callable[..., Served]) -> None:
    """It is put together from bytes; busctl reads them strictly."""
    serve(50, 3)
    words = ("--json=short", "call", names.BUS_NAME, names.MANAGER_PATH, names.OBJECT_MANAGER, "GetManagedObjects")
    (listed,) = json.loads(bus.run("busctl", f"--address={bus.address}", *words, check=True).stdout)["data"]
    assert len(listed) == 50
    for path, interfaces in list(listed.items())[:5]:
        one = ("--json=short", "call", names.BUS_NAME, path, names.PROPERTIES, "GetAll", "s", names.FILE)
        (alone,) = json.loads(bus.run("busctl", f"--address={bus.address}", *one, check=True).stdout)["data"]
        assert interfaces == {names.FILE: alone}


@pytest.mark.parametrize("length", [1 << 14, 20_000, 20_001, 20_007, 1 << 20])
def test_a_call_of_a_very_long_path_is_answered(bus: PrivateBus, serve: Callable[..., Served], length: int) -> None:
    serve()

    def asks() -> list[tuple[int, int]]:
        path = "/" + "x" * (length - 1)
        with RawClient(str(bus.socket)) as client:
            client.socket.settimeout(60)
            client.send(raw_call(names.BUS_NAME, path, names.PROPERTIES, "GetAll", "s", names.MANAGER) + STATE)
            heard = answers(client)
            return [next(heard), next(heard)]

    (kind, size), _ = as_nobody(asks)
    assert kind == beds.ERROR
    assert size < 1000


def test_plans_and_lists_of_one_user_keep_no_other_from_theirs(bus: PrivateBus, serve: Callable[..., Served]) -> None:
    """Plans without a path never end here."""
    serve()
    with hostile(never_reads(bus, [PLAN, LIST], 10, 20)):
        time.sleep(1)
        done = gdbus(bus, "Plan", "{'paths': <['/var/log/journal/m/a.journal']>}")
        assert done.returncode == 0, done.stderr
        assert gdbus(bus, f"{names.OBJECT_MANAGER}.GetManagedObjects").returncode == 0


@pytest.mark.slow
def test_a_bus_that_hung_finds_the_service_again(bus: PrivateBus, serve: Callable[..., Served]) -> None:
    """It takes nothing for longer than we wait; the connection is ours to end."""
    served = serve(1000, 200)
    before = owner(bus)
    (pid,) = json.loads(
        bus.run(
            *("busctl", f"--address={bus.address}", "--json=short", "call", "org.freedesktop.DBus"),
            *("/org/freedesktop/DBus", "org.freedesktop.DBus", "GetConnectionUnixProcessID", "s"),
            "org.freedesktop.DBus",
        ).stdout
    )["data"]
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(str(bus.socket))) for _ in range(20)]
        for client in clients:
            client.send(b"".join(numbered(LIST, serial) for serial in range(3, 8)))
        time.sleep(0.5)
        os.kill(pid, signal.SIGSTOP)
        stack.callback(os.kill, pid, signal.SIGCONT)
        assert eventually(lambda: "no system bus" in served.log())
    assert eventually(lambda: bus.has(names.BUS_NAME))
    assert owner(bus) != before
    assert gdbus(bus, f"{names.PEER}.Ping").returncode == 0


# What it tells of its inside


def test_a_mistake_of_ours_is_logged_once_and_the_caller_hears_nothing_of_it(
    bus: PrivateBus, serve: Callable[..., Served]
) -> None:
    served = serve()
    for _ in range(2):
        done = gdbus(bus, "Plan", "{'paths': <['/var/log/journal/m/mistake.journal']>}", nobody=True)
        assert f"{names.FAILED}: this is a mistake in journalkeeper; its log says more" in done.stderr
        assert "secret" not in done.stderr
    assert served.log().count("Traceback") == 1
    assert "RuntimeError: a secret of the inside" in served.log()


def test_a_job_that_meets_a_mistake_of_ours_ends_and_the_next_one_begins(
    bus: PrivateBus, serve: Callable[..., Served]
) -> None:
    served = serve()
    job = gdbus(bus, "Defragment", f"{made.TOP}/m/mistake.journal", "{}").stdout.split("'")[1]
    assert eventually(lambda: "its log says more" in gdbus(bus, "Result", job).stderr)
    other = gdbus(bus, "DefragmentAll", "{}").stdout.split("'")[1]
    assert eventually(lambda: "{}" in gdbus(bus, "Result", other).stdout)
    assert served.log().count("Traceback") == 1


# What it tells of users


def entries(bus: PrivateBus, number: int) -> dict[str, Any]:
    """What the caller is shown of a file's inside, by Get, GetAll and the list; it is the same."""
    path = names.file_path(made.file(number, 0).path)
    prefix = ("busctl", f"--address={bus.address}", "--json=short")
    words = (*prefix, "call", names.BUS_NAME)
    one = subprocess.run([*words, path, names.PROPERTIES, "GetAll", "s", names.FILE], capture_output=True, check=True)
    listed = subprocess.run(
        [*words, names.MANAGER_PATH, names.OBJECT_MANAGER, "GetManagedObjects"], capture_output=True, check=True
    )
    (shown,), (objects,) = json.loads(one.stdout)["data"], json.loads(listed.stdout)["data"]
    assert objects[path][names.FILE] == shown
    got = (*prefix, "get-property", names.BUS_NAME, path, names.FILE, "Entries")
    assert json.loads(subprocess.run(got, capture_output=True, check=True).stdout) == shown["Entries"]
    return {name: shown[name]["data"] for name in ("Entries", "HeadTimeUSec", "TailTimeUSec", "Detail")}


KNOWN: Final = {"Entries": 99, "HeadTimeUSec": 11, "TailTimeUSec": 22, "Detail": "changed 3s ago"}
HIDDEN: Final = {"Entries": 0, "HeadTimeUSec": 0, "TailTimeUSec": 0, "Detail": ""}


def test_entries_and_times_of_a_users_journal_are_for_that_user_and_root(
    bus: PrivateBus, serve: Callable[..., Served]
) -> None:
    serve()
    system, other, nobodys = range(3)
    assert [entries(bus, number) for number in (system, other, nobodys)] == [KNOWN] * 3
    assert as_nobody(lambda: [entries(bus, number) for number in (system, other, nobodys)]) == [KNOWN, HIDDEN, KNOWN]


def test_who_may_read_every_journal_may_see_what_is_in_it(bus: PrivateBus, serve: Callable[..., Served]) -> None:
    serve()

    def reader() -> dict[str, Any]:
        return entries(bus, 1)

    child_groups = [grp.getgrnam("systemd-journal").gr_gid]
    assert as_nobody(reader) == HIDDEN
    assert as_nobody(reader, child_groups) == KNOWN


def test_a_plans_details_of_a_users_journal_are_for_that_user_and_root(
    bus: PrivateBus, serve: Callable[..., Served]
) -> None:
    serve()

    def details(*, nobody: bool) -> list[str]:
        words = ("--json=short", "call", names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "Plan", "a{sv}")
        asked = ("1", "paths", "as", "1", "/var/log/journal/m/a.journal")
        done = bus.run("busctl", f"--address={bus.address}", *words, *asked, nobody=nobody, check=True)
        return [one["detail"] for one in json.loads(json.loads(done.stdout)["data"][0])["skipped"]]

    assert details(nobody=False) == ["changed 3s ago"] * 3
    assert details(nobody=True) == ["changed 3s ago", "", "changed 3s ago"]
