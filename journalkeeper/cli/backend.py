# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide which requests go to the running service, and whether a service can exist."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from journalkeeper.history import state
from journalkeeper.model import Request

if TYPE_CHECKING:
    from journalkeeper.bus.client import Service

MOST_PATHS: Final = 1000
"""The largest number of paths that the service accepts in a request."""

ABSENT: Final = "not on the bus; systemctl status journalkeeper shows whether it runs"
"""The message for a service that is not on the bus."""


def can_be_asked(asked: Request) -> bool:
    """Return whether the service may carry out `asked`. At a shutdown it may not, because the bus may be gone."""
    return not asked.ending and len(asked.paths) <= MOST_PATHS and all(map(_can_be_sent, asked.paths))


def keeps(service: Service, asked: Request, ours: Callable[[], tuple[str, ...]]) -> bool:
    """Return whether the service watches the directories of our configuration, and all paths lie below one of them."""
    directories = service.found.directories or []
    below = all(any(_is_below(path, top) for top in directories) for path in asked.paths)
    return below and set(directories) == set(ours())


def _is_below(path: str, top: str) -> bool:
    """Return whether `path` is below `top` without a symbolic link on the way, which the service does not follow."""
    way, below = os.path.dirname(path), top.rstrip("/")
    if not path.startswith(f"{below}/"):
        return False
    return os.path.realpath(way) == f"{os.path.realpath(top).rstrip('/')}{way[len(below) :]}"


def _can_be_sent(path: str) -> bool:
    """Return whether D-Bus can carry the path: its strings are UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def could_be_there(state_directory: str) -> bool:
    """Return whether a service may have run here: it leaves a lock file. True if this user may not look."""
    try:
        os.stat(os.path.join(state_directory, state.DAEMON_LOCK))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True
    return True
