# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON contract: keys and what they mean."""

from __future__ import annotations

import pytest

from journalkeeper.model import Outcome, Plan, Reason, Request, Result, Skip, Verb
from journalkeeper.model.run import Report, disk_sums


def outcome(before: int | None = 10, after: int | None = 4) -> Outcome:
    return Outcome("/j/a", Verb.COMPRESS, Result.DONE, Reason.FRAGMENTED, 100, 3, before, after, 4096, 0.25)


def test_a_skipped_file_is_an_outcome_with_its_reason_and_extents() -> None:
    skipped = (Skip("/j/b", Reason.RECORDED, "yesterday", extents=7), Skip("/j/gone", Reason.VANISHED, ""))
    answer = Report(Plan((), (), skipped), (outcome(),), 4096, 1.5, ()).answer
    done, known, gone = answer.outcomes
    assert done == outcome()
    assert (known.action, known.result, known.reason) == (Verb.DEFRAGMENT, Result.SKIPPED, Reason.RECORDED)
    assert (known.extents_before, known.extents_after, known.bytes_written, known.detail) == (7, 7, 0, "yesterday")
    assert gone.extents_before == 0
    assert (answer.totals.files, answer.totals.done, answer.totals.skipped) == (3, 1, 2)
    assert (answer.totals.extents_before, answer.totals.disk_bytes_before, answer.totals.bytes_written) == (
        107,
        10,
        4096,
    )


@pytest.mark.parametrize(
    ("request_", "active", "archived", "hurries", "directories"),
    [
        (Request(), True, True, False, True),
        (Request(active=True, archived=True), True, True, False, True),
        (Request(active=True), True, False, False, True),
        (Request(archived=True), False, True, False, False),
        (Request(paths=("/j/a",)), True, True, False, False),
        (Request(now=True), True, True, True, True),
        (Request(before_shutdown=True), True, False, True, True),
        (Request(before_shutdown=True, archived=True), True, True, True, True),
    ],
)
def test_options_select_files_and_directories(
    request_: Request, *, active: bool, archived: bool, hurries: bool, directories: bool
) -> None:
    assert (request_.takes_active, request_.takes_archived) == (active, archived)
    assert (request_.hurries, request_._replace(upkeep=True).takes_directories) == (hurries, directories)
    assert not request_.takes_directories


def test_disk_sums_count_only_files_with_both_numbers() -> None:
    known, half, none = outcome(), outcome(1000, None), outcome(None, None)
    assert disk_sums((known, half, known, none)) == (20, 8)
    assert disk_sums((half, none)) == (None, None)
    assert disk_sums((outcome(0, 0),)) == (0, 0)
