# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kinds of journal files, derived from their names alone.

The file itself is not looked at, and a name may contain any bytes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from journalkeeper.model import Kind

TEMPORARY_PREFIX, TEMPORARY_SUFFIX = ".journalkeeper-", ".tmp"
"""The names of our own files. journald, readers and vacuum only use *.journal and *.journal~."""

# As journald writes the names (journal_file_archive(), journal_file_dispose()) and as vacuum reads them, which also
# accepts capital digits. The match is greedy: the last "@" counts.
_ARCHIVED = re.compile(r"(.*)@[0-9a-fA-F]{32}-[0-9a-fA-F]{16}-([0-9a-fA-F]{16})\.journal\Z", re.DOTALL)
_UNCLEAN = re.compile(r"(.*)@([0-9a-fA-F]{16})-[0-9a-fA-F]{16}\.journal~\Z", re.DOTALL)
_USER = re.compile(r"user-(0|[1-9][0-9]{0,9})\Z", re.ASCII)


class Name(NamedTuple):
    """The parts of a journal file's name.

    `owner` is "system", "user:UID" or "remote". Names that journald itself would not use count as "remote", the least
    trusted. `realtime_us` is a time from the name: of an archived file the time of its first entry, of an unclean file
    the time of its renaming. It is 0 if the name contains none.
    """

    kind: Kind
    owner: str
    realtime_us: int = 0


@lru_cache(maxsize=16384)
def classify(name: str) -> Name | None:
    """Return the parts of `name`, or None if it is not the name of a journal file.

    Undecodable bytes of `name` are surrogates.

    Source: systemd 255, journal-vacuum.c journal_directory_vacuum(); sd-journal.c dirent_is_journal_file().
    """
    for pattern, kind in ((_ARCHIVED, Kind.ARCHIVED), (_UNCLEAN, Kind.UNCLEAN)):
        if (found := pattern.match(name)) is not None:
            return Name(kind, _find_owner(found[1]), int(found[2], 16))
    if name.endswith(".journal"):
        return Name(Kind.ACTIVE, _find_owner(name[:-8]))
    return Name(Kind.UNCLEAN, _find_owner(name[:-9].partition("@")[0])) if name.endswith(".journal~") else None


def _find_owner(stem: str) -> str:
    if stem == "system":
        return "system"
    user = _USER.match(stem)
    return f"user:{user[1]}" if user is not None else "remote"


def is_leftover(name: str) -> bool:
    """Return whether `name` is the name of one of our own temporary files, which a killed run leaves behind."""
    return name.startswith(TEMPORARY_PREFIX) and name.endswith(TEMPORARY_SUFFIX)
