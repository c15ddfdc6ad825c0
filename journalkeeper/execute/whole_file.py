# SPDX-License-Identifier: LGPL-2.1-or-later
"""Atomic writing of a whole file: a reader finds the old content or the new content, never a part.

The new file has a random name until it is complete. If the file's name is a link, the link is replaced and never
followed. In the path of its directory, root follows only root's links, because the owner of any other link chooses its
target. If root makes more than one file, every directory of the path must belong to root: see require_root_only().
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from journalkeeper.btrfs.kernel import rename_without_replacing
from journalkeeper.model.errors import FileError, KeeperError

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
STEP: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

MAX_LINKS: Final = 40
"""The number of links that the kernel follows in one path (MAXSYMLINKS, linux/namei.h)."""


def write_whole(doing: str, path: str, text: str, *, mode: int, replace: bool = True, sync: bool = True) -> None:
    """Write `text` to the absolute `path`, with exactly these mode bits; `doing` names the task in errors.

    Without `replace` the name must be free. Without `sync` the file may be empty after a power cut.
    Raises: FileError (EEXIST the name is taken; ENOENT no such directory; EACCES; EISDIR; ENOSPC; EROFS);
        KeeperError as `open_directory`. The old file is then still there, and no part of the new one.
    """
    name = os.path.basename(path)
    new = f".journalkeeper-{secrets.token_hex(8)}.new"
    with open_directory(doing, path) as dir_fd:
        try:
            with open(os.open(new, CREATE, mode, dir_fd=dir_fd), "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), mode)  # whatever the umask
                file.write(text)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            if replace:
                os.rename(new, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
            else:
                _rename_to_free_name(dir_fd, new, name)
        except OSError as error:
            raise FileError.wrap(doing, path, error) from error
        finally:  # also after Ctrl-C
            with suppress(OSError):
                os.unlink(new, dir_fd=dir_fd)


@contextmanager
def open_directory(doing: str, path: str) -> Iterator[int]:
    """Open the directory that contains the absolute `path`.

    Raises: FileError; KeeperError for root, if another user's link is on the way.
    """
    directory = os.path.dirname(path)
    try:
        dir_fd = _open_as_root(directory) if os.geteuid() == 0 else os.open(directory, DIRECTORY)
    except OSError as error:
        raise FileError.wrap(doing, path, error) from error
    try:
        yield dir_fd
    finally:
        os.close(dir_fd)


def require_root_only(directory: str) -> None:
    """Refuse, for root, a directory in which another user could exchange the files that root makes there.

    Every directory on the way belongs to root, and no user may rename the files of others in it (sticky bit).
    Raises: KeeperError; OSError.
    """
    part = os.path.realpath(directory)
    while os.geteuid() == 0:
        status = os.lstat(part)
        if status.st_uid != 0 or (status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX):
            whose = f"belongs to user {status.st_uid}" if status.st_uid else "may be written to by everybody"
            raise KeeperError(
                f"{directory}: {part} {whose}, who could exchange what root makes there;"
                " name a directory of root's, such as /var/tmp"
            )
        if part == "/":
            return
        part = os.path.dirname(part)


def _open_as_root(directory: str) -> int:
    """Open a directory part by part from "/", so that no part can be exchanged after its owner was looked at."""
    parts, links = directory.split("/")[::-1], 0
    at = os.open("/", STEP)
    try:
        while parts:
            part = parts.pop() or "."
            fd = os.open(part, STEP, dir_fd=at)
            status = os.fstat(fd)
            if not stat.S_ISLNK(status.st_mode):
                at, fd = fd, at
                os.close(fd)
                continue
            target = os.readlink("", dir_fd=fd)
            os.close(fd)
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if status.st_uid != 0:
                raise KeeperError(
                    f'{directory}: its part "{part}" is a link of user {status.st_uid}, which root does not follow;'
                    " name the directory that it leads to"
                )
            parts += target.split("/")[::-1]
            if target.startswith("/"):
                parts.append("/")
        return os.open(".", DIRECTORY, dir_fd=at)
    finally:
        os.close(at)


def _rename_to_free_name(dir_fd: int, new: str, name: str) -> None:
    """Rename `new` to `name`, unless a file has this name.

    On a filesystem that cannot rename so (NFS), make a hard link instead; the caller then removes `new`.

    Raises: OSError: EEXIST a file has the name.
    """
    try:
        rename_without_replacing(dir_fd, new, name)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        os.link(new, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
