# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long a history fits the bytes that the journal may take, and the setting of journald's for it.

journald counts what its files would take uncompressed (st_blocks, which btrfs counts so), so compacted archives do not
let it keep more. The limit that lets it is the present one multiplied by how much smaller the archives became, less
what is not compacted yet: the active files, and one full file that was just archived.

The limit that was in force before the first change is kept in the drop-in, so that a second change starts from it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from journalkeeper.health.evidence import Evidence, Unknown
from journalkeeper.health.finding import Facts, Finding, Severity, require
from journalkeeper.model import MIB, Instance, JournalFile, Kind
from journalkeeper.model.units import DAY_US, INFINITY_US, SECOND_US, format_size, format_span

ARCHIVES: Final = 2
"""Compacted archives that there must be before their ratio is believed."""

LEAST_SPAN_US: Final = DAY_US
"""The least history that tells how much is logged in a day: nights and days, jobs and backups differ."""

WORTH: Final = 1.5
"""With less than half as much again nobody changes a setting."""

FILES_SPARE: Final = 1.5
"""Files that end early, at boots and by rotations, are smaller than those of today."""

MAX_FILES: Final = 100
"""journald's SystemMaxFiles= by default."""


class Retention(NamedTuple):
    """What the main journal keeps, and what it would keep under the proposed limits.

    All sizes but `disk_bytes` and `target_bytes` are as journald counts. `limit_bytes` is what it may keep now and
    `binds` the setting that says so; `target_bytes` what it may really take. `kept_us` and `proposed_us` are how long a
    history that is, at `bytes_per_day`; `ratio` is how much smaller the archives are on the disk; `disk_bytes` what the
    journal would really take at the present limit, `proposed_disk_bytes` at the proposed one.
    """

    target_bytes: int
    limit_bytes: int
    binds: str
    bytes_per_day: int
    ratio: float
    kept_us: int
    disk_bytes: int
    proposed_use_bytes: int
    proposed_files: int
    max_file_bytes: int
    proposed_us: int
    proposed_disk_bytes: int
    proposed_binds: str
    applied: bool

    @property
    def gain(self) -> float:
        """How many times as long a history would be kept."""
        return self.proposed_us / max(1, self.kept_us)


def history(evidence: Evidence) -> Finding | None:
    """Compacted archives leave room for a longer history, which journald does not use: it counts uncompressed bytes."""
    found = require(retention(evidence))
    if found.applied or found.gain < WORTH:
        return None
    facts: Facts = {
        "limit_bytes": found.limit_bytes,
        "binds": found.binds,
        "bytes_per_day": found.bytes_per_day,
        "ratio": round(found.ratio, 2),
        "kept_s": found.kept_us // SECOND_US,
        "disk_bytes": found.disk_bytes,
        "proposed_use_bytes": found.proposed_use_bytes,
        "proposed_s": found.proposed_us // SECOND_US,
        "proposed_disk_bytes": found.proposed_disk_bytes,
    }
    remedy = ("journalkeeper retention --apply",)
    return Finding("history", Severity.ADVICE, facts, sentence(found), remedy)


def sentence(found: Retention) -> str:
    """What is kept and what could be, with the setting that binds where it is another than SystemMaxUse=."""
    now = f"{found.binds} keeps {format_span(found.kept_us)} and really takes {format_size(found.disk_bytes)}"
    then = (
        f"SystemMaxUse={written(found.proposed_use_bytes)} would keep about {format_span(found.proposed_us)} in"
        f" {format_size(found.proposed_disk_bytes)}"
    )
    binds = f", then bound by {found.proposed_binds}" if found.proposed_binds else ""
    return f"{now}; {then}{binds}."


def retention(evidence: Evidence) -> Retention | Unknown:
    """What the main journal keeps and could keep, by its own ratio, rate and limits."""
    look, storage = evidence.look, evidence.storage
    if isinstance(look, Unknown):
        return look
    if isinstance(storage, Unknown):
        return storage
    main = [one for one in look.host.instances if not one.namespace and one.rotatable]
    if not main:
        return Unknown("no directory that was looked at is written by this machine's main journald")
    instance = main[0]
    files = [file for file in look.host.files if file.directory == instance.directory and not file.problem]
    ratio = _ratio(files)
    if isinstance(ratio, Unknown):
        return ratio
    rate = bytes_per_day(files)
    return rate if isinstance(rate, Unknown) else _computed(instance, files, ratio, rate, storage.retention_bytes)


def bytes_per_day(files: Sequence[JournalFile]) -> float | Unknown:
    """Return how many bytes journald fills in a day, as journald counts.

    Bytes and time are those of the archives: an active file is allocated ahead of its entries.
    """
    archives = [file for file in files if file.kind is not Kind.ACTIVE and file.head_time_us]
    heads, tails = [file.head_time_us for file in archives], [file.tail_time_us for file in archives]
    span_us = max(tails, default=0) - min(heads, default=0)
    if span_us < LEAST_SPAN_US:
        held = f"hold {format_span(span_us)}" if span_us > 0 else "hold no span"
        return Unknown(f"the archives {held} of history, and a rate is computed from {format_span(LEAST_SPAN_US)} on")
    return sum(file.allocated_bytes for file in archives) * DAY_US / span_us


def _ratio(files: list[JournalFile]) -> float | Unknown:
    """How much smaller the archives are on the disk than journald counts: all of them, as not each one pays."""
    archives = [file for file in files if file.kind is not Kind.ACTIVE]
    if any(file.disk_bytes is None for file in archives):
        return Unknown("what the archives take on the disk is told to root only")
    compacted = sum(file.compressed for file in archives)
    if compacted < ARCHIVES:
        return Unknown(f"only {compacted} archives are compacted and tell how much smaller they become")
    return sum(file.allocated_bytes for file in archives) / max(1, sum(file.disk_bytes or 0 for file in archives))


