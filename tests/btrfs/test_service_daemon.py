# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service beside a real journald: what it does, when it sleeps, and its bad days.

The daemon runs in journald's own mount namespace, where it reads the settings that journald
runs by. Nothing is timed: what must happen is waited for, what must not is looked for.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

import journalkeeper
from journalkeeper.config import Config
from journalkeeper.engine import DAEMON, Engine
from journalkeeper.history.record import Record
from journalkeeper.history.rows import Entry
from journalkeeper.journald import control, layout
from journalkeeper.lab.bed import Bed
from journalkeeper.lab.journald import ONLINE, PrivateJournald
from journalkeeper.lab.load import Load
from journalkeeper.lab.volume import ScratchVolume, drop_caches, extents, run
from journalkeeper.model import Reason, Request, Result
from journalkeeper.model.units import DAY_US
from journalkeeper.model.waiting import Wait
from journalkeeper.observe.flushes import Flushes
from journalkeeper.observe.observer import Observer
from tests.bench.service import calls
from tests.btrfs.journals import QUICK
from tests.journal_files import archive_name, put, put_empty, unclean_name
from tests.patience import eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

PACKAGE = Path(journalkeeper.__file__).parent.parent
PATIENCE_S = 60.0
INSIDE = "/var/log/journal"


class Service:
    """A running `journalkeeper daemon`; `lines` is what it logged, `said` what systemd would have heard."""

    def __init__(
        self, base: Path, directory: str, *, inside: PrivateJournald | None = None, wrapper: tuple[str, ...] = ()
    ) -> None:
        self.config = base / "journalkeeper.conf"
        if not self.config.exists():
            self.config.write_text(QUICK)
        self.state = base / "state"
        self.lines: list[str] = []
        self.said: list[str] = []
        self._stopped = False
        self.on_line: Callable[[str], None] = lambda line: None
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ear = base / f"notify-{os.urandom(4).hex()}"
        self._ear.bind(os.fspath(ear))
        environment = {**os.environ, "STATE_DIRECTORY": f"{self.state}", "PYTHONPATH": f"{PACKAGE}"}
        environment["NOTIFY_SOCKET"] = os.fspath(ear)
        enter = () if inside is None else inside.inside
        words = (sys.executable, "-m", "journalkeeper", "daemon", "-D", directory, "--config", os.fspath(self.config))
        self.process = subprocess.Popen(
            (*enter, *wrapper, *words), env=environment, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._hear, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self.on_line(line)

    def _hear(self) -> None:
        while True:
            message = self._ear.recv(65536).decode()
            if not message:
                return
            self.said.extend(message.splitlines())

    @property
    def status(self) -> str:
        """The last STATUS= line."""
        return next((line[7:] for line in reversed(self.said) if line.startswith("STATUS=")), "")

    def heard(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    def ready(self) -> Service:
        """Wait until it watches and has looked once."""
        assert eventually(lambda: "READY=1" in self.said and bool(self.status)), self.lines
        return self

    def switches(self) -> dict[str, int]:
        """How often each of its threads has gone to sleep."""
        counts = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
            assert found is not None
            counts[task.name] = int(found[1])
        return counts

    def sleeps(self, seconds: float = 3) -> bool:
        """Whether no thread woke for so long."""
        before = self.switches()
        time.sleep(seconds)
        return self.switches() == before

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            status = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if self._stopped:
            return status
        self._stopped = True
        self._ear.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self._ear.close()
        assert not self.heard("Traceback"), "\n".join(self.lines)
        return status

    def history(self) -> list[Entry]:
        with Record(self.state, read_only=True) as record:
            return record.history()

    def outcomes(self, result: Result = Result.DONE) -> set[str]:
        """The names of the files with such an outcome."""
        return {Path(entry.outcome.path).name for entry in self.history() if entry.outcome.result is result}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    with ExitStack() as stack:

        def start(directory: Path | str, **words: object) -> Service:
            service = Service(tmp_path, os.fspath(directory), **words)  # type: ignore[arg-type]
            stack.callback(service.stop)
            return service

        yield start


class Copies(NamedTuple):
    """A directory on a volume, and the bytes of a real archive to fill it with."""

    volume: ScratchVolume
    machine: Path
    content: bytes

    def put(self, number: int = 1, directory: Path | None = None) -> Path:
        """A fragmented copy of the archive."""
        return put(directory or self.machine, self.content, archive_name(number))


@pytest.fixture(scope="module")
def archive() -> bytes:
    """A real archive of 8 MiB."""
    with ScratchVolume() as volume, PrivateJournald(volume.mountpoint) as journald:
        journald.age(2)
        return journald.rotate().read_bytes()


@pytest.fixture
def copies(make_volume: Callable[..., ScratchVolume], archive: bytes) -> Copies:
    volume = make_volume("1G")
    machine = volume.mountpoint / "journal" / ("0123456789abcdef" * 2)
    machine.mkdir(parents=True)
    return Copies(volume, machine, archive)


class Talk:
    """Bursts of messages, with a silence after each in which a flush leaves the file OFFLINE."""

    def __init__(self, journald: PrivateJournald) -> None:
        self._journald = journald
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._talk)
        self.bursts = 0

    def _talk(self) -> None:
        for number in itertools.count():
            if self._end.wait(1.3):
                return
            for message in range(60):
                self._journald.log(
                    f"burst {number} message {message}", LAB_BURST=f"{number}-{message}-{os.urandom(4).hex()}"
                )
            self.bursts += 1

    def __enter__(self) -> Talk:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


# What it does


def test_archives_are_compressed_once_and_active_files_kept_whole(
    make_bed: Callable[..., Bed], serve: Callable[..., Service]
) -> None:
    bed = make_bed("SystemMaxFileSize=64M", sync_interval="2s")
    journald = bed.journald
    journald.age(40)
    first = journald.rotate()
    journald.age(40)
    before = extents(journald.active)
    service = serve(INSIDE, inside=journald).ready()
    assert eventually(lambda: first.name in service.outcomes())
    assert eventually(lambda: "system.journal" in service.outcomes())
    assert extents(journald.active) < before / 2
    second = journald.rotate()
    assert eventually(lambda: second.name in service.outcomes())
    assert eventually(service.sleeps)
    names = [Path(entry.outcome.path).name for entry in service.history()]
    assert names.count(first.name) == names.count(second.name) == 1
    assert service.stop() == 0
    for file in (first, second, journald.active):
        run("journalctl", "--verify", "--file", file)


def test_what_has_waited_for_a_day_is_told_after_a_restart_too(
    copies: Copies, serve: Callable[..., Service], tmp_path: Path
) -> None:
    path = copies.put()
    now_us = time.time_ns() // 1000
    with Record(tmp_path / "state") as record:
        waits = Wait(os.fspath(path), now_us - 2 * DAY_US, "pressure"), Wait("/gone", 1, "pressure")
        record.wait(waits, now_us=now_us)
    (tmp_path / "journalkeeper.conf").write_text(QUICK + "[Budget]\nBytesPerDay=1\n")
    service = serve(copies.machine.parent).ready()
    assert eventually(lambda: service.heard("1 file has waited for 2d: budget")), service.lines
    environment = {**os.environ, "STATE_DIRECTORY": f"{service.state}"}
    command = (sys.executable, "-m", "journalkeeper", "status")
    shown = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "Waiting: 1 file has waited for 2d: budget\n" in shown
    service.config.write_text(QUICK)
    service.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: service.heard("no file waits for longer than a day any more"))
    assert path.name in service.outcomes()
    with Record(service.state, read_only=True) as record:
        assert record.waiting() == {}


