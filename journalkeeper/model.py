# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words that the rooms of the house speak to each other in.

The one rule: everything here is frozen, and nothing here does anything. Bytes are
`_bytes`, wall-clock times are microseconds since the epoch, `_us`, intervals too.
NamedTuple and not dataclass, whose `inspect` takes 5 of 10 ms to import (measured); nor are
annotations strings here: NamedTuple compiles each, 1.3 of 3.5 ms.
"""

from enum import StrEnum
from typing import NamedTuple

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

MAX_EXTENT_BYTES = 128 * MIB
"""The longest extent btrfs makes (BTRFS_MAX_EXTENT_SIZE, fs/btrfs/fs.h)."""

MAX_COMPRESSED_EXTENT_BYTES = 128 * KIB
"""The longest compressed extent (BTRFS_MAX_UNCOMPRESSED, fs/btrfs/compression.h)."""

MAX_FILE_BYTES = 64 * GIB
"""Larger ones are no journal files: journald's end at 4 GiB, not compact ones at SystemMaxFileSize=."""


class Kind(StrEnum):
    """What a file's name says it is."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    UNCLEAN = "unclean"


class State(StrEnum):
    """The state byte in the header."""

    OFFLINE = "offline"
    ONLINE = "online"
    ARCHIVED = "archived"
    UNKNOWN = "unknown"


class Verb(StrEnum):
    """What can be done."""

    DEFRAGMENT = "defragment"
    COMPRESS = "compress"
    REWRITE = "rewrite"
    SET_NOCOW = "set-nocow"
    ROTATE = "rotate"


class Result(StrEnum):
    """How it ended."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


class Reason(StrEnum):
    """Why something is done or not: short fixed words, listed in journalkeeper(1)."""

    # why it is done
    FRAGMENTED = "fragmented"
    UNCOMPRESSED = "uncompressed"
    PINNED = "pinned"
    NOCOW_ARCHIVE = "nocow-archive"
    NO_REDUNDANCY = "no-redundancy"
    CONFIGURED = "configured"
    BORN_DATACOW = "born-datacow"
    CHEAPER = "cheaper"
    # why it is not
    IDEAL = "ideal"
    RECORDED = "recorded"
    NO_GAIN = "no-gain"
    WINDOW_CLOSED = "window-closed"
    IN_USE = "in-use"
    SHARED = "shared"
    SETTLING = "settling"
    BUDGET = "budget"
    PRESSURE = "pressure"
    FREE_SPACE = "free-space"
    NOT_BTRFS = "not-btrfs"
    NOT_JOURNAL = "not-journal"
    NOT_REGULAR = "not-regular"
    HARD_LINKED = "hard-linked"
    SWAPFILE = "swapfile"
    BAD_HEADER = "bad-header"
    UNREADABLE = "unreadable"
    FOREIGN_OWNER = "foreign-owner"
    VANISHED = "vanished"
    CHANGED = "changed"
    NOT_ASKED = "not-asked"
    READ_ONLY = "read-only"
    INTERRUPTED = "interrupted"
    IO_ERROR = "io-error"
    MISMATCH = "mismatch"
    REDUNDANT = "redundant"
    COMPRESSION = "compression"
    NOT_TAKEN = "not-taken"
    ROTATION = "rotation"
    RETENTION = "retention"
    NO_JOURNALD = "no-journald"
    INTERNAL_ERROR = "internal-error"


class Extents(NamedTuple):
    """What FIEMAP tells of one file: counts and bytes.

    `total` is their number, as `filefrag -v` lists rows; the bytes are lengths in the file, so
    compressed ones count uncompressed. `per_mib[i]` is the number of extents that
    begin in the i-th MiB of the file; empty unless it was asked for.
    """

    total: int = 0
    data_bytes: int = 0
    unwritten_bytes: int = 0
    encoded_bytes: int = 0
    shared_bytes: int = 0
    per_mib: tuple[int, ...] = ()


class Header(NamedTuple):
    """The part of a journal file's header that we use (systemd, journal-def.h)."""

    state: State
    file_id: str
    machine_id: str
    seqnum_id: str
    entries: int
    head_seqnum: int
    tail_seqnum: int
    head_time_us: int
    tail_time_us: int


class JournalFile(NamedTuple):
    """One journal file as seen at one moment.

    `owner` is "system", "user:UID" or "remote"; `instance` the name of the directory
    (machine id, machine id "." namespace, or "remote") that one journald writes.
    `problem` is the Reason for which the file cannot be judged, with `problem_detail`
    in words; the numbers that were not learned are then 0.
    """

    path: str
    device: int
    inode: int
    kind: Kind
    owner: str
    instance: str
    state: State
    size_bytes: int
    allocated_bytes: int
    disk_bytes: int | None
    extents: Extents
    nocow: bool
    entries: int
    head_time_us: int
    tail_time_us: int
    links: int
    uid: int
    mtime_ns: int
    ctime_ns: int
    problem: Reason | None = None
    problem_detail: str = ""

    @property
    def compressed(self) -> bool:
        """Whether at least half of the data is in compressed extents."""
        return self.extents.encoded_bytes * 2 >= self.extents.data_bytes > 0

    @property
    def ideal_extents(self) -> int:
        """The number of extents that a whole file of this much data and this form has."""
        return ideal_extents(self.extents.data_bytes, compressed=self.compressed)


