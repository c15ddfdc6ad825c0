# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a command line and return its exit status.

Every error ends as one line on stderr with a remedy; only a bug in this program ends as a traceback.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Final

from journalkeeper.cli.context import Context
from journalkeeper.cli.output import Output, complain
from journalkeeper.cli.parser import COMMANDS, Command, parse
from journalkeeper.model.errors import ConfigError, FileError, KeeperError, NeedsRootError, UsageError
from journalkeeper.whole_file import find_stranger

DONE, FAILED, USAGE = 0, 1, 2

NAMED_BY: Final = (
    ("STATE_DIRECTORY", re.compile("([^:]*)(?::.*)?")),
    ("DBUS_SYSTEM_BUS_ADDRESS", re.compile(r"unix:path=(/[^,;%]*)(?:,guid=[0-9a-f]+)?")),
)
"""The variables that name a directory or a socket, and the form of a value that names it."""


def ignore_strangers() -> None:
    """For root, remove each variable of NAMED_BY, with a message, if another user could exchange what it names, or if
    its value has another form.
    """
    for name, form in NAMED_BY:
        value = os.environ.get(name)
        if value and os.geteuid() == 0:
            found = form.fullmatch(value)
            if found is None or find_stranger(found[1]):
                del os.environ[name]
                complain(f"{name} is ignored: another user than root could change what it names")


def run(words: Sequence[str]) -> int:
    """Run the command in `words` and return its status: USAGE or FAILED after an error on stderr, DONE after --help.

    FAILED also after Ctrl-C and, silently, a closed pipe. Bugs' exceptions pass. stdout escapes what it cannot encode.
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

    If a `command` lacks a permission that root has, the line advises sudo.
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
