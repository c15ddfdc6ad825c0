# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of the contract: bus name, paths, interfaces, actions, errors.

No message library here, so that the command line can ask for a name at no cost.
"""

from __future__ import annotations

import os
import re
from typing import Final

from journalkeeper.model import errors
from journalkeeper.model.errors import KeeperError

BUS: Final = "org.freedesktop.DBus"

BUS_NAME: Final = "org.journalkeeper1"
MANAGER_PATH: Final = "/org/journalkeeper1"
JOB_PATHS: Final = f"{MANAGER_PATH}/job"

MANAGER: Final = f"{BUS_NAME}.Manager"
JOB: Final = f"{BUS_NAME}.Job"

PROPERTIES: Final = f"{BUS}.Properties"
INTROSPECTABLE: Final = f"{BUS}.Introspectable"
PEER: Final = f"{BUS}.Peer"

ACTION_DEFRAGMENT: Final = f"{BUS_NAME}.defragment"
ACTION_MANAGE: Final = f"{BUS_NAME}.manage"

ACCESS_DENIED: Final = f"{BUS}.Error.AccessDenied"
INVALID_ARGS: Final = f"{BUS}.Error.InvalidArgs"
LIMITS_EXCEEDED: Final = f"{BUS}.Error.LimitsExceeded"
FAILED: Final = f"{BUS_NAME}.Error.Failed"

ERRORS: Final[tuple[tuple[type[KeeperError], str], ...]] = (
    (errors.UsageError, f"{BUS_NAME}.Error.InvalidArgument"),
    (errors.ConfigError, f"{BUS_NAME}.Error.BadConfiguration"),
    (errors.NeedsRootError, f"{BUS_NAME}.Error.NotPermitted"),
    (errors.BusyError, f"{BUS_NAME}.Error.Busy"),
    (errors.NoSuchJobError, f"{BUS_NAME}.Error.NoSuchJob"),
    (errors.NotBtrfsError, f"{BUS_NAME}.Error.NotBtrfs"),
    (errors.FileError, f"{BUS_NAME}.Error.File"),
)
"""The names of errors that have their own; all others are FAILED."""


def error_name(error: Exception) -> str:
    """Return the name of `error` on the bus: its own, that of its class in ERRORS, or FAILED."""
    named = (name for kind, name in ERRORS if isinstance(error, kind))
    return error.name if isinstance(error, CallError) else next(named, FAILED)


class CallError(Exception):
    """An error that answers a call: `name` is its name on the bus, the text one sentence."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        super().__init__(text)


def find_address() -> str:
    """Return the address of the system bus. Source: D-Bus specification, "Well-known Message Bus Instances"."""
    return os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or "unix:path=/run/dbus/system_bus_socket"


def job_path(number: int) -> str:
    """Return the object path of job `number`."""
    return f"{JOB_PATHS}/{number}"


def job_number(path: str) -> int:
    """Return the number in a job's object path, as `job_path` writes it. Raises: NoSuchJobError for any other path."""
    found = re.fullmatch(f"{JOB_PATHS}/([1-9][0-9]{{0,9}})", path)
    if found is None:
        raise errors.NoSuchJobError(f"{shorten(path)} is no job")
    return int(found[1])


def to_ascii(text: str) -> str:
    """Return `text` with NUL as "?" and UTF-8 bytes beyond ASCII in hex: the bus ends a connection for bad UTF-8."""
    if text.isascii() and "\0" not in text:
        return text
    return os.fsencode(text).decode("ascii", "backslashreplace").replace("\0", "?")


def shorten(text: str) -> str:
    """Return repr() of a caller's text for an error message: of its first 100 characters and "..." if it is longer."""
    return repr(text if len(text) <= 100 else f"{text[:100]}...")
