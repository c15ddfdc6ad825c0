# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the name of a file in a journal directory says.

A name is judged by itself, whatever bytes it has; the file is not looked at.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from journalkeeper.model import Kind

TEMPORARY_PREFIX, TEMPORARY_SUFFIX = ".journalkeeper-", ".tmp"
"""Around our own files: journald, readers and vacuum take only *.journal and *.journal~."""

# Both as journald writes them (journal_file_archive(), journal_file_dispose()) and as vacuum reads them,
# which takes capital digits too. Greedy: the last "@" counts.
_ARCHIVED = re.compile(r"(.*)@([0-9a-fA-F]{32})-([0-9a-fA-F]{16})-([0-9a-fA-F]{16})\.journal\Z", re.DOTALL)
_UNCLEAN = re.compile(r"(.*)@([0-9a-fA-F]{16})-[0-9a-fA-F]{16}\.journal~\Z", re.DOTALL)
_USER = re.compile(r"user-(0|[1-9][0-9]{0,9})\Z", re.ASCII)


class Name(NamedTuple):
    """What a journal file's name says.

    `owner` is "system", "user:UID" or "remote"; names that journald itself would not
    give count as "remote", the least trusted. `seqnum_id` and `head_seqnum` are those of
    an archived file, else "" and 0; `realtime_us` is the first entry's time of an archived
    file, the time of the renaming of an unclean one, and 0 where the name has none.
    """

    kind: Kind
    owner: str
    seqnum_id: str = ""
    head_seqnum: int = 0
    realtime_us: int = 0


_ACTIVE_SYSTEM = Name(Kind.ACTIVE, "system")


@lru_cache(maxsize=16384)
def classify(name: str) -> Name | None:
    """What `name` (a directory entry, undecodable bytes as surrogates) says; None for no journal file.

    A name that ends as a journal's does but fits neither of journald's two patterns is
    active, as for journald's vacuum, unless it ends in "~": nobody writes those.
    Source: systemd 255, journal-vacuum.c journal_directory_vacuum(); sd-journal.c dirent_is_journal_file().
    """
    if name.endswith(".journal"):
        if name == "system.journal":
            return _ACTIVE_SYSTEM
        found = _ARCHIVED.match(name)
        if found is not None:
            stem, seqnum_id, seqnum, realtime = found.groups()
            return Name(Kind.ARCHIVED, _owner(stem), seqnum_id.lower(), int(seqnum, 16), int(realtime, 16))
        return Name(Kind.ACTIVE, _owner(name[:-8]))
    if name.endswith(".journal~"):
        found = _UNCLEAN.match(name)
        if found is not None:
            return Name(Kind.UNCLEAN, _owner(found[1]), realtime_us=int(found[2], 16))
        return Name(Kind.UNCLEAN, _owner(name[:-9].partition("@")[0]))
    return None


def _owner(stem: str) -> str:
    if stem == "system":
        return "system"
    user = _USER.match(stem)
    return f"user:{user[1]}" if user is not None else "remote"


def is_leftover(name: str) -> bool:
    """Whether `name` is one of our own temporary files, of a run that may have been killed."""
    return name.startswith(TEMPORARY_PREFIX) and name.endswith(TEMPORARY_SUFFIX)
