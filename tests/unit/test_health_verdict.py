# SPDX-License-Identifier: LGPL-2.1-or-later
"""The verdict of the service on itself, the verdict of `status`, and their sentences."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper import __version__
from journalkeeper.cli.status import _describe_ok
from journalkeeper.health import verdict
from journalkeeper.health.evidence import Evidence, Hung, Obstacle, Present, Silence, Unit, Unknown
from journalkeeper.health.finding import judge
from journalkeeper.health.verdict import HEALTH, describe_absence, judge_present, keep_failures, summarize_run
from journalkeeper.model import Outcome, Plan, Reason, Result, Skip, Window
from journalkeeper.model.manager import Finding, Manager, Severity
from journalkeeper.model.run import HistoryEntry, Run, Wait
from journalkeeper.model.units import HOUR_US, SECOND_US
from tests.evidence import UNITS, look, recorded
from tests.hosts import NOW_US, outcome

RUN = Run(1, "defrag", NOW_US - HOUR_US, NOW_US - HOUR_US + 1, 3, 0, 0, 100)
BAD = outcome("/j/a", result=Result.FAILED, reason=Reason.IO_ERROR, detail="Input/output error")
PASSING = BAD._replace(reason=Reason.CHANGED)
FAILED = recorded(last_run=RUN, entries=(HistoryEntry(NOW_US, "daemon", BAD),))
WAITING = recorded(last_run=RUN, waiting=(Wait("/a", NOW_US - 49 * HOUR_US, "budget"),))
BY_SERVICE = RUN._replace(origin="daemon")
NO_ROOM = Finding("keeper-failing", Severity.PROBLEM, {}, "no room.", ("df",))
LIVE = Manager(version=__version__, health="ok", health_reasons=[], state="idle", state_reason="", files=12)
WELL = Evidence(NOW_US, record=recorded(last_run=RUN), units=UNITS, service=LIVE, unwritable=(), silent=(), full=())
BY_HAND = WELL._replace(service=None, units=(Unit("journalkeeper.service", "inactive", "dead", "disabled"),))
STOPPED = WELL._replace(service=None, units=(Unit("journalkeeper.service", "inactive", "dead", "enabled"),))
STARTING = STOPPED._replace(units=(*STOPPED.units, Unit("journalkeeper.timer", "active", "waiting", "enabled")))
BROKEN = STOPPED._replace(units=(Unit("journalkeeper.service", "failed", "failed", "enabled", "exit-code"),))
AGAIN = STOPPED._replace(units=(Unit("journalkeeper.service", "activating", "auto-restart", "enabled", "success"),))
BEGUN = STOPPED._replace(units=(Unit("journalkeeper.service", "activating", "start", "enabled", age_us=12_000_000),))
FAULT = Skip("/j/a", Reason.IO_ERROR, "EIO")
UNREAD = Unknown("only root may read the history", needs_root=True)


def live(**changes: Any) -> Evidence:
    """Return evidence of a running service with these properties."""
    return WELL._replace(service=LIVE._replace(**changes))


def by_hand(when_us: int, outcome: Outcome) -> Evidence:
    return BY_HAND._replace(record=FAILED._replace(entries=(HistoryEntry(when_us, "daemon", outcome),)))


@pytest.mark.parametrize(
    ("evidence", "headline"),
    [
        (WELL._replace(record=UNREAD), "OK: 12 journal files."),
        (live(state="waiting", state_reason="3 files wait"), "OK: 12 journal files. 3 files wait."),
        (live(health="act", findings=(NO_ROOM,)), "Act: no room. Try: df"),
        (live(version="0.0.1"), "Act: The running service is still version 0.0.1, "),
        (live(state_reason="/j is not on btrfs"), "OK: /j is not on btrfs."),
        (live(health="unknown"), "Unknown: the service has just started and has not yet examined all files."),
        (WELL._replace(service=Hung("It does not answer")), "Act: It does not answer. Try: systemctl restart "),
        (WELL._replace(service=Hung("The bus is busy", is_bus_busy=True)), "Unknown: The bus is busy."),
        (WELL._replace(config_error="/etc/a.conf:3: Compress: no"), "Act: /etc/a.conf:3: Compress: no. Try: "),
        (STOPPED, "Act: journalkeeper.service is enabled but does not run, so nothing defragments the journal. Try: "),
        (AGAIN, "Unknown: systemd starts journalkeeper.service again in a moment."),
        (BEGUN._replace(service=Hung()), "Unknown: journalkeeper.service has been starting for 12s."),
        (WELL._replace(silent=(("j.service", Silence.MASKED),)), "Act: j.service is masked and does not run: no mess"),
        (BROKEN, "Act: journalkeeper.service has failed (exit-code), so nothing defragments the journal. Try: "),
        (BROKEN._replace(config_error="/etc/a.conf:3: no"), "Act: /etc/a.conf:3: no. Try: journalkeeper check-config"),
        (BY_HAND, "OK: the last run, 1h ago, did not fail; no further run starts by itself (to enable the service:"),
        (BY_HAND._replace(record=recorded(last_run=BY_SERVICE)), "Act: journalkeeper.service is installed but not"),
        (STARTING, "Unknown: the service does not run yet; journalkeeper.timer starts it about 10 s after"),
        (BY_HAND._replace(record=FAILED), "Act: /j/a failed: Input/output error. Try: journalkeeper history"),
        (by_hand(NOW_US, PASSING), "OK: the last run, "),
        (by_hand(RUN.began_us - 1, BAD), "OK: the last run, "),
        (by_hand(RUN.began_us, BAD), "Act: /j/a failed"),
        (BY_HAND._replace(record=WAITING), "Act: 1 file has waited for 2d for work (budget). Try: journalkeeper plan"),
        (BY_HAND._replace(record=UNREAD), "Act: journalkeeper.service is installed but not enabled"),
        (STOPPED._replace(units=UNITS[:1]), "Act: journalkeeper.service runs but is not on the system bus."),
        (STOPPED._replace(units=Unknown("no bus"), record=UNREAD), "Unknown: only root may read the history."),
        (STOPPED._replace(look=look(foreign=("/j",), instances=())), "OK: /j is not on btrfs; there is nothing to do."),
    ],
)
def test_the_headline_of_status(evidence: Evidence, headline: str) -> None:
    evidence = evidence._replace(present=verdict.find_present(evidence))
    found = judge(evidence, HEALTH)
    assert found.headline(_describe_ok(evidence)).startswith(headline)
    assert found.health == {"OK": "ok", "Ac": "act", "Un": "unknown"}[headline[:2]]
    assert (found.reasons == []) == (found.health == "ok")


def test_a_service_that_does_not_answer_is_not_called_stopped_where_it_runs() -> None:
    assert describe_absence(STOPPED.units).startswith("not running; ")
    assert describe_absence(UNITS[:1]).startswith("no answer on D-Bus; ")
    assert describe_absence(Unknown("no bus")).startswith("no answer on D-Bus; ")


def test_status_shows_the_verdict_of_the_service_that_it_reads_from_the_bus() -> None:
    here = Present(failures=(FAULT,), unwritable=(("/j", Obstacle.MOUNT),))
    own = judge_present(here, NOW_US)
    live = LIVE._replace(health=own.health, findings=own.findings)
    seen = judge(WELL._replace(service=live, present=Present()), HEALTH)
    assert (seen.health, seen.findings, seen.headline("")) == (own.health, own.findings, own.headline(""))
    assert [one.word for one in seen.problems] == ["directory-unwritable", "files-failing"]


SETTLES = Skip("/j/a", Reason.SETTLING, "1 s", puts_off=True)
SHUT = Skip("/j/m/b", Reason.WINDOW_CLOSED, "soon", puts_off=True, instance="m")


TOO_SHORT = Window("m", open=False, closes_at_us=None, reason="too-short")


@pytest.mark.parametrize(
    ("plan", "outcomes", "words"),
    [
        (Plan({}, (), ()), (BAD,), ["files-failing"]),
        (Plan({}, (), ()), (BAD._replace(reason=Reason.CHANGED),), []),
        (Plan({}, (), (FAULT,)), (), ["files-failing"]),
        (Plan({}, (), (Skip("/j/a", Reason.READ_ONLY, ""),)), (), []),
        (Plan({}, (), (Skip("/j/a", Reason.FREE_SPACE, "8 MiB are needed", puts_off=True),)), (), ["volume-full"]),
        (Plan({}, (), (Skip("/j", Reason.TOO_MANY, "9 more"),)), (), ["limit-reached"]),
        (Plan({"m": TOO_SHORT}, (), (SHUT,)), (), ["window-closed"]),
        (Plan({"m": TOO_SHORT}, (), ()), (), []),
        (Plan({"m": TOO_SHORT}, (), (SHUT._replace(path="/m/o/b", instance="o"),)), (), []),
    ],
)
def test_the_verdict_after_a_run(plan: Plan, outcomes: tuple[object, ...], words: list[str]) -> None:
    found = judge_present(summarize_run(plan, outcomes), NOW_US + SECOND_US)  # type: ignore[arg-type]
    assert [one.word for one in found.problems] == words


FULL = Skip("/j/a", Reason.FREE_SPACE, "8 MiB are needed", puts_off=True)


@pytest.mark.parametrize(
    ("failure", "decided", "holds"),
    [
        (FAULT, FAULT._replace(detail="tried 1min ago"), True),
        (FAULT, SETTLES, True),
        (FAULT, SETTLES._replace(puts_off=False), False),
        (FAULT, BAD, False),
        (FAULT, None, False),
        (FULL, FULL, True),
        (FULL, SETTLES, False),
    ],
)
def test_a_failure_lasts_while_the_file_waits_or_fails_again(failure: Skip, decided: object, *, holds: bool) -> None:
    assert keep_failures([failure], {"/j/a": decided}) == [failure] * holds