REMOTE = Path("/lib/systemd/systemd-journal-remote")


@pytest.mark.may_skip
def test_what_journal_remote_wrote_and_closed_silently_is_done_without_another_event(
    copies: Copies, serve: Callable[..., Service]
) -> None:
    if not REMOTE.exists():
        pytest.skip("the package systemd-journal-remote is not installed")
    directory = copies.machine.parent / "remote"
    directory.mkdir()
    path = directory / "remote-here.journal"
    boot = "0123456789abcdef" * 2
    service = serve(copies.machine.parent).ready()
    words = (REMOTE, f"--output={path}", "--compress=no", "-")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as remote:
        assert remote.stdin is not None
        for number in range(4000):
            now_us = time.time_ns() // 1000
            entry = f"__REALTIME_TIMESTAMP={now_us}\n__MONOTONIC_TIMESTAMP={now_us}\n_BOOT_ID={boot}\n"
            entry += f"MESSAGE=entry {number} {os.urandom(40).hex()}\n\n"
            remote.stdin.write(entry.encode())
            if number % 40 == 39:
                remote.stdin.flush()
                if number == 39:  # the file is new: the last event for which the service looks at once
                    assert eventually(path.exists)
                    time.sleep(2)
                time.sleep(0.02)
                run("sync", path)
    before = extents(path)
    assert before > 60
    assert eventually(lambda: extents(path) < before / 2, 150), service.lines
    assert eventually(lambda: path.name in service.outcomes())


