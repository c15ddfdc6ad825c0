# SPDX-License-Identifier: LGPL-2.1-or-later
"""A run: its progress, its results, the files that wait after it for an action that pays, and what the history keeps.

A wait begins when an action is delayed or fails. It ends when the action is done or no longer pays. The cause does not
matter: a budget, a window, a busy disk, or a file that never settles.

Progress is reported at the start of each file and after every piece; the receiver decides how often to show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from journalkeeper.model import Action, Host, JournalFile, Kind, Outcome, Plan, Reason, Result, Skip, Sums
from journalkeeper.model.schema import Count, Hidden, Inline, Key, PastMoment, Seconds, Sometimes, Word, parse_record
from journalkeeper.model.units import DAY_US


class Run(NamedTuple):
    """A run; `ended_us` is None while it works or if it was killed."""

    id: Count
    origin: str
    began_us: PastMoment
    ended_us: PastMoment | None
    done: Count
    skipped: Count
    failed: Count
    bytes_written: Count


class HistoryEntry(NamedTuple):
    """An outcome, its time, and the origin of its run ("" if its run was lost)."""

    when_us: PastMoment
    origin: str
    outcome: Inline[Outcome]


class Totals(NamedTuple):
    """The sums over one instance's files at one moment, without their disk bytes."""

    when_us: PastMoment
    instance: str
    files: Count
    extents: Count
    ideal_extents: Count
    active_extents: Count
    size_bytes: Count
    allocated_bytes: Count

    @classmethod
    def of(cls, when_us: int, instance: str, files: Sequence[JournalFile]) -> Totals:
        """Return the totals of `instance` at `when_us`, as sums over all `files`, also those with a problem."""
        every = Sums.of(files)
        active = sum(file.extents.total for file in files if file.kind is Kind.ACTIVE)
        counts = (every.files, every.extents, every.ideal_extents, active)
        return cls(when_us, instance, *counts, every.size_bytes, every.allocated_bytes)


class Sample(NamedTuple):
    """The extents of one active file at one moment."""

    when_us: PastMoment
    path: str
    extents: Count
    ideal_extents: Count
    size_bytes: Count
    allocated_bytes: Count


class Counters(NamedTuple):
    """The totals since the history began at `since_us`: outcomes by result, costs and savings.

    `bytes_reclaimed` is the disk space that the measured rewrites freed, less the space that they used. It is None if
    no rewrite was measured, which requires CAP_SYS_ADMIN or the measure socket. `unmeasured` rewrites are not in it,
    among them those of files in a snapshot, which keeps the old data. `extents_removed` is about rewrites, not
    rotations.
    """

    done: Count = 0
    skipped: Count = 0
    failed: Count = 0
    bytes_written: Annotated[Count, Key(metric="Bytes that rewrites wrote.", metric_name="written_bytes_total")] = 0
    extents_removed: Annotated[Count, Key(metric="Extents removed so far.", metric_name="removed_extents_total")] = 0
    bytes_reclaimed: Annotated[int | None, Key(metric="Disk bytes freed so far.", metric_name="reclaimed_bytes")] = None
    """Disk bytes before less those after, of measured rewrites."""
    unmeasured: Count = 0
    """Rewrites that bytes_reclaimed leaves out."""
    since_us: PastMoment | None = None


LONG_US: Final = DAY_US
"""A longer wait is reported."""

RESTS: Final = frozenset({str(Reason.BATTERY), str(Reason.QUIET_HOURS)})
"""Reasons that the administrator chose. No wait counts while the service rests, so that no rest becomes an alert."""

LEFT: Final = {str(reason): place for place, reason in enumerate((Reason.NOT_BEGUN, Reason.INTERRUPTED))}
"""What an ended run leaves is done first, in this order: an action that no uptime can finish stops no others."""


class Wait(NamedTuple):
    """A file that waits, since when, and the present reason."""

    path: str
    since_us: PastMoment
    reason: Word


def find_waits(before: Mapping[str, Wait], plan: Plan, outcomes: Sequence[Outcome], now_us: int) -> dict[str, Wait]:
    """Return the waits after a run, by path: skips that `plan` puts off, replaced by outcomes that are not done. A wait
    from `before` keeps its start, at most `now_us`; with a new reason in RESTS it keeps only an old reason in LEFT.
    """
    reasons = {skip.path: str(skip.reason) for skip in plan.skipped if skip.puts_off}
    reasons |= {outcome.path: str(outcome.reason) for outcome in outcomes if outcome.result is not Result.DONE}
    waits = [Wait(path, now_us, reason) for path, reason in reasons.items()]
    return {wait.path: _continue_wait(before.get(wait.path, wait), wait) for wait in waits}


def _continue_wait(was: Wait, wait: Wait) -> Wait:
    """Return `wait` with the start of `was`, if earlier; if its reason is in RESTS, with a reason in LEFT of `was`."""
    if wait.reason not in RESTS:
        return wait._replace(since_us=min(was.since_us, wait.since_us))
    return wait._replace(reason=was.reason) if was.reason in LEFT else wait


