# SPDX-License-Identifier: LGPL-2.1-or-later
"""When the service looks again though nothing happened."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.model import Kind, Outcome, Plan, Reason, Request, Result, Skip, Verb
from journalkeeper.model.run import Report
from journalkeeper.model.units import DAY_US, HOUR_US, SECOND_US
from journalkeeper.observe import obstacles
from journalkeeper.policy.flush_timer import COALESCED_US
from journalkeeper.service import worker
from journalkeeper.service.jobs import Job
from journalkeeper.service.worker import RETRY_S
from tests import hosts
from tests.journal_files import put_empty
from tests.nobody import being_nobody
from tests.patience import PATIENCE_S

NOW_US = 1_700_000_000 * SECOND_US
FAILED = Outcome("/j/a", Verb.COMPRESS, Result.FAILED, Reason.IO_ERROR, 9, 9, None, None, 0, 1.0)


def put_off(until_us: int | None) -> Skip:
    return Skip("/j/a", Reason.SETTLING, "", until_us)


@pytest.mark.parametrize(
    ("skipped", "outcomes", "whole_us", "wait_s"),
    [
        ((), (), NOW_US + DAY_US, 86_400),
        ((put_off(None),), (), NOW_US + HOUR_US, 3600),  # the last look at everything was 23 hours ago
        ((put_off(NOW_US + SECOND_US),), (), NOW_US + HOUR_US, 1),
        ((put_off(NOW_US + 2 * HOUR_US),), (), NOW_US + HOUR_US, 3600),
        ((), (), NOW_US + 365 * DAY_US, 86_400),  # the clock was set back
        ((), (FAILED,), NOW_US + DAY_US, RETRY_S),
        ((), (FAILED._replace(reason=Reason.CHANGED), FAILED), NOW_US + DAY_US, worker.CHANGED_S),
        ((put_off(NOW_US + SECOND_US),), (FAILED,), NOW_US + DAY_US, 1),
        ((), (FAILED._replace(result=Result.DONE),), NOW_US + DAY_US, 86_400),
        ((put_off(None)._replace(reason=Reason.NOT_BEGUN),), (), NOW_US + DAY_US, RETRY_S),
    ],
)
def test_the_first_moment_at_which_something_can_be_due(
    monkeypatch: pytest.MonkeyPatch,
    skipped: tuple[Skip, ...],
    outcomes: tuple[Outcome, ...],
    whole_us: int,
    wait_s: float,
) -> None:
    monkeypatch.setattr(worker, "now_us", lambda: NOW_US)
    report = Report(Plan({}, (), skipped), outcomes, 0, 0.0, ())
    assert worker.get_next_plan_s(report, whole_us) == wait_s


def test_a_directory_that_cannot_be_examined_ends_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_, **__: False)
    monkeypatch.setattr("os.statvfs", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
    assert obstacles.find_unwritable(f"{tmp_path}", (), obstacles.read_mounts()) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_the_rights_of_the_effective_user_count() -> None:
    with being_nobody():
        assert obstacles.find_unwritable("/usr", (), obstacles.read_mounts()).keys() == {"/usr"}


async def test_an_append_ends_the_window_before_the_next_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, journal, closes_us = f"{tmp_path}", tmp_path / "system.journal", list[int | None]()
    engine = Engine(Config(), directories=(directory,), state_directory=directory)
    put_empty(journal, 0)
    instance = hosts.instance(directory=directory, sync_interval_us=HOUR_US)
    engine.memory.flushes.look([instance], [hosts.file(Kind.ACTIVE, path=f"{journal}")])
    begun, heard = threading.Event(), threading.Event()

    def run(*_: object, stop: Callable[[], bool], **__: object) -> Report:
        for _piece in range(2):
            assert not stop()
            closes_us.append(engine.memory.flushes.get_closing_us(directory, 0))
            begun.set()
            assert heard.wait(PATIENCE_S)
        return Report(Plan({}, (), ()), (), 0, 0.0, ())

    monkeypatch.setattr(engine, "run", run)
    made, heard_us = worker.Worker(lambda: engine, Mock(), bool, bool), time.monotonic_ns() // 1000 + SECOND_US
    work = made.run(partial(made.do, Job(1, Request())))
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    made.run_between_pieces(partial(made.note_appends, [directory], heard_us))
    heard.set()
    await work
    made.close()
    assert closes_us == [None, heard_us - COALESCED_US + HOUR_US]


async def test_many_appends_during_a_run_wait_as_one_call(tmp_path: Path) -> None:
    engine = Engine(Config(), directories=(f"{tmp_path}",), state_directory=f"{tmp_path}")
    post, begun, goes_on = Mock(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        goes_on.wait(PATIENCE_S)

    made = worker.Worker(lambda: engine, post, bool, bool)
    run = made.run(work)
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    done = [made.run_between_pieces(partial(abs, -number)) for number in range(1000)]
    goes_on.set()
    assert await asyncio.gather(*done) == list(range(1000))
    await run
    made.close()
    assert post.call_count == 2  # the run's end, and that of all others
