# SPDX-License-Identifier: LGPL-2.1-or-later
"""journalkeeper.conf as values: every directive with its default, range and reason, once.

A directive is the annotation of its field; the check of a file, `check-config`,
journalkeeper.conf(5), the completions and the Ansible argument specs are made from it. Finding
and reading files is the business of files.py, text becomes values in validation.py.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal, NamedTuple, get_type_hints

from pydantic import BaseModel, ConfigDict

from journalkeeper.config.spec import Form, Spec
from journalkeeper.model import GIB, KIB, MIB
from journalkeeper.model.units import DAY_US, MINUTE_US, MS_US, SECOND_US


class Section(BaseModel):
    """Values that do not change; a field has its value in the unit that its name ends with."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Watch(Section):
    """[Watch]: which directories, and when a file there is at rest."""

    directories: Annotated[
        tuple[str, ...],
        Spec(
            "Directories",
            Form.PATHS,
            "Where journals are looked for: directories that hold machine-id directories, as /var/log/journal does. "
            "May be given several times; the paths add up.",
            "journald writes there with Storage=persistent and nowhere else (systemd-journald.service(8)).",
        ),
    ] = ("/var/log/journal",)
    settle_us: Annotated[
        int,
        Spec(
            "SettleSec",
            Form.SPAN,
            "How long an archived file must have been left unchanged before it is rewritten.",
            "journald renames an archive first and syncs it afterwards in a thread; the longest that it was measured "
            "to be busy with one file, 32 MiB in 5,992 extents at 150 IOPS, is 25 s.",
            high=DAY_US,
        ),
    ] = 60 * SECOND_US
    nocow_settle_us: Annotated[
        int,
        Spec(
            "NocowSettleSec",
            Form.SPAN,
            "The same for an archive that is still NOCOW. At least SettleSec.",
            "journald 250 and later replaces a NOCOW archive by a copy of its own, which comes last: 128 MiB, the "
            "largest file by default, in pieces of 4 KiB at 150 IOPS take 3 min 40 s. Doubled and rounded up.",
            high=DAY_US,
        ),
    ] = 10 * MINUTE_US


class Nocow(Section):
    """[Nocow]: whether journald's new files shall be overwritten in place."""

    nocow: Annotated[
        Literal["auto", "yes", "no"],
        Spec(
            "Nocow",
            Form.WORD,
            "Whether to set the C attribute (chattr +C) on journal directories, which new files inherit. auto: unless "
            "the volume's data profile keeps copies (raid1, raid10, raid5, raid6, raid1c3, raid1c4), because NOCOW "
            "data has no checksum to choose between them by, or snapshots are taken of the journal, because each has "
            "NOCOW data copied on write once more. Snapshots are known by files that share data with one, and by "
            "rewrites beside one in the last 30 days, user-UID.journal apart, which its user may reflink; one that was "
            "taken before anything was logged, and one of which nothing is shared any more, cannot be seen. no: "
            "attributes are left as they are.",
            "Four boots at 150 IOPS: 1.8 s each with a NOCOW active file of 2 extents; 9 to 24 s with a datacow one. "
            "Six boots with a snapshot before each: 3.5 to 20.1 s with NOCOW, 412 to 2,898 extents.",
            words=("auto", "yes", "no"),
        ),
    ] = "auto"
    rotate_to_apply: Annotated[
        bool,
        Spec(
            "RotateToApply",
            Form.BOOL,
            "Whether to rotate once, which replaces an active file that was made before its directory was NOCOW by one "
            "that is.",
            "At the first boot systemd-journal-flush.service runs before systemd-tmpfiles-setup.service sets the "
            "attribute: the first system.journal stays datacow until a rotation (measured with 252 and 257).",
        ),
    ] = True


