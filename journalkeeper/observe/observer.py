# SPDX-License-Identifier: LGPL-2.1-or-later
"""One look at journal files, the input of a plan.

A look changes nothing: no write-back, no access time, and it follows no link. If a file cannot be looked at, its row
contains the problem, and the look continues.

A file with an unchanged stat is not opened again, with three exceptions. Right after a change, a second change could
have the same time stamp. A shared file is opened once a day, because the deletion of a snapshot leaves no trace in
stat. And a caller that changed a file's extents calls `forget`, because a defragmentation leaves no trace either.
"""

from __future__ import annotations

import errno
import os
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
from journalkeeper.model.errors import FileError, InternalError, NotBtrfsError, catch_errors
from journalkeeper.model.units import DAY_US
from journalkeeper.observe import file_row, survey
from journalkeeper.observe.file_row import UnfitFileError
from journalkeeper.observe.survey import Opened

COARSE_NS: Final = 1_000_000_000
"""If a change is this close to the look, another change may have the same time stamp. Before Linux 6.13 time stamps
have the resolution of the timer tick, 1 to 10 ms; a second is safe.
"""

AT_ONCE: Final = 256
"""The largest number of files that are open at a time: a quarter of a process's default limit."""

SHARED_US: Final = DAY_US
"""How long a shared file is assumed to stay shared. The search for shared extents is the most expensive part of a look,
and its price grows with the number of snapshots.
"""

KEPT_PROBLEMS: Final = frozenset({None, Reason.BAD_HEADER, Reason.INTERNAL_ERROR})
"""The problems that another look would find again as long as the file does not change."""


class Seen(NamedTuple):
    """The results of one look. `leftovers` are the paths of our temporary files and of files with our mtime note."""

    files: tuple[JournalFile, ...]
    instances: tuple[Instance, ...]
    volumes: tuple[Volume, ...]
    leftovers: tuple[str, ...]


class _Where(NamedTuple):
    """An open directory and its st_dev."""

    fd: int
    device: int


class _Gathered:
    """The results of a look in progress."""

    def __init__(self) -> None:
        self.files: list[JournalFile] = []
        self.instances: dict[str, Instance] = {}
        self.volumes: dict[int, Volume] = {}
        self.leftovers: list[str] = []

    def build_seen(self) -> Seen:
        noted = [file.path for file in self.files if file.mtime_noted]
        volumes, leftovers = tuple(self.volumes.values()), (*self.leftovers, *noted)
        return Seen(tuple(self.files), tuple(self.instances.values()), volumes, leftovers)


