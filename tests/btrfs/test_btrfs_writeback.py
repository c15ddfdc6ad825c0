# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write-back of one range leaves the other dirty pages dirty."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from journalkeeper.btrfs import fiemap
from journalkeeper.btrfs.writeback import sync_file_range, wait_writeback
from journalkeeper.model import MIB
from tests.patience import eventually

pytestmark = pytest.mark.root


@pytest.mark.parametrize(
    ("write_back", "dirty"), [(sync_file_range, [(0, MIB), (4 * MIB, MIB)]), (wait_writeback, None)]
)
def test_only_the_range_is_written(
    make_file: Callable[..., int], write_back: Callable[[int, int, int], None], dirty: list[tuple[int, int]] | None
) -> None:
    """A sync of another program writes all ranges, so there are several tries."""
    fd = make_file()
    written = [(2 * number * MIB, MIB) for number in range(3)]

    def list_dirty() -> list[tuple[int, int]]:
        rows = fiemap.iterate_extents(fd, sync=False)
        return [(row.logical, row.length) for row in rows if row.flags & fiemap.FIEMAP_EXTENT_DELALLOC]

    def leaves_the_rest_dirty() -> bool:
        os.ftruncate(fd, 0)  # FIEMAP shows no dirty pages where something is on the disk
        for offset, length in written:
            os.pwrite(fd, b"x" * length, offset)
        write_back(fd, 2 * MIB, 2 * MIB)
        return eventually(lambda: list_dirty() == (dirty or written), 1)

    assert eventually(leaves_the_rest_dirty)
