# SPDX-License-Identifier: LGPL-2.1-or-later
"""What goes to the kernel in one piece, what of a file lies where it lay, and what a rewrite gains."""

from __future__ import annotations

import errno
import time
from unittest.mock import Mock

import pytest

from journalkeeper.btrfs import fiemap
from journalkeeper.btrfs.fiemap import Extent
from journalkeeper.execute import executor, inplace, runner
from journalkeeper.execute.inplace import NEAR_BYTES, join_near
from journalkeeper.execute.pace import Pace
from journalkeeper.journald.layout import TEMPORARY_PREFIX, TEMPORARY_SUFFIX
from journalkeeper.model import KIB, Action, Outcome, Range, Reason, Result, Verb
from journalkeeper.observe.file_row import explain_error
from journalkeeper.policy.cost import count_least_extents
from journalkeeper.policy.deferral import PASSING

K4, K8, K12 = 4 * KIB, 8 * KIB, 12 * KIB
PLAIN, LAST, ENCODED = 0, 1, fiemap.FIEMAP_EXTENT_ENCODED
SHARED, UNWRITTEN, INLINE = (
    fiemap.FIEMAP_EXTENT_SHARED, fiemap.FIEMAP_EXTENT_UNWRITTEN, fiemap.FIEMAP_EXTENT_DATA_INLINE,
)  # fmt: skip
Rows = list[tuple[int, int, int, int]]


RUNS = [
    ([], ()),
    ([(0, 4 * KIB), (8 * KIB, 4 * KIB), (16 * KIB, 4 * KIB)], (Range(0, 20 * KIB, 0),)),
    # one block less than the limit, and the limit
    ([(0, 4 * KIB), (NEAR_BYTES, 4 * KIB)], (Range(0, NEAR_BYTES + 4 * KIB, 0),)),
    ([(0, 4 * KIB), (NEAR_BYTES + 4 * KIB, 1)], (Range(0, 4 * KIB, 0), Range(NEAR_BYTES + 4 * KIB, 1, 0))),
]


@pytest.mark.parametrize(("runs", "expected"), RUNS)
def test_runs_with_a_short_hole_between_are_one_range(runs: list[tuple[int, int]], expected: tuple[Range, ...]) -> None:
    assert join_near(runs) == expected


def test_an_active_file_is_given_up_after_120_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s = list[float]()
    monkeypatch.setattr(time, "sleep", waits_s.append)
    monkeypatch.setattr(fiemap, "count_rows", lambda _: 40)
    inplace._wait_for_extents(0, before=40)
    assert sum(waits_s) == pytest.approx(0.12)


@pytest.mark.parametrize("ends", [True, False])
def test_a_map_may_end_after_the_last_skip(monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> None:
    """The kernel repeats the rows of an unwritten extent with dirty pages."""
    batch = [Extent(row * K4, row * K4, K4, PLAIN) for row in range(fiemap.BATCH_ROWS)]
    answers = [batch] * (fiemap.MOST_SKIPS + 2) + [[] if ends else batch]
    monkeypatch.setattr(fiemap, "_read_rows", Mock(side_effect=answers))
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)  # a slow call would make the next one smaller
    found = fiemap.map_batches(0, sync=False)
    assert next(found) == batch
    if ends:
        assert list(found) == []
    else:
        with pytest.raises(OSError, match="repeats"):
            next(found)


@pytest.mark.parametrize(
    ("us_per_row", "asked", "rested_us"),
    [
        (1, [16, 32, 64, 128, 256, 512, 512], [512, 512]),
        (10, [16, 32, 64, 100, 100, 100, 100], [640, 1000, 1000, 1000, 1000]),
        (62, [16] * 7, [992] * 7),
        (700, [16, 4, 4, 4, 4, 4, 4], [11200, 2800, 2800, 2800, 2800, 2800, 2800]),
    ],
)
def test_a_call_reads_as_many_rows_as_the_kernel_lists_in_half_of_2_ms(
    monkeypatch: pytest.MonkeyPatch, us_per_row: int, asked: list[int], rested_us: list[int]
) -> None:
    clock, found, rests = Mock(), list[int](), list[int]()
    clock.monotonic_ns.return_value = 0
    clock.sleep = lambda span_s: rests.append(round(span_s * 1e6))

    def read_rows(_fd: int, start: int, _end: int, most: int) -> list[Extent]:
        found.append(most)
        clock.monotonic_ns.return_value += most * us_per_row * 1000
        return [Extent(start + row * K4, start + row * K4, K4, PLAIN) for row in range(most)]

    monkeypatch.setattr(fiemap, "time", clock)
    monkeypatch.setattr(fiemap, "_read_rows", read_rows)
    batches = fiemap.map_batches(0, sync=False)
    assert [len(next(batches)) for _ in asked] == asked == found
    assert rests == rested_us


