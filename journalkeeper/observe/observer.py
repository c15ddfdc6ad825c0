# SPDX-License-Identifier: LGPL-2.1-or-later
"""One look at journal files, the input of a plan.

A look changes nothing: no write-back, no access time, and it follows no link. If a file cannot be looked at, its row
contains the problem, and the look continues.

A file with an unchanged stat is not opened again, with four exceptions. Right after a change, a second change could
have the same time stamp. While a file has unsynced pages, write-back moves them without a trace in stat. A shared
file is opened once a day, because the deletion of a snapshot leaves no trace in stat. And a caller that changed a
file's extents calls `forget`, because a defragmentation leaves no trace either.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Container, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from journalkeeper.btrfs import disk, extent_count, fiemap, inode
from journalkeeper.btrfs.volume import read_volume, require_btrfs
from journalkeeper.journald import control, layout, opening
from journalkeeper.journald.layout import Directory, Listing
from journalkeeper.model import Extents, Instance, JournalFile, Kind, Reason, State, Volume
from journalkeeper.model.errors import FileError, InternalError, NotBtrfsError, catch_errors
from journalkeeper.model.units import DAY_US
from journalkeeper.observe import file_row, snapshot_tools
from journalkeeper.observe.file_row import UnfitFileError

COARSE_NS: Final = 1_000_000_000
"""If a change is this close to the look, another change may have the same time stamp. Before Linux 6.13 time stamps
have the resolution of the timer tick, 1 to 10 ms; a second is safe.
"""

UNSYNCED_NS: Final = 60_000_000_000
"""After this time without a change the kernel has written a file's dirty pages (30 s, dirty_expire_centisecs): later
stores into its mapping change the mtime.
"""

SHARED_US: Final = DAY_US
"""How long a shared file is assumed to stay shared. The search for shared extents is the most expensive part of a look,
and its price grows with the number of snapshots.
"""

ALIKE: Final = 16
"""A map is read again if the number of its rows changed by more than this part of it."""

KEPT_PROBLEMS: Final = frozenset({None, Reason.BAD_HEADER, Reason.UNKNOWN_FORMAT})
"""The problems that another look would find again as long as the file does not change."""


class Seen(NamedTuple):
    """The results of one look. `leftovers` are the paths of our temporary files."""

    files: tuple[JournalFile, ...]
    instances: tuple[Instance, ...]
    volumes: tuple[Volume, ...]
    leftovers: tuple[str, ...]


class _Gathered:
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.files: list[JournalFile] = []
        self.instances: dict[str, Instance] = {}
        self.volumes: dict[int, Volume] = {}
        self.leftovers: list[str] = []

    def build_seen(self) -> Seen:
        """Return the rows, instances, volumes and leftovers that were added. `now_us` is not in the Seen."""
        instances, volumes = tuple(self.instances.values()), tuple(self.volumes.values())
        return Seen(tuple(self.files), instances, volumes, tuple(self.leftovers))


class Observer:
    """A look at files, with a memory of the rows of files that did not change, and of the maps of active files.

    `opened` is the number of files opened so far. `shared_us` is the time when `look` last opened all shared files.
    `closed` are the instances whose flush window is closed: a look reads the map of their active file only if none is
    in the memory. In an open window it also reads the map of a file whose size, many rows or sharing changed.
    """

    def __init__(self, *, with_disk_bytes: bool = False) -> None:
        self._with_disk_bytes = with_disk_bytes
        self._kept: dict[str, JournalFile] = {}
        """The remembered rows, by path. A row is valid while stat and subvolume are the same."""
        self._subvolumes: dict[int, tuple[str, int]] = {}
        self._snapshots: dict[tuple[str, int], tuple[int | None, str]] = {}
        """The number of snapshots and the snapshot tool of each subvolume, asked once per SHARED_US."""
        self._maps: dict[tuple[int, int], tuple[int, int, Extents]] = {}
        """The size of each active file, the rows of its map and its extents when a look last read the map, by (device,
        inode). Stores of journald into the file can wait while its map is read.
        """
        self.closed: Container[str] = ()
        self.shared_us = -SHARED_US
        self.opened = 0

    def forget(self, paths: Iterable[str]) -> None:
        """Forget the stored rows of `paths`, so that the next look opens these files again. Ignore unknown paths.

        The next look in an open window reads the maps of all active files again.
        """
        self._maps = {key: (-1, rows, extents) for key, (_, rows, extents) in self._maps.items()}
        for path in paths:
            self._kept.pop(path, None)

    @property
    def next_shared_us(self) -> int:
        """The time (CLOCK_REALTIME) when `look` opens shared files again, because no event shows a deletion."""
        return self.shared_us + SHARED_US

    def look(self, tops: Iterable[str], *, now_us: int) -> Seen:
        """Look at the journal files below `tops`. Open changed files, and shared files once per SHARED_US.

        A file or directory that cannot be looked at has a row with a problem, and so has a link in a top to a directory
        that is not below `tops`. A vanished file has no row.

        Raises: NotBtrfsError if no journal directory is on btrfs, or without any if a top is not; FileError for a top
        that is missing or cannot be listed, or a configuration file of journald that cannot be read.
        """
        if not self.shared_us <= now_us < self.next_shared_us:
            self.shared_us = now_us
            self._snapshots.clear()
            self._maps.clear()
            self._kept = {path: row for path, row in self._kept.items() if not row.extents.shared_bytes}
        gathered, tops = _Gathered(now_us), tuple(tops)
        for top in tops:
            if not os.path.isdir(top):
                raise FileError("look for journals", top, errno.ENOTDIR if os.path.lexists(top) else errno.ENOENT)
            for place in layout.find_directories(top):
                if place.path not in gathered.instances:  # otherwise two tops contain this directory
                    self._look_at_place(place, None, gathered)
        for path, target in (pair for top in tops for pair in layout.find_links(top)):
            if target not in gathered.instances:
                where = "is not in Directories=" if os.path.isdir(target) else "is missing"
                leads = f"a link to {target}, which {where}"
                place = layout.describe_directory(path)
                gathered.files.append(file_row.build_problem(place, None, Reason.NOT_WATCHED, leads))
        foreign = [row.path for row in gathered.files if row.problem is Reason.NOT_BTRFS]
        if foreign and not gathered.volumes:
            raise NotBtrfsError(foreign[0])
        for top in tops if not gathered.volumes else ():
            with opening.open_directory(os.path.realpath(top)) as fd:
                require_btrfs(fd, top)
        there = {row.path for row in gathered.files}
        self._kept = {path: row for path, row in self._kept.items() if path in there}
        return gathered.build_seen()

    def look_at(self, resolved_paths: Iterable[str], *, now_us: int) -> Seen:
        """Return a Seen with one row for each path, which `resolve_path` returned. Errors become the row's problem.

        Raises: FileError if a configuration file of a directory's journald cannot be read.
        """
        gathered = _Gathered(now_us)
        for path in dict.fromkeys(resolved_paths):
            parent, _, name = path.rpartition("/")
            self._look_at_place(layout.describe_directory(parent or "/"), name, gathered)
        return gathered.build_seen()

    def _look_at_place(self, place: Directory, only: str | None, gathered: _Gathered) -> None:
        """Add `place` to `gathered` as `_list_place`, and the rows of its journals, or of `only`, even if it vanished.

        The rows come from `_read_if_changed` and `_mark_orphan`. If `place` vanished or cannot be looked at, a row has
        the problem; one more row has it if `place` has too many files. Raises: as `look_at`.
        """
        try:
            with opening.open_directory(place.path) as fd:
                if only is not None:
                    # Also where its parent is on another filesystem than its target.
                    file_row.require_regular(os.stat(only, dir_fd=fd, follow_symlinks=False))
                listing = self._list_place(place, fd, gathered)
                for name in sorted(listing.journals) if only is None else [only]:
                    row = self._read_if_changed(place, name, fd, gathered.now_us)
                    row = self._mark_orphan(place, row, gathered.now_us)
                    if only is not None or row.problem is not Reason.VANISHED:
                        gathered.files.append(row)
        except (NotBtrfsError, OSError, UnfitFileError) as error:
            gathered.files.append(file_row.build_problem(place, only, *file_row.explain_error(error)))
        else:
            if only is None and listing.left_out:
                detail = f"{listing.left_out:,} journal files are left out: at most {layout.MOST_FILES:,} are looked at"
                gathered.files.append(file_row.build_problem(place, None, Reason.TOO_MANY, detail))

    def _list_place(self, place: Directory, fd: int, gathered: _Gathered) -> Listing:
        """Return the listing, empty if this look has listed it. Add the instance, volume and leftovers to `gathered`.

        Forget the device's rows, and all maps, if another subvolume has its number now.

        Raises: NotBtrfsError; OSError; FileError as `look_at`.
        """
        if place.path in gathered.instances:
            return Listing([], [])
        status = os.fstat(fd)
        device = status.st_dev
        if device not in gathered.volumes:
            require_btrfs(fd, place.path)
            volume = gathered.volumes[device] = self._add_snapshots(fd, read_volume(fd))
            subvolume = volume.uuid, volume.subvolume
            if self._subvolumes.setdefault(device, subvolume) != subvolume:  # a mount can reuse the device number
                self._subvolumes[device] = subvolume
                self._maps.clear()
                self._kept = {path: row for path, row in self._kept.items() if row.device != device}
        listing = layout.list_directory(fd)  # a directory that cannot be listed is no instance
        flags = inode.get_flags(fd)
        space = os.fstatvfs(fd)
        settings = layout.read_effective_settings(place, space)
        gathered.instances[place.path] = Instance(
            name=place.name,
            directory=place.path,
            device=device,
            inode=status.st_ino,
            namespace=place.namespace,
            nocow=bool(flags & inode.FS_NOCOW_FL),
            available_bytes=space.f_frsize * space.f_bavail,
            compressed=bool(flags & inode.FS_COMPR_FL),
            refuses_compression=bool(flags & inode.FS_NOCOMP_FL),
            rotatable=settings.storage in {"auto", "persistent"} and control.can_be_asked(place),
            **{name: value for name, value in settings._asdict().items() if name in Instance._fields},
        )
        gathered.leftovers += [f"{place.path}/{name}" for name in listing.leftovers]
        return listing

    def _add_snapshots(self, fd: int, volume: Volume) -> Volume:
        """Return `volume` with its number of snapshots, or their tool if that is unknown. Ask once per SHARED_US."""
        key = volume.uuid, volume.subvolume
        if key not in self._snapshots:
            number = disk.measure_snapshots(fd)
            tool = snapshot_tools.find_tool(volume.device) if number is None else ""
            self._snapshots[key] = number, tool
        number, tool = self._snapshots[key]
        return volume._replace(snapshots=number, snapshot_tool=tool)

    def _read_if_changed(self, place: Directory, name: str, dir_fd: int, now_us: int) -> JournalFile:
        """Return the stored row if the file's stat is the same, else a new row. An error becomes the row's problem.

        The row of a file that changed in the last COARSE_NS (UNSYNCED_NS if ONLINE) is not stored: the same stat could
        hide a later change. Nor is one with a problem outside KEPT_PROBLEMS, or of an active file in a closed window.
        """
        path = f"{place.path}/{name}"
        try:
            status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except OSError as error:
            return file_row.build_problem(place, name, *file_row.explain_error(error))
        before = self._kept.get(path)
        if before is not None and _is_unchanged(before, status):
            return before
        self._kept.pop(path, None)
        self.opened += 1
        survey = partial(self._survey_active, closed=place.name in self.closed)
        read = partial(file_row.read_row, place, name, status, survey, dir_fd=dir_fd, disk_bytes=self._with_disk_bytes)
        row = catch_errors(read)
        if isinstance(row, InternalError):
            row = file_row.build_problem(place, name, Reason.INTERNAL_ERROR, row.detail)
        settled_ns = UNSYNCED_NS if row.state is State.ONLINE else COARSE_NS
        settled = now_us * 1000 - max(row.mtime_ns, row.ctime_ns) > settled_ns
        by_old_map = row.kind is Kind.ACTIVE and place.name in self.closed
        if settled and row.problem in KEPT_PROBLEMS and not by_old_map:
            self._kept[path] = row
        return row

    def _survey_active(self, fd: int, *, closed: bool) -> Extents:
        """Return the extents of `fd` by its last map. Read the map if there is none, or in an open window if the size
        changed, the number of rows did by more than 1/ALIKE, or a file that shared nothing shares its middle now.

        The number of rows is no number of extents: each dirty page is a row.
        """
        status = os.fstat(fd)
        key, size = (status.st_dev, status.st_ino), status.st_size
        if (known := self._maps.get(key)) is not None and closed:
            return known[2]
        rows = fiemap.count_rows(fd)
        if known is not None:
            last_size, last_rows, extents = known
            alike = size == last_size and abs(rows - last_rows) * ALIKE <= last_rows
            # A snapshot adds no row. Each flush moves the first block, so the middle shows a snapshot for longer.
            if alike and (extents.shared_bytes or not fiemap.is_shared_at(fd, size // 2)):
                return extents
        extents = extent_count.survey(fd, sync=False, per_mib=True)
        self._maps[key] = size, rows, extents
        return extents

    def _mark_orphan(self, place: Directory, row: JournalFile, now_us: int) -> JournalFile:
        """Return `row`, as ORPHANED (also in the memory) if it is active, a day old by its ctime, and without a writer.

        A journald of this machine is a writer in its directory. Elsewhere only the kernel knows of one, such as in a
        container, which keeps its file open.
        """
        old = row.kind is Kind.ACTIVE and row.problem is None and now_us - row.ctime_ns // 1000 >= DAY_US
        if not old or control.has_journald(place):
            return row
        with suppress(OSError), opening.open_path(row.path) as fd:
            if not opening.is_being_written(fd):
                orphan = row._replace(kind=Kind.ORPHANED)
                if self._kept.get(row.path) is row:
                    self._kept[row.path] = orphan
                return orphan
        return row


def _is_unchanged(file: JournalFile, status: os.stat_result) -> bool:
    """Return whether device, inode, size, mtime, ctime and number of links are equal in the row and the stat."""
    now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink)
    return now == (file.device, file.inode, file.size_bytes, file.mtime_ns, file.ctime_ns, file.links)


def resolve_path(given: str) -> str:
    """Return the absolute path of a file, which need not exist. Only links in its directory's path are resolved."""
    parent, name = os.path.split(os.path.abspath(given))
    return f"{os.path.realpath(parent).rstrip('/')}/{name}"
