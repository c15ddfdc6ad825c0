# SPDX-License-Identifier: LGPL-2.1-or-later
"""One look at journal files: what a plan is made from.

Looking changes nothing. No file is written back for it, no access time
moved, no link followed; what cannot be looked at is a problem in the file's row, with
its reason, and the look goes on.

A file whose stat is the same as at the last look is not opened again, except right after
a change, when a second change could have got the same time stamp, once a day while a snapshot shares
it, and after `forget`, which whoever changed its extents calls: neither the deletion of a snapshot nor a
defragmentation leaves a trace in stat.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

from journalkeeper.btrfs import inode
from journalkeeper.btrfs.volume import read_volume, require_btrfs
from journalkeeper.journald import control, layout, opening
from journalkeeper.journald.layout import Directory
from journalkeeper.journald.names import Name, classify
from journalkeeper.model import Instance, JournalFile, Reason, Volume
from journalkeeper.model.errors import FileError, NotBtrfsError
from journalkeeper.model.internal_error import InternalError, guarded
from journalkeeper.model.units import DAY_US
from journalkeeper.observe import file_row, survey
from journalkeeper.observe.survey import Opened

COARSE_NS: Final = 1_000_000_000
"""A change this close to the look may be followed by another with the same time stamp:
before Linux 6.13 they have the timer tick's resolution, 1 to 10 ms; a second is safe."""

AT_ONCE: Final = 256
"""Files that are open at a time: a quarter of what a process may have by default."""

SHARED_US: Final = DAY_US
"""How long a shared file is taken to stay shared: to look for sharing costs the most of a look, and more the more
snapshots there are."""

KEPT_PROBLEMS: Final = frozenset({None, Reason.BAD_HEADER, Reason.INTERNAL_ERROR})
"""What another look would find again while the file does not change."""


class Seen(NamedTuple):
    """What one look found; `leftovers` are the paths of temporary files of ours and of files with a note of ours."""

    files: tuple[JournalFile, ...]
    instances: tuple[Instance, ...]
    volumes: tuple[Volume, ...]
    leftovers: tuple[str, ...]


class _Where(NamedTuple):
    """An open directory and its st_dev."""

    fd: int
    device: int


class _Gathered:
    """A Seen in the making."""

    def __init__(self) -> None:
        self.files: list[JournalFile] = []
        self.instances: dict[str, Instance] = {}
        self.volumes: dict[int, Volume] = {}
        self.leftovers: list[str] = []

    def seen(self) -> Seen:
        noted = [file.path for file in self.files if file.mtime_noted]
        volumes, leftovers = tuple(self.volumes.values()), (*self.leftovers, *noted)
        return Seen(tuple(self.files), tuple(self.instances.values()), volumes, leftovers)


