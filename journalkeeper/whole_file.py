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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from journalkeeper.journald import opening
from journalkeeper.model.errors import FileError, KeeperError

PART: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
LINKS_MOST: Final = 40
"""The links that the kernel follows in a path (MAXSYMLINKS)."""


def write_whole(doing: str, path: str, text: str, *, mode: int, replace: bool = True, sync: bool = True) -> None:
    """Write `text` to the absolute `path`, with exactly these mode bits; `doing` names the task in errors.

    Without `replace` the name must be free, and an empty file remains if the rename fails. Without `sync` the file may
    be empty after a power cut. The directory is never synced, so the old file may return after a power cut.

    Raises: FileError (EEXIST, ENOENT, EACCES, EISDIR, ENOSPC, EROFS), KeeperError as `open_directory`, or
    UnicodeEncodeError for surrogates. The old file is then still there, and no part of the new one.
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
            if not replace:
                os.close(os.open(name, CREATE, mode, dir_fd=dir_fd))
            os.rename(new, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except OSError as error:
            raise FileError.wrap(doing, path, error) from error
        finally:  # also after Ctrl-C
            with suppress(OSError):
                os.unlink(new, dir_fd=dir_fd)


@contextmanager
def open_directory(doing: str, path: str) -> Iterator[int]:
    """Open the directory of the absolute `path`, yield its descriptor, and close it at the end of the block.

    No part of the resolved path can be exchanged for a link before it is opened. `doing` names the task in errors.

    Raises: FileError if the directory cannot be opened; KeeperError for root, if another user's link is on the way.
    """
    directory = os.path.dirname(path)
    with ExitStack() as stack:
        try:
            dir_fd = stack.enter_context(opening.open_directory(str(_resolve(Path(directory)))))
        except OSError as error:
            raise FileError.wrap(doing, path, error) from error
        yield dir_fd


def require_root_only(directory: str) -> None:
    """Raise OSError if `directory` does not exist. For root, also raise KeeperError if `find_stranger` finds one."""
    os.stat(directory)
    if os.geteuid() == 0 and (stranger := find_stranger(directory)):
        raise KeeperError(f"{directory}: {stranger}: name a directory of root's, such as /var/tmp")


def find_stranger(path: str) -> str:
    """Return how a user other than root can exchange what `path` leads to: a clause on a part of the path, or "".

    Each existing part must be root's, links included, and no directory may be writable to all unless sticky. A group's
    write permission passes.
    """
    with suppress(OSError):
        for part, status in _walk(Path(os.path.abspath(path))):
            mode = status.st_mode
            is_open = stat.S_ISDIR(mode) and mode & stat.S_IWOTH and not mode & stat.S_ISVTX
            if status.st_uid != 0 or is_open:
                whose = f"belongs to user {status.st_uid}" if status.st_uid else "may be written to by everybody"
                return f"{part} {whose}"
    return ""


def _resolve(path: Path) -> Path:
    """Resolve all links in the absolute, existing `path`, for root only root's own.

    Raises: KeeperError for root, if a link does not belong to root; OSError as `_walk`.
    """
    for part, status in _walk(path):
        if stat.S_ISLNK(status.st_mode) and status.st_uid != 0 and os.geteuid() == 0:
            link = f'"{part.name}" is a link of user {status.st_uid}, which root does not follow'
            raise KeeperError(f"{path}: {link}: name the directory that it leads to")
    return part


def _walk(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each part of the absolute `path`, from the root on, with its status. Follow a link after it was yielded.

    The last part is what `path` leads to. Kind, owner and target of a link are those of one inode, because the owner of
    a directory can exchange its entries at any moment.

    Raises: OSError: ENOENT, ENOTDIR, EACCES; ELOOP for more links than the kernel follows.
    """
    for _ in range(LINKS_MOST + 1):
        with ExitStack() as stack:
            fd = None
            for part in (*reversed(path.parents), path):
                try:
                    # without O_DIRECTORY, autofs does not mount what is there
                    fd = os.open(part.name or "/", PART | os.O_DIRECTORY, dir_fd=fd)
                except NotADirectoryError:
                    fd = os.open(part.name, PART, dir_fd=fd)
                stack.enter_context(opening.hold(fd))
                status = os.fstat(fd)
                yield part, status
                if stat.S_ISLNK(status.st_mode):
                    path = part.parent / os.readlink("", dir_fd=fd) / path.relative_to(part)
                    break
            else:
                return
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
