# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON contract: keys and what they mean."""

from __future__ import annotations

import pytest

from journalkeeper.model import Outcome, Reason, Request, Result, Verb
from journalkeeper.model.run import disk_sums


def outcome(before: int | None = 10, after: int | None = 4) -> Outcome:
    return Outcome("/j/a", Verb.COMPRESS, Result.DONE, Reason.FRAGMENTED, 100, 3, before, after, 4096, 0.25)


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
