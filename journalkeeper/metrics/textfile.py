# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file that others read while it is written anew: node_exporter's textfile.

The one rule: whoever opens the name finds a whole file, the old one or the new one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from journalkeeper.model.errors import FileError

NAME: Final = "journalkeeper.prom"
MODE: Final = 0o644
"""node_exporter reads it as a user of its own."""


def target(place: str) -> str:
    """The file that Textfile= means: itself if its name ends in .prom, which the collector asks for, else one in it."""
    return place if place.endswith(".prom") else f"{place}/{NAME}"


def write(path: str, text: str) -> None:
    """Put `text` in the place of `path`. Not synced: after a power cut the next run writes it anew.

    The collector passes over names that do not end in .prom, as the new file's until it is whole.
    What is in the way of that name is removed and not followed: others may write in the directory.
    Raises: FileError (ENOENT no such directory; EACCES; EROFS read-only, also by a unit's
        ProtectSystem=; ENOSPC; EISDIR a directory has the name).
    """
    directory, name = os.path.split(path)
    new = f".{name}.new"
    try:
        dir_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FileError.wrap("write the metrics", path, error) from error
    try:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=dir_fd)
        _create(new, dir_fd, text)
        try:
            os.rename(new, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except OSError:
            os.unlink(new, dir_fd=dir_fd)
            raise
    except OSError as error:
        raise FileError.wrap("write the metrics", path, error) from error
    finally:
        os.close(dir_fd)


def _create(name: str, dir_fd: int, text: str) -> None:
    """A new file with that text; none at all if it cannot be written in whole."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, MODE, dir_fd=dir_fd), "w", encoding="utf-8") as file:
        try:
            os.fchmod(file.fileno(), MODE)  # whatever the umask
            file.write(text)
            file.flush()
        except OSError:
            os.unlink(name, dir_fd=dir_fd)
            raise
