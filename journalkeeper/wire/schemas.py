# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON Schema of each command's output, for /usr/share/journalkeeper/schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from journalkeeper.model import Action, JournalFile, Outcome, Skip, Stretch, Verb, Window
from journalkeeper.model.documents import RunTotals
from journalkeeper.model.manager import Manager
from journalkeeper.model.record import Count, Moment, Seconds, Span, Word
from journalkeeper.model.recorded import Counters, Entry, Run, Sample, Totals
from journalkeeper.model.schema import make_schema
from journalkeeper.model.waiting import Wait


class Type(NamedTuple):
    """The type of a value, by its JSON Schema."""

    schema: Mapping[str, Any]


class Field(NamedTuple):
    """A key of an answer."""

    key: str
    type: Type


Fields = tuple[Field, ...]


def rows(one: Type, *keys: str) -> Fields:
    """Return a field of type `one` for each key."""
    return tuple(Field(key, one) for key in keys)


TEXT: Final = Type(make_schema(str))
TEXTS: Final = Type(make_schema(list[str]))
FLAG: Final = Type(make_schema(bool))
COUNT: Final = Type(make_schema(Count))
SECONDS: Final = Type(make_schema(Seconds))
TIME: Final = Type(make_schema(Moment))
SPAN: Final = Type(make_schema(Span))
OPTIONS: Final = Type({"type": "object"})
REASON: Final = Type(make_schema(Word))


def nullable(one: Type) -> Type:
    """Return the type that also permits null."""
    if "type" in one.schema:
        return Type({**one.schema, "type": [one.schema["type"], "null"]})
    return Type({"anyOf": [one.schema, {"type": "null"}]})


def described(one: Type, sentence: str) -> Type:
    """Return the type with a description in its schema."""
    return Type({**one.schema, "description": sentence})


def nested(kind: Any, sometimes: Fields = ()) -> Type:
    """Return the type of an object, which may also have the keys of `sometimes`."""
    if isinstance(kind, type):
        return Type(make_schema(kind))
    keys = {row.key: row.type.schema for row in (*kind, *sometimes)}
    return Type({"type": "object", "required": [row.key for row in kind], "properties": keys})


def listed(kind: Any) -> Type:
    """Return the type of an array of objects."""
    return Type({"type": "array", "items": nested(kind).schema})


RULE: Final = Type(
    {"description": "A fixed word, see journalkeeper(1).", "type": "string", "pattern": "^[a-z][a-z0-9-]*$"}
)


def _by_name(one: Type, sentence: str) -> Type:
    """Return the type of an object with keys of any name."""
    return Type({"type": "object", "description": sentence, "additionalProperties": one.schema})


DECISION: Final[Fields] = (
    Field("action", nullable(Type(make_schema(Verb)))),
    Field("reason", REASON),
    Field("detail", TEXT),
    Field("until_us", nullable(TIME)),
    Field("now", FLAG),
    *rows(COUNT, "extents_before", "extents_expected", "bytes_to_write", "disk_bytes_saved"),
    Field("read_seconds_saved", SECONDS),
    Field("sentences", TEXTS),
)

PRICE: Final[Fields] = (
    Field("read_seconds", described(SECONDS, "Of a cold read at 150 IOPS.")),
    Field("disk_read_seconds", nullable(SECONDS)),
    Field("pinned_bytes", nullable(COUNT)),
)

KEPT: Final[Fields] = (
    *rows(COUNT, "files", "size_bytes", "allocated_bytes"),
    Field("disk_bytes", nullable(COUNT)),
    *rows(nullable(TIME), "oldest_us", "newest_us"),
    Field("max_use_bytes", described(nullable(COUNT), "What journald lets its files take now; 0: no limit.")),
    Field("max_files", COUNT),
    Field("max_retention_us", SPAN),
    Field("full_span_us", described(nullable(SPAN), "Microseconds of history that fit max_use_bytes at this rate.")),
    Field("binding", nullable(TEXT)),
)

DIRECTORY: Final[Fields] = (
    *rows(TEXT, "directory", "instance", "namespace", "storage"),
    *rows(FLAG, "nocow", "rotatable"),
    Field("sync_interval_us", SPAN),
    Field("window", nullable(nested(Window))),
    Field("retention", nested(KEPT)),
    Field("decision", nullable(nested(DECISION))),
)

