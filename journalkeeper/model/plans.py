# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is asked for, decided and done."""

from typing import NamedTuple

from journalkeeper.model.files import Instance, JournalFile
from journalkeeper.model.words import Kind, Reason, Result, Verb


class Past(NamedTuple):
    """The last rewrite of a file: what it looked like then, what had been expected of it, and how it was compressed.

    `compress` is in the words of --compress=, and `kind` what the file was; None where it was not recorded.
    """

    verb: Verb
    when_us: int
    size_bytes: int
    mtime_ns: int
    extents: int
    extents_before: int = 0
    extents_expected: int = 0
    bytes_written: int = 0
    compress: str | None = None
    kind: Kind | None = None


class Refusal(NamedTuple):
    """An action that failed or was refused `tries` times in a row, and what the file looked like at the last try.

    `reason` and `detail` are those of the last outcome.
    """

    when_us: int
    size_bytes: int
    mtime_ns: int
    reason: Reason
    detail: str
    tries: int = 1


class Request(NamedTuple):
    """What was asked for: the daemon asks for everything, the command line for what its flags say.

    `paths` () means all files. `now` waits for no window or settling. `upkeep` asks for directories' actions, too.
    `compress` and `allow_unshare` override the configuration where not None. `ending`: the host goes down next.
    """

    paths: tuple[str, ...] = ()
    active: bool = True
    archived: bool = True
    now: bool = False
    compress: str | None = None
    allow_unshare: bool | None = None
    upkeep: bool = False
    ending: bool = False


class Window(NamedTuple):
    """Whether work on one instance's active files would be in journald's way, and when that ends by itself."""

    instance: str
    open: bool
    closes_at_us: int | None
    reason: str
    opens_at_us: int | None = None


class Range(NamedTuple):
    """A part of a file, in bytes, and the extents in it."""

    offset: int
    length: int
    extents: int


class Rotation(NamedTuple):
    """An instance whose journald is to rotate, and the active file for which it shall."""

    instance: Instance
    file: JournalFile

    @property
    def directory(self) -> str:
        """The instance's; so are device and inode: what comes to nothing is remembered of it."""
        return self.instance.directory

    @property
    def device(self) -> int:
        """The directory's."""
        return self.instance.device

    @property
    def inode(self) -> int:
        """The directory's."""
        return self.instance.inode


class Action(NamedTuple):
    """What will be done and why, to a file, a directory or by a journald: `target` is what the plan saw of it.

    `path` is the file, the directory, or the active file that is rotated away.
    No piece of the work is begun that would not be over by `not_after_us`; None: no limit.
    `unshared_bytes` is what the disk will hold twice, until the snapshots that share the file are deleted.
    `detail` goes into the outcome of what was done.
    """

    path: str
    action: Verb
    reason: Reason
    target: JournalFile | Instance | Rotation
    ranges: tuple[Range, ...] = ()
    bytes_to_write: int = 0
    extents_before: int = 0
    extents_expected: int = 0
    compress: str = "no"
    not_after_us: int | None = None
    unshared_bytes: int = 0
    detail: str = ""

    @property
    def live(self) -> bool:
        """Whether data is moved in a file that journald writes."""
        return isinstance(self.target, JournalFile) and self.target.kind is Kind.ACTIVE


class Skip(NamedTuple):
    """A file, or directory, that is left alone and why; `now`: with --now it would not be.

    `until_us` is when that ends by itself; None where only an event can end it. `puts_off`: there is
    an action that pays, and it is only put off.
    """

    path: str
    reason: Reason
    detail: str
    until_us: int | None = None
    now: bool = False
    puts_off: bool = False


class Plan(NamedTuple):
    """An action or a reason for every file of a Host, actions in the order in which they are done: directories first.

    A directory has an action, or a reason where there is something to say. `notices` are about the plan itself.
    The journalds of `syncs` are asked for a sync before: the next plan knows when they flush.
    """

    windows: tuple[Window, ...]
    actions: tuple[Action, ...]
    skipped: tuple[Skip, ...]
    notices: tuple[str, ...] = ()
    syncs: tuple[Instance, ...] = ()

    @property
    def wake_at_us(self) -> int | None:
        """When a new plan can differ from this one without anything having happened."""
        return min((skip.until_us for skip in self.skipped if skip.until_us is not None), default=None)


class Outcome(NamedTuple):
    """What became of one action.

    `bytes_written` is data handed to the filesystem, before compression.
    `detail` says a failure in words. `unshared_bytes` is what the disk now holds twice, as planned and as far as
    the work went.
    """

    path: str
    action: Verb
    result: Result
    reason: Reason
    extents_before: int
    extents_after: int
    disk_bytes_before: int | None
    disk_bytes_after: int | None
    bytes_written: int
    duration_s: float
    detail: str = ""
    unshared_bytes: int = 0
