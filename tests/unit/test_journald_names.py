# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of journal files."""

from __future__ import annotations

import pytest

from journalkeeper.journald.names import Name, classify, is_leftover
from journalkeeper.model import Kind

ID = "0123456789abcdef0123456789abcdef"
TAIL = f"@{ID}-0000000000000010-000660c1e2667e58.journal"
TIME_US = 0x660C1E2667E58


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("system.journal", "system"),
        ("user-1000.journal", "user:1000"),
        ("user-0.journal", "user:0"),
        ("user-4294967294.journal", "user:4294967294"),
        ("remote-192.0.2.1.journal", "remote"),
        ("remote.journal", "remote"),
        ("user-01.journal", "remote"),
        ("user-x.journal", "remote"),
        ("user-.journal", "remote"),
        ("user-1000\n.journal", "remote"),
        ("user-\u0661.journal", "remote"),
        ("System.journal", "remote"),
        ("anything.journal", "remote"),
        (".journal", "remote"),
        (".hidden.journal", "remote"),
    ],
)
def test_plain_name_is_active_and_says_whose(name: str, owner: str) -> None:
    assert classify(name) == Name(Kind.ACTIVE, owner)


@pytest.mark.parametrize(
    ("stem", "owner"),
    [
        ("system", "system"),
        ("user-1000", "user:1000"),
        ("remote-host", "remote"),
        ("remote-a@b", "remote"),
        ("", "remote"),
        ("\udcff\n", "remote"),
    ],
)
def test_archived_name_says_seqnum_and_time(stem: str, owner: str) -> None:
    assert classify(stem + TAIL) == Name(Kind.ARCHIVED, owner, ID, 16, TIME_US)


def test_archived_name_in_capitals_is_vacuumed_by_journald_and_so_archived() -> None:
    assert classify(f"system@{ID.upper()}-00000000000000AB-0000000000000001.journal") == Name(
        Kind.ARCHIVED, "system", ID, 0xAB, 1
    )


@pytest.mark.parametrize(
    "name",
    [
        f"system@{ID}-0000000000000010.journal",
        f"system@{ID[:-1]}-0000000000000010-000660c1e2667e58.journal",
        f"system@{ID}-000000000000010-000660c1e2667e58.journal",
        f"system@{ID}-0000000000000010-000660c1e2667e5g.journal",
        f"system@{ID}_0000000000000010-000660c1e2667e58.journal",
        "system@000660c1e2672bed-ab02f0ccc51b8886.journal",
    ],
)
def test_name_that_is_almost_an_archive_is_never_exchanged_and_so_active(name: str) -> None:
    found = classify(name)
    assert found is not None
    assert found.kind is Kind.ACTIVE


@pytest.mark.parametrize(
    ("name", "owner", "time_us"),
    [
        ("system@000660c1e2672bed-ab02f0ccc51b8886.journal~", "system", 0x660C1E2672BED),
        ("user-1000@000660c1e2672bed-ab02f0ccc51b8886.journal~", "user:1000", 0x660C1E2672BED),
        ("remote-h@000660c1e2672bed-ab02f0ccc51b8886.journal~", "remote", 0x660C1E2672BED),
        ("system@1-2.journal~", "system", 0),
        ("system.journal~", "system", 0),
    ],
)
def test_name_with_a_tilde_is_unclean(name: str, owner: str, time_us: int) -> None:
    assert classify(name) == Name(Kind.UNCLEAN, owner, realtime_us=time_us)


@pytest.mark.parametrize(
    "name",
    ["", "fss", "journal", "system.journal.bak", "system.journal\n", "system.JOURNAL", "system.journal~~",
     ".journalkeeper-1.tmp", "system.journal.tmp", "\udcff", "user-1000"]
)  # fmt: skip
def test_other_names_are_no_journals(name: str) -> None:
    assert classify(name) is None


def test_temporary_files_of_ours_are_leftovers_and_no_journals() -> None:
    assert is_leftover(".journalkeeper-system@1.tmp")
    assert classify(".journalkeeper-system@1.tmp") is None


@pytest.mark.parametrize("name", ["journalkeeper-1.tmp", ".journalkeeper-1", ".journalkeeper-1.tmp~", "system.journal"])
def test_files_of_others_are_no_leftovers(name: str) -> None:
    assert not is_leftover(name)
