# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a user at the bus can do to the service, and what it tells them: little.

A server over made-up files (tests/trust/server.py) on a dbus-daemon of its own. What is done to
real files is in tests/btrfs/test_bus_daemon.py, who may do what in tests/adapters/test_bus_private.py.
"""

from __future__ import annotations

import itertools
import json
import os
import pwd
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from jeepney import Stats, message_bus

from journalkeeper.bus import names
from journalkeeper.bus.callers import BURST, LATE_MOST_S, LONG_COST, RATE_PER_S, UNREAD_MOST
from journalkeeper.bus.client import Service
from journalkeeper.bus.connection import CALL_MOST, FIELDS_MOST
from journalkeeper.keeper import BusyBusError
from tests import bus as beds
from tests.bus import PrivateBus, RawClient, raw_call
from tests.nobody import NOBODY, as_nobody
from tests.trust import server as made
from tests.trust.caller import STATE, Served, ask_state, find_owner

pytestmark = pytest.mark.root

DEBT: Final = LATE_MOST_S * RATE_PER_S
"""Calls that are answered late."""

LIST: Final = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "ListFiles", "t", 0)
PLAN: Final = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "Plan", "asst", [], "", 0)
INTROSPECT: Final = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.INTROSPECTABLE, "Introspect")


@pytest.fixture
def bus() -> Iterator[PrivateBus]:
    if reason := beds.missing():
        pytest.skip(reason)
    with PrivateBus() as bus:
        yield bus


@pytest.fixture
def serve(bus: PrivateBus, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start the server with so many files whose names are so long."""
    with ExitStack() as stack:

        def start(files: int = 3, length: int = 0) -> Served:
            served = Served(bus, tmp_path / "log", f"{files}", f"{length}")
            stack.callback(served.process.wait)
            stack.callback(served.process.kill)
            return served

        yield start


