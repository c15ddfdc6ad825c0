# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sample of what tests/trust/powercuts.py tries, and that it finds what is lost."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.trust import powercuts
from tests.trust.cutdisk import BLOCK, ENTRY, FLUSH, Recording
from tests.trust.scenarios import SCENARIOS, record
from tests.trust.tally import Tally
from tests.trust.wholeness import Whole

SEED = 14
SIZE = 8 * BLOCK

needs_fuse = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no /dev/fuse")


def tried(scenario: str, count: int) -> Tally:
    """So many points of a scenario."""
    tally = Tally("power cuts", SEED)
    powercuts.replay(powercuts.points(count, SEED, [scenario]), tally, None)
    assert tally.points == count
    return tally


@pytest.mark.root
@pytest.mark.may_skip
@needs_fuse
@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_after_a_power_cut_nothing_is_lost_and_the_next_run_leaves_nothing(scenario: str) -> None:
    tally = tried(scenario, 2)
    assert tally.lost == {}
    assert tally.unclean == {}


@pytest.mark.root
@pytest.mark.may_skip
@needs_fuse
def test_what_is_not_there_is_found(tmp_path: Path) -> None:
    """As if there had been more than there was: another byte, one more entry, one more row but the last."""
    source = tmp_path / "recording"
    record("rotation", f"{SEED}", source)
    replay = powercuts.Replay(source, tmp_path / "replay")
    count = replay.marks.entries[-1][1]
    replay.marks.entries.append((replay.marks.ended, count + 1))
    replay.marks.rows.append((0, 1000))
    replay.marks.whole["state/lock"] = Whole("", 0, (0, 0), 0, 0, {}, 0, ())
    tally = Tally("power cuts", SEED)
    try:
        replay.examine(powercuts.Point(0, "rotation", 0, 1.0, torn=False, seed=""), tally)
    finally:
        replay.close()
    (found,) = tally.lost.values()
    assert "lock: sha256 was" in found
    assert f"1 of {count + 1} entries, the first is {count + 1}" in found
    assert " of 999 outcomes are recorded" in found


# the disk


def logged(tmp_path: Path, *entries: tuple[int, bytes] | None) -> Recording:
    """A recording of these writes, None being a flush."""
    log = tmp_path / "log"
    with open(log, "wb") as file:
        for entry in entries:
            offset, data = entry or (FLUSH, b"")
            file.write(ENTRY.pack(offset, len(data)) + data)
    return Recording(log, SIZE)


def on_disk(recording: Recording, image: Path, at: int, lost: random.Random | None = None) -> bytes:
    """The first byte of each block."""
    recording.cut(image, at, lost)
    return image.read_bytes()[::BLOCK]


def test_a_prefix_has_every_write_up_to_then(tmp_path: Path) -> None:
    recording = logged(tmp_path, (0, b"a" * BLOCK), (BLOCK, b"b" * 2 * BLOCK), None, (0, b"c" * BLOCK))
    image = tmp_path / "image"
    assert on_disk(recording, image, 0) == b"\0" * 8
    assert on_disk(recording, image, 1) == b"a" + b"\0" * 7
    assert on_disk(recording, image, 3) == b"abb" + b"\0" * 5
    assert on_disk(recording, image, 4) == b"cbb" + b"\0" * 5
    assert (len(recording), recording.flushes()) == (4, 1)
    assert [recording.number(length) for length in (0, ENTRY.size + BLOCK - 1, ENTRY.size + BLOCK)] == [0, 0, 1]


def test_what_was_flushed_is_there_and_of_the_rest_any_part(tmp_path: Path) -> None:
    recording = logged(tmp_path, (0, b"a" * BLOCK), None, (BLOCK, b"b" * 3 * BLOCK), (BLOCK, b"c" * BLOCK))
    dice = [random.Random(seed) for seed in range(200)]  # noqa: S311 - repeatable is the point
    found = {on_disk(recording, tmp_path / "image", 4, one) for one in dice}
    assert {disk[:1] for disk in found} == {b"a"}
    assert {disk[1:2] for disk in found} == {b"\0", b"b", b"c"}
    assert {disk[2:4] for disk in found} == {b"\0\0", b"b\0", b"\0b", b"bb"}
    assert {disk[4:] for disk in found} == {b"\0" * 4}


def test_points_of_a_seed_are_the_same_and_of_another_are_not() -> None:
    names = list(SCENARIOS)
    some = powercuts.points(60, 1, names)
    assert some == powercuts.points(60, 1, names)
    assert set(some) == {point for point in powercuts.points(90, 1, names) if point.number < 60}
    assert {point.share for point in some}.isdisjoint({point.share for point in powercuts.points(60, 2, names)})
    assert {point.scenario for point in some} == set(names)
    assert {point.torn for point in some} == {True, False}