class Defrag(Section):
    """[Defrag]: what is rewritten, how, and when the gain pays."""

    compress: Annotated[
        str,
        Spec(
            "Compress",
            Form.COMPRESSION,
            "How archived files are compressed while they are rewritten. Active files never are.",
            "An archive of 45 MiB that pinned 89 MiB came down to 45 MiB without and to 10 MiB with zstd, and a cold "
            "read of it at 150 IOPS from 65.5 s to 3.2 s.",
        ),
    ] = "zstd"
    archived: Annotated[
        bool,
        Spec(
            "Archived",
            Form.BOOL,
            "Whether archived files are rewritten, once each.",
            "journald has not defragmented datacow archives since version 250.",
        ),
    ] = True
    active: Annotated[
        bool,
        Spec(
            "Active",
            Form.BOOL,
            "Whether fragmented ranges of the files that journald is writing are rewritten.",
            "A boot at 150 IOPS took 41.5 s with an active file of 5,992 extents, 1.8 s with 40.",
        ),
    ] = True
    allow_unshare: Annotated[
        Literal["auto", "yes", "no"],
        Spec(
            "AllowUnshare",
            Form.WORD,
            "Whether files that share data with a snapshot or a reflink are rewritten too. The snapshot keeps the old "
            "data, so what is written is stored beside it until the snapshot is deleted. auto: archives, where that "
            "is expected to be at most a quarter of what is shared, which takes Compress=. yes: all files, also the "
            "ranges of those that journald writes. no: none.",
            "A shared archive that pinned 38 MiB in 3,970 extents was 3.8 MiB beside the snapshot's and 155 extents "
            "after a rewrite with zstd; plain it would have been 38 MiB again.",
            words=("auto", "yes", "no"),
        ),
    ] = "auto"
    min_extents: Annotated[
        int,
        Spec(
            "MinExtents",
            Form.COUNT,
            "An archived file is worth a rewrite with at least this many extents more than it needs, or by MinReclaim.",
            "32 extents cost a cold reader 0.2 s at 150 IOPS and 0.3 s on a disk with 8.5 ms a seek.",
            low=1,
            high=1_000_000,
        ),
    ] = 32
    min_reclaim_bytes: Annotated[
        int,
        Spec(
            "MinReclaim",
            Form.SIZE,
            "An archived file is also worth a rewrite that is expected to free at least this much on disk.",
            "zstd leaves 10 to 25% of a journal; 4 MiB is what a file of 5 MiB gives back, and smaller ones are few: "
            "journald grows its files by 8 MiB.",
            high=1 << 40,
        ),
    ] = 4 * MIB
    extents_per_mib: Annotated[
        int,
        Spec(
            "ExtentsPerMiB",
            Form.COUNT,
            "A MiB of an active file is rewritten when it has at least this many extents. In the long run 256 divided "
            "by this is written for each byte that journald dirties: extents and wear trade off.",
            "16 keeps a file at about a tenth of the 100 to 200 extents per MiB that flushes leave. A flush dirties "
            "about 60 pages (measured: 1,200 extents by 20 flushes), the default SyncIntervalSec=5min makes 288 "
            "flushes a day: 16 times those 68 MiB are the daily budget.",
            low=2,
            high=256,
        ),
    ] = 16
    chunk_bytes: Annotated[
        int,
        Spec(
            "ChunkBytes",
            Form.SIZE,
            "The most that is rewritten in one piece before it is written back and waited for. Work stops at the "
            "border of a piece.",
            "The kernel defragments 256 KiB at a time, the least that makes sense; 16 MiB take 0.1 s on a disk of 150 "
            "MB/s, so a signal is answered at once.",
            low=256 * KIB,
            high=128 * MIB,
        ),
    ] = 16 * MIB
    chunk_us: Annotated[
        int,
        Spec(
            "ChunkSec",
            Form.SPAN,
            "How long one piece of an active file may take; pieces are made smaller than ChunkBytes until they do.",
            "This bounds what a sync that no timer foretells (a message of priority crit) has to wait for.",
            low=MS_US,
            high=10 * SECOND_US,
        ),
    ] = 50 * MS_US


class Window(Section):
    """[Window]: when work on active files would be in journald's way."""

    margin_us: Annotated[
        int,
        Spec(
            "MarginSec",
            Form.SPAN,
            "How long before journald's next sync work on its active files ends, at the least; the slowest piece "
            "measured is added. At least ChunkSec.",
            "Four times the 250 ms by which systemd may move the sync timer, or 20 pieces of 50 ms.",
            high=10 * MINUTE_US,
        ),
    ] = SECOND_US
    intake_delay_max_us: Annotated[
        int,
        Spec(
            "IntakeDelayMaxSec",
            Form.SPAN,
            "Work on active files pauses when journald took longer than this to accept a message. At least ChunkSec.",
            "Undisturbed it takes 1 ms; at an ordinary flush at 500 IOPS 0.8 s on a contiguous file and 2.0 s on a "
            "fragmented one. Two pieces of 50 ms lie between.",
            low=MS_US,
            high=10 * MINUTE_US,
        ),
    ] = 100 * MS_US
    pressure_max_percent: Annotated[
        int,
        Spec(
            "PressureMax",
            Form.PERCENT,
            "Nothing is begun while others keep the disks of the journal's own volume busy for more than this share of "
            "the time, measured for 0.25 s before a run and between pieces, with partitions and device-mapper followed "
            "to the disk. What is not seen: the disk below a loop device's file, and requests that a cgroup's io.max "
            "holds back. 100% never waits.",
            "A choice. Measured: 0 to 8% on a machine at work, 0% right after our own rewrites, 22 to 51% on the disk "
            "that is copied to without end, and then 0% on another disk, while the machine's PSI said 53%.",
            high=100,
        ),
    ] = 40


