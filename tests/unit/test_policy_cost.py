# SPDX-License-Identifier: LGPL-2.1-or-later
"""What pays and what does not, on both sides of each threshold."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper.config import Config
from journalkeeper.model import GIB, KIB, MAX_FILE_BYTES, MIB, Action, JournalFile, Kind, Range, Reason, Request, Verb
from journalkeeper.policy.cost import EXPECTED_RATIO, add_savings, estimate_freed_bytes, propose
from tests.hosts import case, configured, extents, file

PLAIN, ZSTD = Request(compress="no"), Request(compress="zstd")
MIN_EXTENTS = Config().defrag.min_extents
MIN_RECLAIM = Config().defrag.min_reclaim_bytes
EXTENTS_PER_MIB = Config().defrag.extents_per_mib
ENOUGH = round(MIN_RECLAIM / (1 - EXPECTED_RATIO)) + 1
"""Plain data that gives MinReclaim back when it is compressed."""


def action(*args: Any, **words: Any) -> Action:
    answer = propose(case(*args, **words))
    assert isinstance(answer, Action), answer
    return answer


def active(*per_mib: int, size_bytes: int | None = None, **words: Any) -> JournalFile:
    size = len(per_mib) * MIB if size_bytes is None else size_bytes
    found = extents(sum(per_mib), size, per_mib=per_mib, **words)
    return file(Kind.ACTIVE, size_bytes=size, extents=found, nocow=False)


def lies(total: int, data: int, *, size: int | None = None, disk: int | None = None, **words: int) -> JournalFile:
    """An archive of `total` extents, as large as its data; `words` are its extents'."""
    return file(size_bytes=data if size is None else size, disk_bytes=disk, extents=extents(total, data, **words))


@pytest.mark.parametrize(
    ("one", "request_", "reason"),
    [
        # archives, by extents: 32 MiB have 256 when compressed and one when plain
        (lies(256 + MIN_EXTENTS, 32 * MIB, encoded_bytes=32 * MIB), ZSTD, Reason.FRAGMENTED),
        (lies(256 + MIN_EXTENTS - 1, 32 * MIB, encoded_bytes=32 * MIB), ZSTD, Reason.NO_GAIN),
        # of a large file a tenth more than ideal is whole:
        # MinExtents alone would rewrite a gigabyte for 32 of 8,192 extents
        (lies(8192 + MIN_EXTENTS, GIB, encoded_bytes=GIB), None, Reason.IDEAL),
        (lies(int(8192 * 1.1), GIB, encoded_bytes=GIB), None, Reason.IDEAL),
        (lies(int(8192 * 1.1) + 1, GIB, encoded_bytes=GIB), None, Reason.FRAGMENTED),
        # ideal is told from no gain
        (lies(281, 32 * MIB, encoded_bytes=32 * MIB), None, Reason.IDEAL),
        (lies(282, 32 * MIB, encoded_bytes=32 * MIB), None, Reason.NO_GAIN),
        (lies(0, 0), None, Reason.IDEAL),
        # archives, by bytes: a plain one is compressed from MinReclaim on
        (lies(1, ENOUGH, disk=ENOUGH), None, Reason.UNCOMPRESSED),
        (lies(1, ENOUGH - 8, size=ENOUGH, disk=ENOUGH - 8), None, Reason.IDEAL),
        # what was cut off comes free with the compression
        (lies(1, 5 * MIB, disk=5 * MIB), None, Reason.IDEAL),  # 3.75 MiB come free
        (lies(1, 5 * MIB, disk=5 * MIB + 256 * KIB), None, Reason.UNCOMPRESSED),
        (lies(1, 5 * MIB), None, Reason.UNCOMPRESSED),  # 3 MiB of journald's 8 were cut off, for all that FIEMAP tells
        (lies(1, 8 * MIB, disk=0), None, Reason.UNCOMPRESSED),
        # a file of whole steps has nothing cut off
        (lies(1, 4 * MIB, size=8 * MIB), None, Reason.IDEAL),
        (lies(1, ENOUGH, size=8 * MIB), None, Reason.UNCOMPRESSED),
        # a plain archive stays plain when that was asked for
        (file(), PLAIN, Reason.IDEAL),
        # half compressed is compressed
        (lies(256, 32 * MIB, encoded_bytes=16 * MIB), None, Reason.IDEAL),
        (lies(256, 32 * MIB, encoded_bytes=16 * MIB - 1), None, Reason.UNCOMPRESSED),
        # only what is plain can be compressed
        (lies(80, 10 * MIB, disk=10 * MIB, encoded_bytes=5 * MIB - 1), None, Reason.NO_GAIN),
        (lies(80, 10 * MIB, disk=10 * MIB, encoded_bytes=4 * MIB), None, Reason.UNCOMPRESSED),
        # unwritten space pays from MinReclaim on
        (lies(2, 32 * MIB, unwritten_bytes=MIN_RECLAIM), PLAIN, Reason.PINNED),
        (lies(2, 32 * MIB, unwritten_bytes=MIN_RECLAIM - 1), PLAIN, Reason.NO_GAIN),
        # and so does what the disk keeps behind an end:
        # journald cuts an archive off in the midst of what it had allocated
        (lies(2, MIB, size=32 * MIB, disk=MIB + MIN_RECLAIM), PLAIN, Reason.PINNED),
        (lies(2, MIB, size=32 * MIB, disk=MIB + MIN_RECLAIM - 1), PLAIN, Reason.NO_GAIN),
        # what one extent pins comes free only by compression
        (lies(1, MIB, size=32 * MIB, disk=MIB + MIN_RECLAIM), PLAIN, Reason.IDEAL),
        (lies(1, MIB, size=32 * MIB, disk=MIB + MIN_RECLAIM), None, Reason.PINNED),
        # active files
        (active(EXTENTS_PER_MIB - 1, EXTENTS_PER_MIB - 1), None, Reason.NO_GAIN),
        (active(1, 0, 0), None, Reason.IDEAL),
        (active(8, 8, 8, 8, encoded_bytes=4 * MIB), None, Reason.IDEAL),
    ],
)
def test_the_rewrite_that_pays_and_its_reason(one: JournalFile, request_: Request | None, reason: Reason) -> None:
    answer = propose(case(one, request_))
    assert answer is not None
    assert (answer.reason, isinstance(answer, Action)) == (reason, reason not in {Reason.IDEAL, Reason.NO_GAIN})


