# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sizes and times that only an owner of `remote/` can make up: no run fails over them, and none is planned with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.engine import DAEMON, Engine
from journalkeeper.history.store import Record
from journalkeeper.model import Reason, Request
from journalkeeper.model.run import Report
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.btrfs.journals import go
from tests.hosts import MACHINE, read_past
from tests.journal_files import archive_name, put
from tests.trust.remote import CONFIG, CONTENT

MOST_BYTES = (1 << 63) - 4096
YEAR_2262_NS = 1 << 63


@pytest.fixture
def top() -> Iterator[Path]:
    """A journal directory with one archive of journald's and an empty `remote`."""
    with ScratchVolume("512M") as volume:
        top = volume.mountpoint / "journal"
        (top / MACHINE).mkdir(parents=True)
        (top / "remote").mkdir()
        put(top / MACHINE, CONTENT, archive_name(1))
        yield top


@pytest.fixture
def engine(top: Path, tmp_path: Path) -> Engine:
    """The service's."""
    return Engine(CONFIG, directories=(str(top),), state_directory=str(tmp_path / "state"), follows=True)


def reasons(report: Report) -> dict[str, Reason]:
    return {os.path.basename(skip.path): skip.reason for skip in report.plan.skipped if "/remote/" in skip.path}


@pytest.mark.root
@pytest.mark.parametrize("tail", [b"", b"data at the end"])
@pytest.mark.parametrize(
    "name", ["remote-{}.journal", "remote-a@0123456789abcdef0123456789abcdef-{:016x}-0000000000000001.journal"]
)
def test_huge_sparse_files_are_left_alone_and_the_rest_is_done(
    top: Path, engine: Engine, name: str, tail: bytes
) -> None:
    """The sum of two sizes passes 63 bits, and one count for each MiB passes the memory."""
    names = [name.format(number) for number in (1, 2)]
    for each in names:
        path = put(top / "remote", CONTENT, each)
        os.truncate(path, MOST_BYTES)
        fd = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(fd, tail, MOST_BYTES - len(tail))
            os.fsync(fd)
        finally:
            os.close(fd)
    report = go(engine, Request(), origin=DAEMON)
    assert [outcome.reason for outcome in report.outcomes] == [Reason.FRAGMENTED]
    assert report.notices == ()
    assert reasons(report) == dict.fromkeys(names, Reason.NOT_JOURNAL)
    assert any("7.9E large" in skip.detail for skip in report.plan.skipped)


@pytest.mark.root
def test_a_time_after_2262_is_left_alone_and_the_rest_is_recorded(top: Path, engine: Engine) -> None:
    path = put(top / "remote", CONTENT, "remote-" + archive_name(2))
    os.utime(path, ns=(0, YEAR_2262_NS))
    assert path.stat().st_mtime_ns == YEAR_2262_NS
    report = go(engine, Request(), origin=DAEMON)
    assert [outcome.reason for outcome in report.outcomes] == [Reason.FRAGMENTED]
    assert report.notices == ()
    assert reasons(report) == {path.name: Reason.NOT_JOURNAL}
    os.utime(path, ns=(0, YEAR_2262_NS - 1))
    again = go(engine, Request(), origin=DAEMON)
    assert [os.path.basename(outcome.path) for outcome in again.outcomes] == [path.name]
    assert again.notices == ()
    with Record(engine.state_directory) as record:
        (volume,) = again.host.volumes if again.host else ()
        (past,) = read_past(record, (volume.uuid, volume.subvolume), [path.stat().st_ino]).values()
        assert past.mtime_ns == YEAR_2262_NS - 1
