# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directives of journalkeeper.conf, each with its default, range and reason.

A directive is the annotation of its field. The string below the field is what it does, and the measurement or the
source of its default. File validation, `check-config`, journalkeeper.conf(5), the completions and the Ansible argument
specs are made from it. files.py finds and reads files; validation.py converts text to values.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal, NamedTuple, get_type_hints

from pydantic import BaseModel, ConfigDict

from journalkeeper.config.spec import Form, Spec
from journalkeeper.model import GIB, KIB, MIB
from journalkeeper.model.units import DAY_US, MINUTE_US, MS_US, SECOND_US


class Section(BaseModel):
    """A section with immutable values; each is in the unit that its field's name ends with."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WatchSection(Section):
    """[Watch]: the directories, and the time after which an archive no longer changes."""

    directories: Annotated[tuple[str, ...], Spec("Directories", Form.PATHS)] = ("/var/log/journal",)
    """Directories with journals: each contains machine-id directories, like /var/log/journal. May be given several
    times; the paths add up.

    journald writes there with Storage=persistent and nowhere else (systemd-journald.service(8)).
    """
    settle_us: Annotated[int, Spec("SettleSec", Form.SPAN, high=DAY_US)] = 60 * SECOND_US
    """How long an archived file must have been left unchanged before it is rewritten.

    journald renames an archive first and syncs it afterwards in a thread; the longest that it was measured to be busy
    with one file, 32 MiB in 5,992 extents at 150 IOPS, is 25 s.
    """
    nocow_settle_us: Annotated[int, Spec("NocowSettleSec", Form.SPAN, high=DAY_US)] = 10 * MINUTE_US
    """How long an archive that is still NOCOW must have been left unchanged. At least SettleSec.

    journald 250 and later replaces a NOCOW archive by its own copy at the end: 128 MiB, the largest file by default,
    in pieces of 4 KiB at 150 IOPS take 3 min 40 s. Doubled and rounded up.
    """


class Nocow(Section):
    """[Nocow]: whether journald's new files are overwritten in place."""

    nocow: Annotated[Literal["auto", "yes", "no"], Spec("Nocow", Form.WORD, words=("auto", "yes", "no"))] = "auto"
    """Whether to set the C attribute (chattr +C) on journal directories; new files inherit it. yes: always. no:
    attributes stay as they are. auto: set it unless one of two reasons forbids it. First, the volume's data profile
    stores copies (raid1, raid10, raid5, raid6, raid1c3, raid1c4): NOCOW data has no checksum that shows which copy is
    good. Second, a snapshot of the journal's subvolume exists: each makes btrfs copy NOCOW data on write once more.
    btrfs is asked for snapshots. Without that right (CAP_SYS_ADMIN or journalkeeper-measure.socket), a configuration of
    snapper, timeshift or btrbk for the subvolume counts, and files that share data, except those named
    user-UID.journal, because their user can reflink them.

    Four boots at 150 IOPS: 1.8 s each with a NOCOW active file of 2 extents; 9 to 24 s with a datacow one. Six boots
    with a snapshot before each: 3.5 to 20.1 s with NOCOW, 412 to 2,898 extents.
    """
    rotate_to_apply: Annotated[bool, Spec("RotateToApply", Form.BOOL)] = True
    """Whether to rotate once, so that a NOCOW file replaces an active file that is older than the directory's C
    attribute.

    At the first boot systemd-journal-flush.service runs before systemd-tmpfiles-setup.service sets the attribute: the
    first system.journal stays datacow until a rotation (measured with 252 and 257).
    """


