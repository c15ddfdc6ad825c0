# SPDX-License-Identifier: LGPL-2.1-or-later
"""The metrics of real runs: their values, when they are written, and that they make no run fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from journalkeeper.config.directives import Config, Metrics, WatchSection
from journalkeeper.engine import DAEMON, Engine
from journalkeeper.history import state
from journalkeeper.metrics import publisher
from journalkeeper.metrics.publisher import NAME
from journalkeeper.model import Result
from journalkeeper.model.errors import BusyError, KeeperError
from journalkeeper.probe.bed import Bed
from tests.btrfs.journals import NOW, extents, go
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put

pytestmark = pytest.mark.root

Keep = Callable[..., Engine]
SINCE = "unhealthy_since_timestamp_seconds"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Make a directory for the collector, and return it."""
    path = tmp_path / "collector"
    path.mkdir()
    return path


@pytest.fixture
def keep(top: Path, out: Path, make_engine: Callable[..., Engine]) -> Keep:
    """Return a function that makes an engine of `top` with metrics in `out`."""
    return lambda **words: make_engine(config=configured(top, out), **words)


def configured(top: Path, textfile: Path) -> Config:
    return Config(watch=WatchSection(directories=(str(top),)), metrics=Metrics(textfile=str(textfile)))


def found(out: Path) -> dict[str, float]:
    lines = (out / NAME).read_text().splitlines()
    rows = dict(line.removeprefix("journalkeeper_").rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in rows.items()}


def test_the_metrics_are_those_of_the_run(keep: Keep, top: Path, out: Path, journal_bytes: bytes) -> None:
    archive = put(top / MACHINE, journal_bytes, archive_name(1))
    before = extents(archive)
    report = go(keep())
    says = found(out)
    (outcome,) = report.outcomes
    assert outcome.result is Result.DONE
    assert (says["files"], says["problem_files"], says["fragmented_files"]) == (1, 0, 0)
    assert says["extents"] == outcome.extents_after < before
    assert says["ideal_extents"] <= says["extents"] * 1.1
    assert says["written_bytes_total"] == report.written_bytes > 0
    assert says["removed_extents_total"] == outcome.extents_before - outcome.extents_after
    assert says['actions_total{result="done"}'] == 1
    assert says["last_run_success"] == 1
    assert says["budget_left_bytes"] == says["budget_bytes"] - report.written_bytes
    go(keep())
    again = found(out)
    assert again['skipped_files{reason="recorded"}'] == 1
    assert again["extents"] == says["extents"]
    assert again["written_bytes_total"] == says["written_bytes_total"]


def test_the_file_is_written_again_when_a_number_changed_or_it_is_gone(
    keep: Keep, top: Path, out: Path, journal_bytes: bytes
) -> None:
    put(top / MACHINE, journal_bytes, archive_name(1))
    engine = keep()
    go(engine, origin=DAEMON)
    go(engine, origin=DAEMON)  # what was done in the first run is left alone from now on

    def inode() -> int:
        return (out / NAME).stat().st_ino

    first = inode()
    go(engine, origin=DAEMON)
    assert inode() == first
    put(top / MACHINE, journal_bytes, archive_name(2))
    go(engine, origin=DAEMON)
    assert inode() != first
    (out / NAME).unlink()
    go(engine, origin=DAEMON)
    assert found(out)["files"] == 2


@pytest.mark.parametrize("what", ["some files", "the host goes down", "another directory"])
def test_numbers_of_something_else_than_this_host_are_not_its_metrics(
    keep: Keep, top: Path, out: Path, journal_bytes: bytes, what: str
) -> None:
    archive = put(top / MACHINE, journal_bytes, archive_name(1))
    words = {"directories": (str(top / MACHINE),)} if what == "another directory" else {}
    request = NOW._replace(
        paths=(str(archive),) if what == "some files" else (), before_shutdown=what == "the host goes down"
    )
    report = go(keep(**words), request)
    assert len(report.outcomes) + len(report.plan.skipped) == 1
    assert os.listdir(out) == []


def test_a_failed_run_is_shown_and_another_process_at_work_is_no_failure(
    keep: Keep, top: Path, out: Path, tmp_path: Path, journal_bytes: bytes
) -> None:
    put(top / MACHINE, journal_bytes, archive_name(1))
    engine = keep()
    go(engine)
    before = found(out)
    with state.Lock(tmp_path / "state"), pytest.raises(BusyError):
        go(engine)
    assert found(out) == before
    top.rename(top.with_name("away"))
    with pytest.raises(KeeperError):
        go(engine)
    assert found(out) == {**before, "last_run_success": 0, "healthy": 0, SINCE: found(out)[SINCE]}
    top.with_name("away").rename(top)
    go(engine)
    assert found(out)["last_run_success"] == 1


