# SPDX-License-Identifier: LGPL-2.1-or-later
"""The move of a journal directory into a btrfs subvolume of its own, out of later snapshots of the root, or back.

The directory's name leads to a whole journal at every moment: a copy is made next to it and verified before the two
exchange their names in one step. btrfs brings changes to the disk in their order, so no commit is needed: it took 30 s
where two programs asked for one at a time (measured). The caller sees to it that no journald writes meanwhile.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.btrfs import fiemap, inode, kernel, volume
from journalkeeper.execute import rewrite
from journalkeeper.execute.verified_file import Refused
from journalkeeper.health.evidence import SERVICE
from journalkeeper.journald import layout, opening
from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.observe.obstacles import is_left_by_rollback

STAGING: Final = ".{}-isolate"
"""The name of the copy until the exchange, and of the old tree after it, next to the journal directory of this name."""

FLAT: Final = "@journal"
"""The name of the journal's subvolume at the top of the volume, from where it can be mounted at the directory."""

MARK: Final = "user.journalkeeper.moved"
"""An attribute of both trees of a move, set before the exchange: the tree's fingerprint.

A tree with another one was written to later, and is never removed, nor is one whose copy is gone. A part has none.
"""

ISOLATED: Final = "trusted.journalkeeper.isolated.{}"
"""An attribute of the directory above the journal directory of this name: the UUID of the journal's subvolume.

Each later snapshot of the root contains it. Only root can write it, and nobody can give a subvolume an UUID.
"""

ANEW: Final = (
    "was left by a rollback, and no other root has its subvolume: rmdir and mkdir it, and run"
    " systemd-tmpfiles --create --prefix /var/log/journal; journalctl --flush"
)

CLOSING_S: Final = 10.0
"""journald closes the files that it gives up in threads, which sync them first."""

LONGEST_S: Final = 30.0
"""A power cut loses what journald has written to /run meanwhile."""

MOST_ENTRIES: Final = 20_000
"""Their copy took 20 s (measured)."""

IN_MEMORY: Final = "/run/log/journal/{}/system@*"
"""The archives of the host's journald in /run. When its files there are too many or too large, it deletes archives."""

DEEPEST: Final = 64
"""Each level takes descriptors and a part of Python's stack, and the owner of one directory can make thousands."""

JOURNALS: Final = f"/proc/[0-9]*/root{layout.TOP}"
"""The journals of the running host, also in a chroot, and of its containers, by process."""

FLAGS: Final = rewrite.FLAGS_KEPT | inode.FS_NOCOW_FL | inode.FS_COMPR_FL


