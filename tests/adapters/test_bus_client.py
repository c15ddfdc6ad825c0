# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line as a client of a service that does what no real one does on demand.

A real bus, and a service on it that answers as a test says. The real service is met in
tests/btrfs/test_cli_bus.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dbus_fast import Message, MessageType, Variant
from dbus_fast.aio import MessageBus

from journalkeeper.bus import client, names
from journalkeeper.bus.client import Service
from journalkeeper.cli.context import Context
from journalkeeper.cli.output import Output
from journalkeeper.cli.parser import parse
from journalkeeper.cli.program import run
from journalkeeper.cli.selection import request
from journalkeeper.history import state
from journalkeeper.model import Reason, Request
from journalkeeper.model.errors import BusyError, KeeperError, NeedsRootError, UsageError
from journalkeeper.model.progress import Progress
from tests import bus as buses
from tests.bus import PrivateBus

JOB = names.job_path(7)
ROW = {
    "path": "/var/log/journal/abc/a.journal",
    "action": "compress",
    "result": "done",
    "reason": "fragmented",
    "extents_before": 900,
    "extents_after": 9,
    "disk_bytes_before": None,
    "disk_bytes_after": None,
    "bytes_written": 1 << 20,
    "duration_s": 1.5,
}
LEFT = {**ROW, "path": "/var/log/journal/abc/b.journal", "result": "skipped", "reason": "settling", "bytes_written": 0}
DOCUMENT: dict[str, Any] = {
    "outcomes": [ROW, LEFT],
    "totals": {"bytes_written": 1 << 20, "duration_s": 2.5},
    "skipped": [{"path": LEFT["path"], "reason": "settling", "detail": "changed 1s ago"}],
    "details": {},
    "notices": ["the record was damaged"],
}
PLAN: dict[str, Any] = {
    "window": {"abc": {"open": False, "closes_at_us": None, "reason": "flush-due"}},
    "actions": [
        {
            "path": "/var/log/journal/abc/a.journal",
            "action": "defragment",
            "reason": "fragmented",
            "ranges": [{"offset": 1 << 20, "length": 1 << 20, "extents": 300}],
            "bytes_to_write": 1 << 20,
            "extents_before": 900,
            "extents_expected": 601,
        }
    ],
    "skipped": [
        {
            "path": LEFT["path"],
            "reason": "window-closed",
            "detail": "unsynced",
            "until_us": None,
            "now": True,
            "puts_off": True,
        },
    ],
}
RUNNING = {"State": "running", "FileNumber": 1, "FileTotal": 2, "File": "/j/a", "BytesDone": 5, "BytesTotal": 10}


class FakeService:
    """Has the name on the bus. `manager` and `job` are properties; a test may replace each answer."""

    def __init__(self, address: str) -> None:
        self.manager: dict[str, Any] = {"Version": "9", "State": "idle", "Directories": ["/var/log/journal"]}
        self.job: dict[str, Any] = RUNNING
        self.result: str | tuple[str, str] = json.dumps(DOCUMENT)
        self.plan: dict[str, Any] = PLAN
        self.refusal: tuple[str, str] | None = None
        self.on_defragment: Callable[[FakeService], None] = lambda fake: fake.removed("done")
        self.calls: list[tuple[str, list[Any]]] = []
        self.client = ""
        self.forging: asyncio.Task[None] | None = None
        self._address = address
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> FakeService:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._thread.join()

    def end(self) -> None:
        """Leave the bus, as a service that was killed does; again does nothing."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ended.set)

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self.bus = await MessageBus(self._address).connect()
        await self.bus.request_name(names.BUS_NAME)
        self.bus.add_message_handler(self._answer)
        self._ready.set()
        await self._ended.wait()
        self.bus.disconnect()

    def _answer(self, message: Message) -> Message | bool:
        if message.message_type is not MessageType.METHOD_CALL:
            return False
        self.calls.append((str(message.member), message.body))
        self.client = str(message.sender)
        if message.member == "GetAll":
            found = self.manager if message.path == names.MANAGER_PATH else self.job
            return _reply(message, "a{sv}", {name: _variant(value) for name, value in found.items()})
        if message.member == "DefragmentAll" and self.refusal is None:
            self._loop.call_soon(self.on_defragment, self)
            return _reply(message, "o", JOB)
        if message.member == "Cancel":
            self._loop.call_soon(self.removed, "canceled")
            return Message.new_method_return(message)
        answer = {"Result": self.result, "Plan": json.dumps(self.plan)}.get(str(message.member))
        if isinstance(answer, str):
            return _reply(message, "s", answer)
        refusal = self.refusal if message.member == "DefragmentAll" else self.result
        return Message.new_error(message, *refusal) if isinstance(refusal, tuple) else False

    def removed(self, result: str) -> None:
        """The job is over."""
        self.bus.send(Message.new_signal(names.MANAGER_PATH, names.MANAGER, "JobRemoved", "uos", [7, JOB, result]))

    def moved(self) -> None:
        """The job got on."""
        body: list[Any] = [names.JOB, {}, ["Progress"]]
        self.bus.send(Message.new_signal(JOB, names.PROPERTIES, "PropertiesChanged", "sa{sv}as", body))


def _reply(message: Message, signature: str, value: Any) -> Message:
    return Message.new_method_return(message, signature, [value])


def _variant(value: Any) -> Variant:
    kinds = {bool: "b", str: "s", int: "t", list: "as"}
    return Variant(kinds[type(value)], value)


@pytest.fixture(scope="module")
def bus() -> Iterator[PrivateBus]:
    if reason := buses.missing():
        pytest.skip(reason)
    with PrivateBus() as private:
        yield private


def _not_here(_: Context) -> None:
    """This machine's own journals are nobody's test."""
    raise AssertionError("the work was to be done by the service")


@pytest.fixture
def fake(bus: PrivateBus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeService]:
    """A service, where the command line looks for it."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setattr(state, "DEFAULT", os.fspath(tmp_path))
    (tmp_path / state.DAEMON_LOCK).touch()
    monkeypatch.setattr(Context, "engine", _not_here)
    with FakeService(bus.address) as service:
        yield service