def test_a_first_run_without_a_record_says_no_more_than_that_it_failed(keep: Keep, tmp_path: Path, out: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(KeeperError):
        go(keep())
    names = {name.partition("{")[0] for name in found(out)}
    assert names == {"build_info", "by_service", "healthy", "last_run_success", SINCE}


@pytest.mark.parametrize("healthy", [True, False])
def test_the_verdict_of_the_service_outlives_its_jobs_and_a_reload(keep: Keep, out: Path, *, healthy: bool) -> None:
    engine = keep(follows=True)
    go(engine, origin=DAEMON)
    engine.publisher.publish_health(healthy=healthy)
    go(engine, origin="bus")
    assert found(out)["healthy"] == healthy
    reloaded = keep(follows=True)
    reloaded.take_over(engine)
    reloaded.publisher.publish_health(healthy=not healthy)
    assert (found(out)["healthy"], found(out)["files"]) == (not healthy, 0)
    reloaded.publisher.publish_health(healthy=healthy)
    go(reloaded, origin=DAEMON)
    assert found(out)["healthy"] == healthy


@pytest.mark.parametrize(
    ("age_s", "healthy", "renewed"),
    [
        (publisher.CONFIRM_S - 60, True, False),
        (-publisher.CONFIRM_S - 60, True, True),
        (publisher.CONFIRM_S + 1, False, False),
    ],
    ids=["fresh", "clock set back", "a verdict that could not be written"],
)
def test_a_file_ages_unless_the_service_confirms_its_verdict(
    keep: Keep, out: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, *, healthy: bool | None, renewed: bool
) -> None:
    engine = keep(follows=True)
    engine.publisher.publish_health(healthy=True)
    go(engine, origin=DAEMON)
    before = os.stat(out / NAME)
    then_s = time.time() - age_s
    os.utime(out / NAME, (then_s, then_s))
    monkeypatch.setattr(publisher, "write_whole", Mock(side_effect=KeeperError("full")))
    engine.publisher.publish_health(healthy=healthy)
    engine.publisher.confirm_health()
    after = os.stat(out / NAME)
    assert (abs(time.time() - after.st_mtime) < 60, after.st_ino) == (renewed, before.st_ino)


def test_the_file_says_since_when_the_verdict_is_not_ok_also_after_a_restart(keep: Keep, out: Path) -> None:
    keep(follows=True).publisher.publish_health(healthy=False)
    assert os.listdir(out) == [], "no numbers yet"
    for healthy in (True, False):
        engine = keep(follows=True)
        go(engine, origin=DAEMON)
        assert SINCE not in found(out), "no verdict yet"
        engine.publisher.publish_health(healthy=healthy)
        since_s = found(out)[SINCE]
        assert since_s == 0 if healthy else abs(since_s - time.time()) < 60
    for verdict in (None, False):
        engine = keep(follows=True)
        go(engine, origin=DAEMON)
        engine.publisher.publish_health(healthy=verdict)
        assert found(out)[SINCE] == since_s
    engine.publisher.publish_health(healthy=True)
    assert found(out)[SINCE] == 0


@pytest.mark.parametrize("text", ["", "nan", "9999999999.000000", "1.000000\n" * 2, None])
def test_a_time_that_a_stranger_wrote_is_not_later_than_now(keep: Keep, out: Path, text: str | None) -> None:
    """The stranger can also have made a FIFO, which holds nothing up."""
    if text is None:
        os.mkfifo(out / NAME)
    else:
        (out / NAME).write_text(f"journalkeeper_{SINCE} {text}\n")
    engine = keep(follows=True)
    go(engine, origin=DAEMON)
    engine.publisher.publish_health(healthy=False)
    assert 1 <= found(out)[SINCE] <= time.time()


def test_a_directory_that_is_not_there_is_a_notice_at_every_run_and_no_failure(
    keep: Keep, top: Path, out: Path, journal_bytes: bytes
) -> None:
    put(top / MACHINE, journal_bytes, archive_name(1))
    out.rmdir()
    engine = keep()
    first, second = go(engine), go(engine)
    assert [outcome.result for outcome in first.outcomes] == [Result.DONE]
    assert first.notices == second.notices
    (notice,) = first.notices
    assert notice.startswith(f"{out}/{NAME}: cannot write the metrics: ")
    out.mkdir()
    assert go(engine).notices == ()
    assert found(out)["files"] == 1


def test_the_service_says_how_long_messages_waited_since_its_last_look(bed: Bed, out: Path, make_engine: Keep) -> None:
    bed.journald.age(1)
    engine = make_engine(config=configured(bed.journald.journal, out))
    go(engine, origin=DAEMON)
    assert "intake_delay_seconds" not in found(out)
    bed.journald.age(2)
    go(engine, origin=DAEMON)
    assert 0 <= found(out)["intake_delay_seconds"] < 60
