# SPDX-License-Identifier: LGPL-2.1-or-later
"""Log the results of runs. In the worker thread."""

from __future__ import annotations

from journalkeeper.engine import Engine
from journalkeeper.model import Outcome, Reason, Result
from journalkeeper.model.reasons import describe_outcome
from journalkeeper.model.run import Report
from journalkeeper.policy import nocow
from journalkeeper.policy.deferral import PASSING
from journalkeeper.service.daily_log import DailyLog, Say
from journalkeeper.service.log import ERROR, INFO, WARNING, Event


class RunLog:
    """Logs conditions by `daily`, and by `say` when a condition is over."""

    def __init__(self, daily: DailyLog, say: Say) -> None:
        self._daily = daily
        self._say = say

    def job(self, report: Report) -> None:
        """Log the notices and outcomes of a job."""
        for notice in report.notices:
            self._daily.log(notice, WARNING, notice)
        for outcome in report.outcomes:
            self._outcome(outcome, once_a_day=False)

    def run(self, engine: Engine, report: Report) -> None:
        """Log the notices, outcomes and lasting conditions of a run of the service."""
        for notice in report.notices:
            self._daily.log(notice, WARNING, notice)
        again = {action.path for action in report.plan.actions if action.live}
        for outcome in report.outcomes:
            self._outcome(outcome, once_a_day=outcome.path in again)
        for skip in report.plan.skipped:
            if skip.reason in {*nocow.UNWANTED, Reason.IO_ERROR}:
                self._daily.log(f"{skip.reason} {skip.path}", WARNING, f"{skip.path}: {skip.detail}", same=skip.reason)
            elif skip.reason is Reason.INTERNAL_ERROR:
                what = f"{skip.path}: left alone until it changes ({skip.reason}) {skip.detail}"
                self._daily.log(skip.path, ERROR, what, same=skip.reason)
        waiting = sorted(engine.list_missing_directories())
        if waiting:
            self._daily.log("waiting", INFO, f"waiting for {' and '.join(waiting)} to appear")
        elif self._daily.clear("waiting"):
            self._say(INFO, f"{' and '.join(engine.directories)}: there now", Event.RECOVERED)
        here = {skip.path for skip in report.plan.skipped} | {action.path for action in report.plan.actions}
        conditions = {f"{skip.reason} {skip.path}" for skip in report.plan.skipped}
        topics = {"bus", "health", "waiting", "event"}
        self._daily.retain(frozenset({*topics, *report.notices, *here, *conditions}))

    def _outcome(self, outcome: Outcome, *, once_a_day: bool) -> None:
        """Log the outcome of a file, at most once a day for an active file, which is rewritten often."""
        what = describe_outcome(outcome)
        if outcome.result is Result.DONE:
            self._daily.log(outcome.path, INFO, what, same="done" if once_a_day else None, outcome=outcome)
        elif outcome.reason not in PASSING:
            priority = ERROR if outcome.result is Result.FAILED else INFO
            same = outcome.reason if outcome.reason is Reason.INTERNAL_ERROR else None
            self._daily.log(outcome.path, priority, what, same=same, outcome=outcome)
