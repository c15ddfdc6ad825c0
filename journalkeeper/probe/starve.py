# SPDX-License-Identifier: LGPL-2.1-or-later
"""Let a process run for so much of each tenth of a second only, as cpulimit(1) does.

    python -m journalkeeper.probe.starve PID PERCENT

Until stdin ends, which it does with whoever started this: then the process goes on, whatever happened.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import Final

SLOT_S: Final = 0.1


def starve(pid: int, percent: float) -> None:
    """Stop and continue it until stdin ends, or it does."""
    process = os.pidfd_open(pid)  # and never another process of that number
    runs_s = SLOT_S * percent / 100
    print("ready", flush=True)  # noqa: T201 - who started us waits for it
    try:
        while True:
            for number, length_s in ((signal.SIGSTOP, SLOT_S - runs_s), (signal.SIGCONT, runs_s)):
                signal.pidfd_send_signal(process, number)
                if select.select([sys.stdin], [], [], length_s)[0]:
                    return
    except ProcessLookupError:
        return
    finally:
        signal.pidfd_send_signal(process, signal.SIGCONT)


if __name__ == "__main__":
    starve(int(sys.argv[1]), float(sys.argv[2]))