class Defrag(Section):
    """[Defrag]: which files are rewritten, how, and which gain is worth it."""

    compress: Annotated[str, Spec("Compress", Form.COMPRESSION)] = "zstd"
    """The compression of archived files when they are rewritten. Active files are never compressed. The level needs
    Linux 6.15 and a file that is not NOCOW; otherwise it is that of the mount option compress=, or the default.

    An archive of 45 MiB occupied 89 MiB: 45 MiB after a plain rewrite, 10 MiB with zstd. A cold read of it at 150 IOPS
    took 65.5 s before, 3.2 s with zstd.
    """
    archived: Annotated[bool, Spec("Archived", Form.BOOL)] = True
    """Whether archived files are rewritten, once each.

    journald has not defragmented datacow archives since version 250.
    """
    active: Annotated[bool, Spec("Active", Form.BOOL)] = True
    """Whether fragmented ranges of the files that journald is writing are rewritten.

    A boot at 150 IOPS took 41.5 s with an active file of 5,992 extents, 1.8 s with 40.
    """
    allow_unshare: Annotated[
        Literal["auto", "yes", "no"], Spec("AllowUnshare", Form.WORD, words=("auto", "yes", "no"))
    ] = "auto"
    """Whether files that share data with a snapshot or a reflink are rewritten, too. The other file keeps the old data,
    so the rewritten data takes additional space until that is deleted. auto: archives, if the additional space is
    expected to be at most a quarter of the shared bytes, which requires Compress= and a file that can be compressed.
    Also parts of active files that have up to 5 times the extents of ExtentsPerMiB=, by how much of them is shared.
    yes: all files, also all ranges of active files. no: no shared data.

    A shared archive of 38 MiB in 3,970 extents took 3.8 MiB of additional space and 155 extents after a rewrite with
    zstd; a plain rewrite would have taken 38 MiB.
    """
    min_extents: Annotated[int, Spec("MinExtents", Form.COUNT, low=1, high=1_000_000)] = 32
    """An archived file is rewritten if it has at least this many extents more than it needs, or by MinReclaim.

    32 extents cost a cold reader 0.2 s at 150 IOPS and 0.3 s on a disk with 8.5 ms a seek.
    """
    min_reclaim_bytes: Annotated[int, Spec("MinReclaim", Form.SIZE, high=1 << 40)] = 4 * MIB
    """An archived file is also rewritten if that is expected to free at least this much disk space.

    zstd compresses a journal to 10 to 25%, so a file of 5 MiB frees 4 MiB. Smaller files are few: journald grows its
    files by 8 MiB.
    """
    extents_per_mib: Annotated[int, Spec("ExtentsPerMiB", Form.COUNT, low=2, high=256)] = 16
    """A MiB of an active file is rewritten when it has at least this many extents that a rewrite can move. A lower
    value means fewer extents but more writes: in the long run, 256 divided by this value is the number of bytes written
    for each byte that journald writes.

    16 keeps a file at about a tenth of the 100 to 200 extents per MiB that flushes leave. A flush dirties about 60
    pages (measured: 1,200 extents by 20 flushes), the default SyncIntervalSec=5min makes 288 flushes a day: 16 times
    those 68 MiB are the daily budget.
    """
    chunk_bytes: Annotated[int, Spec("ChunkBytes", Form.SIZE, low=256 * KIB, high=128 * MIB)] = 16 * MIB
    """The largest piece that is rewritten at once; the next begins when it is on disk. Work can stop after each piece.

    The kernel defragments 256 KiB at a time, so smaller pieces make no sense; 16 MiB take 0.1 s on a disk of 150 MB/s,
    so the service reacts to signals at once.
    """
    chunk_us: Annotated[int, Spec("ChunkSec", Form.SPAN, low=MS_US, high=10 * SECOND_US)] = 50 * MS_US
    """The longest time that one piece of an active file may take; if it takes longer, pieces get smaller than
    ChunkBytes.

    This limits the delay of a sync that no timer announces (after a message of priority crit).
    """


class WindowSection(Section):
    """[Window]: when work on active files would disturb journald."""

    margin_us: Annotated[int, Spec("MarginSec", Form.SPAN, high=10 * MINUTE_US)] = SECOND_US
    """The shortest time between the end of work on active files and journald's next sync; the duration of the slowest
    measured piece is added. At least ChunkSec.

    Four times the 250 ms by which systemd may move the sync timer, or 20 pieces of 50 ms.
    """
    intake_delay_max_us: Annotated[int, Spec("IntakeDelayMaxSec", Form.SPAN, low=MS_US, high=10 * MINUTE_US)] = (
        100 * MS_US
    )
    """Work on active files pauses when journald took longer than this to accept a message. At least ChunkSec.

    Undisturbed, journald takes 1 ms; at an ordinary flush at 500 IOPS, 0.8 s on a contiguous file and 2.0 s on a
    fragmented one. Two pieces of 50 ms are between.
    """
    pressure_max_percent: Annotated[int, Spec("PressureMax", Form.PERCENT, high=100)] = 40
    """Work waits while other programs keep the disks of the journal's volume busy for more than this share of the
    time. It is measured for 0.25 s before a run and between pieces, on the disks below partitions and device-mapper.
    The disk below a loop device's file, and requests that a cgroup's io.max delays, are not measured. 100% never
    waits.

    A choice. Measured: 0 to 8% on a machine in use, 0% right after our own rewrites, 22 to 51% on a disk during an
    endless copy, and then 0% on another disk, while the machine's PSI showed 53%.
    """

    on_battery: Annotated[bool, Spec("OnBattery", Form.BOOL)] = False
    """Whether the service works while the host runs on battery. Before a shutdown, and when a user asks for it with
    `journalkeeper defrag`, the work is done anyway. The host runs on battery while one of its batteries discharges and
    no mains supply is online; batteries of mice and the like do not count. A plugged cable is noticed at the next look,
    at the latest after 15 minutes if work waits.

    A choice: a fragmented journal costs a laptop seconds at a boot, and can wait for the cable.
    """

    quiet_hours: Annotated[str, Spec("QuietHours", Form.WEEKLY)] = ""
    """When the service does no work, as spans of the local day. Weekdays apply to the spans after them; spans without
    weekdays are on each day. A span that ends before it begins ends on the next day. Before a shutdown, and when a user
    asks for it with `journalkeeper defrag`, the work is done anyway. Empty: never.

    The administrator decides which hours other programs need. The service gives way to them at any time.
    """


