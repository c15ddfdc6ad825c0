# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line as a client of a service that does what no real one does on demand.

A real bus, and a service on it that answers as a test says. The real service is met in
tests/btrfs/test_cli_bus.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from jeepney import Message, new_error

from journalkeeper import __version__
from journalkeeper.bus import client, names
from journalkeeper.bus.client import Service
from journalkeeper.bus.connection import Received
from journalkeeper.bus.objects import to_values
from journalkeeper.cli.context import Context
from journalkeeper.cli.output import Output
from journalkeeper.cli.parser import parse
from journalkeeper.cli.work import make_request
from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.history import state
from journalkeeper.keeper import BusyBusError
from journalkeeper.model import Plan, Request
from journalkeeper.model.manager import Facts, Finding, Manager, Severity
from journalkeeper.model.run import Progress, Report, decode_report
from journalkeeper.model.schema import to_json
from tests.adapters.command import Typed
from tests.bus import FakePeer, PrivateBus, reply
from tests.patience import PATIENCE_S

JOB = names.job_path(7)
BUSY = str(BusyBusError())
HUNG = "journalkeeper.service runs and does not answer"
DOCUMENT = to_json(Report(Plan({}, (), ()), (), 0, 0.0, ()))
PLAN: dict[str, Any] = {"window": {}, "actions": [], "skipped": []}
KINDS = {bool: "b", str: "s", int: "t", list: "as"}
RUNNING = {"State": "running", "FileNumber": 1, "FileTotal": 2, "File": "/j/a", "BytesDone": 5, "BytesTotal": 10}


def _refuse(message: Received, name: str, text: str) -> Message:
    return new_error(message, name, "s", (text,))


class FakeService(FakePeer):
    """Has the service's name. `manager` and `job` are properties; a test may replace each answer."""

    name = names.BUS_NAME

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.manager: dict[str, Any] = {"Version": __version__, "State": "idle", "Directories": ["/var/log/journal"]}
        self.job: dict[str, Any] = RUNNING
        self.result: str | tuple[str, str] = json.dumps(DOCUMENT)
        self.plan: dict[str, Any] = PLAN
        self.refusal: tuple[str, str] | None = None
        self.on_defragment: Callable[[FakeService], None] = lambda fake: fake.end_job()
        self.is_over = self.refuses_result = self.silent = False
        self.waiting: Received | None = None
        self.on_question: Callable[[], object] | None = None
        self.calls: list[str] = []

    def answer(self, message: Received) -> Message | None:
        if self.on_question is not None:
            self.on_question()
        if self.silent:
            return None
        self.calls.append(message.member)
        if message.path == JOB and self.is_over:
            return _refuse(message, f"{names.BUS}.Error.UnknownObject", "there is no object")
        if message.member == "Result" and not self.is_over and not self.refuses_result:
            self.waiting = message
            return None
        if message.member == "Cancel":
            self.loop.call_later(3 * client.POLL_S, self.end_job)
        if message.member == "Defragment" and self.refusal is None:
            self.loop.call_soon(self.on_defragment, self)
        return self._answer_at_once(message)

    def _answer_at_once(self, message: Received) -> Message:
        if message.member == "GetAll":
            found = self.manager if message.path == names.MANAGER_PATH else self.job
            values = {name: one if type(one) is tuple else (KINDS[type(one)], one) for name, one in found.items()}
            return reply(message, "a{sv}", values)
        if message.member == "Defragment":
            return _refuse(message, *self.refusal) if self.refusal else reply(message, "o", JOB)
        answer = {"Result": self.result, "Plan": json.dumps(self.plan), "Cancel": ""}[message.member]
        return reply(message, "s", answer) if isinstance(answer, str) else _refuse(message, *answer)

    def end_job(self) -> None:
        """The job is over."""
        self.is_over = True
        answer = None if self.waiting is None else self.answer(self.waiting)
        if answer is not None:
            self.bus.send(answer)


@pytest.fixture
def fake(bus: PrivateBus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeService]:
    """A service, where the command line looks for it; this machine's own journals are nobody's test."""

    def not_here(_: Context) -> None:
        raise AssertionError("the work was to be done by the service")

    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setattr(state, "DEFAULT", os.fspath(tmp_path))
    (tmp_path / state.DAEMON_LOCK).touch()
    monkeypatch.setattr(Context, "make_engine", not_here)
    for limit in ("ANSWER_S", "BUSY_S", "CONNECT_S"):
        monkeypatch.setattr(client, limit, PATIENCE_S)
    with FakeService(bus.address) as service:
        yield service