NOT_LOOKED_AT: Final = Field("unknown", _by_name(TEXT, "What could not be looked at, and why."))

STORY: Final[Fields] = (
    Field("file", nested(JournalFile)),
    Field("picture", listed(Stretch)),
    Field("price", nested(PRICE)),
    Field("past", nullable(listed(Entry))),
    Field("samples", nullable(listed(Sample))),
    Field("decision", nullable(nested(DECISION))),
    Field("window", nullable(nested(Window))),
    NOT_LOOKED_AT,
)

FINDING: Final[Fields] = (
    Field("rule", RULE),
    Field("severity", Type({"enum": ["problem", "advice"]})),
    Field("sentence", described(TEXT, "What is so and why it matters.")),
    Field(
        "facts",
        _by_name(
            Type({"anyOf": [{"type": ["number", "string", "null"]}, TEXTS.schema]}),
            "What it was found by; units are in the names.",
        ),
    ),
    Field("remedy", described(TEXTS, "Commands for a shell.")),
)

MOMENT: Final = described(COUNT, "Microseconds since 1970.")

JOURNAL_READ: Final[Fields] = (
    Field("entries", COUNT),
    Field("oldest_us", nullable(MOMENT)),
    Field("complete", described(FLAG, "Whether these are all entries that are kept.")),
    Field("events", described(COUNT, "Entries of PID 1 and journald about boots, losses and deaths.")),
    Field("events_oldest_us", nullable(MOMENT)),
    Field("events_complete", FLAG),
)

STATUS: Final[Fields] = (
    *rows(TEXT, "version", "state_directory"),
    Field("readable", FLAG),
    Field("last_run", nullable(nested(Run))),
    Field("written_day_bytes", nullable(COUNT)),
    Field("totals", listed(Totals)),
    Field("service", nullable(nested(Manager))),
    Field("waiting", nullable(listed(Wait))),
    Field("saving", nullable(nested(Counters))),
)

VERDICT: Final[Fields] = (
    Field("fine", described(FLAG, "Whether all is well; where this host's service is meant.")),
    Field("verdict", described(TEXT, "The sentence that `status` begins with; where this host's service is meant.")),
    Field("health", described(TEXT, "ok, act or unknown; where this host's service is meant.")),
    Field("health_reasons", described(TEXTS, "Why the health is not ok, as HealthReasons on the bus.")),
)

PLAN: Final[Fields] = (
    Field("window", _by_name(nested(Window), "By instance.")),
    Field("actions", listed(Action)),
    Field("skipped", listed(Skip)),
)

OMITTED: Final[Fields] = (
    Field("omitted", described(COUNT, "Rows that the service left out, because its answer would be too long.")),
)

DOCTOR: Final[Fields] = (
    Field("findings", described(listed(FINDING), "What is wrong or risky, problems first.")),
    Field("passed", described(Type({"type": "array", "items": RULE.schema}), "Checks that found nothing.")),
    Field("unknown", described(listed((Field("rule", RULE), Field("why", TEXT))), "Checks that could not be made.")),
    Field(
        "journal",
        described(nullable(nested(JOURNAL_READ)), "How much of the journal was read; null where it could not be."),
    ),
)

CONFIG: Final[Fields] = (
    Field("problems", listed((Field("file", TEXT), Field("line", COUNT), *rows(TEXT, "key", "allowed")))),
    Field("values", listed((*rows(TEXT, "section", "key", "value"), Field("default", FLAG)))),
)

SETTING: Final[Fields] = (
    *rows(COUNT, "target_bytes", "limit_bytes"),
    Field("binds", TEXT),
    Field("bytes_per_day", COUNT),
    Field("ratio", described(SECONDS, "How many times smaller the archives are on the disk.")),
    Field("kept_us", SPAN),
    *rows(COUNT, "disk_bytes", "proposed_use_bytes", "proposed_files", "max_file_bytes"),
    Field("proposed_us", SPAN),
    Field("proposed_disk_bytes", COUNT),
    Field("proposed_binds", TEXT),
    Field("applied", FLAG),
)
"""What the journal keeps and could keep: a report.retention.Retention."""

