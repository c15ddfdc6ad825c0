# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is said of files that wait, and of files that do not."""

from __future__ import annotations

import pytest

from journalkeeper.cli.wording import describe_waits
from journalkeeper.model import Reason, Skip
from journalkeeper.model.units import SECOND_US

NOW_US = 1_700_000_000_000_000


def skip(reason: Reason, after_us: int | None = None, *, now: bool = True, puts_off: bool | None = None) -> Skip:
    """What --now would do at once is put off; what is put off may be out of its reach."""
    until_us = None if after_us is None else NOW_US + after_us
    return Skip("/j/a", reason, "", until_us, now, now if puts_off is None else puts_off)


SETTLING = skip(Reason.SETTLING, 32 * SECOND_US)
WINDOW = skip(Reason.WINDOW_CLOSED)
FULL = skip(Reason.FREE_SPACE, 3600 * SECOND_US, now=False, puts_off=True)


@pytest.mark.parametrize(
    ("skips", "said"),
    [
        ([], ""),
        ([skip(Reason.IDEAL, now=False), skip(Reason.RECORDED, now=False), skip(Reason.SHARED, 9, now=False)], ""),
        ([skip(Reason.SETTLING, SECOND_US, now=False), skip(Reason.WINDOW_CLOSED, now=False)], ""),
        ([SETTLING], "1 file waits 32s more; --now does it at once"),
        ([SETTLING, SETTLING, skip(Reason.IDEAL, now=False)], "2 files wait 32s more; --now does it at once"),
        ([skip(Reason.SETTLING, 1)], "1 file waits 1s more; --now does it at once"),
        ([skip(Reason.SETTLING, SECOND_US + 1)], "1 file waits 2s more; --now does it at once"),
        ([skip(Reason.SETTLING, -SECOND_US)], "1 file waits 1s more; --now does it at once"),
        (
            [skip(Reason.SETTLING, 614 * SECOND_US), SETTLING],
            "2 files wait 32s to 10min 14s more; --now does it at once",
        ),
        ([skip(Reason.IO_ERROR, 60 * SECOND_US)], "1 file waits 1min more; --now does it at once"),
        ([WINDOW], "1 file waits for journald's next flush; --now does it at once"),
        ([WINDOW, WINDOW], "2 files wait for journald's next flush; --now does it at once"),
        # the moment of the next look at the budget is not when it is enough
        ([skip(Reason.BUDGET, 60)], "1 file waits for the budget of the day; --now does it at once"),
        ([skip(Reason.PRESSURE, 60)], "1 file waits until the disk is less busy; --now does it at once"),
        ([FULL], "1 file waits for free disk space"),
        ([skip(Reason.INTERNAL_ERROR, now=False, puts_off=True)], "1 file waits until it changes"),
        ([skip(Reason.NOT_TAKEN)], "1 file waits; --now does it at once"),  # of which nobody knows what ends it
        ([skip(Reason.SHARED, 9, now=True, puts_off=False)], ""),  # done for another reason, as by a rotation
        ([skip(Reason.IN_USE, now=False, puts_off=True)], "1 file waits for programs to stop writing"),
        ([skip(Reason.BUDGET, 60, now=False, puts_off=True)], "1 file waits for the budget of the day"),
        (
            [SETTLING, SETTLING, WINDOW, FULL],
            "2 files wait 32s more, 1 file waits for free disk space, 1 file waits for journald's next flush;"
            " --now does not wait for 3 of them",
        ),
    ],
)
def test_only_work_that_waits_is_counted_and_now_is_promised_only_where_it_helps(skips: list[Skip], said: str) -> None:
    assert describe_waits(skips, NOW_US) == said