class Tree(NamedTuple):
    """A journal directory as it was found. `entries` are all below it by relative path, `sizes` those of files."""

    path: str
    is_subvolume: bool
    entries: dict[str, os.stat_result]

    @property
    def sizes(self) -> list[int]:
        return [entry.st_size for entry in self.entries.values() if stat.S_ISREG(entry.st_mode)]

    @property
    def states(self) -> set[tuple[str, int, int, int, int]]:
        """The path, inode, size, mtime and ctime of each entry, not of the top. At least one differs after a change.

        A store into a mapping sets the times if it is the page's first since a write-back. The copy wrote all back.
        """
        return {(way, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for way, one in self.entries.items()}

    @property
    def fingerprint(self) -> bytes:
        """A hash of `states`. That of a copy differs, because its inodes do."""
        return hashlib.sha256(repr(sorted(self.states)).encode(errors="surrogateescape")).digest()


def survey(path: str, written: list[str] | None = None) -> Tree:
    """Return the tree at `path`, an absolute path without links. What vanishes meanwhile is left out.

    Add to `written` the files that a program can write to. No journald may write then: see `opening.is_being_written`.

    Raises: KeeperError for what cannot be moved: a mount point at or below `path` (except FLAT at `path`), a nested
    subvolume, a hard link, an immutable or special file, or one too deep (DEEPEST); NotBtrfsError; FileError.
    """
    for line in volume.read_mount_lines():
        point, place = volume.get_mount_point(line), volume.get_mount_point(line, 3)
        if os.path.commonpath((point, path)) == path and (point, place) != (path, f"/{FLAT}"):
            raise KeeperError(f"{point} is a mount point: it cannot be moved, and no snapshot of the root contains it")
    try:
        with opening.open_directory(path) as fd:
            volume.require_btrfs(fd, path)
            return Tree(path, volume.is_subvolume(fd), dict(_survey_below(fd, path, "", written)))
    except OSError as error:
        raise FileError.wrap("look at the journals", path, error) from error


def _survey_below(dir_fd: int, top: str, way: str, written: list[str] | None) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path from `top` and status of all below `dir_fd`, the directory `way`. Raises: KeeperError; OSError."""
    for name in sorted(os.listdir(dir_fd)):
        path = f"{top}/{way}{name}"
        with suppress(FileNotFoundError):  # journald has deleted an archive
            found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            _require_movable_kind(path, found)
            if stat.S_ISLNK(found.st_mode):
                yield f"{way}{name}", found
                continue
            with opening.hold_open(name, dir_fd) as fd:
                if inode.get_flags(fd) & inode.FIXED:
                    raise KeeperError(f"{path} is immutable or append-only: chattr -i -a first")
                if written is not None and stat.S_ISREG(found.st_mode) and opening.is_being_written(fd):
                    written.append(path)
                yield f"{way}{name}", os.fstat(fd)  # later than a store by a writer that has ended
                if stat.S_ISDIR(found.st_mode):
                    yield from _survey_below(fd, top, f"{way}{name}/", written)


def _require_movable_kind(path: str, status: os.stat_result) -> None:
    """Raise KeeperError for a device, FIFO or socket, a subvolume, a file of several names, or a path below DEEPEST."""
    kind = stat.S_IFMT(status.st_mode)
    for is_so, words in (
        (kind not in {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}, "is no file, directory or link"),
        (kind == stat.S_IFDIR and status.st_ino <= volume.FIRST_FREE_OBJECTID, "is a subvolume of its own"),
        (kind == stat.S_IFREG and status.st_nlink > 1, f"has {status.st_nlink} names"),
        (path.count("/") > DEEPEST, f"is below {DEEPEST} directories"),
    ):
        if is_so:
            raise KeeperError(f"{path} {words}: move it away first")


def survey_unwritten(path: str) -> Tree:
    """Return `survey` once it and `find_writers` find no writer. Raises: as both; KeeperError: one after CLOSING_S."""
    until_s = time.monotonic() + CLOSING_S
    while True:
        written: list[str] = []
        tree = survey(path, written)
        found = [*find_writers(path), *(("a program that fuser(1) may show", file) for file in written)]
        if not found:
            return tree
        if time.monotonic() > until_s:
            who, file = found[0]
            raise KeeperError(f"{who} can write to {file}: end it and its sockets first, and start them afterwards")
        time.sleep(CLOSING_S / 100)


def find_writers(path: str) -> Iterator[tuple[str, str]]:
    """Yield each program that has a file below `path` open for writing, perhaps this one, and the file.

    The program is "UNIT.service (PID)" or "COMMAND (PID)". Then yield, once per mount namespace, each writable mount of
    the tree or a part: "PROGRAM at its mount POINT", or "a program at the mount POINT" in this process's namespace, and
    `path`. The service's mounts are left out: it restarts after a move. Raises: as `locate`.
    """
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):  # closed meanwhile
            if os.lstat(link).st_mode & stat.S_IWUSR and (file := os.readlink(link)).startswith(f"{path}/"):
                yield _name_process(link), file
    device, place = locate(path)
    own, spaces = os.readlink("/proc/self/ns/mnt"), set[str]()
    for table in glob.iglob("/proc/[0-9]*/mountinfo"):
        with suppress(OSError):  # the process has ended, or is a zombie
            space, name = os.readlink(f"{os.path.dirname(table)}/ns/mnt"), _name_process(table)
            if space in spaces or name.startswith(SERVICE):
                continue
            spaces.add(space)
            for line in volume.read_mount_lines(table):
                fields, root = line.split(" "), volume.get_mount_point(line, 3)
                if fields[2] == device and f"{root}/".startswith(f"{place}/") and "rw" in fields[5].split(","):
                    who = "a program at the" if space == own else f"{name} at its"
                    yield f"{who} mount {volume.get_mount_point(line)}", path


def locate(path: str) -> tuple[str, str]:
    """Return the device of the directory `path` as in mountinfo ("0:35"), and the path from the volume's top.

    Raises: KeeperError if mountinfo does not have it, as in some chroots.
    """
    with opening.open_directory(path) as fd:
        if (line := volume.find_mount_line(fd)) is None:
            raise KeeperError(f"{path} is on a mount that /proc/self/mountinfo lacks: run this outside of the chroot")
    root, below = volume.get_mount_point(line, 3), os.path.relpath(path, volume.get_mount_point(line))
    return line.split(" ")[2], os.path.normpath(os.path.join(root, below))


def _name_process(path: str) -> str:
    """Return "NAME.service (PID)", the last of its cgroup, or "COMMAND (PID)", for /proc/PID/... Raises: OSError."""
    pid = path.split("/")[2]
    cgroup, command = (Path(f"/proc/{pid}/{name}").read_text(errors="replace") for name in ("cgroup", "comm"))
    units = re.findall(r"[^/\n]+\.service", cgroup)
    return f"{[command.strip(), *units][-1]} ({pid})"


class _Limits(NamedTuple):
    """journald keeps all messages in memory until this time, and while it has no more archives there than these."""

    until_s: float
    archives: set[str]

    def require(self) -> None:
        """Raises: KeeperError after `until_s`; as `require_all_kept`."""
        if time.monotonic() > self.until_s:
            raise KeeperError(f"the disk is slow: no copy within {LONGEST_S:g} s; nothing was moved: try again later")
        self.require_all_kept()

    def require_all_kept(self) -> None:
        """Raises: KeeperError if journald has made another archive in /run."""
        if _list_host_archives_in_run() - self.archives:
            raise KeeperError("too much is logged during the copy; nothing was moved: try again later")


def _list_host_archives_in_run() -> set[str]:
    return set(glob.iglob(IN_MEMORY.format(layout.read_machine_id())))


def prepare(tree: Tree) -> set[str]:
    """Call `write_back` for the tree, and return for `move` the archives in /run.

    Call it before journald writes to /run. Raises: KeeperError if there are too many files for a move; OSError.
    """
    if (count := len(tree.entries)) > MOST_ENTRIES:
        raise KeeperError(f"{tree.path}: a move of {count:,} files takes too long: move other files away first")
    write_back(tree.path)
    return _list_host_archives_in_run()


def write_back(directory: str) -> None:
    """Write the dirty pages of the directory's volume to the disk, however long that takes. Raises: OSError."""
    with opening.open_directory(directory) as fd:
        kernel.syncfs(fd)


def move(tree: Tree, archives: set[str], *, into_subvolume: bool) -> None:
    """Replace `tree` by a verified copy, a subvolume or a plain directory. The old tree gets the name STAGING.

    Call `finish` first, because STAGING must not exist, and after an error: the copy stays there, the old tree in its
    place. `archives` is what `prepare` returned. Both trees get a MARK, the directory above a subvolume its UUID.

    Raises: KeeperError if the tree changed or has a writer, a copy differs, or it takes too long; FileError (ENOSPC).
    """
    staging, limits = name_staging(tree.path), _Limits(time.monotonic() + LONGEST_S, archives)
    try:
        (volume.create_subvolume if into_subvolume else os.mkdir)(staging)
        with opening.open_directory(tree.path) as old, opening.open_directory(staging) as new:
            os.fchmod(new, 0o700)
            _copy_below(old, new, limits)
            _copy_all_attributes(old, new, os.fstat(old))
            os.setxattr(old, MARK, tree.fingerprint)
            os.setxattr(new, MARK, survey(staging).fingerprint)
            if into_subvolume:
                _store_uuid(tree.path, new)
            _require_same(tree, survey(tree.path))
            limits.require()
            kernel.exchange(new, staging, tree.path)  # both are absolute
            with ExitStack() as undo:
                undo.callback(kernel.exchange, new, staging, tree.path)
                _require_same(tree, survey_unwritten(staging))
                limits.require_all_kept()
                undo.pop_all()
    except Refused as error:
        raise KeeperError(f"{tree.path}: {error.detail}; nothing was moved") from error
    except OSError as error:
        raise FileError.wrap("copy the journals", tree.path, error) from error


def name_staging(path: str) -> str:
    """Return the path of STAGING for the journal directory at `path`."""
    return os.path.join(os.path.dirname(path), STAGING.format(os.path.basename(path)))


def _require_same(before: Tree, after: Tree) -> None:
    if changed := before.states ^ after.states:
        raise KeeperError(f"{before.path}/{min(changed)[0]} was changed during the copy; nothing was moved: try again")


def _store_uuid(path: str, top: int) -> None:
    """Store the UUID of the subvolume `top` as an xattr of the directory above `path`; remove it if `top` is none."""
    parent, name = os.path.split(path)
    attribute = ISOLATED.format(name)
    if volume.is_subvolume(top):
        os.setxattr(parent, attribute, volume.read_uuid(top))
    elif attribute in os.listxattr(parent):
        os.removexattr(parent, attribute)


def find_lost(path: str) -> str | None:
    """Return the path, from the volume's top, of the subvolume that a rollback left in another root.

    Return None only if `path` exists and no rollback left it. Raises: KeeperError if none is found, or a host uses it.
    """
    if (exists := os.path.lexists(path)) and not is_left_by_rollback(path):
        return None
    parent, name = os.path.split(path)
    with suppress(OSError):  # ENODATA; or the filesystem has no attributes
        uuid = os.getxattr(parent, ISOLATED.format(name))
        for used in glob.iglob(JOURNALS):
            with suppress(OSError), opening.hold(os.open(used, os.O_DIRECTORY)) as fd:  # a FIFO would never open
                if volume.read_uuid(fd) == uuid:
                    raise KeeperError(f"{path}: its subvolume is {layout.TOP} for {_name_process(used)} and stays")
        if place := volume.find_subvolume(parent, uuid):
            return place
    raise KeeperError(f"{path} {ANEW if exists else 'does not exist: there is no journal to move'}")


def _copy_below(old: int, new: int, limits: _Limits) -> None:
    """Copy all in the directory `old` to the empty directory `new`, files by reflink if possible."""
    for name in os.listdir(old):
        limits.require()
        status = os.stat(name, dir_fd=old, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=old), name, dir_fd=new)
            os.chown(name, status.st_uid, status.st_gid, dir_fd=new, follow_symlinks=False)
            shutil.copystat(f"/proc/self/fd/{old}/{name}", f"/proc/self/fd/{new}/{name}", follow_symlinks=False)
            continue
        is_directory = stat.S_ISDIR(status.st_mode)
        if is_directory:
            os.mkdir(name, 0o700, dir_fd=new)
        how = os.O_DIRECTORY if is_directory else os.O_RDWR | os.O_CREAT | os.O_EXCL
        copy = os.open(name, how | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=new)
        try:
            with opening.hold_open(name, old) as source:
                if is_directory:
                    _copy_below(source, copy, limits)
                else:
                    _copy_and_compare(source, copy, status.st_size)
                _copy_all_attributes(source, copy, status)
        finally:
            os.close(copy)


