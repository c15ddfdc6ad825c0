# SPDX-License-Identifier: LGPL-2.1-or-later
"""More names, larger sizes and later times than any journald makes, and a user who changes a name all the time."""

from __future__ import annotations

import os
import re
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path

import pytest

from journalkeeper.engine import DAEMON, Engine
from journalkeeper.history.store import Record
from journalkeeper.journald import layout
from journalkeeper.journald.layout import MOST_FILES, find_directories, list_directory
from journalkeeper.model import Reason, Request
from journalkeeper.model.run import Report
from journalkeeper.observe.observer import Observer
from journalkeeper.probe.scratch_volume import ScratchVolume
from journalkeeper.service.worker import LOOK_BURST_CPU_S, LOOK_SHARE, charge_cpu
from tests.adapters.command import need, ran
from tests.btrfs.journals import go
from tests.daemon import Daemon, memory_kib
from tests.hosts import MACHINE, read_past
from tests.journal_files import MAGIC, archive_name, put
from tests.patience import eventually
from tests.trust.remote import CONFIG, CONTENT

NAMES = 20_000
NAMES_MANY = 200_000
PEAK_BYTES = 12 << 20
"""Of MOST_FILES names with what they say, and of 16,384 names that are remembered."""
WATCHED_S = 20.0


def fill(directory: Path, names: int, stem: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(names):
        (directory / archive_name(number, stem)).write_bytes(MAGIC + bytes(300))


@pytest.fixture
def volume() -> Iterator[ScratchVolume]:
    with ScratchVolume("1G") as made:
        yield made


# which files are looked at


OWN = ("system.journal", "user-1000.journal")
FILLED = [archive_name(number) for number in range(5)]
HOSTILE = [f"{letter}.journal" for letter in "abc"] + [archive_name((1 << 63) + one, "remote-x") for one in range(9)]
LONG = [os.fsdecode(b"\xff" * 242 + b"%d.journal" % number) for number in range(9)]
CROWD = [archive_name(number, "remote-a") for number in range(99)]
LIMITED = {
    "up to the limit": (FILLED[:4], {}, FILLED[:4]),
    "above the limit": (FILLED, {}, FILLED[1:]),
    "own files and the newest archives": ([*OWN, *FILLED[1:4], "notes", *HOSTILE], {}, [*OWN, *FILLED[2:4]]),
    "own files among any number": ([*CROWD, *OWN, "notes"], {}, OWN),
    "names count in bytes": ([*LONG, *OWN[:1]], {"MOST_FILES": 100, "MOST_NAME_BYTES": 1000}, OWN[:1]),
}
"""Names in a directory, other limits than four files, and names of which journals are looked at."""


@pytest.mark.parametrize(("names", "limits", "wanted"), LIMITED.values(), ids=LIMITED)
def test_four_journals_are_looked_at_of_which_own_files_and_the_newest_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], limits: dict[str, int], wanted: list[str]
) -> None:
    for limit, value in {"MOST_FILES": 4, **limits}.items():
        monkeypatch.setattr(layout, limit, value)
    for name in names:
        (tmp_path / name).touch()
    found = list_directory(str(tmp_path))
    assert (len(found.journals), set(wanted) - set(found.journals)) == (4, set())
    assert found.left_out == len(names) - names.count("notes") - 4


def test_temporary_files_of_ours_and_directories_are_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MOST_FILES", 4)
    for number in range(9):
        (tmp_path / f".journalkeeper-{number}.tmp").touch()
        (tmp_path / f"{number:032x}").mkdir()
    assert len(list_directory(str(tmp_path)).leftovers) == 4
    assert [place.name for place in find_directories(str(tmp_path))] == [f"{number:032x}" for number in range(4)]


