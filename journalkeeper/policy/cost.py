# SPDX-License-Identifier: LGPL-2.1-or-later
"""The cost and the gain of a rewrite, whether it pays, and whether the gain came true.

The cost is bytes written. The gain is extents that a cold reader no longer seeks for and bytes that the disk gets back.

An archive is priced as a whole: it is rewritten once, compressed, and then never again. An active file is priced per
MiB. A threshold of T extents per MiB costs about 256/T written bytes for each byte that journald dirties (measured,
journalkeeper-figures(7)). So T is the wear that the admin agreed to.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from math import inf
from typing import Final

from journalkeeper.config import Config
from journalkeeper.model import MIB, Action, JournalFile, Kind, Outcome, Range, Reason, Skip, Verb, count_ideal_extents
from journalkeeper.model.plans import join_ranges
from journalkeeper.model.units import Compression, parse_compression, pluralize
from journalkeeper.policy.case import Case

EXPECTED_RATIO: Final = 0.25
"""The compressed size of a journal divided by its plain size, a cautious value: zstd left 14 and 22% of two aged
archives (measured), zstd:3 12 to 15% elsewhere (systemd d71ece3).
"""

READ_IOPS: Final = 150
"""The reads per second of a slow volume, such as a small cloud volume or a hard disk. Cold reads are priced with it."""

ENOUGH: Final = 0.5
"""The share of the expected saving that a rewrite must reach.

Expectations are rough: up to a tenth off for compressed data, and more for an active file, to which journald appends
meanwhile. Useless rewrites saved nothing at all (measured).
"""


def add_savings(action: Action) -> Action:
    """Return `action` of any verb with estimates of the disk bytes freed and of a cold reader's seconds (READ_IOPS)."""
    removed_extents = max(0, action.extents_before - action.extents_expected)
    return action._replace(
        disk_bytes_saved=estimate_freed_bytes(action), read_seconds_saved=removed_extents / READ_IOPS
    )


def estimate_freed_bytes(action: Action) -> int:
    """Return the estimated bytes that the action frees: the disk usage less its shared part and the new data's size.

    It is at least 0, and 0 for a directory, a rotation and an active file. Compressed data has EXPECTED_RATIO of its
    size. Without a measured disk usage the estimate is low: a fragmented file often occupies twice as much.
    """
    file = action.target
    if not isinstance(file, JournalFile) or file.kind is Kind.ACTIVE:
        return 0
    lies, measured = file.extents, file.disk_bytes
    compressed = lies.encoded_bytes * EXPECTED_RATIO
    plain = lies.data_bytes - lies.encoded_bytes
    held = plain + compressed + lies.unwritten_bytes if measured is None else measured
    kept = held * lies.shared_bytes / max(1, lies.data_bytes + lies.unwritten_bytes)
    left = plain + compressed if action.compress == "no" else lies.data_bytes * EXPECTED_RATIO
    return max(0, round(held - kept - left))


def is_useless_rewrite(extents_before: int, extents_expected: int, extents_after: int) -> bool:
    """Return whether a rewrite saved less than ENOUGH of the expected; False if that is 0, or unknown (0 extents)."""
    expected = extents_before - extents_expected if extents_expected else 0
    return expected > 0 and extents_before - extents_after < expected * ENOUGH


def count_least_extents(runs: Iterable[tuple[int, int]], *, compressed: bool) -> int:
    """Return the fewest extents of data in these (offset, length) runs, which must not touch, wherever they lie."""
    return sum(count_ideal_extents(length, compressed=compressed) for _, length in runs)


FALLOCATE_BYTES: Final = 8 * MIB
"""journald allocates in such steps and cuts an archive off at its last byte (systemd, FILE_SIZE_INCREASE; 257 cuts
nothing off). An archive of 2.3 MiB occupied 8.6 MiB, one of 5.1 MiB 8 MiB (measured).
"""

TWICE: Final = 4
"""A byte that the disk stores twice until a snapshot is deleted costs as much as this many written bytes: AllowUnshare=
auto lets an archive take a quarter of its shared bytes.
"""

NEAR_IDEAL: Final = 1.1
"""A file with up to this many times the ideal number of extents counts as whole."""


