# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each record described once: JSON, D-Bus, the log, the columns of SQLite, metrics and man pages are made of it.

A new value of a file is a field of model.JournalFile, which observe/file_row.py fills in (of its extents:
observe/survey.py), and a row here.
"""

from __future__ import annotations

from typing import Final

from journalkeeper.model import Kind, Result, State, Verb
from journalkeeper.model.units import U64_MAX
from journalkeeper.policy.saving import estimate_freed_bytes, estimate_read_seconds
from journalkeeper.wire.field import (
    COUNT,
    FLAG,
    NUMBER,
    OPTIONS,
    OWNER,
    REASON,
    SECONDS,
    SPAN,
    TEXT,
    TEXTS,
    TIME,
    Field,
    Fields,
    Type,
    described,
    document,
    listed,
    nullable,
    rows,
    words,
)

FILE: Final[Fields] = (
    Field("path", TEXT, "Path", "Where it is.", constant=True),
    Field("device", COUNT, "Device", "st_dev of stat(2)."),
    Field("inode", COUNT, "Inode", "st_ino of stat(2)."),
    Field("kind", words(Kind), "Kind", "active, archived or unclean.", note=" (active, archived, unclean)"),
    Field("owner", OWNER, "Owner", "system, user:UID or remote.", note=" (system, user:UID, remote)"),
    Field(
        "instance",
        TEXT,
        "Instance",
        "The name of the directory that one journald writes.",
        note=" (the directory's name)",
    ),
    Field(
        "state",
        words(State),
        "State",
        "offline, online, archived or unknown.",
        note=" (online, offline, archived, unknown)",
    ),
    Field("size_bytes", COUNT, "Size", "Its length.", metric="Size of all journal files."),
    Field(
        "allocated_bytes",
        COUNT,
        "AllocatedSize",
        "What stat(2) calls its blocks, in bytes.",
        metric="Allocated to all journal files, before compression.",
    ),
    Field(
        "disk_bytes",
        described(nullable(COUNT), "What compsize(8) calls disk usage; null unless root asks."),
        note=" (null unless root asks)",
        metric="What the disk keeps for all journal files.",
    ),
    Field(
        "extents",
        COUNT,
        "Extents",
        "Its extents, as filefrag(8) counts.",
        get=lambda file: file.extents.total,
        metric="Extents of all journal files.",
    ),
    Field(
        "ideal_extents",
        COUNT,
        "IdealExtents",
        "How many a whole file of its size and form has.",
        metric="Extents that whole files would have.",
    ),
    Field(
        "shared_bytes",
        COUNT,
        "SharedSize",
        "What it shares with snapshots.",
        get=lambda file: file.extents.shared_bytes,
        before="Extents",
        metric="Data of journal files shared with snapshots.",
    ),
    Field("compressed", FLAG, "Compressed", "Whether at least half of it is compressed."),
    Field("nocow", FLAG, "NoCOW", "Whether it has the attribute C of chattr(1)."),
    Field("entries", COUNT, "Entries", "Its entries.", private=True),
    Field("head_time_us", TIME, "HeadTimeUSec", "The time of its first entry.", private=True),
    Field("tail_time_us", TIME, "TailTimeUSec", "The time of its last entry.", private=True),
    Field(
        "problem",
        nullable(REASON),
        "Problem",
        "Why it cannot be judged, one of the words of journalkeeper(1), or nothing.",
        note=" (a reason, or null)",
    ),
)
"""A journal file: a JournalFile."""

DOING: Final[Fields] = (
    Field(
        "action",
        nullable(words(Verb)),
        "Action",
        "What will be done or was just done to it: defragment, compress, rewrite or rotate; or nothing.",
        get=lambda doing: getattr(doing, "action", None),
    ),
    Field(
        "reason",
        nullable(REASON),
        "Reason",
        "Why that, or why nothing: one of the words of journalkeeper(1).",
        get=lambda doing: getattr(doing, "reason", None),
    ),
    Field(
        "detail",
        nullable(TEXT),
        "Detail",
        "The reason in words and numbers, or nothing.",
        get=lambda doing: getattr(doing, "detail", None),
        private=True,
    ),
)
"""What is done with a file, on the bus only: an Action, a Skip, an Outcome or None."""

RANGE: Final[Fields] = rows(COUNT, "offset", "length", "extents")
"""A part of a file: a Range."""

ACTION: Final[Fields] = (
    Field("path", TEXT),
    Field("action", words(Verb)),
    Field("reason", REASON),
    Field("ranges", listed(RANGE), get=lambda action: [document(RANGE, part) for part in action.ranges]),
    *rows(COUNT, "bytes_to_write", "extents_before", "extents_expected", "unshared_bytes"),
    Field("disk_bytes_saved", COUNT, get=estimate_freed_bytes),
    Field("read_seconds_saved", SECONDS, get=lambda action: round(estimate_read_seconds(action), 3)),
)
"""What will be done: an Action."""

SKIP: Final[Fields] = (
    Field("path", TEXT),
    Field("reason", REASON),
    Field("detail", TEXT),
    Field("until_us", nullable(TIME), note=": when to look again, null where no time is known;"),
    Field("now", FLAG, note=": whether `--now` would do it at once;"),
    Field("puts_off", FLAG, note=": whether there is something to do that pays and is only put off"),
)
"""What is left alone: a Skip."""

WINDOW: Final[Fields] = (
    Field("open", FLAG),
    Field("closes_at_us", nullable(TIME)),
    Field("reason", TEXT),
    Field("opens_at_us", nullable(TIME)),
)
"""An instance's flush window: a Window."""

