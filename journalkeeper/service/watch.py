# SPDX-License-Identifier: LGPL-2.1-or-later
"""inotify and the mount table: what wakes the daemon.

A watch tells that something happened to a name, never what there is. After an overflow, a mount, or where a
directory came or went, the answer is the same: look at everything again.

pyinotify's watch manager makes the watches; its notifiers are not used: they hang on an
empty queue, stop at a name that is not UTF-8, and lose an overflow. What else wakes:
`appended` is for instances alone, and of their active files alone, because journald's
IN_MODIFY, at most four a second, is all that an append shows of itself.
"""

from __future__ import annotations

import logging
import os
import select
import struct
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterable
from functools import partial
from threading import Lock
from typing import Final, NamedTuple

import pyinotify

from journalkeeper.journald import layout, names
from journalkeeper.model import Kind
from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.model.internal_error import InternalError, guarded
from journalkeeper.service import mounts
from journalkeeper.service.mailbox import Mailbox

EVENT: Final = struct.Struct("=iIII")
"""struct inotify_event: wd, mask, cookie, len; then the name, padded with zeros (inotify(7))."""

READ_BYTES: Final = 64 * 1024
"""What one call takes from the queue: 1,300 to 4,000 events, a few milliseconds of work."""

COALESCE_S: Final = 0.1
"""Bursts become one change: a rotation is a dozen events within a few milliseconds."""

TRIES: Final = 100
"""How often to look for directories that come and go faster than they can be watched."""

GONE: Final = pyinotify.IN_IGNORED | pyinotify.IN_UNMOUNT | pyinotify.IN_DELETE_SELF | pyinotify.IN_MOVE_SELF
NAMES: Final = (
    pyinotify.IN_CREATE
    | pyinotify.IN_DELETE
    | pyinotify.IN_MOVED_FROM
    | pyinotify.IN_MOVED_TO
    | pyinotify.IN_DELETE_SELF
    | pyinotify.IN_MOVE_SELF
)

LIMITS: Final = "/proc/sys/fs/inotify"


class Change(NamedTuple):
    """What happened: instance directories whose active files were appended to, and whether journal files came or went.

    `everything`: what changed is not known, or directories may have come or gone. `trouble` is why an event could
    not be understood, "" if all were: everything may have changed then.
    """

    appended: frozenset[str]
    rescan: bool
    everything: bool = False
    trouble: str = ""


class _Interest(NamedTuple):
    """What matters in a directory: journals, appends to them, and these names."""

    journals: bool = False
    appends: bool = False
    names: frozenset[str] = frozenset()

    def __or__(self, other: _Interest) -> _Interest:
        return _Interest(self.journals or other.journals, self.appends or other.appends, self.names | other.names)


