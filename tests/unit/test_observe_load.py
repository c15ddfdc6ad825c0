# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mean time of a read by the kernel's counters: of the slowest disk, and of enough reads only."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from journalkeeper.observe import load


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ({"sda": (1000, 4000)}, 4000.0),
        ({"sda": (1000, 4000), "sdb": (1000, 9000)}, 9000.0),
        ({"sda": (1000, 4000), "sdc": (1000, 9000)}, 4000.0),
        ({"sda": (load.READS, 50)}, 500.0),
        ({"sda": (load.READS - 1, 50)}, None),
        ({"sda": (0, 0)}, None),
        ({}, None),
    ],
)
def test_the_mean_is_of_the_slowest_disk_of_the_volume(
    monkeypatch: pytest.MonkeyPatch, counters: dict[str, tuple[int, int]], expected: float | None
) -> None:
    known = {name: SimpleNamespace(read_count=count, read_time=ms) for name, (count, ms) in counters.items()}
    monkeypatch.setattr(load, "disks", lambda _: ["sda", "sdb"])
    monkeypatch.setattr(load, "_counters", lambda: known)
    assert load.mean_read_us(["uuid"]) == expected
