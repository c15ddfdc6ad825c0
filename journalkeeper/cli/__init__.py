# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line: one module per command, which imports only what the command needs.

Before that, it clears the variables of the environment that the command does not obey: `sudo -E` and `su -m` pass a
user's variables to root.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

KEPT: Final = frozenset(
    (
        *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TZ", "TERM", "COLUMNS", "LINES", "NO_COLOR", "PAGER"),
        *("SYSTEMD_PAGER", "STATE_DIRECTORY", "DBUS_SYSTEM_BUS_ADDRESS"),
        *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM"),
    )
)
"""Those of configs/bin/journalkeeper, which clears the others before an interpreter starts."""


def clear_variables() -> None:
    """Remove all variables but KEPT. It is too late for those that the interpreter and its start-up files read."""
    for name in os.environ.keys() - KEPT:
        del os.environ[name]


def main(argv: list[str] | None = None) -> int:
    """Run the command in `argv` or sys.argv, after `ignore_strangers`, and return its status. Errors go to stderr.

    The single word --measure, which only a unit of the service uses, runs `disk.main` and no command.
    """
    words = sys.argv[1:] if argv is None else argv
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - without one, print() writes to stdout
    if words == ["--measure"]:
        from journalkeeper.btrfs import disk  # noqa: PLC0415 - a unit of its own, of 15 MiB

        return disk.main()
    from journalkeeper.cli import program  # noqa: PLC0415 - for commands

    gc.freeze()  # modules are no garbage: looking through them, at the exit at the latest, takes 15% of a start
    program.ignore_strangers()
    return program.run(words)


def start() -> int:
    """For pip's script: clear the environment, as the installed command does before Python starts, and run `main`."""
    clear_variables()
    return main()
