# SPDX-License-Identifier: LGPL-2.1-or-later
"""Watch directories with inotify, and the mount table, to wake the daemon.

An event shows that a name changed, but not its new state. After an overflow, after a mount, or if a directory appeared
or vanished, the daemon makes all watches anew and looks at everything again.

The worker makes a whole set of watches, which never changes afterwards (`Watches`); the event loop reads it until the
worker has made the next one (`Watch`). So the two threads share nothing. The daemon looks at everything after it has
replaced the set, so that an unread event of the old one is not missed.

pyinotify's watch manager makes the watches. Its notifiers are not used: they hang on an empty queue, stop at a name
that is not UTF-8, and lose an overflow. Of appends only those to active files of instances are reported. They show as
journald's IN_MODIFY, at most four a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import struct
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

import pyinotify

from journalkeeper.journald import layout, names
from journalkeeper.model import Kind
from journalkeeper.model.errors import FileError, InternalError, KeeperError, catch_errors
from journalkeeper.service import mounts

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
    vanished. `everything` is True if the changes are unknown or include directories; then the watches must be made
    anew. `trouble` is why an event could not be understood, "" if all were.
    """

    appended: frozenset[str] = frozenset()
    rescan: bool = False
    everything: bool = False
    trouble: str = ""


class Interest(NamedTuple):
    """The relevant events of a directory: those of journals, appends to those of `instance`, and these names."""

    journals: bool = False
    instance: str = ""
    names: frozenset[str] = frozenset()

    def __or__(self, other: Interest) -> Interest:
        return Interest(self.journals or other.journals, self.instance or other.instance, self.names | other.names)


class Watches(NamedTuple):
    """The watches of an inotify instance by their number; `fd` is -1 if the kernel refused an instance.

    `mounts` are the lines of the mount table that concern `places`. `problem` is why a directory is not watched, "" if
    all are.
    """

    fd: int = -1
    interests: dict[int, Interest] = {}  # noqa: RUF012 - nothing changes it
    places: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    problem: str = ""


def watch_directories(tops: Iterable[str]) -> Watches:
    """Watch each of `tops`, or its nearest existing parent, and the instances' directories below, with inotify.

    Nothing is raised: `problem` of the result states why a directory is not watched. The call can wait for the disk.
    """
    # pyinotify logs to stderr by a handler of its own; its errors come as exceptions here.
    pyinotify.log.handlers[:] = [logging.NullHandler()]
    pyinotify.log.propagate = False
    tops = tuple(tops)
    places = tuple(os.path.realpath(top) for top in tops)
    lines = mounts.find_mount_lines(places)
    try:
        manager = pyinotify.WatchManager()
    except OSError as error:
        problem = f"cannot watch directories: {_errno(error)}; {_limit('max_user_instances')}"
        return Watches(places=places, mounts=lines, problem=problem)
    os.set_blocking(manager.get_fd(), False)
    os.set_inheritable(manager.get_fd(), False)  # noqa: FBT003 - its only argument
    interests: dict[int, Interest] = {}
    watched: dict[str, Interest] = {}
    problem = ""
    for _ in range(TRIES):
        try:
            wanted = _find_wanted(tops)
            # A second search finds directories that appeared before their parent was watched.
            fresh = [(path, interest) for path, interest in wanted.items() if watched.get(path) != interest]
            if not fresh:
                break
            watched |= wanted
            for path, interest in fresh:
                problem = _add(manager, interests, path, interest) or problem
        except KeeperError as error:
            problem = str(error)
            break
    return Watches(manager.get_fd(), interests, places, lines, problem)


def _find_wanted(tops: tuple[str, ...]) -> dict[str, Interest]:
    wanted: dict[str, Interest] = {}

    def want(path: str, interest: Interest) -> None:
        wanted[path] = wanted.get(path, Interest()) | interest

    for top in tops:
        place = os.path.realpath(top)
        # Also above: a directory, or a link to it, that is moved away and made anew is found again.
        for path in {os.path.abspath(top), place}:
            nearest, name = _nearest(path)
            want(nearest, Interest(names=frozenset({name})))
        if os.path.isdir(place):
            want(place, Interest(journals=True))
            for instance in layout.find_directories(place):
                want(instance.path, Interest(journals=True, instance=instance.path))
    return wanted


def _add(manager: pyinotify.WatchManager, interests: dict[int, Interest], path: str, interest: Interest) -> str:
    """Watch the directory at `path`, and return why that is not possible, or ""."""
    try:
        handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""  # it vanished, which its parent's watch reports
    except OSError as error:
        return str(FileError.wrap("watch it", path, error))
    mask = NAMES | pyinotify.IN_ONLYDIR | pyinotify.IN_MASK_ADD | (pyinotify.IN_MODIFY if interest.instance else 0)
    try:
        # By its descriptor: pyinotify takes no names that are not UTF-8.
        (number,) = manager.add_watch(f"/proc/self/fd/{handle}", mask, quiet=False).values()
    except pyinotify.WatchManagerError as error:
        return f"{path}: cannot watch it: {_errno(error)}; {_limit('max_user_watches')}"
    finally:
        os.close(handle)
    interests[number] = interests.get(number, Interest()) | interest  # one directory may have two paths
    return ""


