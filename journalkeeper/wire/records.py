# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each record is described once; JSON, D-Bus, the log, SQLite columns, metrics and man pages are made from it.

A new value of a file needs a field of model.JournalFile, code in observe/file_row.py that fills it (for extents:
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
    Field("path", TEXT, "Path", "The file's path.", constant=True),
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
    Field("size_bytes", COUNT, "Size", "Its length in bytes.", metric="Size of all journal files in bytes."),
    Field(
        "allocated_bytes",
        COUNT,
        "AllocatedSize",
        "The blocks of stat(2), in bytes.",
        metric="Bytes allocated to all journal files, before compression.",
    ),
    Field(
        "disk_bytes",
        described(nullable(COUNT), "Disk usage as in compsize(8); null unless root asks."),
        note=" (null unless root asks)",
        metric="Bytes that all journal files occupy on disk.",
    ),
    Field(
        "extents",
        COUNT,
        "Extents",
        "The number of its extents, as filefrag(8) counts.",
        get=lambda file: file.extents.total,
        metric="Extents of all journal files.",
    ),
    Field(
        "ideal_extents",
        COUNT,
        "IdealExtents",
        "The number of extents that a file of its size and form needs.",
        metric="Extents that all journal files need.",
    ),
    Field(
        "shared_bytes",
        COUNT,
        "SharedSize",
        "The bytes that it shares with snapshots.",
        get=lambda file: file.extents.shared_bytes,
        before="Extents",
        metric="Bytes of journal files that snapshots share.",
    ),
    Field("compressed", FLAG, "Compressed", "Whether at least half of it is compressed."),
    Field("nocow", FLAG, "NoCOW", "Whether it has the attribute C of chattr(1)."),
    Field("entries", COUNT, "Entries", "The number of its entries.", private=True),
    Field("head_time_us", TIME, "HeadTimeUSec", "The time of its first entry.", private=True),
    Field("tail_time_us", TIME, "TailTimeUSec", "The time of its last entry.", private=True),
    Field(
        "problem",
        nullable(REASON),
        "Problem",
        "The reason why it cannot be judged, one of the words of journalkeeper(1), or empty.",
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
"""The totals of a run."""

WHEN: Final = Field("when_us", TIME)
ORIGIN: Final = Field("origin", TEXT)

ENTRY: Final[Fields] = (WHEN, ORIGIN, *OUTCOME)
"""An outcome in the history."""

SIZES: Final[Fields] = rows(COUNT, "size_bytes", "allocated_bytes")

SAMPLE: Final[Fields] = (WHEN, Field("path", TEXT), *rows(COUNT, "extents", "ideal_extents"), *SIZES)
"""The extents of an active file at one moment."""

TOTALS: Final[Fields] = (
    *(WHEN, Field("instance", TEXT)),
    *rows(COUNT, "files", "extents", "ideal_extents", "active_extents"),
    *SIZES,
)
"""The sums over an instance's files at one moment."""

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
"""The saving since the installation, from model.recorded.Counters."""

WAIT: Final[Fields] = (Field("path", TEXT), Field("since_us", TIME), Field("reason", REASON))
"""A file that waits: a model.waiting.Wait."""

MANAGER: Final[Fields] = (
    Field("version", nullable(TEXT), "Version", "The version of journalkeeper.", constant=True),
    Field(
        "health",
        nullable(TEXT),
        "Health",
        "ok; act: a problem needs an administrator; unknown: the first look is not finished.",
        note=" (ok, act, unknown)",
    ),
    Field(
        "health_reasons",
        nullable(TEXTS),
        "HealthReasons",
        "The reasons why the health is not ok: for each the name of a rule of `journalkeeper doctor`, a colon, and a"
        " sentence with the remedy.",
    ),
    Field(
        "state",
        nullable(TEXT),
        "State",
        "idle; waiting: work waits for a window or for a directory; working; paused;"
        " degraded: the last look failed as a whole.",
        note=" (idle, waiting, working, paused, degraded)",
    ),
    Field("state_reason", nullable(TEXT), "StateReason", "A sentence about the state, or empty."),
    Field("directories", nullable(TEXTS), "Directories", "The directories that are watched."),
    Field("files", nullable(NUMBER), "FileCount", "Journal files at the last look."),
    Field("extents", nullable(COUNT), "Extents", "Extents of all of them."),
    Field("active_extents", nullable(COUNT), "ActiveExtents", "Extents of those that journald writes to."),
    Field(
        "fragmented_files",
        nullable(NUMBER),
        "FragmentedFiles",
        "Files for which the gain of a rewrite is worth its cost, also if a reason delays the rewrite.",
    ),
    Field(
        "window_open",
        nullable(FLAG),
        "WindowOpen",
        "Whether work on the active files of at least one journald was allowed at the last look.",
    ),
    Field(
        "next_flush_us",
        nullable(TIME),
        "NextFlushUSec",
        "The time of the next flush of any journald, if known.",
        none=0,
    ),
    Field(
        "last_run_us",
        nullable(TIME),
        "LastRunUSec",
        "The time of the last work on files since the service started.",
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
        "Bytes of disk space freed since the service started, if measured: 0 in the sandbox of"
        " journalkeeper.service, which may not measure (CAP_SYS_ADMIN).",
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
        "The 99th percentile of the time that the newest messages waited for journald, in microseconds;"
        " 0 while it is unknown.",
        none=0,
    ),
    Field("paused", nullable(FLAG), "Paused", "Whether Pause is in force."),
    Field(
        "limits",
        nullable(TEXTS),
        "Limits",
        "A sentence for each limit that is reached: too many files in a directory, or no more inotify watches from the"
        " kernel.",
        note=" (a sentence for each limit that is reached: too many files in a directory, or no more inotify watches)",
        before="Paused",
    ),
    Field(
        "bytes_reclaimed_total",
        nullable(COUNT),
        "BytesReclaimedTotal",
        "Bytes of disk space that rewrites freed since the installation, less the bytes that they used, if measured;"
        " 0 while it is unknown.",
        note=" (since the installation)",
        none=0,
        before="BudgetLeft",
    ),
)
"""The service: a model.manager.Manager."""

PROGRESS: Final[Fields] = (
    Field("path", TEXT, "File", "The file that is being rewritten, or empty."),
    Field("number", NUMBER, "FileNumber", "The number of that file, from 1."),
    Field("total", NUMBER, "FileTotal", "The number of files to rewrite."),
    Field("done_bytes", COUNT, "BytesDone", "Bytes done in all files."),
    Field("total_bytes", COUNT, "BytesTotal", "Bytes to do in all files."),
)
"""The progress of a job, only on the bus: a model.progress.Progress."""

JOB: Final[Fields] = (
    Field("number", NUMBER, "Id", "Its number, from 1.", constant=True),
    Field("state", TEXT, "State", "queued, running, or canceling: it ends at the next chunk border."),
    Field("request", OPTIONS, "Options", "The options of the call of Defragment.", constant=True),
    Field(
        "done",
        SECONDS,
        "Progress",
        "The share that is done, 0 to 1.",
        get=lambda job: job.progress.fraction,
    ),
)
"""A job, only on the bus; its PROGRESS follows."""

STRETCH: Final[Fields] = (
    *rows(COUNT, "offset", "length"),
    Field("extents", described(COUNT, "Extents that begin here.")),
    *rows(COUNT, "data_bytes", "compressed_bytes"),
    Field("shared_bytes", described(COUNT, "Plain and shared.")),
    Field("both_bytes", described(COUNT, "Compressed and shared.")),
    *rows(COUNT, "unwritten_bytes", "hole_bytes"),
)
"""A part of a file and its contents: a model.Stretch."""