class Watch:
    """Watches the directories `tops` and their instances, and whatever must appear before they can.

    `on_change` is called in the event loop, at most every COALESCE_S; after a change of `everything` somebody
    must `refresh`, before looking at what there is. `events` counts what was read.
    Where the kernel gives no inotify instance (EMFILE), each `refresh` asks for one again.
    """

    def __init__(self, tops: Iterable[str], on_change: Callable[[Change], None]) -> None:
        # It logs to stderr by a handler of its own; what it has to say comes as exceptions here.
        pyinotify.log.handlers[:] = [logging.NullHandler()]
        pyinotify.log.propagate = False
        self.tops = tuple(tops)
        self._on_change = on_change
        self._manager: pyinotify.WatchManager | None = None
        self.fd = -1
        self._mountinfo = os.open(mounts.MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
        self._mount_events = select.epoll()
        self._mount_events.register(self._mountinfo, select.EPOLLPRI | select.EPOLLERR)
        self._lock = Lock()
        self._watched: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        self._interests: dict[str, _Interest] = {}
        self._places: tuple[str, ...] = ()
        self._mounts: tuple[str, ...] = ()
        self._appended: set[str] = set()
        self._rescan = self._everything = False
        self._trouble = ""
        self._timer: TimerHandle | None = None
        self._loop: AbstractEventLoop | None = None
        self._opened: Mailbox[None] | None = None
        self._closed = self._refreshing = False
        self.events = 0
        self._open()

    @property
    def watched(self) -> frozenset[str]:
        """The directories that are watched now."""
        with self._lock:
            return frozenset(self._watched)

    def attach(self, loop: AbstractEventLoop) -> None:
        """Begin to call `on_change` from `loop`."""
        self._loop = loop
        self._opened = Mailbox[None](loop, lambda _: self._listen())
        self._listen()
        loop.add_reader(self._mount_events.fileno(), self._mounted)

    def _open(self) -> KeeperError | None:
        """Get an inotify instance if there is none yet; why the kernel gives none."""
        if self._manager is not None:
            return None
        try:
            self._manager = pyinotify.WatchManager()
        except OSError as error:
            return KeeperError(f"cannot watch directories: {_errno(error)}; {_limit('max_user_instances')}")
        self.fd = self._manager.get_fd()
        os.set_blocking(self.fd, False)
        os.set_inheritable(self.fd, False)  # noqa: FBT003 - its only argument
        if self._opened is not None:
            self._opened.post(None)
        return None

    def _listen(self) -> None:
        """Read events from now on. In the loop."""
        if self._loop is not None and self._manager is not None and not self._closed:
            self._loop.add_reader(self.fd, self._read)

    def close(self) -> None:
        """Drop all watches; those of a `refresh` under way at its end. In the loop."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            if self._loop is not None:
                self._loop.remove_reader(self._mount_events.fileno())
                if self._manager is not None:
                    self._loop.remove_reader(self.fd)
            self._mount_events.close()
            os.close(self._mountinfo)
            self._release()

    def _release(self) -> None:
        """Close the inotify instance once nobody uses it: another file gets its number. The lock is held."""
        if self._closed and not self._refreshing and self._manager is not None:
            self._manager = None
            os.close(self.fd)

    def refresh(self) -> None:
        """Watch what there is now: each top, or the nearest directory above it, and the instances below.

        It may wait for the disk, and may be called from another thread than the loop's, one at a time. After a
        `close` it does nothing.

        Raises: KeeperError if a directory that is there cannot be watched (ENOSPC, EACCES); the
            others are. Nothing is without an inotify instance (EMFILE).
        """
        with self._lock:
            if self._closed:
                return
            self._refreshing = True
        try:
            self._refresh()
        finally:
            with self._lock:
                self._refreshing = False
                self._release()

    def _refresh(self) -> None:
        problem = self._open()
        manager = self._manager
        places = tuple(os.path.realpath(top) for top in self.tops)
        about = mounts.about(places)
        with self._lock:
            self._places, self._mounts = places, about
        wanted: dict[str, _Interest] = {}
        for _ in range(TRIES):
            # What appeared before its directory was watched is seen by looking once more.
            before, wanted = wanted, self._wanted()
            if wanted == before:
                break
            with self._lock:
                self._interests = wanted
                for path in self._watched.keys() - wanted.keys():
                    self._drop(path)
            if manager is None:
                break
            for path, interest in wanted.items():
                problem = self._add(manager, path, interest) or problem
        if problem is not None:
            raise problem

    def _wanted(self) -> dict[str, _Interest]:
        wanted: dict[str, _Interest] = {}

        def want(path: str, interest: _Interest) -> None:
            wanted[path] = wanted.get(path, _Interest()) | interest

        for top in self.tops:
            place = os.path.realpath(top)
            # Also above: a directory, or a link to it, that is moved away and made anew is found again.
            for path in {os.path.abspath(top), place}:
                nearest, name = _nearest(path)
                want(nearest, _Interest(names=frozenset({name})))
            if os.path.isdir(place):
                want(place, _Interest(journals=True))
                for instance in layout.find_directories(place):
                    want(instance.path, _Interest(journals=True, appends=True))
        return wanted

    def _add(self, manager: pyinotify.WatchManager, path: str, interest: _Interest) -> KeeperError | None:
        """Watch what lies at `path`; adding it again is how another directory of the same name is found."""
        try:
            handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None  # vanished: the next look at what is wanted says so
        except OSError as error:
            return FileError.wrap("watch it", path, error)
        mask = NAMES | pyinotify.IN_ONLYDIR | (pyinotify.IN_MODIFY if interest.appends else 0)
        try:
            # By its descriptor: pyinotify takes no names that are not UTF-8.
            made: dict[str, int] = manager.add_watch(f"/proc/self/fd/{handle}", mask, quiet=False)
        except pyinotify.WatchManagerError as error:
            return KeeperError(f"{path}: cannot watch it: {_errno(error)}; {_limit('max_user_watches')}")
        finally:
            os.close(handle)
        (number,) = made.values()
        with self._lock:
            if self._watched.get(path, number) != number:
                self._drop(path)
            self._watched[path], self._paths[number] = number, path
        return None

    def _drop(self, path: str) -> None:
        """End a watch. The lock is held: `_take` and this thread would forget the same number at once."""
        number = self._forget(path)
        if self._manager is not None:
            self._manager.rm_watch(number, quiet=True)

    def _forget(self, path: str) -> int:
        """Drop our memory of a watch and return its number. The lock is held."""
        number = self._watched.pop(path)
        self._paths.pop(number, None)
        return number

    def _read(self) -> None:
        """Take one buffer of events; the loop calls again while there are more."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return
        offset = 0
        with self._lock:
            while offset < len(data):
                number, mask, _, length = EVENT.unpack_from(data, offset)
                offset += EVENT.size + length
                taken = guarded(partial(self._take, number, mask, data[offset - length : offset]))
                if isinstance(taken, InternalError):
                    self._everything, self._trouble = True, taken.detail
        self._schedule()

    def _take(self, number: int, mask: int, padded_name: bytes) -> None:
        """One event. The lock is held."""
        self.events += 1
        if mask & pyinotify.IN_Q_OVERFLOW:
            self._everything = True
            self._appended.update(path for path, interest in self._interests.items() if interest.appends)
            return
        path, manager = self._paths.get(number), self._manager
        if manager is None:
            return
        if mask & pyinotify.IN_IGNORED and number in manager.watches:
            manager.del_watch(number)
        if path is None:
            return
        if mask & GONE:
            self._forget(path)
            if mask & pyinotify.IN_MOVE_SELF:
                manager.rm_watch(number, quiet=True)  # it would tell of a directory that is elsewhere
            self._everything = True
            return
        interest = self._interests.get(path, _Interest())
        name = os.fsdecode(padded_name.rstrip(b"\0"))
        if not mask & NAMES:
            self._note_append(path, name, interest)
        elif (interest.journals and mask & pyinotify.IN_ISDIR) or name in interest.names:
            self._everything = True
        elif interest.journals:
            journal = names.classify(name) is not None
            self._rescan = self._rescan or journal
            self._everything = self._everything or (journal and not interest.appends)  # the top is an instance now

    def _note_append(self, path: str, name: str, interest: _Interest) -> None:
        """Remember a directory in which an active file was appended to. The lock is held."""
        if interest.appends and path not in self._appended:
            kind = names.classify(name)
            if kind is not None and kind.kind is Kind.ACTIVE:
                self._appended.add(path)

    def _mounted(self) -> None:
        """The mount table changed: a journal directory may lie elsewhere now."""
        self._mount_events.poll(0)
        now = mounts.about(self._places)
        if now != self._mounts:
            self._mounts = now
            self._everything = True
            self._schedule()

    def _schedule(self) -> None:
        if self._loop is not None and self._timer is None and (self._everything or self._rescan or self._appended):
            self._timer = self._loop.call_later(COALESCE_S, self._tell)

    def _tell(self) -> None:
        self._timer = None
        with self._lock:
            change = Change(
                frozenset(self._appended),
                rescan=self._rescan or self._everything,
                everything=self._everything,
                trouble=self._trouble,
            )
            self._appended.clear()
            self._rescan, self._everything, self._trouble = False, False, ""
        self._on_change(change)


def _errno(error: Exception) -> str:
    """The kernel's word in a message of pyinotify's, "... Errno=No space left on device (ENOSPC)"."""
    return str(error).rpartition("Errno=")[2]


def _limit(name: str) -> str:
    """What to do where the kernel refuses more of what `name` limits."""
    with open(f"{LIMITS}/{name}", encoding="ascii") as file:
        value = int(file.read())
    return f"fs.inotify.{name} is {value}; raise it: sysctl fs.inotify.{name}={2 * value}"


def _nearest(path: str) -> tuple[str, str]:
    """The directory above `path` that exists, and the name in it that leads to `path`."""
    above, name = os.path.split(path)
    while not os.path.isdir(above) and above != "/":
        above, name = os.path.split(above)
    return above, name
