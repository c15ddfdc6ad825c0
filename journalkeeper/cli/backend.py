# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the running service may be asked for, and whether it could be there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from journalkeeper.history import state
from journalkeeper.model import Request

if TYPE_CHECKING:
    from journalkeeper.bus.client import Service

MOST_PATHS: Final = 1000
"""A request with more is not sent: the service takes no more."""

ABSENT: Final = "not on the bus; systemctl status journalkeeper tells whether it runs"
"""What is said of a service that is not there."""


def can_be_asked(asked: Request) -> bool:
    """Whether the service may do `asked`. Before a shutdown nothing waits for a bus, which may be gone."""
    return not asked.ending and len(asked.paths) <= MOST_PATHS and all(map(_can_be_sent, asked.paths))


def keeps(service: Service, asked: Request, ours: Callable[[], tuple[str, ...]]) -> bool:
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


def could_be_there(state_directory: str) -> bool:
    """Every service has made this file; who may not look has to ask."""
    try:
        os.stat(os.path.join(state_directory, state.DAEMON_LOCK))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True
    return True
