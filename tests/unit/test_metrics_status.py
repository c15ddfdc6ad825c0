# SPDX-License-Identifier: LGPL-2.1-or-later
"""The numbers of a host, before and after a run."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper.config import Config
from journalkeeper.metrics.prometheus import compute_status
from journalkeeper.model import MIB, Host, Kind, Outcome, Plan, Reason, Result, Skip, Verb, Window
from journalkeeper.policy.cost import is_fragmented
from tests import hosts

WHOLE_FILE = 256
"""Extents of 32 MiB in pieces of 128 KiB: what compression makes."""

ARCHIVE = hosts.file(path="/j/m/archive", disk_bytes=90, extents=hosts.extents(5000, shared_bytes=7))
ACTIVE = hosts.file(Kind.ACTIVE, path="/j/m/active", disk_bytes=10, extents=hosts.extents(40))
BROKEN = hosts.file(path="/j/m/broken", problem=Reason.BAD_HEADER, extents=hosts.extents(0, 0), size_bytes=0)
NOTHING = Plan({}, (), ())


def outcome(of: str = "/j/m/archive", **words: Any) -> Outcome:
    return hosts.outcome(of, **{"extents_after": 260, "disk_bytes_before": 90, "disk_bytes_after": 20, **words})


def host(**words: Any) -> Host:
    return hosts.host(ARCHIVE, ACTIVE, BROKEN, **words)


def test_files_add_up_and_those_with_a_problem_count_as_files_only() -> None:
    found = compute_status(host(), NOTHING, (), Config())
    assert (found.files, found.problem_files) == (3, 1)
    assert (found.sums["extents"], found.active_extents, found.sums["ideal_extents"]) == (5040, 40, 2)
    assert (found.sums["size_bytes"], found.sums["allocated_bytes"]) == (64 * MIB, 64 * MIB)
    assert (found.sums["shared_bytes"], found.sums["disk_bytes"]) == (7, 100)


def test_a_rewrite_that_was_done_shows_in_the_numbers() -> None:
    found = compute_status(host(), NOTHING, (outcome(),), Config())
    assert (found.sums["extents"], found.sums["ideal_extents"], found.sums["disk_bytes"]) == (300, WHOLE_FILE + 1, 30)
    assert (found.fragmented_files, found.active_extents) == (0, 40)
    less = compute_status(host(), NOTHING, (outcome(extents_after=3),), Config())
    assert (less.sums["extents"], less.sums["ideal_extents"]) == (43, 3 + 1), "no more than the rewrite left"


ROTATION = hosts.outcome(ACTIVE.path, action=Verb.ROTATE, extents_after=2, disk_bytes_after=None)
"""Its numbers are of the new file, which the next look adds."""


@pytest.mark.parametrize("one", [outcome(result=Result.FAILED), outcome(result=Result.SKIPPED), ROTATION])
def test_an_outcome_that_is_no_rewrite_changes_no_number(one: Outcome) -> None:
    found = compute_status(host(), NOTHING, (one._replace(bytes_written=0),), Config())
    assert found == compute_status(host(), NOTHING, (), Config())


@pytest.mark.parametrize(("before", "after", "known"), [(None, None, None), (90, None, None), (None, 20, 30)])
def test_the_disk_is_known_where_all_of_its_files_are(before: int | None, after: int | None, known: int | None) -> None:
    one = ARCHIVE._replace(disk_bytes=before)
    found = compute_status(hosts.host(one, ACTIVE), NOTHING, (outcome(disk_bytes_after=after),), Config())
    assert found.sums["disk_bytes"] == known


def test_files_that_are_left_alone_are_counted_by_reason_and_directories_are_not() -> None:
    reasons = {"/j/m/archive": Reason.SHARED, "/j/m/active": Reason.SHARED, "/j/m/broken": Reason.BAD_HEADER}
    skipped = tuple(Skip(path, reason, "") for path, reason in {**reasons, "/j/m": Reason.BUDGET}.items())
    found = compute_status(host(), Plan({}, (), skipped), (), Config())
    assert found.skipped == ((Reason.BAD_HEADER, 1), (Reason.SHARED, 2))


@pytest.mark.parametrize(("windows", "is_open"), [((), False), ((False,), False), ((False, True), True)])
def test_the_window_is_open_where_any_is(windows: tuple[bool, ...], *, is_open: bool) -> None:
    shown = {f"{name}": Window("", open=one, closes_at_us=None, reason="") for name, one in enumerate(windows)}
    assert compute_status(host(), Plan(shown, (), ()), (), Config()).window_open is is_open


@pytest.mark.parametrize(
    ("budget", "before", "left"), [(5000, 0, 4000), (5000, 4000, 0), (5000, 4500, 0), (None, 10, None)]
)
def test_the_budget_that_is_left_lacks_the_newest_bytes(budget: int | None, before: int, left: int | None) -> None:
    config = hosts.configured("budget", bytes_per_day=budget)
    found = compute_status(host(written_bytes=before), NOTHING, (outcome(),), config)
    assert (found.budget_bytes, found.budget_left_bytes) == (budget, left)


@pytest.mark.parametrize(
    ("total", "parts", "compress", "fragmented"),
    [
        (33, 1, "no", True),
        (32, 1, "no", False),
        (WHOLE_FILE + 32, 1, "zstd", True),
        (WHOLE_FILE + 31, 1, "zstd", False),
        (64 * WHOLE_FILE + 100, 64, "zstd", False),  # a large one is nearly whole
    ],
)
def test_archives_are_fragmented_from_min_extents_on(
    total: int, parts: int, compress: str, *, fragmented: bool
) -> None:
    one = hosts.file(size_bytes=parts * 32 * MIB, extents=hosts.extents(total, parts * 32 * MIB))
    assert is_fragmented(one, None, hosts.configured("defrag", compress=compress)) is fragmented


def test_an_active_file_is_fragmented_where_a_range_of_it_is_dense_and_whole_after_work_on_it() -> None:
    least = Config().defrag.extents_per_mib
    dense, thin = (hosts.file(Kind.ACTIVE, extents=hosts.extents(900, per_mib=(1, n, 1))) for n in (least, least - 1))
    assert is_fragmented(dense, None, Config())
    assert not is_fragmented(dense, outcome(dense.path), Config())
    assert not is_fragmented(thin, None, Config())
