# SPDX-License-Identifier: LGPL-2.1-or-later
"""What journald, vacuum, readers and other load do while a file is worked on, and how soon a stop is heard."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from journalkeeper.btrfs import kernel, writeback
from journalkeeper.btrfs.maintenance import find_maintenance
from journalkeeper.config.directives import Config, WatchSection, WindowSection
from journalkeeper.engine import Engine
from journalkeeper.execute import executor, inplace, runner
from journalkeeper.execute.executor import execute
from journalkeeper.execute.pace import Pace, SlowestPiece
from journalkeeper.execute.runner import Runner, Throttle
from journalkeeper.execute.verified_file import VerifiedFile
from journalkeeper.model import GIB, MIB, Action, Kind, Reason, Request, Result, Verb
from journalkeeper.model.run import Done, Found
from journalkeeper.observe.flushes import Flushes
from journalkeeper.observe.observer import Observer, Seen
from journalkeeper.policy.window import Advice
from journalkeeper.probe.bed import ONLINE, SIGNAL_SYNC, Bed
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.btrfs.journals import (
    ALWAYS,
    FORMS,
    MORE,
    action,
    append,
    bearing,
    do,
    extents,
    how,
    is_nocow,
    log_until_online,
    look,
    planned,
    touch,
    with_unwritten,
)
from tests.journal_files import MAGIC, OLD_NS, archive_name, count_entries, put
from tests.patience import TRIES, eventually
from tests.volumes import limit

pytestmark = pytest.mark.root

Hook = Callable[[], object]
Change = Callable[[Path], object]


def nothing(_path: Path) -> None:
    """Nobody is there."""


@pytest.fixture
def exchanged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Rewrite `path`, to which something happens right before or right after its name is exchanged the first time."""

    def work(path: Path, *, before: Change = nothing, after: Change = nothing) -> Done:
        what, real, exchanges = action(path), kernel.exchange, iter(range(9))

        def exchange(dir_fd: int, name_a: str, name_b: str) -> None:
            first = next(exchanges) == 0
            if first:
                before(path)
            real(dir_fd, name_a, name_b)
            if first:
                after(path)

        monkeypatch.setattr(kernel, "exchange", exchange)
        return do(what)

    return work


def another_file(path: Path) -> None:
    """A copy of the file with its times takes its name, as journald's copy of a NOCOW archive does."""
    put(path.parent, path.read_bytes(), "copy", torn=False)
    path.with_name("copy").rename(path)


