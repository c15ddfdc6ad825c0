# SPDX-License-Identifier: LGPL-2.1-or-later
"""The running configuration beside the one on disk."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from journalkeeper.config import Config
from journalkeeper.engine import Engine, now_us
from journalkeeper.health.evidence import Obstacle
from journalkeeper.history import state
from journalkeeper.metrics.publisher import Publisher
from journalkeeper.model import Host, Plan
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.run import Report
from journalkeeper.model.units import HOUR_US, SECOND_US
from journalkeeper.service import daemon as daemon_module
from journalkeeper.service import worker
from journalkeeper.service.daemon import Daemon
from journalkeeper.service.jobs import Changed, Notification
from journalkeeper.service.log import Log
from journalkeeper.service.snapshot import Checked, Message, RunFailed
from journalkeeper.service.watch import Change, Watches
from journalkeeper.service.worker import RETRY_S
from tests.hosts import configured
from tests.patience import PATIENCE_S

RUNNING = Config()
OTHER = configured("budget", bytes_per_day=1 << 20)


EMPTY = Report(Plan({}, (), ()), (), 0, 0.0, (), Host(0, (), (), (), {}, 0))


def make_engine(directory: Path, config: Config = RUNNING) -> Engine:
    """Return an engine with its state in the journal directory."""
    return Engine(config, directories=(str(directory),), state_directory=str(directory))


def make_daemon(directory: Path) -> Daemon:
    """Return a service that has not begun."""
    return Daemon(lambda: make_engine(directory), Log(None))


@asynccontextmanager
async def running(daemon: Daemon) -> AsyncIterator[None]:
    """Let the service run during the block."""
    work = asyncio.create_task(daemon.run())
    async with asyncio.timeout(PATIENCE_S):
        yield
        daemon._wake_to_stop()
        await work


async def until(true: Callable[[], object]) -> None:
    """Let the service run until it is true."""
    while not true():
        await asyncio.sleep(0.01)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the service take a run for stuck after 0.4 s."""
    monkeypatch.setattr(daemon_module, "STUCK_S", 0.4)
    monkeypatch.setenv("WATCHDOG_USEC", "20000")


def test_a_configuration_that_is_not_the_one_that_runs_is_a_problem_until_it_is_again(tmp_path: Path) -> None:
    on_disk: Config | KeeperError = RUNNING
    posted: list[Message] = []

    def load() -> Engine:
        if isinstance(on_disk, KeeperError):
            raise on_disk
        return make_engine(tmp_path, on_disk)

    works = worker.Worker(load, posted.append, bool, bool)
    wrong = KeeperError("/c:3: no")
    for found, problem in (
        (RUNNING, ""),
        (OTHER, worker.DIFFERENT),
        (wrong, f"{worker.WRONG}: {wrong}"),
        (RUNNING, ""),
    ):
        on_disk = found
        works.check()
        (message,) = posted
        assert isinstance(message, Checked)
        assert message._replace(tops=()) == Checked(problem, ())
        posted.clear()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("place", ["run", "check"])