OUTCOME: Final[Fields] = (
    Field("path", TEXT, log="FILE"),
    Field("action", words(Verb), log="ACTION"),
    Field("result", words(Result), log="RESULT"),
    Field("reason", REASON, log="REASON"),
    Field("extents_before", COUNT, log="EXTENTS_BEFORE"),
    Field("extents_after", COUNT, log="EXTENTS_AFTER"),
    Field("disk_bytes_before", nullable(COUNT), log="DISK_BYTES_BEFORE"),
    Field("disk_bytes_after", nullable(COUNT), note=" (null where nobody could measure)", log="DISK_BYTES_AFTER"),
    Field("bytes_written", COUNT, log="BYTES_WRITTEN"),
    Field("duration_s", SECONDS, get=lambda outcome: round(outcome.duration_s, 6), log="DURATION_USEC"),
    Field("unshared_bytes", COUNT),
)
"""What became of an action: an Outcome."""

KEPT_OUTCOME: Final[Fields] = (*OUTCOME, Field("detail", TEXT, log="DETAIL"))
"""The same as the log and the record keep it; its column names are those of history.schema."""

SUM: Final[Fields] = (
    *rows(COUNT, "files", "done", "skipped", "failed", "extents_before", "extents_after"),
    *rows(nullable(COUNT), "disk_bytes_before", "disk_bytes_after"),
    Field("bytes_written", COUNT),
    Field("duration_s", SECONDS),
)
"""What a run did as a whole."""

WHEN: Final = Field("when_us", TIME)
ORIGIN: Final = Field("origin", TEXT)

ENTRY: Final[Fields] = (WHEN, ORIGIN, *OUTCOME)
"""An outcome in the record."""

SIZES: Final[Fields] = rows(COUNT, "size_bytes", "allocated_bytes")

SAMPLE: Final[Fields] = (WHEN, Field("path", TEXT), *rows(COUNT, "extents", "ideal_extents"), *SIZES)
"""An active file at one moment."""

TOTALS: Final[Fields] = (
    *(WHEN, Field("instance", TEXT)),
    *rows(COUNT, "files", "extents", "ideal_extents", "active_extents"),
    *SIZES,
)
"""An instance's files at one moment."""

RUN: Final[Fields] = (
    *(Field("id", COUNT), ORIGIN, Field("began_us", TIME), Field("ended_us", nullable(TIME))),
    *rows(COUNT, "done", "skipped", "failed", "bytes_written"),
)
"""A run."""

SAVING: Final[Fields] = (
    Field(
        "bytes_reclaimed",
        nullable(Type({"type": "integer", "description": "Disk bytes before less those after, of measured rewrites."})),
    ),
    Field("unmeasured", described(COUNT, "Rewrites that bytes_reclaimed leaves out.")),
    Field("extents_removed", COUNT),
    Field("since_us", nullable(TIME)),
)
"""The saving since the installation: of model.recorded.Counters."""

WAIT: Final[Fields] = (Field("path", TEXT), Field("since_us", TIME), Field("reason", REASON))
"""A file that waits: a Wait."""