@contextmanager
def hostile(attack: Callable[[], None], uid: int = NOBODY) -> Iterator[None]:
    """A process of a user that does `attack`, until it is killed."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
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


def floods(bus: PrivateBus, questions: list[bytes], connections: int, times: int | None = None) -> Callable[[], None]:
    """Ask so often on so many connections, and read no answer; without `times` ask without end, and read answers."""

    def attack() -> None:
        clients = [RawClient(str(bus.socket)) for _ in range(connections)]  # which stay open
        wait = selectors.DefaultSelector()
        for client in clients:
            client.socket.setblocking(False)
            calls = itertools.cycle(questions) if times is None else iter(questions * times)
            events = selectors.EVENT_WRITE | (selectors.EVENT_READ if times is None else 0)
            numbers = map(numbered, calls, itertools.count(3))
            wait.register(client.socket, events, [client, numbers, b""])
        while True:
            for key, events in wait.select():
                client, numbers, left = key.data
                if events & selectors.EVENT_READ:
                    client.socket.recv(1 << 16)
                if events & selectors.EVENT_WRITE:
                    left = left or memoryview(b"".join(itertools.islice(numbers, 50)))
                    key.data[2] = left[client.socket.send(left[: 1 << 16]) :]
                    if not left:
                        wait.unregister(client.socket)

    return attack


# Its place on the bus


def make_array(signature: str, empty: list[Any], pad: int, after: int) -> bytes:
    """Return a Plan whose array has 28 MiB of zeros: empty arrays or texts, of which the last lacks `pad` bytes."""
    call = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "Plan", signature, *empty)
    length = 28 << 20
    body = (length - pad).to_bytes(4, "little") + bytes(length + after)
    old = int.from_bytes(call[4:8], "little")
    return call[:4] + len(body).to_bytes(4, "little") + call[8 : len(call) - old] + body


def make_rule(number: int) -> bytes:
    """Return a call that adds a match rule for the service's signals to the caller's connection."""
    rule = f"type='signal',sender='{names.BUS_NAME}',path_namespace='{names.MANAGER_PATH}',arg0='{number}'"
    return raw_call(names.BUS, message_bus.object_path, names.BUS, "AddMatch", "s", rule)


FLOODS: Final[dict[str, tuple[Callable[[], list[bytes]], int, int]]] = {
    "lists": (lambda: [LIST], 20, 200),
    "states": (lambda: [STATE], 20, 2000),
    "introspections": (lambda: [INTROSPECT], 20, 2000),
    "arrays of a wrong signature": (lambda: [make_array("aas", [[]], 0, 0)], 4, 2),
    "arrays of the right signature": (lambda: [make_array("asst", [[], "", 0], 3, 20)], 4, 2),
    "match rules": (lambda: [make_rule(number) for number in range(512)], 20, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make_questions", "connections", "times"), FLOODS.values(), ids=FLOODS.keys())
def test_a_user_who_reads_no_answer_keeps_neither_the_bus_nor_its_memory(
    bus: PrivateBus,
    serve: Callable[..., Served],
    make_questions: Callable[[], list[bytes]],
    connections: int,
    times: int,
) -> None:
    """What dbus-daemon keeps of its own errors for such a caller is the bus's affair.

    The service hears from the bus what is unread. While a slow bus does not answer, the rate alone limits the answers.
    """
    served = serve(5000, 200)
    before, resident = find_owner(bus), served.rss_kib()
    kept: list[int] = []
    slowest_s = 0.0
    with hostile(floods(bus, make_questions(), connections, times)):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            began_s = time.monotonic()
            ask_state(bus)
            kept.append(kept_of_ours(bus))
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            time.sleep(0.1)
        assert find_owner(bus) == before
        done = bus.gdbus("ListFiles", "0")
        assert done.returncode == 0, (done.stderr, served.log())
    answers_most = (BURST + DEBT + RATE_PER_S * slowest_s) / LONG_COST + 2
    assert max(kept) < UNREAD_MOST + answers_most * (1 << 20)
    assert "no connection to the system bus" not in served.log()
    assert served.rss_kib() - resident < 64 << 10


CROWD: Final[list[tuple[str, list[str]]]] = [("as", [])] * 8000
FIRST: Final = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "Plan", "av", CROWD)
LONG: Final = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "Defragment", "asst", [""] * 15_000, "", 0)
USERS: Final = [user.pw_uid for user in pwd.getpwall() if user.pw_uid]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("questions", "connections", "times", "users"),
    [([FIRST], 240, 3, [NOBODY]), ([STATE, LONG], 9, 60, USERS)],
    ids=["first calls, which wait until the bus has named their callers", "long calls of all users known here"],
)
def test_a_crowd_takes_little_memory(  # noqa: PLR0917 - a row of a table, and fixtures
    bus: PrivateBus,
    serve: Callable[..., Served],
    questions: list[bytes],
    connections: int,
    times: int,
    users: list[int],
) -> None:
    served = serve()
    resident = served.rss_kib()
    with ExitStack() as crowd:
        for uid in users:
            crowd.enter_context(hostile(floods(bus, questions, connections, times), uid))
        end = time.monotonic() + 10
        while time.monotonic() < end:
            if users == [NOBODY]:  # one user's crowd does not delay an answer to root
                ask_state(bus)
            assert served.rss_kib() - resident < 96 << 10
            time.sleep(0.1)


@pytest.mark.slow
def test_answers_to_a_crowd_do_not_stand_before_those_to_root(bus: PrivateBus, serve: Callable[..., Served]) -> None:
    """A busy dbus-daemon reads 2 KiB of the service's answers a round: 73 s for root, where the bus itself took 0.6."""
    serve()
    question = raw_call(names.BUS, message_bus.object_path, names.BUS, "GetId")
    with hostile(floods(bus, [STATE], 150)), RawClient(str(bus.socket)) as client:
        time.sleep(2)
        bus_s = max(wait_for(client, numbered(question, 3 + n)) for n in range(3))  # one may come at once
        service_s = wait_for(client, numbered(STATE, 9))
    assert service_s < 30 * bus_s


