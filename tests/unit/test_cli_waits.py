# SPDX-License-Identifier: LGPL-2.1-or-later
"""The sentence on files that wait, in the status of the service and in the summaries of plan and defrag."""

from __future__ import annotations

import pytest

from journalkeeper.cli.work import describe_no_actions
from journalkeeper.model import Reason, Skip


def skip(reason: Reason, *, path: str = "/j/a.journal", now: bool = True, puts_off: bool = True) -> Skip:
    """Return a skip that postpones work, which --now does at once."""
    return Skip(path, reason, "", None, now, puts_off)


WINDOW = skip(Reason.WINDOW_CLOSED)
FULL = skip(Reason.FREE_SPACE, path="/j/full.journal~", now=False)
NOCOW = skip(Reason.STARTING, path="/j")
MACHINE = "359c05c988ae4e1bb93764603ddcbbbd"
FLUSH = "1 file waits for journald's next flush."
NOW_HELPS = "`journalkeeper defrag --now` does not wait."
SOON = f"1 directory waits until the service has run for SettleSec=. {NOW_HELPS}"


@pytest.mark.parametrize(
    ("skips", "summary"),
    [
        ([], "Nothing to do: no journal file was found."),
        ([skip(Reason.SHARED, puts_off=False)], "Nothing to do: 1 file left alone."),  # --now would not help
        ([WINDOW], f"1 file left alone: 1 file waits for journald's next flush. {NOW_HELPS}"),
        (
            [skip(Reason.QUIET_HOURS)._replace(detail="until Fri 18:00 (QuietHours=)")],
            f"1 file left alone: 1 file waits until Fri 18:00 (QuietHours=). {NOW_HELPS}",
        ),
        ([skip(Reason.QUIET_HOURS)], f"1 file left alone: 1 file waits until QuietHours= ends. {NOW_HELPS}"),
        ([FULL], "1 file left alone: 1 file waits for free disk space."),
        ([skip(Reason.NOT_TAKEN)], f"1 file left alone: 1 file waits (not-taken). {NOW_HELPS}"),
        (
            [WINDOW, skip(Reason.SETTLING, path="/j/b.journal"), FULL, skip(Reason.SETTLING, path="/j/c.journal")],
            "4 files left alone: 2 files wait until SettleSec= has passed since the last change,"
            " 1 file waits for free disk space, 1 file waits for journald's next flush."
            " `journalkeeper defrag --now` works at once on 3 of these.",
        ),
        ([NOCOW], f"1 directory left alone: {SOON}"),
        # the directory waits for the flush of its file, or for one of its own; its name is its last part
        ([skip(Reason.WINDOW_CLOSED, path="/j"), WINDOW], f"1 file left alone: {FLUSH} {NOW_HELPS}"),
        (
            [skip(Reason.WINDOW_CLOSED, path=f"/j/{MACHINE}"), FULL],
            "1 file and 1 directory left alone: 1 file waits for free disk space, 1 directory waits for journald's next"
            " flush. `journalkeeper defrag --now` works at once on 1 of these.",
        ),
        (
            [
                skip(Reason.SNAPSHOTS, path="/j", puts_off=False),
                NOCOW,
                skip(Reason.NOT_JOURNAL, path="/etc/passwd", puts_off=False),
            ],
            f"1 file and 1 directory left alone. Of these, {SOON}",
        ),
    ],
)
def test_a_summary_counts_files_that_wait_and_promises_now_where_it_helps(skips: list[Skip], summary: str) -> None:
    assert describe_no_actions(skips) == summary