def test_none_of_our_work_overlaps_a_flush_of_journalds(
    make_bed: Callable[..., Bed], serve: Callable[..., Service], tmp_path: Path
) -> None:
    """strace on both: fsyncs of journald's timer against our ioctls and syncs."""
    bed = make_bed("SystemMaxFileSize=64M", sync_interval="3s")
    journald = bed.journald
    journald.age(60)
    ours, theirs, main_thread = tmp_path / "ours", tmp_path / "theirs", journald.pid
    trace = ("strace", "-f", "-ttt", "-T", "-o")
    follower = subprocess.Popen(
        (*trace, theirs, "-e", "trace=fsync", "-p", str(journald.pid)), stderr=subprocess.DEVNULL
    )
    try:
        words = (*trace, os.fspath(ours), "-e", "trace=ioctl,sync_file_range,fsync")
        service = serve(INSIDE, inside=journald, wrapper=words)
        with Talk(journald) as talk:
            assert eventually(lambda: talk.bursts >= 20)
        (daemon,) = map(
            int, Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
        )
        os.kill(daemon, signal.SIGTERM)
        assert service.process.wait(PATIENCE_S) == 0
    finally:
        follower.terminate()
        follower.wait()
    # the first append to an OFFLINE file syncs in the main thread: no timer, and nobody can know of it before
    flushes = [call for call in calls(theirs, "fsync") if call.thread != main_thread]
    work = [
        call
        for call in calls(ours, r"DEFRAG_RANGE|sync_file_range")
        if ", 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE)" not in call.words
    ]
    assert len(flushes) >= 5
    assert work, "it did nothing"
    overlaps = [(flush, call) for flush in flushes for call in work if flush.overlaps(call)]
    assert not overlaps