CROWDS: Final = [(STATE, 150)], [(STATE[:2] + b"\1" + STATE[3:], 200)], [(STATE, 15), (LIST, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("crowds", CROWDS, ids=["states", "calls that want no answer", "a page"])
def test_a_service_in_a_flood_is_not_hung(
    bus: PrivateBus, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, crowds: list[tuple[bytes, int]]
) -> None:
    """It is found, or the bus is busy. HungError would have a restart as its remedy.

    dbus-daemon limits the calls of a user that wait for an answer, and not those that want none. A page is read in 500
    parts.
    """
    served = serve(5000, 200)
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
    with ExitStack() as stack:
        for uid, (question, connections) in zip(USERS, crowds, strict=False):
            stack.enter_context(hostile(floods(bus, [question], connections), uid))
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with suppress(BusyBusError), Service.find() or pytest.fail("no service"):
                pass
    assert "Traceback" not in served.log()


def wait_for(client: RawClient, question: bytes) -> float:
    """Return how many seconds the answer took."""
    began_s = time.monotonic()
    client.send(question)
    client.wait()
    return time.monotonic() - began_s


def kept_of_ours(bus: PrivateBus) -> int:
    """The bytes of the service's messages that the bus keeps because no caller has read them."""
    words = ("call", names.BUS, message_bus.object_path, Stats.interface, "GetConnectionStats", "s", names.BUS_NAME)
    said = bus.run("busctl", f"--address={bus.address}", "--json=short", *words, check=True).stdout
    return int(json.loads(said)["data"][0]["IncomingBytes"]["data"])


def test_a_few_calls_above_the_rate_are_answered_late(bus: PrivateBus, serve: Callable[..., Served]) -> None:
    """So a reader of all pages, who waits for each, gets the 21st, too."""
    serve()
    calls = int((BURST + DEBT) / LONG_COST) - 1

    def asks() -> float:
        with RawClient(str(bus.socket)) as client:
            client.send(STATE)  # the bus says who this is
            client.wait()
            began_s = time.monotonic()
            client.send(b"".join(numbered(LIST, serial) for serial in range(3, 3 + calls)))
            answered = 0
            while answered < calls:
                answered += client.replies()
            assert not client.errors
            return time.monotonic() - began_s

    assert as_nobody(asks) > 0.4 * LATE_MOST_S


@pytest.mark.parametrize(
    ("path", "text", "read"),
    [(2_000, 1, True), (FIELDS_MOST, 1, False), (1, 100_000, True), (1, CALL_MOST, False), (1, 1 << 20, False)],
)
def test_a_message_that_is_too_long_is_dropped_and_the_next_call_is_answered(
    bus: PrivateBus, serve: Callable[..., Served], path: int, text: int, *, read: bool
) -> None:
    """A long one that is read is an error, for there is no such path."""
    serve()

    def asks() -> tuple[int, int, int]:
        with RawClient(str(bus.socket)) as client:
            client.send(raw_call(names.BUS_NAME, "/" + "x" * path, names.PROPERTIES, "GetAll", "s", "x" * text))
            client.send(numbered(STATE, 3))
            answered = 0
            while answered < 1 + read:
                answered += client.replies()
            return answered, client.errors, client.last

    assert as_nobody(asks) == (1 + read, read, beds.METHOD_RETURN)


def test_plans_and_lists_of_one_user_keep_no_other_from_theirs(bus: PrivateBus, serve: Callable[..., Served]) -> None:
    """Plans without a path never end here."""
    serve()
    with hostile(floods(bus, [PLAN, LIST], 10, 20)):
        time.sleep(1)
        done = bus.gdbus("Plan", "['/var/log/journal/m/a.journal']", "", "0")
        assert done.returncode == 0, done.stderr
        assert bus.gdbus("ListFiles", "0").returncode == 0


# What it tells of its inside


def test_a_mistake_of_ours_is_logged_once_and_the_caller_hears_nothing_of_it(
    bus: PrivateBus, serve: Callable[..., Served]
) -> None:
    served = serve()
    for _ in range(2):
        done = bus.gdbus("Plan", "['/var/log/journal/m/mistake.journal']", "", "0", nobody=True)
        assert f"{names.FAILED}: bug in journalkeeper; its log has the traceback" in done.stderr
        assert "secret" not in done.stderr
    assert served.log().count("Traceback") == 1
    assert "RuntimeError: a secret of the inside" in served.log()


# What it tells of users


def list_known(bus: PrivateBus) -> list[dict[str, Any]]:
    """What the caller is shown of each file's content, by the number of the file."""
    call = ("call", names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "ListFiles", "t", "0")
    done = subprocess.run(
        ["busctl", f"--address={bus.address}", "--json=short", *call], capture_output=True, check=True
    )
    records = {one["Path"]["data"]: one for one in json.loads(done.stdout)["data"][0]}
    ordered = [records[made.file(number, 0).path] for number in range(3)]
    return [{name: one[name]["data"] for name in KNOWN if name in one} for one in ordered]


KNOWN: Final = {"Entries": 99, "HeadTimeUSec": 11, "TailTimeUSec": 22, "Detail": "changed 3s ago"}


def test_a_users_journal_is_readable_for_that_user_and_root(bus: PrivateBus, serve: Callable[..., Served]) -> None:
    """The files are the system's, another user's and nobody's."""
    serve()
    assert list_known(bus) == [KNOWN] * 3
    assert as_nobody(lambda: list_known(bus)) == [KNOWN, {}, KNOWN]


def test_a_plans_details_of_a_users_journal_are_for_that_user_and_root(
    bus: PrivateBus, serve: Callable[..., Served]
) -> None:
    serve()

    def details(*, nobody: bool) -> list[str]:
        words = ("--json=short", "call", names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "Plan", "asst")
        asked = ("1", "/var/log/journal/m/a.journal", "", "0")
        done = bus.run("busctl", f"--address={bus.address}", *words, *asked, nobody=nobody, check=True)
        return [one["detail"] for one in json.loads(json.loads(done.stdout)["data"][0])["skipped"]]

    assert details(nobody=False) == ["changed 3s ago"] * 3
    assert details(nobody=True) == ["changed 3s ago", "", "changed 3s ago"]
