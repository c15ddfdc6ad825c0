# SPDX-License-Identifier: LGPL-2.1-or-later
"""The whole way on real files: look, plan, do, record; stopped, locked out, forgotten, without room."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.config.directives import Budget, Config, Defrag, Metrics, WatchSection, WindowSection
from journalkeeper.engine import DAEMON, Engine
from journalkeeper.history import state
from journalkeeper.history.store import NAME, Record
from journalkeeper.model import KIB, MIB, Outcome, Past, Reason, Refusal, Request, Result, Verb
from journalkeeper.model.errors import BusyError, FileError, NotBtrfsError
from journalkeeper.model.run import Progress, Report
from journalkeeper.model.units import DAY_US
from journalkeeper.observe import load
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.scratch_volume import run
from journalkeeper.service.snapshot import FileDone, Findings, Message, Progressed
from journalkeeper.service.worker import Worker
from tests.btrfs.faults import fill
from tests.btrfs.journals import NOW, Bearing, bearing, export, extents, go
from tests.daemon import journalkeeper
from tests.hosts import MACHINE, configured, done, outcome
from tests.journal_files import OFFLINE, OFFSETS, ONLINE, PAGE, archive_name, put, scatter, unclean_name, write_out
from tests.volumes import disk_bytes

pytestmark = pytest.mark.root

Keep = Callable[..., Engine]
Change = Callable[[Path], None]


@pytest.fixture
def keep(top: Path, make_engine: Callable[..., Engine]) -> Keep:
    """Make an engine of `top`, or of another directory."""
    return lambda directory=top, **words: make_engine(directory, **words)


def what_became(report: Report) -> dict[str, Reason]:
    """The reason for each file by its name, whichever way it went."""
    rows: list[tuple[str, Reason]] = [(outcome.path, outcome.reason) for outcome in report.outcomes]
    rows += [(skip.path, skip.reason) for skip in report.plan.skipped]
    assert len({path for path, _ in rows}) == len(rows), rows
    return {os.path.basename(path): reason for path, reason in rows}


def files_in(directory: Path) -> dict[str, Bearing]:
    return {path.name: bearing(path) for path in directory.iterdir()}


def archives(directory: Path, content: bytes, number: int, *, nocow: bool = False) -> list[Path]:
    """So many archives, every page of each an extent of its own."""
    return [put(directory, content, archive_name(one), nocow=nocow) for one in range(1, number + 1)]


# end to end


def test_a_real_journal_of_every_kind(bed: Bed, keep: Keep) -> None:
    run("chattr", "-C", bed.journald.journal)
    bed.journald.age(30)
    datacow = bed.journald.rotate()
    bed.journald.age(10)
    time.sleep(0.5)  # journald truncates the archive to its own size, 250 ms after its last append there
    run("cp", "--archive", "--reflink=never", datacow, bed.volume.mountpoint / "original")
    nocow = put(bed.journald.journal, datacow.read_bytes(), archive_name(7), nocow=True)
    unclean = put(bed.journald.journal, datacow.read_bytes(), unclean_name())
    broken = put(bed.journald.journal, datacow.read_bytes()[:3000], archive_name(8), torn=False)
    before = {path: bearing(path) for path in (datacow, nocow, unclean, broken)}
    entries = {path: export(path) for path in (datacow, nocow, unclean)}
    for path, each in before.items():
        os.utime(path, ns=each.times_ns)

    engine = keep(bed.journald.directory)
    report = go(engine)

    assert engine.memory.slowest.get_us() > 0
    assert [outcome for outcome in report.outcomes if outcome.result is not Result.DONE] == []
    assert what_became(report) == {
        datacow.name: Reason.FRAGMENTED,
        nocow.name: Reason.NOCOW_ARCHIVE,
        unclean.name: Reason.FRAGMENTED,
        broken.name: Reason.BAD_HEADER,
        "system.journal": Reason.FRAGMENTED,
    }
    verbs = {os.path.basename(outcome.path): outcome.action for outcome in report.outcomes}
    assert (verbs[datacow.name], verbs[nocow.name]) == (Verb.COMPRESS, Verb.REWRITE)
    assert (verbs[unclean.name], verbs["system.journal"]) == (Verb.COMPRESS, Verb.DEFRAGMENT)
    for path, each in before.items():
        assert bearing(path)._replace(data=each.data) == each, path
    for path, text in entries.items():
        assert export(path) == text
    assert report.written_bytes == sum(outcome.bytes_written for outcome in report.outcomes)
    assert report.notices == ()

    again = go(keep(bed.journald.directory))

    assert again.outcomes == ()
    assert again.written_bytes == 0
    assert set(what_became(again)) == set(what_became(report))
    assert [what_became(again)[path.name] for path in (datacow, nocow, unclean)] == [Reason.RECORDED] * 3


def test_the_command_obeys_another_compression_and_does_the_same_one_once(
    top: Path, journal_bytes: bytes, tmp_path: Path
) -> None:
    (path,) = archives(top / MACHINE, journal_bytes, 1)
    before = bearing(path)
    text = export(path)
    os.utime(path, ns=before.times_ns)

    def defrag(*words: str) -> tuple[str, str]:
        done = journalkeeper("defrag", "-D", top, "--now", "-j", *words, state=tmp_path / "state")
        found = json.loads(done.stdout)
        (row,) = (one for one in (*found["outcomes"], *found["skipped"]) if one["path"] == f"{path}")
        return row.get("result", "skipped"), row["reason"]

    def algorithms() -> str:
        """compsize's rows."""
        return " ".join(line.split()[0] for line in run("compsize", path).splitlines()[2:] if "TOTAL" not in line)

    assert (defrag(), algorithms()) == (("done", "fragmented"), "zstd")
    assert defrag() == defrag("--compress=zstd") == ("skipped", "recorded")
    for word, kind in {"lzo": "lzo", "no": "none", "zlib": "zlib", "zstd": "zstd"}.items():
        assert defrag(f"--compress={word}") == ("done", "asked")
        assert defrag(f"--compress={word}") == ("skipped", "recorded")
        assert kind in algorithms()
        assert bearing(path)._replace(data=before.data) == before
    assert export(path) == text


