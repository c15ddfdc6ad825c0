# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether the running service is to be asked, and what for.

A bus is asked only where a bus and a service could be there. With -D or --config the
command works by itself.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from journalkeeper.bus import names
from journalkeeper.history import state
from journalkeeper.model import Request

if TYPE_CHECKING:
    from journalkeeper.bus.client import Service

MOST_PATHS: Final = 1000
"""A request with more is not sent: the service takes no more."""

ABSENT: Final = "not on the bus; systemctl status journalkeeper tells whether it runs"
"""What is said of a service that is not there."""


def is_meant(args: argparse.Namespace, state_directory: str) -> bool:
    """Whether this host's service is what a command is about, and not a directory or file of the user's own."""
    return args.directory is None and args.config is None and state_directory == state.DEFAULT


def running(args: argparse.Namespace, state_directory: str) -> Service | None:
    """The service on the system bus, to be closed; None where there is none or something else is meant."""
    could_be = names.bus_address() is not None and _service_could_be_there(state_directory)
    if not (could_be and is_meant(args, state_directory)):
        return None

    from journalkeeper.bus.client import Service  # noqa: PLC0415 - pages are made without dbus-fast

    return Service.find()


def for_request(
    asked: Request, args: argparse.Namespace, state_directory: str, ours: Callable[[], tuple[str, ...]]
) -> Service | None:
    """The service that does `asked` for us, to be closed; None where we have to do it ourselves.

    It does what is about its own directories, which are `ours` by the configuration that it shares with us.
    Before a shutdown nothing waits for a bus: it may be gone, and its socket still be there.
    """
    if asked.ending or len(asked.paths) > MOST_PATHS or not all(map(_can_be_sent, asked.paths)):
        return None
    service = running(args, state_directory)
    if service is None:
        return None
    keeps = False
    try:
        keeps = _keeps(service, asked, ours)
    finally:
        if not keeps:
            service.close()
    return service if keeps else None


def _keeps(service: Service, asked: Request, ours: Callable[[], tuple[str, ...]]) -> bool:
    """Whether the service has the directories that our configuration names, and every path is below one."""
    directories = service.manager().directories or []
    below = all(any(_is_below(path, top) for top in directories) for path in asked.paths)
    return below and set(directories) == set(ours())


def _is_below(path: str, top: str) -> bool:
    """Whether `path` is below `top` without a link on its way, which the service does not follow."""
    way, below = os.path.dirname(path), top.rstrip("/")
    if not path.startswith(f"{below}/"):
        return False
    return os.path.realpath(way) == f"{os.path.realpath(top).rstrip('/')}{way[len(below) :]}"


def _can_be_sent(path: str) -> bool:
    """Whether D-Bus has words for it: its texts are UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _service_could_be_there(state_directory: str) -> bool:
    """Every service has made this file; who may not look has to ask."""
    try:
        os.stat(os.path.join(state_directory, state.DAEMON_LOCK))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True
    return True