class Watch:
    """Collects the events of the present watches and of the mount table. In the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.watches = Watches()
        self._changed = asyncio.Event()
        self._change = Change()
        self._appended: set[str] = set()
        self._mountinfo = os.open(mounts.MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
        self._mount_events = select.epoll()
        self._mount_events.register(self._mountinfo, select.EPOLLPRI | select.EPOLLERR)
        self._loop.add_reader(self._mount_events.fileno(), self._check_mounts)

    def use(self, watches: Watches) -> None:
        """Watch with `watches` from now on. If the kernel refused an inotify instance, keep the old watches."""
        if watches.fd >= 0:
            self._drop()
            self.watches = watches
            self._loop.add_reader(watches.fd, self._read)
        else:
            self.watches = watches._replace(fd=self.watches.fd, interests=self.watches.interests)
        self._check_mounts()  # a mount may have come before `places` were known here

    def close(self) -> None:
        """Drop all watches."""
        self._drop()
        self._loop.remove_reader(self._mount_events.fileno())
        self._mount_events.close()
        os.close(self._mountinfo)

    async def wait(self) -> Change:
        """Sleep until `_read` has noted a change, and COALESCE_S longer. Return all changes noted until then.

        The next call begins with no changes.
        """
        await self._changed.wait()
        await asyncio.sleep(COALESCE_S)
        self._changed.clear()
        change = self._change._replace(appended=frozenset(self._appended))
        self._change = Change()
        self._appended.clear()
        return change

    def _drop(self) -> None:
        if self.watches.fd >= 0:
            self._loop.remove_reader(self.watches.fd)
            os.close(self.watches.fd)
            self.watches = Watches()

    def _note(self, *, everything: bool = False, trouble: str = "") -> None:
        """Note that journal files changed, and wake `wait`. With `everything`, directories may have changed, too."""
        known = self._change
        self._change = Change(rescan=True, everything=everything or known.everything, trouble=trouble or known.trouble)
        self._changed.set()

    def _read(self) -> None:
        """Read at most READ_BYTES of inotify events and note each change. Return at once if there are no events.

        The event loop calls it again while the descriptor is readable. An event that cannot be processed counts as a
        change of everything.
        """
        try:
            data = os.read(self.watches.fd, READ_BYTES)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(data):
            number, mask, _, length = EVENT.unpack_from(data, offset)
            offset += EVENT.size + length
            taken = catch_errors(partial(self._take, number, mask, data[offset - length : offset]))
            if isinstance(taken, InternalError):
                self._note(everything=True, trouble=taken.detail)

    def _take(self, number: int, mask: int, padded_name: bytes) -> None:
        """Note the change that one inotify event reports. Events about other files are ignored."""
        if mask & pyinotify.IN_Q_OVERFLOW:
            self._appended.update(one.instance for one in self.watches.interests.values() if one.instance)
            self._note(everything=True)
            return
        interest = self.watches.interests.get(number)
        if interest is None:
            return
        name = os.fsdecode(padded_name.rstrip(b"\0"))
        if mask & GONE or (interest.journals and mask & pyinotify.IN_ISDIR) or name in interest.names:
            self._note(everything=True)
        elif mask & NAMES:
            if interest.journals and names.classify(name) is not None:
                self._note(everything=not interest.instance)  # the top is an instance now
        elif interest.instance and interest.instance not in self._appended:
            kind = names.classify(name)
            if kind is not None and kind.kind is Kind.ACTIVE:
                self._appended.add(interest.instance)
                self._changed.set()

    def _check_mounts(self) -> None:
        """Read the mount table, and note a change of everything if a mount at or near a journal directory changed."""
        self._mount_events.poll(0)
        now = mounts.find_mount_lines(self.watches.places)
        if now != self.watches.mounts:
            self.watches = self.watches._replace(mounts=now)
            self._note(everything=True)


def _errno(error: Exception) -> str:
    """Return the kernel's error text from a message of pyinotify, "... Errno=No space left on device (ENOSPC)"."""
    return str(error).rpartition("Errno=")[2]


def _limit(name: str) -> str:
    """Return the value of a kernel limit and the command that raises it."""
    with open(f"{LIMITS}/{name}", encoding="ascii") as file:
        value = int(file.read())
    return f"fs.inotify.{name} is {value}; raise it: sysctl fs.inotify.{name}={2 * value}"


def _nearest(path: str) -> tuple[str, str]:
    """Return (directory, name): the nearest existing directory above `path`, and the next part of the path."""
    above, name = os.path.split(path)
    while not os.path.isdir(above) and above != "/":
        above, name = os.path.split(above)
    return above, name
