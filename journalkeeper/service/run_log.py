# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which sentences the service logs, and how often: a condition once a day, the traceback of a bug once a day.

The service's own lines go into the journal that it watches: a line at every look would cause the flush that causes the
next look. In the event loop.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable
from typing import Final, Protocol

from journalkeeper.model import Outcome, Reason, Result
from journalkeeper.model.reasons import describe_outcome
from journalkeeper.model.run import Report
from journalkeeper.policy import nocow
from journalkeeper.policy.deferral import PASSING
from journalkeeper.service.log import ERROR, INFO, WARNING, Event

SAY_AGAIN_S: Final = 86400.0
"""A condition that lasts is logged once a day, because every logged line is one more flush to wake up for."""

BUG: Final = "bug "
LASTING: Final = frozenset({"bus", "health", "waiting"})
"""Topics, and before a place in the code the first word of topics, that no run forgets."""

LASTING_REASONS: Final = {**dict.fromkeys((*nocow.UNWANTED, Reason.IO_ERROR), WARNING), Reason.INTERNAL_ERROR: ERROR}
"""The reasons to skip a file or directory that are logged, with their priorities."""


class Say(Protocol):
    """The signature of log.Log.say."""

    def __call__(
        self, priority: int, sentence: str, event: Event = Event.CONDITION, *, outcome: Outcome | None = None
    ) -> None: ...


class RunLog:
    """Logs conditions, the results of runs and bugs by `say`, none twice a day."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said: dict[str, tuple[str, float]] = {}

    def log(
        self, about: str, priority: int, sentence: str, *, same: str | None = None, outcome: Outcome | None = None
    ) -> None:
        """Log `sentence`, unless the last sentence about the topic `about` was the same and less than 24 hours ago.

        With `same`, this key is compared instead of the sentence.
        """
        last, when_s = self._said.get(about, ("", 0.0))
        if last != (same or sentence) or time.monotonic() - when_s >= SAY_AGAIN_S:
            self._said[about] = same or sentence, time.monotonic()
            self._say(priority, sentence, outcome=outcome)

    def log_end(self, about: str, sentence: str) -> None:
        """Log `sentence`, which reports the end of a condition, if the condition `about` was logged before."""
        if self._said.pop(about, None) is not None:
            self._say(INFO, sentence, Event.RECOVERED)

    def log_bug(self, what: str, error: Exception) -> None:
        """Log an unexpected exception with its traceback. `what` is the failure that it caused."""
        place = f"{type(error).__name__} {traceback.extract_tb(error.__traceback__)[-1:]}"
        trace = "".join(traceback.format_exception(error)).rstrip()
        self.log(f"{BUG}{place}", ERROR, f"{what}: bug in journalkeeper, please report it:\n{trace}", same=place)

    def log_job(self, report: Report) -> None:
        """Log the notices and outcomes of a job."""
        self._log_results(report, is_repeated=False)

    def log_run(self, report: Report, directories: Iterable[str], missing: tuple[str, ...]) -> None:
        """Log the notices, outcomes and lasting conditions of a run of the service, and forget those that are over.

        Of each file, the same kind of action, or the same reason for none, is logged once a day.
        """
        self._log_results(report, is_repeated=True)
        for skip in report.plan.skipped:
            if skip.reason in LASTING_REASONS:
                what = f"{skip.path}: left alone ({skip.reason}): {skip.detail}"
                self.log(skip.path, LASTING_REASONS[skip.reason], what, same=skip.reason)
        if missing:
            self.log("waiting", INFO, f"waiting for {' and '.join(missing)} to appear")
        else:
            self.log_end("waiting", f"{' and '.join(directories)}: there now")
        here = {skip.path for skip in report.plan.skipped} | {action.path for action in report.plan.actions}
        kept = {*LASTING, *report.notices, *here}
        self._said = {about: said for about, said in self._said.items() if about in kept or about.startswith(BUG)}

    def _log_results(self, report: Report, *, is_repeated: bool) -> None:
        for notice in report.notices:
            self.log(notice, WARNING, notice)
        for outcome in report.outcomes:
            is_done = outcome.result is Result.DONE
            if is_done or outcome.reason not in PASSING:
                priority = ERROR if outcome.result is Result.FAILED else INFO
                kind = f"{outcome.action} done" if is_done else outcome.reason
                sentence = describe_outcome(outcome)
                self.log(outcome.path, priority, sentence, same=kind if is_repeated else None, outcome=outcome)
