# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files that wait for an action that pays, and for how long.

A wait begins when an action is delayed or fails. It ends when the action is done or no longer pays. The cause does not
matter: a budget, a window, a busy disk, or a file that never settles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from journalkeeper.model import Outcome, Plan, Reason, Result
from journalkeeper.model.schema import PastMoment, Word
from journalkeeper.model.units import DAY_US

LONG_US: Final = DAY_US
"""A longer wait is reported."""

RESTS: Final = frozenset({str(Reason.BATTERY), str(Reason.QUIET_HOURS)})
"""Reasons that the administrator chose. No wait counts while the service rests, so that no rest becomes an alert."""

LEFT: Final = {str(reason): place for place, reason in enumerate((Reason.NOT_BEGUN, Reason.INTERRUPTED))}
"""What an ended run leaves is done first, in this order: an action that no uptime can finish stops no others."""


class Wait(NamedTuple):
    """A file that waits, since when, and the present reason."""

    path: str
    since_us: PastMoment
    reason: Word


def find_waits(before: Mapping[str, Wait], plan: Plan, outcomes: Sequence[Outcome], now_us: int) -> dict[str, Wait]:
    """Return the files that wait after a run, by path: postponed files of `plan`, and actions that were not done.

    A file that waited `before` keeps the start of its wait, which is never later than `now_us`. In a rest, the start is
    `now_us`, and a reason in LEFT stays.
    """
    reasons = {skip.path: str(skip.reason) for skip in plan.skipped if skip.puts_off}
    reasons |= {outcome.path: str(outcome.reason) for outcome in outcomes if outcome.result is not Result.DONE}
    waits = {path: Wait(path, now_us, reason) for path, reason in reasons.items()}
    for path, was in ((path, before[path]) for path in waits.keys() & before.keys()):
        if waits[path].reason not in RESTS:
            waits[path] = waits[path]._replace(since_us=min(now_us, was.since_us))
        elif was.reason in LEFT:
            waits[path] = waits[path]._replace(reason=was.reason)
    return waits


def is_long(wait: Wait, now_us: int) -> bool:
    """Return whether a file has waited for more than a day."""
    return now_us - wait.since_us > LONG_US


def long(known: Iterable[Wait], now_us: int) -> list[Wait]:
    """Return those waits that exceed a day, the longest first."""
    return sorted((one for one in known if is_long(one, now_us)), key=lambda one: (one.since_us, one.path))