def test_the_timer_of_a_journald_that_is_never_at_rest_is_learned_by_one_sync(
    make_bed: Callable[..., Bed], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = make_bed("SystemMaxFileSize=64M", sync_interval="30s")
    journald = bed.journald
    monkeypatch.setattr(control, "RUNTIME", f"/proc/{journald.pid}/root/run/systemd/journal")
    flushes, observer = Flushes(), Observer()

    def known() -> bool:
        seen = observer.look([os.fspath(journald.journal)], now_us=time.time_ns() // 1000)
        (instance,) = flushes.look((seen.instances[0]._replace(rotatable=True),), seen.files)
        if instance.sync_tells:
            assert flushes.passed(), "it is time for a plan"
            flushes.learn(instance.directory, control.synchronize)
        return instance.online_since_us is not None

    journald.age(2)
    with Load(bed, 50):  # no look ever finds such a journal OFFLINE
        assert not known()
        assert eventually(known, 120)
        for _ in range(20):
            known()
    assert asked_to_sync(journald) <= 1, "or the kernel's own write-back told it sooner"


def asked_to_sync(journald: PrivateJournald) -> int:
    """How many syncs journald was asked for, by its own words."""
    found = run("journalctl", "--quiet", "--output=cat", "--directory", journald.journal, "_PID=" + str(journald.pid))
    return found.count("request to sync")


def test_nothing_happens_and_nothing_wakes(make_bed: Callable[..., Bed], serve: Callable[..., Service]) -> None:
    bed = make_bed(sync_interval="2s")
    bed.journald.age(2)
    service = serve(INSIDE, inside=bed.journald).ready()
    assert eventually(service.sleeps)
    bed.journald.log("one message wakes it for one interval")
    assert not service.sleeps(2.5)
    assert eventually(service.sleeps)
    cpu = sum(map(int, Path(f"/proc/{service.process.pid}/stat").read_text().split()[13:15]))
    assert service.sleeps(5)
    assert sum(map(int, Path(f"/proc/{service.process.pid}/stat").read_text().split()[13:15])) == cpu


def test_what_it_logs_into_the_journal_that_it_watches_ends_by_itself(
    make_bed: Callable[..., Bed], serve: Callable[..., Service]
) -> None:
    """An unclean file that somebody has open is refused at each cycle, and said once."""
    bed = make_bed(sync_interval="1500ms")
    journald = bed.journald
    journald.age(30)
    unclean = journald.journal / unclean_name()
    unclean.write_bytes(journald.active.read_bytes())
    service = serve(INSIDE, inside=journald)
    service.on_line = lambda line: journald.log(line.strip(), SYSLOG_IDENTIFIER="journalkeeper")
    with open(unclean, "r+b"):
        service.ready()
        assert eventually(lambda: service.heard(Reason.IN_USE))
        for _ in range(3):
            journald.log("somebody else's message, and a cycle after it")
            time.sleep(2)
        assert eventually(service.sleeps)
    assert sum(Reason.IN_USE in line for line in service.lines) == 1
    assert sum(entry.outcome.reason is Reason.IN_USE for entry in service.history()) == 1


# Signals and doors


def test_sigterm_ends_it_between_two_pieces(copies: Copies, serve: Callable[..., Service]) -> None:
    path = copies.put()
    drop_caches()
    copies.volume.throttle(60)
    service = serve(copies.volume.mountpoint / "journal")
    assert eventually(lambda: service.status.startswith("working on"))
    assert service.stop() == 0
    copies.volume.throttle(0)
    (entry,) = service.history()
    assert (entry.outcome.result, entry.outcome.reason) == (Result.SKIPPED, Reason.INTERRUPTED)
    assert path.read_bytes() == copies.content
    assert "STOPPING=1" in service.said


def test_a_reload_takes_new_values_and_keeps_the_old_ones_where_they_are_wrong(
    copies: Copies, serve: Callable[..., Service], tmp_path: Path
) -> None:
    (tmp_path / "journalkeeper.conf").write_text(QUICK.replace("[Defrag]", "[Defrag]\nArchived=no"))
    service = serve(copies.volume.mountpoint / "journal").ready()
    path = copies.put()
    service.config.write_text("[Defrag]\nArchived=perhaps\n")
    service.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: service.heard("not reloaded, the running configuration stays"))
    assert service.heard("journalkeeper.conf:2: Archived")
    service.config.unlink()
    service.process.send_signal(signal.SIGHUP)
    # the line on the bus that is not there has these words, too
    assert eventually(lambda: any("not reloaded" in line and "No such file" in line for line in service.lines))
    assert service.outcomes() == set()
    service.config.write_text(QUICK)
    service.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: path.name in service.outcomes())
    heard = [line for line in service.said if line in {"RELOADING=1", "READY=1"}]
    assert heard == ["READY=1", *["RELOADING=1", "READY=1"] * 3]


