# SPDX-License-Identifier: LGPL-2.1-or-later
"""Describe in one sentence what the skipped files of a plan wait for.

Pure. Only postponed work counts; a file in good order waits for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from journalkeeper.model import Reason, Skip
from journalkeeper.model.units import SECOND_US, counted, format_span

FOR: Final = {
    Reason.WINDOW_CLOSED: "for journald's next flush",
    Reason.BUDGET: "for the budget of another day",
    Reason.PRESSURE: "for a less busy disk",
    Reason.FREE_SPACE: "for free space",
    Reason.IN_USE: "until nobody writes to it",
    Reason.INTERNAL_ERROR: "until it changes",
}
"""The end of a wait without a known time: `until_us` of such a skip is only the time of the next look."""


def waits(skipped: Sequence[Skip], now_us: int) -> str:
    """Describe how many files wait, for what and how long: "2 files wait 32s more; --now does it at once".

    The sentence is empty if no file waits. A plan marks postponed work (Skip.puts_off) and work that --now would do
    (Skip.now).
    """
    waiting = [skip for skip in skipped if skip.puts_off]
    timed = [skip.until_us - now_us for skip in waiting if skip.until_us is not None and skip.reason not in FOR]
    others = Counter(FOR.get(skip.reason, "") for skip in waiting if skip.until_us is None or skip.reason in FOR)
    parts = [_wait(len(timed), f"{_spans(timed)} more")] if timed else []
    parts += [_wait(number, what) for what, number in sorted(others.items())]
    helped = sum(skip.now for skip in waiting)
    if helped:
        parts[-1] += f"; --now does {'it' if helped == len(waiting) else f'{helped:,} of them'} at once"
    return ", ".join(parts)


def _wait(number: int, what: str) -> str:
    return f"{counted(number, 'file')} {'waits' if number == 1 else 'wait'} {what}".rstrip()


def _spans(left_us: list[int]) -> str:
    """Return the shortest and the longest wait, in seconds, rounded up."""
    least, most = (_seconds(left) for left in (min(left_us), max(left_us)))
    return least if least == most else f"{least} to {most}"


def _seconds(left_us: int) -> str:
    return format_span(max(1, -(-left_us // SECOND_US)) * SECOND_US)