def propose(case: Case) -> Action | Skip:
    """Return the rewrite that pays (`add_savings` comes later), or a Skip: IDEAL up to NEAR_IDEAL, else NO_GAIN."""
    return _judge_archive(case) if case.is_at_rest else _judge_active(case)


def _judge_archive(case: Case) -> Action | Skip:
    """Return a copy of any NOCOW file, a rewrite for a request of other compression or for a gain, or else a Skip."""
    file, compression = case.file, case.compression
    if file.nocow:
        return _plan_whole_file(case, Verb.REWRITE, Reason.NOCOW_ARCHIVE)
    verb = Verb.DEFRAGMENT if compression is None else Verb.COMPRESS
    if case.needs_other_compression:
        # A defragmentation leaves compressed extents of full length as they are: only a copy is plain.
        ideal = count_ideal_extents(file.size_bytes, compressed=compression is not None)
        verb = Verb.REWRITE if compression is None else verb
        return _plan_whole_file(case, verb, Reason.ASKED)._replace(extents_expected=max(1, ideal))
    if (reason := _find_archive_gain(case, compression)) is not None:
        return _plan_whole_file(case, verb, reason)
    count = f"{pluralize(file.extents.total, 'extent')}, where {file.ideal_extents:,} would be ideal"
    count += f"; not compressed: {case.obstacle}" if case.obstacle and not file.compressed else ""
    if file.extents.total <= max(1, file.ideal_extents) * NEAR_IDEAL:
        return Skip(file.path, Reason.IDEAL, count)
    return Skip(file.path, Reason.NO_GAIN, f"{count}; a rewrite saves less than MinExtents= and MinReclaim=")


def _find_archive_gain(case: Case, compression: Compression | None) -> Reason | None:
    """Return FRAGMENTED (MinExtents=, NEAR_IDEAL), or by MinReclaim= PINNED (unused bytes) or UNCOMPRESSED, or None."""
    file, defrag = case.file, case.config.defrag
    after = _count_extents_after(file, compression)
    if file.extents.total - after >= defrag.min_extents and file.extents.total > after * NEAR_IDEAL:
        return Reason.FRAGMENTED
    # journald truncates an archive within its last allocation, which stays occupied: FIEMAP does not report the rest.
    known = file.disk_bytes is not None
    behind = max(0, (file.disk_bytes or 0) - file.extents.data_bytes) if known else -file.size_bytes % FALLOCATE_BYTES
    moves = known and (compression is not None or file.extents.total > 1)
    if max(file.extents.unwritten_bytes, behind if moves else 0) >= defrag.min_reclaim_bytes:  # the two can overlap
        return Reason.PINNED
    plain = file.extents.data_bytes - file.extents.encoded_bytes
    saved = plain * (1 - EXPECTED_RATIO) + behind
    if compression is not None and not file.compressed and saved >= defrag.min_reclaim_bytes:
        return Reason.UNCOMPRESSED
    return None


def _count_extents_after(file: JournalFile, compression: Compression | None) -> int:
    """Return the ideal number of extents after a rewrite. None keeps the form; only new compression can add extents."""
    ideal = count_ideal_extents(file.extents.data_bytes, compressed=compression is not None or file.compressed)
    return ideal if compression is not None and not file.compressed else min(ideal, file.extents.total)


def count_second_copy_bytes(file: JournalFile, compression: Compression | None) -> int:
    """Return the bytes that a rewrite stores twice: shared data, times EXPECTED_RATIO if compressed now or later."""
    shared_bytes = min(file.extents.shared_bytes, file.extents.data_bytes)  # unwritten extents can be shared, too
    return round(shared_bytes * (EXPECTED_RATIO if compression is not None or file.compressed else 1))


def _plan_whole_file(case: Case, verb: Verb, reason: Reason) -> Action:
    """Return an Action with one range, the whole file, and the expected extents. Its detail is why a level is lost."""
    file, compression = case.file, case.compression
    return Action(
        path=file.path,
        action=verb,
        reason=reason,
        target=file,
        ranges=(Range(0, file.size_bytes, file.extents.total),),
        bytes_to_write=file.extents.data_bytes,
        extents_before=file.extents.total,
        extents_expected=max(1, _count_extents_after(file, compression)),
        compress="no" if compression is None else str(compression),
        unshared_bytes=count_second_copy_bytes(file, compression),
        detail=case.lost_level if compression is not None else "",
    )


