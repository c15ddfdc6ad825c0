# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find what keeps journald from storing the next message: a journald that takes none, and a volume without room."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

from journalkeeper.btrfs.volume import read_volume, require_btrfs
from journalkeeper.health.evidence import Silence, lacks_room
from journalkeeper.journald import control, layout, opening
from journalkeeper.model import Volume
from journalkeeper.model.errors import KeeperError

BOOTED: Final = "/run/systemd/system"
"""This directory exists where systemd is PID 1: sd_booted(3)."""

RUNNING: Final = "/run/systemd/units/invocation:"
"""PID 1 keeps a link of this name for each unit that is active (unit_export_state_files(), unit.c). The service may not
start systemctl.
"""

MASKING: Final = ("/etc/systemd/system", "/run/systemd/system")
SOCKET: Final = "/run/systemd/journal/socket"


def find_silent(tops: tuple[str, ...], timeout_s: float) -> tuple[tuple[str, Silence], ...]:
    """Return the unit of each journald of this host that writes below `tops` and takes no messages, with the reason.

    A journald of a namespace is asked only while it runs, because a question would start it.
    """
    namespaces = sorted(_find_namespaces(tops)) if os.path.isdir(BOOTED) else []
    units = [(one, f"systemd-journald{one and '@'}{one}.service") for one in namespaces]
    return tuple((unit, why) for one, unit in units if (why := _judge(one, unit, timeout_s)))


def _find_namespaces(tops: tuple[str, ...]) -> set[str]:
    host, found = os.path.realpath(layout.TOP), set[str]()
    with suppress(KeeperError, OSError):
        machine = layout.read_machine_id()
        for top in map(os.path.realpath, tops):
            found |= {""} if top == host else set()
            places = layout.find_directories(top)
            found |= {one.namespace for one in places if (os.path.dirname(one.path), one.machine_id) == (host, machine)}
    return found


def _judge(namespace: str, unit: str, timeout_s: float) -> Silence | None:
    if os.path.lexists(f"{RUNNING}{unit}"):
        return Silence.HUNG if control.answers(namespace, timeout_s) is False else None
    if any(os.path.realpath(f"{place}/{unit}") == os.devnull for place in MASKING):
        return Silence.MASKED
    return None if namespace or _is_listening() else Silence.STOPPED


def _is_listening() -> bool:
    """Return whether the host's journald, or PID 1 in its place, takes messages."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
        sender.connect(SOCKET)
        return True
    return False


def find_full(tops: tuple[str, ...]) -> tuple[tuple[str, Volume], ...]:
    """Return each journal directory below `tops` on a volume that `lacks_room`, with it; one for each volume."""
    found = dict[int, tuple[str, Volume]]()
    for top in tops:
        with suppress(KeeperError, OSError):  # a look reports it
            for path in [one.path for one in layout.find_directories(top)] or [os.path.realpath(top)]:
                with suppress(KeeperError, OSError), opening.open_directory(path) as fd:
                    require_btrfs(fd, path)
                    found.setdefault(os.fstat(fd).st_dev, (path, read_volume(fd)))
    return tuple(one for one in found.values() if lacks_room(one[1]))