class Observer:
    """Looks at files, and remembers the rows of files that did not change.

    `opened` is the number of files opened so far. `shared_us` is the time when a look last opened all shared files.
    """

    def __init__(self, root: str = "/", *, with_disk_bytes: bool = False) -> None:
        self._root = root
        self._with_disk_bytes = with_disk_bytes
        self._kept: dict[str, dict[str, JournalFile]] = {}
        self._subvolumes: dict[int, tuple[str, int]] = {}
        self.shared_us = -SHARED_US
        self.opened = 0

    def forget(self, paths: Iterable[str]) -> None:
        """Forget the stored rows of `paths`, so that the next look opens these files again."""
        for path in paths:
            self._get_rows(path.rpartition("/")[0]).pop(path, None)

    def _get_rows(self, directory: str) -> dict[str, JournalFile]:
        """Return the stored rows of one directory, by path.

        A row is valid while the file's stat is the same.
        """
        return self._kept.setdefault(directory, {})

    def _forget_rows(self, which: Callable[[JournalFile], bool]) -> None:
        """Forget all stored rows for which `which` returns True."""
        for kept in self._kept.values():
            for path in [path for path, row in kept.items() if which(row)]:
                del kept[path]

    def needs_shared_look(self, now_us: int) -> bool:
        """Return whether the next `look` opens all shared files again: once a day, or after the clock was set back.

        No event shows that a snapshot was deleted.
        """
        return not self.shared_us <= now_us < self.next_shared_us

    @property
    def next_shared_us(self) -> int:
        """The time from which `look` opens shared files again."""
        return self.shared_us + SHARED_US

    def look(self, tops: Iterable[str], *, now_us: int) -> Seen:
        """Look at every journal file below the directories `tops`.

        Raises: NotBtrfsError if no directory is on btrfs; FileError if a top is missing or unreadable.
        """
        if self.needs_shared_look(now_us):
            self.shared_us = now_us
            self._forget_rows(lambda row: row.extents.shared_bytes > 0)
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
                    continue  # two tops contain this directory
                try:
                    rows = self._look_at_directory(place, now_us, gathered)
                except (NotBtrfsError, OSError) as error:
                    foreign += [error] if isinstance(error, NotBtrfsError) else []
                    rows = [file_row.build_directory_problem(place, *file_row.explain_error(error))]
                kept = self._get_rows(place.path)
                self._kept[place.path] = {row.path: row for row in rows if kept.get(row.path) is row}
                gathered.files += [row for row in rows if row.problem is not Reason.VANISHED]
        if foreign and not gathered.volumes:
            raise foreign[0]
        self._kept = {directory: kept for directory, kept in self._kept.items() if directory in gathered.instances}
        return gathered.build_seen()

    def _look_at_directory(self, place: Directory, now_us: int, gathered: _Gathered) -> list[JournalFile]:
        """Return the rows of all files in one directory."""
        with opening.open_directory(place.path) as fd:
            where = self._describe_place(place, fd, gathered)
            listing = layout.list_directory(fd)
            gathered.leftovers += [f"{place.path}/{name}" for name in listing.leftovers]
            rows = self._build_rows(place, where, sorted(listing.journals), now_us)
        if listing.left_out:
            detail = f"{listing.left_out:,} journal files are left out: at most {layout.MOST_FILES:,} are looked at"
            rows.append(file_row.build_directory_problem(place, Reason.TOO_MANY, detail))
        return rows

    def look_at(self, paths: Iterable[str], *, now_us: int) -> Seen:
        """Look at the files `paths` alone, in their order. Each gets a row, with a problem if it is not a journal file.

        `paths` are absolute, and no link in them is followed: see `resolve_path`.
        """
        gathered = _Gathered()
        for path in dict.fromkeys(paths):
            gathered.files.append(self._look_at_path(path, now_us, gathered))
        return gathered.build_seen()

    def _look_at_path(self, path: str, now_us: int, gathered: _Gathered) -> JournalFile:
        parent, _, name = path.rpartition("/")
        place = layout.describe_directory(parent or "/")
        try:
            with opening.open_directory(place.path) as fd:
                # Also where its parent is on another filesystem than its target.
                file_row.require_regular(os.stat(name, dir_fd=fd, follow_symlinks=False))
                is_first = place.path not in gathered.instances
                where = self._describe_place(place, fd, gathered)
                if is_first:
                    gathered.leftovers += [f"{place.path}/{left}" for left in layout.list_directory(fd).leftovers]
                return self._build_rows(place, where, [(name, classify(name))], now_us)[0]
        except (NotBtrfsError, OSError, UnfitFileError) as error:
            kind = classify(name) if isinstance(error, UnfitFileError) else None
            return file_row.build_problem(place, name, kind, *file_row.explain_error(error))

    def _describe_place(self, place: Directory, fd: int, gathered: _Gathered) -> _Where:
        """Return the handle and device of a directory. Add its instance and volume to `gathered`."""
        status = os.fstat(fd)
        device = status.st_dev
        if place.path not in gathered.instances:
            if device not in gathered.volumes:
                require_btrfs(fd, place.path)
                found = gathered.volumes[device] = read_volume(fd)
                subvolume = found.uuid, found.subvolume
                if self._subvolumes.get(device, subvolume) != subvolume:  # a mount can reuse the device number
                    self._forget_rows(lambda row: row.device == device)
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

    def _build_rows(
        self, place: Directory, where: _Where, names: Sequence[tuple[str, Name | None]], now_us: int
    ) -> list[JournalFile]:
        """Return the rows of the files `names` in one directory, in their order.

        At most AT_ONCE files are open at the same time.
        """
        rows: list[JournalFile] = []
        kept = self._get_rows(place.path)
        for start in range(0, len(names), AT_ONCE):
            opened: list[Opened] = []
            try:
                for name, kind in names[start : start + AT_ONCE]:
                    answer = catch_errors(partial(self._build_row, place, where, name, kind, now_us=now_us))
                    if isinstance(answer, InternalError):
                        answer = file_row.build_problem(place, name, kind, Reason.INTERNAL_ERROR, answer.detail), None
                    row, fd = answer
                    if fd is not None:
                        opened.append(Opened(len(rows), fd, row))
                    rows.append(row)
                completed = survey.complete_rows(opened, with_disk_bytes=self._with_disk_bytes)
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

    def _build_row(
        self, place: Directory, where: _Where, name: str, kind: Name | None, *, now_us: int
    ) -> tuple[JournalFile, int | None]:
        """Return the row of one file, and None if the row is complete.

        A new row still lacks the extents; it is returned with an open descriptor of the file, which the caller closes.
        An error becomes the row's problem.
        """
        try:
            status = os.stat(name, dir_fd=where.fd, follow_symlinks=False)
            file_row.require_regular(status)
            if kind is None or (beyond := file_row.describe_impossible_stat(status)):
                raise UnfitFileError(Reason.NOT_JOURNAL, "not a journal file's name" if kind is None else beyond)
            if status.st_dev != where.device:
                raise UnfitFileError(Reason.NOT_BTRFS, "another filesystem is mounted on this file")
            kept = self._get_rows(place.path).get(f"{place.path}/{name}")
            if kept is not None and _is_unchanged(kept, status):
                return kept, None
            self.opened += 1
            with ExitStack() as undo:
                fd = opening.open_file(name, where.fd)
                undo.callback(os.close, fd)
                row = file_row.build_row(place, name, kind, fd)
                undo.pop_all()
        except (OSError, UnfitFileError) as error:
            return file_row.build_problem(place, name, kind, *file_row.explain_error(error)), None
        return row, fd


def _is_unchanged(file: JournalFile, status: os.stat_result) -> bool:
    """Return whether a file's stat is the same as when it was opened."""
    now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink)
    return now == (file.device, file.inode, file.size_bytes, file.mtime_ns, file.ctime_ns, file.links)


def resolve_path(given: str) -> str:
    """Return the absolute path of a file, with the links in its directory's path resolved.

    If the file itself is a link, it is not resolved.
    """
    parent, name = os.path.split(os.path.abspath(given))
    return f"{os.path.realpath(parent).rstrip('/')}/{name}"