class Budget(Section):
    """[Budget]: the limits of the work."""

    bytes_per_day: Annotated[int | None, Spec("BytesPerDay", Form.SIZE, high=1 << 50, endless=True)] = GIB
    """The most bytes that are written in 24 hours, before compression. The run before a shutdown ignores it. 0: files
    are watched but not rewritten.

    The need of an active file per day is explained at ExtentsPerMiB. 1 GiB a day is 0.36 TiB a year; small SSDs are
    rated for 75 TB and more.
    """
    rotations_per_day: Annotated[int, Spec("RotationsPerDay", Form.COUNT, high=100_000)] = 4
    """The most rotations that journald is asked for in 24 hours; rotations that only save writes are spread over the
    day. --now ignores it. 0: no rotations, not even before a shutdown.

    Each rotation adds a file, and one for each user. journald deletes the oldest beyond SystemMaxFiles=100: with 4
    rotations a day and one user, after 12 days.
    """
    history_loss_percent: Annotated[int, Spec("HistoryLoss", Form.PERCENT, high=50)] = 5
    """The largest share of the history that rotations may cost. A rotation makes journald delete old archives sooner,
    and each file stores tables and values anew. Rotations that no shutdown follows may cost a quarter of it. 0:
    rotations that cost half a percent or more are not made.

    Simulated for three years of 1 to 1,000 MiB a day and 4 snapshots a day, on volumes of 10 GiB to 1 TiB: the mean
    history was at least 97% of that without rotations, and the median boot found 1,322 to 2,622 extents instead of
    3,922, or 3,762 instead of 6,552.
    """
    keep_free_bytes: Annotated[int, Spec("KeepFree", Form.SIZE, high=1 << 50)] = 256 * MIB
    """Work that would leave less free space than this on the volume is not begun.

    Twice journald's largest file by default, 128 MiB: one being rewritten, one being begun.
    """


class HistorySection(Section):
    """[History]: how much of the past is stored."""

    keep_us: Annotated[int, Spec("KeepSec", Form.SPAN, low=DAY_US, high=3650 * DAY_US)] = 90 * DAY_US
    """How long outcomes and extent counts are kept.

    A quarter of a year shows a trend; at a row an hour it is 2,200 rows for each active file.
    """
    max_rows: Annotated[int, Spec("MaxRows", Form.COUNT, low=1_000, high=10_000_000)] = 50_000
    """The most rows of each kind: outcomes, extent counts of files, sums of directories. The oldest are deleted first.

    A row takes 270 bytes with its indexes (measured): 13 MiB of each kind at the most.
    """


class Metrics(Section):
    """[Metrics]: numbers for monitoring."""

    textfile: Annotated[str, Spec("Textfile", Form.PATH)] = ""
    """A file for node_exporter's textfile collector whose name ends in .prom, or the collector's directory, in which
    journalkeeper.prom is written. Empty: no metrics.

    The administrator decides whether and where a host is monitored. Debian's directory is
    /var/lib/prometheus/node-exporter, to which the units may write; another needs ReadWritePaths= in them.
    """


class Config(Section):
    """All directives with their values; `Config()` has the defaults."""

    watch: WatchSection = WatchSection()
    nocow: Nocow = Nocow()
    defrag: Defrag = Defrag()
    window: WindowSection = WindowSection()
    budget: Budget = Budget()
    history: HistorySection = HistorySection()
    metrics: Metrics = Metrics()


class Directive(NamedTuple):
    """A directive for documentation and tools: its place, its default and its Spec."""

    section: str
    field: str
    default: str
    spec: Spec


@cache
def list_directives() -> tuple[Directive, ...]:
    """Return every directive, in the order of journalkeeper.conf."""
    found: list[Directive] = []
    for section in Config.model_fields:
        part = getattr(Config(), section)
        for field, hint in get_type_hints(type(part), include_extras=True).items():
            spec: Spec = hint.__metadata__[0]
            found.append(Directive(section.capitalize(), field, spec.format_value(getattr(part, field)), spec))
    return tuple(found)
