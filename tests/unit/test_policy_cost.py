# SPDX-License-Identifier: LGPL-2.1-or-later
"""What pays and what does not, on both sides of each threshold."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper.config import Config
from journalkeeper.model import KIB, MIB, Action, Kind, Range, Reason, Request, Skip, Verb
from journalkeeper.policy.cost import propose
from journalkeeper.policy.saving import EXPECTED_RATIO, add_savings, estimate_freed_bytes
from tests.hosts import case, configured, extents, file

PLAIN = Request(compress="no")
MIN_EXTENTS = Config().defrag.min_extents
MIN_RECLAIM = Config().defrag.min_reclaim_bytes
EXTENTS_PER_MIB = Config().defrag.extents_per_mib


def action(*args: Any, **words: Any) -> Action:
    answer = propose(case(*args, **words))
    assert isinstance(answer, Action), answer
    return answer


def skip(*args: Any, **words: Any) -> Skip:
    answer = propose(case(*args, **words))
    assert isinstance(answer, Skip), answer
    return answer


# archives, by extents


@pytest.mark.parametrize("compress", ["zstd", "no"])
def test_a_datacow_archive_is_rewritten_from_min_extents_on(compress: str) -> None:
    """32 MiB have 256 extents when compressed and one when plain."""
    ideal = 256 if compress == "zstd" else 1
    enough = file(extents=extents(ideal + MIN_EXTENTS, encoded_bytes=32 * MIB if compress == "zstd" else 0))
    assert action(enough, Request(compress=compress)).reason is Reason.FRAGMENTED
    almost = file(extents=enough.extents._replace(total=ideal + MIN_EXTENTS - 1))
    assert skip(almost, Request(compress=compress)).reason is Reason.NO_GAIN


def test_of_a_large_file_a_tenth_more_than_ideal_is_whole() -> None:
    """MinExtents alone would rewrite a gigabyte for 32 of 8,192 extents."""
    size = 1024 * MIB
    words: dict[str, Any] = {"data_bytes": size, "encoded_bytes": size}
    ideal = 8192
    assert skip(file(size_bytes=size, extents=extents(ideal + MIN_EXTENTS, **words))).reason is Reason.IDEAL
    assert skip(file(size_bytes=size, extents=extents(int(ideal * 1.1), **words))).reason is Reason.IDEAL
    assert action(file(size_bytes=size, extents=extents(int(ideal * 1.1) + 1, **words))).reason is Reason.FRAGMENTED


def test_ideal_is_told_from_no_gain() -> None:
    compressed = extents(total=256, encoded_bytes=32 * MIB)
    assert skip(file(extents=compressed)).reason is Reason.IDEAL
    assert skip(file(extents=compressed._replace(total=281))).reason is Reason.IDEAL
    assert skip(file(extents=compressed._replace(total=282))).reason is Reason.NO_GAIN


def test_an_empty_archive_is_ideal() -> None:
    assert skip(file(size_bytes=0, extents=extents(0, 0))).reason is Reason.IDEAL


# archives, by bytes


def plain_of(reclaimable: int) -> int:
    """How much plain data gives `reclaimable` bytes back when it is compressed."""
    return round(reclaimable / (1 - EXPECTED_RATIO)) + 1


def test_a_plain_archive_is_compressed_from_min_reclaim_on() -> None:
    data = plain_of(MIN_RECLAIM)
    assert action(file(size_bytes=data, extents=extents(1, data), disk_bytes=data)).reason is Reason.UNCOMPRESSED
    less = data - 8
    assert skip(file(size_bytes=data, extents=extents(1, less), disk_bytes=less)).reason is Reason.IDEAL


@pytest.mark.parametrize(
    ("size", "disk", "reason"),
    [
        (5 * MIB, 5 * MIB, Reason.IDEAL),  # 3.75 MiB come free
        (5 * MIB, 5 * MIB + 256 * KIB, Reason.UNCOMPRESSED),
        (5 * MIB, None, Reason.UNCOMPRESSED),  # 3 MiB of journald's 8 were cut off, for all that FIEMAP tells
        (2 * MIB, None, Reason.UNCOMPRESSED),
        (8 * MIB, 0, Reason.UNCOMPRESSED),
    ],
)
def test_what_was_cut_off_comes_free_with_the_compression(size: int, disk: int | None, reason: Reason) -> None:
    one = file(size_bytes=size, extents=extents(1, size), disk_bytes=disk)
    answer = propose(case(one))
    assert answer.reason is reason


def test_a_file_of_whole_steps_has_nothing_cut_off() -> None:
    data = 4 * MIB
    assert skip(file(size_bytes=8 * MIB, extents=extents(1, data))).reason is Reason.IDEAL
    assert action(file(size_bytes=8 * MIB, extents=extents(1, plain_of(MIN_RECLAIM)))).reason is Reason.UNCOMPRESSED


def test_a_plain_archive_stays_plain_when_that_was_asked_for() -> None:
    assert skip(file(), PLAIN).reason is Reason.IDEAL
    assert skip(file(), None, configured("defrag", compress="no")).reason is Reason.IDEAL


def test_half_compressed_is_compressed() -> None:
    half = extents(256, 32 * MIB, encoded_bytes=16 * MIB)
    assert skip(file(extents=half)).reason is Reason.IDEAL
    assert action(file(extents=half._replace(encoded_bytes=16 * MIB - 1))).reason is Reason.UNCOMPRESSED


def test_only_what_is_plain_can_be_compressed() -> None:
    mixed = extents(80, 10 * MIB, encoded_bytes=5 * MIB - 1)
    known: dict[str, Any] = {"size_bytes": 10 * MIB, "disk_bytes": 10 * MIB}
    assert skip(file(extents=mixed, **known)).reason is Reason.NO_GAIN
    assert action(file(extents=mixed._replace(encoded_bytes=4 * MIB), **known)).reason is Reason.UNCOMPRESSED


def test_unwritten_space_pays_from_min_reclaim_on() -> None:
    pinned = extents(2, unwritten_bytes=MIN_RECLAIM)
    assert action(file(extents=pinned), PLAIN).reason is Reason.PINNED
    assert skip(file(extents=pinned._replace(unwritten_bytes=MIN_RECLAIM - 1)), PLAIN).reason is Reason.NO_GAIN


def test_what_the_disk_keeps_behind_an_end_pays_from_min_reclaim_on() -> None:
    """journald cuts an archive off in the midst of what it had allocated."""
    cut = file(extents=extents(2, MIB), disk_bytes=MIB + MIN_RECLAIM)
    assert action(cut, PLAIN).reason is Reason.PINNED
    assert skip(cut._replace(disk_bytes=MIB + MIN_RECLAIM - 1), PLAIN).reason is Reason.NO_GAIN
    assert skip(cut._replace(disk_bytes=None), PLAIN).reason is Reason.NO_GAIN


def test_what_one_extent_pins_comes_free_only_by_compression() -> None:
    one = file(extents=extents(1, MIB), disk_bytes=MIB + MIN_RECLAIM)
    assert skip(one, PLAIN).reason is Reason.IDEAL
    assert action(one).reason is Reason.PINNED


# archives, how


@pytest.mark.parametrize("kind", [Kind.ARCHIVED, Kind.UNCLEAN])
@pytest.mark.parametrize(
    ("nocow", "compress", "verb"),
    [
        (False, "zstd", Verb.COMPRESS),
        (False, "zstd:9", Verb.COMPRESS),
        (False, "no", Verb.DEFRAGMENT),
        (True, "zstd", Verb.REWRITE),
        (True, "no", Verb.REWRITE),
    ],
)
def test_the_verb_follows_form_and_compression(kind: Kind, nocow: bool, compress: str, verb: Verb) -> None:
    found = action(file(kind, nocow=nocow, extents=extents(5000)), Request(compress=compress))
    assert (found.action, found.compress) == (verb, compress)


def test_the_configured_compression_counts_unless_asked_otherwise() -> None:
    config = configured("defrag", compress="lzo")
    fragmented = file(extents=extents(5000))
    assert action(fragmented, None, config).compress == "lzo"
    assert action(fragmented, Request(compress="zlib:3"), config).compress == "zlib:3"


def test_an_archive_is_rewritten_whole_and_its_data_is_the_price() -> None:
    found = action(file(size_bytes=32 * MIB, extents=extents(5000, 20 * MIB, unwritten_bytes=12 * MIB)))
    assert found.ranges == (Range(0, 32 * MIB, 5000),)
    assert found.bytes_to_write == 20 * MIB
    assert found.not_after_us is None


@pytest.mark.parametrize(
    ("disk_mib", "shared_mib", "encoded_mib", "compress", "saved_mib"),
    [
        (None, 0, 0, "zstd", 32 - 5),
        (None, 0, 0, "no", 12),
        (60, 0, 0, "zstd", 60 - 5),
        (60, 0, 0, "no", 60 - 20),
        (60, 32, 0, "zstd", 0),
        (60, 16, 0, "zstd", 30 - 5),
        (60, 0, 20, "no", 60 - 5),
        (3, 0, 20, "zstd", 0),
    ],
    ids=["at least", "plain", "measured", "measured plain", "shared", "half shared", "stays compressed", "never less"],
)
def test_what_a_rewrite_saves_on_disk(
    disk_mib: int | None, shared_mib: int, encoded_mib: int, compress: str, saved_mib: int
) -> None:
    lies = extents(
        5000, 20 * MIB, unwritten_bytes=12 * MIB, encoded_bytes=encoded_mib * MIB, shared_bytes=shared_mib * MIB
    )
    one = file(extents=lies, disk_bytes=None if disk_mib is None else disk_mib * MIB, nocow=True)
    config = configured("defrag", allow_unshare=True)
    assert estimate_freed_bytes(action(one, Request(compress=compress), config)) == saved_mib * MIB


def test_what_a_rewrite_saves_a_cold_reader() -> None:
    """3,000 reads of a disk that does 150 in a second."""
    found = action(file(extents=extents(3256)))
    assert (found.extents_expected, add_savings(found).read_seconds_saved) == (256, 20.0)
    assert add_savings(found._replace(extents_expected=4000)).read_seconds_saved == 0


@pytest.mark.parametrize(
    ("total", "encoded_bytes", "compress", "expected"),
    [
        (5000, 0, "zstd", 256),
        (5000, 0, "no", 1),
        (5000, 32 * MIB, "no", 256),
        (1, 0, "zstd", 256),
        (300, 32 * MIB, "zstd", 256),
        (1, 32 * MIB, "zstd", 1),
    ],
    ids=["compressed", "plain", "stays compressed", "a whole plain one has more", "again", "never more than it has"],
)
def test_the_expected_extents(total: int, encoded_bytes: int, compress: str, expected: int) -> None:
    one = file(nocow=True, extents=extents(total, encoded_bytes=encoded_bytes))
    assert action(one, Request(compress=compress)).extents_expected == expected


# active files


def active(*per_mib: int, size_bytes: int | None = None, **words: Any) -> Any:
    size = len(per_mib) * MIB if size_bytes is None else size_bytes
    return file(
        Kind.ACTIVE, size_bytes=size, extents=extents(sum(per_mib), size, per_mib=per_mib, **words), nocow=False
    )


def test_a_mib_of_an_active_file_is_rewritten_from_the_threshold_on() -> None:
    found = action(active(0, EXTENTS_PER_MIB, EXTENTS_PER_MIB - 1, 200))
    assert found.ranges == (Range(MIB, MIB, EXTENTS_PER_MIB), Range(3 * MIB, MIB, 200))
    assert (found.action, found.reason, found.compress) == (Verb.DEFRAGMENT, Reason.FRAGMENTED, "no")
    assert found.bytes_to_write == 2 * MIB
    assert found.extents_expected == EXTENTS_PER_MIB - 1 + 2


def test_an_active_file_below_the_threshold_is_no_gain() -> None:
    assert skip(active(EXTENTS_PER_MIB - 1, EXTENTS_PER_MIB - 1)).reason is Reason.NO_GAIN


def test_a_whole_active_file_is_ideal() -> None:
    assert skip(active(1, 0, 0)).reason is Reason.IDEAL
    assert skip(active()).reason is Reason.IDEAL
    assert skip(active(8, 8, 8, 8, encoded_bytes=4 * MIB)).reason is Reason.IDEAL


def test_work_on_an_active_file_ends_with_its_window() -> None:
    one = case(active(200))
    found = propose(one._replace(window=one.window._replace(closes_at_us=77)))
    assert isinstance(found, Action)
    assert found.not_after_us == 77


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
