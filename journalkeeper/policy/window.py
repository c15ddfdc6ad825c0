# SPDX-License-Identifier: LGPL-2.1-or-later
"""When work on an instance's active files is not in journald's way.

The one rule: closed unless it is known to be open. journald arms its sync timer at the
first append after a sync, and an ONLINE state byte says that such an append happened
(systemd, journald-server.c, server_schedule_sync). One look cannot tell when, so the
deadline is taken from the oldest moment it can have been: the file's last change at the
latest plus SyncIntervalSec is when the file will certainly have been flushed.
"""

from __future__ import annotations

from collections.abc import Sequence

from journalkeeper.model import Instance, JournalFile, Kind, State, Window


def window(instance: Instance, files: Sequence[JournalFile], now_us: int, *, now: bool) -> Window:
    """The window of `instance`, whose files are `files`, as seen at `now_us`.

    Its reason is "now" (asked not to wait), "flushed" (nothing unsynced in any active
    file), "stale" (ONLINE, but unchanged for longer than a sync can be away: nobody
    writes there), or "unsynced" (closed: a flush may come at any moment).
    """
    if now:
        return Window(instance.name, open=True, closes_at_us=None, reason="now")
    online = [file for file in files if file.kind is Kind.ACTIVE and file.state is State.ONLINE]
    if not online:
        return Window(instance.name, open=True, closes_at_us=None, reason="flushed")
    flushed_by_us = max(file.mtime_ns for file in online) // 1000 + instance.sync_interval_us
    if now_us > flushed_by_us:
        return Window(instance.name, open=True, closes_at_us=None, reason="stale")
    return Window(instance.name, open=False, closes_at_us=flushed_by_us, reason="unsynced")
