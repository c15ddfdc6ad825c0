# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line: one module per command, which imports only what the command needs."""

from __future__ import annotations

import sys

from journalkeeper.cli import environment


def main(argv: list[str] | None = None) -> int:
    """Run the command in `argv`, by default that of sys.argv, and return the exit status. Errors go to stderr.

    The single word --measure, which only a unit of the service uses, runs `disk_usage.main` and no command.
    """
    words = sys.argv[1:] if argv is None else argv
    if words == ["--measure"]:
        from journalkeeper.observe import disk_usage  # noqa: PLC0415 - a unit of its own, of 15 MiB

        return disk_usage.main()
    environment.ignore_strangers()
    from journalkeeper.cli import program  # noqa: PLC0415 - for commands

    return program.run(words)


def start() -> int:
    """Run the command for pip's own script, which does not clear the environment as the installed command does."""
    environment.clear_variables()
    return main()
