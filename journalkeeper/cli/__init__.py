# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line.

The one rule: a bare `--version` imports nothing (measured: argparse alone costs as much
as starting the interpreter), and a command pays only for its own modules.
"""

from __future__ import annotations

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
    if argv is None:
        # A command ends before its garbage matters: the collector would only walk what is
        # imported, meanwhile and at the end (5 of 45 ms). The service turns it on again.
        import atexit  # noqa: PLC0415 - see the module's docstring
        import gc  # noqa: PLC0415

        gc.disable()
        atexit.register(gc.freeze)
    from journalkeeper.cli import program  # noqa: PLC0415 - see the module's docstring

    return program.run(words)
