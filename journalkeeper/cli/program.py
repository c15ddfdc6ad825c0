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

from journalkeeper.cli.context import Context
from journalkeeper.cli.output import Output, complain
from journalkeeper.cli.parser import COMMANDS, Command, parse
from journalkeeper.model.errors import ConfigError, FileError, KeeperError, NeedsRootError, UsageError

DONE, FAILED, USAGE = 0, 1, 2


def run(words: Sequence[str]) -> int:
    """Run the command in `words` and return the exit status. Errors of the user and of the system go to stderr.

    A closed pipe on stdout is a failure without a message. Only an exception that is a bug is not caught.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    command = None
    try:
        args = parse(words)
        command = next(row for row in COMMANDS if row.name == args.command)
        return int(command.load().run(args, Context(args, Output(args))))
    except SystemExit:  # --help and --version have been written
        return DONE
    except BrokenPipeError:  # the reader has seen enough
        return FAILED
    except KeyboardInterrupt:
        complain(f"{command.name if command else 'journalkeeper'} was interrupted")
        return FAILED
    except (KeeperError, OSError) as error:
        complain(*_describe_error(error, command))
        return USAGE if isinstance(error, UsageError) else FAILED


def _describe_error(error: KeeperError | OSError, command: Command | None) -> Sequence[str]:
    """Return the lines of an error message, without the name of the program: one for each mistake of a ConfigError.

    Without a permission that root has, the line advises sudo.
    """
    if isinstance(error, ConfigError):
        return error.lines
    what, number = str(error), error.number if isinstance(error, FileError) else 0
    if isinstance(error, OSError):
        what, number = error.strerror or what, error.errno or 0
        if isinstance(error.filename, str | bytes):
            what = f"{os.fsdecode(error.filename)}: {what}"
    denied = number in {errno.EACCES, errno.EPERM} and os.geteuid() != 0
    if command and (denied or isinstance(error, NeedsRootError)):
        return [f"{command.name} needs root, try sudo: {what}"]
    return [what]
