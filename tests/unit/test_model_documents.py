# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON contract: keys and what they mean."""

from __future__ import annotations

import json

import pytest

from journalkeeper.model import Outcome, Plan, Reason, Request, Result, Skip, Verb
from journalkeeper.model.run import Report, defrag_document, disk_sums, parse_skips
from journalkeeper.model.schema import to_json
from tests import hosts


def outcome(before: int | None = 10, after: int | None = 4) -> Outcome:
    return Outcome("/j/a", Verb.COMPRESS, Result.DONE, Reason.FRAGMENTED, 100, 3, before, after, 4096, 0.25)


def test_skipped_files_of_a_plan_are_read_back_also_from_an_older_version() -> None:
    skip = Skip("/j/b", Reason.SETTLING, "1", until_us=7, now=True)
    assert parse_skips(json.loads(json.dumps(to_json(Plan((), (), (skip,)))))) == (skip,)
    older = {"skipped": [{"path": "/j/b", "reason": "ideal", "detail": "1"}]}
    assert parse_skips(older) == (Skip("/j/b", Reason.IDEAL, "1"),)
    with pytest.raises(ValueError, match="moonlight"):
        parse_skips({"skipped": [{"path": "/j/b", "reason": "moonlight", "detail": "1"}]})


def test_a_skipped_file_is_an_outcome_with_its_reason_and_extents() -> None:
    skipped = (Skip("/j/b", Reason.RECORDED, "yesterday"), Skip("/j/gone", Reason.VANISHED, ""))
    seen = hosts.file(path="/j/b", extents=hosts.extents(7))
    ran = Report(Plan((), (), skipped), (), 0, 1.5, (), hosts.host(seen))
    written = json.loads(json.dumps(defrag_document(ran)))
    known, gone = written["outcomes"]
    assert (known["action"], known["result"], known["reason"]) == ("defragment", "skipped", "recorded")
    assert (known["extents_before"], known["extents_after"], known["bytes_written"]) == (7, 7, 0)
    assert gone["extents_before"] == 0
    assert written["totals"]["skipped"] == 2
    assert written["totals"]["disk_bytes_before"] is None


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