SCATTERED = 256 * KIB
"""Extents as long as this the kernel leaves where they are, unless it compresses them."""


def test_a_rewrite_that_the_kernel_made_nothing_of_is_not_repeated(top: Path, keep: Keep, journal_bytes: bytes) -> None:
    """With four extents in each MiB it leaves them all: each is as long as it has to be."""
    active = put(top / MACHINE, journal_bytes, "system.journal", torn=False)
    scatter(active, SCATTERED)
    before = extents(active)
    config = Config(defrag=Defrag(extents_per_mib=4))
    first = go(keep(config=config))
    (outcome,) = first.outcomes
    assert (outcome.result, outcome.reason, outcome.extents_after) == (Result.SKIPPED, Reason.NO_GAIN, before)
    assert outcome.bytes_written > 0
    again = go(keep(config=config))
    assert (again.outcomes, again.written_bytes) == ((), 0)
    (skip,) = again.plan.skipped
    assert skip.reason is Reason.NO_GAIN
    assert f"without gain: {before} extents before, {before} after" in skip.detail
    scatter(active, end_bytes=MIB)
    assert [one.result for one in go(keep(config=config)).outcomes] == [Result.DONE]


@pytest.mark.parametrize("named", [True, False])
def test_the_remains_of_a_killed_run_are_removed_and_reported(
    top: Path, keep: Keep, journal_bytes: bytes, tmp_path: Path, *, named: bool
) -> None:
    """Metrics, which a run of named files does not write, leave the notice as it is."""
    (path,) = archives(top / MACHINE, journal_bytes, 1, nocow=True)
    left = path.with_name(f".journalkeeper-{path.stat().st_ino}.tmp")
    left.write_bytes(b"half a copy")
    watched, metrics = WatchSection(directories=(str(top),)), Metrics(textfile=str(tmp_path / "a.prom"))
    request = Request(paths=(str(path),) if named else (), now=True)
    report = go(keep(config=Config(watch=watched, metrics=metrics)), request)
    assert (tmp_path / "a.prom").exists() != named
    assert report.notices == (f"{left}: temporary file of a killed run removed",)
    assert [outcome.result for outcome in report.outcomes] == [Result.DONE]
    assert list(path.parent.iterdir()) == [path]


def test_the_progress_of_a_run_never_goes_back(top: Path, keep: Keep, journal_bytes: bytes) -> None:
    archives(top / MACHINE, journal_bytes, 3)
    steps: list[Progress] = []
    outcomes: list[Outcome] = []
    report = go(keep(), on_progress=steps.append, on_outcome=outcomes.append)
    assert tuple(outcomes) == report.outcomes
    assert [one.number for one in steps] == sorted(one.number for one in steps)
    assert {one.number for one in steps} == {1, 2, 3}
    assert [one.done_bytes for one in steps] == sorted(one.done_bytes for one in steps)
    assert steps[-1].done_bytes == steps[-1].total_bytes == 3 * len(journal_bytes)


