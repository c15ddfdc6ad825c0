# SPDX-License-Identifier: LGPL-2.1-or-later
"""The record's tables, version by version.

What was shipped is never changed; a new version is one more group of statements.
"""

from __future__ import annotations

MEASURED = "disk_bytes_before BETWEEN 0 AND 1 << 50 AND disk_bytes_after BETWEEN 0 AND 1 << 50"
"""A damaged number counts for nothing: of two such SQLite makes no sum ("integer overflow")."""

UNMEASURED = """action IN ('defragment', 'compress', 'rewrite')
    AND (unshared_bytes > 0 OR disk_bytes_before - disk_bytes_after IS NULL)"""
"""Whether nobody knows what a rewrite gave back."""

MIGRATIONS = (
    (
        """CREATE TABLE rewrites (
            uuid TEXT, subvolume INTEGER, inode INTEGER, verb TEXT, when_us INTEGER,
            size_bytes INTEGER, mtime_ns INTEGER, extents INTEGER, seen_us INTEGER,
            PRIMARY KEY (uuid, subvolume, inode)) WITHOUT ROWID""",
        "CREATE TABLE runs (id INTEGER PRIMARY KEY, door TEXT, began_us INTEGER, ended_us INTEGER)",
        """CREATE TABLE outcomes (
            id INTEGER PRIMARY KEY, run INTEGER, when_us INTEGER, path BLOB, action TEXT, result TEXT, reason TEXT,
            extents_before INTEGER, extents_after INTEGER, disk_bytes_before INTEGER, disk_bytes_after INTEGER,
            bytes_written INTEGER, duration_us INTEGER, detail TEXT)""",
        "CREATE INDEX outcomes_when ON outcomes (when_us)",
        "CREATE INDEX outcomes_run ON outcomes (run)",
        """CREATE TABLE totals (
            id INTEGER PRIMARY KEY, when_us INTEGER, instance TEXT, files INTEGER, extents INTEGER,
            ideal_extents INTEGER, active_extents INTEGER, size_bytes INTEGER, allocated_bytes INTEGER)""",
        "CREATE INDEX totals_when ON totals (when_us)",
        "CREATE INDEX totals_instance ON totals (instance, id)",
        """CREATE TABLE samples (
            id INTEGER PRIMARY KEY, when_us INTEGER, path BLOB, extents INTEGER, ideal_extents INTEGER,
            size_bytes INTEGER, allocated_bytes INTEGER)""",
        "CREATE INDEX samples_when ON samples (when_us)",
        "CREATE INDEX samples_path ON samples (path, id)",
    ),
    (
        # What was ever done, in numbers that only grow: rows of outcomes are forgotten, and who counts
        # them would see work undone. A trigger, so that no outcome is kept and not counted.
        """CREATE TABLE ever (
            what TEXT PRIMARY KEY, times INTEGER, bytes_written INTEGER, extents_removed INTEGER,
            bytes_reclaimed INTEGER, reclaims_known INTEGER) WITHOUT ROWID""",
        """INSERT INTO ever
            SELECT what, count(id), coalesce(sum(bytes_written), 0),
                coalesce(sum(max(0, extents_before - extents_after))
                    FILTER (WHERE result = 'done' AND action != 'rotate'), 0),
                coalesce(sum(max(0, disk_bytes_before - disk_bytes_after)), 0),
                count(disk_bytes_before - disk_bytes_after)
            FROM (SELECT 'done' AS what UNION SELECT 'skipped' UNION SELECT 'failed' UNION SELECT 'failed-run')
                LEFT JOIN outcomes ON result = what GROUP BY what""",
        """CREATE TRIGGER outcomes_counted AFTER INSERT ON outcomes BEGIN
            UPDATE ever SET
                times = times + 1,
                bytes_written = bytes_written + NEW.bytes_written,
                extents_removed = extents_removed + iif(NEW.result = 'done' AND NEW.action != 'rotate',
                    max(0, NEW.extents_before - NEW.extents_after), 0),
                bytes_reclaimed = bytes_reclaimed + coalesce(max(0, NEW.disk_bytes_before - NEW.disk_bytes_after), 0),
                reclaims_known = reclaims_known + (NEW.disk_bytes_before - NEW.disk_bytes_after IS NOT NULL)
            WHERE what = NEW.result;
        END""",
    ),
    (
        # What was expected of a rewrite and what it cost, so that one in vain is not repeated; 0: not known.
        "ALTER TABLE rewrites ADD COLUMN extents_before INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE rewrites ADD COLUMN extents_expected INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE rewrites ADD COLUMN bytes_written INTEGER NOT NULL DEFAULT 0",
        # How a file was compressed, as --compress= says it; NULL in rows of before.
        "ALTER TABLE rewrites ADD COLUMN compress TEXT",
        # What the file was then: active, archived or unclean; NULL in rows of before.
        "ALTER TABLE rewrites ADD COLUMN kind TEXT",
        # What a rewrite stored beside a snapshot.
        "ALTER TABLE outcomes ADD COLUMN unshared_bytes INTEGER NOT NULL DEFAULT 0",
    ),
    (
        # Files that wait for an action that pays, as of the last look.
        "CREATE TABLE waiting (path BLOB PRIMARY KEY, since_us INTEGER, reason TEXT) WITHOUT ROWID",
    ),
    (
        # What began a run: "daemon", "bus" or "defrag".
        "ALTER TABLE runs RENAME COLUMN door TO origin",
    ),
    (
        # "installed": when this record began. "clock": a time that a run saw, and "confirmed": one that a later run saw
        # pass by hours; only by the latter rows are too old.
        "CREATE TABLE moments (what TEXT PRIMARY KEY, when_us INTEGER) WITHOUT ROWID",
        """INSERT INTO moments SELECT 'installed', coalesce(min(when_us), strftime('%s', 'now') * 1000000) FROM (
            SELECT began_us AS when_us FROM runs
            UNION ALL SELECT when_us FROM outcomes UNION ALL SELECT when_us FROM totals)
            WHERE when_us BETWEEN 1293840000000000 AND strftime('%s', 'now') * 1000000""",
        # What a rewrite stored more is taken off. Next to a snapshot nothing is given back before the snapshot goes.
        f"""UPDATE ever SET bytes_reclaimed = bytes_reclaimed - (
            SELECT coalesce(sum(iif(unshared_bytes > 0, max(0, disk_bytes_before - disk_bytes_after),
                max(0, disk_bytes_after - disk_bytes_before))), 0) FROM outcomes
            WHERE result = what AND {MEASURED})""",  # noqa: S608 - our words
        # How many rewrites are missing in bytes_reclaimed.
        "ALTER TABLE ever ADD COLUMN unmeasured INTEGER NOT NULL DEFAULT 0",
        f"""UPDATE ever SET unmeasured = (SELECT count(*) FROM outcomes WHERE result = 'done' AND {UNMEASURED})
            WHERE what = 'done'""",  # noqa: S608 - our words
        "DROP TRIGGER IF EXISTS outcomes_counted",
        """CREATE TRIGGER outcomes_counted AFTER INSERT ON outcomes BEGIN
            UPDATE ever SET
                times = times + 1,
                bytes_written = bytes_written + NEW.bytes_written,
                extents_removed = extents_removed + iif(NEW.result = 'done' AND NEW.action != 'rotate',
                    max(0, NEW.extents_before - NEW.extents_after), 0),
                bytes_reclaimed = bytes_reclaimed
                    + iif(NEW.unshared_bytes > 0, 0, coalesce(NEW.disk_bytes_before - NEW.disk_bytes_after, 0)),
                reclaims_known = reclaims_known
                    + (NEW.unshared_bytes = 0 AND NEW.disk_bytes_before - NEW.disk_bytes_after IS NOT NULL),
                unmeasured = unmeasured + (NEW.result = 'done' AND NEW.action IN ('defragment', 'compress', 'rewrite')
                    AND (NEW.unshared_bytes > 0 OR NEW.disk_bytes_before - NEW.disk_bytes_after IS NULL))
            WHERE what = NEW.result;
        END""",
    ),
)