def ideal_extents(data_bytes: int, *, compressed: bool) -> int:
    """How many extents btrfs needs for `data_bytes`: of 128 KiB each compressed, of 128 MiB plain; holes need none."""
    longest = MAX_COMPRESSED_EXTENT_BYTES if compressed else MAX_EXTENT_BYTES
    return -(-data_bytes // longest)


class Volume(NamedTuple):
    """The btrfs that a directory is on.

    `device` is st_dev, which the kernel deals out anew at each mount; `uuid` and
    `subvolume` (tree id) name the same thing for good. `data_profile` is mkfs.btrfs's
    word; `redundant` says whether it keeps copies that a checksum can choose between.
    `free_bytes` is free within allocated data chunks, `unallocated_bytes` not yet in
    any chunk, raw. `options` are mount(8)'s words. `maintenance` is what keeps the whole
    volume busy, "balance" or "scrub", "" nothing.
    """

    device: int
    uuid: str
    subvolume: int
    data_profile: str
    redundant: bool
    free_bytes: int
    unallocated_bytes: int
    metadata_free_bytes: int
    own_subvolume: bool
    options: tuple[str, ...]
    maintenance: str = ""


class Instance(NamedTuple):
    """One journald and its directory, with the settings it runs by.

    `name` is the directory's name, `namespace` "" for the main instance.
    `storage` is journald.conf(5)'s word; a limit of None means journald's default.
    `online_since_us` is when its files became ONLINE at the earliest, None where nobody
    saw it; `slowest_piece_us` the longest that one piece of our work took there.
    With `available_bytes` (statvfs) the limits are journald's effective ones. `max_retention_us`
    0 means for ever, `max_file_us` 0 that age alone ends no file. `compressed` is the directory's
    own attribute, `rotatable` whether its journald can be asked to rotate.
    """

    name: str
    directory: str
    device: int
    namespace: str
    nocow: bool
    storage: str
    sync_interval_us: int
    system_max_use_bytes: int | None
    system_keep_free_bytes: int | None
    system_max_file_size_bytes: int | None
    system_max_files: int
    online_since_us: int | None = None
    slowest_piece_us: int = 0
    max_retention_us: int = 0
    max_file_us: int = 0
    available_bytes: int | None = None
    inode: int = 0
    compressed: bool = False
    rotatable: bool = False


class Past(NamedTuple):
    """The last rewrite of a file, as recorded: what it looked like when it was done."""

    verb: Verb
    when_us: int
    size_bytes: int
    mtime_ns: int
    extents: int


class Refusal(NamedTuple):
    """A try that failed or was refused, and what the file looked like: `reason` and `detail` are the outcome's."""

    when_us: int
    size_bytes: int
    mtime_ns: int
    reason: Reason
    detail: str


class Host(NamedTuple):
    """One look at everything, at `now_us`.

    `past` has the last rewrite of each file by (device, inode), `refused` the last try that
    came to nothing; `written_bytes` is what was written in the budget's present day.
    `pressure_percent` is for how much of the last 10 s some task waited for I/O, None where
    the kernel does not say. `rotations` is how many were asked for in the last 24 hours.
    """

    now_us: int
    files: tuple[JournalFile, ...]
    instances: tuple[Instance, ...]
    volumes: tuple[Volume, ...]
    past: dict[tuple[int, int], Past]
    written_bytes: int
    refused: dict[tuple[int, int], Refusal] = {}  # noqa: RUF012 - never changed, like everything here
    pressure_percent: float | None = None
    rotations: int = 0


class Request(NamedTuple):
    """What was asked for: the daemon asks for everything, the command line for what its flags say.

    `paths` () means all files. `now` waits for no window or settling. `upkeep` asks for orders, too.
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
    """Whether work on one instance's active files would be in journald's way."""

    instance: str
    open: bool
    closes_at_us: int | None
    reason: str


class Range(NamedTuple):
    """A part of a file, in bytes, and the extents in it."""

    offset: int
    length: int
    extents: int


class Action(NamedTuple):
    """What will be done to which file and why. `file` is what the plan saw.

    No piece of the work is begun that would not be over by `not_after_us`; None: no limit.
    """

    path: str
    action: Verb
    reason: Reason
    ranges: tuple[Range, ...]
    bytes_to_write: int
    extents_before: int
    extents_expected: int
    compress: str
    file: JournalFile
    not_after_us: int | None = None


class Order(NamedTuple):
    """What a whole directory or its journald will be made to do, and why; done before any Action.

    `path` is the directory, or the active `file` that is rotated away; `detail` goes into the outcome.
    """

    path: str
    action: Verb
    reason: Reason
    instance: Instance
    file: JournalFile | None = None
    bytes_to_write: int = 0
    extents_before: int = 0
    extents_expected: int = 0
    detail: str = ""


class Skip(NamedTuple):
    """A file, or directory, that is left alone and why.

    `until_us` is when that ends by itself; None where only an event can end it.
    """

    path: str
    reason: Reason
    detail: str
    until_us: int | None = None


class Plan(NamedTuple):
    """An action, an order or a reason for every file of a Host, in the order they will be done: orders first.

    A directory has an order, or a reason where there is something to say. `notices` are about the plan itself.
    """

    windows: tuple[Window, ...]
    actions: tuple[Action, ...]
    skipped: tuple[Skip, ...]
    orders: tuple[Order, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def wake_at_us(self) -> int | None:
        """When a new plan can differ from this one without anything having happened."""
        return min((skip.until_us for skip in self.skipped if skip.until_us is not None), default=None)


class Outcome(NamedTuple):
    """What became of one action.

    `bytes_written` is data handed to the filesystem, before compression.
    `detail` says a failure in words.
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