def _computed(
    instance: Instance, files: list[JournalFile], ratio: float, rate: float, target: int | None
) -> Retention | Unknown:
    """The figures, from the journal's `ratio` and its `rate`, bytes a day."""
    use, keep_free = instance.system_max_use_bytes, instance.system_keep_free_bytes
    largest, available = instance.system_max_file_size_bytes, instance.available_bytes
    if not use or not largest or keep_free is None or available is None:
        return Unknown("journald's limits are not known, or SystemMaxUse= is off")
    active = sum(file.allocated_bytes for file in files if file.kind is Kind.ACTIVE)
    taken = sum(file.allocated_bytes for file in files)
    mean = _mean_archive_bytes(files)
    present = bound(instance, files, rate)
    target_bytes = target or min(use, _room_bytes(instance, files))
    reserve = min(active + largest, target_bytes // 2)
    proposed = _round_down(round((target_bytes - reserve) * ratio) + reserve)
    needed = round(proposed / mean * FILES_SPARE) + 1
    # what is compacted meanwhile does not take the space that journald keeps free
    grown = max(0, available + (taken - active) / ratio - keep_free) * ratio + active
    after = _bound(instance, proposed, grown, max(needed, instance.system_max_files) * mean, rate)
    return Retention(
        target_bytes=target_bytes,
        limit_bytes=round(present[0]),
        binds=present[1],
        bytes_per_day=round(rate),
        ratio=ratio,
        kept_us=present[2],
        disk_bytes=round(active + max(0, present[0] - active) / ratio),
        proposed_use_bytes=proposed,
        proposed_files=max(MAX_FILES, needed),
        max_file_bytes=largest,
        proposed_us=after[2],
        proposed_disk_bytes=round(reserve + max(0, after[0] - reserve) / ratio),
        proposed_binds="" if after[1].startswith("SystemMaxUse=") else after[1],
        applied=target is not None,
    )


def _mean_archive_bytes(files: Sequence[JournalFile]) -> float:
    sizes = [file.allocated_bytes for file in files if file.kind is not Kind.ACTIVE]
    return sum(sizes) / len(sizes)


def _room_bytes(instance: Instance, files: Sequence[JournalFile]) -> int:
    """Return what SystemKeepFree= leaves to the journal. Source: systemd 257, journald-server.c, determine_space."""
    free = (instance.available_bytes or 0) - (instance.system_keep_free_bytes or 0)
    return sum(file.allocated_bytes for file in files) + max(0, free)


def bound(instance: Instance, files: Sequence[JournalFile], rate: float) -> tuple[float, str, int]:
    """Return what the present limits keep, as `_bound`, at `rate` bytes a day."""
    by_files = instance.system_max_files * _mean_archive_bytes(files)
    return _bound(instance, instance.system_max_use_bytes or 0, _room_bytes(instance, files), by_files, rate)


def _bound(instance: Instance, use: int, room: float, by_files: float, rate: float) -> tuple[float, str, int]:
    """What is kept in bytes and in time, and the setting that says so: that which keeps least."""
    limits = [
        (float(use), f"SystemMaxUse={written(use)}"),
        (room, f"SystemKeepFree={written(instance.system_keep_free_bytes or 0)}"),
    ]
    if instance.system_max_files:
        limits.append((by_files, f"SystemMaxFiles={instance.system_max_files}"))
    if 0 < instance.max_retention_us < INFINITY_US:
        by_age = instance.max_retention_us * rate / DAY_US
        limits.append((by_age, f"MaxRetentionSec={format_span(instance.max_retention_us)}"))
    kept, binds = min(limits)
    short = 0 < instance.max_file_us * rate / DAY_US < (instance.system_max_file_size_bytes or 0)
    if binds.startswith("SystemMaxFiles=") and short:
        binds += f" with MaxFileSec={format_span(instance.max_file_us)}"
    return kept, binds, round(kept / rate * DAY_US)


def dropin(found: Retention) -> str:
    """What the drop-in for journald says."""
    return (
        "# Written by `journalkeeper retention --apply`; `journalkeeper retention --undo` removes it.\n"
        "# journald counts uncompressed bytes: compacted, the journal takes about"
        f" {format_size(found.proposed_disk_bytes)}.\n"
        f"{TARGET}{found.target_bytes}\n"
        "[Journal]\n"
        f"SystemMaxUse={written(found.proposed_use_bytes)}\n"
        f"SystemMaxFileSize={written(found.max_file_bytes)}\n"
        f"SystemMaxFiles={found.proposed_files}\n"
    )


TARGET: Final = "# target-bytes="
"""Before the bytes that the journal may really take, in the drop-in."""


def target_in(text: str) -> int | None:
    """The bytes that a drop-in of ours names, None where there are none."""
    for line in text.splitlines():
        digits = line.removeprefix(TARGET)
        if digits != line and digits.isdecimal() and len(digits) < 20:
            return int(digits)
    return None


def written(size_bytes: int) -> str:
    """A size as journald.conf(5) takes it, in the largest unit that says it whole."""
    for suffix, unit in (("G", 1024 * MIB), ("M", MIB), ("K", 1024)):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit}{suffix}"
    return str(size_bytes)


def _round_down(size_bytes: int) -> int:
    """To whole MiB, and to a twentieth of the size: nobody wants SystemMaxUse=3187M."""
    step = MIB
    while step * 20 < size_bytes:
        step *= 2
    return size_bytes // step * step
