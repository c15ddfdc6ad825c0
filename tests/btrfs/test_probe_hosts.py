# SPDX-License-Identifier: LGPL-2.1-or-later
"""Probes on a whole machine: what they trace, what they leave behind, and what goes wrong meanwhile."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from journalkeeper.cli.program import run
from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.probe import base, fsync, syslog, who
from journalkeeper.probe.base import Measurement
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.bench.figures import REPOSITORY
from tests.btrfs.test_probe_truths import at_bed, ended
from tests.patience import PATIENCE_S, eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

MOMENT_S = 0.5
NOBODYS_PID = 4194304 + 1
"""Above what pid_max may be: no process has it."""

SYNCER = """
import os, sys
path, calls, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
if how == "unlinked":
    os.unlink(path)
for n in range(calls):
    os.pwrite(fd, b"x" * 4096, 4096 * n)
    os.fsync(fd)
    if how == "closed":
        os.close(fd)
        fd = os.open(path, os.O_RDWR)
"""
"""fsyncs of a file that stays open, has no name any more, or is closed at once after each."""


def instances() -> list[str]:
    """The trace instances of this program, of all runs: a look into tracefs from a mount namespace of its own."""
    script = 'mount -t tracefs t "$1" && ls "$1/instances"'
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", who.TRACEFS]
    names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if name.startswith(base.NAME)]


def watched(during: Callable[[], object]) -> Measurement:
    """What is seen while something is done, and for a moment more."""
    steps = who.measured(Namespace(who=60))
    found = next(steps)
    thread = threading.Thread(target=during)
    thread.start()
    until_s = float("inf")
    for _ in steps:
        if until_s == float("inf") and not thread.is_alive():
            until_s = time.monotonic() + MOMENT_S
        if time.monotonic() > until_s:
            break
    steps.close()
    thread.join()
    return found


def syncer(path: Path, calls: int, how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SYNCER, path, str(calls), how])


def test_every_fsync_is_counted_with_its_process_and_the_name_of_its_file(place: Path) -> None:
    asked = {"open": 5, "unlinked": 7, "closed": 11}

    def during() -> None:
        for process in [syncer(place / how, calls, how) for how, calls in asked.items()]:
            assert process.wait() == 0

    found = watched(during)
    assert found.faults == []
    ours = {series.labels["file"]: len(series.took_ns) for series in found.series if str(place) in series.name}
    assert ours == {f"{place}/open": 5, f"{place}/unlinked (deleted)": 7, f"{place}/closed": 11}


def test_a_name_that_looks_like_a_line_of_the_trace_is_a_name(place: Path) -> None:
    name = "a-1 (2) [0]\\nb"
    program = f"open('/proc/self/comm', 'w').write('{name}')\n{SYNCER}"
    found = watched(lambda: subprocess.run([sys.executable, "-c", program, place / "x", "3", ""], check=True))
    (series,) = [one for one in found.series if one.labels["file"] == f"{place}/x"]
    assert (found.faults, len(series.took_ns), series.labels["thread"]) == ([], 3, "a-1 (2) [0]\\x0ab")


def test_journalds_main_thread_and_its_syncing_thread_are_two_rows(bed: Bed) -> None:
    found = watched(lambda: bed.journald.age(5))
    rows = {
        series.labels["thread"]: len(series.took_ns)
        for series in found.series
        if series.labels["file"] == str(bed.journald.active)
    }
    assert rows["journal-offline"] >= 2 * 5  # an fsync before OFFLINE and one after, at each sync
    assert rows["systemd-journal"] >= 3
    assert [series.labels["thread"] for series in found.series if found.judged(series)].count("journal-offline") == 0


def test_events_for_which_there_was_no_room_are_counted_and_fail_the_count(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(who, "BUFFER_KIB", 4)
    fd = os.open(place / "file", os.O_RDWR | os.O_CREAT)
    steps = who.measured(Namespace(who=0.1))
    next(steps)
    for _ in range(2000):
        os.fdatasync(fd)
    found = ended(steps)
    os.close(fd)
    (fault,) = found.faults
    assert int(re.findall(r"^(\d+) events were lost", fault)[0]) > 1000


def test_the_instance_of_a_dead_run_is_removed_by_the_next_and_its_own_at_the_end() -> None:
    script = 'mount -t tracefs t "$1" && mkdir "$1/instances/$2"'
    name = f"{base.NAME}{NOBODYS_PID}"
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", who.TRACEFS, name]
    subprocess.run(words, check=True)
    assert name in instances()
    with who.instance() as ours:
        assert ours.name in instances()
        assert name not in instances()
    assert ours.name not in instances()


def test_without_tracefs_journald_is_looked_at_and_that_is_said(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed() -> Iterator[Path]:
        raise KeeperError("Operation not permitted")

    monkeypatch.setattr(who, "instance", closed)
    monkeypatch.setattr(who, "host_journald", lambda: bed.journald.pid)
    bed.volume.throttle(100)  # so that its fsyncs take longer than a look
    found = watched(lambda: bed.journald.age(1))
    bed.volume.throttle(0)
    assert "No tracefs (Operation not permitted)" in found.notes[0]
    files = {series.labels["file"] for series in found.series}
    assert f"/var/log/journal/{bed.journald.machine_id}/system.journal" in files  # as journald has it
    assert {series.labels["process"] for series in found.series} == {"systemd-journal"}


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the program; it is killed by the end of the test."""
    processes = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "journalkeeper", "probe", *words]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(argv, cwd=REPOSITORY, stdout=pipe, stderr=pipe, start_new_session=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_kill_leaves_nothing_stopped_nothing_traced_and_no_directory(
    started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    starving = started("syslog", "--starve=1%", "--seconds=60", f"--directory={tmp_path}")
    tracing = started("fsync", "--who=60")
    assert eventually(lambda: len(children(starving.pid)) == 3)  # what removes, journald, and what stops it
    assert eventually(lambda: f"{base.NAME}{tracing.pid}" in instances())
    assert list(tmp_path.iterdir()) != []
    below = [*children(starving.pid), *children(tracing.pid)]
    for process in (starving, tracing):
        process.kill()
        process.wait()
    assert eventually(lambda: all(map(gone, below)))
    assert f"{base.NAME}{tracing.pid}" not in instances()
    assert list(tmp_path.iterdir()) == []


def test_what_starves_a_process_lets_it_go_on_when_its_parent_is_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:
        words = [sys.executable, "-m", "journalkeeper.probe.starve", str(victim.pid), "1"]
        with subprocess.Popen(words, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starver:
            assert eventually(lambda: "T (stopped)" in Path(f"/proc/{victim.pid}/status").read_text())
            assert starver.stdin is not None
            starver.stdin.close()  # as the kernel does for who is killed
            assert starver.wait(PATIENCE_S) == 0
        assert "S (sleeping)" in Path(f"/proc/{victim.pid}/status").read_text()
        victim.kill()


def test_ctrl_c_shows_what_there_is(started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    process = started("syslog", "--seconds=60", "-j", f"--directory={tmp_path}")
    assert eventually(
        lambda: any(b"journalkeeper-probe" in one.read_bytes() for one in tmp_path.glob(".*/*/system.journal"))
    )
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (1, b"")
    found = json.loads(out)
    assert found["series"][0]["count"] > 0
    assert "Interrupted: this is what there is." in found["notes"]


def test_a_starved_journald_keeps_senders_waiting_and_nothing_is_lost(tmp_path: Path) -> None:
    words = ("syslog", "--starve=10%", "--rate=200", "--seconds=1", "--size=8192", f"--directory={tmp_path}", "-j")
    out = subprocess.check_output([sys.executable, "-m", "journalkeeper", "probe", *words], cwd=REPOSITORY)
    sent, taken = json.loads(out)["series"]
    assert sent["count"] == taken["count"] == 200
    assert taken["worst_s"] > 0.05  # of slots of 100 ms 90 are spent asleep


def test_a_journald_that_dies_is_said_and_what_was_sent_before_is_shown(bed: Bed) -> None:
    steps = syslog.at(at_bed(bed), Namespace(size=200, rate=200, seconds=5, flat_out=False, starve=None), 1000)
    found = next(steps)
    for number, _ in enumerate(steps):
        if number == 50:
            bed.journald.kill()
    (fault,) = found.faults
    assert re.fullmatch(r"journald ended meanwhile \(.+\): what was sent before is shown", fault)
    assert len(found.series[0].began_ns) == 51


def test_a_full_volume_ends_the_fsync_probe_with_its_reason_and_without_its_file(
    make_volume: Callable[..., ScratchVolume],
) -> None:
    volume = make_volume("128M")

    def fill_and_go_on() -> None:
        steps = fsync.measured(Namespace(directory=str(volume.mountpoint), rate=100, seconds=1, who=None))
        next(steps)
        subprocess.run(
            ["dd", "if=/dev/zero", f"of={volume.mountpoint}/rest", "bs=1M", "conv=fsync"],
            check=False,
            stderr=subprocess.DEVNULL,
        )
        ended(steps)

    with pytest.raises(FileError) as caught:
        fill_and_go_on()
    assert caught.value.number == errno.ENOSPC
    assert [path.name for path in volume.mountpoint.iterdir()] == ["rest"]


def test_a_directory_that_a_dead_run_left_is_removed(place: Path) -> None:
    dead, others = place / f".{base.NAME}{NOBODYS_PID}", place / f".{base.NAME}{os.getppid()}"
    for path in (dead, others, place / "system.journal"):
        path.mkdir()
    with base.scratch(str(place)) as ours:
        assert sorted(os.listdir(place)) == sorted([os.path.basename(ours), others.name, "system.journal"])
    assert sorted(os.listdir(place)) == sorted([others.name, "system.journal"])


def test_intake_tells_the_cause_of_each_stall(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    os.kill(bed.journald.pid, signal.SIGSTOP)
    bed.journald.log("a disk is failing", PRIORITY="2")
    bed.journald.log("and one more")
    time.sleep(0.3)
    os.kill(bed.journald.pid, signal.SIGCONT)
    bed.journald.sync()
    assert run(["probe", "intake", "-D", str(bed.directory)]) == 0
    assert re.search(r"stall of [\d.]+ m?s at .*: a message of priority crit", capsys.readouterr().out)


def test_fsync_measures_alone_and_beside_a_writer_and_compares(
    bed: Bed, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["probe", "fsync", "--seconds=0.3", "--rate=20", "-D", str(bed.directory)]
    assert run([*words, "-j"]) == 0
    before = capsys.readouterr().out
    names = ["fsync alone", "fsync, writer 5% busy", "fsync, writer 20% busy"]
    assert [(one["name"], one["count"]) for one in json.loads(before)["series"]] == [(name, 6) for name in names]
    (tmp_path / "before").write_text(before)
    assert run([*words, f"--against={tmp_path}/before", "--every=1s"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"RATIO\n(.*\n)*fsync alone +6 .*\d\.\d\d x\n", out)
    assert re.search(r"^\d\d:\d\d:\d\d( +\d+)+$", out, re.MULTILINE)
    assert os.listdir(bed.journald.journal) == ["system.journal"]