# archives, how


@pytest.mark.parametrize("kind", [Kind.ARCHIVED, Kind.UNCLEAN])
@pytest.mark.parametrize(
    ("nocow", "compress", "verb"),
    [
        (False, "zstd:9", Verb.COMPRESS),
        (False, "no", Verb.DEFRAGMENT),
        (True, "zstd", Verb.REWRITE),
        (True, "no", Verb.REWRITE),
    ],
)
def test_the_verb_follows_form_and_compression(kind: Kind, nocow: bool, compress: str, verb: Verb) -> None:
    found = action(file(kind, nocow=nocow, extents=extents(5000)), Request(compress=compress))
    assert (found.action, found.compress) == (verb, compress)


@pytest.mark.parametrize(
    ("nocow", "has_levels", "compress", "detail"),
    [
        (False, True, "zlib:3", ""),
        (True, True, "zlib", "as zlib, not zlib:3: a copy takes no level"),
        (False, False, "zlib", "as zlib, not zlib:3: Linux before 6.15 takes no level"),
    ],
)
def test_a_level_that_is_not_applied_is_named(nocow: bool, has_levels: bool, compress: str, detail: str) -> None:
    found = action(file(nocow=nocow, extents=extents(5000)), Request(compress="zlib:3"), has_levels=has_levels)
    assert (found.compress, found.detail) == (compress, detail)


def test_an_archive_is_rewritten_whole_and_its_data_is_the_price() -> None:
    found = action(file(size_bytes=32 * MIB, extents=extents(5000, 20 * MIB, unwritten_bytes=12 * MIB)))
    assert found.ranges == (Range(0, 32 * MIB, 5000),)
    assert found.bytes_to_write == 20 * MIB


def unsharing(shared_mib: int, encoded_mib: int, compress: str, disk: int | None = None) -> Action:
    """The rewrite of a NOCOW archive of 20 MiB of data and 12 MiB unwritten, where AllowUnshare= permits it."""
    words = {"unwritten_bytes": 12 * MIB, "encoded_bytes": encoded_mib * MIB, "shared_bytes": shared_mib * MIB}
    one = lies(5000, 20 * MIB, size=32 * MIB, disk=disk, **words)._replace(nocow=True)
    return action(one, Request(compress=compress), configured("defrag", allow_unshare=True))


@pytest.mark.parametrize(
    ("disk_mib", "shared_mib", "encoded_mib", "compress", "saved_mib"),
    [
        (None, 0, 0, "zstd", 32 - 5),
        (None, 0, 0, "no", 12),
        (None, 0, 20, "zstd", 12),
        (60, 0, 0, "no", 60 - 20),
        (60, 32, 0, "zstd", 0),
        (60, 16, 0, "zstd", 30 - 5),
        (60, 0, 20, "no", 60 - 5),
        (3, 0, 20, "zstd", 0),
    ],
    ids=["least", "plain", "compressed", "measured plain", "shared", "half shared", "kept", "never less"],
)
def test_a_rewrites_saving_on_disk(
    disk_mib: int | None, shared_mib: int, encoded_mib: int, compress: str, saved_mib: int
) -> None:
    found = unsharing(shared_mib, encoded_mib, compress, None if disk_mib is None else disk_mib * MIB)
    assert estimate_freed_bytes(found) == saved_mib * MIB


