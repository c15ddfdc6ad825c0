# SPDX-License-Identifier: LGPL-2.1-or-later
"""A real journald at its limit deletes at a rotation what its price says, and keeps the history that is promised.

The promise counts time in messages, one for each hour, so that the rate is steady on a busy machine.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest

from journalkeeper.config import Config
from journalkeeper.model import MIB, JournalFile, Kind, Request
from journalkeeper.model.manager import HistorySpan
from journalkeeper.model.units import HOUR_US
from journalkeeper.policy.case import Cases
from journalkeeper.policy.history_loss import Limits
from journalkeeper.policy.rotate import Question
from journalkeeper.probe.bed import Bed, read_state
from journalkeeper.report.retention import summarize_history
from tests import hosts
from tests.bench.limit import Journal
from tests.btrfs.journals import look
from tests.journal_files import OFFSETS
from tests.patience import eventually

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


def require_predicted(
    journal: Path, limits: dict[str, int], log: Callable[[int], object], rotate: Callable[[], object]
) -> None:
    """Fail unless each of some rotations deletes the bytes that were predicted, or one file less.

    Vacuum sees the file that just ended before or after journald's thread has cut it. `log` stores a number of bytes
    and syncs.
    """
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
    assert all(0 <= predicted - deleted <= FILE for predicted, deleted in found), found
    assert any(predicted == deleted > 0 for predicted, deleted in found), found


def count_messages(journal: Path) -> int:
    """Return the number of entries from the oldest to the newest."""
    numbers = []
    for path in journal.iterdir():
        with path.open("rb") as file:
            numbers += [
                int.from_bytes(os.pread(file.fileno(), 8, OFFSETS[name]), "little")
                for name in ("head_seqnum", "tail_seqnum")
            ]
    return max(numbers) - min(one for one in numbers if one) + 1


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_the_simulation_keeps_the_history_that_journald_keeps(
    make_bed: Callable[..., Bed], limits: dict[str, int]
) -> None:
    journald = make_bed(*list_settings(limits), size="2G").journald
    model = Journal(Limits(limits.get("system_max_use_bytes", 0), FILE, limits.get("system_max_files", 0), FILE), 0)
    each_bytes, kept = 9_600, []  # of a message in an archive: journald compresses base64
    for messages in (540, 420, 560, 250, 480, 400, 120, 530, 550, 300, 560, 200, 470, 350, 510, 560):
        for _ in range(messages):
            journald.log(base64.b64encode(os.urandom(9000)).decode())
        model.log(messages * each_bytes, 0)
        journald.rotate()
        model.rotate(0)
        kept.append((count_messages(journald.journal), model.history_bytes / each_bytes))
    real, simulated = map(mean, zip(*kept[6:], strict=True))
    assert simulated == pytest.approx(real, rel=0.05), kept


def test_journald_ends_a_file_at_the_predicted_size(make_bed: Callable[..., Bed]) -> None:
    journald = make_bed("SystemMaxFileSize=2M").journald
    predicted = list[int]()
    while not (archives := find_archives(journald.journal)):
        for number in range(20):
            journald.log(f"message {len(predicted)} {number}")
        journald.sync()
        predicted += [file.full_bytes for file in look(*journald.journal.iterdir()) if file.kind is Kind.ACTIVE]
    (archive,) = archives
    journald.log("the next rotation cuts archives off at their last entries, if they were flushed by the first")
    assert eventually(lambda: journald.rotate() and archive.stat().st_size < 2 * MIB)
    size_bytes = archive.stat().st_size
    # entry arrays double now and then
    assert all(0.8 < full_bytes / size_bytes < 1.25 for full_bytes in predicted[len(predicted) // 4 : -1])


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_a_rotation_deletes_what_was_predicted(make_bed: Callable[..., Bed], limits: dict[str, int]) -> None:
    journald = make_bed(*list_settings(limits), size="2G").journald

    def log(size_bytes: int) -> None:
        for _ in range(size_bytes // 12_000):
            journald.log(base64.b64encode(os.urandom(9000)).decode())
        journald.sync()

    require_predicted(journald.journal, limits, log, journald.rotate)


# the history that is promised


USE, SMALL = 96 * MIB, 4 * MIB
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
    limits = (f"SystemMaxUse={USE}", f"SystemMaxFileSize={SMALL}", "SystemKeepFree=1M", "SystemMaxFiles=1000")
    place = make_bed(*limits, size="2G")
    instance = hosts.instance(
        directory=f"{place.journald.journal}",
        system_max_use_bytes=USE,
        system_max_file_size_bytes=SMALL,
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
