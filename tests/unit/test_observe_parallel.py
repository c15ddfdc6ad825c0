# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work on a second thread, and its result."""

from __future__ import annotations

import threading

import pytest

from journalkeeper.observe.parallel import Background

BOTH = pytest.mark.parametrize("apart", [True, False])


@BOTH
def test_the_result_is_the_works(apart: bool) -> None:
    with Background(lambda: 6 * 7, apart=apart) as question:
        assert question.result() == 42
        assert question.result() == 42


@BOTH
def test_what_the_work_raises_is_raised_where_the_result_is_asked_for(apart: bool) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    with Background(fail, apart=apart) as question, pytest.raises(OSError, match="gone"):
        question.result()


@BOTH
def test_only_work_apart_has_a_thread_of_its_own(apart: bool) -> None:
    with Background(threading.current_thread, apart=apart) as question:
        assert (question.result() is threading.current_thread()) is not apart


def test_leaving_waits_for_work_that_nobody_asked_about() -> None:
    done: list[int] = []
    with Background(lambda: done.append(1)):
        pass
    assert done == [1]


def test_where_the_kernel_gives_no_thread_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """TasksMax=, RLIMIT_NPROC: clone() fails with EAGAIN."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with Background(threading.current_thread) as question:
        assert question.result() is threading.current_thread()