LISTERS: dict[str, Callable[[Path], object]] = {
    "listing": lambda top: list_directory(str(top)),
    "directories": lambda top: find_directories(str(top)),
    "a look at a named file": lambda top: Observer().look_at([f"{top}/system.journal"], now_us=1),
}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with 200,000 names, of which half are journals' and half are nothing of ours."""
    top = tmp_path_factory.mktemp("crowded")
    directory = os.open(top, os.O_RDONLY)
    for number in range(NAMES_MANY // 2):
        for ending in ("journal", "txt"):
            os.mknod(f"{'x' * 40}{number}.{ending}", dir_fd=directory)
    os.close(directory)
    return top


@pytest.mark.parametrize("lister", LISTERS)
def test_the_memory_of_a_listing_does_not_grow_with_the_directory(crowded: Path, lister: str) -> None:
    tracemalloc.start()
    try:
        LISTERS[lister](crowded)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < PEAK_BYTES


@pytest.mark.parametrize("lister", LISTERS)
def test_a_listing_takes_far_fewer_system_calls_than_there_are_names(crowded: Path, lister: str) -> None:
    """A call for each name takes minutes of a slow disk. `plan` makes 128,716 calls for 10,000 names, and 129,649 for
    300,000.
    """
    need("strace")
    code = f"from pathlib import Path; from {__name__} import LISTERS; LISTERS[{lister!r}](Path({str(crowded)!r}))"
    said = ran("strace", "-f", "-c", "-U", "calls,name", sys.executable, "-c", code, check=True).stderr
    assert int(re.findall(r"(?m)^ *(\d+) total", said)[0]) < NAMES_MANY // 4


# how often it is looked


def test_a_burst_of_work_does_not_wait_and_what_exceeds_it_does() -> None:
    until_s = charge_cpu(-inf, LOOK_BURST_CPU_S, 0.0)
    assert until_s == 0.0
    assert charge_cpu(until_s, 0.5, 0.0) == pytest.approx(25.0)
    assert charge_cpu(until_s, LOOK_BURST_CPU_S, 1000.0) == 1000.0


@pytest.mark.parametrize("cost_s", [0.05, 0.5, 1.0, 30.0])
def test_dear_work_takes_its_share_and_no_more(cost_s: float) -> None:
    until_s, now_s, spent_s = 0.0, 0.0, 0.0
    while now_s < 20_000:
        now_s = max(now_s, until_s)
        spent_s += cost_s
        until_s = charge_cpu(until_s, cost_s, now_s)
    assert spent_s <= LOOK_SHARE * now_s + LOOK_BURST_CPU_S + cost_s + 1e-6  # sums of floats
    assert spent_s >= 0.8 * LOOK_SHARE * now_s


# a real service


@pytest.fixture
def crowd(volume: ScratchVolume, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    top = volume.mountpoint / "journal"
    fill(top / "remote", request.param, "remote-" + "x" * 60)
    with Daemon(tmp_path / "service", top) as service:
        yield service.ready()


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("crowd", [NAMES], indirect=True)
def test_a_user_who_changes_one_of_many_names_does_not_take_the_processor(volume: ScratchVolume, crowd: Daemon) -> None:
    """Without a rest between looks 20,000 names and 20 changes a second cost 15 s in 20."""
    remote = volume.mountpoint / "journal/remote"
    name = remote / "new.journal"
    before_s, end_s, changes = crowd.cpu_s(), time.monotonic() + WATCHED_S, 0
    while time.monotonic() < end_s:
        name.touch()
        time.sleep(0.025)
        name.unlink()
        time.sleep(0.025)
        changes += 1
    spent_s, peak_kib = crowd.cpu_s() - before_s, memory_kib(crowd.pid, "VmHWM")
    figures = f"{NAMES} names, {changes} changes in {WATCHED_S:.0f} s: {spent_s:.2f} s of CPU, {peak_kib} KiB"
    sys.stdout.write(f"{figures}\n")
    assert spent_s < 0.15 * WATCHED_S, figures  # LOOK_SHARE is 0.02, after the burst; the first look is not in it
    assert peak_kib < 96 * 1024, "half of the unit's MemoryMax="
    said = [line for line in crowd.log().splitlines() if "journal files are left out" in line]
    left_out = NAMES - MOST_FILES
    assert len(said) == 1, "once a day, though the number changes"
    counts = (f"{remote}: {number:,} journal files are left out: " for number in (left_out, left_out + 1))
    assert any(count in said[0] for count in counts)
    assert f"at most {MOST_FILES:,} are looked at" in said[0]


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("crowd", [MOST_FILES - 3], indirect=True)
def test_a_change_during_the_rest_is_looked_at_after_it(volume: ScratchVolume, crowd: Daemon) -> None:
    top = volume.mountpoint / "journal"
    for number in range(3):
        (top / "remote" / f"{number}.journal").touch()
        time.sleep(0.3)
    own = top / MACHINE
    own.mkdir()
    (own / "system.journal").write_bytes(b"no journal")
    assert eventually(lambda: crowd.file_count() == MOST_FILES + 1), crowd.said
    os.unlink(own / "system.journal")
    assert eventually(lambda: crowd.file_count() == MOST_FILES)


# sizes and times


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
