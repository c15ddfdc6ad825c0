# SPDX-License-Identifier: LGPL-2.1-or-later
"""The settings of a journald, read from its configuration files as journald reads them.

Settings that journald ignores are ignored here, too, and reading ends where journald's reading ends. So the result is
what journald does, not what the admin meant.

Source: systemd 255, src/journal/journald-server.c and journald-gperf.gperf; journald.conf(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from journalkeeper.config import files
from journalkeeper.model import GIB, KIB, MIB
from journalkeeper.model.units import MINUTE_US, SECOND_US, U64_MAX, parse_size, parse_span_us

MAX_FILE_US = 2_629_800_000_000
"""A month as systemd counts it, 365.25 days / 12: DEFAULT_MAX_FILE_USEC, journald-server.c."""

STORAGES = ("auto", "volatile", "persistent", "none")
_MIN_FILE_BYTES = 512 * KIB
_COMPACT_FILE_BYTES = (1 << 32) - 1


class Settings(NamedTuple):
    """The settings of one journald that journalkeeper uses. None stands for a limit that journald computes.

    `fill_defaults` replaces each None. With `sync_interval_us` 0 or units.INFINITY_US journald never syncs by time. 0
    means no limit for `system_max_files`, `max_retention_us`, `max_file_us`, and either part of the rate limit, which
    journald raises when much disk space is free.
    """

    storage: str = "auto"
    sync_interval_us: int = 5 * MINUTE_US
    system_max_use_bytes: int | None = None
    system_keep_free_bytes: int | None = None
    system_max_file_size_bytes: int | None = None
    system_max_files: int = 100
    max_retention_us: int = 0
    max_file_us: int = MAX_FILE_US
    rate_limit_burst: int = 10_000
    rate_limit_interval_us: int = 30 * SECOND_US


REMOTE = Settings(storage="persistent", sync_interval_us=0, system_max_files=0)
"""systemd-journal-remote, which writes remote/, has no sync timer. Its own limits are in journal-remote.conf(5)."""


def read_settings(namespace: str = "") -> Settings:
    """Return the settings of the main journald or of the journald of `namespace`.

    As in journald, an invalid or empty value is ignored. A limit that journald computes is None.

    Raises: FileError for a file that exists but cannot be read.
    """
    name = f"journald@{namespace}.conf" if namespace else "journald.conf"
    return from_assignments(files.read_assignments(name), namespace)


def from_assignments(rows: list[files.Assignment], namespace: str = "") -> Settings:
    """Return the defaults for `namespace`, changed by the valid assignments before the first fatal row."""
    found = Settings(storage="persistent" if namespace else "auto")
    for row in rows:
        if row.fatal:
            break
        if row.section == "Journal" and row.key in _KEYS:
            field, read = _KEYS[row.key]
            with suppress(ValueError):  # journald keeps the old value, also where the new one is empty
                found = found._replace(**{field: read(row.value)})
    return found


def _parse_storage(text: str) -> str:
    if text not in STORAGES:
        raise ValueError(text)
    return text


def _parse_count(text: str) -> int:
    """Return the number in `text`, as `int(text, 0)` reads it. journald does not take 2^64 - 1 as a number.

    Raises: ValueError if there is no number, or it is out of range.
    """
    count = int(text, 0)
    if not 0 <= count < U64_MAX:
        raise ValueError(text)
    return count


_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "Storage": ("storage", _parse_storage),
    "SyncIntervalSec": ("sync_interval_us", parse_span_us),
    "SystemMaxUse": ("system_max_use_bytes", parse_size),
    "SystemKeepFree": ("system_keep_free_bytes", parse_size),
    "SystemMaxFileSize": ("system_max_file_size_bytes", parse_size),
    "SystemMaxFiles": ("system_max_files", _parse_count),
    "MaxRetentionSec": ("max_retention_us", parse_span_us),
    "MaxFileSec": ("max_file_us", parse_span_us),
    "RateLimitIntervalSec": ("rate_limit_interval_us", parse_span_us),
    "RateLimitInterval": ("rate_limit_interval_us", parse_span_us),
    "RateLimitBurst": ("rate_limit_burst", _parse_count),
}


def fill_defaults(given: Settings, filesystem_bytes: int) -> Settings:
    """Return the settings with journald's computed limits in place of each None; 0 means no limit and stays 0.

    A given use or file size is rounded up to pages and corrected as by journald. `filesystem_bytes` is statvfs's
    f_frsize * f_blocks of the journal directory. journald.conf(5) documents 15% for SystemKeepFree=, but the code since
    252 at least uses 5%, and at most 4 GiB.

    Source: journal_default_metrics(), journal-file.c.
    """
    use = given.system_max_use_bytes
    if use is None:
        use = min(max(_round_up_to_page(filesystem_bytes // 10), MIB), 4 * GIB)
    elif use:
        use = max(_round_up_to_page(use), 2 * _MIN_FILE_BYTES)
    size = given.system_max_file_size_bytes
    size = min(_round_up_to_page(use // 8), 128 * MIB) if size is None else _round_up_to_page(size)
    if size:
        size = max(min(size, _COMPACT_FILE_BYTES), _MIN_FILE_BYTES)
        use = max(use, 2 * size) if use else 0
    free = given.system_keep_free_bytes
    if free is None:
        free = min(_round_up_to_page(filesystem_bytes // 20), 4 * GIB) or MIB
    return given._replace(system_max_use_bytes=use, system_keep_free_bytes=free, system_max_file_size_bytes=size)


def _round_up_to_page(size_bytes: int) -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-size_bytes // page) * page


TARGET: Final = "# target-bytes={} file-bytes={}\n"
"""The comment in the drop-in of `journalkeeper retention --apply`: the disk space that the journal may take, and the
SystemMaxFileSize= of before.
"""


def parse_target(text: str) -> tuple[int, int] | None:
    """Return both sizes of TARGET in the `text` of a drop-in, the second 0 if version 0.2 wrote it; None without it."""
    found = re.search(r"(?m)^# target-bytes=(\d{1,19})(?: file-bytes=(\d{1,19}))?$", text)
    return (int(found[1]), int(found[2] or 0)) if found else None