def vacuum(path: Path) -> None:
    """Remove a file as journald does, whoever reads it: its space is freed at once (unlinkat_deallocate())."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.unlink(path)
        if os.fstat(fd).st_nlink == 0:
            run("fallocate", "--punch-hole", "--length", str(os.fstat(fd).st_size), f"/proc/{os.getpid()}/fd/{fd}")
    finally:
        os.close(fd)


def at_first_piece(event: Hook) -> Callable[[int], None]:
    """`event` when the first piece is done."""
    pieces: list[int] = []

    def tell(length: int) -> None:
        if not pieces:
            event()
        pieces.append(length)

    return tell


# vacuum


@FORMS
def test_vacuum_removes_the_file_while_it_is_worked_on(place: Path, journal_bytes: bytes, nocow: bool) -> None:
    path = put(place, journal_bytes, nocow=nocow)
    done = do(action(path), tell=at_first_piece(lambda: vacuum(path)), chunk_bytes=MIB)
    assert how(done) == (Result.SKIPPED, Reason.VANISHED)
    assert list(place.iterdir()) == []


def delete_subvolume(path: Path) -> None:
    run("btrfs", "subvolume", "delete", path.parent)


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


@pytest.mark.parametrize("name", ["system.journal", archive_name()])
@pytest.mark.parametrize("remove", [Path.unlink, delete_subvolume, move, another_file])
def test_a_file_that_is_gone_before_it_is_measured_is_not_called_done(
    volume: ScratchVolume, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch, remove: Change, name: str
) -> None:
    """The data of a file in a deleted subvolume can still be written and measured by a descriptor."""
    place = volume.mountpoint / "journal"
    run("btrfs", "subvolume", "create", place)
    path = put(place, journal_bytes, name)
    what, real = action(path), executor._read_found
    looks = iter(range(9))

    def found(held: VerifiedFile, *, mapped: bool) -> Found:
        if next(looks) == 1:
            remove(path)
        return real(held, mapped=mapped)

    monkeypatch.setattr(executor, "_read_found", found)
    renamed = name == "system.journal" and remove is move
    assert how(do(what)) == ((Result.DONE, what.reason) if renamed else (Result.SKIPPED, Reason.VANISHED))


@pytest.mark.parametrize(
    ("before", "after"),
    [(vacuum, nothing), (nothing, vacuum), (append, Path.unlink)],
    ids=["the original before the exchange", "the copy after it", "the copy before the exchange is undone"],
)
def test_a_file_removed_around_the_exchange_stays_removed(
    place: Path, journal_bytes: bytes, exchanged: Callable[..., Done], before: Change, after: Change
) -> None:
    path = put(place, journal_bytes, nocow=True)
    assert how(exchanged(path, before=before, after=after)) == (Result.SKIPPED, Reason.VANISHED)
    assert list(place.iterdir()) == []


# the host under it


def test_a_remount_read_only_in_the_middle_of_a_file_fails_it_and_the_next_run_does_it(
    volume: ScratchVolume, journal_bytes: bytes
) -> None:
    """The kernel allows it, because a file that is rewritten in place is open for reading only."""
    place = volume.mountpoint
    path = put(place, journal_bytes)
    before = bearing(path)
    remount = at_first_piece(lambda: run("mount", "-o", "remount,ro", place))
    done = do(action(path), tell=remount, chunk_bytes=MIB)
    assert how(done) == (Result.FAILED, Reason.READ_ONLY), done.outcome.detail
    assert path.read_bytes() == journal_bytes
    run("mount", "-o", "remount,rw", place)
    assert do(action(path)).outcome.result is Result.DONE
    assert bearing(path) == before


@FORMS
def test_a_process_that_is_stopped_in_the_middle_of_a_file_goes_on(
    place: Path, journal_bytes: bytes, nocow: bool
) -> None:
    path = put(place, journal_bytes, nocow=nocow)
    before, what = bearing(path), action(path)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            stop = at_first_piece(lambda: os.kill(os.getpid(), signal.SIGSTOP))
            status = int(do(what, tell=stop, chunk_bytes=MIB).outcome.result is not Result.DONE)
        finally:
            os._exit(status)
    _, stopped = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(stopped)
    os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, 0) == (child, 0)
    assert bearing(path) == before
    assert list(place.iterdir()) == [path]


# others who change or replace it


def another(path: Path) -> None:
    """Another file takes the name."""
    path.with_name("other").rename(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [(another, nothing), (append, another)],
    ids=["before the exchange", "from the copy before the exchange is undone"],
)
def test_another_file_that_takes_the_name_around_the_exchange_keeps_it(
    place: Path, journal_bytes: bytes, exchanged: Callable[..., Done], before: Change, after: Change
) -> None:
    """The second one's rename would have removed the original, if nothing had been exchanged."""
    path = put(place, journal_bytes, nocow=True)
    other = put(place, MAGIC + b" and nothing that we know", "other", torn=False)
    was = bearing(other), other.stat().st_ino
    assert how(exchanged(path, before=before, after=after)) == (Result.SKIPPED, Reason.CHANGED)
    assert (bearing(path), path.stat().st_ino) == was
    assert list(place.iterdir()) == [path]


@pytest.mark.parametrize("change", [append, touch], ids=lambda change: change.__name__)
def test_a_change_right_before_the_exchange_is_kept_and_not_called_done(
    place: Path, journal_bytes: bytes, exchanged: Callable[..., Done], change: Change
) -> None:
    path = put(place, journal_bytes, nocow=True)
    was = path.stat().st_ino
    done = exchanged(path, before=change)
    assert how(done) == (Result.SKIPPED, Reason.CHANGED)
    assert path.stat().st_ino == was == done.after.inode
    assert is_nocow(path)
    assert path.read_bytes() == journal_bytes + (MORE if change is append else b"")
    assert list(place.iterdir()) == [path]


