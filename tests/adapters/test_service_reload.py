# SPDX-License-Identifier: LGPL-2.1-or-later
"""The running configuration beside the one on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.model.errors import KeeperError
from journalkeeper.service import worker
from journalkeeper.service.worker import Worker
from tests.hosts import configured

RUNNING = Config()
OTHER = configured("budget", bytes_per_day=1 << 20)


def test_a_configuration_that_is_not_the_one_that_runs_is_a_problem_until_it_is_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "COMPARE_S", 0.0)
    on_disk: Config | KeeperError = RUNNING

    def load() -> Engine:
        if isinstance(on_disk, KeeperError):
            raise on_disk
        return Engine(on_disk, directories=(str(tmp_path),), state_directory=str(tmp_path))

    running = Worker(load, lambda _: None, lambda: False, lambda: False)
    problems = []
    for on_disk in (RUNNING, OTHER, KeeperError("/c:3: no"), RUNNING):  # noqa: B007 - what `load` finds
        running._compare_configuration()
        problems.append(running.configuration)
    running.close()
    assert problems == ["", "The configuration on disk is not the one that runs", f"{worker.WRONG}: /c:3: no", ""]
