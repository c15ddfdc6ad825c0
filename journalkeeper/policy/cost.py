# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a rewrite costs and brings, and whether it pays.

Cost is bytes handed to the filesystem, gain is extents that a cold reader
no longer seeks for and bytes that the disk gets back; one without the other is no reason.

Archives are priced whole: once, compressed, and then never again. Active files are
priced by the MiB: in the long run a threshold of T extents per MiB costs about 256/T
written bytes for each byte that journald dirties (measured, journalkeeper-figures(7)), so T
is the wear that the admin agreed to.
"""

from __future__ import annotations

from typing import Final

from journalkeeper.config import Config
from journalkeeper.model import MIB, Action, JournalFile, Kind, Outcome, Range, Reason, Skip, Verb, ideal_extents
from journalkeeper.model.compression import Compression, parse_compression
from journalkeeper.policy.case import Case
from journalkeeper.policy.saving import EXPECTED_RATIO

FALLOCATE_BYTES: Final = 8 * MIB
"""journald allocates in such steps and cuts an archive off at its last byte (systemd, FILE_SIZE_INCREASE;
257 cuts nothing off). An archive of 2.3 MiB occupied 8.6, one of 5.1 MiB 8 (measured)."""

NEAR_IDEAL: Final = 1.1
"""Up to this many times the ideal number of extents a file counts as whole."""


def propose(case: Case) -> Action | Skip:
    """The one action that pays for this file, or why none does."""
    return _archive(case) if case.at_rest else _active(case)


def _archive(case: Case) -> Action | Skip:
    file, compression = case.file, case.compression
    if file.nocow:
        return _whole(file, Verb.REWRITE, Reason.NOCOW_ARCHIVE, compression)
    verb = Verb.DEFRAGMENT if compression is None else Verb.COMPRESS
    if case.other_compression:
        # A defragmentation leaves compressed extents of full length as they are: only a copy is plain.
        ideal = ideal_extents(file.size_bytes, compressed=compression is not None)
        verb = Verb.REWRITE if compression is None else verb
        return _whole(file, verb, Reason.ASKED, compression)._replace(extents_expected=max(1, ideal))
    reason = _archive_reason(case, compression)
    if reason is not None:
        return _whole(file, verb, reason, compression)
    count = f"{file.extents.total} extents, {file.ideal_extents} are ideal"
    if file.extents.total <= max(1, file.ideal_extents) * NEAR_IDEAL:
        return Skip(file.path, Reason.IDEAL, count)
    return Skip(file.path, Reason.NO_GAIN, f"{count}: less than MinExtents= and MinReclaim= ask for")


def _archive_reason(case: Case, compression: Compression | None) -> Reason | None:
    """Why rewriting this datacow archive pays, or None."""
    file, defrag = case.file, case.config.defrag
    after = _expected(file, compression)
    if file.extents.total - after >= defrag.min_extents and file.extents.total > after * NEAR_IDEAL:
        return Reason.FRAGMENTED
    if _pinned_bytes(file, moves=compression is not None or file.extents.total > 1) >= defrag.min_reclaim_bytes:
        return Reason.PINNED
    plain = file.extents.data_bytes - file.extents.encoded_bytes
    saved = plain * (1 - EXPECTED_RATIO) + _cut_off_bytes(file)
    if compression is not None and not file.compressed and saved >= defrag.min_reclaim_bytes:
        return Reason.UNCOMPRESSED
    return None


def _cut_off_bytes(file: JournalFile) -> int:
    """What stays occupied behind the end of a plain archive, and comes free when its last extent is moved.

    Where nobody could ask the disk it is the rest of journald's last fallocate. That is too much for a file
    whose last block was written once more, which is then rewritten for less, and once.
    """
    if file.disk_bytes is not None:
        return max(0, file.disk_bytes - file.extents.data_bytes)
    return -file.size_bytes % FALLOCATE_BYTES


def _pinned_bytes(file: JournalFile, *, moves: bool) -> int:
    """What the disk keeps and nobody can read, at the least; only what FIEMAP tells where nobody asked the disk.

    journald cuts a file off as it archives it, and the rest of the 8 MiB that it had allocated
    in one extent stays occupied behind the last byte, where FIEMAP does not look. It comes free
    where a rewrite `moves` the data, which it does not with one extent that stays plain.
    """
    behind = file.disk_bytes - file.extents.data_bytes if moves and file.disk_bytes is not None else 0
    return max(file.extents.unwritten_bytes, behind)


def _expected(file: JournalFile, compression: Compression | None) -> int:
    """The number of extents that the whole file will have; more than now where a whole plain one is compressed."""
    ideal = ideal_extents(file.extents.data_bytes, compressed=compression is not None or file.compressed)
    return ideal if compression is not None and not file.compressed else min(ideal, file.extents.total)


def beside_snapshot_bytes(file: JournalFile, compression: Compression | None) -> int:
    """What a rewrite of the whole file is expected to store beside the data that a snapshot keeps of it."""
    shared_bytes = min(file.extents.shared_bytes, file.extents.data_bytes)  # unwritten extents can be shared, too
    return round(shared_bytes * (EXPECTED_RATIO if compression is not None or file.compressed else 1))


def _whole(file: JournalFile, verb: Verb, reason: Reason, compression: Compression | None) -> Action:
    return Action(
        path=file.path,
        action=verb,
        reason=reason,
        target=file,
        ranges=(Range(0, file.size_bytes, file.extents.total),),
        bytes_to_write=file.extents.data_bytes,
        extents_before=file.extents.total,
        extents_expected=max(1, _expected(file, compression)),
        compress="no" if compression is None else str(compression),
        unshared_bytes=beside_snapshot_bytes(file, compression),
    )


def _active(case: Case) -> Action | Skip:
    file = case.file
    ideal_per_mib = ideal_extents(MIB, compressed=file.compressed)
    ranges = worth_it(file, case.config)
    count = f"{file.extents.total} extents in {file.size_bytes / MIB:.0f} MiB"
    if not ranges:
        if file.extents.total <= max(1, file.ideal_extents) * NEAR_IDEAL:
            return Skip(file.path, Reason.IDEAL, count)
        return Skip(file.path, Reason.NO_GAIN, f"{count}: no MiB has as many as ExtentsPerMiB= asks for")
    gone = sum(part.extents for part in ranges)
    return Action(
        path=file.path,
        action=Verb.DEFRAGMENT,
        reason=Reason.FRAGMENTED,
        target=file,
        ranges=ranges,
        bytes_to_write=sum(part.length for part in ranges),
        extents_before=file.extents.total,
        extents_expected=file.extents.total - gone + sum(-(-part.length // MIB) * ideal_per_mib for part in ranges),
        not_after_us=case.window.closes_at_us,
        unshared_bytes=min(file.extents.shared_bytes, sum(part.length for part in ranges)),
    )


def worth_it(file: JournalFile, config: Config) -> tuple[Range, ...]:
    """The ranges of an active file that have as many extents as ExtentsPerMiB= asks for."""
    threshold = max(config.defrag.extents_per_mib, ideal_extents(MIB, compressed=file.compressed) + 1)
    return dense_ranges(file.extents.per_mib, threshold, file.size_bytes)


def dense_ranges(per_mib: tuple[int, ...], threshold: int, size_bytes: int) -> tuple[Range, ...]:
    """The runs of MiBs in which at least `threshold` extents begin, cut at the end of the file."""
    ranges: list[Range] = []
    for number, extents in enumerate(per_mib):
        offset = number * MIB
        length = min(MIB, size_bytes - offset)
        if extents < threshold or length <= 0:
            continue
        if ranges and ranges[-1].offset + ranges[-1].length == offset:
            last = ranges.pop()
            ranges.append(Range(last.offset, last.length + length, last.extents + extents))
        else:
            ranges.append(Range(offset, length, extents))
    return tuple(ranges)


def is_fragmented(file: JournalFile, after: Outcome | None, config: Config) -> bool:
    """Whether a rewrite would pay by MinExtents= or ExtentsPerMiB=, were there no reason against it.

    `after` is what was done to the file since it was looked at, None if nothing was.
    """
    if file.kind is Kind.ACTIVE:
        return after is None and bool(worth_it(file, config))
    total = file.extents.total if after is None else after.extents_after
    whole = ideal_extents(file.extents.data_bytes, compressed=rewritten_compressed(file, config))
    return total - whole >= config.defrag.min_extents and total > whole * NEAR_IDEAL


def rewritten_compressed(file: JournalFile, config: Config) -> bool:
    """Whether a rewrite would leave it compressed."""
    return file.compressed or (file.kind is not Kind.ACTIVE and parse_compression(config.defrag.compress) is not None)
