# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests, decisions and outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from journalkeeper.model.files import Instance, JournalFile, Volume
from journalkeeper.model.schema import Count, Hidden, Moment, PastMoment, Seconds, Sometimes
from journalkeeper.model.words import Kind, Reason, Result, Verb


class Past(NamedTuple):
    """The last rewrite of a file: the file's state then, the expected result, and the compression.

    `compress` is a word of --compress=, and `kind` the kind of the file; None if it was not recorded.
    """

    verb: Verb
    when_us: PastMoment
    size_bytes: Count
    mtime_ns: int
    extents: Count
    extents_before: Count = 0
    extents_expected: Count = 0
    bytes_written: Count = 0
    compress: str | None = None
    kind: Kind | None = None


class Refusal(NamedTuple):
    """An action that failed or was refused `tries` times in a row, and the file's state at the last try.

    `reason` and `detail` are those of the last outcome.
    """

    when_us: int
    size_bytes: int
    mtime_ns: int
    reason: Reason
    detail: str
    tries: int = 1


class Host(NamedTuple):
    """The state of all journals, volumes and journalds at `now_us`.

    `past` has the last rewrite of each file by (device, inode), `refused` the last failed try. `written_bytes` is the
    number of bytes written in the budget's present day. `rotations` is the number of rotations requested in the last 24
    hours. `made_nocow` are the directories on which +C was set in the last week, as recorded.
    `began_us` is the start of the service, None for a command. `waiting` has the reason of each waiting file, by path.
    With `has_levels` the kernel compresses in place with a level. `slowest_piece_us` is the longest
    time that one piece of our work took recently.
    """

    now_us: int
    files: tuple[JournalFile, ...]
    instances: tuple[Instance, ...]
    volumes: tuple[Volume, ...]
    past: dict[tuple[int, int], Past]
    written_bytes: int
    refused: dict[tuple[int, int], Refusal] = {}  # noqa: RUF012 - never changed, like everything here
    rotations: int = 0
    made_nocow: frozenset[str] = frozenset()
    began_us: int | None = None
    has_levels: bool = True
    waiting: dict[str, str] = {}  # noqa: RUF012 - as above
    on_battery: bool = False
    slowest_piece_us: int = 0


class Request(NamedTuple):
    """The work that is requested: the options of `defrag`, which are also those of the bus.

    `paths` () means all files. `active` and `archived` alike mean both. `compress` None and `allow_unshare` False leave
    the decision to the configuration. `before_shutdown`: the host will shut down. `upkeep` adds actions on directories
    and rotations to a request for all active files. `asked`: a user asks for the work, which never rests.
    """

    paths: tuple[str, ...] = ()
    active: bool = False
    archived: bool = False
    now: bool = False
    compress: str | None = None
    allow_unshare: bool = False
    before_shutdown: bool = False
    upkeep: bool = False
    asked: bool = False

    @property
    def takes_active(self) -> bool:
        """True if active files are requested: with `active` or `before_shutdown`, and always without `archived`."""
        return self.active or self.before_shutdown or not self.archived

    @property
    def takes_archived(self) -> bool:
        """True if archived files are requested: with `archived`, or with neither `active` nor `before_shutdown`."""
        return self.archived or not (self.active or self.before_shutdown)

    @property
    def hurries(self) -> bool:
        """True with `now` or `before_shutdown`: the request waits for no window, settling or retry delay.

        Such a request also ignores the daily budgets and the load of the volume.
        """
        return self.now or self.before_shutdown

    @property
    def takes_directories(self) -> bool:
        """True if actions on directories and rotations are requested.

        They are with `upkeep`, if the request takes active files (`takes_active`) and has no `paths`.
        """
        return self.upkeep and self.takes_active and not self.paths


class Window(NamedTuple):
    """Whether work on one instance's active files would disturb journald, and when that changes by itself."""

    instance: str
    open: bool
    closes_at_us: Moment | None
    reason: str
    opens_at_us: Moment | None = None


class Range(NamedTuple):
    """A part of a file, in bytes, and the extents in it."""

    offset: Count
    length: Count
    extents: Count


def join_ranges(parts: Iterable[Range], gap_bytes: int = 1) -> tuple[Range, ...]:
    """Join `parts` that are less than `gap_bytes` apart, and add their extents. They must be sorted and disjoint."""
    joined: list[Range] = []
    for one in parts:
        last = joined[-1] if joined else None
        if last is not None and one.offset - (last.offset + last.length) < gap_bytes:
            joined[-1] = Range(last.offset, one.offset + one.length - last.offset, last.extents + one.extents)
        else:
            joined.append(one)
    return tuple(joined)