CHANGE: Final[Fields] = (Field("file", TEXT), Field("changed", FLAG))

STATISTICS: Final[Fields] = (
    Field("count", COUNT),
    Field("total_s", SECONDS),
    *rows(nullable(SECONDS), "mean_s", "p50_s", "p90_s", "p99_s", "p99_9_s", "worst_s"),
)

SERIES: Final[Fields] = (
    Field("name", TEXT),
    Field("labels", _by_name(TEXT, "Further words.")),
    *STATISTICS,
    Field("call", described(nullable(nested(STATISTICS)), "Of the calls' own time, where waits count from a plan.")),
    Field("buckets", listed((Field("from_s", SECONDS), Field("count", COUNT)))),
)

PROBE: Final[Fields] = (
    Field("probe", Type({"enum": ["intake", "syslog", "fsync", "stream"]})),
    Field("version", TEXT),
    Field("began_us", TIME),
    Field("options", described(OPTIONS, "The options that only this probe has.")),
    Field("series", listed(SERIES)),
    *rows(TEXTS, "notes", "faults", "losses"),
    Field("verdict", TEXT),
)

STRATEGY: Final[Fields] = (
    Field("strategy", TEXT),
    *rows(SECONDS, "flush_s", "wait_s", "last_s", "read_s"),
    *rows(COUNT, "extents", "active_extents", "disk_bytes", "written_bytes"),
    Field("checksummed", FLAG),
)
"""What one strategy came to: a probe.compare.Row."""

LAB: Final[Fields] = (
    Field("directory", TEXT),
    Field("iops", described(nullable(COUNT), "null: not limited.")),
    Field("flushes", COUNT),
    Field("strategies", listed(STRATEGY)),
)

PAUSE: Final[Fields] = (
    Field("paused", FLAG),
    Field("span_us", described(nullable(SPAN), "Microseconds until the pause ends; null: at the next resume.")),
)

PLACES: Final[Fields] = (Field("directories", listed(DIRECTORY)), NOT_LOOKED_AT)
DEFRAG: Final[Fields] = (Field("outcomes", listed(Outcome)), Field("totals", nested(RunTotals)))
HISTORY: Final[Fields] = (Field("outcomes", listed(Entry)), Field("samples", listed(Sample)))
REPORT: Final[Fields] = (Field("path", TEXT), Field("size_bytes", COUNT))

ANSWERS: Final[dict[str, tuple[str, Type]]] = {
    "scan": ("Every journal file. ", listed(JournalFile)),
    "plan": ("What would be done to which file, and why not. ", nested(PLAN, OMITTED)),
    "defrag": ("What became of every file. ", nested(DEFRAG, OMITTED)),
    "history": ("What was done and seen over time. ", nested(HISTORY)),
    "status": ("How things are, from the service and the record. ", nested(STATUS, VERDICT)),
    "explain": (
        "One file's story, or a directory's. ",
        Type({"oneOf": [nested(STORY).schema, nested(PLACES).schema]}),
    ),
    "report": ("The page that was written. ", nested(REPORT)),
    "doctor": ("", nested(DOCTOR)),
    "retention": ("How long a history fits the same bytes. ", nested(CHANGE, SETTING)),
    "probe": ("What was measured. ", nested(PROBE)),
    "lab": ("Each strategy on that disk. ", nested(LAB)),
    "pause": ("What was asked of the service. ", nested(PAUSE)),
    "resume": ("What was asked of the service. ", nested((PAUSE[0],))),
    "check-config": ("The configuration, and what is wrong in it. ", nested(CONFIG)),
}
"""What each command answers, in words and as a type."""


def schema(command: str) -> dict[str, Any]:
    """The published schema of a command's answer."""
    what, answer = ANSWERS[command]
    added = "Keys and rules are" if command == "doctor" else "Keys are"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:journalkeeper:schema:1:{command}",
        "$comment": "SPDX-License-Identifier: LGPL-2.1-or-later",
        "title": f"journalkeeper {command} -j",
        "description": f"Version 1. {what}{added} only ever added.",
        **answer.schema,
    }
