# SPDX-License-Identifier: LGPL-2.1-or-later
"""The move of a journal directory into a btrfs subvolume of its own, which no snapshot of the root contains, or back.

The directory's name leads to a whole journal at every moment: a copy is made next to it, verified and on the disk
before the two exchange their names in one step. The caller sees to it that no journald writes meanwhile.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.btrfs import inode, kernel, subvolume, volume
from journalkeeper.execute import rewrite
from journalkeeper.execute.verified_file import FIXED, Failed, Refused
from journalkeeper.journald import opening
from journalkeeper.model.errors import FileError, KeeperError

STAGING: Final = ".journalkeeper-isolate"
"""The name of the copy until the exchange, and of the old tree after it, in the directory above the journals."""

MARK: Final = "user.journalkeeper.moved"
"""An attribute of a copy: the time, in ns, when it was complete. If the journal has it, STAGING is the old tree."""

FLAGS: Final = rewrite.FLAGS_KEPT | inode.FS_NOCOW_FL | inode.FS_COMPR_FL


class Tree(NamedTuple):
    """A journal directory as it was found, and all below it by relative path.

    `device` is its st_dev. `snapshots` is the number of snapshots of the subvolume that contains it, None if it is
    unknown. `sizes` are those of the regular files.
    """

    path: str
    device: int
    is_subvolume: bool
    snapshots: int | None
    entries: dict[str, os.stat_result]

    @property
    def sizes(self) -> list[int]:
        return [entry.st_size for entry in self.entries.values() if stat.S_ISREG(entry.st_mode)]


class Opener(NamedTuple):
    """A process that has a file open. `name` is "UNIT.service (PID)", without a unit "COMMAND (PID)"."""

    name: str
    path: str
    is_writer: bool


def survey(path: str) -> Tree:
    """Return the tree at `path`, an absolute path without links.

    Raises: KeeperError for what cannot be moved: a mount point at or below `path`, a nested subvolume, a hard link, a
    file that is immutable, or no file, directory or link; NotBtrfsError; FileError.
    """
    for point in volume.list_mount_points():
        if os.path.commonpath((point, path)) == path:
            raise KeeperError(
                f"{point} is a mount point: it cannot be moved, and snapshots of the root do not contain it"
            )
    try:
        with opening.open_directory(path) as fd:
            volume.require_btrfs(fd, path)
            snapshots, entries = volume.count_snapshots(fd), dict(_survey_below(fd, path, ""))
            return Tree(path, os.fstat(fd).st_dev, subvolume.is_subvolume(fd), snapshots, entries)
    except OSError as error:
        raise FileError.wrap("look at the journals", path, error) from error


def _survey_below(dir_fd: int, top: str, way: str) -> Iterator[tuple[str, os.stat_result]]:
    for name in sorted(os.listdir(dir_fd)):
        with suppress(FileNotFoundError):  # journald has deleted an archive
            found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            yield f"{way}{name}", found
            _require_movable(f"{top}/{way}{name}", found)
            if not stat.S_ISLNK(found.st_mode):
                with opening.hold_open(name, dir_fd) as fd:
                    if inode.get_flags(fd) & FIXED:
                        raise KeeperError(f"{top}/{way}{name} is immutable or append-only: chattr -i -a first")
                    if stat.S_ISDIR(found.st_mode):
                        yield from _survey_below(fd, top, f"{way}{name}/")


def _require_movable(path: str, status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    for is_so, words in (
        (kind not in {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}, "is no file, directory or link"),
        (kind == stat.S_IFDIR and status.st_ino <= volume.FIRST_FREE_OBJECTID, "is a subvolume of its own"),
        (kind == stat.S_IFREG and status.st_nlink > 1, f"has {status.st_nlink} names"),
    ):
        if is_so:
            raise KeeperError(f"{path} {words}: move it away first")


def find_users(tree: Tree) -> Iterator[Opener]:
    """Yield the processes of all namespaces that have a file of `tree` open, once for each file.

    Source: proc(5), /proc/PID/fdinfo.
    """
    known = {os.path.basename(way): way for way in tree.entries}
    ours = {(tree.device, entry.st_ino) for entry in tree.entries.values()}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # the process has ended, or is a zombie
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if (way := known.get(os.path.basename(os.readlink(f"/proc/{pid}/fd/{fd}")))) is None:
                    continue
                status = os.stat(f"/proc/{pid}/fd/{fd}")
                if (status.st_dev, status.st_ino) in ours:
                    yield Opener(f"{_read_name(pid)} ({pid})", f"{tree.path}/{way}", _is_writable(pid, fd))


def _read_name(pid: str) -> str:
    units = re.findall(r"[^/\n]+\.service", Path(f"/proc/{pid}/cgroup").read_text(errors="replace"))
    return units[-1] if units else Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()


def _is_writable(pid: str, fd: str) -> bool:
    flags = re.findall(r"flags:\s*(\d+)", Path(f"/proc/{pid}/fdinfo/{fd}").read_text())
    return int(flags[0], 8) & os.O_ACCMODE != os.O_RDONLY


def require_no_writer(tree: Tree) -> None:
    """Raise KeeperError with the name of the first process that can write to a file of `tree`."""
    if writer := next((user for user in find_users(tree) if user.is_writer), None):
        raise KeeperError(
            f"{writer.name} writes {writer.path}: stop it and its sockets first, and start them again afterwards"
        )


def move(tree: Tree, *, into_subvolume: bool) -> None:
    """Replace `tree` by a verified copy, a subvolume or a plain directory. The old tree gets the name STAGING.

    Nothing is changed after an error.

    Raises: KeeperError if the tree changed meanwhile, or a copy differs; FileError (ENOSPC, EROFS).
    """
    staging = name_staging(tree.path)
    try:
        if into_subvolume:
            subvolume.create(staging)
        else:
            os.mkdir(staging, 0o700)
        with opening.open_directory(tree.path) as old, opening.open_directory(staging) as new:
            os.fchmod(new, 0o700)
            _copy_below(old, new)
            _finish(old, new, os.fstat(old))
            os.setxattr(new, MARK, b"%d" % time.time_ns())
            volume.commit_transaction(new)
            _require_same(tree, survey(tree.path))
            exchange(tree.path)
            try:
                _require_same(tree, survey(staging))
                volume.commit_transaction(new)
            except BaseException:
                exchange(tree.path)
                raise
    except (Failed, Refused) as error:
        raise KeeperError(f"{tree.path}: {error.detail}; nothing was moved") from error
    except OSError as error:
        raise FileError.wrap("copy the journals", tree.path, error) from error


def name_staging(path: str) -> str:
    """Return the path of STAGING for the journal directory at `path`."""
    return f"{os.path.dirname(path)}/{STAGING}"


def exchange(path: str) -> None:
    """Exchange the names of the tree at `path` and the one named STAGING. Raises: OSError."""
    parent, name = os.path.split(path)
    with opening.open_directory(parent) as fd:
        kernel.exchange(fd, STAGING, name)


def _require_same(before: Tree, after: Tree) -> None:
    one, other = (
        {
            (way, file.st_ino, file.st_mode, file.st_size, file.st_mtime_ns, file.st_ctime_ns)
            for way, file in tree.items()
        }
        for tree in (before.entries, after.entries)
    )
    if changed := one ^ other:
        raise KeeperError(f"{before.path}/{min(changed)[0]} was changed during the copy; nothing was moved: try again")


def _copy_below(old: int, new: int) -> None:
    """Copy all in the directory `old` to the empty directory `new`, files by reflink."""
    for name in os.listdir(old):
        status = os.stat(name, dir_fd=old, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=old), name, dir_fd=new)
            os.chown(name, status.st_uid, status.st_gid, dir_fd=new, follow_symlinks=False)
            os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=new, follow_symlinks=False)
            continue
        is_directory = stat.S_ISDIR(status.st_mode)
        if is_directory:
            os.mkdir(name, 0o700, dir_fd=new)
        how = os.O_DIRECTORY if is_directory else os.O_RDWR | os.O_CREAT | os.O_EXCL
        copy = os.open(name, how | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=new)
        try:
            with opening.hold_open(name, old) as source:
                if is_directory:
                    _copy_below(source, copy)
                else:
                    _copy_file(source, copy, status.st_size)
                _finish(source, copy, status)
        finally:
            os.close(copy)


def _copy_file(source: int, copy: int, size_bytes: int) -> None:
    inode.set_flags(copy, inode.get_flags(source) & FLAGS)  # while it is empty
    at = 0  # the kernel makes a reflink if both files have checksums, or none of them
    while at < size_bytes and (done := os.copy_file_range(source, copy, size_bytes - at, at, at)):
        at += done
    if not subvolume.has_same_extents(source, copy):
        os.posix_fadvise(copy, 0, 0, os.POSIX_FADV_DONTNEED)
        rewrite.require_equal_data(source, copy, [(0, size_bytes)])


def _finish(source: int, copy: int, status: os.stat_result) -> None:
    """Give the copy all attributes of the original, the flags of a directory only now that its files are made."""
    os.fchown(copy, status.st_uid, status.st_gid)
    for name in set(os.listxattr(copy)) - set(os.listxattr(source)):
        os.removexattr(copy, name)
    if stat.S_ISDIR(status.st_mode):
        inode.set_flags(copy, inode.get_flags(source) & FLAGS)
    rewrite.copy_attributes(source, copy, status)
    if stat.S_ISREG(status.st_mode):
        rewrite.require_equal_attributes(source, copy)


def remove_staging(path: str) -> None:
    """Remove the tree that does not count next to the journal directory at `path`, and the mark of a finished move.

    Raises: KeeperError if a process wrote to a file of the old tree after the move, or still can; FileError.
    """
    staging = name_staging(path)
    try:
        moved_ns = int(os.getxattr(path, MARK)) if MARK in os.listxattr(path) else 0
        if os.path.lexists(staging):
            left = survey(staging)
            require_no_writer(left)
            for way, file in left.entries.items() if moved_ns else ():
                if stat.S_ISREG(file.st_mode) and max(file.st_mtime_ns, file.st_ctime_ns) > moved_ns:
                    raise KeeperError(f"{staging}/{way} was written after the move: move it away, the journal lacks it")
            if left.is_subvolume:
                subvolume.delete(staging)
            else:
                shutil.rmtree(staging)
        if moved_ns:
            os.removexattr(path, MARK)
    except OSError as error:
        raise FileError.wrap("remove the old tree", staging, error) from error