MANAGER: Final[Fields] = (
    Field("version", nullable(TEXT), "Version", "The version of journalkeeper.", constant=True),
    Field(
        "health",
        nullable(TEXT),
        "Health",
        "ok; act: something is wrong that somebody has to act on; unknown: the first look runs.",
        note=" (ok, act, unknown)",
    ),
    Field(
        "health_reasons",
        nullable(TEXTS),
        "HealthReasons",
        "Why the health is not ok: each the word of a rule of `journalkeeper doctor`, a colon, and a sentence with"
        " what to do.",
    ),
    Field(
        "state",
        nullable(TEXT),
        "State",
        "idle; waiting: there is something to do, and it waits for a window or for a directory; working; paused;"
        " degraded: the last look failed as a whole.",
        note=" (idle, waiting, working, paused, degraded)",
    ),
    Field("state_reason", nullable(TEXT), "StateReason", "A sentence about the state, or nothing."),
    Field("directories", nullable(TEXTS), "Directories", "The directories that are watched."),
    Field("files", nullable(NUMBER), "FileCount", "Journal files at the last look."),
    Field("extents", nullable(COUNT), "Extents", "Extents of all of them."),
    Field("active_extents", nullable(COUNT), "ActiveExtents", "Extents of those that journald writes to."),
    Field(
        "fragmented_files",
        nullable(NUMBER),
        "FragmentedFiles",
        "Files that a rewrite would mend, were there no reason against it.",
    ),
    Field(
        "window_open",
        nullable(FLAG),
        "WindowOpen",
        "Whether at the last look a journald was not about to flush, so that its active files could be worked on.",
    ),
    Field(
        "next_flush_us",
        nullable(TIME),
        "NextFlushUSec",
        "When the first journald flushes next, as far as is known.",
        none=0,
    ),
    Field(
        "last_run_us",
        nullable(TIME),
        "LastRunUSec",
        "When files were last worked on since the service started.",
        none=0,
    ),
    Field(
        "bytes_written",
        nullable(COUNT),
        "BytesWritten",
        "Bytes written since the service started, before compression.",
        note=" and",
    ),
    Field(
        "bytes_reclaimed",
        nullable(COUNT),
        "BytesReclaimed",
        "Bytes that files occupy less since the service started, as far as is known: 0 under the confinement of"
        " journalkeeper.service, which may not ask (CAP_SYS_ADMIN).",
        note=" (since it started)",
    ),
    Field(
        "budget_left_bytes",
        described(nullable(COUNT), "null: no limit."),
        "BudgetLeft",
        "Bytes that may still be written in these 24 hours; 18446744073709551615 without a limit.",
        note=" (null: no limit)",
        none=U64_MAX,
    ),
    Field(
        "intake_delay_p99_us",
        nullable(SPAN),
        "IntakeDelayP99USec",
        "How long messages wait for journald: the 99th percentile of the newest ones that the service saw, in"
        " microseconds; 0 while none is known.",
        none=0,
    ),
    Field("paused", nullable(FLAG), "Paused", "Whether Pause is in force."),
    Field(
        "limits",
        nullable(TEXTS),
        "Limits",
        "A sentence for each limit that is reached: a directory has more files than are looked at, the kernel gives"
        " no more inotify watches.",
        note=" (a sentence for each limit that is reached: more files in a directory than are looked at, no more"
        " inotify watches)",
        before="Paused",
    ),
    Field(
        "bytes_reclaimed_total",
        nullable(COUNT),
        "BytesReclaimedTotal",
        "Bytes that rewrites gave back to the disk since the installation, less what they took, as far as they were"
        " measured; 0 while that is unknown.",
        note=" (since the installation)",
        none=0,
        before="BudgetLeft",
    ),
)
"""The service: a model.manager.Manager."""

PROGRESS: Final[Fields] = (
    Field("path", TEXT, "File", "The file at work, or nothing."),
    Field("number", NUMBER, "FileNumber", "Which one it is, from 1."),
    Field("total", NUMBER, "FileTotal", "How many will be worked on."),
    Field("done_bytes", COUNT, "BytesDone", "Bytes that are done, of all files."),
    Field("total_bytes", COUNT, "BytesTotal", "Bytes that there are to do."),
)
"""How far a job is, on the bus only: a Progress."""

JOB: Final[Fields] = (
    Field("number", NUMBER, "Id", "Its number, from 1.", constant=True),
    Field("state", TEXT, "State", "queued, running, or canceling: it ends at the next chunk border."),
    Field("request", OPTIONS, "Options", "What was asked for, as for Defragment.", constant=True),
    Field("done", SECONDS, "Progress", "How much is done, 0 to 1.", get=lambda job: job.progress.fraction),
)
"""A job, on the bus only, where its PROGRESS follows."""

STRETCH: Final[Fields] = (
    *rows(COUNT, "offset", "length"),
    Field("extents", described(COUNT, "Extents that begin here.")),
    *rows(COUNT, "data_bytes", "compressed_bytes"),
    Field("shared_bytes", described(COUNT, "Plain and shared.")),
    Field("both_bytes", described(COUNT, "Compressed and shared.")),
    *rows(COUNT, "unwritten_bytes", "hole_bytes"),
)
"""A part of a file, and what it holds: a Stretch."""
