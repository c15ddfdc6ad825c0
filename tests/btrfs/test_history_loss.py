# SPDX-License-Identifier: LGPL-2.1-or-later
"""A real journald at its limit deletes at a rotation what the price of the rotation says."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.config import Config
from journalkeeper.model import MIB, Request
from journalkeeper.policy.case import Cases
from journalkeeper.policy.rotate import Question
from journalkeeper.probe.bed import Bed, read_state
from tests import hosts
from tests.btrfs.journals import look

pytestmark = [pytest.mark.root, pytest.mark.slow]

ARCHIVED = 2
FILE = 8 * MIB
SIZES_MIB = (7, 7, 4, 6, 7, 5, 3, 6, 2, 5)
LIMITS = {"bytes": {"system_max_use_bytes": 48 * MIB}, "files": {"system_max_files": 6}}


def find_archives(journal: Path) -> dict[Path, int]:
    return {path: path.stat().st_blocks * 512 for path in journal.glob("system@*")}


def list_settings(limits: dict[str, int]) -> list[str]:
    use, files = limits.get("system_max_use_bytes", 1 << 30), limits.get("system_max_files", 1000)
    return [f"SystemMaxUse={use}", f"SystemMaxFileSize={FILE}", "SystemKeepFree=1M", f"SystemMaxFiles={files}"]


def compare(
    journal: Path, limits: dict[str, int], log: Callable[[int], object], rotate: Callable[[], object]
) -> list[tuple[int, int]]:
    """Return (bytes predicted, bytes deleted) of each rotation. `log` stores a number of bytes and syncs."""
    known = {"system_max_use_bytes": 1 << 30, "system_max_files": 1000, **limits}
    instance = hosts.instance(
        directory=str(journal),
        system_max_file_size_bytes=FILE,
        system_keep_free_bytes=0,
        available_bytes=1 << 40,
        **known,
    )
    found = []
    for size_mib in SIZES_MIB:
        log(size_mib * MIB)
        while any(read_state(path) != ARCHIVED for path in find_archives(journal)):
            time.sleep(0.05)  # journald cuts a file that it archives in a thread of its own
        before = find_archives(journal)
        cases = Cases(hosts.host(*look(*journal.iterdir()), instances=(instance,)), Request(), Config())
        loss = Question(instance, cases, 0).loss
        assert loss is not None
        rotate()
        after = find_archives(journal)
        found.append((loss.deleted_bytes, sum(size for path, size in before.items() if path not in after)))
    return found


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_a_rotation_deletes_what_was_predicted(make_bed: Callable[..., Bed], limits: dict[str, int]) -> None:
    journald = make_bed(*list_settings(limits), size="2G").journald

    def log(size_bytes: int) -> None:
        for _ in range(size_bytes // 12_000):
            journald.log(base64.b64encode(os.urandom(9000)).decode())
        journald.sync()

    found = compare(journald.journal, limits, log, journald.rotate)
    assert any(deleted for _, deleted in found)
    assert [predicted for predicted, _ in found] == [deleted for _, deleted in found]