def _copy_and_compare(source: int, copy: int, size_bytes: int) -> None:
    """Copy flags and data. Raises: Refused if the data differ, which is compared unless both share all extents."""
    inode.set_flags(copy, inode.get_flags(source) & FLAGS)  # while it is empty
    at = 0  # the kernel makes a reflink if both files have checksums, or none of them
    while at < size_bytes and (done := os.copy_file_range(source, copy, size_bytes - at, at, at)):
        at += done
    if not fiemap.has_same_extents(source, copy):  # it has written the copy back, which a commit does not
        os.posix_fadvise(copy, 0, 0, os.POSIX_FADV_DONTNEED)
        rewrite.require_equal_data(source, copy, [(0, size_bytes)])


def _copy_all_attributes(source: int, copy: int, status: os.stat_result) -> None:
    """Give the copy all attributes of the original, and compare those of a file. Raises: Refused; OSError."""
    os.fchown(copy, status.st_uid, status.st_gid)
    for name in set(os.listxattr(copy)) - set(os.listxattr(source)):
        os.removexattr(copy, name)
    if stat.S_ISDIR(status.st_mode):  # only now that its files are made, which would inherit them
        inode.set_flags(copy, inode.get_flags(source) & FLAGS)
    rewrite.copy_attributes(source, copy, status)
    if stat.S_ISREG(status.st_mode):
        rewrite.require_equal_attributes(source, copy)


