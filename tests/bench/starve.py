# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stop and continue a process in turn, so that it runs for only a part of each tenth of a second, as cpulimit(1) does.

    python -m tests.bench.starve PID PERCENT

It ends with its stdin, which ends with its parent process; then the process runs on in any case.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import Final

SLOT_S: Final = 0.1


def starve(pid: int, percent: float) -> None:
    """Let process `pid` run for `percent` of the time until stdin or the process ends."""
    process = os.pidfd_open(pid)  # a signal can never reach a new process with the same id
    runs_s = SLOT_S * percent / 100
    print("ready", flush=True)  # noqa: T201 - the parent waits for it
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