@pytest.mark.parametrize(
    ("shared_mib", "encoded_mib", "compress", "second_mib"),
    [(0, 0, "no", 0), (16, 0, "no", 16), (16, 0, "zstd", 4), (16, 20, "no", 4), (32, 0, "no", 20)],
)
def test_bytes_stored_twice_with_a_snapshot(shared_mib: int, encoded_mib: int, compress: str, second_mib: int) -> None:
    """No more than the data: 20 MiB, in which unwritten space is not counted."""
    assert unsharing(shared_mib, encoded_mib, compress).unshared_bytes == second_mib * MIB


def test_a_rewrites_saving_for_a_cold_reader() -> None:
    """3,000 reads of a disk that does 150 in a second."""
    found = action(file(extents=extents(3256)))
    assert (found.extents_expected, add_savings(found).read_seconds_saved) == (256, 20.0)
    assert add_savings(found._replace(extents_expected=4000)).read_seconds_saved == 0


@pytest.mark.parametrize(
    ("total", "data_bytes", "encoded_bytes", "compress", "expected"),
    [
        (5000, 32 * MIB, 0, "no", 1),
        (5000, 32 * MIB, 32 * MIB, "no", 256),  # it stays compressed
        (1, 32 * MIB, 0, "zstd", 256),  # a whole plain one has more
        (1, 32 * MIB, 32 * MIB, "zstd", 1),  # never more than it has
        (602, 24 * MIB + 1, 0, "zstd", 193),
        (602, 128 * KIB, 0, "zstd", 1),
    ],
)
def test_the_expected_extents(total: int, data_bytes: int, encoded_bytes: int, compress: str, expected: int) -> None:
    """They come from the data and not from holes: on a file of 8 EiB it was "602 -> 140,737,488,355,328"."""
    found = extents(total, data_bytes, encoded_bytes=encoded_bytes)
    one = file(nocow=True, size_bytes=MAX_FILE_BYTES, extents=found)
    assert action(one, Request(compress=compress)).extents_expected == expected


# active files


def test_a_mib_of_an_active_file_is_rewritten_from_the_threshold_on() -> None:
    found = action(active(0, EXTENTS_PER_MIB, EXTENTS_PER_MIB - 1, 200))
    assert found.ranges == (Range(MIB, MIB, EXTENTS_PER_MIB), Range(3 * MIB, MIB, 200))
    assert (found.action, found.reason, found.compress) == (Verb.DEFRAGMENT, Reason.FRAGMENTED, "no")
    assert found.bytes_to_write == 2 * MIB
    assert found.extents_expected == EXTENTS_PER_MIB - 1 + 2


@pytest.mark.parametrize(("count", "pays"), [(8, False), (9, True)])
def test_a_mib_that_a_compressing_mount_wrote_has_eight_extents_at_the_least(count: int, pays: bool) -> None:
    """With ExtentsPerMiB=8 and less each would be rewritten at every look, for ever."""
    one = active(count, size_bytes=MIB, encoded_bytes=MIB)
    answer = propose(case(one, None, configured("defrag", extents_per_mib=2)))
    assert isinstance(answer, Action) is pays
    if isinstance(answer, Action):
        assert answer.extents_expected == 8


@pytest.mark.parametrize(
    ("per_mib", "size_bytes", "ranges"),
    [
        ((16, 17, 0, 18), 4 * MIB, (Range(0, 2 * MIB, 33), Range(3 * MIB, MIB, 18))),
        ((16, 17), MIB + 4 * KIB, (Range(0, MIB + 4 * KIB, 33),)),  # a range ends with the file
        ((16, 17), MIB, (Range(0, MIB, 16),)),  # the file was truncated between the look at its extents and at its size
    ],
)
def test_neighbouring_mibs_are_one_range(per_mib: tuple[int, ...], size_bytes: int, ranges: tuple[Range, ...]) -> None:
    assert action(active(*per_mib, size_bytes=size_bytes)).ranges == ranges


def test_extents_next_to_unwritten_blocks_stay() -> None:
    """The kernel does not move an extent between two unwritten ones: 40 of the first MiB stay, and its data is one."""
    torn = extents(600, per_mib=(300, 5, 295), left_per_mib=(40, 2, 0))
    action = propose(case(file(Kind.ACTIVE, extents=torn, size_bytes=3 * MIB)))
    assert isinstance(action, Action)
    assert action.extents_expected == 5 + 41 + 1


@pytest.mark.parametrize(
    ("left", "pays"), [((), True), ((0, 0), True), ((1, 0), False), ((0, 1), True), ((16, 0), False)]
)
def test_extents_that_a_rewrite_leaves_are_no_reason_for_it(left: tuple[int, ...], *, pays: bool) -> None:
    answer = propose(case(active(EXTENTS_PER_MIB, 1, left_per_mib=left)))
    assert isinstance(answer, Action) is pays
