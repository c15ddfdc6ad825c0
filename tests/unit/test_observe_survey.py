# SPDX-License-Identifier: LGPL-2.1-or-later
"""Searches on two threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from journalkeeper.observe.survey import run_searches

BOTH = pytest.mark.parametrize("parallel", [True, False])


@BOTH
def test_the_results_are_in_the_order_of_the_searches(parallel: bool) -> None:
    searches: list[Callable[[], int]] = [lambda number=number: 6 * number for number in range(100)]  # type: ignore[misc]
    assert run_searches(searches, parallel=parallel) == [6 * number for number in range(100)]
    assert run_searches([], parallel=parallel) == []


@BOTH
def test_only_parallel_searches_have_threads_of_their_own(parallel: bool) -> None:
    threads = set(run_searches([threading.current_thread] * 10, parallel=parallel))
    assert (threading.current_thread() in threads) is not parallel
    assert len(threads) <= 2


def test_two_searches_wait_at_once() -> None:
    both = threading.Barrier(2)
    assert sorted(run_searches([lambda: both.wait(60)] * 2, parallel=True)) == [0, 1]


@BOTH
@pytest.mark.parametrize("error", [OSError("the disk is gone"), KeyboardInterrupt()])
def test_a_search_that_fails_ends_the_others_before_they_begin(parallel: bool, error: BaseException) -> None:
    begun: list[int] = []
    go_on = threading.Event()

    def fail() -> None:
        raise error

    def wait() -> None:
        begun.append(1)
        go_on.wait(0.1)

    with pytest.raises(type(error)):
        run_searches([fail, *[wait] * 100], parallel=parallel)
    assert len(begun) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("search")]


def test_where_the_kernel_gives_no_thread_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """TasksMax=, RLIMIT_NPROC: clone() fails with EAGAIN."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert run_searches([threading.current_thread] * 3, parallel=True) == [threading.current_thread()] * 3
