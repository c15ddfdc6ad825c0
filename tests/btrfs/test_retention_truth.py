# SPDX-License-Identifier: LGPL-2.1-or-later
"""A real journald keeps the history that `retention` and `explain` promise.

Time is counted in messages, one for each hour, so that the rate is steady on a busy machine.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest

from journalkeeper.model import MIB, JournalFile, Kind
from journalkeeper.model.manager import HistorySpan
from journalkeeper.model.units import HOUR_US
from journalkeeper.probe.bed import Bed
from journalkeeper.report.retention import summarize_history
from tests import hosts
from tests.btrfs.journals import look
from tests.journal_files import OFFSETS

pytestmark = [pytest.mark.root, pytest.mark.slow]

USE, FILE = 96 * MIB, 4 * MIB
ROTATIONS = 6
"""The number of rotations after which journald's own history is measured."""


def log(place: Bed, messages: int = 20) -> None:
    for _ in range(messages):
        place.journald.log(base64.b64encode(os.urandom(9000)).decode())


def in_messages(path: Path) -> JournalFile:
    """Return a file as the observer sees it, with its times counted in messages."""
    (file,) = look(path)
    with path.open("rb") as opened:
        head, tail = (
            int.from_bytes(os.pread(opened.fileno(), 8, OFFSETS[field]), "little")
            for field in ("head_seqnum", "tail_seqnum")
        )
    return file._replace(head_time_us=head * HOUR_US, tail_time_us=tail * HOUR_US)


def files(place: Bed) -> list[JournalFile]:
    """Look at all files; again where journald deletes one meanwhile."""
    while True:
        try:
            return [in_messages(path) for path in sorted(place.journald.journal.iterdir())]
        except FileNotFoundError:
            continue


def await_files(place: Bed, wanted: Callable[[set[str]], bool]) -> None:
    """Log until the names of the files are as `wanted`."""
    while not wanted(set(os.listdir(place.journald.journal))):
        log(place)


def test_journald_keeps_the_history_that_is_promised_from_3_and_from_30_files(make_bed: Callable[..., Bed]) -> None:
    limits = (f"SystemMaxUse={USE}", f"SystemMaxFileSize={FILE}", "SystemKeepFree=1M", "SystemMaxFiles=1000")
    place = make_bed(*limits, size="2G")
    instance = hosts.instance(
        directory=f"{place.journald.journal}",
        system_max_use_bytes=USE,
        system_max_file_size_bytes=FILE,
        system_keep_free_bytes=MIB,
        available_bytes=2048 * MIB,
        system_max_files=1000,
    )

    def promised() -> HistorySpan:
        return summarize_history(instance, files(place))

    await_files(place, lambda names: len(names) >= 4)
    archive = next(one for one in files(place) if one.kind is Kind.ARCHIVED)
    log(place, (archive.tail_time_us - archive.head_time_us) // HOUR_US * 9 // 10)  # the active file is nearly full
    early = promised()
    first = min(name for name in os.listdir(place.journald.journal) if "@" in name)
    (oldest,) = (one for one in files(place) if one.path.endswith(first))
    await_files(place, lambda names: first not in names)
    late = promised()
    from_3_us, from_30_us = early.full_span_us, late.full_span_us
    assert early.next_deleted_us == oldest.tail_time_us
    assert early.newest_us is not None
    assert late.newest_us is not None
    assert early.next_deletion_in_us is not None
    assert 1 / 1.5 < (late.newest_us - early.newest_us) / early.next_deletion_in_us < 1.5
    kept_us = []
    for _ in range(ROTATIONS):
        await_files(place, set(os.listdir(place.journald.journal)).__ne__)
        present = files(place)
        kept_us.append(max(one.tail_time_us for one in present) - min(one.head_time_us for one in present))
    assert from_3_us == pytest.approx(mean(kept_us), rel=0.1), (len(present), from_30_us)
    assert from_30_us == pytest.approx(mean(kept_us), rel=0.1), (len(present), from_3_us)
