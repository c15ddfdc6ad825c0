# SPDX-License-Identifier: LGPL-2.1-or-later
"""The running configuration beside the one on disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.model.errors import KeeperError
from journalkeeper.service import worker
from journalkeeper.service.daemon import Daemon
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
