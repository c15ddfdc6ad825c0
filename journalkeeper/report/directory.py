# SPDX-License-Identifier: LGPL-2.1-or-later
"""The story of one journald's directory: its owner, its window, and the span of its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from journalkeeper.health.evidence import Unknown
from journalkeeper.model import Instance, JournalFile, Sums, Window
from journalkeeper.model.escape import shown
from journalkeeper.model.units import DAY_US, INFINITY_US, counted, format_size, format_span
from journalkeeper.report.retention import bound, bytes_per_day
from journalkeeper.report.story import Decision, decision_lines, describe_window, facts
from journalkeeper.report.text import UNKNOWN, when


class Place(NamedTuple):
    """A directory with its files, except those with a problem; `window` is None if no plan has one."""

    now_us: int
    instance: Instance
    files: tuple[JournalFile, ...]
    window: Window | None
    decided: Decision | Unknown | None


class Retention(NamedTuple):
    """The span and sizes of the present history, and the limits.

    `full_span_us` is the span of history that all limits together permit at the present rate, as in `journalkeeper
    retention`; None if it is unknown or there is no such limit. `binding` names the limit that is most used up.
    """

    files: int
    size_bytes: int
    allocated_bytes: int
    disk_bytes: int | None
    oldest_us: int | None
    newest_us: int | None
    max_use_bytes: int | None
    max_files: int
    max_retention_us: int
    full_span_us: int | None
    binding: str | None


def retention(place: Place) -> Retention:
    """Return the present history of a directory and the limit that will end its growth.

    journald counts allocated bytes against SystemMaxUse=, or against less if SystemKeepFree= requires it. It deletes
    the oldest archive beyond the first limit that is reached. Source: journald.conf(5); systemd 252, journal-vacuum.c.
    """
    files, instance, every = place.files, place.instance, Sums.of(place.files)
    allocated = every.allocated_bytes
    heads = [file.head_time_us for file in files if file.head_time_us]
    tails = [file.tail_time_us for file in files if file.tail_time_us]
    oldest, newest = min(heads, default=None), max(tails, default=None)
    use = _use_bytes(instance, allocated)
    rate = bytes_per_day(files)
    span = newest - oldest if oldest is not None and newest is not None and newest > oldest else None
    return Retention(
        files=len(files),
        size_bytes=every.size_bytes,
        allocated_bytes=allocated,
        disk_bytes=None if every.unmeasured else every.disk_bytes,
        oldest_us=oldest,
        newest_us=newest,
        max_use_bytes=use,
        max_files=instance.system_max_files,
        max_retention_us=instance.max_retention_us,
        full_span_us=None if not use or isinstance(rate, Unknown) else bound(instance, files, rate)[2],
        binding=_binding(instance, len(files), allocated, use, span),
    )


def _use_bytes(instance: Instance, allocated: int) -> int | None:
    """Return the number of bytes that journald permits its files now; None if unknown, 0 without a limit."""
    use, keep_free, available = (
        instance.system_max_use_bytes,
        instance.system_keep_free_bytes,
        instance.available_bytes,
    )
    if not use or keep_free is None or available is None:
        return use
    return min(use, allocated + max(0, available - keep_free))


def _binding(instance: Instance, files: int, allocated: int, use: int | None, span: int | None) -> str | None:
    """Return the name of the limit that is most used up; None without limits."""
    used = [(files / instance.system_max_files, "SystemMaxFiles=")] if instance.system_max_files else []
    if use:
        name = "SystemMaxUse=" if use == instance.system_max_use_bytes else "SystemKeepFree="
        used.append((allocated / use, name))
    if instance.max_retention_us not in {0, INFINITY_US} and span is not None:
        used.append((span / instance.max_retention_us, "MaxRetentionSec="))
    return max(used)[1] if used else None


def lines(place: Place, width: int) -> list[str]:
    """Return the directory's story as lines of at most `width` characters, except for its name."""
    instance, kept = place.instance, retention(place)
    space = f" of namespace {shown(instance.namespace)}" if instance.namespace else ""
    asked = "can be asked to rotate" if instance.rotatable else "cannot be asked to rotate"
    rows = [
        ("Instance", f"{shown(instance.name)}, its journald{space} {asked}"),
        ("Settings", _settings(instance)),
        ("Window", UNKNOWN if place.window is None else describe_window(place.window)),
        ("Files", _files(place.files)),
        ("History", _history(kept)),
        ("Limit", _limit(kept)),
        *(("Decided", text) for text in decision_lines(place.decided, None, place.now_us)),
    ]
    return [shown(instance.directory), "", *facts(rows, width)]


def _settings(instance: Instance) -> str:
    synced = "never" if instance.sync_interval_us == INFINITY_US else format_span(instance.sync_interval_us, 1000)
    form = "new files are NOCOW" if instance.nocow else "new files are copy on write"
    return f"Storage={shown(instance.storage)}, SyncIntervalSec={synced}, {form}"


def _files(files: Sequence[JournalFile]) -> str:
    every = Sums.of(files)
    found = f"{counted(every.files, 'file')}, {counted(every.extents, 'extent')}"
    return f"{found}, where {every.ideal_extents:,} would be ideal"


def _history(kept: Retention) -> str:
    if kept.oldest_us is None or kept.newest_us is None:
        return "no entries"
    span = format_span(max(0, kept.newest_us - kept.oldest_us))
    disk = UNKNOWN if kept.disk_bytes is None else format_size(kept.disk_bytes)
    said = f"{span}, from {when(kept.oldest_us)} to {when(kept.newest_us)}"
    return f"{said}, in {format_size(kept.allocated_bytes)} as journald counts, on disk {disk}"


def _limit(kept: Retention) -> str:
    if kept.binding is None:
        return "no limit" if kept.max_use_bytes == 0 else UNKNOWN
    said = f"{kept.binding} is reached first: {counted(kept.files, 'file')} of {kept.max_files:,}"
    if kept.max_use_bytes:
        said += f", {format_size(kept.allocated_bytes)} of {format_size(kept.max_use_bytes)}"
    if kept.max_retention_us not in {0, INFINITY_US}:
        said += f", at most {format_span(kept.max_retention_us)}"
    if kept.full_span_us is not None:
        days_us = kept.full_span_us // DAY_US * DAY_US
        said += f"; at this rate the limits keep about {format_span(days_us or kept.full_span_us)}"
    return said
