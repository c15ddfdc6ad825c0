# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of journal files."""

from __future__ import annotations

import pytest

from journalkeeper.journald.layout import Name, classify, is_leftover
from journalkeeper.model import Kind

ID = "0123456789abcdef0123456789abcdef"
TAIL = f"@{ID}-0000000000000010-000660c1e2667e58.journal"
TIME_US = 0x660C1E2667E58
STAMP = "000660c1e2672bed-ab02f0ccc51b8886.journal"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("system.journal", Name(Kind.ACTIVE, "system")),
        *((f"user-{uid}.journal", Name(Kind.ACTIVE, f"user:{uid}")) for uid in (0, 1000, 4294967294)),
        *((f"{stem}.journal", Name(Kind.ACTIVE, "remote")) for stem in ("remote", "remote-192.0.2.1", "anything", "")),
        *((f"user-{odd}.journal", Name(Kind.ACTIVE, "remote")) for odd in ("01", "x", "", "1000\n", "\u0661")),
        *((f"{odd}.journal", Name(Kind.ACTIVE, "remote")) for odd in ("System", ".hidden")),
        (f"system{TAIL}", Name(Kind.ARCHIVED, "system", TIME_US)),
        (f"user-1000{TAIL}", Name(Kind.ARCHIVED, "user:1000", TIME_US)),
        *((odd + TAIL, Name(Kind.ARCHIVED, "remote", TIME_US)) for odd in ("remote-a@b", "", "\udcff\n")),
        # vacuum reads capital digits, too
        (f"system@{ID.upper()}-{0xAB:016X}-{1:016}.journal", Name(Kind.ARCHIVED, "system", 1)),
        (f"system@{STAMP}~", Name(Kind.UNCLEAN, "system", realtime_us=0x660C1E2672BED)),
        (f"user-1000@{STAMP}~", Name(Kind.UNCLEAN, "user:1000", realtime_us=0x660C1E2672BED)),
        (f"remote-h@{STAMP}~", Name(Kind.UNCLEAN, "remote", realtime_us=0x660C1E2672BED)),
        ("system@1-2.journal~", Name(Kind.UNCLEAN, "system")),
        ("system.journal~", Name(Kind.UNCLEAN, "system")),
        # almost an archive's
        *((f"system@{odd}.journal", Name(Kind.ACTIVE, "remote")) for odd in (
            f"{ID}-0000000000000010", f"{ID[:-1]}-0000000000000010-000660c1e2667e58",
            f"{ID}-0000000000000010-000660c1e2667e5g", STAMP.removesuffix(".journal"),
        )),
        *((odd, None) for odd in ("", "fss", "journal", "user-1000", "system.journal.bak", "system.journal\n")),
        *((odd, None) for odd in ("system.JOURNAL", "system.journal~~", "system.journal.tmp", "\udcff")),
    ],
)  # fmt: skip
def test_a_name_shows_kind_owner_and_time(name: str, parts: Name | None) -> None:
    assert classify(name) == parts


def test_our_temporary_files_are_leftovers() -> None:
    assert is_leftover(".journalkeeper-system@1.tmp")
    assert classify(".journalkeeper-system@1.tmp") is None
    for other in ("journalkeeper-1.tmp", ".journalkeeper-1", ".journalkeeper-1.tmp~", "system.journal"):
        assert not is_leftover(other)
