# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line.

The one rule: a bare `--version` imports nothing but what is built in (argparse alone costs
as much as starting the interpreter), and a command pays only for its own modules.
"""

from __future__ import annotations

import gc
import os
import sys

from journalkeeper import __version__


def main(argv: list[str] | None = None) -> int:
    """Run the command that `argv` (sys.argv without its first word) asks for.

    Returns 0 when it is done, 1 when something failed or was interrupted, or the configuration
    is bad, 2 when the command line makes no sense. Never raises for what the user did.
    """
    words = sys.argv[1:] if argv is None else argv
    if words == ["--version"]:
        print(f"journalkeeper {__version__}")
        return 0
    if words == ["--measure"]:
        from journalkeeper.observe import disk_usage  # noqa: PLC0415 - a unit of its own, without arguments and configuration

        return disk_usage.main()
    if argv is None:
        # A command ends before its garbage matters: the collector would only walk what is
        # imported (3 of 45 ms). The service turns it on again.
        gc.disable()
        # Its look goes on beside its imports, and needs the interpreter for moments: 5 ms would be long to wait.
        sys.setswitchinterval(0.0005)
    from journalkeeper.cli import program  # noqa: PLC0415 - see the module's docstring

    status = program.run(words)
    if argv is None and not gc.isenabled():
        _leave(status)
    return status


def _leave(status: int) -> None:
    """End the process at once: taking the interpreter down costs 2 of 45 ms, for what the kernel does anyway."""
    try:
        print(end="", flush=True)  # --help may not be out yet
    except OSError:  # nobody reads it, or its disk is full
        status = status or 1
    os._exit(status)
