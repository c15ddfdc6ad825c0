# SPDX-License-Identifier: LGPL-2.1-or-later
"""How the worker's messages change the state, and who follows what happens."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper.health.evidence import Obstacle, Present, Silence
from journalkeeper.model import Outcome, Plan, Reason, Result, Skip, Verb, Window
from journalkeeper.model.manager import Manager
from journalkeeper.model.run import Progress, Report
from journalkeeper.service import snapshot
from journalkeeper.service.snapshot import FileDone, Findings, Looked, NotOnBtrfs, Progressed, RunFailed, Snapshot
from tests.hosts import volume

CALM = Snapshot(("/j",))
PROGRESS = Progress(1, 2, "/j/a", 3, 4)
REPORT = Report(Plan({}, (), ()), (), 0, 0.0, ())
FOUND = Findings({}, {}, Manager())
WINDOW = Window("m", open=True, closes_at_us=8, reason="online")
DONE = Outcome("/j/a", Verb.COMPRESS, Result.DONE, Reason.FRAGMENTED, 9, 1, 900, 400, 100, 1.0)

BAD = DONE._replace(result=Result.FAILED, reason=Reason.IO_ERROR, detail="EIO")
FAILURE = Skip("/j/a", Reason.IO_ERROR, "EIO")
LIMIT = Skip("/j", Reason.TOO_MANY, "9 more")
REFUSED = FOUND._replace(decided={"/j/a": Skip("/j/a", Reason.IO_ERROR, "tried 1min ago")})
UNWRITABLE = (("/j", Obstacle.MODE),)
STANDING: dict[str, Any] = {
    "configuration": "wrong",
    "unwatched": "no space",
    "unwritable": UNWRITABLE,
    "silent": (("systemd-journald.service", Silence.STOPPED),),
    "full": (("/j", volume()),),
    "paused": "until 9",
}
"""What a run does not change."""
HELD = {"busy": "held", "busy_since_us": 5}
WORKED = CALM._replace(last_run_us=5, bytes_written=100, bytes_reclaimed=500)


def with_present(**words: Any) -> Snapshot:
    """The calm state with these words about the work."""
    return CALM._replace(present=CALM.present._replace(**words))


def looked(found: Findings, *failures: Skip, **words: Any) -> Snapshot:
    """The state after a look that found these, with these words about the service."""
    return CALM._replace(findings=found, present=Present(failures=failures, **words))


@pytest.mark.parametrize(
    ("state", "message", "expected"),
    [
        (CALM, Progressed(0, PROGRESS), CALM._replace(working=True)),
        (CALM._replace(working=True), RunFailed("no btrfs", 5), with_present(problem="no btrfs")),
        (with_present(problem="no btrfs"), RunFailed("", 5), with_present()),
        (looked(FOUND, FAILURE)._replace(working=True), NotOnBtrfs("/j"), with_present(foreign="/j", looked=True)),
        (CALM, RunFailed("held", 5, busy=True), with_present(**HELD)),
        (with_present(**HELD), RunFailed("held by 7", 9, busy=True), with_present(**{**HELD, "busy": "held by 7"})),
        (
            with_present(problem="no btrfs", paused="until noon")._replace(working=True),
            Looked(FOUND, Present(failures=(LIMIT,)), REPORT, 1.0),
            Snapshot(("/j",), findings=FOUND, present=Present(failures=(LIMIT,), paused="until noon")),
        ),
        (CALM, FileDone(BAD, 5), with_present(failures=(FAILURE,))),
        (with_present(failures=(FAILURE,)), FileDone(DONE, 5), WORKED),
        (with_present(failures=(FAILURE,)), Looked(FOUND, Present(), REPORT, 1.0), looked(FOUND)),
        (with_present(failures=(FAILURE,)), Looked(REFUSED, Present(), REPORT, 1.0), looked(REFUSED, FAILURE)),
        (WORKED, FileDone(DONE, 7), WORKED._replace(last_run_us=7, bytes_written=200, bytes_reclaimed=1000)),
        (CALM, FileDone(DONE._replace(result=Result.SKIPPED), 5), CALM),
        (CALM, FOUND, CALM._replace(findings=FOUND)),
        (CALM, snapshot.Checked("wrong", UNWRITABLE), with_present(configuration="wrong", unwritable=UNWRITABLE)),
        (with_present(**STANDING), Looked(FOUND, Present(), REPORT, 1.0), looked(FOUND, **STANDING)),
        (with_present(**STANDING, busy="x"), NotOnBtrfs("/j"), with_present(**STANDING, foreign="/j", looked=True)),
        (CALM, snapshot.WorkEnded((WINDOW,), 9, 0.0, 0.0), CALM._replace(windows=(WINDOW,), next_flush_us=9)),
        (CALM, Progressed(1, PROGRESS), CALM),
    ],
)
def test_each_message_replaces_the_state(state: Snapshot, message: snapshot.Message, expected: Snapshot) -> None:
    assert snapshot.apply_message(state, message) == expected