def defragmented(*, stop: Callable[[], bool] = lambda: False) -> tuple[client.Answer, list[Progress]]:
    drawn: list[Progress] = []
    service = Service.find()
    assert service is not None
    with service:
        return service.defragment(Request(now=True), on_progress=drawn.append, stop=stop), drawn


pytestmark = pytest.mark.root
Captured = pytest.CaptureFixture[str]


def test_a_jobs_document_becomes_the_report_of_a_run(fake: FakeService) -> None:
    answer, _ = defragmented()
    assert [outcome.path for outcome in answer.report.outcomes] == [ROW["path"]]
    assert [(skip.path, skip.reason) for skip in answer.report.plan.skipped] == [(LEFT["path"], Reason.SETTLING)]
    assert (answer.report.written_bytes, answer.report.notices) == (1 << 20, ("the record was damaged",))
    assert list(answer.document) == ["outcomes", "totals"]
    assert not answer.canceled
    ((given,),) = [body for member, body in fake.calls if member == "DefragmentAll"]
    assert {name: value.value for name, value in given.items()} == {"now": True}


def test_progress_is_told_as_the_job_gets_on(fake: FakeService) -> None:
    def work(service: FakeService) -> None:
        service.job = {**RUNNING, "FileNumber": 2, "BytesDone": 9}
        service.moved()
        asyncio.get_running_loop().call_later(0.3, service.removed, "done")

    fake.on_defragment = work
    _, drawn = defragmented()
    assert Progress(2, 2, "/j/a", 9, 10) in drawn


def test_a_job_that_waits_for_others_says_so(fake: FakeService) -> None:
    def wait(service: FakeService) -> None:
        asyncio.get_running_loop().call_later(0.3, service.removed, "done")

    fake.job = {"State": "queued"}
    fake.on_defragment = wait
    _, drawn = defragmented()
    assert drawn[0].path == client.QUEUED


def test_a_wish_to_stop_cancels_the_job_once_and_waits_for_it(fake: FakeService) -> None:
    fake.on_defragment = lambda _: None
    answer, _ = defragmented(stop=lambda: True)
    assert answer.canceled
    assert [member for member, _ in fake.calls if member == "Cancel"] == ["Cancel"]


@pytest.mark.parametrize(
    ("name", "kind", "status"),
    [
        (names.ACCESS_DENIED, NeedsRootError, 1),
        (f"{names.BUS_NAME}.Error.Busy", BusyError, 1),
        (f"{names.BUS_NAME}.Error.InvalidArgument", UsageError, 2),
        (names.FAILED, KeeperError, 1),
        ("org.freedesktop.DBus.Error.NoReply", KeeperError, 1),
    ],
)
def test_what_the_service_refuses_is_one_line_and_an_exit_status(
    fake: FakeService, capsys: Captured, name: str, kind: type[KeeperError], status: int
) -> None:
    fake.refusal = name, "it is so"
    with pytest.raises(kind, match="it is so"):
        defragmented()
    assert run(["defrag", "--now"]) == status
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert "it is so" in captured.err