def defragmented() -> tuple[Report, list[Progress]]:
    drawn: list[Progress] = []
    with Service.find() or pytest.fail("no service") as service:
        return service.defragment(Request(now=True), on_progress=drawn.append, stop=lambda: False), drawn


pytestmark = pytest.mark.root


def test_progress_is_told_as_the_job_gets_on(fake: FakeService) -> None:
    def go_on() -> None:
        asked = fake.calls.count("GetAll")
        fake.job = {"State": "queued"} if asked < 2 else RUNNING
        if asked == 4 and not fake.is_over:
            fake.end_job()

    fake.on_question, fake.on_defragment = go_on, lambda _: None
    _, drawn = defragmented()
    assert drawn == [Progress(0, 0, client.QUEUED, 0, 0), *[Progress(1, 2, "/j/a", 5, 10)] * 2]


def test_a_job_is_waited_for_while_the_service_does_not_answer(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(service: FakeService) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.4, setattr, service, "silent", True)
        loop.call_later(1.2, setattr, service, "silent", False)
        loop.call_later(1.6, service.end_job)

    monkeypatch.setattr(client, "CALL_S", 0.2)
    fake.on_defragment = work
    assert defragmented()[0] == decode_report(DOCUMENT)


def test_a_refused_result_is_an_error_at_once(fake: FakeService, typed: Typed) -> None:
    fake.on_defragment = lambda service: setattr(service, "refuses_result", True)
    fake.result = names.LIMITS_EXCEEDED, "8 calls are under way already"
    assert typed("defrag") == (1, "", "journalkeeper: 8 calls are under way already\n")
    assert fake.calls.count("GetAll") < 5


def test_a_wish_to_stop_cancels_the_job_once(fake: FakeService) -> None:
    fake.on_defragment = lambda _: None
    with Service.find() or pytest.fail("no service") as service:
        service.defragment(Request(), on_progress=lambda _: None, stop=lambda: True)
    assert fake.calls.count("Cancel") == 1


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        (names.ACCESS_DENIED, 1, "defrag needs root, try sudo: it is so"),
        *((one, 1, "it is so") for one in (f"{names.BUS_NAME}.Error.Busy", names.FAILED, f"{names.BUS}.Error.Failed")),
        (f"{names.BUS_NAME}.Error.InvalidArgument", 2, "it is so"),
    ],
)
def test_a_refusal_of_the_service_is_one_line_and_an_exit_status(
    fake: FakeService, typed: Typed, name: str, status: int, says: str
) -> None:
    fake.refusal = name, "it is so"
    said = typed("defrag", "--now")
    assert (said.status, said.out, said.err.count("\n")) == (status, "", 1)
    assert says in said.err


def test_a_job_that_came_to_nothing_and_a_service_that_ends_before_it_are_said(fake: FakeService, typed: Typed) -> None:
    fake.result = (f"{names.BUS_NAME}.Error.NotBtrfs", "/var/log/journal: not on btrfs")
    assert typed("defrag") == (1, "", "journalkeeper: /var/log/journal: not on btrfs\n")
    fake.is_over, fake.on_defragment = False, lambda service: service.end()
    line = "journalkeeper: the service has ended; `journalkeeper history` shows what it did\n"
    assert typed("defrag") == (1, "", line)


def test_a_bus_that_ends_before_the_job_is_said(bus: PrivateBus, fake: FakeService, typed: Typed) -> None:
    """A killed bus cannot say that the service's name has no owner any more."""
    fake.on_defragment = lambda _: threading.Timer(0.5, bus.kill).start()
    try:
        assert typed("defrag") == (1, "", f"journalkeeper: {client.LOST}\n")
    finally:
        bus.stop()
        bus.start()


@pytest.mark.parametrize("words", [("plan",), ("defrag",)])
def test_a_service_of_another_version_gets_no_work(fake: FakeService, typed: Typed, words: tuple[str, ...]) -> None:
    fake.manager["Version"] = "9"
    error = f"the service is still version 9, and {__version__} is installed; systemctl restart journalkeeper.service"
    assert typed(*words) == (1, "", f"journalkeeper: {error}\n")
    assert set(fake.calls) == {"GetAll"}


def test_rows_that_the_service_left_out_are_counted(fake: FakeService, typed: Typed) -> None:
    fake.plan = {**PLAN, "omitted": 1234}
    fake.result = json.dumps({**DOCUMENT, "omitted": 1234})
    for words in (["plan"], ["defrag"]):
        assert "1,234 rows do not fit the service's answer" in typed(*words).err


def asked(*words: str) -> bool:
    """Whether a command line is for the service; nothing is done."""
    args = parse(["defrag", *words])
    with Context(args, Output(args)).find_service_for(make_request(args)) or nullcontext() as service:
        return service is not None