def test_a_second_daemon_says_who_is_the_first_and_ends(copies: Copies, serve: Callable[..., Service]) -> None:
    first = serve(copies.volume.mountpoint / "journal").ready()
    second = serve(copies.volume.mountpoint / "journal")
    assert second.process.wait(PATIENCE_S) == 1
    second.stop()
    (line,) = second.lines
    assert f"process {first.process.pid}" in line
    path = copies.put()
    assert eventually(lambda: path.name in first.outcomes()), "the first goes on"


# journald under our hands


def test_journald_restarts_rotates_and_vacuums_under_our_hands(
    make_bed: Callable[..., Bed], serve: Callable[..., Service]
) -> None:
    bed = make_bed("SystemMaxFileSize=8M", "SystemMaxFiles=4", sync_interval="2s")
    journald = bed.journald
    service = serve(bed.directory).ready()
    for number in range(8):
        journald.age(15)
        journald.log(f"before rotation {number}")
        journald.rotate()
        if number == 3:
            journald.kill()
            journald.start()
    assert eventually(lambda: len(service.outcomes()) >= 2)
    assert eventually(service.sleeps)
    assert service.process.poll() is None
    assert all(entry.outcome.result is not Result.FAILED for entry in service.history())
    found = run("journalctl", "-D", journald.journal, "-q", "-o", "cat", "--grep", "before rotation")
    assert "before rotation 7" in found
    run("journalctl", "-D", journald.journal, "--verify")


def test_a_namespace_appears_and_goes(copies: Copies, serve: Callable[..., Service]) -> None:
    service = serve(copies.volume.mountpoint / "journal").ready()
    namespace = copies.machine.with_name(f"{copies.machine.name}.web")
    namespace.mkdir()
    path = copies.put(7, namespace)
    assert eventually(lambda: path.name in service.outcomes())
    shutil.rmtree(namespace)
    other = copies.put(8)
    assert eventually(lambda: other.name in service.outcomes())
    assert service.stop() == 0


# Bad days


def test_a_directory_that_is_not_there_is_waited_for_asleep(
    make_volume: Callable[..., ScratchVolume], archive: bytes, serve: Callable[..., Service]
) -> None:
    volume = make_volume("512M")
    top = volume.mountpoint / "later" / "journal"
    service = serve(top).ready()
    assert eventually(lambda: service.heard(f"waiting for {top} to appear"))
    assert eventually(service.sleeps)
    machine = top / ("0123456789abcdef" * 2)
    machine.mkdir(parents=True)
    path = Copies(volume, machine, archive).put()
    assert eventually(lambda: path.name in service.outcomes())
    assert service.heard("there now")


def test_a_lost_state_directory_is_made_anew_and_said(copies: Copies, serve: Callable[..., Service]) -> None:
    service = serve(copies.volume.mountpoint / "journal").ready()
    shutil.rmtree(service.state)
    path = copies.put()
    assert eventually(lambda: service.state.exists() and path.name in service.outcomes())
    assert eventually(lambda: service.heard("the record was removed; a new one was begun"))


def test_a_second_service_in_a_state_directory_made_anew_ends_the_first(
    copies: Copies, serve: Callable[..., Service]
) -> None:
    """The first holds a lock on a file that is no longer there: two would rewrite the same files."""
    first = serve(copies.volume.mountpoint / "journal").ready()
    first.process.send_signal(signal.SIGSTOP)  # or it may lock the new directory first
    shutil.rmtree(first.state)
    second = serve(copies.volume.mountpoint / "journal").ready()
    first.process.send_signal(signal.SIGCONT)
    path = copies.put()
    assert eventually(lambda: first.process.poll() is not None)
    assert first.stop() == 1
    assert first.heard(f"journalkeeper is at work already: process {second.process.pid} holds")
    assert eventually(lambda: path.name in second.outcomes())
    assert [entry.outcome.result for entry in second.history()] == [Result.DONE]


def test_a_corrupt_record_is_set_aside_and_said(copies: Copies, serve: Callable[..., Service]) -> None:
    service = serve(copies.volume.mountpoint / "journal").ready()
    (service.state / "history.db").write_bytes(b"no database " * 1000)
    path = copies.put()
    assert eventually(lambda: service.heard("the record was damaged and is now"))
    assert eventually(lambda: path.name in service.outcomes())


