# SPDX-License-Identifier: LGPL-2.1-or-later
"""The span of history that fits into the bytes that the journal may take, and the journald settings for it.

journald counts the uncompressed size of its files (st_blocks, which btrfs counts so). So compacted archives do not make
it keep a longer history. The proposed limit is the present one multiplied by the measured compression ratio, less the
files that are not compacted yet: the active files, and one full file that was just archived.

The drop-in stores the limit before the first change, so that a second change starts from the same value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from journalkeeper.health.evidence import Look, Storage, Unknown
from journalkeeper.health.finding import Answers, advice
from journalkeeper.journald.conf import TARGET
from journalkeeper.model import MIB, Instance, JournalFile, Kind, Sums
from journalkeeper.model.manager import HistorySpan
from journalkeeper.model.schema import Count, Seconds, Span
from journalkeeper.model.units import DAY_US, INFINITY_US, format_exact, format_size, format_span, spell_size
from journalkeeper.policy.history_loss import GROWTH_BYTES, Limits, compute_loss, count_vacuumed, find_full_file_bytes

ARCHIVES: Final = 2
"""The fewest compacted archives from which a ratio is computed."""

LEAST_SPAN_US: Final = DAY_US
"""The shortest history from which a daily rate is computed, because nights and days, jobs and backups differ."""

GAP_US: Final = DAY_US
"""A shorter time between two files is a night and belongs to the days that they cover; a longer one does not."""

MONTH_US: Final = 31 * DAY_US
"""A file of before a lower MaxFileSec= can be as long as the default."""

WORTH: Final = 1.5
"""A gain below this factor is not worth a change of settings."""

FILES_GROWTH: Final = 1.15
"""The number of files under the proposed limits, in multiples of the present number.

