# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line: one module per command, which imports only what the command needs.

Before that, it clears the variables of the environment that the command does not obey: `sudo -E` and `su -m` pass a
user's variables to root.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
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


def ignore_strangers() -> None:
    """For root, remove STATE_DIRECTORY and DBUS_SYSTEM_BUS_ADDRESS, with a message, if another user could exchange the
    directory or socket, or if the value has an unknown form.
    """
    bus = re.compile(r"unix:path=(/[^,;%]*)(?:,guid=[0-9a-f]+)?")
    for name, places in (("STATE_DIRECTORY", re.compile("([^:]*)(?::.*)?")), ("DBUS_SYSTEM_BUS_ADDRESS", bus)):
        value = os.environ.get(name)
        if value and os.geteuid() == 0:
            found = places.fullmatch(value)
            if found is None or not is_roots(found[1]):
                del os.environ[name]
                sys.stderr.write(
                    f"journalkeeper: {name} is ignored: another user than root could change what it names\n"
                )


def is_roots(path: str) -> bool:
    """Return whether no user but root can exchange what `path` leads to: root owns each existing part, links included.

    A directory that everybody may write to must have the sticky bit. A group's write permission passes.
    """
    ways = [Path(os.path.abspath(path)), Path(os.path.realpath(path))]
    found = [os.lstat(part) for way in ways for part in (way, *way.parents) if os.path.lexists(part)]
    return not any(
        one.st_uid or (stat.S_ISDIR(one.st_mode) and one.st_mode & stat.S_IWOTH and not one.st_mode & stat.S_ISVTX)
        for one in found
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command in `argv`, by default that of sys.argv, and return the exit status. Errors go to stderr.

    The single word --measure, which only a unit of the service uses, runs `disk.main` and no command.
    """
    words = sys.argv[1:] if argv is None else argv
    if words == ["--measure"]:
        from journalkeeper.btrfs import disk  # noqa: PLC0415 - a unit of its own, of 15 MiB

        return disk.main()
    ignore_strangers()
    from journalkeeper.cli import program  # noqa: PLC0415 - for commands

    return program.run(words)


def start() -> int:
    """Run the command for pip's own script, which does not clear the environment as the installed command does."""
    clear_variables()
    return main()