def test_a_job_that_came_to_nothing_says_why(fake: FakeService, capsys: Captured) -> None:
    fake.on_defragment = lambda service: service.removed("failed")
    fake.result = (f"{names.BUS_NAME}.Error.NotBtrfs", "/var/log/journal: not on btrfs")
    assert run(["defrag"]) == 1
    assert capsys.readouterr().err == "journalkeeper: /var/log/journal: not on btrfs\n"


def test_a_service_that_ends_before_its_job_is_said(fake: FakeService, capsys: Captured) -> None:
    fake.on_defragment = lambda service: service.end()
    assert run(["defrag"]) == 1
    assert capsys.readouterr().err == (
        "journalkeeper: the service has ended; `journalkeeper history` tells what it did\n"
    )


def forged(fake: FakeService, *signals: Message) -> None:
    """Have a stranger send these to the client, and then the job be canceled."""

    async def send() -> None:
        stranger = await MessageBus(fake._address).connect()
        for one in signals:
            await stranger.send(one)
        await stranger.call(Message("org.freedesktop.DBus", "/", "org.freedesktop.DBus", "GetId"))  # all is sent by now
        stranger.disconnect()
        fake.removed("canceled")

    fake.forging = asyncio.get_running_loop().create_task(send())


def test_a_strangers_signals_are_not_believed(fake: FakeService) -> None:
    """Anybody can send a signal of any name to any connection."""

    def forge(service: FakeService) -> None:
        def signal(member: str, signature: str, *body: Any) -> Message:
            message = Message.new_signal(names.MANAGER_PATH, names.MANAGER, member, signature, list(body))
            message.destination = service.client
            return message

        gone = ("sss", names.BUS_NAME, ":1.1", "")
        done = signal("JobRemoved", "uos", 7, JOB, "done")
        forged(service, signal("NameOwnerChanged", *gone), signal("JobRemoved", ""), done)

    fake.on_defragment = forge
    answer, _ = defragmented()
    assert answer.canceled


def test_a_service_of_another_version_does_the_work_and_is_said_to_be_one(fake: FakeService, capsys: Captured) -> None:
    fake.result = json.dumps({**DOCUMENT, "outcomes": [{**ROW, "reason": "moonlight"}, LEFT]})
    assert run(["defrag"]) == 1
    said = capsys.readouterr().err
    assert "the service is of another version" in said
    assert "'moonlight' is not a valid Reason" in said