def test_an_original_opened_for_writing_before_the_exchange_keeps_its_name(
    place: Path, journal_bytes: bytes, exchanged: Callable[..., Done]
) -> None:
    """Nothing has changed when it is looked at again, but will."""
    path = put(place, journal_bytes, nocow=True)
    with ExitStack() as stack:

        def open_for_writing(path: Path) -> None:
            file = stack.enter_context(open(path, "ab", buffering=0))
            stack.callback(lambda: file.write(MORE))

        done = exchanged(path, before=open_for_writing)
    assert how(done) == (Result.SKIPPED, Reason.IN_USE)
    assert path.read_bytes() == journal_bytes + MORE
    assert list(place.iterdir()) == [path]


@pytest.mark.parametrize(
    "change",
    [["chmod", "600"], ["chown", "998"], ["setfacl", "-m", "u:1000:r"], ["touch"], ["truncate", "-s1M"]],
    ids=" ".join,
)
def test_a_file_that_is_changed_while_it_is_copied_is_not_replaced(
    place: Path, journal_bytes: bytes, change: list[str]
) -> None:
    path = put(place, journal_bytes, nocow=True)
    done = do(action(path), tell=at_first_piece(lambda: run(*change, path)), chunk_bytes=MIB)
    assert how(done) == (Result.SKIPPED, Reason.CHANGED)
    assert is_nocow(path)
    assert list(place.iterdir()) == [path]


# journald itself


def test_journald_rotates_while_its_file_is_defragmented(bed: Bed) -> None:
    """btrfs may place the last piece's extents after they are counted."""

    def counts_them_all(_: int) -> bool:
        bed.journald.age(60)
        path = bed.journald.active
        what = action(path)
        archives: list[Path] = []
        done = do(what, tell=at_first_piece(lambda: archives.append(bed.journald.rotate())), chunk_bytes=2 * MIB)
        assert done.outcome.result is Result.DONE
        assert done.after.inode == archives[0].stat().st_ino == what.target.inode != path.stat().st_ino
        assert done.after.size_bytes == archives[0].stat().st_size
        subprocess.run(["journalctl", "--verify", f"--file={archives[0]}"], check=True, capture_output=True)
        return abs(done.outcome.extents_after - extents(archives[0])) <= 2

    assert any(map(counts_them_all, TRIES))


def test_nothing_is_lost_of_what_is_logged_while_the_active_file_is_defragmented(bed: Bed) -> None:
    bed.journald.age(20)
    numbers = range(3000)

    def log() -> None:
        for number in numbers:
            bed.journald.log(f"number {number}", LAB_COUNT="yes", LAB_NOISE=os.urandom(60).hex())

    logger = threading.Thread(target=log)
    logger.start()
    results: set[tuple[Result, bool]] = set()
    while logger.is_alive() or not results:
        os.kill(bed.journald.pid, SIGNAL_SYNC)
        found = planned(bed.journald.active)
        outcomes = [do(what).outcome for what in found.actions]
        results |= {(one.result, one.reason is Reason.NO_GAIN) for one in outcomes}
    logger.join()
    bed.journald.sync()
    # Beside a journald that writes without a pause a rewrite can save nothing, on a busy machine each of them.
    assert results <= {(Result.DONE, False), (Result.SKIPPED, True)}
    read = ("journalctl", f"--file={bed.journald.active}", "-o", "cat", "LAB_COUNT=yes")
    # the last messages can still be in journald's queue
    assert eventually(lambda: run(*read).splitlines() == [f"number {number}" for number in numbers])
    assert not look(bed.journald.active)[0].compressed
    bed.journald.stop()
    subprocess.run(["journalctl", "--verify", f"--file={bed.journald.active}"], check=True, capture_output=True)


APPEND = """
import mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
    for line in sys.stdin:
        pages[int(line) : int(line) + 5] = b"entry"
        print(flush=True)
"""