async def test_a_run_without_progress_needs_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The check before the run looks at the directories, so it may wait for the same disk."""
    goes_on, runs = threading.Event(), list[float]()

    def wait_in(here: str) -> None:
        if here == place and len(runs) == (2 if place == "run" else 1):  # the first look may take any time
            assert goes_on.wait(PATIENCE_S)

    def run(*_: object, **__: object) -> Report:
        runs.append(0)
        wait_in("run")
        return EMPTY

    def find_unwritable(*_: object) -> dict[str, Obstacle]:
        wait_in("check")
        return {}

    monkeypatch.setattr(Engine, "run", run)
    monkeypatch.setattr(worker, "find_unwritable", find_unwritable)
    daemon = make_daemon(tmp_path)
    seen = [daemon.snapshot().headline]
    async with running(daemon):
        while len(seen) < 3:
            await asyncio.sleep(0.01)
            line = daemon.snapshot().headline
            seen += [line] if line != seen[-1] else []
            if len(runs) == 1 and line.startswith("OK: "):
                daemon.rescan()
            if line.startswith("Act: "):
                goes_on.set()
    assert seen == [
        "Unknown: the service has just started and has not yet examined all files.",
        "OK: 0 journal files.",
        "Act: The run has waited for the disk for more than 0 s. Try: journalctl -u journalkeeper -n 20",
    ]
    assert daemon.snapshot().verdict.health == "ok"


async def test_a_run_does_not_hold_up_a_verdict_in_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks during the run would confirm a file with the verdict of before."""
    published, is_bad, runs = list[bool](), threading.Event(), list[float]()

    def run(*_: object, stop: Callable[[], bool], **__: object) -> Report:
        runs.append(0)
        began_s = time.monotonic()
        while len(runs) == 2 and not is_bad.is_set() and time.monotonic() - began_s < PATIENCE_S:
            stop()
        return EMPTY

    def publish(_: object, *, healthy: bool) -> None:
        published.append(healthy)
        if not healthy:
            is_bad.set()

    monkeypatch.setattr(Engine, "run", run)
    monkeypatch.setattr(Publisher, "publish_health", publish)
    daemon = make_daemon(tmp_path)
    async with running(daemon):
        await until(lambda: published)
        daemon.rescan()
        await until(lambda: len(runs) == 2)
        daemon._publish_present(unwatched="no space")
        await until(is_bad.is_set)
    assert published[:2] == [True, False]


def test_a_reload_with_another_textfile_writes_it(tmp_path: Path) -> None:
    old, new = (Publisher(RUNNING, f"{tmp_path}/{name}.prom", judges=True) for name in ("old", "new"))
    (tmp_path / "new.prom").write_text("of an earlier time")
    for publisher in (old, new):
        publisher.publish_failure(None, KeeperError("full"), None)
        new.take_over(old)
    assert (tmp_path / "new.prom").read_text() == (tmp_path / "old.prom").read_text()


async def test_a_pause_ends_by_the_clock_after_a_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timers of an event loop stand still while a laptop sleeps."""
    daemon = make_daemon(tmp_path)
    began_us = now_us()
    monkeypatch.setattr(daemon_module, "now_us", lambda: began_us)
    daemon.pause(HOUR_US)
    for slept_us, paused in ((0, True), (HOUR_US - SECOND_US, True), (HOUR_US + SECOND_US, False)):
        monkeypatch.setattr(daemon_module, "now_us", lambda: began_us + slept_us)  # noqa: B023
        daemon._woken.set()
        await daemon._sleep_once()
        assert bool(daemon.snapshot().present.paused) is paused, slept_us


@pytest.mark.parametrize("rescan", [False, True])
async def test_a_rotation_keeps_the_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, rescan: bool) -> None:
    """New ones would lose an append that the old ones have not reported yet."""
    daemon = make_daemon(tmp_path)
    monkeypatch.setattr(daemon, "_watches_are_due", False)
    monkeypatch.setattr(daemon._watch, "wait", AsyncMock(return_value=Change(renamed=True, rescan=rescan)))
    await daemon._handle_next_change()
    assert (daemon._look_at_s, daemon._watches_are_due) == (0, rescan)


async def test_a_look_that_failed_is_made_again_in_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = make_daemon(tmp_path)
    monkeypatch.setattr(daemon._worker, "look", lambda _: RunFailed("no history", now_us()))
    with state.Lock(str(tmp_path)) as lock:
        before_s = time.monotonic()
        await daemon._look_and_schedule(lock)
    assert before_s + RETRY_S <= daemon._look_at_s <= time.monotonic() + RETRY_S


@pytest.mark.usefixtures("impatient")
async def test_a_look_that_waits_for_a_job_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may come between the making of the watches and the look, and takes as long as its files need."""
    goes_on, run, watched, headlines = threading.Event(), Mock(return_value=EMPTY), list[float](), set[str]()

    def work() -> None:
        while not goes_on.wait(0.01):
            daemon._worker._do_urgent()  # as a job does between two pieces

    def watch(_: object) -> Watches:
        watched.append(0)
        if len(watched) == 2:
            daemon._worker._executor.submit(work)
        return Watches()

    monkeypatch.setattr(Engine, "run", run)
    monkeypatch.setattr(daemon_module, "watch_directories", watch)
    daemon = make_daemon(tmp_path)
    async with running(daemon):
        await until(lambda: run.called)
        daemon.rescan()
        await until(lambda: len(watched) == 2)
        for _ in range(100):
            await asyncio.sleep(0.01)
            headlines.add(daemon.snapshot().headline)
        goes_on.set()
    assert headlines == {"OK: 0 journal files."}