MAPS: list[tuple[Rows, Rows, list[tuple[int, int]]]] = [
    # all of it, a part of it at either end, and nothing
    ([(0, 1 << 20, K12, PLAIN)], [(0, 1 << 20, K12, PLAIN)], [(0, K12)]),
    ([(0, 1 << 20, K12, PLAIN)], [(0, 9 << 20, K8, ENCODED), (K8, (1 << 20) + K8, K4, PLAIN)], [(K8, K4)]),
    ([(0, 1 << 20, K12, PLAIN)], [(0, 1 << 20, K4, PLAIN), (K4, 9 << 20, K8, ENCODED)], [(0, K4)]),
    ([(0, 1 << 20, K12, PLAIN)], [(0, 9 << 20, K12, PLAIN)], []),
    # the freed place of one part given to another
    ([(0, 1 << 20, K4, PLAIN), (K4, 2 << 20, K4, PLAIN)], [(0, 9 << 20, K4, PLAIN), (K4, 1 << 20, K4, PLAIN)], []),
    # of a compressed extent each part is said to begin where the extent does
    ([(0, 1 << 20, K12, ENCODED)], [(0, 9 << 20, K8, ENCODED), (K8, 1 << 20, K4, ENCODED)], [(K8, K4)]),
    ([(0, 1 << 20, K4, ENCODED)], [(0, 1 << 20, K4, PLAIN)], []),
    # other flags do not matter: a snapshot came or went, and another row is the last
    ([(0, 1 << 20, K4, SHARED)], [(0, 1 << 20, K4, LAST)], [(0, K4)]),
    # what is not written, and what is in the tree itself, has no place to be moved from
    ([(0, 1 << 20, K4, UNWRITTEN)], [(0, 1 << 20, K4, UNWRITTEN)], []),
    ([(0, 0, K4, INLINE)], [(0, 0, K4, INLINE)], []),
    # a hole between, and rows that end together
    ([(0, 1 << 20, K4, PLAIN), (K8, 2 << 20, K4, PLAIN)], [(0, 5 << 20, K4, PLAIN), (K8, 2 << 20, K4, PLAIN)],
     [(K8, K4)]),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "left"), MAPS)
def test_data_at_the_same_place_was_not_moved(before: Rows, after: Rows, left: list[tuple[int, int]]) -> None:
    maps = ([Extent(*row) for row in rows] for rows in (before, after))
    assert list(fiemap.find_same_places(*maps)) == left


def test_each_run_of_data_has_extents_of_its_own() -> None:
    runs = [(0, 128 * KIB), (256 * KIB, 128 * KIB + 1), (1 << 20, 1)]
    assert count_least_extents(runs, compressed=True) == 4
    assert count_least_extents(runs, compressed=False) == 3


def test_an_errno_of_many_causes_names_none_of_them() -> None:
    assert executor.REASON_OF_ERRNO.keys().isdisjoint({errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.EBUSY})


def fail(monkeypatch: pytest.MonkeyPatch, error: OSError) -> Outcome:
    """Return the outcome of an action whose work raises `error`."""
    monkeypatch.setattr(executor, "_work", Mock(side_effect=error))
    pace = Pace(most_bytes=1, piece_us=None, ask=lambda _: None, tell=lambda _: None)
    return executor.execute(Action("/j/a.journal", Verb.COMPRESS, Reason.UNCOMPRESSED), pace).outcome


def test_a_call_that_a_suspended_machine_ended_is_made_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = fail(monkeypatch, OSError(errno.EAGAIN, ""))
    assert (outcome.result, outcome.reason in PASSING) == (Result.SKIPPED, True)


@pytest.mark.parametrize("number", [0, None])
def test_an_error_without_an_errno_is_no_success(monkeypatch: pytest.MonkeyPatch, number: int | None) -> None:
    error = OSError(number, "why")
    monkeypatch.setattr("os.unlink", Mock(side_effect=error))
    (notice,) = runner.remove_leftovers([f"/{TEMPORARY_PREFIX}x{TEMPORARY_SUFFIX}"])
    said = (fail(monkeypatch, error).detail, notice, explain_error(error)[1])
    assert [text.rpartition(": ")[2] for text in said] == ["unknown error"] * 3