@pytest.mark.parametrize(
    "words",
    [
        ["--before-shutdown"],
        ["-D", "/var/log/journal"],
        ["--config", "/dev/null"],
        ["/elsewhere/a.journal"],
        ["/var/log/journal/abc/a.journal", "/var/log/journals/a.journal"],
        [f"/var/log/journal/abc/{number:0120}.journal" for number in range(500)],
        ["/var/log/journal/ü/a.journal"],  # on the bus, each byte of another character is escaped
    ],
)
def test_paths_that_the_service_does_not_watch_are_not_asked_of_it(fake: FakeService, words: list[str]) -> None:
    assert not asked(*words)
    assert asked("/var/log/journal/abc/a.journal")


def test_only_this_hosts_service_is_asked(fake: FakeService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asked()
    fake.manager["Directories"] = ["/var/log/journal", "/srv/journal"]
    assert not asked()
    fake.manager["Directories"] = ["/var/log/journal"]
    monkeypatch.setenv("STATE_DIRECTORY", os.fspath(tmp_path / "own"))
    assert not asked()


def test_a_finding_is_read_from_the_bus_as_the_service_made_it(fake: FakeService) -> None:
    facts: Facts = {"files": 3, "below": -1, "share": 0.5, "name": "/j/a", "names": ["/j/a", "/j/b"]}
    found = Finding("files-failing", Severity.PROBLEM, facts, "3 files fail. Try: nothing.", ("first", "second"))
    fake.manager["Findings"] = to_values(Manager(findings=(found, found)))["Findings"]
    with Service.find() or pytest.fail("no service") as service:
        assert (service.found.findings, service.found.history) == ((found, found), None)


def test_a_service_that_does_not_answer_is_hung_and_the_record_is_shown(
    fake: FakeService, typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake.silent = True
    monkeypatch.setattr(client, "ANSWER_S", 1.5)
    looks = Engine(Config(), directories=(os.fspath(tmp_path),), state_directory=os.fspath(tmp_path))
    monkeypatch.setattr(Context, "make_engine", lambda *_: looks)
    said = typed("status")
    assert said.status == 1
    assert said.words.startswith(f"Act: {HUNG}. Try: systemctl restart journalkeeper.service ")
    assert f"Service: {HUNG}\n" in said.out
    assert "Last run: none yet" in said.out
    document = json.loads(typed("status", "-j").out)
    assert (document["health"], document["health_reasons"][0].split(":")[0]) == ("act", "keeper-hung")


@pytest.mark.parametrize("words", [("plan",), ("defrag",), ("defrag", "-n"), ("pause",), ("resume",)])
def test_every_command_for_a_service_that_does_not_answer_fails_soon(
    fake: FakeService, typed: Typed, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    fake.silent = True
    monkeypatch.setattr(client, "ANSWER_S", 1.5)
    line = f"journalkeeper: {HUNG} GetAll within 1.5 s; try later, or systemctl restart journalkeeper.service\n"
    assert typed(*words) == (1, "", line)


def test_an_answer_to_a_client_that_was_stopped_counts(fake: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CALL_S", 0.5)
    with Service.find() or pytest.fail("no service") as service:
        fake.on_question = lambda: service._runner.get_loop().call_soon_threadsafe(time.sleep, 2)
        assert service.plan(Request()).actions == ()


def test_where_nobody_listens_there_is_no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for address in (f"unix:path={tmp_path}/none", "nonsense"):
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        assert Service.find() is None


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_bus_that_does_not_answer_is_busy_and_the_service_is_not_blamed(
    bus: PrivateBus, fake: FakeService, typed: Typed, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Root works without the service then; only a change of its state needs it."""
    for limit in ("BUSY_S", "CONNECT_S" if when == "before" else "ANSWER_S"):
        monkeypatch.setattr(client, limit, 0.5)
    looks = Engine(Config(), directories=(state.DEFAULT,), state_directory=state.DEFAULT)
    monkeypatch.setattr(Context, "make_engine", lambda *_: looks)
    fake.on_question = bus.freeze
    said = {}
    for command in ("status", "plan", "resume"):
        if when == "before":
            bus.freeze()
        said[command] = typed(command)
        bus.thaw()
    assert (said["status"].status, said["status"].err) == (1, "")
    assert said["status"].words.startswith(f"Unknown: {BUSY}. ")
    assert f"Service: {BUSY}" in said["status"].words
    assert "Last run: none yet" in said["status"].out
    assert "not on btrfs" in said["plan"].err
    assert said["resume"] == (1, "", f"journalkeeper: {BUSY}\n")
