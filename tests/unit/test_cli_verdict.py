# SPDX-License-Identifier: LGPL-2.1-or-later
"""The first line of `status`: fine, or what to do."""

from __future__ import annotations

import time

import pytest

from journalkeeper import __version__
from journalkeeper.cli.status import _Recorded, verdict
from journalkeeper.model.manager import Manager
from journalkeeper.model.recorded import Run
from journalkeeper.model.units import HOUR_US
from journalkeeper.model.waiting import Wait

NOW_US = time.time_ns() // 1000
RUN = Run(1, "daemon", NOW_US - HOUR_US, NOW_US - HOUR_US + 1, 3, 0, 0, 100)
WELL = _Recorded(readable=True, last_run=RUN, written_day_bytes=0, totals=())
LIVE = Manager(state="idle", state_reason="", version=__version__, files=12, paused=False)


@pytest.mark.parametrize(
    ("recorded", "live", "sentence"),
    [
        (WELL, LIVE, "Fine: 12 journal files looked after."),
        (WELL._replace(readable=False, last_run=None), LIVE, "Fine: 12 journal files looked after."),
        (
            WELL,
            LIVE._replace(state_reason="waiting because of settling"),
            "Fine: 12 journal files looked after; waiting",
        ),
        (WELL, LIVE._replace(state="degraded", state_reason="no record"), "Act: no record; journalctl -u"),
        (WELL, LIVE._replace(version="0.0.1"), "Act: the service is still version 0.0.1; sudo systemctl restart"),
        (WELL, LIVE._replace(limits=["too many"]), "Act: too many"),
        (WELL, LIVE._replace(paused=True), "Act: the service is paused; sudo journalkeeper resume"),
        (WELL._replace(last_run=RUN._replace(failed=2)), LIVE, "Act: 2 files failed in the last run; journalkeeper h"),
        (WELL._replace(waiting=(Wait("/a", NOW_US - 49 * HOUR_US, "budget"),)), LIVE, "Act: 1 file has waited for 2d"),
        (WELL, None, "Fine: a run by hand or by the timer was within the last two days"),
        (WELL._replace(last_run=RUN._replace(began_us=NOW_US - 49 * HOUR_US)), None, "Act: nothing looks after this"),
        (WELL._replace(last_run=None), None, "Act: nothing looks after this journal; sudo systemctl enable --now"),
        (WELL._replace(readable=False, last_run=None), None, "Act: the service does not run, and only root may read"),
    ],
)
def test_the_verdict(recorded: _Recorded, live: Manager | None, sentence: str) -> None:
    fine, said = verdict(recorded, live)
    assert said.startswith(sentence)
    assert fine == sentence.startswith("Fine")


@pytest.mark.parametrize("recorded", [WELL, WELL._replace(last_run=None), WELL._replace(readable=False, last_run=None)])
def test_where_no_journal_is_on_btrfs_nothing_has_to_look_after_it(recorded: _Recorded) -> None:
    found = verdict(recorded, None, ("/var/log/journal",))
    assert found == (True, "Fine: /var/log/journal is not on btrfs; there is nothing to do.")
    assert not verdict(recorded, LIVE._replace(state="degraded"), ("/var/log/journal",))[0]