# stopped


def test_a_stop_ends_the_run_at_the_border_of_a_piece(top: Path, keep: Keep, journal_bytes: bytes) -> None:
    small = Config(defrag=Defrag(chunk_bytes=MIB))
    archives(top / MACHINE, journal_bytes, 3)
    before = files_in(top / MACHINE)
    steps: list[Progress] = []
    report = go(keep(config=small), on_progress=steps.append, stop=lambda: len(steps) >= 3)
    (begun,) = report.outcomes
    assert begun.reason is Reason.INTERRUPTED
    assert 0 < begun.bytes_written < len(journal_bytes)
    assert begun.extents_after < begun.extents_before
    assert [(skip.reason, skip.puts_off) for skip in report.plan.skipped] == [(Reason.NOT_BEGUN, True)] * 2
    assert files_in(top / MACHINE) == before
    engine = keep()
    rest = go(engine)
    assert [outcome.result for outcome in rest.outcomes] == [Result.DONE] * 3
    assert rest.outcomes[-1].path == begun.path
    assert files_in(top / MACHINE) == before
    with closing(Record(engine.state_directory, read_only=True)) as record:
        assert [row.outcome.reason for row in record.list_entries()].count(Reason.INTERRUPTED) == 1


@pytest.mark.parametrize(("asked", "ends"), [(False, True), (True, False)])
def test_the_services_run_ends_between_two_pieces_where_a_rest_begins(
    top: Path, keep: Keep, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch, *, asked: bool, ends: bool
) -> None:
    archives(top / MACHINE, journal_bytes, 2)
    steps: list[Progress] = []
    monkeypatch.setattr(load, "is_on_battery", lambda: len(steps) >= 3)
    config = Config(watch=WatchSection(settle_us=0), defrag=Defrag(chunk_bytes=MIB))
    report = go(keep(config=config), Request(asked=asked), on_progress=steps.append)
    unfinished = [Reason.INTERRUPTED, Reason.NOT_BEGUN] if ends else []
    assert sorted({*what_became(report).values()} & {Reason.INTERRUPTED, Reason.NOT_BEGUN}) == unfinished


@pytest.mark.parametrize("origin", ["defrag", DAEMON])
def test_uptimes_that_are_too_short_for_one_file_finish_all_others(
    origin: str, top: Path, keep: Keep, journal_bytes: bytes
) -> None:
    """The largest saving comes first: the same action would end each run, and no other would ever begin."""
    endless, *others = map(str, archives(top / MACHINE, journal_bytes, 3))
    done: set[str] = set()
    for _ in range(2):
        steps: list[Progress] = []

        def ends(steps: list[Progress] = steps) -> bool:
            return bool(steps) and steps[-1].path == endless

        report = go(keep(follows=origin == DAEMON), on_progress=steps.append, stop=ends, origin=origin)
        done |= {one.path for one in report.outcomes if one.result is Result.DONE}
    assert done == set(others)


# the record


