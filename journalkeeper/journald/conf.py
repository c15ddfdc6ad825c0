# SPDX-License-Identifier: LGPL-2.1-or-later
"""The settings that a journald runs by, read from its configuration as it reads them.

What journald would ignore is ignored here too, and where it would stop
reading, we stop: the answer is what it does and not what the admin meant.
Source: systemd 255, src/journal/journald-server.c and journald-gperf.gperf; journald.conf(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from journalkeeper.config import files
from journalkeeper.model import GIB, KIB, MIB
from journalkeeper.model.units import MINUTE_US, SECOND_US, U64_MAX, parse_size, parse_span_us

SYNC_INTERVAL_US = 5 * MINUTE_US
MAX_FILES = 100
MAX_FILE_US = 2_629_800_000_000
"""systemd's month, 365.25 days / 12: DEFAULT_MAX_FILE_USEC, journald-server.c."""

STORAGES = ("auto", "volatile", "persistent", "none")
_MIN_FILE_BYTES = 512 * KIB
_COMPACT_FILE_BYTES = (1 << 32) - 1


class Settings(NamedTuple):
    """What concerns us of one journald's settings; None is journald's default, see `effective`.

    `sync_interval_us` 0 means that journald never syncs by time (values.INFINITY_US: nor
    does it then). `system_max_files` 0 means no limit, so do the two times.
    """

    storage: str = "auto"
    sync_interval_us: int = SYNC_INTERVAL_US
    system_max_use_bytes: int | None = None
    system_keep_free_bytes: int | None = None
    system_max_file_size_bytes: int | None = None
    system_max_files: int = MAX_FILES
    max_retention_us: int = 0
    max_file_us: int = MAX_FILE_US


class RateLimit(NamedTuple):
    """How many messages of one unit journald takes in a span of time, at least; no limit where either is 0."""

    burst: int = 10_000
    interval_us: int = 30 * SECOND_US


T = TypeVar("T", Settings, RateLimit)
Reader: TypeAlias = Callable[[str], Any]

REMOTE = Settings(storage="persistent", sync_interval_us=0)
"""systemd-journal-remote writes remote/, has limits of its own and no sync timer."""


def settings(namespace: str = "", *, root: str = "/") -> Settings:
    """The settings of the main journald or of the one of `namespace`, by the files below `root`.

    A namespace reads journald@NAMESPACE.conf and its drop-ins and nothing of journald.conf.
    Raises: FileError for a file that we may not read: journald, being root, may.
    """
    name = f"journald@{namespace}.conf" if namespace else "journald.conf"
    return from_assignments(files.assignments(name, root=root), namespace)


def from_assignments(rows: list[files.Assignment], namespace: str = "") -> Settings:
    """The settings that these assignments make, starting from journald's defaults."""
    return _applied(rows, _KEYS, Settings(storage="persistent" if namespace else "auto"))


def rate_limit() -> RateLimit:
    """What this host's main journald takes from one unit.

    Raises: as `settings`.
    """
    return _applied(files.assignments("journald.conf"), _RATE_KEYS, RateLimit())


def _applied(rows: list[files.Assignment], keys: Mapping[str, tuple[str, Reader]], found: T) -> T:
    for row in rows:
        if row.fatal:
            break
        known = keys.get(row.key) if row.section == "Journal" else None
        if known is None:
            continue
        field, read = known
        try:
            found = found._replace(**{field: read(row.value)})
        except ValueError:
            continue  # journald logs "Failed to parse …, ignoring" and keeps what it had, for an empty value too
    return found


def _storage(text: str) -> str:
    if text not in STORAGES:
        raise ValueError(text)
    return text


def _limit(text: str) -> int | None:
    """A size; journald's mark for "not set" is the largest number, and so it reads it."""
    size = parse_size(text)
    return None if size == U64_MAX else size


_COUNT = r"[ \t\n\r]*\+?(?:0[xX]([0-9a-fA-F]+)|0[oO]?([0-7]+)|0[bB]([01]+)|([1-9][0-9]*|0))\Z"


def _count(text: str) -> int:
    """An integer as safe_atou64() takes it: decimal, 0x, 0o or 0 and octal, 0b."""
    found = re.match(_COUNT, text)
    if found is None or len(text) > 80:
        raise ValueError(text)
    for digits, base in zip(found.groups(), (16, 8, 2, 10), strict=True):
        if digits is not None and int(digits, base) <= U64_MAX:
            count = int(digits, base)
            return MAX_FILES if count == U64_MAX else count
    raise ValueError(text)


_KEYS: dict[str, tuple[str, Reader]] = {
    "Storage": ("storage", _storage),
    "SyncIntervalSec": ("sync_interval_us", parse_span_us),
    "SystemMaxUse": ("system_max_use_bytes", _limit),
    "SystemKeepFree": ("system_keep_free_bytes", _limit),
    "SystemMaxFileSize": ("system_max_file_size_bytes", _limit),
    "SystemMaxFiles": ("system_max_files", _count),
    "MaxRetentionSec": ("max_retention_us", parse_span_us),
    "MaxFileSec": ("max_file_us", parse_span_us),
}
_RATE_KEYS: dict[str, tuple[str, Reader]] = {
    "RateLimitIntervalSec": ("interval_us", parse_span_us),
    "RateLimitInterval": ("interval_us", parse_span_us),
    "RateLimitBurst": ("burst", _count),
}


def effective(given: Settings, filesystem_bytes: int) -> Settings:
    """The same settings with journald's computed limits in place of each None.

    `filesystem_bytes` is statvfs's f_frsize * f_blocks of the journal directory: 10% of it
    for the journal, at most 4G; 5% kept free, at most 4G (journald.conf(5) says 15%, the
    code has said 5 since 252 at least); an eighth for one file, at most 128M.
    Source: journal_default_metrics(), journal-file.c.
    """
    use = given.system_max_use_bytes
    if use is None:
        use = min(max(_page_up(filesystem_bytes // 10), MIB), 4 * GIB)
    elif use:
        use = max(_page_up(use), 2 * _MIN_FILE_BYTES)
    size = given.system_max_file_size_bytes
    size = min(_page_up(use // 8), 128 * MIB) if size is None else _page_up(size)
    if size:
        size = max(min(size, _COMPACT_FILE_BYTES), _MIN_FILE_BYTES)
        use = max(use, 2 * size) if use else 0
    free = given.system_keep_free_bytes
    if free is None:
        free = min(_page_up(filesystem_bytes // 20), 4 * GIB) or MIB
    return given._replace(system_max_use_bytes=use, system_keep_free_bytes=free, system_max_file_size_bytes=size)


def _page_up(size_bytes: int) -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-size_bytes // page) * page