async def test_a_reload_while_watches_are_made_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tops, goes_on, watched = (str(tmp_path),), threading.Event(), list[object]()

    def load() -> Engine:
        return Engine(RUNNING, directories=tops, state_directory=str(tmp_path))

    def watch(those: object) -> Watches:
        watched.append(those)
        assert goes_on.wait(PATIENCE_S)
        return Watches()

    monkeypatch.setattr(daemon_module, "watch_directories", watch)
    daemon = Daemon(load, Log(None))
    async with running(daemon):
        await until(lambda: watched)
        tops = (str(tmp_path / "new"),)
        reload = asyncio.create_task(daemon.reload())
        await asyncio.sleep(0)
        goes_on.set()
        await reload
        await until(lambda: watched[-1] == tops)


@pytest.mark.parametrize(
    ("looks", "replaced"),
    [
        (({"a"}, {"a"}), set()),  # a new start would change nothing
        ((set(), {"a"}), {"a"}),
        (({"a"}, set(), {"a"}), set()),
        (({"a"}, {"a", "b"}, {"a", "b"}), {"b"}),
    ],
)
def test_a_directory_that_was_writable_at_first_and_is_below_a_read_only_mount_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: tuple[set[str], ...], replaced: set[str]
) -> None:
    works = worker.Worker(lambda: make_engine(tmp_path), lambda _: None, bool, bool)
    for mounted in looks:
        obstacles = {**dict.fromkeys(mounted, Obstacle.MOUNT), "c": Obstacle.MODE}
        monkeypatch.setattr(worker, "find_unwritable", lambda *_, found=obstacles: found)
        found, _ = works.check()
    assert found == replaced


async def test_an_exception_of_a_follower_is_logged_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = make_daemon(tmp_path)
    heard: list[Notification] = []

    def refuse(_: Notification) -> None:
        raise RuntimeError("no room")

    daemon.followers += [refuse, heard.append]
    daemon._tell_followers(Changed())
    await asyncio.sleep(0)
    assert heard == [Changed()]
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "bug in journalkeeper" in sentence
    assert "RuntimeError: no room" in sentence


@pytest.mark.root
async def test_a_mount_about_a_directory_is_found_by_the_next_check(tmp_path: Path) -> None:
    top, elsewhere = tmp_path / "journal", tmp_path / "elsewhere"
    top.mkdir()
    elsewhere.mkdir()
    daemon = make_daemon(top)
    tmpfs = ("mount", "-t", "tmpfs", "-o", "size=1m", "journalkeeper-test")
    await daemon._renew_watches()
    for words, is_found in (
        (("true",), False),
        ((*tmpfs, elsewhere), False),
        (("umount", elsewhere), False),
        ((*tmpfs, top), True),
        (("mount", "-o", "remount,ro", top), True),
        (("umount", top), True),
    ):
        subprocess.run(words, check=True)
        await daemon._worker.run(daemon._worker.check)
        assert daemon._watches_are_due is is_found, words
        await daemon._renew_watches()
    daemon._watch.close()
    daemon._worker.close()
