# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service's state as it is published to clients."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NamedTuple

from journalkeeper.model.schema import Count, Key, Moment, RuleWord, Seconds, Span
from journalkeeper.model.units import U64_MAX
from journalkeeper.model.words import Reason, Verb

Fact = int | float | str | list[str] | None
Facts = dict[str, Fact]


class Severity(StrEnum):
    """The severity of a finding: PROBLEM if something is wrong, ADVICE if something could be better or may go wrong."""

    PROBLEM = "problem"
    ADVICE = "advice"


class Finding(NamedTuple):
    """A condition that a rule found: `word` names the rule, and `facts` are its evidence, with units in their names.

    `sentence` describes the condition and its effect; `remedy` are shell commands, one per line.
    """

    word: Annotated[RuleWord, Key("rule")]
    severity: Severity
    facts: Facts
    """What it was found by; units are in the names."""
    sentence: str
    """What is so and why it matters."""
    remedy: tuple[str, ...]
    """Commands for a shell."""

    @property
    def line(self) -> str:
        """The sentence, "Try:" and the first command of the remedy, as one line; only the sentence without a remedy."""
        return f"{self.sentence} Try: {self.remedy[0]}" if self.remedy else self.sentence


class HistorySpan(NamedTuple):
    """The span and sizes of the present history of one directory, and the limits.

    `full_span_us` is the span of history that all limits together permit at the present rate, as in `journalkeeper
    retention`; None if it is unknown or there is no such limit. `binding` names the setting of the strictest limit.
    """

    directory: str
    files: Count
    size_bytes: Count
    allocated_bytes: Count
    disk_bytes: Annotated[Count | None, Key(none=0)]
    oldest_us: Annotated[Moment | None, Key(none=0)]
    newest_us: Annotated[Moment | None, Key(none=0)]
    max_use_bytes: Annotated[Count | None, Key(none=U64_MAX)]
    """What journald lets its files take now; 0: no limit."""
    max_files: Count
    max_retention_us: Span
    full_span_us: Annotated[Span | None, Key(none=0)]
    """Microseconds of history that fit max_use_bytes at this rate."""
    binding: Annotated[str | None, Key(none="")]
    next_deleted_us: Annotated[Moment | None, Key(none=0)] = None
    """The newest entry that journald's next deletion takes; null if no deletion is foreseen."""
    next_deletion_in_us: Annotated[Span | None, Key(none=0)] = None
    """When that is, at this rate; null if it is unknown."""
    early_files: Count = 0
    """Archives more than full files of the same bytes would be, because of rotations and boots."""
    early_bytes: Count = 0
    """The room that their tables and repeated values take."""
    covered_us: Span = 0
    """The time that entries cover, without the gaps of more than a day that clocks and copied files leave."""


class Manager(NamedTuple):
    """The service's properties; None is an unknown value, also if an older version does not publish it.

    `budget_left_bytes` is None without a limit, too.
    """

    version: Annotated[str | None, Key(constant=True)] = None
    """The version of journalkeeper."""
    health: str | None = None
    """ok; act: a problem needs an administrator; unknown: the first look is not finished."""
    health_reasons: list[str] | None = None
    """The reasons why the health is not ok: for each the name of a rule of `journalkeeper doctor`, a colon, and a
    sentence with the remedy.
    """
    findings: Annotated[tuple[Finding, ...] | None, Key(signature="aa{sv}")] = None
    """The findings of the service, the problems first: for each the Rule, the Severity, the Facts by which it was
    found, the Sentence, and the commands of the Remedy.
    """
    history: Annotated[tuple[HistorySpan, ...] | None, Key(signature="aa{sv}")] = None
    """For each directory how much history journald keeps, the limits, and what it deletes next."""
    state: str | None = None
    """idle; waiting: work waits for a window or for a directory; working; paused; degraded: the last look failed as a
    whole.
    """
    state_reason: str | None = None
    """A sentence about the state, or empty."""
    directories: list[str] | None = None
    """The directories that are watched."""
    files: Annotated[Count | None, Key(bus="FileCount", signature="u")] = None
    """Journal files at the last look."""
    extents: Count | None = None
    """Extents of all of them."""
    active_extents: Count | None = None
    """Extents of those that journald writes to."""
    fragmented_files: Annotated[Count | None, Key(signature="u")] = None
    """Files for which the gain of a rewrite is worth its cost, also if a reason delays the rewrite."""
    window_open: bool | None = None
    """Whether work on the active files of at least one journald was allowed at the last look."""
    next_flush_us: Annotated[Moment | None, Key(none=0)] = None
    """The time of the next flush of any journald, if known."""
    last_run_us: Annotated[Moment | None, Key(none=0)] = None
    """The time of the last work on files since the service started."""
    bytes_written: Count | None = None
    """Bytes written since the service started, before compression."""
    bytes_reclaimed: Count | None = None
    """Bytes of disk space freed since the service started, if measured: 0 in the sandbox of
    journalkeeper.service, which may not measure (CAP_SYS_ADMIN).
    """
    bytes_reclaimed_total: Annotated[Count | None, Key(none=0)] = None
    """Bytes of disk space that rewrites freed since the installation, less the bytes that they used, if measured; 0
    while it is unknown.
    """
    budget_left_bytes: Annotated[Count | None, Key(none=U64_MAX)] = None
    """Bytes that may still be written in these 24 hours. Without a limit, and until a look finds a journal, it is
    18446744073709551615 on the bus, and null in JSON.
    """
    intake_delay_p99_us: Annotated[Span | None, Key(none=0)] = None
    """The 99th percentile of the time that the newest messages waited for journald; 0 while it is unknown."""
    paused: bool | None = None
    """Whether Pause is in force."""


class Treatment(NamedTuple):
    """The action on a file, as the bus shows it: the values of an Action, a Skip or an Outcome, or nothing."""

    action: Verb | None = None
    """What will be done or was just done to it: defragment, compress, rewrite or rotate; or nothing."""
    reason: Reason | None = None
    """Why that, or why nothing: one of the words of journalkeeper-reasons(7)."""
    detail: Annotated[str | None, Key(private=True)] = None
    """The reason in words and numbers, or nothing."""


class JobState(NamedTuple):
    """A job, as the bus shows it before its Progress."""

    number: Annotated[Count, Key(bus="Id", signature="u", constant=True)]
    """Its number, from 1."""
    state: str
    """queued, running, or canceling: it ends at the next chunk border."""
    progress: Seconds
    """The share that is done, 0 to 1."""
