# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find what keeps journald from storing the next message: a journald that takes none, and a volume without room."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from journalkeeper.btrfs.volume import read_volume, require_btrfs
from journalkeeper.health.evidence import Silence, Unit, Unknown, find_unit, lacks_room
from journalkeeper.journald import control, layout, opening
from journalkeeper.model import Volume
from journalkeeper.model.errors import KeeperError
from journalkeeper.observe.unit_states import read_units

BOOTED: Final = "/run/systemd/system"
"""This directory exists where systemd is PID 1: sd_booted(3)."""


def find_silent(tops: tuple[str, ...], timeout_s: float) -> tuple[tuple[str, Silence], ...]:
    """Return the unit of each journald of this host that writes below `tops` and takes no messages, with the reason.

    A journald of a namespace is asked only while it runs, because a question would start it.
    """
    namespaces = _find_namespaces(tops) if os.path.isdir(BOOTED) else set[str]()
    if namespaces == {""} and control.answers("", timeout_s):
        return ()
    kinds = [f"@{namespace}" if namespace else "" for namespace in sorted(namespaces)]
    names = [f"systemd-journald{kind}.{suffix}" for kind in kinds for suffix in ("service", "socket")]
    units = read_units(names) if names else ()
    found = []
    for namespace, kind in zip(sorted(namespaces), kinds, strict=True):
        if not isinstance(units, Unknown):
            service = find_unit(units, f"systemd-journald{kind}.service")
            socket = find_unit(units, f"systemd-journald{kind}.socket")
            silence = _judge(namespace, service, socket, timeout_s)
            found += [(service.name, silence)] if silence else []
    return tuple(found)


def _find_namespaces(tops: tuple[str, ...]) -> set[str]:
    host, found = os.path.realpath(layout.TOP), set[str]()
    with suppress(KeeperError, OSError):
        machine = layout.read_machine_id()
        for top in map(os.path.realpath, tops):
            found |= {""} if top == host else set()
            places = layout.find_directories(top)
            found |= {one.namespace for one in places if (os.path.dirname(one.path), one.machine_id) == (host, machine)}
    return found


def _judge(namespace: str, service: Unit, socket: Unit, timeout_s: float) -> Silence | None:
    if service.active in {"active", "reloading"}:
        return Silence.HUNG if control.answers(namespace, timeout_s) is False else None
    if service.active == "failed":
        return Silence.FAILED
    if service.active != "inactive":
        return None
    if service.enabled.startswith("masked"):
        return Silence.MASKED
    return Silence.STOPPED if not namespace and socket.active != "active" else None


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
