# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the log and the service manager get of a run. In the worker thread."""

from __future__ import annotations

from journalkeeper.engine import Engine, now_us
from journalkeeper.model import Outcome, Reason, Result
from journalkeeper.model.reasons import describe_outcome
from journalkeeper.model.run import Report
from journalkeeper.model.waiting import sentence
from journalkeeper.policy import nocow
from journalkeeper.policy.deferral import PASSING
from journalkeeper.service.daily_log import DailyLog, Say
from journalkeeper.service.log import ERROR, INFO, WARNING, Event
from journalkeeper.service.notify import Notify


class RunLog:
    """Logs reports by `daily`, or by `say` what is over; the last line goes to `notify`."""

    def __init__(self, daily: DailyLog, say: Say, notify: Notify) -> None:
        self._daily = daily
        self._say = say
        self._notify = notify

    def job(self, report: Report) -> None:
        """What a job did."""
        for notice in report.notices:
            self._daily.log(notice, WARNING, notice)
        for outcome in report.outcomes:
            self._outcome(outcome, once_a_day=False)

    def run(self, engine: Engine, report: Report) -> None:
        """What a run of the service over everything did, and what it waits for."""
        for notice in report.notices:
            self._daily.log(notice, WARNING, notice)
        again = {action.path for action in report.plan.actions if action.live}
        for outcome in report.outcomes:
            self._outcome(outcome, once_a_day=outcome.path in again)
        for skip in report.plan.skipped:
            if skip.reason in {*nocow.UNWANTED, Reason.TOO_MANY, Reason.IO_ERROR}:
                self._daily.log(f"{skip.reason} {skip.path}", WARNING, f"{skip.path}: {skip.detail}", same=skip.reason)
            elif skip.reason is Reason.INTERNAL_ERROR:
                what = f"{skip.path}: left alone until it changes ({skip.reason}) {skip.detail}"
                self._daily.log(skip.path, ERROR, what, same=skip.reason)
        long = sentence(report.waiting, now_us())
        if long:
            self._daily.log("long", WARNING, f"{long}; journalkeeper plan says why", same=long.partition(":")[2])
        elif self._daily.clear("long"):
            self._say(INFO, "no file waits for longer than a day any more", Event.RECOVERED)
        waiting = sorted(engine.missing())
        if waiting:
            self._daily.log("waiting", INFO, f"waiting for {' and '.join(waiting)} to appear")
        elif self._daily.clear("waiting"):
            self._say(INFO, f"{' and '.join(engine.directories)}: there now", Event.RECOVERED)
        here = {skip.path for skip in report.plan.skipped} | {action.path for action in report.plan.actions}
        conditions = {f"{skip.reason} {skip.path}" for skip in report.plan.skipped}
        topics = {"bus", "watch", "waiting", "unwritable", "long", "event"}
        self._daily.retain(frozenset({*topics, *report.notices, *here, *conditions}))
        self._notify.status(f"{len(here)} files, idle" if not waiting else f"waiting for {' and '.join(waiting)}")

    def _outcome(self, outcome: Outcome, *, once_a_day: bool) -> None:
        """What became of a file: an active one is rewritten again and again."""
        what = describe_outcome(outcome)
        if outcome.result is Result.DONE:
            self._daily.log(outcome.path, INFO, what, same="done" if once_a_day else None, outcome=outcome)
        elif outcome.reason not in PASSING:
            priority = ERROR if outcome.result is Result.FAILED else INFO
            same = outcome.reason if outcome.reason is Reason.INTERNAL_ERROR else None
            self._daily.log(outcome.path, priority, what, same=same, outcome=outcome)
