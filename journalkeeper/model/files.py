# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files, volumes and instances as they were at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from journalkeeper.model.schema import Count, Hidden, Key, Moment, Span
from journalkeeper.model.words import KIB, MIB, Kind, Reason, State

MAX_EXTENT_BYTES = 128 * MIB
"""The longest extent btrfs makes (BTRFS_MAX_EXTENT_SIZE, fs/btrfs/fs.h)."""

MAX_COMPRESSED_EXTENT_BYTES = 128 * KIB
"""The longest compressed extent (BTRFS_MAX_UNCOMPRESSED, fs/btrfs/compression.h)."""

COPIES = {"dup": 2, "raid1": 2, "raid10": 2, "raid1c3": 3, "raid1c4": 4, "raid5": 2, "raid6": 3}
"""The largest number of device bytes for each byte of data (mkfs.btrfs(8), PROFILES), by profile with a second copy or
parity. There btrfs needs a checksum to find the correct copy: also the two copies of dup can differ unnoticed.
"""


class Extents(NamedTuple):
    """The extents of one file by FIEMAP: counts and bytes.

    `total` is the number as filefrag(8) counts it: physically contiguous neighbours are one extent, written or not. The
    bytes are lengths in the file, so compressed data counts uncompressed. `per_mib[i]` is the number of extents that
    begin in the i-th MiB of the file; it is empty unless it was requested.
    `left_per_mib[i]` is the number of those that a rewrite leaves: each is unwritten or follows an unwritten one.
    `shared_per_mib[i]` are the shared bytes in that MiB.
    """

    total: int = 0
    data_bytes: int = 0
    unwritten_bytes: int = 0
    encoded_bytes: int = 0
    shared_bytes: int = 0
    per_mib: tuple[int, ...] = ()
    left_per_mib: tuple[int, ...] = ()
    shared_per_mib: tuple[int, ...] = ()


class Stretch(NamedTuple):
    """A part of a file, in bytes: the number of extents that begin in it, and bytes by kind, which add up to its
    length.

    `shared_bytes` are plain and shared; bytes that are both compressed and shared are `both_bytes`.
    """

    offset: Count
    length: Count
    extents: Count
    """Extents that begin here."""
    data_bytes: Count = 0
    compressed_bytes: Count = 0
    shared_bytes: Count = 0
    """Plain and shared."""
    both_bytes: Count = 0
    """Compressed and shared."""
    unwritten_bytes: Count = 0
    hole_bytes: Count = 0


class Header(NamedTuple):
    """The fields of a journal file's header that a JournalFile has, too (systemd, journal-def.h)."""

    state: State = State.UNKNOWN
    entries: int = 0
    head_time_us: int = 0
    tail_time_us: int = 0
    full_bytes: int = 0


class JournalFile(NamedTuple):
    """A journal file as it was at one moment.

    `instance` is a machine id, machine id "." namespace, or "remote". `problem` is the Reason why the file cannot be
    judged, with `problem_detail` in words; unknown numbers are then 0.
    """

    path: Annotated[str, Key(constant=True)]
    """The file's path."""
    device: Count
    """st_dev of stat(2)."""
    inode: Count
    """st_ino of stat(2)."""
    kind: Kind
    """active, archived, unclean, or orphaned: named as an active file, but no program writes it."""
    owner: Annotated[str, Field(pattern="^(system|remote|user:[0-9]+)$")]
    """system, user:UID or remote."""
    instance: str
    """The name of the directory that one journald writes."""
    state: State = State.UNKNOWN
    """offline, online, archived or unknown."""
    size_bytes: Annotated[Count, Key(metric="Size of all journal files in bytes.")] = 0
    """Its length in bytes."""
    allocated_bytes: Annotated[Count, Key(bus="AllocatedSize", metric="Bytes allocated to all journal files.")] = 0
    """The blocks of stat(2), in bytes."""
    disk_bytes: Annotated[Count | None, Key(bus=None, metric="Bytes that all journal files occupy on disk.")] = None
    """Disk usage as in compsize(8); null unless root asks."""
    extents: Hidden[Extents] = Extents()
    nocow: Annotated[bool, Key(bus="NoCOW")] = False
    """Whether it has the attribute C of chattr(1)."""
    entries: Annotated[Count, Key(private=True)] = 0
    """The number of its entries."""
    head_time_us: Annotated[Moment, Key(private=True)] = 0
    """The time of its first entry."""
    tail_time_us: Annotated[Moment, Key(private=True)] = 0
    """The time of its last entry."""
    full_bytes: Hidden[int] = 0
    """The size at which journald ends the file because its hash table is full, if it grows on as until now; 0: unknown.
    """
    links: Hidden[int] = 0
    uid: Hidden[int] = 0
    mtime_ns: Hidden[int] = 0
    ctime_ns: Hidden[int] = 0
    problem: Reason | None = None
    """The reason why it cannot be judged, one of the words of journalkeeper-reasons(7), or empty."""
    problem_detail: Hidden[str] = ""
    refuses_compression: Hidden[bool] = False
    """Whether the admin set chattr +m or compression=none on the file or on its directory."""
    fixed: Hidden[bool] = False
    """Whether the file is immutable or append-only."""

    @property
    def extent_count(self) -> Annotated[Count, Key("extents", metric="Extents of all journal files.")]:
        """The number of its extents, as filefrag(8) counts. That of an active file can be an earlier count."""
        return self.extents.total

    @property
    def ideal_extents(self) -> Annotated[Count, Key(metric="Extents that all journal files need.")]:
        """The number of extents that the file's data needs, at most the present number.

        An extent has at most 128 MiB, or 128 KiB if the file is compressed. Holes and unwritten space need none.
        """
        return min(self.extents.total, count_ideal_extents(self.extents.data_bytes, compressed=self.compressed))

    @property
    def shared_bytes(self) -> Annotated[Count, Key(bus="SharedSize", metric="Bytes that other files share, too.")]:
        """The bytes that it shares with other files, such as those of snapshots, before compression."""
        return self.extents.shared_bytes

    @property
    def compressed(self) -> Annotated[bool, Key()]:
        """True if at least half of the file's data is in compressed extents. False if it has no data."""
        return self.extents.encoded_bytes * 2 >= self.extents.data_bytes > 0

    @property
    def directory(self) -> str:
        """The path of the file without its name: the journal directory that contains the file.

        It is the directory above for a row about a directory itself, and "" for a file in the root directory.
        """
        return self.path.rpartition("/")[0]


