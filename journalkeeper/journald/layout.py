# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directories below a journal directory, the journal files in them, and the meaning of their names.

No function follows a link below the top. Files that vanish during a look are left out. A name may contain any bytes.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from journalkeeper.journald import conf
from journalkeeper.model import Kind
from journalkeeper.model.errors import FileError

TOP = "/var/log/journal"
REMOTE = "remote"
MACHINE_ID = "/etc/machine-id"

MOST_FILES = 7168
"""The largest number of files of one directory that are looked at.

sd-journal opens at most this many files in all directories together (sd-journal.c, JOURNAL_FILES_MAX). 100,000 names in
remote/ must not end the service by its MemoryMax=.
"""

MOST_NAME_BYTES = MOST_FILES * 160
"""The largest sum of the names' lengths. A name in remote/ has at most 145 bytes if it begins with a host's name. 7,000
names of 255 bytes that are not UTF-8 took 31 MiB more than usual ones.
"""

TEMPORARY_PREFIX, TEMPORARY_SUFFIX = ".journalkeeper-", ".tmp"
"""The names of our own files. journald, readers and vacuum only use *.journal and *.journal~."""

# As journald writes the names (journal_file_archive(), journal_file_dispose()) and as vacuum reads them, which also
# accepts capital digits. The match is greedy: the last "@" counts.
_ARCHIVED = re.compile(r"(.*)@[0-9a-fA-F]{32}-[0-9a-fA-F]{16}-([0-9a-fA-F]{16})\.journal\Z", re.DOTALL)
_UNCLEAN = re.compile(r"(.*)@([0-9a-fA-F]{16})-[0-9a-fA-F]{16}\.journal~\Z", re.DOTALL)
_USER = re.compile(r"user-(0|[1-9][0-9]{0,9})\Z", re.ASCII)

# A machine id, also in UUID form as sd-journal accepts it, and perhaps a namespace.
_INSTANCE = re.compile(r"([0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:\.(.+))?\Z", re.I | re.DOTALL)
# The length is NAME_MAX without the id and the dot: log_namespace_name_valid(), syslog-util.c.
_NAMESPACE = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9:_.@-]{1,222}\Z")


class Name(NamedTuple):
    """The parts of a journal file's name.

    `owner` is "system", "user:UID" or "remote". Names that journald itself would not use count as "remote", the least
    trusted. `realtime_us` is a time from the name: of an archived file the time of its first entry, of an unclean file
    the time of its renaming. It is 0 if the name contains none.
    """

    kind: Kind
    owner: str
    realtime_us: int = 0


class Directory(NamedTuple):
    """A directory that can contain journal files.

    `name` is the last part of `path`. `machine_id` has no dashes or capitals, and is "" if the name has none, as in
    remote/. `namespace` is "" for the main instance.
    """

    path: str
    name: str
    machine_id: str
    namespace: str


class Listing(NamedTuple):
    """The names of the journal files in one directory, and of our own temporary files there.

    `left_out` is the number of further journal files.
    """

    journals: list[str]
    leftovers: list[str]
    left_out: int = 0


@lru_cache(maxsize=16384)
def classify(name: str) -> Name | None:
    """Return the kind, owner and time (0: none) in `name`; None if it ends in neither ".journal" nor ".journal~".

    Undecodable bytes of `name` are surrogates. The owner is "remote" if it is neither "system" nor a user.

    Source: systemd 255, journal-vacuum.c journal_directory_vacuum(); sd-journal.c dirent_is_journal_file().
    """
    for pattern, kind in ((_ARCHIVED, Kind.ARCHIVED), (_UNCLEAN, Kind.UNCLEAN)):
        if (found := pattern.match(name)) is not None:
            return Name(kind, _find_owner(found[1]), int(found[2], 16))
    if name.endswith(".journal"):
        return Name(Kind.ACTIVE, _find_owner(name[:-8]))
    return Name(Kind.UNCLEAN, _find_owner(name[:-9].partition("@")[0])) if name.endswith(".journal~") else None


def _find_owner(stem: str) -> str:
    """Return the owner of a Name: "system", "user:UID" if `stem` is "user-UID", else "remote"."""
    if stem == "system":
        return "system"
    user = _USER.match(stem)
    return f"user:{user[1]}" if user is not None else "remote"


def is_leftover(name: str) -> bool:
    """Return whether `name` is the name of one of our own temporary files, which a killed run leaves behind."""
    return name.startswith(TEMPORARY_PREFIX) and name.endswith(TEMPORARY_SUFFIX)


