# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a command line and return its exit status.

Every error ends as one line on stderr with a remedy; only a bug in this program ends as a traceback.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from journalkeeper.cli.context import Context
from journalkeeper.cli.output import Output, complain, flush
from journalkeeper.cli.parser import COMMANDS, Command, parse
from journalkeeper.model.errors import ConfigError, FileError, KeeperError, NeedsRootError, UsageError

if TYPE_CHECKING:
    from journalkeeper.engine import Engine

DONE, FAILED, USAGE = 0, 1, 2


def run(words: Sequence[str], engine: Engine | None = None) -> int:
    """Run the command in `words` and return the exit status, 1 if its output cannot be written.

    A test can pass an `engine` that is used in place of the host's.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = _run(words, engine)
        return status if flush() else status or FAILED
    except BrokenPipeError:  # the reader has seen enough
        return FAILED
    except OSError as error:
        complain(_os_error(error))
        return FAILED


def _run(words: Sequence[str], engine: Engine | None) -> int:
    try:
        args = parse(words)
    except UsageError as error:
        complain(str(error))
        return USAGE
    except SystemExit:  # --help and --version have been written
        return DONE
    command = next(row for row in COMMANDS if row.name == args.command)
    try:
        return command.load().run(args, Context(args, Output(args), engine))
    except UsageError as error:
        complain(str(error))
        return USAGE
    except ConfigError as error:
        for line in error.lines:
            complain(line)
    except NeedsRootError as error:
        complain(_needs_root(command, str(error)))
    except FileError as error:
        complain(_explain_refusal(command, str(error), error.number))
    except KeeperError as error:
        complain(str(error))
    except PermissionError as error:
        complain(_explain_refusal(command, _os_error(error), errno.EACCES))
    except KeyboardInterrupt:
        complain(f"{command.name} was interrupted; nothing was changed")
    return FAILED


def _explain_refusal(command: Command, what: str, number: int) -> str:
    """Return the error message `what`. If the user lacks a permission, add why the command needs root."""
    if number not in {errno.EACCES, errno.EPERM} or os.geteuid() == 0:
        return what
    return _needs_root(command, f"{command.needs_root} ({what})")


def _needs_root(command: Command, what: str) -> str:
    return f"{command.name} needs root, try sudo: {what}"


def _os_error(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {what}" if isinstance(error.filename, str | bytes) else what