def test_the_service_reads_the_past_again_after_each_run_that_acted_and_for_other_files(
    top: Path, keep: Keep, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing the past of 1,000 files takes 10 ms of each event."""
    reads: list[object] = []
    past = Record.find_past

    def note(record: Record, files: Any) -> dict[tuple[int, int], Past]:
        reads.append(files)
        return past(record, files)

    monkeypatch.setattr(Record, "find_past", note)
    service, other = keep(), keep()

    def reason_of(path: Path) -> tuple[Reason, int]:
        report = go(service, origin=DAEMON)
        return what_became(report)[path.name], len(reads)

    (first,) = archives(top / MACHINE, journal_bytes, 1)
    assert reason_of(first) == (Reason.FRAGMENTED, 1)
    assert reason_of(first) == (Reason.RECORDED, 2)
    assert reason_of(first) == (Reason.RECORDED, 2)
    second = put(top / MACHINE, journal_bytes, archive_name(2))
    go(other)
    assert reason_of(second) == (Reason.RECORDED, 4)
    away = second.rename(top / "away")
    assert reason_of(first) == (Reason.RECORDED, 5)
    away.rename(second)
    assert reason_of(second) == (Reason.RECORDED, 6)


def test_the_service_sees_what_was_rewritten_in_place(top: Path, keep: Keep, journal_bytes: bytes) -> None:
    """By another process or by itself: no rewrite leaves a trace in the file's stat."""
    active, service = put(top / MACHINE, journal_bytes, "system.journal"), keep()

    def count_seen() -> int:
        host = go(service, Request(archived=True), origin=DAEMON).host
        assert host is not None
        return sum(file.extents.total for file in host.files)

    for other in (keep(), service):
        scatter(active)
        time.sleep(1.1)  # a file that changed less than a second ago is always looked at again
        assert extents(active) == count_seen() > 100  # filefrag waits until all are placed
        go(other)
        assert extents(active) == count_seen() < 100


def add_extents(path: Path, number: int) -> None:
    scatter(path, every=2, end_bytes=2 * number * PAGE)


def grow(path: Path) -> None:
    os.truncate(path, path.stat().st_size + MIB)


def share(path: Path) -> None:
    run("cp", "--reflink=always", path, path.parent / "snapshot")


@pytest.mark.parametrize(
    ("window", "change", "is_read"),
    [
        pytest.param("open", os.stat, False, id="the same number of rows"),
        pytest.param("open", partial(add_extents, number=8), False, id="a few more"),
        pytest.param("open", partial(add_extents, number=200), True, id="many more"),
        pytest.param("open", grow, True, id="another size"),
        pytest.param("open", share, True, id="a snapshot"),
        pytest.param("closed", partial(add_extents, number=200), False, id="many more in a closed window"),
        pytest.param("closed", grow, False, id="another size in a closed window"),
        pytest.param("closed", share, False, id="a snapshot in a closed window"),
        pytest.param("--now", partial(add_extents, number=200), True, id="many more with --now"),
    ],
)
def test_a_look_reads_a_known_map_again_where_that_is_worth_it(  # noqa: PLR0917 - a row of a table, and fixtures
    top: Path, keep: Keep, journal_bytes: bytes, mapped: list[int], window: str, change: Change, *, is_read: bool
) -> None:
    """Stores of journald wait meanwhile: on Linux 6.1 for a second (issue 38)."""
    active = put(top / MACHINE, journal_bytes, "system.journal", torn=False)
    scatter(active, every=4)
    with active.open("r+b") as file:
        os.pwrite(file.fileno(), bytes([OFFLINE if window == "open" else ONLINE]), OFFSETS["state"])
        write_out(file.fileno())
    os.utime(active)
    engine = keep(follows=True)
    known = engine.look(Request()).files[0].extents.total
    assert known == extents(active) > 200
    assert mapped, "a file that was never seen"
    assert {one.open for one in engine.find_windows()[0]} == {window == "open"}
    change(active)
    os.utime(active)
    mapped.clear()
    (row,) = engine.look(Request(now=window == "--now")).files
    assert bool(mapped) == is_read
    assert row.extents.total == pytest.approx(extents(active) if is_read else known, rel=0.01)
    assert bool(row.extents.shared_bytes) == (is_read and change is share)


def test_the_service_rewrites_an_active_file_by_its_present_map(
    top: Path, keep: Keep, journal_bytes: bytes, mapped: list[int]
) -> None:
    active = put(top / MACHINE, journal_bytes, "system.journal")
    service = keep(follows=True)
    service.look(Request())
    run("cp", "--reflink=always", active, top / "snapshot")
    with active.open("r+b") as file:  # the middle, where a look asks for a snapshot
        os.pwrite(file.fileno(), b"x" * PAGE, active.stat().st_size // 2 // PAGE * PAGE)
        write_out(file.fileno())
    mapped.clear()
    service.look(Request())
    assert mapped == []
    (action,) = service.plan(Request(allow_unshare=True)).actions
    assert mapped
    assert 0 < action.unshared_bytes < action.bytes_to_write


@pytest.mark.parametrize("changed", [0.25, 0.75])
def test_the_disk_then_stores_twice_what_the_plan_of_an_active_file_says(
    top: Path, keep: Keep, journal_bytes: bytes, changed: float
) -> None:
    active, copy = put(top / MACHINE, journal_bytes, "system.journal"), top / "copy"
    run("cp", "--reflink=always", active, copy)
    scatter(active, end_bytes=round(changed * len(journal_bytes)))
    engine, asked = keep(), NOW._replace(active=True, allow_unshare=True)
    (action,) = engine.plan(asked).actions
    before = disk_bytes(active, copy)
    (outcome,) = go(engine, asked).outcomes
    grown = disk_bytes(active, copy) - before
    assert outcome.result is Result.DONE
    assert grown / 1.5 < action.unshared_bytes < grown * 1.5


def test_the_history_has_the_counts_before_and_after_an_action(
    top: Path, keep: Keep, journal_bytes: bytes, tmp_path: Path
) -> None:
    """Else the hourly samples show a flat line beside a rewrite of a thousand extents."""
    active, service = put(top / MACHINE, journal_bytes, "system.journal"), keep(follows=True)
    inode = active.stat().st_ino
    for number in (1, 2):
        if number == 2:
            scatter(active)
            time.sleep(1.1)
        go(service, NOW._replace(active=True), origin=DAEMON)
        with Record(str(tmp_path / "state")) as record:
            counts = [sample.extents for sample in record.list_samples([str(active)])]
            totals = [one.active_extents for one in record.list_totals()]
        assert counts == totals
        assert [count > 100 for count in counts] == [True, False] * number
    assert active.stat().st_ino == inode


def test_a_wait_ends_with_the_file_that_was_named(top: Path, keep: Keep, journal_bytes: bytes) -> None:
    first, second = archives(top / MACHINE, journal_bytes, 2)
    service = keep(follows=True)
    for request, waiting in ((Request(), {first, second}), (Request(paths=(str(first),), now=True), {second})):
        go(service, request, origin=DAEMON)
        assert (service.memory.records.waiting or {}).keys() == {str(path) for path in waiting}


def test_the_days_budget_counts_what_earlier_runs_wrote(top: Path, keep: Keep, journal_bytes: bytes) -> None:
    budget = Budget(bytes_per_day=len(journal_bytes) * 3 // 2)
    config = Config(watch=WatchSection(settle_us=0), budget=budget, window=WindowSection(pressure_max_percent=100))
    for number, reason in ((1, Reason.FRAGMENTED), (2, Reason.BUDGET)):
        path = put(top / MACHINE, journal_bytes, archive_name(number))
        assert what_became(go(keep(config=config), Request()))[path.name] is reason


@pytest.mark.parametrize(("follows", "left"), [(False, (2,)), (True, (3, 2))], ids=["a command", "the service"])
def test_a_day_of_the_history_counts_and_old_rows_are_deleted(
    top: Path, keep: Keep, journal_bytes: bytes, tmp_path: Path, left: tuple[int, ...], *, follows: bool
) -> None:
    """A command deletes them in each run, the service once a day."""
    archives(top / MACHINE, journal_bytes, 1)
    now_us = time.time_ns() // 1000
    rotation = done(one=outcome("/j/a", action=Verb.ROTATE))
    with Record(str(tmp_path / "state")) as record:
        for days in (3, 2, 0):
            when_us = now_us - days * DAY_US
            record.insert_outcome(record.begin_run(when_us, "defrag"), ("uuid", 5), rotation, when_us)
    engine = keep(config=configured("history", max_rows=3), follows=follows)
    engine.memory.records.pruned_s = time.monotonic() - DAY_US / 1e6 + 60
    for rows in left:
        host = go(engine).host
        assert host is not None
        assert host.rotations == 1
        with closing(Record(str(tmp_path / "state"), read_only=True)) as record:
            assert len([one for one in record.list_entries() if one.outcome.action is Verb.ROTATE]) == rows
        engine.memory.records.pruned_s -= 60


def test_a_run_forgets_failures_of_files_that_are_gone(top: Path, keep: Keep, journal_bytes: bytes) -> None:
    (path,) = archives(top / MACHINE, journal_bytes, 1)
    engine, there, gone = keep(), (path.stat().st_dev, path.stat().st_ino), (1, 2)
    for request in (Request(paths=(str(path),)), Request()):
        engine.memory.failures = dict.fromkeys((there, gone), Refusal(0, 0, 0, Reason.IN_USE, "held"))
        go(engine, request)
        assert engine.memory.failures.keys() == {there}


def test_the_service_stores_extents_that_changed_once_an_hour_and_at_once_after_damage(
    top: Path, keep: Keep, journal_bytes: bytes, tmp_path: Path
) -> None:
    active, service = put(top / MACHINE, journal_bytes, "system.journal", torn=False), keep(follows=True)

    def count_samples(extents: int) -> int:
        scatter(active, MIB // extents)
        go(service, Request(archived=True), origin=DAEMON)
        with closing(Record(str(tmp_path / "state"), read_only=True)) as record:
            return len(record.list_samples())

    assert [count_samples(2), count_samples(4)] == [1, 1]
    service.memory.records.observed_s -= 3600
    assert count_samples(8) == 2
    (tmp_path / "state" / NAME).write_bytes(b"nonsense" * 1000)
    assert count_samples(4) == 1


def test_a_host_without_a_journal_on_btrfs_gets_no_history(small_state: Path, keep: Keep, tmp_path: Path) -> None:
    (small_state / MACHINE).mkdir()
    with pytest.raises(NotBtrfsError):
        go(keep(small_state))
    assert not (tmp_path / "state" / NAME).exists()


@pytest.fixture
def small_state(tmp_path: Path) -> Iterator[Path]:
    """A state directory with room for little."""
    directory = tmp_path / "tmpfs"
    directory.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", directory)
    yield directory
    run("umount", directory)


def test_beside_another_run_or_without_room_for_the_record_nothing_is_begun(
    top: Path, keep: Keep, journal_bytes: bytes, small_state: Path
) -> None:
    archives(top / MACHINE, journal_bytes, 1)
    before = files_in(top / MACHINE)
    with state.Lock(small_state), pytest.raises(BusyError, match=str(os.getpid())):
        go(keep(state_directory=str(small_state)))
    fill(small_state / "ballast")
    with pytest.raises(FileError, match="No space left"):
        go(keep(state_directory=str(small_state)))
    assert files_in(top / MACHINE) == before


def test_a_record_that_becomes_full_costs_the_record_and_not_the_report(
    top: Path, keep: Keep, journal_bytes: bytes, small_state: Path
) -> None:
    nocow = put(top / MACHINE, journal_bytes, archive_name(2), nocow=True)
    paths = [*archives(top / MACHINE, journal_bytes, 1), nocow]

    def tell(progress: Progress) -> None:
        if progress.number == 1 and not (small_state / "ballast").exists():
            fill(small_state / "ballast")

    report = go(keep(state_directory=str(small_state)), on_progress=tell)
    assert [outcome.result for outcome in report.outcomes] == [Result.DONE] * 2
    assert report.counters is not None
    assert [text for text in report.notices if "not recorded" in text and "No space left" in text]
    assert all(any(str(path) in text for text in report.notices) for path in paths)
    (small_state / "ballast").unlink()
    again = go(keep(state_directory=str(small_state)))
    assert (again.outcomes, set(what_became(again).values())) == ((), {Reason.IDEAL})


@pytest.mark.parametrize("lost", ["damaged", "removed"])
def test_a_notice_of_a_failed_run_is_given_by_the_next_run(
    top: Path, keep: Keep, journal_bytes: bytes, tmp_path: Path, lost: str
) -> None:
    """A volume that is mounted late, after a power cut that damaged the record."""
    archives(top / MACHINE, journal_bytes, 1)
    engine = keep()
    go(engine)
    record = tmp_path / "state/history.db"
    record.unlink()
    if lost == "damaged":
        record.write_bytes(b"nonsense" * 1000)
    away = top.rename(f"{top}-away")
    for _ in range(2):
        with pytest.raises(FileError):
            go(engine)
    away.rename(top)
    assert [lost in text for text in go(engine).notices] == [True]
    assert go(engine).notices == ()


# what cannot be


def test_the_service_plans_and_works_while_one_of_its_directories_is_away(
    top: Path, place: Path, make_engine: Keep, journal_bytes: bytes
) -> None:
    """A disk that comes later, or another machine's share."""
    (path,) = archives(top / MACHINE, journal_bytes, 1)
    engine = make_engine(place / "nowhere", top, follows=True)
    assert [action.path for action in engine.plan(NOW).actions] == [str(path)]
    assert what_became(go(engine)) == {path.name: Reason.FRAGMENTED}


def test_the_look_is_published_before_the_work(top: Path, keep: Keep, journal_bytes: bytes) -> None:
    put(top / MACHINE, journal_bytes)
    posted: list[Message] = []
    engine = keep(config=configured("watch", settle_us=0), follows=True)
    worker = Worker(lambda: engine, posted.append, lambda: False, lambda: False)
    with closing(worker):
        worker.look(lambda: None)
    kinds = [type(one) for one in posted]
    assert kinds.index(Findings) < min(kinds.index(Progressed), kinds.index(FileDone))
