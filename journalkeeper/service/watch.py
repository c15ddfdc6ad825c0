# SPDX-License-Identifier: LGPL-2.1-or-later
"""Watch directories with inotify, to wake the daemon.

An event shows that a name changed, but not its new state. After an overflow, or if a directory appeared or vanished,
the daemon makes all watches anew and looks at everything again. Another directory at the path of a top, or a mount over
one, makes no event: `identify_tops` shows it to the daemon's check.

The worker makes a whole set of watches, which never changes afterwards (`Watches`); the event loop reads it until the
worker has made the next one (`Watch`). So the two threads share nothing. The daemon looks at everything after it has
replaced the set, so that an unread event of the old one is not missed.

pyinotify's watch manager makes the watches. Its notifiers are not used: they hang on an empty queue, stop at a name
that is not UTF-8, and lose an overflow. Of appends only those to active files are reported. They show as journald's
IN_MODIFY, at most four a second.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import pyinotify

from journalkeeper.btrfs.volume import find_mount_lines
from journalkeeper.journald import layout
from journalkeeper.model import Kind
from journalkeeper.model.errors import FileError, KeeperError

EVENT: Final = struct.Struct("=iIII")
"""struct inotify_event: wd, mask, cookie, len; then the name, padded with zeros (inotify(7))."""

READ_BYTES: Final = 64 * 1024
"""The size of one read from the queue: 1,300 to 4,000 events, some milliseconds of work."""

COALESCE_S: Final = 0.1
"""Events within this time become one change: a rotation is a dozen events within a few milliseconds."""

GONE: Final = pyinotify.IN_IGNORED | pyinotify.IN_MOVE_SELF
"""The kernel reports IN_IGNORED for each watch that a removal or an unmount ends."""

NAMES: Final = pyinotify.IN_CREATE | pyinotify.IN_DELETE | pyinotify.IN_MOVED_FROM | pyinotify.IN_MOVED_TO

WATCHED: Final = NAMES | pyinotify.IN_MOVE_SELF | pyinotify.IN_MODIFY | pyinotify.IN_ONLYDIR


class Change(NamedTuple):
    """Changes that inotify reported.

    `appended` are the directories whose active files were appended to. `renamed` is True if journal files appeared or
    vanished. `rescan` is True if directories did, or if the changes are unknown; then the watches must be made anew.
    """

    appended: frozenset[str] = frozenset()
    renamed: bool = False
    rescan: bool = False

    def __or__(self, other: Change) -> Change:
        return Change(self.appended | other.appended, self.renamed or other.renamed, self.rescan or other.rescan)


NOTHING: Final = Change()


class Watches(NamedTuple):
    """The watched directories of an inotify instance by their number; `fd` is -1 if the kernel refused an instance.

    `tops` is the answer of `identify_tops` before they were watched, None before the first watch. `problem` is why a
    directory is not watched, or "".
    """

    fd: int = -1
    directories: dict[int, str] = {}  # noqa: RUF012 - nothing changes it
    tops: tuple[object, ...] | None = None
    problem: str = ""


def identify_tops(tops: tuple[str, ...]) -> tuple[object, ...]:
    """Return mount lines about `tops`, and the identity of each that stat() finds. Raises: OSError (mount table)."""
    places = tuple(map(os.path.realpath, tops))
    found: list[object] = list(find_mount_lines(places))
    for place in places:
        with suppress(OSError):
            status = os.stat(place)
            found.append((place, status.st_dev, status.st_ino))
    return tuple(found)


def watch_directories(tops: tuple[str, ...]) -> Watches:
    """Watch `tops` and the instances' directories below them with inotify.

    The caller closes `fd`, which is -1 without inotify. `problem` is the last failure. The call can wait for the disk.

    Raises: OSError if the mount table cannot be read.
    """
    identities = identify_tops(tops)
    try:
        manager = pyinotify.WatchManager()
    except OSError as error:
        problem = f"cannot watch directories: {_explain_kernel_error(error, 'max_user_instances')}"
        return Watches(tops=identities, problem=problem)
    os.set_blocking(manager.get_fd(), False)
    directories: dict[int, str] = {}
    problem = ""
    try:
        for path in _find_directories(tops):
            problem = _add_watch(manager, directories, path) or problem
    except KeeperError as error:
        problem = str(error)
    return Watches(manager.get_fd(), directories, identities, problem)


def _find_directories(tops: tuple[str, ...]) -> Iterator[str]:
    """Yield the real path of each existing top, then its instances' directories. Raises: as layout.find_directories.

    Each is yielded before the search below it: a caller that watches it at once misses nothing that appears meanwhile.
    """
    for place in map(os.path.realpath, tops):
        if os.path.isdir(place):
            yield place
            for instance in layout.find_directories(place):
                yield instance.path


def _add_watch(manager: pyinotify.WatchManager, directories: dict[int, str], path: str) -> str:
    """Watch the directory at `path` unless it vanished, and add it to `directories`. Return "" or why that fails."""
    try:
        handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""  # it vanished, which its parent's watch reports
    except OSError as error:
        return str(FileError.wrap("watch it", path, error))
    try:
        # By its descriptor: pyinotify takes no names that are not UTF-8.
        (number,) = manager.add_watch(f"/proc/self/fd/{handle}", WATCHED, quiet=False).values()
    except pyinotify.WatchManagerError as error:
        return f"{path}: cannot watch it: {_explain_kernel_error(error, 'max_user_watches')}"
    finally:
        os.close(handle)
    directories.setdefault(number, path)  # one directory may have two paths
    return ""


class DirectoryWatch:
    """Reports the events of the present watches, in the event loop: after an overflow, a rescan and all appends."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.watches = Watches()
        self._woken = asyncio.Event()

    def use(self, watches: Watches) -> None:
        """Drop the present watches, and report the events of `watches` from now on."""
        self.close()
        self.watches = watches
        self._listen()

    def close(self) -> None:
        """Drop all watches, and close their inotify instance."""
        if self.watches.fd >= 0:
            self._loop.remove_reader(self.watches.fd)
            os.close(self.watches.fd)
            self.watches = Watches()

    async def wait(self) -> Change:
        """Sleep until an event comes, and COALESCE_S longer, and return the changes of one read, perhaps NOTHING."""
        await self._woken.wait()
        await asyncio.sleep(COALESCE_S)
        self._woken.clear()
        change, data, offset = NOTHING, b"", 0
        with suppress(BlockingIOError):
            if self.watches.fd >= 0:
                data = os.read(self.watches.fd, READ_BYTES)
        while offset < len(data):
            number, mask, _, length = EVENT.unpack_from(data, offset)
            offset += EVENT.size + length
            change |= self._judge_event(number, mask, data[offset - length : offset])
        self._listen()
        return change

    def _listen(self) -> None:
        if self.watches.fd >= 0:
            self._loop.add_reader(self.watches.fd, self._wake)

    def _wake(self) -> None:
        """Wake `wait`, and do not listen again until it has read the events."""
        self._loop.remove_reader(self.watches.fd)  # until the events are read
        self._woken.set()

    def _judge_event(self, number: int, mask: int, padded_name: bytes) -> Change:
        """Return the change: rescan for a directory or ended watch, NOTHING for other files and writes to archives."""
        if mask & pyinotify.IN_Q_OVERFLOW:
            return Change(frozenset(self.watches.directories.values()), rescan=True)
        directory = self.watches.directories.get(number)
        if directory is None or mask & (GONE | pyinotify.IN_ISDIR):
            return Change(rescan=True)
        journal = layout.classify(os.fsdecode(padded_name.rstrip(b"\0")))
        if journal is not None and mask & NAMES:
            return Change(renamed=True)
        return Change(frozenset({directory})) if journal is not None and journal.kind is Kind.ACTIVE else NOTHING


def _explain_kernel_error(error: Exception, limit: str) -> str:
    """Return the kernel's error in an exception of pyinotify, with the remedy if the inotify `limit` is reached."""
    text = str(error).rpartition("Errno=")[2]  # "... Errno=No space left on device (ENOSPC)"
    if text.endswith(("(ENOSPC)", "(EMFILE)")):
        with suppress(OSError), open(f"/proc/sys/fs/inotify/{limit}", encoding="ascii") as file:
            value = int(file.read())
            text += f"; fs.inotify.{limit} is {value}; raise it: sysctl fs.inotify.{limit}={2 * value}"
    return text
