# SPDX-License-Identifier: LGPL-2.1-or-later
"""From the words of a command line to an exit status.

The one rule: whatever goes wrong ends as one line on stderr that says what to do next;
only a mistake in this program itself ends as a traceback.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from journalkeeper.cli.commands import COMMANDS, Command
from journalkeeper.cli.output import Output, complain
from journalkeeper.cli.parser import parse
from journalkeeper.cli.session import Session
from journalkeeper.errors import ConfigError, FileError, KeeperError, NeedsRootError, UsageError

if TYPE_CHECKING:
    from journalkeeper.cli.session import Engine

DONE, FAILED, USAGE = 0, 1, 2


def run(words: Sequence[str], engine: Engine | None = None) -> int:
    """Do what `words` ask for and return the exit status; `engine` in place of the host's keeper."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = _run(words, engine)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        return FAILED
    except OSError as error:
        _forget_stdout()
        complain(_os_error(error))
        return FAILED
    return status


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
        return command.load().run(args, Session(args, Output(args), engine))
    except UsageError as error:
        complain(str(error))
        return USAGE
    except ConfigError as error:
        for line in str(error).splitlines():
            complain(line)
    except NeedsRootError as error:
        complain(f"{command.name} needs root: {error}; try sudo")
    except FileError as error:
        refused = error.number in {errno.EACCES, errno.EPERM} and os.geteuid() != 0
        complain(_needs_root(command, str(error)) if refused else str(error))
    except KeeperError as error:
        complain(str(error))
    except PermissionError as error:
        complain(_needs_root(command, _os_error(error)) if os.geteuid() else _os_error(error))
    except KeyboardInterrupt:
        complain(f"{command.name} was interrupted; nothing was changed")
    return FAILED


def _needs_root(command: Command, what: str) -> str:
    return f"{command.name} needs root, because {command.needs_root}: try sudo ({what})"


def _os_error(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {what}" if isinstance(error.filename, str | bytes) else what


def _forget_stdout() -> None:
    """Nobody reads stdout any more: keep the interpreter from complaining about it when it ends."""
    if sys.stdout is not None and isinstance(sys.stdout, io.TextIOWrapper):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
