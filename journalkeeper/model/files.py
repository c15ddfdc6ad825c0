# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is seen: files, volumes and instances at one moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from journalkeeper.model.words import GIB, KIB, MIB, Kind, Reason, State

MAX_EXTENT_BYTES = 128 * MIB
"""The longest extent btrfs makes (BTRFS_MAX_EXTENT_SIZE, fs/btrfs/fs.h)."""

MAX_COMPRESSED_EXTENT_BYTES = 128 * KIB
"""The longest compressed extent (BTRFS_MAX_UNCOMPRESSED, fs/btrfs/compression.h)."""

MAX_FILE_BYTES = 64 * GIB
"""Larger ones are no journal files: journald's end at 4 GiB, not compact ones at SystemMaxFileSize=."""


class Extents(NamedTuple):
    """What FIEMAP tells of one file: counts and bytes.

    `total` is their number as filefrag(8) counts, physically contiguous neighbours once, written or
    not; the bytes are lengths in the file, so compressed ones count uncompressed. `per_mib[i]` is the
    number of extents that begin in the i-th MiB of the file; empty unless it was asked for.
    """

    total: int = 0
    data_bytes: int = 0
    unwritten_bytes: int = 0
    encoded_bytes: int = 0
    shared_bytes: int = 0
    per_mib: tuple[int, ...] = ()


class Stretch(NamedTuple):
    """A part of a file, in bytes: the extents that begin in it, and what it holds; the kinds add up to its length.

    `shared_bytes` are plain and shared; what is compressed and shared is `both_bytes`.
    """

    offset: int
    length: int
    extents: int
    data_bytes: int = 0
    compressed_bytes: int = 0
    shared_bytes: int = 0
    both_bytes: int = 0
    unwritten_bytes: int = 0
    hole_bytes: int = 0


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
    `mtime_noted`: a run that was killed had moved the mtime; `mtime_ns` is what it was, and the next run puts it back.
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
    mtime_noted: bool = False

    @property
    def directory(self) -> str:
        """The journal directory that it is in."""
        return self.path.rpartition("/")[0]

    @property
    def compressed(self) -> bool:
        """Whether at least half of the data is in compressed extents."""
        return self.extents.encoded_bytes * 2 >= self.extents.data_bytes > 0

    @property
    def ideal_extents(self) -> int:
        """The number of extents that a whole file of this much data and this form has; never more than are there."""
        return min(self.extents.total, ideal_extents(self.extents.data_bytes, compressed=self.compressed))


def ideal_extents(data_bytes: int, *, compressed: bool) -> int:
    """How many extents btrfs needs for `data_bytes`: of 128 KiB each compressed, of 128 MiB plain; holes need none."""
    longest = MAX_COMPRESSED_EXTENT_BYTES if compressed else MAX_EXTENT_BYTES
    return -(-data_bytes // longest)


class Sums(NamedTuple):
    """The numbers of some files; `unmeasured` is the number of files whose disk bytes are not known."""

    files: int = 0
    extents: int = 0
    ideal_extents: int = 0
    size_bytes: int = 0
    allocated_bytes: int = 0
    shared_bytes: int = 0
    disk_bytes: int = 0
    unmeasured: int = 0

    @classmethod
    def of(cls, files: Iterable[JournalFile]) -> Sums:
        """Return the numbers of these files."""
        every = tuple(files)
        return cls(
            files=len(every),
            extents=sum(file.extents.total for file in every),
            ideal_extents=sum(file.ideal_extents for file in every),
            size_bytes=sum(file.size_bytes for file in every),
            allocated_bytes=sum(file.allocated_bytes for file in every),
            shared_bytes=sum(file.extents.shared_bytes for file in every),
            disk_bytes=sum(file.disk_bytes or 0 for file in every),
            unmeasured=sum(file.disk_bytes is None for file in every),
        )

    @property
    def known_disk_bytes(self) -> int | None:
        """What the files occupy on the disk, if every file's is known."""
        return self.disk_bytes if self.files and not self.unmeasured else None


class Volume(NamedTuple):
    """The btrfs that a directory is on.

    `device` is st_dev, which the kernel deals out anew at each mount; `uuid` and
    `subvolume` (tree id) name the same thing for good. `data_profile` is mkfs.btrfs's
    word; `redundant` says whether it keeps copies that a checksum can choose between.
    `free_bytes` is free within allocated data chunks, `unallocated_bytes` not yet in
    any chunk, raw. `options` are mount(8)'s words. `maintenance` is what keeps the whole
    volume busy, "balance" or "scrub", "" nothing. `busy_percent` is the share of a moment right before
    the plan in which its disks worked for others, None where nobody asked or can tell.
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


class Instance(NamedTuple):
    """One journald and its directory, with the settings it runs by.

    `name` is the directory's name, `namespace` "" for the main instance.
    `storage` is journald.conf(5)'s word; a limit of None means journald's default.
    `online_since_us` is when its files became ONLINE at the earliest, None where nobody
    saw it; `slowest_piece_us` the longest that one piece of our work took there.
    With `available_bytes` (statvfs) the limits are journald's effective ones. `max_retention_us`
    0 means for ever, `max_file_us` 0 that age alone ends no file. `compressed` is the directory's
    own attribute, `rotatable` whether its journald can be asked to rotate. `sync_tells`: nothing but a sync that
    it is asked for tells when it flushes next.
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
    sync_tells: bool = False
