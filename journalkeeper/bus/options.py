# SPDX-License-Identifier: LGPL-2.1-or-later
"""The arguments of Plan and Defragment: a Request as paths, a compression and flags. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

from journalkeeper.bus.names import shorten, to_ascii
from journalkeeper.model import Request
from journalkeeper.model.compression import parse_compression
from journalkeeper.model.errors import UsageError

MOST_CHARACTERS: Final = 1 << 16
"""The greatest length of all paths together: a call with them is shorter than a message that the service reads."""

LONGEST: Final = 4096
"""A path has fewer characters than this (PATH_MAX)."""

FLAGS: Final = ("active", "archived", "now", "allow_unshare", "before_shutdown", "asked")
"""The fields of a Request that are flags: the bits 1, 2, 4, 8, 16 and 32."""


def list_arguments(request: Request) -> tuple[list[str], str, int]:
    """Return the paths in ASCII, the compression ("" for none) and the flags of `request`."""
    flags = sum(getattr(request, name) << bit for bit, name in enumerate(FLAGS))
    return [to_ascii(path) for path in request.paths], request.compress or "", flags


def make_request(paths: Sequence[str], compress: str, flags: int, directories: tuple[str, ...]) -> Request:
    """Return the Request that these arguments describe. They mean the same as on the command line.

    Raises: UsageError with the permitted values, or if a path is not in normal form below one of `directories`.
    """
    if flags >> len(FLAGS):
        known = ", ".join(f"{1 << bit} ({name.replace('_', '-')})" for bit, name in enumerate(FLAGS))
        raise UsageError(f"{flags} has unknown flags; known are {known}")
    if sum(map(len, paths)) > MOST_CHARACTERS:
        raise UsageError(f"paths may have {MOST_CHARACTERS} characters together; for all files give none")
    if compress:
        try:
            parse_compression(compress if len(compress) <= 100 else f"{compress[:100]}...")
        except ValueError as error:
            raise UsageError(f"compress: {error}") from error
    checked = tuple(dict.fromkeys(check_path(one, directories) for one in paths))
    given = {name: bool(flags >> bit & 1) for bit, name in enumerate(FLAGS)}
    return Request(checked, compress=compress or None, upkeep=True, **given)


def check_path(path: str, directories: tuple[str, ...]) -> str:
    """Return `path` if it is absolute, in normal form and inside one of `directories`, else raise UsageError."""
    plain = len(path) < LONGEST and path.startswith("/") and posixpath.normpath(path) == path
    if not plain or path.startswith("//"):
        raise UsageError(f"{shorten(path)} is not an absolute path without . and ..")
    if not any(path.startswith(f"{directory.rstrip('/')}/") for directory in directories):
        raise UsageError(f"{shorten(path)} is not below {' or '.join(directories)}; the service works only there")
    return path
