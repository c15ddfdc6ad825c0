# SPDX-License-Identifier: LGPL-2.1-or-later
"""Extents are counted as filefrag(8) counts them, however a file lies, and no seek means no work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.btrfs import fiemap
from journalkeeper.config import Config, Defrag
from journalkeeper.model import MIB, JournalFile, Kind, Reason, Request
from journalkeeper.probe.scratch_volume import extents, filefrag, run
from tests.btrfs.journals import look, planned
from tests.forms import FORMS, STEP, alternating, every_form
from tests.journal_files import PAGE

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def forms() -> Iterator[dict[Path, str]]:
    with every_form(2) as (_, files):
        yield files


def rows(paths: list[Path]) -> dict[str, JournalFile]:
    return {file.path: file for file in look(*paths)}


def test_every_form_is_there(forms: dict[Path, str]) -> None:
    assert set(forms.values()) == {*FORMS, "flushed", "unclean", "stock nocow"}


def test_counts_are_within_one_percent_of_filefrags(forms: dict[Path, str]) -> None:
    paths = sorted(forms)
    ours = rows(paths)
    theirs = dict(zip(paths, filefrag(*paths, sync=True), strict=True))
    apart = {path: (ours[str(path)].extents.total, count) for path, count in theirs.items()}
    assert {path: both for path, both in apart.items() if abs(both[0] - both[1]) > both[1] / 100} == {}
    assert max(theirs.values()) > fiemap.BATCH_ROWS


def test_the_ideal_is_never_above_what_is_there(forms: dict[Path, str]) -> None:
    seen = rows(sorted(forms)).values()
    assert [file for file in seen if file.ideal_extents > file.extents.total] == []


def test_a_compressed_file_with_holes_has_no_higher_ideal_than_extents(place: Path) -> None:
    path = place / "system.journal"
    path.touch()
    run("btrfs", "property", "set", path, "compression", "zstd")
    with open(path, "wb") as file:
        file.write(b"x" * 4 * MIB)
        file.truncate(64 * MIB)
    run("sync", "-f", path)
    (seen,) = look(path)
    assert seen.compressed
    assert seen.extents.total == seen.ideal_extents == extents(path, sync=True) < 64 * 8


@pytest.mark.parametrize("nocow", [False, True])
@pytest.mark.parametrize("number", [0, 3])
def test_a_contiguous_run_is_one_extent_across_batches(place: Path, *, nocow: bool, number: int) -> None:
    path = place / "system.journal"
    alternating(path, number, nocow=nocow)
    with open(path, "rb") as file:
        listed = fiemap.extents(file.fileno(), sync=True)
        survey = fiemap.survey(file.fileno(), sync=False, per_mib=True)
        assert len(listed) > fiemap.BATCH_ROWS / 2
        assert (survey.total, fiemap.count(file.fileno(), sync=False)) == (1, 1)
    assert survey.per_mib == (1,)
    assert survey.data_bytes + survey.unwritten_bytes == STEP
    assert survey.unwritten_bytes >= STEP // 2 - PAGE


@pytest.mark.parametrize("nocow", [False, True])
def test_an_active_file_of_alternating_blocks_gets_no_action(place: Path, journal_bytes: bytes, *, nocow: bool) -> None:
    path = place / "system.journal"
    alternating(path, 0, nocow=nocow)
    with open(path, "r+b", buffering=0) as file:
        header = bytearray(journal_bytes[:PAGE])
        header[16] = 0  # OFFLINE
        file.write(header)
    run("sync", "-f", path)
    for config in (Config(), Config(defrag=Defrag(extents_per_mib=3))):
        plan = planned(path, request=Request(now=True), config=config)
        assert plan.actions == ()
        assert [skip.reason for skip in plan.skipped] in ([Reason.IDEAL], [Reason.NO_GAIN])
    (seen,) = look(path)
    assert (seen.kind, seen.problem, seen.nocow) == (Kind.ACTIVE, None, nocow)
    assert seen.extents.total <= 2


def test_stock_nocow_files_of_journald_have_the_extents_of_a_whole_file(forms: dict[Path, str]) -> None:
    stock = [path for path, form in forms.items() if form == "stock nocow"]
    for path in stock:
        with open(path, "rb") as file:
            assert fiemap.count(file.fileno(), sync=False) <= 2 < len(fiemap.extents(file.fileno(), sync=False))