class Budget(Section):
    """[Budget]: what the work may cost."""

    bytes_per_day: Annotated[
        int | None,
        Spec(
            "BytesPerDay",
            Form.SIZE,
            "The most that is written in 24 hours, before compression. A shutdown does not wait for the next day's. "
            "0: nothing is rewritten, only watched.",
            "ExtentsPerMiB says what an active file needs in a day. A year of it is 0.36 TiB; small SSDs are rated for "
            "75 TB and more.",
            high=1 << 50,
            endless=True,
        ),
    ] = GIB
    rotations_per_day: Annotated[
        int,
        Spec(
            "RotationsPerDay",
            Form.COUNT,
            "The most rotations that are asked of journald in 24 hours, spread over them where they are for the price. "
            "--now does not count. 0: none is asked for, before a shutdown neither.",
            "Each adds a file and one for each user; journald deletes the oldest beyond SystemMaxFiles=100: at 4 a day "
            "and one user after 12 days.",
            high=1_000,
        ),
    ] = 4
    keep_free_bytes: Annotated[
        int,
        Spec(
            "KeepFree",
            Form.SIZE,
            "Nothing is begun that would leave less than this free on the volume.",
            "Twice the largest file that journald makes by default, 128 MiB: one being rewritten, one being begun.",
            high=1 << 50,
        ),
    ] = 256 * MIB


class History(Section):
    """[History]: how much is remembered."""

    keep_us: Annotated[
        int,
        Spec(
            "KeepSec",
            Form.SPAN,
            "How long outcomes and extent counts are kept.",
            "A quarter of a year shows a trend; at a row an hour it is 2,200 rows for each active file.",
            low=DAY_US,
            high=3650 * DAY_US,
        ),
    ] = 90 * DAY_US
    max_rows: Annotated[
        int,
        Spec(
            "MaxRows",
            Form.COUNT,
            "The most rows kept of each kind: outcomes, extent counts of files, sums of directories. The oldest go "
            "first.",
            "A row takes 270 bytes with its indexes (measured): 13 MiB of each kind at the most.",
            low=1_000,
            high=10_000_000,
        ),
    ] = 50_000


class Metrics(Section):
    """[Metrics]: numbers for others."""

    textfile: Annotated[
        str,
        Spec(
            "Textfile",
            Form.PATH,
            "A file for node_exporter's textfile collector, whose name ends in .prom, or the collector's directory, "
            "for journalkeeper.prom in it. Empty: none.",
            "Whether a host is watched so, and where, is the administrator's choice: Debian's directory is "
            "/var/lib/prometheus/node-exporter, to which the units may write; for another add ReadWritePaths= to them.",
        ),
    ] = ""


class Config(Section):
    """All directives with their values; `Config()` is the defaults."""

    watch: Watch = Watch()
    nocow: Nocow = Nocow()
    defrag: Defrag = Defrag()
    window: Window = Window()
    budget: Budget = Budget()
    history: History = History()
    metrics: Metrics = Metrics()


class Directive(NamedTuple):
    """One directive for documentation and tools: where it is, and what its Spec says."""

    section: str
    field: str
    default: str
    spec: Spec


@cache
def directives() -> tuple[Directive, ...]:
    """Every directive, in the order of journalkeeper.conf."""
    found: list[Directive] = []
    for section in Config.model_fields:
        part = getattr(Config(), section)
        for field, hint in get_type_hints(type(part), include_extras=True).items():
            spec: Spec = hint.__metadata__[0]
            found.append(Directive(section.capitalize(), field, spec.written(getattr(part, field)), spec))
    return tuple(found)
