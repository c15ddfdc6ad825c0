# SPDX-License-Identifier: LGPL-2.1-or-later
"""Defragmentation of a range, on real files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from journalkeeper.btrfs import placement
from journalkeeper.btrfs.defrag import HAS_LEVELS, defrag_range
from journalkeeper.btrfs.disk import read_disk_bytes
from journalkeeper.model import MIB
from journalkeeper.model.compression import Compression
from tests.journal_files import write_out
from tests.patience import TRIES

pytestmark = pytest.mark.root

MakeFile = Callable[..., int]


def make_prose(size: int) -> bytes:
    """Return text that every algorithm packs, and a high level tighter than a low one."""
    dice = random.Random(5)  # noqa: S311 - the same text each time
    words = ["".join(dice.choices("etaoinshrdlu", k=dice.randint(2, 11))) for _ in range(2000)]
    phrases = [" ".join(dice.choices(words, k=8)) for _ in range(400)]
    return ". ".join(dice.choices(phrases, k=size // 16)).encode()[:size]


def test_only_the_extents_of_the_range_are_joined(fragmented: MakeFile) -> None:
    """A sync of another program may write the dirty pages one by one, each as an extent."""

    def joins(number: int) -> bool:
        fd = fragmented(512, f"file{number}")
        before = os.pread(fd, 2 * MIB, 0)
        defrag_range(fd, 0, MIB)
        low, high = placement.survey(fd, sync=True, per_mib=True).per_mib
        assert high == 256
        assert os.pread(fd, 2 * MIB, 0) == before
        return low <= 32

    assert any(map(joins, TRIES))


def test_a_level_is_used_if_the_kernel_has_levels(make_file: MakeFile) -> None:
    sizes = []
    with nullcontext() if HAS_LEVELS else pytest.raises(OSError, match=r"Operation not supported|Invalid argument"):
        for level in (1, 15):
            fd = make_file(make_prose(MIB), f"level{level}")
            defrag_range(fd, 0, MIB, compress=Compression("zstd", level))
            write_out(fd)
            sizes.append(read_disk_bytes(fd) or 0)
    assert not HAS_LEVELS or sizes[1] < sizes[0] < MIB


@pytest.mark.parametrize("length", [0, -1])
def test_an_empty_range_is_not_the_rest_of_the_file(fragmented: MakeFile, length: int) -> None:
    fd = fragmented(64)
    with pytest.raises(ValueError, match="must be positive"):
        defrag_range(fd, 0, length)
    assert placement.survey(fd, sync=True).total == 64
