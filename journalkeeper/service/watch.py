# SPDX-License-Identifier: LGPL-2.1-or-later
"""Watch directories with inotify, and the mount table, to wake the daemon.

An event shows that a name changed, but not its new state. After an overflow, after a mount, or if a directory appeared
or vanished, the daemon looks at everything again.

pyinotify's watch manager makes the watches. Its notifiers are not used: they hang on an empty queue, stop at a name
that is not UTF-8, and lose an overflow. Of appends only those to active files of instances are reported. They show as
journald's IN_MODIFY, at most four a second.
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
from journalkeeper.model.internal_error import InternalError, catch_errors
from journalkeeper.service import mounts
from journalkeeper.service.mailbox import Mailbox

EVENT: Final = struct.Struct("=iIII")
"""struct inotify_event: wd, mask, cookie, len; then the name, padded with zeros (inotify(7))."""

READ_BYTES: Final = 64 * 1024
"""The size of one read from the queue: 1,300 to 4,000 events, a few milliseconds of work."""

COALESCE_S: Final = 0.1
"""Events within this time become one change: a rotation is a dozen events within a few milliseconds."""

TRIES: Final = 100
"""The number of searches for directories that appear and vanish faster than they can be watched."""

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
    """The changes since the last report.

    `appended` are the directories whose active files were appended to. `rescan` is True if journal files appeared or
    vanished. `everything` is True if the changes are unknown or include directories. `trouble` is why an event could
    not be understood, "" if all were; then everything may have changed.
    """

    appended: frozenset[str]
    rescan: bool
    everything: bool = False
    trouble: str = ""


class _Interest(NamedTuple):
    """The relevant events of a directory: those of journals, appends to them, and events of these names."""

    journals: bool = False
    appends: bool = False
    names: frozenset[str] = frozenset()

    def __or__(self, other: _Interest) -> _Interest:
        return _Interest(self.journals or other.journals, self.appends or other.appends, self.names | other.names)


class Watch:
    """Watches the directories `tops` and their instances, and the parents of missing directories.

    `on_change` is called in the event loop, at most every COALESCE_S. After a change of `everything` the caller must
    call `refresh` before the next look. `events` counts the events. If the kernel refuses an inotify instance (EMFILE),
    each `refresh` requests one again.
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
        """Start to call `on_change` from `loop`."""
        self._loop = loop
        self._opened = Mailbox[None](loop, lambda _: self._listen())
        self._listen()
        loop.add_reader(self._mount_events.fileno(), self._check_mounts)

    def _open(self) -> KeeperError | None:
        """Get an inotify instance unless there is one. Return the error if the kernel refuses."""
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
        """Drop all watches; a running `refresh` drops its own at its end. In the loop."""
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
        """Close the inotify instance unless a `refresh` uses it, since its number is reused. The lock is held."""
        if self._closed and not self._refreshing and self._manager is not None:
            self._manager = None
            os.close(self.fd)

    def refresh(self) -> None:
        """Watch each top, or the nearest directory above it, and the instances below.

        It may wait for the disk. Another thread than the loop's may call it, one at a time. After a `close` it does
        nothing.

        Raises: KeeperError if an existing directory cannot be watched (ENOSPC, EACCES); the others are. Without an
        inotify instance (EMFILE) none is.
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
        about = mounts.find_mount_lines(places)
        with self._lock:
            self._places, self._mounts = places, about
        wanted: dict[str, _Interest] = {}
        for _ in range(TRIES):
            # A second search finds directories that appeared before their parent was watched.
            before, wanted = wanted, self._find_wanted()
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

    def _find_wanted(self) -> dict[str, _Interest]:
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
        """Watch the directory at `path`. A second call detects that another directory has taken its place."""
        try:
            handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None  # it vanished, and the next search leaves it out
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
        """End a watch. The lock is held, because `_take` and this thread could forget the same number at once."""
        number = self._forget(path)
        if self._manager is not None:
            self._manager.rm_watch(number, quiet=True)

    def _forget(self, path: str) -> int:
        """Remove a watch from the tables and return its number. The lock is held."""
        number = self._watched.pop(path)
        self._paths.pop(number, None)
        return number

    def _read(self) -> None:
        """Read one buffer of events; the loop calls again while there are more."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return
        offset = 0
        with self._lock:
            while offset < len(data):
                number, mask, _, length = EVENT.unpack_from(data, offset)
                offset += EVENT.size + length
                taken = catch_errors(partial(self._take, number, mask, data[offset - length : offset]))
                if isinstance(taken, InternalError):
                    self._everything, self._trouble = True, taken.detail
        self._schedule()

    def _take(self, number: int, mask: int, padded_name: bytes) -> None:
        """Process one event. The lock is held."""
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
                manager.rm_watch(number, quiet=True)  # it would report events of a directory that is elsewhere now
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

    def _check_mounts(self) -> None:
        """Compare the mount table, which changed: a journal directory may be elsewhere now."""
        self._mount_events.poll(0)
        now = mounts.find_mount_lines(self._places)
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
    """Return the kernel's error text from a message of pyinotify, "... Errno=No space left on device (ENOSPC)"."""
    return str(error).rpartition("Errno=")[2]


def _limit(name: str) -> str:
    """Return the value of a kernel limit and the command that raises it."""
    with open(f"{LIMITS}/{name}", encoding="ascii") as file:
        value = int(file.read())
    return f"fs.inotify.{name} is {value}; raise it: sysctl fs.inotify.{name}={2 * value}"


def _nearest(path: str) -> tuple[str, str]:
    """Return the nearest existing directory above `path`, and the name in it that leads to `path`."""
    above, name = os.path.split(path)
    while not os.path.isdir(above) and above != "/":
        above, name = os.path.split(above)
    return above, name
