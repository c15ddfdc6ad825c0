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
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from journalkeeper.btrfs import inode, kernel, subvolume, volume
from journalkeeper.execute import rewrite
from journalkeeper.execute.verified_file import FIXED, Failed, Refused
from journalkeeper.journald import opening
from journalkeeper.model import Reason
from journalkeeper.model.errors import FileError, KeeperError

STAGING: Final = ".journalkeeper-isolate"
"""The name of the copy until the exchange, and of the old tree after it, in the directory above the journals."""

MARK: Final = "user.journalkeeper.moved"
"""An attribute of a copy: the time, in ns, when it was complete. If the journal has it, STAGING is the old tree."""

ADOPT: Final = """\
mount -t btrfs -o subvolid=5 -- "$1" "$2"
[ ! -e "$2/$3" ] || rmdir -- "$2/$3"
mv -T -- "$2/$4" "$2/$3"
"""
"""The commands of `adopt`."""

FLAGS: Final = rewrite.FLAGS_KEPT | inode.FS_NOCOW_FL | inode.FS_COMPR_FL


class Fingerprint(NamedTuple):
    """The attributes of a file or directory that must not change during the move."""

    inode: int
    mode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


class Tree(NamedTuple):
    """A journal directory as it was found, and all below it by relative path.

    `device` is its st_dev. `snapshots` is the number of snapshots of the subvolume that contains it, None if it is
    unknown.
    """

    path: str
    device: int
    is_subvolume: bool
    snapshots: int | None
    entries: dict[str, Fingerprint]

    @property
    def files(self) -> int:
        """The number of regular files."""
        return sum(stat.S_ISREG(entry.mode) for entry in self.entries.values())

    @property
    def size_bytes(self) -> int:
        """The sum of the sizes of the regular files."""
        return sum(entry.size_bytes for entry in self.entries.values() if stat.S_ISREG(entry.mode))


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


def _survey_below(dir_fd: int, top: str, way: str) -> Iterator[tuple[str, Fingerprint]]:
    for name in sorted(os.listdir(dir_fd)):
        with suppress(FileNotFoundError):  # journald has deleted an archive
            found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            stamp = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            yield f"{way}{name}", Fingerprint(found.st_ino, found.st_mode, *stamp)
            _require_movable(f"{top}/{way}{name}", found)
            if not stat.S_ISLNK(found.st_mode):
                with opening.hold_open(name, dir_fd) as fd:
                    if inode.get_flags(fd) & FIXED:
                        raise KeeperError(f"{top}/{way}{name} is immutable or append-only: chattr -i -a first")
                    if stat.S_ISDIR(found.st_mode):
                        yield from _survey_below(fd, top, f"{way}{name}/")


def _require_movable(path: str, status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind not in {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}:
        raise KeeperError(f"{path} is no file, directory or link: move it away first")
    if kind == stat.S_IFDIR and status.st_ino <= volume.FIRST_FREE_OBJECTID:
        raise KeeperError(
            f"{path} is a subvolume of its own already, or what a snapshot left of it: move it away first"
        )
    if kind == stat.S_IFREG and status.st_nlink > 1:
        raise KeeperError(f"{path} has {status.st_nlink} names, and a copy would have one: remove the others first")


def find_users(tree: Tree) -> Iterator[Opener]:
    """Yield the processes of all namespaces that have a file of `tree` open, once for each file.

    Source: proc(5), /proc/PID/fdinfo.
    """
    known = {os.path.basename(way): way for way in tree.entries}
    ours = {(tree.device, entry.inode) for entry in tree.entries.values()}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # the process has ended, or is a zombie
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if (way := known.get(os.path.basename(os.readlink(f"/proc/{pid}/fd/{fd}")))) is None:
                    continue
                status = os.stat(f"/proc/{pid}/fd/{fd}")
                if (status.st_dev, status.st_ino) in ours:
                    yield Opener(f"{_read_name(pid)} ({pid})", f"{tree.path}/{way}", _is_writable(pid, fd))


def _read_name(pid: str) -> str:
    with (
        open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm,
        open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as groups,
    ):
        units = re.findall(r"[^/\n]+\.service", groups.read())
        return units[-1] if units else comm.read().strip()


def _is_writable(pid: str, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as info:
        flags = next(int(line.split()[1], 8) for line in info if line.startswith("flags:"))
    return flags & os.O_ACCMODE != os.O_RDONLY


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
    changed = {way for way in before.entries.keys() | after.entries.keys()
               if before.entries.get(way) != after.entries.get(way)}  # fmt: skip
    if changed:
        raise KeeperError(f"{before.path}/{min(changed)} was changed during the copy; nothing was moved: try again")


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
                    _copy_file(source, copy)
                _finish(source, copy, status)
        finally:
            os.close(copy)


def _copy_file(source: int, copy: int) -> None:
    inode.set_flags(copy, inode.get_flags(source) & FLAGS)  # while it is empty
    if not subvolume.share_extents(source, copy):
        rewrite.copy_plain(source, copy)
    elif not subvolume.has_same_extents(source, copy):
        raise Failed(Reason.MISMATCH, "a copy does not share the extents of its original")


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
            if moved_ns:
                _require_older(left, moved_ns)
            if left.is_subvolume:
                subvolume.delete(staging)
            else:
                shutil.rmtree(staging)
        if moved_ns:
            os.removexattr(path, MARK)
    except OSError as error:
        raise FileError.wrap("remove the old tree", staging, error) from error


def _require_older(old: Tree, moved_ns: int) -> None:
    for way, entry in old.entries.items():
        if stat.S_ISREG(entry.mode) and max(entry.mtime_ns, entry.ctime_ns) > moved_ns:
            raise KeeperError(
                f"{old.path}/{way} was written after the move, so the journal lacks it: move it away first"
            )


def adopt(path: str, device: str, own: str, lost: str) -> None:
    """Move the subvolume `lost` to `own`, the place of `path`, where a rollback left an empty directory or nothing.

    Both are places in the volume on `device`. Raises: KeeperError with the error message of the command that failed.
    """
    with tempfile.TemporaryDirectory(prefix="journalkeeper-", dir="/run") as point:
        words = ("unshare", "--mount", "--propagation", "private", "sh", "-ec", ADOPT, "sh", device, point, own, lost)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KeeperError(f"{path}: cannot bring the subvolume {lost} back: {done.stderr.strip()}")