def count_ideal_extents(data_bytes: int, *, compressed: bool) -> int:
    """Return the number of extents that btrfs needs for `data_bytes`: 128 KiB each if `compressed`, else 128 MiB."""
    longest = MAX_COMPRESSED_EXTENT_BYTES if compressed else MAX_EXTENT_BYTES
    return -(-data_bytes // longest)


class Sums(NamedTuple):
    """Sums over some files; `disk_bytes` is None unless the disk bytes of each file are known."""

    files: int
    extents: int
    ideal_extents: int
    size_bytes: int
    allocated_bytes: int
    disk_bytes: int | None

    @classmethod
    def of(cls, files: Sequence[JournalFile]) -> Sums:
        """Return the number of `files`, and the sums of extents, ideal extents, sizes, allocated bytes and disk bytes.

        The disk bytes are None if those of a file are unknown. Without files all sums are 0.
        """
        measured = [file.disk_bytes for file in files if file.disk_bytes is not None]
        return cls(
            files=len(files),
            extents=sum(file.extents.total for file in files),
            ideal_extents=sum(file.ideal_extents for file in files),
            size_bytes=sum(file.size_bytes for file in files),
            allocated_bytes=sum(file.allocated_bytes for file in files),
            disk_bytes=sum(measured) if len(measured) == len(files) else None,
        )


class Volume(NamedTuple):
    """The btrfs of a directory.

    `device` is st_dev, which changes at each mount; `uuid` and `subvolume` (tree id) are permanent. `data_profile` is a
    word of mkfs.btrfs, and the volume is `redundant` if some data have a profile in COPIES. `own_subvolume` is whether
    the directory, or the one that contains it, is the top of a subvolume.
    `free_bytes` is free within allocated data chunks, `unallocated_bytes` not yet in any chunk, raw. `options` are
    words of mount(8). `maintenance` names a running operation on the whole volume, such as "balance" or "scrub", or "".
    `busy_percent` is the share of a moment right before the plan in which its disks worked for other programs, None if
    it was not measured or cannot be. `snapshots` is the number of snapshots of the subvolume, None if btrfs could not
    be asked; `snapshot_tool` is then the program that is configured to take some, or "". `quota_bytes` is the number of
    bytes that the quota group of the subvolume leaves, None without a limit.
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
    busy_percent: int | None = None
    read_only_subvolume: bool = False
    snapshots: int | None = None
    snapshot_tool: str = ""
    mixed: bool = False
    """Whether its chunks hold both data and metadata."""
    quota_bytes: int | None = None


class Instance(NamedTuple):
    """One journald, its directory and its settings.

    `name` is the directory's name, `namespace` is "" for the main instance. `storage` is a word of journald.conf(5); a
    limit of None means journald's default. `online_since_us` is the earliest time at which its files became ONLINE,
    None if it was not observed. With `available_bytes` (statvfs) the limits are journald's effective ones.
    `max_retention_us` 0 means for ever; with `max_file_us` 0 age alone ends no file. `compressed` (chattr +c) and
    `refuses_compression` (+m) are the directory's own attributes, which exclude +C. `rotatable` is true if its journald
    accepts a request to rotate. With `sync_tells`, only a requested sync can show when journald flushes next.
    """

    name: Annotated[str, Key("instance")]
    directory: str
    device: Hidden[int]
    namespace: str
    nocow: bool
    storage: str
    sync_interval_us: Span
    system_max_use_bytes: Hidden[int | None]
    system_keep_free_bytes: Hidden[int | None]
    system_max_file_size_bytes: Hidden[int | None]
    system_max_files: Hidden[int]
    online_since_us: Hidden[int | None] = None
    max_retention_us: Hidden[int] = 0
    max_file_us: Hidden[int] = 0
    available_bytes: Hidden[int | None] = None
    inode: Hidden[int] = 0
    compressed: Hidden[bool] = False
    refuses_compression: Hidden[bool] = False
    rotatable: bool = False
    sync_tells: Hidden[bool] = False
