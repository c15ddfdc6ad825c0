# SPDX-License-Identifier: LGPL-2.1-or-later
"""Many files are looked at by two threads: the answer is the one that a single thread gives."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.model import JournalFile, Reason
from journalkeeper.observe import observer as module
from journalkeeper.observe import survey
from journalkeeper.observe.observer import Observer
from journalkeeper.probe.bed import Bed
from tests.journal_files import archive_name

pytestmark = pytest.mark.root

FILES = 2 * survey.WORTH_A_THREAD + 1
SECOND_NS = 1_000_000_000


@pytest.fixture
def many(make_bed: Callable[..., Bed]) -> Path:
    """A directory of FILES archives, quiet for a minute."""
    bed = make_bed("SystemMaxFileSize=512K")
    archive = bed.journald.rotate()
    bed.journald.stop()
    for number in range(FILES):
        shutil.copy(archive, archive.with_name(archive_name(number)))
    archive.unlink()
    (bed.journald.journal / "system.journal").unlink()
    os.sync()
    return bed.journald.journal


def look(observer: Observer, directory: Path, later_s: int = 60) -> tuple[JournalFile, ...]:
    return observer.look([str(directory)], now_us=time.time_ns() // 1000 + later_s * 1_000_000).files


@pytest.mark.parametrize("at_once", [survey.WORTH_A_THREAD - 1, survey.WORTH_A_THREAD, FILES - 1, FILES, FILES + 1])
def test_two_threads_see_what_one_sees_in_the_same_order(
    many: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    (many / archive_name(3)).write_bytes(b"no journal")
    observer = Observer(with_disk_bytes=True)
    by_two = look(observer, many)
    assert observer.opened == len(by_two) == FILES
    assert [file.path for file in by_two] == sorted(file.path for file in by_two)
    assert [file.problem for file in by_two if file.problem] == [Reason.BAD_HEADER]
    monkeypatch.setattr(survey, "WORTH_A_THREAD", FILES + 1)
    assert look(Observer(with_disk_bytes=True), many) == by_two


def test_a_second_look_opens_the_changed_file_alone(many: Path) -> None:
    observer = Observer()
    before = look(observer, many)
    changed = before[FILES // 3]
    os.utime(changed.path, ns=(0, changed.mtime_ns - SECOND_NS))
    after = look(observer, many)
    assert observer.opened == FILES + 1
    assert [one.path for one, two in zip(before, after, strict=True) if one != two] == [changed.path]


def failing_at(path: str, error: BaseException) -> Callable[[survey.Opened], survey.Fields]:
    """The search, but for one file."""
    real = survey._measure_extents

    def search(opened: survey.Opened) -> survey.Fields:
        if opened.row.path == path:
            raise error
        return real(opened)

    return search


def left_open(many: Path) -> list[str]:
    return [link for link in os.listdir("/proc/self/fd") if str(many) in os.path.realpath(f"/proc/self/fd/{link}")]


@pytest.mark.parametrize("bad", [0, FILES - 1])
def test_an_error_in_either_thread_is_one_files(many: Path, monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    path = sorted(str(entry) for entry in many.iterdir())[bad]
    monkeypatch.setattr(survey, "_measure_extents", failing_at(path, MemoryError(path)))
    found = look(Observer(), many)
    assert [file.path for file in found if file.problem is Reason.INTERNAL_ERROR] == [path]
    assert len([file for file in found if file.problem is None]) == FILES - 1
    assert left_open(many) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("bad", [0, FILES - 1])
def test_the_programs_end_in_either_thread_is_ours(many: Path, monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    path = sorted(str(entry) for entry in many.iterdir())[bad]
    monkeypatch.setattr(survey, "_measure_extents", failing_at(path, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        look(Observer(), many)
    assert left_open(many) == []
