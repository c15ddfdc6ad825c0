# SPDX-License-Identifier: LGPL-2.1-or-later
"""The options of Plan, Defragment and ListFiles. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Final

from journalkeeper.bus import names
from journalkeeper.bus.names import shorten
from journalkeeper.model import Request
from journalkeeper.model.compression import parse_compression
from journalkeeper.model.errors import UsageError

MOST_CHARACTERS: Final = 1 << 16
"""The greatest length of all paths together: a call with them is shorter than a message that the service reads."""

LONGEST: Final = 4096
"""A path has fewer characters than this (PATH_MAX)."""

FLAGS: Final = ("active", "archived", "now", "allow-unshare", "before-shutdown")
OPTION_SIGNATURES: Final = {**dict.fromkeys(FLAGS, "b"), "compress": "s", "paths": "as"}
LIST_SIGNATURES: Final = {"after": "s"}


def options(request: Request) -> dict[str, tuple[str, object]]:
    """Return the D-Bus options that describe `request`: (signature, value) by name.

    Leave out the paths if `request` names none, flags that are False, and a compression of None. Leave out `upkeep`,
    too, which has no option. Paths become ASCII.
    """
    given: dict[str, tuple[str, object]] = {}
    if request.paths:
        given["paths"] = ("as", [names.to_ascii(path) for path in request.paths])
    given |= {name: ("b", True) for name in FLAGS if getattr(request, name.replace("-", "_"))}
    if request.compress is not None:
        given["compress"] = ("s", request.compress)
    return given


def request(given: Mapping[str, tuple[str, Any]], directories: tuple[str, ...]) -> Request:
    """Return the Request that the D-Bus options `given` describe. The options mean the same as on the command line.

    A path that is given twice counts once. Do not read the disk. `upkeep` is True: a request for all active files
    then has actions on directories and rotations, too.

    Raises: UsageError with the permitted options or values, or if a path is not in normal form below one of
    `directories`.
    """
    values = _check(given, OPTION_SIGNATURES)
    if "compress" in values:
        text = values["compress"]
        try:
            parse_compression(text if len(text) <= 100 else f"{text[:100]}...")
        except ValueError as error:
            raise UsageError(f"option compress: {error}") from error
    paths = tuple(dict.fromkeys(check_path(one, directories) for one in _paths(values)))
    flags = {name.replace("-", "_"): values.get(name, False) for name in FLAGS}
    return Request(paths, compress=values.get("compress"), upkeep=True, **flags)


def list_after(given: Mapping[str, tuple[str, Any]]) -> str:
    """Return the option "after" of ListFiles: the path after which the list begins, "" for the first file.

    Raises: UsageError for any other option, or a value with another signature than s.
    """
    after: str = _check(given, LIST_SIGNATURES).get("after", "")
    return after


def _check(given: Mapping[str, tuple[str, Any]], allowed: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of options. Raises: UsageError for an option or a signature that is not `allowed`."""
    for name, (signature, _) in given.items():
        if name not in allowed:
            listed = ", ".join(f"{one} ({kind})" for one, kind in sorted(allowed.items()))
            raise UsageError(f"{shorten(name)} is no option; allowed are {listed}")
        if signature != allowed[name]:
            raise UsageError(f"option {name} has signature {shorten(signature)}; it must be {allowed[name]}")
    return {name: value for name, (_, value) in given.items()}


def check_path(path: str, directories: tuple[str, ...]) -> str:
    """Return `path` if it is absolute, in normal form and below one of `directories`. Do not read the disk.

    Raises: UsageError otherwise: for one of `directories` itself, for a path that begins with "//", and for a path of
    LONGEST or more characters.
    """
    plain = len(path) < LONGEST and path.startswith("/") and posixpath.normpath(path) == path
    if not plain or path.startswith("//"):
        raise UsageError(f"{shorten(path)} is not an absolute path without . and ..")
    if not any(path.startswith(f"{directory.rstrip('/')}/") for directory in directories):
        raise UsageError(f"{shorten(path)} is not below {' or '.join(directories)}; the service works only there")
    return path


def _paths(values: Mapping[str, Any]) -> list[str]:
    """Return the value of the option "paths", or [] if the option is not given.

    Raises: UsageError if all paths together have no character, or more than MOST_CHARACTERS.
    """
    if "paths" not in values:
        return []
    paths: list[str] = values["paths"]
    if not 0 < sum(map(len, paths)) <= MOST_CHARACTERS:
        what = f"option paths must have 1 to {MOST_CHARACTERS} characters"
        raise UsageError(f"{what}; for all files leave it out")
    return paths
