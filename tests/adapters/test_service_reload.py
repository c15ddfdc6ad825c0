# SPDX-License-Identifier: LGPL-2.1-or-later
"""The running configuration beside the one on disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.health.evidence import Obstacle
from journalkeeper.model import Host, Plan
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.run import Report
from journalkeeper.service import daemon as daemon_module
from journalkeeper.service import worker
from journalkeeper.service.daemon import Daemon
from journalkeeper.service.mounts import Unwritable
from journalkeeper.service.watch import Watches
from journalkeeper.service.worker import check
from tests.hosts import configured
from tests.patience import PATIENCE_S

RUNNING = Config()
OTHER = configured("budget", bytes_per_day=1 << 20)


def test_a_configuration_that_is_not_the_one_that_runs_is_a_problem_until_it_is_again(tmp_path: Path) -> None:
    on_disk: Config | KeeperError = RUNNING

    def load() -> Engine:
        if isinstance(on_disk, KeeperError):
            raise on_disk
        return Engine(on_disk, directories=(str(tmp_path),), state_directory=str(tmp_path))

    engine = load()
    wrong = KeeperError("/c:3: no")
    for found, problem in (
        (RUNNING, ""),
        (OTHER, worker.DIFFERENT),
        (wrong, f"{worker.WRONG}: {wrong}"),
        (RUNNING, ""),
    ):
        on_disk = found
        assert check(load, engine).configuration == problem


@pytest.mark.parametrize("place", ["run", "check"])
async def test_a_run_that_makes_no_progress_is_a_reason_to_act_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The check after the run looks at the directories, so it may wait for the same disk."""
    engine = Engine(RUNNING, directories=(str(tmp_path),), state_directory=str(tmp_path))
    goes_on, runs = threading.Event(), list[float]()

    def wait_in(here: str) -> None:
        if here == place and len(runs) == 2:  # the first look may take any time
            assert goes_on.wait(PATIENCE_S)

    def run(*_: object, **__: object) -> Report:
        runs.append(0)
        wait_in("run")
        return Report(Plan((), (), ()), (), 0, 0.0, (), Host(0, (), (), (), {}, 0))

    def check(*_: object) -> worker.Checked:
        wait_in("check")
        return worker.Checked()

    monkeypatch.setattr(Engine, "run", run)
    monkeypatch.setattr(daemon_module, "check", check)
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    daemon = Daemon(lambda: engine, lambda *_, **__: None, stuck_s=0.4)
    seen = [daemon.snapshot().headline]
    work = asyncio.create_task(daemon.run())
    async with asyncio.timeout(PATIENCE_S):
        while len(seen) < 3:
            await asyncio.sleep(0.01)
            line = daemon.snapshot().headline
            seen += [line] if line != seen[-1] else []
            if len(runs) == 1 and line.startswith("OK: "):
                daemon.rescan()
            if line.startswith("Act: "):
                goes_on.set()
        daemon._end()
        await work
    assert seen == [
        "Unknown: the first look runs.",
        "OK: 0 journal files.",
        "Act: The run has waited for the disk for more than 0 s. Try: journalctl -u journalkeeper -n 20",
    ]
    assert daemon.snapshot().verdict.health == "ok"


async def test_a_look_that_waits_for_a_job_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may come between the making of the watches and the look, and takes as long as its files need."""
    engine = Engine(RUNNING, directories=(str(tmp_path),), state_directory=str(tmp_path))
    goes_on, looks, watched, headlines = threading.Event(), list[float](), list[float](), set[str]()

    def run(*_: object, **__: object) -> Report:
        looks.append(0)
        return Report(Plan((), (), ()), (), 0, 0.0, (), Host(0, (), (), (), {}, 0))

    def watch(_: object) -> Watches:
        watched.append(0)
        if len(watched) == 2:
            daemon._worker._executor.submit(goes_on.wait, PATIENCE_S)
        return Watches()

    monkeypatch.setattr(Engine, "run", run)
    monkeypatch.setattr(daemon_module, "watch_directories", watch)
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    daemon = Daemon(lambda: engine, lambda *_, **__: None, stuck_s=0.1)
    work = asyncio.create_task(daemon.run())
    async with asyncio.timeout(PATIENCE_S):
        while len(looks) < 1:
            await asyncio.sleep(0.01)
        daemon.rescan()
        while len(watched) < 2:
            await asyncio.sleep(0.01)
        for _ in range(50):
            await asyncio.sleep(0.01)
            headlines.add(daemon.snapshot().headline)
        goes_on.set()
        daemon._end()
        await work
    assert headlines == {"OK: 0 journal files."}


async def test_a_reload_while_watches_are_made_has_its_directories_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tops, goes_on, watched = (str(tmp_path),), threading.Event(), list[object]()

    def load() -> Engine:
        return Engine(RUNNING, directories=tops, state_directory=str(tmp_path))

    def watch(those: object) -> Watches:
        watched.append(those)
        assert goes_on.wait(PATIENCE_S)
        return Watches()

    monkeypatch.setattr(daemon_module, "watch_directories", watch)
    daemon = Daemon(load, lambda *_, **__: None)
    work = asyncio.create_task(daemon.run())
    async with asyncio.timeout(PATIENCE_S):
        while not watched:
            await asyncio.sleep(0.01)
        tops = (str(tmp_path / "new"),)
        await daemon.reload()
        goes_on.set()
        while not daemon.cycles:
            await asyncio.sleep(0.01)
        daemon._end()
        await work
    assert watched[-1] == tops


def test_a_reload_while_directories_are_looked_at_mixes_no_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> Engine:
        return Engine(RUNNING, directories=(str(tmp_path / name),), state_directory=str(tmp_path))

    def find(tops: tuple[str, ...]) -> list[Unwritable]:
        works.engine = load("after")
        return [Unwritable(top, top, "1", Obstacle.MOUNT) for top in tops]

    works = worker.Worker(lambda: load("first"), lambda _: None, bool, bool)
    works.engine = load("before")
    monkeypatch.setattr(worker, "find_unwritable", find)
    works._refuse_replaced_directories()
    works.engine = load("first")  # this one was writable
    with pytest.raises(worker.ReplacedError):
        works._refuse_replaced_directories()


async def test_a_check_that_a_reload_overtakes_has_no_say(tmp_path: Path) -> None:
    """It compared with the configuration that ran before."""
    config, goes_on, begun = RUNNING, threading.Event(), threading.Semaphore(0)

    def load() -> Engine:
        found = Engine(config, directories=(str(tmp_path),), state_directory=str(tmp_path))
        begun.release()
        assert goes_on.wait(PATIENCE_S)
        return found

    goes_on.set()
    daemon = Daemon(load, lambda *_, **__: None)
    goes_on.clear()
    config = OTHER
    works = [asyncio.create_task(work) for work in (daemon.refresh(hurry=False), daemon.reload())]
    for _ in range(3):
        await asyncio.to_thread(begun.acquire, timeout=PATIENCE_S)
    goes_on.set()
    await asyncio.gather(*works)
    assert daemon.snapshot().present.configuration == ""
    await daemon.refresh(hurry=False)
    assert daemon.snapshot().present.configuration == ""