def is_long(wait: Wait, now_us: int) -> bool:
    """Return whether a file has waited for more than a day."""
    return now_us - wait.since_us > LONG_US


def list_long_waits(known: Iterable[Wait], now_us: int) -> list[Wait]:
    """Return the waits of more than a day, the longest first."""
    return sorted((one for one in known if is_long(one, now_us)), key=lambda one: (one.since_us, one.path))


class Found(NamedTuple):
    """A file's state before or after an action; a directory has only an inode."""

    inode: int
    size_bytes: int
    mtime_ns: int
    extents: int
    disk_bytes: int | None = None


class Done(NamedTuple):
    """An outcome, and the file's state afterwards for the history.

    `extents_expected` is the expected number of extents; 0 if there was no expectation. `compress` and `kind`, the
    file's kind before, are None unless the action was a rewrite.
    """

    outcome: Outcome
    after: Found
    extents_expected: int = 0
    compress: str | None = None
    kind: Kind | None = None


class Report(NamedTuple):
    """The result of a run. `notices` are sentences about the run as a whole; `host` is the state that it saw.

    `counters` are the totals since the installation, None if they could not be read. `unrecorded` are those notices
    that report a failure to write the history. Of a run in the service, a caller gets the published values only, and a
    plan without actions.
    """

    plan: Hidden[Plan]
    outcomes: tuple[Outcome, ...]
    written_bytes: Count
    duration_s: Seconds
    notices: tuple[str, ...]
    host: Hidden[Host | None] = None
    counters: Hidden[Counters | None] = None
    unrecorded: Hidden[tuple[str, ...]] = ()

    @property
    def skipped(self) -> Annotated[tuple[Skip, ...], Key()]:
        """The files and directories that the plan leaves alone."""
        return self.plan.skipped

    @property
    def omitted(self) -> Sometimes[Count]:
        """The number of rows that the service left out of a too long answer, if any."""
        return self.plan.omitted

    @property
    def is_interrupted(self) -> bool:
        """True if an outcome or a skip has the reason INTERRUPTED or NOT_BEGUN."""
        reasons = {*(one.reason for one in self.outcomes), *(one.reason for one in self.skipped)}
        return not reasons.isdisjoint((Reason.INTERRUPTED, Reason.NOT_BEGUN))


def decode_report(written: Mapping[str, Any]) -> Report:
    """Return the report that `to_json` made this of; its plan has only skips.

    Raises: KeyError, TypeError, ValueError for any other object.
    """
    plan = {"window": {}, "actions": (), "skipped": written["skipped"], "omitted": written.get("omitted")}
    return parse_record(Report, {**written, "plan": plan})


class Progress(NamedTuple):
    """The progress of a run: file `number` (from 1) of `total`, and bytes over the whole run."""

    number: Annotated[Count, Key(bus="FileNumber", signature="u")]
    """The number of that file, from 1."""
    total: Annotated[Count, Key(bus="FileTotal", signature="u")]
    """The number of files to rewrite."""
    path: Annotated[str, Key(bus="File")]
    """The file that is being rewritten, or empty."""
    done_bytes: Annotated[Count, Key(bus="BytesDone")]
    """Bytes done in all files."""
    total_bytes: Annotated[Count, Key(bus="BytesTotal")]
    """Bytes to do in all files."""

    @property
    def fraction(self) -> float:
        """The share of the bytes that is done, 0 to 1; 0 if there are no bytes to do."""
        return min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else 0.0


NONE_YET: Final = Progress(0, 0, "", 0, 0)
"""The progress of a run that has not begun."""


class Meter:
    """A counter of bytes over a whole run. `begin` and `add` call `report` with `now`, which begins at file 0.

    A file counts at most its planned bytes. When the work on the next file begins, a file that was skipped or ended
    early counts in full.
    """

    def __init__(self, actions: tuple[Action, ...], report: Callable[[Progress], None]) -> None:
        self._report = report
        total_bytes = sum(part.length for action in actions for part in action.ranges)
        self.now = Progress(0, sum(bool(action.ranges) for action in actions), "", 0, total_bytes)
        self._end_bytes = 0
        """The number of bytes when the present file is done."""

    def begin(self, action: Action) -> None:
        """Report that the work on the file of `action` begins. All planned bytes of earlier files now count as done.

        Do nothing for an action without ranges, such as an action on a directory.
        """
        if not action.ranges:
            return
        self.now = self.now._replace(number=self.now.number + 1, path=action.path, done_bytes=self._end_bytes)
        self._end_bytes += sum(part.length for part in action.ranges)
        self._report(self.now)

    def add(self, length: int) -> None:
        """Add `length` bytes to those of the present file, up to its planned bytes, and call `report` in any case."""
        self.now = self.now._replace(done_bytes=min(self.now.done_bytes + length, self._end_bytes))
        self._report(self.now)