def _judge_active(case: Case) -> Action | Skip:
    """Return the defragmentation of the costly MiBs, even if AllowUnshare= excludes every one; a Skip without any."""
    file = case.file
    # If AllowUnshare= excludes all, the veto against shared data needs to know that they would pay.
    costly = find_costly_mibs(file, case.config, case.allow_unshare) or find_costly_mibs(file, case.config)
    count = f"{pluralize(file.extents.total, 'extent')} in {file.size_bytes / MIB:.0f} MiB"
    if not costly:
        if file.extents.total <= max(1, file.ideal_extents) * NEAR_IDEAL:
            return Skip(file.path, Reason.IDEAL, count)
        most = case.config.defrag.extents_per_mib
        return Skip(file.path, Reason.NO_GAIN, f"{count}; no MiB has {most} extents to merge (ExtentsPerMiB=)")
    parts = (Range(mib * MIB, min(MIB, file.size_bytes - mib * MIB), file.extents.per_mib[mib]) for mib in costly)
    ranges = join_ranges(parts)
    stay = len(costly) * count_ideal_extents(MIB, compressed=file.compressed)
    stay += sum(extents for mib, extents in enumerate(file.extents.left_per_mib) if mib in costly)
    return _plan_whole_file(case, Verb.DEFRAGMENT, Reason.FRAGMENTED)._replace(
        ranges=ranges,
        bytes_to_write=sum(part.length for part in ranges),
        extents_expected=min(file.extents.total, file.extents.total - sum(part.extents for part in ranges) + stay),
        unshared_bytes=sum(shared for mib, shared in enumerate(file.extents.shared_per_mib) if mib in costly),
    )


def find_costly_mibs(file: JournalFile, config: Config, unshares: str = "yes") -> list[int]:
    """Return the indexes of the MiBs of an active file in which ExtentsPerMiB= or more removable extents begin, and
    more than a rewrite leaves.

    `unshares` is AllowUnshare=: with no, a MiB that shares data does not count; with auto, it needs up to 1 + TWICE
    times as many extents. MiBs behind the end of the file are left out: it may have been truncated since the count.
    """
    threshold = max(config.defrag.extents_per_mib, count_ideal_extents(MIB, compressed=file.compressed) + 1)
    price = {"yes": 0.0, "auto": TWICE / MIB, "no": inf}[unshares]
    inside = file.extents.per_mib[: -(-file.size_bytes // MIB)]
    left, shared = (row[: len(inside)] for row in (file.extents.left_per_mib, file.extents.shared_per_mib))
    return [
        mib
        for mib, (extents, stay, twice) in enumerate(zip_longest(inside, left, shared, fillvalue=0))
        if extents - stay >= threshold * (1 + (twice and twice * price))
    ]


def is_fragmented(file: JournalFile, after: Outcome | None, config: Config) -> bool:
    """Return whether a rewrite would pay because of the number of extents, if no rule forbade it.

    It pays if an active file has a costly MiB, or if it takes MinExtents= from an archive that is not NEAR_IDEAL, NOCOW
    or not. `after` is the outcome of an action since the look, or None; an active file with one is not fragmented.
    """
    if file.kind is Kind.ACTIVE:
        return after is None and bool(find_costly_mibs(file, config))
    total = file.extents.total if after is None else after.extents_after
    if total < config.defrag.min_extents:
        return False  # a rewrite cannot save so many; most files end here
    whole = count_ideal_extents(file.extents.data_bytes, compressed=becomes_compressed(file, config))
    return total - whole >= config.defrag.min_extents and total > whole * NEAR_IDEAL


def becomes_compressed(file: JournalFile, config: Config) -> bool:
    """Return whether the file is compressed, or is any archive (also with +C or +m) while Compress= is not "no"."""
    return file.compressed or (file.kind is not Kind.ACTIVE and parse_compression(config.defrag.compress) is not None)