Each archive costs a cold `journalctl` some 14 reads, whatever its size, and each boot 3 to 4. A larger file costs each
flush little: 2.1, 2.6 and 3.0 MiB at SystemMaxFileSize= 32, 128 and 512 MiB, and NOCOW 1.8, 1.9 and 1.9 (journald 252,
40 messages).
"""

FILES_SPARE: Final = 1.5
"""Reserve for files that end early, at boots and by rotations, and are smaller than those of today."""


class Retention(NamedTuple):
    """The history that the main journal keeps now, and under the proposed limits.

    All sizes but `disk_bytes` and `target_bytes` are as journald counts. `limit_bytes` is the present limit and `binds`
    the setting that causes it; `target_bytes` is the disk space that the journal may take. `kept_us` and `proposed_us`
    are the spans of history at `bytes_per_day`. `ratio` is the allocated size of the archives divided by their size on
    disk. `disk_bytes` is the disk space of the journal at the present limit, `proposed_disk_bytes` at the proposed one.
    """

    target_bytes: Count
    limit_bytes: Count
    binds: str
    bytes_per_day: Count
    ratio: Seconds
    """How many times smaller the archives are on the disk."""
    kept_us: Span
    disk_bytes: Count
    proposed_use_bytes: Count
    proposed_files: Count
    before_file_bytes: Count
    """SystemMaxFileSize= without our drop-in."""
    max_file_bytes: Count
    """The proposed SystemMaxFileSize=."""
    proposed_us: Span
    proposed_disk_bytes: Count
    proposed_binds: str
    applied: bool


def history(look: Look, storage: Storage) -> Answers:
    """Compacted archives leave room for a longer history, which journald does not use: it counts uncompressed bytes.

    The check is Unknown if the compression ratio, the bytes per day or journald's limits are not known, if
    SystemMaxUse= is off, or if this machine's main journald writes to none of the configured directories. Otherwise it
    gives advice, unless the gain is less than 50% or the drop-in of `journalkeeper retention --apply` exists.
    """
    found = propose_retention(look, storage)
    if isinstance(found, Unknown):
        yield found
    elif found.proposed_us >= WORTH * found.kept_us and not found.applied:
        facts = {**found._asdict(), "ratio": round(found.ratio, 2)}
        del facts["applied"]
        yield advice(describe_retention(found), "journalkeeper retention --apply", **facts)


def describe_retention(found: Retention) -> str:
    """Return a sentence on the history and disk space, now and with the proposed limits, and on the next limit."""
    now = f"{found.binds} keeps {format_span(found.kept_us)} in {spell_size(found.disk_bytes)} of disk space"
    then = f"{format_span(found.proposed_us)} in {spell_size(found.proposed_disk_bytes)}"
    limits = f"SystemMaxUse={format_exact(found.proposed_use_bytes)} and"
    limits += f" SystemMaxFileSize={format_exact(found.max_file_bytes)}"
    binds = f", and {found.proposed_binds} would then limit it" if found.proposed_binds else ""
    return f"{now}; {limits} would keep about {then}{binds}."


def propose_retention(look: Look, storage: Storage) -> Retention | Unknown:
    """Return the present and the proposed retention of the main journal, or Unknown as the check `history`."""
    main = [one for one in look.host.instances if not one.namespace and one.rotatable]
    if not main:
        return Unknown("this machine's main journald writes to none of the configured directories")
    files = [file for file in look.host.files if file.directory == main[0].directory and not file.problem]
    ratio, rate = _compute_ratio(files), compute_bytes_per_day(main[0], files)
    if isinstance(ratio, Unknown):
        return ratio
    return rate if isinstance(rate, Unknown) else _make_retention(main[0], files, ratio, rate, storage.retention)


def compute_bytes_per_day(instance: Instance, files: Sequence[JournalFile]) -> float | Unknown:
    """Return the allocated bytes of archives per day that they cover together, or Unknown below LEAST_SPAN_US.

    Only archives count, because an active file is allocated ahead of its entries. journald ends a file after
    MaxFileSec=, so a file that covers more, and more than a month, contains a step of the clock and does not count.
    """
    archives = [file for file in files if file.kind is not Kind.ACTIVE and _has_plausible_span(file, instance)]
    covered_us = _measure_coverage(archives)
    if covered_us < LEAST_SPAN_US:
        held = format_span(covered_us) if covered_us else "nothing"
        return Unknown(f"the archives must cover {format_span(LEAST_SPAN_US)} (so far: {held}): try again tomorrow")
    return sum(file.allocated_bytes for file in archives) * DAY_US / covered_us


def _has_plausible_span(file: JournalFile, instance: Instance) -> bool:
    """Return whether the times are known, in order, and, unless MaxFileSec= is 0, at most max(it, MONTH_US) apart."""
    longest_us = max(instance.max_file_us, MONTH_US) if instance.max_file_us else INFINITY_US
    return file.head_time_us > 0 and 0 <= file.tail_time_us - file.head_time_us <= longest_us


def _measure_coverage(files: Sequence[JournalFile]) -> int:
    """Return the time that files of plausible times cover together, with the gaps of at most GAP_US between them."""
    covered_us, end_us = 0, -GAP_US
    for head_us, tail_us in sorted((file.head_time_us, file.tail_time_us) for file in files):
        begin_us = max(head_us, end_us) if head_us - end_us > GAP_US else end_us
        covered_us += max(0, tail_us - begin_us)
        end_us = max(end_us, tail_us)
    return covered_us


def _compute_mean_archive_bytes(files: Sequence[JournalFile]) -> float:
    """Return the mean allocated size of the archives, all files but active ones; 0.0 without archives."""
    sizes = [file.allocated_bytes for file in files if file.kind is not Kind.ACTIVE]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _compute_ratio(files: list[JournalFile]) -> float | Unknown:
    """Return allocated bytes per disk byte of all archives; Unknown if one is unmeasured or fewer than 2 compressed."""
    archives = [file for file in files if file.kind is not Kind.ACTIVE]
    if any(file.disk_bytes is None for file in archives):
        return Unknown("only root can measure the disk space of the archives")
    compacted = sum(file.compressed for file in archives)
    if compacted < ARCHIVES:
        return Unknown(f"it needs {ARCHIVES} compressed archives (so far: {compacted}): try again later")
    return sum(file.allocated_bytes for file in archives) / max(1, sum(file.disk_bytes or 0 for file in archives))


def _make_retention(
    instance: Instance, files: list[JournalFile], ratio: float, rate: float, before: tuple[int, int] | None
) -> Retention | Unknown:
    """Return the present and the proposed retention for the compression `ratio` and the `rate` in bytes per day.

    `files` must contain an archive, and `rate` must not be 0. The proposal, also of SystemMaxFiles=, starts from
    `before`, the limit and file size of Storage.retention, or else from the present ones. It has a reserve for the
    active file and one archive that are not compacted yet. Both name the limit that binds, "" for a proposed
    SystemMaxUse=. Return Unknown if journald's limits are not known or SystemMaxUse= is off.
    """
    use, keep_free = instance.system_max_use_bytes, instance.system_keep_free_bytes
    largest, available = instance.system_max_file_size_bytes, instance.available_bytes
    if not use or not largest or keep_free is None or available is None:
        return Unknown("journald's limits are not known, or SystemMaxUse= is off")
    active = sum(file.allocated_bytes for file in files if file.kind is Kind.ACTIVE)
    taken = sum(file.allocated_bytes for file in files)
    mean = _compute_mean_archive_bytes(files)
    target_bytes, file_bytes = before or (min(use, _compute_room_bytes(instance, files)), 0)
    file_bytes = file_bytes or largest
    share = min(file_bytes / target_bytes / FILES_GROWTH, 1 / 4)  # of one file in all
    size = max(file_bytes, _round_down(round(share * target_bytes * ratio / (1 + 2 * share * (ratio - 1)))))
    reserve = 2 * size
    proposed = _round_down(round(max(0, target_bytes - reserve) * ratio) + reserve)
    needed = round(proposed / mean * FILES_SPARE) + 1
    # compacting the archives frees space, which SystemKeepFree= then leaves to the journal
    grown = max(0, available + (taken - active) / ratio - keep_free) * ratio + active
    present = find_limit(instance, use, _compute_room_bytes(instance, files), instance.system_max_files * mean, rate)
    after = find_limit(instance, proposed, grown, max(needed, instance.system_max_files) * mean, rate)
    return Retention(
        target_bytes=target_bytes,
        limit_bytes=round(present[0]),
        binds=present[1],
        bytes_per_day=round(rate),
        ratio=ratio,
        kept_us=round(present[0] / rate * DAY_US),
        disk_bytes=round(active + max(0, present[0] - active) / ratio),
        proposed_use_bytes=proposed,
        proposed_files=instance.system_max_files and max(instance.system_max_files, needed),
        before_file_bytes=file_bytes,
        max_file_bytes=size,
        proposed_us=round(after[0] / rate * DAY_US),
        proposed_disk_bytes=round(reserve + max(0, after[0] - reserve) / ratio),
        proposed_binds="" if after[1].startswith("SystemMaxUse=") else after[1],
        applied=before is not None,
    )


def _compute_room_bytes(instance: Instance, files: Sequence[JournalFile]) -> int:
    """Return the bytes that the journal may take by SystemKeepFree=: those of `files`, and the free space beyond it.

    Unknown numbers count as 0. Source: systemd 257, journald-server.c, determine_space.
    """
    free = (instance.available_bytes or 0) - (instance.system_keep_free_bytes or 0)
    return sum(file.allocated_bytes for file in files) + max(0, free)


def find_limit(instance: Instance, use: int, room: float, by_files: float, rate: float | None) -> tuple[float, str]:
    """Return the smallest limit, which journald reaches first, as (bytes, "SystemMaxUse=4G"); (inf, "") without one.

    The limits in bytes are `use` by SystemMaxUse=, `room` by SystemKeepFree=, and `by_files` by SystemMaxFiles=.
    Neither `use` nor `by_files` counts if it is 0, and `room` only with `use`. The limit by MaxRetentionSec= is the
    bytes that `rate` (bytes per day) makes in that time.
    """
    limits = []
    if use:
        limits.append((float(use), f"SystemMaxUse={format_exact(use)}"))
        limits.append((room, f"SystemKeepFree={format_exact(instance.system_keep_free_bytes or 0)}"))
    if instance.system_max_files and by_files:
        limits.append((by_files, f"SystemMaxFiles={instance.system_max_files}"))
    if rate and 0 < instance.max_retention_us < INFINITY_US:
        by_age = instance.max_retention_us * rate / DAY_US
        limits.append((by_age, f"MaxRetentionSec={format_span(instance.max_retention_us)}"))
    return min(limits, default=(inf, ""))


def summarize_history(instance: Instance, files: Iterable[JournalFile]) -> HistorySpan:
    """Return the history in the readable `files` of the instance, its limit and its next deletion.

    journald counts allocated bytes, and deletes the oldest archive beyond the first limit that is reached.
    `max_use_bytes` is SystemMaxUse= (None: unknown, 0: off), or the room that SystemKeepFree= leaves if less.

    Source: journald.conf(5); systemd 252, journal-vacuum.c.
    """
    files = [file for file in files if file.directory == instance.directory and file.problem is None]
    every, use, known = Sums.of(files), instance.system_max_use_bytes, compute_bytes_per_day(instance, files)
    rate = None if isinstance(known, Unknown) else known
    room = _compute_room_bytes(instance, files) if instance.available_bytes is not None else INFINITY_US
    max_use_bytes = min(use, room) if use else use
    limit = find_limit(instance, use or 0, room, instance.system_max_files * _compute_mean_archive_bytes(files), rate)
    return HistorySpan(
        directory=instance.directory,
        files=len(files),
        size_bytes=every.size_bytes,
        allocated_bytes=every.allocated_bytes,
        disk_bytes=every.disk_bytes,
        oldest_us=min((file.head_time_us for file in files if file.head_time_us), default=None),
        newest_us=max((file.tail_time_us for file in files if file.tail_time_us), default=None),
        covered_us=_measure_coverage([file for file in files if _has_plausible_span(file, instance)]),
        max_use_bytes=max_use_bytes,
        max_files=instance.system_max_files,
        max_retention_us=instance.max_retention_us,
        full_span_us=round(limit[0] / rate * DAY_US) if use and rate else None,
        binding=f"{limit[1].partition('=')[0]}=" if limit[1] else None,
        **_foresee_deletion(instance, files, max_use_bytes or 0, rate),
    )


def _foresee_deletion(
    instance: Instance, files: Sequence[JournalFile], max_use_bytes: int, rate: float | None
) -> dict[str, Any]:
    """Return early_files and early_bytes of a HistorySpan, and next_deleted_us and next_deletion_in_us if foreseen.

    All are missing without archives, an active file or SystemMaxFileSize=, the last two also without a limit. Full
    files are added until a limit is exceeded. The last one needs `rate`, one active file, and no MaxRetentionSec=.
    """
    largest = instance.system_max_file_size_bytes
    archives = sorted((one for one in files if one.kind is not Kind.ACTIVE), key=lambda one: one.head_time_us)
    active = [one for one in files if one.kind is Kind.ACTIVE]
    if not largest or not archives or not active:
        return {}
    full = find_full_file_bytes(files, largest)
    limits = Limits(max_use_bytes, largest, instance.system_max_files, full)
    sizes = [one.allocated_bytes for one in archives]
    loss = compute_loss(sizes, (), limits)
    found: dict[str, Any] = {"early_files": loss.early_files, "early_bytes": loss.early_bytes}
    for more in range(1, 2 + max_use_bytes // full + instance.system_max_files):
        gone = count_vacuumed([*sizes, *[full] * more], len(active), GROWTH_BYTES * len(active), limits)
        if gone:
            found["next_deleted_us"] = max(one.tail_time_us for one in archives[:gone])
            used = active[0].allocated_bytes - active[0].extents.unwritten_bytes
            if rate and len(active) == 1 and instance.max_retention_us in {0, INFINITY_US}:
                found["next_deletion_in_us"] = round(max(0, more * full - used) / rate * DAY_US)
            return found
    return found


def format_dropin(found: Retention) -> str:
    """Return the drop-in for journald with the proposed SystemMaxUse=, SystemMaxFileSize= and SystemMaxFiles=.

    A comment contains the disk usage aimed at, which `journald.conf.parse_target` reads.
    """
    return (
        "# Written by `journalkeeper retention --apply`; `journalkeeper retention --undo` removes it.\n"
        "# journald counts uncompressed bytes: compacted, the journal takes about"
        f" {format_size(found.proposed_disk_bytes)}.\n"
        f"{TARGET.format(found.target_bytes, found.before_file_bytes)}"
        "[Journal]\n"
        f"SystemMaxUse={format_exact(found.proposed_use_bytes)}\n"
        f"SystemMaxFileSize={format_exact(found.max_file_bytes)}\n"
        f"SystemMaxFiles={found.proposed_files}\n"
    )


def _round_down(size_bytes: int) -> int:
    """Return a size rounded down to a multiple of 1, 2, 4, ... MiB: the first of at least a twentieth of the size."""
    # users expect round sizes
    step = max(MIB, 1 << (-(-size_bytes // 20) - 1).bit_length())
    return size_bytes // step * step