def finish(path: str) -> bool:
    """Remove the old tree of a move to `path`, or the copy of a failed one, and the marks. Store the UUID at `path`.

    Return whether `path` had a mark.
    Raises: KeeperError if a process wrote to the tree after the copy or still can, or `path` is no copy; FileError.
    """
    staging = name_staging(path)
    try:
        with suppress(OSError):  # what a snapshot contains in place of a subvolume
            os.rmdir(staging)
        if os.path.lexists(staging):
            left = survey_unwritten(staging)
            if MARK in os.listxattr(staging):
                if os.getxattr(staging, MARK) != left.fingerprint:
                    raise KeeperError(f"{staging} was written to after the move, so {path} lacks entries: move it away")
                if MARK not in os.listxattr(path):
                    raise KeeperError(f"{staging} is old, and {path} is no copy of it: move one of them away")
                os.removexattr(staging, MARK)  # what a killed removal leaves is a part of a tree
            (volume.delete_subvolume if left.is_subvolume else shutil.rmtree)(staging)
        if is_unfinished := MARK in os.listxattr(path):
            os.removexattr(path, MARK)
        with opening.open_directory(path) as top:
            _store_uuid(path, top)
        return is_unfinished
    except OSError as error:
        raise FileError.wrap("end the move", path, error) from error