def find_directories(top: str = TOP) -> list[Directory]:
    """Return the journal directories at `top`: those below it by their names, sorted by path, none if it is missing.

    `top` itself comes first if it has such a name, even if it is missing, or contains journal files. At most
    MOST_FILES subdirectories count. Only `top` may be a link; the paths in the result are resolved.

    Raises: FileError if `top` cannot be listed: EACCES, ENOTDIR.
    """
    top = os.path.realpath(top)
    below = (entry.name for entry in _scan(top) if entry.is_dir(follow_symlinks=False))
    places = (_parse_directory(os.path.join(top, name), name) for name in below)
    found = heapq.nsmallest(MOST_FILES, filter(None, places))
    own = _parse_directory(top, os.path.basename(top))
    if own is None and any(classify(entry.name) and not entry.is_dir(follow_symlinks=False) for entry in _scan(top)):
        own = describe_directory(top)
    return found if own is None else [own, *found]


def find_links(top: str) -> list[tuple[str, str]]:
    """Return the path of each link in `top` with an instance's name, sorted, and the real path to which it leads, which
    need not exist. Only the first MOST_FILES links count. nspawn makes such links for --link-journal.

    Raises: FileError if `top` cannot be listed.
    """
    top = os.path.realpath(top)
    names = heapq.nsmallest(MOST_FILES, (one.name for one in _scan(top) if one.is_symlink()))
    paths = [path for name in names if _parse_directory(path := os.path.join(top, name), name)]
    return [(path, os.path.realpath(path)) for path in paths]


def _scan(directory: str | int) -> Iterator[os.DirEntry[str]]:
    """Yield the entries; none if the directory vanished. Raises: FileError; OSError for a descriptor."""
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except FileNotFoundError:
        return
    except OSError as error:
        if isinstance(directory, int):  # the caller knows the path
            raise
        raise FileError.wrap("list its journals", directory, error) from error


def describe_directory(path: str) -> Directory:
    """Return the Directory of `path`, which contains journal files whatever its name is. The directory is not read."""
    name = os.path.basename(path)
    return _parse_directory(path, name) or Directory(path, name, "", "")


def _parse_directory(path: str, name: str) -> Directory | None:
    """Return the Directory `path` if `name` is REMOTE or any form of a machine id, perhaps with a namespace."""
    if name == REMOTE:
        return Directory(path, name, "", "")
    found = _INSTANCE.match(name)
    if found is None or (found[2] is not None and not _NAMESPACE.match(found[2])):
        return None
    return Directory(path, name, found[1].replace("-", "").lower(), found[2] or "")


def list_directory(directory: str | int) -> Listing:
    """Return the names of journals and leftovers in a directory, unsorted; an empty Listing if it vanished.

    Journals are kept up to MOST_FILES and MOST_NAME_BYTES: those of known owners first, then active, then newest ones.
    `left_out` counts the others. Only names are read: the caller checks whether each is a regular file.

    Raises: FileError if the directory cannot be listed: EACCES; OSError for a descriptor.
    """
    journals, best, leftovers = 0, list[tuple[bool, bool, int, str]](), list[str]()
    for name in (entry.name for entry in _scan(directory)):
        kind = classify(name)
        if kind is not None:
            journals += 1
            heapq.heappush(best, (kind.owner != "remote", kind.kind is Kind.ACTIVE, kind.realtime_us, name))
        elif is_leftover(name) and len(leftovers) < MOST_FILES:
            leftovers.append(name)
        if len(best) > MOST_FILES:
            heapq.heappop(best)
    found = [rank[-1] for rank in sorted(best, reverse=True)]
    lengths = accumulate(len(os.fsencode(name)) for name in found)
    kept = [name for name, length in zip(found, lengths, strict=True) if length <= MOST_NAME_BYTES]
    # readdir(3) may return a file twice that is renamed meanwhile
    return Listing(list(dict.fromkeys(kept)), leftovers, journals - len(kept))


def read_effective_settings(directory: Directory, space: os.statvfs_result) -> conf.Settings:
    """Return the settings of the journald that writes `directory`, which is on a file system with `space`.

    `remote` has conf.REMOTE, whose sizes are None. Other machines' journals get systemd's defaults.

    Raises: FileError for a configuration file that the caller may not read; OSError if the machine id is unreadable.
    """
    if directory.name == REMOTE:
        return conf.REMOTE
    if directory.machine_id and directory.machine_id == read_machine_id():
        found = conf.read_settings(directory.namespace)
    else:
        found = conf.Settings(storage="persistent")
    return conf.fill_defaults(found, space.f_frsize * space.f_blocks)


def read_machine_id() -> str:
    """Return the text of /etc/machine-id, or "" if the file does not exist.

    During the first boot the text can be "uninitialized". Source: machine-id(5).

    Raises: OSError if the file exists but cannot be read.
    """
    with suppress(FileNotFoundError), open(MACHINE_ID, encoding="ascii", errors="replace") as file:
        return file.read(64).strip()
    return ""