class Observer:
    """Looks, and remembers the files that did not change.

    `opened` counts the files opened so far; `shared_us` is when a look opened all that are shared with a snapshot.
    """

    def __init__(self, root: str = "/", *, with_disk_bytes: bool = False) -> None:
        self._root = root
        self._with_disk_bytes = with_disk_bytes
        self._kept: dict[str, dict[str, JournalFile]] = {}
        self._subvolumes: dict[int, tuple[str, int]] = {}
        self.shared_us = -SHARED_US
        self.opened = 0

    def forget(self, paths: Iterable[str]) -> None:
        """Open these again at the next look."""
        for path in paths:
            self._kept_in(path.rpartition("/")[0]).pop(path, None)

    def _kept_in(self, directory: str) -> dict[str, JournalFile]:
        """The rows that hold while the file has the same stat, by path."""
        return self._kept.setdefault(directory, {})

    def _drop(self, which: Callable[[JournalFile], bool]) -> None:
        """Keep none of these rows."""
        for kept in self._kept.values():
            for path in [path for path, row in kept.items() if which(row)]:
                del kept[path]

    def opens_shared(self, now_us: int) -> bool:
        """Whether a look at everything would open shared files again: once a day, or when the clock was set back."""
        return not self.shared_us <= now_us < self.opens_shared_us

    @property
    def opens_shared_us(self) -> int:
        """From when on it would."""
        return self.shared_us + SHARED_US

    def look(self, tops: Iterable[str], *, now_us: int) -> Seen:
        """Look at every journal file below the directories `tops`.

        Raises: NotBtrfsError; FileError if a top is missing or may not be read.
        """
        if self.opens_shared(now_us):
            self.shared_us = now_us
            self._drop(lambda row: row.extents.shared_bytes > 0)
        gathered = _Gathered()
        foreign: list[NotBtrfsError] = []
        for top in tops:
            if not os.path.isdir(top):
                raise FileError("look for journals", top, errno.ENOTDIR if os.path.lexists(top) else errno.ENOENT)
            places = layout.find_directories(top)
            if not places:
                with opening.open_directory(os.path.realpath(top)) as fd:
                    require_btrfs(fd, top)
            for place in places:
                if place.path in gathered.instances:
                    continue  # below two of the tops
                try:
                    rows = self._below(place, now_us, gathered)
                except NotBtrfsError as error:
                    foreign.append(error)
                    rows = [file_row.directory_problem(place, Reason.NOT_BTRFS, str(error))]
                except OSError as error:
                    why = file_row.reason(error)
                    rows = [file_row.directory_problem(place, why, os.strerror(error.errno or 0))]
                kept = self._kept_in(place.path)
                self._kept[place.path] = {row.path: row for row in rows if kept.get(row.path) is row}
                gathered.files += [row for row in rows if row.problem is not Reason.VANISHED]
        if foreign and not gathered.volumes:
            raise foreign[0]
        self._kept = {directory: kept for directory, kept in self._kept.items() if directory in gathered.instances}
        return gathered.seen()

    def _below(self, place: Directory, now_us: int, gathered: _Gathered) -> list[JournalFile]:
        """The rows of all files in one directory."""
        with opening.open_directory(place.path) as fd:
            where = self._learn(place, fd, gathered)
            listing = layout.list_directory(fd)
            gathered.leftovers += [f"{place.path}/{name}" for name in listing.leftovers]
            rows = self._rows(place, where, sorted(listing.journals), now_us)
        if listing.left_out:
            detail = f"{listing.left_out:,} journal files more than the {layout.MOST_FILES:,} that are looked at"
            rows.append(file_row.directory_problem(place, Reason.TOO_MANY, detail))
        return rows

    def look_at(self, paths: Iterable[str], *, now_us: int) -> Seen:
        """These files alone, in their order; each gets a row, with a problem where it is no journal file.

        `paths` are absolute, and no link on the way is followed: see `resolved`.
        """
        gathered = _Gathered()
        for path in dict.fromkeys(paths):
            gathered.files.append(self._named(path, now_us, gathered))
        return gathered.seen()

    def _named(self, path: str, now_us: int, gathered: _Gathered) -> JournalFile:
        parent, _, name = path.rpartition("/")
        place = layout.describe_directory(parent or "/")
        try:
            with opening.open_directory(place.path) as fd:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):  # also where its parent is on another filesystem than its target
                    return file_row.irregular(place, name, classify(name) or file_row.UNNAMED, status)
                is_first = place.path not in gathered.instances
                where = self._learn(place, fd, gathered)
                if is_first:
                    gathered.leftovers += [f"{place.path}/{left}" for left in layout.list_directory(fd).leftovers]
                return self._rows(place, where, [(name, classify(name))], now_us)[0]
        except NotBtrfsError as error:
            return file_row.problem(place, name, file_row.UNNAMED, Reason.NOT_BTRFS, str(error))
        except OSError as error:
            return file_row.problem(
                place, name, file_row.UNNAMED, file_row.reason(error), os.strerror(error.errno or 0)
            )

    def _learn(self, place: Directory, fd: int, gathered: _Gathered) -> _Where:
        """Add the directory's instance and volume to `gathered`."""
        status = os.fstat(fd)
        device = status.st_dev
        if place.path not in gathered.instances:
            if device not in gathered.volumes:
                require_btrfs(fd, place.path)
                found = gathered.volumes[device] = read_volume(fd)
                subvolume = found.uuid, found.subvolume
                if self._subvolumes.get(device, subvolume) != subvolume:  # numbers are dealt out anew at each mount
                    self._drop(lambda row: row.device == device)
                self._subvolumes[device] = subvolume
            flags = inode.get_flags(fd)
            nocow, space = bool(flags & inode.FS_NOCOW_FL), os.fstatvfs(fd)
            gathered.instances[place.path] = layout.describe_instance(
                place, device=device, nocow=nocow, space=space, root=self._root
            )._replace(
                inode=status.st_ino,
                compressed=bool(flags & inode.FS_COMPR_FL),
                rotatable=self._root == "/" and control.can_be_asked(place.path, place.namespace),
            )
        return _Where(fd, device)

    def _rows(
        self, place: Directory, where: _Where, names: Sequence[tuple[str, Name | None]], now_us: int
    ) -> list[JournalFile]:
        """The rows of names in one directory, in their order, AT_ONCE files being open at a time."""
        rows: list[JournalFile] = []
        kept = self._kept_in(place.path)
        for start in range(0, len(names), AT_ONCE):
            opened: list[Opened] = []
            try:
                for name, kind in names[start : start + AT_ONCE]:
                    answer = guarded(partial(self._row, place, where, name, kind, now_us=now_us))
                    if isinstance(answer, InternalError):
                        problem = file_row.problem(
                            place, name, kind or file_row.UNNAMED, Reason.INTERNAL_ERROR, answer.detail
                        )
                        answer = problem, None
                    row, fd = answer
                    if fd is not None:
                        opened.append(Opened(len(rows), fd, row))
                    rows.append(row)
                completed = survey.completed(opened, with_disk_bytes=self._with_disk_bytes)
                for one, row in zip(opened, completed, strict=True):
                    rows[one.number] = row
                    kept.pop(row.path, None)
                    known = row.problem in KEPT_PROBLEMS and not row.mtime_noted
                    if known and now_us * 1000 - max(row.mtime_ns, row.ctime_ns) > COARSE_NS:
                        kept[row.path] = row
            finally:
                for one in opened:
                    os.close(one.fd)
        return rows

    def _row(
        self, place: Directory, where: _Where, name: str, kind: Name | None, *, now_us: int
    ) -> tuple[JournalFile, int | None]:
        """The row of one name, and a descriptor where it still lacks how the file lies, as it
        is not remembered or its stat is another."""
        dir_fd = where.fd
        try:
            status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                return file_row.irregular(place, name, kind or file_row.UNNAMED, status), None
            if kind is None or (beyond := file_row.beyond(status)):
                detail = "not a journal file's name" if kind is None else beyond
                return file_row.problem(place, name, kind or file_row.UNNAMED, Reason.NOT_JOURNAL, detail), None
            if status.st_dev != where.device:
                return file_row.problem(
                    place, name, kind, Reason.NOT_BTRFS, "something else is mounted on this name"
                ), None
            kept = self._kept_in(place.path).get(f"{place.path}/{name}")
            if kept is not None and _unchanged(kept, status):
                return kept, None
            self.opened += 1
            with ExitStack() as undo:
                fd = opening.open_file(name, dir_fd)
                undo.callback(os.close, fd)
                row = file_row.begun(place, name, kind, fd)
                undo.pop_all()
        except OSError as error:
            return file_row.problem(
                place, name, kind or file_row.UNNAMED, file_row.reason(error), os.strerror(error.errno or 0)
            ), None
        return row, fd


def _unchanged(file: JournalFile, status: os.stat_result) -> bool:
    """Whether a file still has the stat that it had when it was opened."""
    now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink)
    return now == (file.device, file.inode, file.size_bytes, file.mtime_ns, file.ctime_ns, file.links)


def resolved(given: str) -> str:
    """The absolute path of a file, links followed up to its directory."""
    parent, name = os.path.split(os.path.abspath(given))
    return f"{os.path.realpath(parent).rstrip('/')}/{name}"
