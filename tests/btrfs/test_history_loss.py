# SPDX-License-Identifier: LGPL-2.1-or-later
"""A real journald at its limit deletes at a rotation what the price of the rotation says."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.config import Config
from journalkeeper.model import MIB, Request
from journalkeeper.policy.case import Cases
from journalkeeper.policy.rotate import Question
from journalkeeper.probe.bed import Bed
from tests import hosts
from tests.btrfs.journals import look

pytestmark = [pytest.mark.root, pytest.mark.slow]

FILE = 8 * MIB


def find_archives(place: Bed) -> dict[Path, int]:
    return {path: path.stat().st_blocks * 512 for path in place.journald.journal.glob("*@*")}


def log(place: Bed, size_bytes: int) -> None:
    for _ in range(size_bytes // 12_000):
        place.journald.log(base64.b64encode(os.urandom(9000)).decode())


@pytest.mark.parametrize(
    "limits", [{"system_max_use_bytes": 48 * MIB}, {"system_max_files": 6}], ids=["bytes", "files"]
)
def test_a_rotation_deletes_what_was_predicted(make_bed: Callable[..., Bed], limits: dict[str, int]) -> None:
    known = {"system_max_use_bytes": 1 << 30, "system_max_files": 1000, **limits}
    use, files = known["system_max_use_bytes"], known["system_max_files"]
    settings = (f"SystemMaxUse={use}", f"SystemMaxFileSize={FILE}", "SystemKeepFree=1M", f"SystemMaxFiles={files}")
    place = make_bed(*settings, size="2G")
    instance = hosts.instance(
        directory=str(place.journald.journal),
        system_max_file_size_bytes=FILE,
        system_keep_free_bytes=0,
        available_bytes=1 << 40,
        **known,
    )
    predicted, deleted = [], []
    for size_bytes in (7 * MIB, 7 * MIB, 4 * MIB, 6 * MIB, 7 * MIB, 5 * MIB, 3 * MIB, 6 * MIB, 2 * MIB, 5 * MIB):
        log(place, size_bytes)
        place.journald.sync()
        before = find_archives(place)
        rows = look(*place.journald.journal.iterdir())
        cases = Cases(hosts.host(*rows, instances=(instance,)), Request(), Config())
        loss = Question(instance, cases, 0).loss
        assert loss is not None
        place.journald.rotate()
        after = find_archives(place)
        predicted.append(loss.deleted_bytes)
        deleted.append(sum(size for path, size in before.items() if path not in after))
    assert any(deleted)
    assert predicted == deleted