def test_a_volume_that_is_read_only_is_left_alone_until_it_is_writable(
    copies: Copies, serve: Callable[..., Service]
) -> None:
    path = copies.put()
    run("mount", "-o", "remount,ro", copies.volume.mountpoint)
    service = serve(copies.volume.mountpoint / "journal").ready()
    assert eventually(service.sleeps)
    assert service.outcomes() == set()
    run("mount", "-o", "remount,rw", copies.volume.mountpoint)
    assert eventually(lambda: path.name in service.outcomes())


def test_a_volume_that_goes_away_is_waited_for(copies: Copies, serve: Callable[..., Service]) -> None:
    service = serve(copies.volume.mountpoint / "journal").ready()
    run("umount", "--lazy", copies.volume.mountpoint)
    try:
        assert eventually(lambda: service.heard("to appear"))
        assert eventually(service.sleeps)
    finally:
        copies.volume.mount()
    path = copies.put()
    assert eventually(lambda: path.name in service.outcomes())


def test_on_another_filesystem_it_waits_for_a_mount(
    tmp_path: Path, copies: Copies, serve: Callable[..., Service]
) -> None:
    point = tmp_path / "point"
    point.mkdir()
    run("mount", "-t", "tmpfs", "journalkeeper-test", point)
    try:
        service = serve(point).ready()
        assert eventually(lambda: service.heard("not on btrfs"))
        assert eventually(service.sleeps)
        path = copies.put()
        run("mount", "--bind", copies.volume.mountpoint / "journal", point)
        assert eventually(lambda: path.name in service.outcomes())
        assert service.stop() == 0
        run("umount", point)
    finally:
        run("umount", point)


def test_as_many_files_as_are_looked_at_are_one_look_and_the_next_opens_none(
    copies: Copies, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.utime(copies.machine)
    for number in range(layout.MOST_FILES):
        put_empty(copies.machine / archive_name(number))
        os.utime(copies.machine / archive_name(number), (1, 1))
    os.sync()
    engine = Engine(Config(), directories=(f"{copies.machine.parent}",), state_directory=f"{tmp_path / 'state'}")
    took = []
    for _ in range(3):
        time.sleep(1.1)  # what changed within the last second is not remembered
        began = time.monotonic()
        report = engine.run(Request(), on_progress=lambda progress: None, stop=lambda: False, origin=DAEMON)
        took.append(time.monotonic() - began)
        assert len(report.plan.skipped) == layout.MOST_FILES
    assert engine._observer.opened == layout.MOST_FILES
    with capsys.disabled():
        sys.stdout.write(
            f"\ncycles over {layout.MOST_FILES:,} files: {', '.join(f'{seconds:.2f} s' for seconds in took)}\n"
        )


def test_a_set_clock_does_not_move_the_timer(make_bed: Callable[..., Bed], tmp_path: Path) -> None:
    bed = make_bed(sync_interval="1h")
    bed.journald.sync()
    skew_us = 0

    def wall_us() -> int:
        return time.time_ns() // 1000 + skew_us

    flushes, observer = Flushes(wall=wall_us), Observer()
    seen = observer.look([f"{bed.directory}"], now_us=wall_us())
    flushes.look(seen.instances, seen.files)
    bed.journald.log("now it is online")
    assert eventually(lambda: bed.journald.state() == ONLINE)
    # the instance's settings are this machine's own: what matters is that a timer runs
    (instance,) = flushes.look(seen.instances, seen.files)
    assert instance.online_since_us is not None
    due_us = flushes.closes_us(instance.directory, 0)
    for skew_us in (10**13, -(10**13)):
        (again,) = flushes.look(seen.instances, seen.files)
        assert again.online_since_us is not None
        assert abs(again.online_since_us - skew_us - instance.online_since_us) < 1_000_000
        assert flushes.closes_us(instance.directory, 0) == due_us
