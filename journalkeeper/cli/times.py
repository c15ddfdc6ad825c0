# SPDX-License-Identifier: LGPL-2.1-or-later
"""The points in time of --since= and --until=, which systemd parses."""

from __future__ import annotations

import argparse
import re
import subprocess
from typing import Final

from journalkeeper.model.units import SECOND_US

ALLOWED: Final = "2026-11-21, 2026-11-21 10:00, 10:00, today, yesterday, now, -3d, 3 days ago or @1795255200"

_ANSWER: Final = re.compile(rb"^ *UNIX seconds: @(\d+)(?:\.(\d{6}))?$", re.MULTILINE)


def parse_time_us(text: str) -> int:
    """Return the argument of --since= or --until= as microseconds since the epoch.

    systemd-analyze(1) parses the text as journalctl does, which takes 7 ms.

    Raises: ArgumentTypeError with the allowed forms; OSError if systemd-analyze is not installed.
    """
    words = ["systemd-analyze", "timestamp", "--", text]
    done = None if "\0" in text else subprocess.run(words, capture_output=True, check=False)
    found = done and _ANSWER.search(done.stdout)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; allowed are {ALLOWED}")
    return int(found[1]) * SECOND_US + int(found[2] or 0)
