# SPDX-License-Identifier: LGPL-2.1-or-later
"""inotify and the mount table: what wakes the daemon.

The one rule: a watch tells that something happened, never what there is. After names came
or went, after a mount, after an overflow the answer is the same: look at everything again.

pyinotify's watch manager makes the watches; its notifiers are not used: they hang on an
empty queue, stop at a name that is not UTF-8, and lose an overflow. What else wakes:
`appended` is for instances alone, and of their active files alone, because journald's
IN_MODIFY, at most four a second, is all that an append shows of itself.
"""

from __future__ import annotations

import os
import select
import struct
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import pyinotify

from journalkeeper.errors import KeeperError
from journalkeeper.journald import layout, names
from journalkeeper.model import Kind

EVENT: Final = struct.Struct("=iIII")
"""struct inotify_event: wd, mask, cookie, len; then the name, padded with zeros (inotify(7))."""

READ_BYTES: Final = 64 * 1024
COALESCE_S: Final = 0.1
"""Bursts become one change: a rotation is a dozen events within a few milliseconds."""

NAMES: Final = (
    pyinotify.IN_CREATE
    | pyinotify.IN_DELETE
    | pyinotify.IN_MOVED_FROM
    | pyinotify.IN_MOVED_TO
    | pyinotify.IN_DELETE_SELF
    | pyinotify.IN_MOVE_SELF
)
GONE: Final = pyinotify.IN_IGNORED | pyinotify.IN_UNMOUNT | pyinotify.IN_DELETE_SELF | pyinotify.IN_MOVE_SELF


class Change(NamedTuple):
    """What happened: instance directories whose active files were appended to, and whether names changed."""

    appended: frozenset[str]
    rescan: bool


class Watch:
    """Watches the directories `tops` and their instances, and whatever must appear before they can.

    `on_change` is called in the event loop, at most every COALESCE_S. `events` counts what was read.

    Raises: KeeperError if the kernel gives no inotify instance or watch (EMFILE, ENOSPC).
    """

    def __init__(self, tops: Iterable[str], on_change: Callable[[Change], None]) -> None:
        # It logs to stderr by a handler of its own; what it has to say comes as exceptions here.
        pyinotify.log.handlers.clear()
        self.tops = tuple(tops)
        self._on_change = on_change
        try:
            self._manager = pyinotify.WatchManager()
        except OSError as error:
            raise KeeperError(f"{error}; see fs.inotify.max_user_instances in sysctl") from error
        self.fd: int = self._manager.get_fd()
        os.set_blocking(self.fd, False)
        os.set_inheritable(self.fd, False)  # noqa: FBT003 - its only argument
        self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._mount_events = select.epoll()
        self._mount_events.register(self._mounts, select.EPOLLPRI | select.EPOLLERR)
        self._watched: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        self._instances: frozenset[str] = frozenset()
        self._appended: set[str] = set()
        self._rescan = False
        self._timer: TimerHandle | None = None
        self._loop: AbstractEventLoop | None = None
        self.events = 0
        self.refresh()

    def attach(self, loop: AbstractEventLoop) -> None:
        """Begin to call `on_change` from `loop`."""
        self._loop = loop
        loop.add_reader(self.fd, self._read)
        loop.add_reader(self._mount_events.fileno(), self._mounted)

    def close(self) -> None:
        """Drop all watches."""
        if self._timer is not None:
            self._timer.cancel()
        if self._loop is not None:
            self._loop.remove_reader(self.fd)
            self._loop.remove_reader(self._mount_events.fileno())
        self._mount_events.close()
        os.close(self._mounts)
        os.close(self.fd)

    def refresh(self) -> None:
        """Watch what there is now: each top, or the nearest directory above it, and the instances below.

        Raises: KeeperError if a watch cannot be had for another reason than that the directory vanished.
        """
        wanted: dict[str, int] = {}
        instances: set[str] = set()
        for top in self.tops:
            # Also above the top: a directory that is moved away and made anew is found again.
            wanted.setdefault(_nearest(os.path.dirname(os.path.realpath(top))), NAMES)
            if os.path.isdir(top):
                wanted[os.path.realpath(top)] = NAMES
                for place in layout.directories(top):
                    wanted[place.path] = NAMES | pyinotify.IN_MODIFY
                    instances.add(place.path)
        for path in self._watched.keys() - wanted.keys():
            self._drop(path)
        for path, mask in wanted.items():
            self._add(path, mask)
        self._instances = frozenset(instances)

    def _add(self, path: str, mask: int) -> None:
        """Adding a watch again is how a directory of the same name but another inode is found."""
        try:
            made: dict[str, int] = self._manager.add_watch(path, mask | pyinotify.IN_ONLYDIR, quiet=False)
        except pyinotify.WatchManagerError as error:
            if os.path.isdir(path):
                raise KeeperError(f"{path}: cannot watch it: {error}; see fs.inotify.max_user_watches") from error
            self._rescan = True
            return
        number = made[path]
        old = self._watched.get(path)
        if old is not None and old != number:
            self._paths.pop(old, None)
        self._watched[path] = number
        self._paths[number] = path

    def _drop(self, path: str) -> None:
        number = self._watched.pop(path)
        self._paths.pop(number, None)
        self._manager.rm_watch(number, quiet=True)

    def _read(self) -> None:
        """Take one buffer of events; the loop calls again while there are more."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(data):
            number, mask, _, length = EVENT.unpack_from(data, offset)
            offset += EVENT.size + length
            self._take(number, mask, data[offset - length : offset].rstrip(b"\0"))
        self._schedule()

    def _take(self, number: int, mask: int, raw_name: bytes) -> None:
        self.events += 1
        if mask & pyinotify.IN_Q_OVERFLOW:
            self._rescan = True
            self._appended |= self._instances
            return
        path = self._paths.get(number)
        if path is None:
            return
        if mask & GONE:
            self._watched.pop(path, None)
            self._paths.pop(number, None)
            self._rescan = True
            return
        name = os.fsdecode(raw_name)
        if mask & pyinotify.IN_MODIFY:
            kind = names.classify(name)
            if kind is not None and kind.kind is Kind.ACTIVE:
                self._appended.add(path)
        elif mask & NAMES and not names.is_leftover(name):
            self._rescan = self._rescan or path not in self._instances or names.classify(name) is not None

    def _mounted(self) -> None:
        """The mount table changed: a journal directory may lie elsewhere now."""
        self._mount_events.poll(0)
        self._rescan = True
        self._schedule()

    def _schedule(self) -> None:
        if self._loop is not None and self._timer is None and (self._rescan or self._appended):
            self._timer = self._loop.call_later(COALESCE_S, self._tell)

    def _tell(self) -> None:
        self._timer = None
        change = Change(frozenset(self._appended), self._rescan)
        self._appended.clear()
        self._rescan = False
        if change.rescan:
            self.refresh()
        self._on_change(change)


def _nearest(path: str) -> str:
    """`path`, or the directory above it that exists."""
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return path