def test_nothing_that_another_process_appends_to_an_archive_is_lost(
    place: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journald that archives in a process of its own renames the file and stores ARCHIVED before that process ends.

    Source: systemd, pull request 31363.
    """
    path = put(place, journal_bytes)
    os.truncate(path, 16 * MIB)
    with_unwritten(path, 8 * MIB, 8 * MIB)
    real, at = writeback.free_zeros, 8 * MIB + 123
    with subprocess.Popen([sys.executable, "-c", APPEND, path], stdin=PIPE, stdout=PIPE, text=True) as writer:

        def free_zeros(fd: int, hole: int, offset: int, length: int) -> None:
            print(at, file=writer.stdin, flush=True)
            assert writer.stdout is not None
            writer.stdout.readline()
            real(fd, hole, offset, length)

        monkeypatch.setattr(writeback, "free_zeros", free_zeros)
        do(action(path))
        assert path.read_bytes()[at : at + 5] == b"entry"


# a stop


PIECE_BYTES = MIB


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all reads from now on; one that reads holes is ended."""
    real, lengths = os.pread, []

    def pread(fd: int, length: int, offset: int) -> bytes:
        lengths.append(length)
        assert sum(lengths) < 64 * MIB, "a hole is read"
        return real(fd, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    return lengths


def stopped_when_written(path: Path, share: float, beforehand: Callable[[], object]) -> Done:
    """What becomes of a file when somebody says stop after this share of its data was written."""
    what, data_bytes = action(path), look(path)[0].extents.data_bytes
    pieces: list[int] = []
    beforehand()
    return do(what, tell=pieces.append, stop=lambda: sum(pieces) >= share * data_bytes, chunk_bytes=PIECE_BYTES)


def test_after_the_window_closed_an_active_files_map_is_not_read(
    place: Path, journal_bytes: bytes, mapped: list[int]
) -> None:
    path, pieces = put(place, journal_bytes, "system.journal"), list[int]()
    what = action(path)
    mapped.clear()

    def ask(_piece_us: int) -> Reason | None:
        return Reason.WINDOW_CLOSED if pieces else None

    done = execute(what, Pace(most_bytes=MIB, piece_us=None, ask=ask, tell=pieces.append))
    assert how(done) == (Result.SKIPPED, Reason.WINDOW_CLOSED)
    assert mapped == []
    assert extents(path) <= done.outcome.extents_after < done.outcome.extents_before == what.extents_before


def test_a_hole_is_not_read(place: Path, journal_bytes: bytes, reads: list[int]) -> None:
    path = put(place, journal_bytes, nocow=True)
    mtime_ns = path.stat().st_mtime_ns
    os.truncate(path, 3 * GIB)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    what = action(path)
    reads.clear()
    done = do(what)
    assert done.outcome.result is Result.DONE, done.outcome.detail
    assert sum(reads) <= 4 * len(journal_bytes)
    assert max(reads) <= MIB, "a copy of any size takes little memory"
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (3 * GIB, mtime_ns)
    with open(path, "rb") as file:
        assert file.read(len(journal_bytes)) == journal_bytes
    assert not is_nocow(path)


@pytest.mark.parametrize("share", [0.4, 1], ids=["made", "verified"])
def test_a_stop_while_the_copy_is_made_or_verified_leaves_the_original(
    place: Path, journal_bytes: bytes, reads: list[int], share: float
) -> None:
    path = put(place, journal_bytes, nocow=True)
    before, was = bearing(path), path.stat().st_ino
    done = stopped_when_written(path, share, reads.clear)
    assert how(done) == (Result.SKIPPED, Reason.INTERRUPTED)
    assert sum(reads) < share * len(journal_bytes) + 4 * PIECE_BYTES
    assert done.outcome.bytes_written <= share * len(journal_bytes) + PIECE_BYTES
    assert (bearing(path), path.stat().st_ino, done.after.inode) == (before, was, was)
    assert is_nocow(path)
    assert list(place.iterdir()) == [path]


def test_a_stop_while_a_compacted_archive_is_read_through_is_heard(
    place: Path, journal_bytes: bytes, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(place, journal_bytes)
    before = bearing(path)
    monkeypatch.setattr(inplace, "WORSE", 0)  # what it then does for any number of extents, it does for many
    done = stopped_when_written(path, 1, reads.clear)
    assert how(done) == (Result.SKIPPED, Reason.INTERRUPTED)
    assert sum(reads) < 2 * PIECE_BYTES
    assert bearing(path) == before


def test_a_stop_between_two_holes_is_heard(place: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(place, journal_bytes)
    os.truncate(path, 32 * MIB)
    os.utime(path, ns=(OLD_NS, OLD_NS + 1))
    for number in range(8):
        with_unwritten(path, (8 + 2 * number) * MIB, MIB)
    before, what = bearing(path), action(path)
    real, freed = writeback.free_zeros, []

    def free_zeros(fd: int, hole: int, offset: int, length: int) -> None:
        freed.append(offset)
        real(fd, hole, offset, length)

    monkeypatch.setattr(writeback, "free_zeros", free_zeros)
    done = do(what, stop=lambda: len(freed) == 2)
    assert how(done) == (Result.SKIPPED, Reason.INTERRUPTED)
    assert len(freed) == 2
    assert bearing(path) == before


# feedback from journald and the volume


def test_a_real_scrub_and_a_real_balance_are_seen_while_they_go_on(make_volume: Callable[..., ScratchVolume]) -> None:
    volume = make_volume("2G")
    uuid = run("findmnt", "-no", "UUID", volume.mountpoint).strip()
    (volume.mountpoint / "data").write_bytes(os.urandom(64 << 20))
    os.sync()
    assert find_maintenance(uuid) == ""
    limit(volume, 40)
    for command in (("scrub", "start", "-B"), ("balance", "start", "--full-balance")):
        null = subprocess.DEVNULL
        with subprocess.Popen(("btrfs", *command, volume.mountpoint), stdout=null, stderr=null) as process:
            seen = eventually(lambda expected=command[0]: find_maintenance(uuid) == expected)  # type: ignore[misc]
            volume.throttle(0)
            process.wait()
        assert seen
        assert eventually(lambda: find_maintenance(uuid) == "")
        volume.throttle(40)


@contextmanager
def writing(volume: ScratchVolume) -> Iterator[None]:
    """Somebody writes there as fast as it goes."""
    command = f"while :; do dd if=/dev/zero of={volume.mountpoint}/backup bs=64k count=2000 conv=fsync,notrunc; done"
    with subprocess.Popen(("sh", "-c", command), stderr=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_plan_waits_for_who_uses_its_own_disk_and_not_for_another(
    make_volume: Callable[..., ScratchVolume], journal_bytes: bytes, make_engine: Callable[..., Engine]
) -> None:
    volumes = make_volume("1G"), make_volume("1G")
    put(volumes[0].mountpoint, journal_bytes)
    os.sync()
    at_once = ALWAYS.model_copy(update={"watch": WatchSection(settle_us=0)})
    config = at_once.model_copy(update={"window": WindowSection(pressure_max_percent=0)})
    engine = make_engine(volumes[0].mountpoint, config=config)

    def reasons() -> list[Reason]:
        return [skip.reason for skip in engine.plan(Request()).skipped]

    with writing(volumes[1]):
        assert eventually(lambda: reasons() == [])
    with writing(volumes[0]):
        assert eventually(lambda: reasons() == [Reason.PRESSURE])
        assert engine.plan(Request(now=True)).actions


# Before each piece


class Asked:
    """A Throttle for one file of a bed, with what it was made of."""

    def __init__(self, bed: Bed, kind: Kind, *, hurry: bool = False) -> None:
        self.flushes = Flushes()
        self.stopped = False
        self.seen = self.look(bed)
        file = next(file for file in self.seen.files if file.kind is kind)
        action = Action(file.path, Verb.DEFRAGMENT, Reason.FRAGMENTED, file)
        config = Config(window=WindowSection(margin_us=500_000))
        made = Runner(config, self.flushes, SlowestPiece(), hurry=hurry, stop=lambda: self.stopped)
        self.throttle = Throttle(made, action, self.seen)

    def look(self, bed: Bed) -> Seen:
        seen = Observer().look([str(bed.journald.directory)], now_us=time.time_ns() // 1000)
        # The instance's own settings are in journald's namespace.
        seen = seen._replace(instances=tuple(one._replace(sync_interval_us=3_000_000) for one in seen.instances))
        self.flushes.look(seen.instances, seen.files)
        return seen


@pytest.fixture
def short(make_bed: Callable[..., Bed]) -> Bed:
    """A journald that flushes 3 s after the first append, and has one archive and nothing unsynced."""
    bed = make_bed("SyncIntervalSec=3s")
    bed.journald.rotate()
    bed.journald.log("so that there is an active file")
    assert eventually(lambda: count_entries(bed.journald.active) > 0)
    bed.journald.sync()
    return bed


def begin_interval(short: Bed, kind: Kind) -> Asked | None:
    """Return an Asked that saw nothing unsynced, after a message; None if the file was not ONLINE before the flush."""
    assert eventually(lambda: short.journald.read_state() != ONLINE)
    one = Asked(short, kind)
    short.journald.log("the timer starts")
    return one if eventually(lambda: short.journald.read_state() == ONLINE, 10) else None


def test_once_something_is_unsynced_the_window_closes_before_the_flush(short: Bed) -> None:
    """The plan saw it OFFLINE and knew no limit: what came after it does."""

    def closes_before(_: int) -> bool:
        if (one := begin_interval(short, Kind.ACTIVE)) is None:
            return False
        answers = [one.throttle(0), one.throttle(3_000_000)]
        while not one.throttle(0) and short.journald.read_state() == ONLINE:
            time.sleep(0.02)
        answers.append(one.throttle(0))
        return answers == [None, *[Reason.WINDOW_CLOSED] * 2] and short.journald.read_state() == ONLINE

    assert any(map(closes_before, TRIES))


def test_an_archives_piece_waits_until_the_flush_is_over(short: Bed) -> None:
    def waits(_: int) -> bool:
        if (one := begin_interval(short, Kind.ARCHIVED)) is None:
            return False
        one.look(short)
        assert one.throttle(0) is None, "not yet due"
        while not (is_due := one.flushes.is_flush_due(500_000)) and short.journald.read_state() == ONLINE:
            time.sleep(0.02)
        assert one.throttle(0) is None
        return is_due and short.journald.read_state() != ONLINE and one.flushes._news

    assert any(map(waits, TRIES))


def test_a_stop_ends_a_pause(short: Bed) -> None:
    def ends(_: int) -> bool:
        if (one := begin_interval(short, Kind.ARCHIVED)) is None:
            return False
        one.look(short)
        os.kill(short.journald.pid, signal.SIGSTOP)  # the flush does not come
        try:
            if short.journald.read_state() != ONLINE:  # or it has come
                return False
            assert eventually(lambda: one.flushes.is_flush_due(500_000))
            threading.Timer(0.5, setattr, (one, "stopped", True)).start()
            return one.throttle(0) is Reason.INTERRUPTED
        finally:
            os.kill(short.journald.pid, signal.SIGCONT)

    assert any(map(ends, TRIES))


def test_a_hurried_request_waits_for_no_flush(short: Bed) -> None:
    one = Asked(short, Kind.ACTIVE, hurry=True)
    short.journald.log("the timer starts")
    assert one.throttle(10_000_000) is None


def test_above_half_of_a_limit_it_rests_as_long_as_the_piece_takes(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 50 and 250 ms."""
    log_until_online(bed.journald, "after all that it says of its start")
    bed.journald.sync()
    monkeypatch.setattr(runner, "REST_EVERY_S", math.inf)
    one, rests = Asked(bed, Kind.ACTIVE), list[float]()
    monkeypatch.setattr(runner, "advise", lambda *_: Advice.SLOW_DOWN)
    monkeypatch.setattr(Throttle, "_rest", lambda _, rest_s: rests.append(rest_s))
    for piece_us in (10_000, 120_000, 900_000):
        assert one.throttle(piece_us) is None
    assert rests == [0.05, 0.12, 0.25]
