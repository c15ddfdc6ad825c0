# SPDX-License-Identifier: LGPL-2.1-or-later
"""A version of the finished files has the sums of its files, and differs where it is another."""

from __future__ import annotations

import random

import pytest

from journalkeeper.model import Reason, Skip
from journalkeeper.model.finished import NONE_FINISHED, Finished, FinishedFile, Sums, sums
from tests import hosts


def one(number: int, *, directory: str = "/j/m", disk_bytes: int | None = None) -> FinishedFile:
    row = hosts.file(path=f"{directory}/{number}", extents=hosts.extents(number), disk_bytes=disk_bytes)
    return FinishedFile(row, Skip(row.path, Reason.IDEAL, ""), fragmented=number % 2 == 1)


def counted(finished: Finished) -> dict[str, Sums]:
    """The sums, made anew."""
    found: dict[str, Sums] = {}
    for path, known in finished.items():
        directory = path.rpartition("/")[0]
        found[directory] = found.get(directory, Sums()).plus(sums(known.file, fragmented=known.fragmented))
    return found


def test_sums_are_those_of_the_files_after_any_changes() -> None:
    chance = random.Random(1)  # noqa: S311 - no secret
    finished, expected = NONE_FINISHED, dict[str, FinishedFile]()
    for _ in range(500):
        came = [one(chance.randrange(50), directory=f"/j/{chance.randrange(3)}") for _ in range(chance.randrange(4))]
        gone = [f"/j/{chance.randrange(3)}/{chance.randrange(50)}" for _ in range(chance.randrange(4))]
        finished = finished.changed(gone=gone, came=came)
        expected = {path: known for path, known in expected.items() if path not in gone}
        expected |= {known.file.path: known for known in came}
        assert dict(finished) == expected
        assert len(finished) == len(expected)
        assert dict(finished.sums) == counted(finished)
        assert finished.reasons.get(Reason.IDEAL, 0) == len(expected)


def test_an_older_version_stays_what_it_was() -> None:
    before = NONE_FINISHED.changed(came=[one(1), one(2)])
    after = before.changed(gone=["/j/m/1"], came=[one(3)])
    assert (sorted(NONE_FINISHED), sorted(before), sorted(after)) == ([], ["/j/m/1", "/j/m/2"], ["/j/m/2", "/j/m/3"])
    assert after.differing(before) == before.differing(after) == {"/j/m/1", "/j/m/3"}


def test_a_file_that_is_made_anew_differs_though_it_says_the_same() -> None:
    before = NONE_FINISHED.changed(came=[one(1)])
    assert before.changed(came=[one(1)]).differing(before) == {"/j/m/1"}


def test_nothing_new_is_the_very_same() -> None:
    before = NONE_FINISHED.changed(came=[one(1)])
    assert before.changed(gone=["/j/m/7"]) is before
    assert before.differing(before) == set()


@pytest.mark.parametrize(("disk_bytes", "unmeasured"), [(None, 1), (0, 0), (7, 0)])
def test_disk_bytes_that_nobody_knows_are_counted(disk_bytes: int | None, unmeasured: int) -> None:
    found = NONE_FINISHED.changed(came=[one(1, disk_bytes=disk_bytes)]).total
    assert (found.disk_bytes, found.unmeasured) == (disk_bytes or 0, unmeasured)