class Rotation(NamedTuple):
    """A rotation by the journald that writes `directory`, and the active file that needs it.

    A failed rotation is remembered by `device` and `inode`, those of the directory. `namespace` is the journald's.
    """

    directory: str
    device: int
    inode: int
    namespace: str
    file: JournalFile

    @property
    def instance(self) -> str:
        """The instance of the active file."""
        return self.file.instance


NOWHERE: Final = JournalFile("", 0, 0, Kind.ARCHIVED, "", "")
"""The target of an action in an answer of the service: such an action is only shown."""


class Action(NamedTuple):
    """A planned action and its reason; `target` is the file, the directory or the rotation as the plan saw it.

    `path` is the file, the directory, or the active file that is rotated away. `unshared_bytes` is the number of bytes
    that the disk will store twice until the snapshots of the file are deleted. `detail` is copied to the outcome.
    `read_seconds_saved` is for a cold reader at 150 requests a second; policy.plan fills in both savings.
    """

    path: str
    action: Verb
    reason: Reason
    target: Hidden[JournalFile | Instance | Rotation] = NOWHERE
    ranges: tuple[Range, ...] = ()
    bytes_to_write: Count = 0
    extents_before: Count = 0
    extents_expected: Count = 0
    compress: Hidden[str] = "no"
    unshared_bytes: Count = 0
    detail: Hidden[str] = ""
    disk_bytes_saved: Count = 0
    read_seconds_saved: Seconds = 0.0

    @property
    def is_on_active_file(self) -> bool:
        """True if the action is on an active file. False for an archive, for a directory, and for a rotation."""
        return isinstance(self.target, JournalFile) and self.target.kind is Kind.ACTIVE

    def skip(self, reason: Reason, detail: str, until_us: int | None = None, *, puts_off: bool = False) -> Skip:
        """Return the decision not to do this action: the reason, and only this action's path, instance and extents."""
        instance = self.target.name if isinstance(self.target, Instance) else self.target.instance
        left = Skip(self.path, reason, detail, until_us, puts_off=puts_off)
        return left._replace(instance=instance, extents=self.extents_before)


class Skip(NamedTuple):
    """A file or directory that is left alone, and the reason."""

    path: str
    reason: Reason
    detail: str
    until_us: Moment | None = None
    """The time when the reason ends by itself; null if only an event can end it."""
    now: bool = False
    """Whether --now would change the decision."""
    puts_off: bool = False
    """Whether an action would pay and is only delayed."""
    instance: str = ""
    """The name of the directory that one journald writes; empty if it is unknown."""
    extents: Count = 0
    """The file's extents; 0 if they are unknown."""


class Plan(NamedTuple):
    """An action or a reason for every file of a Host; actions are in the order in which they are done, directories
    first.

    A directory has an action, or a reason if one is worth a line. `notices` are about the plan itself. The journalds in
    `syncs` are asked for a sync first, so that the next plan knows when they flush.
    """

    window: dict[str, Window]
    """The flush windows, by the name of the instance."""
    actions: tuple[Action, ...]
    skipped: tuple[Skip, ...]
    notices: Hidden[tuple[str, ...]] = ()
    syncs: Hidden[tuple[Instance, ...]] = ()
    omitted: Sometimes[Count] = None
    """Rows that the service left out, because its answer would be too long."""

    def end_after(self, begun: int) -> Plan:
        """Return the plan of an ended run: put-off skips (NOT_BEGUN) replace all but the first `begun` actions."""
        ended = "the run ended before this action"
        left = (one.skip(Reason.NOT_BEGUN, ended, puts_off=True) for one in self.actions[begun:])
        return self._replace(actions=self.actions[:begun], skipped=(*self.skipped, *left))

    @property
    def wake_at_us(self) -> int | None:
        """The earliest `until_us` (CLOCK_REALTIME) of the skips, None if every one waits for an event."""
        return min((skip.until_us for skip in self.skipped if skip.until_us is not None), default=None)


class Outcome(NamedTuple):
    """The result of one action."""

    path: str
    action: Verb
    result: Result
    reason: Reason
    extents_before: Count
    extents_after: Count
    disk_bytes_before: Count | None
    """null if it was not measured, which requires CAP_SYS_ADMIN or the measure socket."""
    disk_bytes_after: Count | None
    bytes_written: Count
    """The bytes given to the filesystem, before compression."""
    duration_s: Seconds
    detail: str = ""
    """Why it failed or was not done, in words and numbers."""
    unshared_bytes: Count = 0
    """The bytes that the disk now stores twice: the planned number, or less after an interrupted run."""

    @property
    def reclaimed_bytes(self) -> int:
        """The bytes on the disk that the action freed, also if it failed.

        0 if they are unknown, if the file grew, or if a snapshot keeps some of the old data.
        """
        before, after = self.disk_bytes_before, self.disk_bytes_after
        return 0 if before is None or after is None or self.unshared_bytes else max(0, before - after)
