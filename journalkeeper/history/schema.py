# SPDX-License-Identifier: LGPL-2.1-or-later
"""The record's tables, and the statements that make them, in an empty file or from the tables of 0.1.0.

Version 5 was shipped as 0.1.0. The tables are STRICT since version 7.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 7

TABLES: Final = {
    "rewrites": """uuid TEXT NOT NULL, subvolume INTEGER NOT NULL, inode INTEGER NOT NULL, verb TEXT NOT NULL,
        when_us INTEGER NOT NULL, size_bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, extents INTEGER NOT NULL,
        seen_us INTEGER NOT NULL, extents_before INTEGER NOT NULL, extents_expected INTEGER NOT NULL,
        bytes_written INTEGER NOT NULL, compress TEXT, kind TEXT""",
    "runs": "id INTEGER PRIMARY KEY, origin TEXT NOT NULL, began_us INTEGER NOT NULL, ended_us INTEGER",
    "outcomes": """id INTEGER PRIMARY KEY, run INTEGER NOT NULL, when_us INTEGER NOT NULL, path BLOB NOT NULL,
        action TEXT NOT NULL, result TEXT NOT NULL, reason TEXT NOT NULL, extents_before INTEGER NOT NULL,
        extents_after INTEGER NOT NULL, disk_bytes_before INTEGER, disk_bytes_after INTEGER,
        bytes_written INTEGER NOT NULL, duration_us INTEGER NOT NULL, detail TEXT NOT NULL,
        unshared_bytes INTEGER NOT NULL""",
    "totals": """id INTEGER PRIMARY KEY, when_us INTEGER NOT NULL, instance TEXT NOT NULL, files INTEGER NOT NULL,
        extents INTEGER NOT NULL, ideal_extents INTEGER NOT NULL, active_extents INTEGER NOT NULL,
        size_bytes INTEGER NOT NULL, allocated_bytes INTEGER NOT NULL""",
    "samples": """id INTEGER PRIMARY KEY, when_us INTEGER NOT NULL, path BLOB NOT NULL, extents INTEGER NOT NULL,
        ideal_extents INTEGER NOT NULL, size_bytes INTEGER NOT NULL, allocated_bytes INTEGER NOT NULL""",
    "waiting": "path BLOB PRIMARY KEY, since_us INTEGER NOT NULL, reason TEXT NOT NULL",
    "ever": """what TEXT PRIMARY KEY, times INTEGER NOT NULL, bytes_written INTEGER NOT NULL,
        extents_removed INTEGER NOT NULL, bytes_reclaimed INTEGER NOT NULL, reclaims_known INTEGER NOT NULL,
        unmeasured INTEGER NOT NULL""",
    "moments": "what TEXT PRIMARY KEY, when_us INTEGER NOT NULL",
}
"""The columns of each table.

`ever` has totals that only grow, because rows of `outcomes` are pruned; `unmeasured` rewrites are missing in its
bytes_reclaimed. `waiting` has the files that wait for an action, as of the last look. `moments` has "installed", when
the totals began; "clock", a time that a run saw; and "confirmed", a time that a later run saw pass by hours.
"""

CREATE: Final = (
    *(
        f"CREATE TABLE {table} ({columns}{', PRIMARY KEY (uuid, subvolume, inode)' if table == 'rewrites' else ''})"
        f" STRICT{'' if columns.startswith('id ') else ', WITHOUT ROWID'}"
        for table, columns in TABLES.items()
    ),
    "INSERT INTO ever SELECT *, 0, 0, 0, 0, 0, 0 FROM (VALUES ('done'), ('skipped'), ('failed'))",
    "INSERT INTO moments VALUES ('installed', strftime('%s', 'now') * 1000000)",
)

REST: Final = (
    # A trigger, so that no outcome is stored and not counted. Beside a snapshot no rewrite frees space.
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
    "CREATE INDEX outcomes_when ON outcomes (when_us)",
    "CREATE INDEX outcomes_run ON outcomes (run)",
    "CREATE INDEX totals_when ON totals (when_us)",
    "CREATE INDEX totals_instance ON totals (instance, id)",
    "CREATE INDEX samples_when ON samples (when_us)",
    "CREATE INDEX samples_path ON samples (path, id)",
)
"""The trigger and the indexes, which are made after the old rows were copied."""

SCHEMA: Final = {one for one in (*CREATE, *REST) if one.startswith("CREATE ")}
"""What SQLite stores of the schema. A file of this VERSION with any other is damaged: not even a space may change."""

COPIED: Final = ("rewrites", "runs", "outcomes", "totals", "samples", "waiting")
"""The tables of 0.1.0 whose rows are kept. Its totals in `ever` are not: they counted what snapshots keep as freed."""


def _make_copy_statement(table: str) -> str:
    """Return the SQL that copies "old_TABLE", a renamed table of 0.1.0, without the rows that the new one forbids."""
    typed = [column.split()[:2] for column in TABLES[table].split(",")]
    names = ", ".join(name for name, _ in typed)
    right = " AND ".join(f"typeof({name}) IN ('{kind.lower()}', 'null')" for name, kind in typed)
    return f"INSERT OR IGNORE INTO {table} ({names}) SELECT {names} FROM old_{table} WHERE {right}"  # noqa: S608 - our words


MIGRATIONS: Final = {
    0: (*CREATE, *REST),
    5: (
        "DROP TRIGGER IF EXISTS outcomes_counted",
        "DROP TABLE ever",
        *(f"ALTER TABLE {table} RENAME TO old_{table}" for table in COPIED),
        *CREATE,
        *(_make_copy_statement(table) for table in COPIED),
        *(f"DROP TABLE old_{table}" for table in COPIED),
        *REST,
    ),
}
"""The statements that lead from each older version to VERSION; version 0 is an empty file."""
