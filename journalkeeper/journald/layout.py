# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where journals are: the directories below a journal directory and the files in them.

Nothing here follows a link below the top, and what vanishes while we
look was never there.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from journalkeeper.journald import conf
from journalkeeper.journald.names import Name, classify, is_leftover
from journalkeeper.model import Instance, Kind
from journalkeeper.model.errors import FileError

TOP = "/var/log/journal"
REMOTE = "remote"

MOST_FILES = 7168
"""Files of one directory that are looked at. sd-journal opens no more of all directories together
(sd-journal.c, JOURNAL_FILES_MAX), and 100,000 names in remote/ must not end the service by its MemoryMax=."""

# A machine id, as sd-journal takes it also in UUID's form, and perhaps a namespace.
_INSTANCE = re.compile(r"([0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:\.(.+))?\Z", re.I | re.DOTALL)
# What is left of NAME_MAX after the id and the dot: log_namespace_name_valid(), syslog-util.c.
_NAMESPACE = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9:_.@-]{1,222}\Z")


class Directory(NamedTuple):
    """One directory with journal files in it.

    `name` is the last part of `path`; `machine_id` "" where the name has none, as for
    remote/; `namespace` "" for the main instance.
    """

    path: str
    name: str
    machine_id: str
    namespace: str


class Listing(NamedTuple):
    """What is in one directory by name: journal files, and temporary files of ours.

    `left_out` is how many more journal files there are.
    """

    journals: list[tuple[str, Name]]
    leftovers: list[str]
    left_out: int = 0


def directories(top: str = TOP) -> list[Directory]:
    """The directories with journals at `top`, sorted by name: as journalctl -D takes one, and remote/ too.

    That is `top` itself if it is named as an instance or holds journal files, and the first
    MOST_FILES of the directories in it that are. A link is followed for `top` only. A top that does not
    exist has none.
    Raises: FileError if `top` cannot be listed: EACCES, ENOTDIR.
    """
    top = os.path.realpath(top)
    holds_journals = False

    def below(entries: Iterable[os.DirEntry[str]]) -> Iterator[Directory]:
        nonlocal holds_journals
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                holds_journals = holds_journals or classify(entry.name) is not None
            elif (place := _directory(os.path.join(top, entry.name), entry.name)) is not None:
                yield place

    try:
        with os.scandir(top) as entries:
            found = heapq.nsmallest(MOST_FILES, below(entries))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileError.wrap("list its journals", top, error) from error
    own = _directory(top, os.path.basename(top))
    if own is None and holds_journals:
        own = directory_at(top)
    return found if own is None else [own, *found]


def directory_at(path: str) -> Directory:
    """The directory at `path`, which holds journal files whatever its name is."""
    name = os.path.basename(path)
    return _directory(path, name) or Directory(path, name, "", "")


def _directory(path: str, name: str) -> Directory | None:
    """What a directory's name makes it, None if no journald would write there."""
    if name == REMOTE:
        return Directory(path, name, "", "")
    found = _INSTANCE.match(name)
    if found is None or (found[2] is not None and not _NAMESPACE.match(found[2])):
        return None
    return Directory(path, name, found[1].replace("-", "").lower(), found[2] or "")


def listing(directory: str | int) -> Listing:
    """The journals and leftovers in a directory, by path or open descriptor, unsorted; empty if it vanished.

    At most MOST_FILES of each, and never more of them in memory: of the journals those that journald
    itself names before others, active before archived, and of the archives the newest.
    Names only: whether each is a regular file is for whoever opens it.
    Raises: FileError if it cannot be listed: EACCES.
    """
    leftovers: list[str] = []
    total = 0

    def journals(entries: Iterable[os.DirEntry[str]]) -> Iterator[tuple[str, Name]]:
        nonlocal total
        for entry in entries:
            kind = classify(entry.name)
            if kind is not None:
                total += 1
                yield entry.name, kind
            elif is_leftover(entry.name) and len(leftovers) < MOST_FILES:
                leftovers.append(entry.name)

    try:
        with os.scandir(directory) as entries:
            found = heapq.nlargest(MOST_FILES, journals(entries), key=_relevance)
    except FileNotFoundError:
        return Listing([], [])
    except OSError as error:
        raise FileError.wrap("list its journals", str(directory), error) from error
    return Listing(found, leftovers, total - len(found))


def _relevance(journal: tuple[str, Name]) -> tuple[bool, bool, int, str]:
    name, kind = journal
    return kind.owner != "remote", kind.kind is Kind.ACTIVE, kind.realtime_us, name


def instance(
    directory: Directory, *, device: int, nocow: bool, space: os.statvfs_result | None = None, root: str = "/"
) -> Instance:
    """The journald that writes `directory`, with the settings it runs by.

    `device` (st_dev) and `nocow` (the directory's flag) are the caller's; with `space` the
    limits are those that journald computes on such a filesystem. Settings are read
    below `root` for directories of this machine. Another machine's journal, as a container's,
    has a journald of its own with files elsewhere: systemd's defaults stand in for those.
    Raises: FileError for a configuration file that we may not read.
    """
    if directory.name == REMOTE:
        found = conf.REMOTE
    elif directory.machine_id == machine_id(root):
        found = conf.settings(directory.namespace, root=root)
    else:
        found = conf.Settings(storage="persistent")
    if space is not None:
        found = conf.effective(found, space.f_frsize * space.f_blocks)
    return Instance(
        name=directory.name,
        directory=directory.path,
        device=device,
        namespace=directory.namespace,
        nocow=nocow,
        available_bytes=None if space is None else space.f_frsize * space.f_bavail,
        **found._asdict(),
    )


def machine_id(root: str = "/") -> str:
    """This machine's id, 32 lower-case digits; "" where it has none yet. Source: machine-id(5)."""
    try:
        with open(os.path.join(root, "etc/machine-id"), encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except FileNotFoundError:
        return ""