def test_the_table_and_the_json_are_those_of_a_run_of_ones_own(fake: FakeService, capsys: Captured) -> None:
    assert run(["defrag", "--archived"]) == 0
    captured = capsys.readouterr()
    assert "1 file: 1 done, 0 skipped, 0 failed; 900 -> 9 extents, 1.0M written in 2.500s" in captured.out
    assert "settling  changed 1s ago" in captured.out
    assert captured.err == "journalkeeper: the record was damaged\n"
    assert run(["defrag", "-j", "--archived"]) == 0
    assert json.loads(capsys.readouterr().out) == {name: DOCUMENT[name] for name in ("outcomes", "totals")}


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody without root's rights; the bus is not told."""
    before = Context.__init__

    def init(context: Context, *words: Any, **named: Any) -> None:
        before(context, *words, **named)
        context.privileged = False

    monkeypatch.setattr(Context, "__init__", init)


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize("words", [["plan"], ["defrag", "-n"]])
def test_a_users_plan_is_the_services(fake: FakeService, capsys: Captured, words: list[str]) -> None:
    assert run([*words, "--archived"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    row = "defragment fragmented 900 601 1.0M - 1.0M at 1.0M /var/log/journal/abc/a.jou"  # of no savings
    assert row in " ".join(captured.out.split())
    assert "window-closed  unsynced  /var/log/journal/abc/b.journal" in captured.out
    assert "\nWindow of abc: closed, flush-due.\n" in captured.out
    assert captured.out.endswith(
        "1 file to do: 900 -> 601 extents, 1.0M to write;"
        " 1 file left alone. 1 file waits for journald's next flush; --now does it at once.\n"
    )
    ((given,),) = [body for member, body in fake.calls if member == "Plan"]
    assert {name: value.value for name, value in given.items()} == {"archived": True}
    assert run([*words, "-j"]) == 0
    assert json.loads(capsys.readouterr().out) == PLAN


@pytest.mark.usefixtures("user")
def test_a_users_plan_of_a_path_that_is_no_journal_exits_1(fake: FakeService, capsys: Captured) -> None:
    gone = {"path": "/var/log/journal/abc/c.journal", "reason": "vanished", "detail": "No such file or directory"}
    fake.plan = {**PLAN, "skipped": [gone]}
    assert run(["plan", gone["path"]]) == 1
    captured = capsys.readouterr()
    assert captured.err == (
        "journalkeeper: /var/log/journal/abc/c.journal: No such file or directory;"
        " `journalkeeper scan` lists the journal files\n"
    )
    assert "/var/log/journal/abc/a.journal" in captured.out


@pytest.mark.usefixtures("user")
def test_a_plan_of_another_version_is_said_to_be_one(fake: FakeService, capsys: Captured) -> None:
    fake.plan = {**PLAN, "skipped": [{"path": "/j", "reason": "moonlight", "detail": ""}]}
    assert run(["plan"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the service is of another version" in captured.err


def test_root_looks_for_itself(fake: FakeService) -> None:
    with pytest.raises(AssertionError, match="by the service"):
        run(["plan"])
    assert "Plan" not in [member for member, _ in fake.calls]


def asked(*words: str) -> bool:
    """Whether a command line is for the service; nothing is done."""
    args = parse(["defrag", *words])
    service = Context(args, Output(args)).service(request(args))
    if service is not None:
        service.close()
    return service is not None


@pytest.mark.parametrize(
    "words",
    [
        ["--before-shutdown"],
        ["-D", "/var/log/journal"],
        ["--config", "/usr/lib/journalkeeper.conf"],
        ["/elsewhere/a.journal"],
        ["/var/log/journal/abc/a.journal", "/var/log/journals/a.journal"],
        [os.fsdecode(b"/var/log/journal/abc/\xff.journal")],
    ],
)
def test_what_is_not_the_services_is_not_asked_of_it(fake: FakeService, words: list[str]) -> None:
    assert not asked(*words)
    assert asked("/var/log/journal/abc/a.journal", "--upkeep")
    assert asked()


def test_a_service_with_other_directories_is_not_asked(fake: FakeService) -> None:
    fake.manager["Directories"] = ["/var/log/journal", "/srv/journal"]
    assert not asked()


def test_a_state_directory_of_ones_own_is_not_the_services(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", os.fspath(tmp_path / "own"))
    assert not asked()


def test_status_marks_a_service_of_another_version_and_what_it_does_not_know(
    fake: FakeService, capsys: Captured
) -> None:
    assert run(["status"]) == 0
    assert "Service: idle (it is still version 9: systemctl restart journalkeeper)" in capsys.readouterr().out
    assert run(["status", "-j"]) == 0
    service = json.loads(capsys.readouterr().out)["service"]
    assert (service["state"], service["next_flush_us"], service["paused"]) == ("idle", None, None)


def test_a_service_that_says_nothing_keeps_nobody_from_the_record(
    fake: FakeService, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CALL_S", 0.3)
    fake.bus.remove_message_handler(fake._answer)
    fake.bus.add_message_handler(lambda _: True)
    assert run(["status"]) == 0
    captured = capsys.readouterr()
    assert "the service has not answered GetAll" in captured.err
    assert "Last run: none yet" in captured.out


def test_where_nobody_listens_or_a_bus_says_nothing_there_is_no_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(client, "CONNECT_S", 0.3)
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    assert Service.find() is None
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "nonsense")
    assert Service.find() is None
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/silent")
        silent.listen()
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/silent")
        assert Service.find() is None


def test_without_a_service_that_ever_was_nothing_of_a_bus_is_imported(bus: PrivateBus, tmp_path: Path) -> None:
    """Root sees that there is no daemon.lock; the bus is not asked."""
    program = (
        "import sys; from journalkeeper.history import state; state.DEFAULT = sys.argv.pop(1);"
        "from journalkeeper.cli import main; main(sys.argv[1:]);"
        "print(*sorted({'asyncio', 'dbus_fast'} & set(sys.modules)))"
    )
    environment = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": bus.address, "PYTHONPATH": f"{buses.REPOSITORY}"}
    environment.pop("STATE_DIRECTORY", None)
    words = [sys.executable, "-c", program, os.fspath(tmp_path / "none"), "status"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""
