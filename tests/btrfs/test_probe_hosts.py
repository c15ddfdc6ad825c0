# SPDX-License-Identifier: LGPL-2.1-or-later
"""Probes on a whole machine: what they trace, what they leave behind, and what goes wrong meanwhile."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from journalkeeper.cli.program import run
from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.probe import base, fsync, stream, syslog, who
from journalkeeper.probe import bed as beds
from journalkeeper.probe.base import Measurement, Target, read_lines
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.compare import STRATEGIES, Strategy, measure_wait_s
from journalkeeper.probe.distribution import Limit
from journalkeeper.probe.scratch_volume import ScratchVolume, undo_at_end
from tests.answers import check
from tests.bench.figures import REPOSITORY
from tests.btrfs.test_probe_truths import ended
from tests.patience import PATIENCE_S, eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

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
if how == "unlinked":
    sys.stdin.read()
"""
"""fsyncs of a file that stays open, has no name any more, or is closed at once after each.

An unlinked file has a name only as long as the process has it open.
"""


def instances() -> list[str]:
    """The trace instances of this program, of all runs: a look into tracefs from a mount namespace of its own."""
    script = 'mount -t tracefs t "$1" && ls "$1/instances"'
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", who.TRACEFS]
    names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if name.startswith(base.NAME)]


def watched(during: Callable[[], object], until: Callable[[Measurement], bool]) -> Measurement:
    """Return what is seen while something is done and `until` holds, which a test waits for in vain if it fails."""
    steps = who.measure(Namespace(who=PATIENCE_S))
    found = next(steps)
    thread = threading.Thread(target=during)
    thread.start()
    until_s = time.monotonic() + PATIENCE_S
    for _ in steps:
        if (not thread.is_alive() and until(found)) or time.monotonic() > until_s:
            break
    steps.close()
    thread.join()
    return found


def calls_of(found: Measurement, file: Path | str) -> Counter[tuple[str, str]]:
    """Return the number of calls of a file by thread and call."""
    rows = [series for series in found.series if series.labels["file"] == str(file)]
    return Counter({(row.labels["thread"], row.labels["call"]): len(row.took_ns) for row in rows})


def test_every_fsync_is_counted_with_its_process_and_the_name_of_its_file(place: Path) -> None:
    processes = []

    def during() -> None:
        for how, calls in {"open": 5, "unlinked": 7, "closed": 11}.items():
            words = [sys.executable, "-c", SYNCER, str(place / how), str(calls), how]
            processes.append(subprocess.Popen(words, stdin=subprocess.PIPE))

    wanted = {f"{place}/open": 5, f"{place}/unlinked (deleted)": 7, f"{place}/closed": 11}
    found = watched(during, lambda found: all(calls_of(found, file).total() == wanted[file] for file in wanted))
    for process in processes:
        process.communicate()
    assert found.faults == []
    ours = [row for row in found.series if str(place) in row.name]
    assert {row.labels["file"]: len(row.took_ns) for row in ours} == wanted
    assert {row.labels["process"] for row in ours} == {Path(f"/proc/{os.getpid()}/comm").read_text().strip()}


def test_a_name_that_looks_like_a_line_of_the_trace_is_a_name(place: Path) -> None:
    name = "a-1 (2) [0]\\nb"
    program = f"open('/proc/self/comm', 'w').write('{name}')\n{SYNCER}"
    found = watched(
        lambda: subprocess.run([sys.executable, "-c", program, place / "x", "3", ""], check=True),
        lambda found: calls_of(found, place / "x").total() == 3,
    )
    assert (found.faults, calls_of(found, place / "x")) == ([], {("a-1 (2) [0]\\x0ab", "fsync"): 3})


def test_journalds_main_thread_and_its_syncing_thread_are_two_rows(bed: Bed) -> None:
    least = {
        ("journal-offline", "fsync"): 10,
        ("systemd-journal", "fsync"): 3,
    }  # before OFFLINE and after, at each sync
    found = watched(lambda: bed.journald.age(5), lambda found: calls_of(found, bed.journald.active) >= Counter(least))
    assert calls_of(found, bed.journald.active) >= Counter(least)
    assert calls_of(found, bed.journald.active).keys() == least.keys()
    said = found.verdict(Limit(60 * 10**9, "X="))
    assert re.search(r"All loggers waited for \d+ calls of journald's main thread, .* within 60.0 s", said)


def test_events_for_which_there_was_no_room_are_counted_and_fail_the_count(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(who, "BUFFER_KIB", 4)
    fd = os.open(place / "file", os.O_RDWR | os.O_CREAT)
    steps = who.measure(Namespace(who=0.1))
    next(steps)
    for _ in range(2000):
        os.fdatasync(fd)
    found = ended(steps)
    os.close(fd)
    (fault,) = found.faults
    assert int(re.findall(r"^(\d+) events were lost", fault)[0]) > 1000


def test_lines_that_cannot_be_read_fail_the_count(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(who, "LINE", re.compile("another kernel's form"))
    steps = who.measure(Namespace(who=0.1))
    next(steps)
    (place / "file").touch()
    subprocess.run(["sync", place / "file"], check=True)
    assert ended(steps).faults == ["1 events were lost: the counts are too low"]


def test_an_option_that_the_instance_inherits_changes_no_count(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(who, "PREPARE", who.PREPARE.replace("echo mono", "echo 1 >options/record-tgid\necho mono"))
    file = place / "file"
    steps = who.measure(Namespace(who=0.1))
    next(steps)
    file.touch()
    subprocess.run(["sync", file], check=True)
    found = ended(steps)
    assert (found.faults, calls_of(found, file).total()) == ([], 1)


def test_a_dead_runs_instance_is_removed() -> None:
    dead = f"{base.NAME}{NOBODYS_PID}"
    script = 'mount -t tracefs t "$1"; cd "$1/instances"; mkdir "$2"; echo ready; read -r _; rmdir "$2" || :'
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", who.TRACEFS]
    with undo_at_end(*words, dead):
        with who.instance() as ours:
            assert ours.name == f"{base.NAME}{os.getpid()}"
            assert ours.name in instances()
            assert dead not in instances()
        assert ours.name not in instances()


def test_in_another_pid_namespace_the_real_reason_is_said() -> None:
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "journalkeeper", "probe", "fsync"]
    done = subprocess.run([*words, "--who=1"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot trace in a container, because a trace has the host's process ids: run it on the host" in done.stderr


CALLER = """
import ctypes, mmap, os, sys, time
path, calls = sys.argv[1], int(sys.argv[2])
with open(path, "w+b") as file:
    file.truncate(1 << 20)
    mapped = mmap.mmap(file.fileno(), 1 << 20)
    for n in range(calls):
        mapped[n * 4096] = n % 256
        mapped.flush()
        os.pwrite(file.fileno(), b"x", n * 8192)
        os.fsync(file.fileno())
        os.pwrite(file.fileno(), b"x", n * 4096)
        os.fdatasync(file.fileno())
        os.pwrite(file.fileno(), b"x", n * 4096)
        ctypes.CDLL(None).sync_file_range(file.fileno(), ctypes.c_long(0), ctypes.c_long(0), 7)
    time.sleep(1)  # until its descriptor has been looked up
"""
CALLS = ("msync", "fsync", "fdatasync", "sync_file_range")


def test_each_kind_of_call_has_the_count_and_the_time_that_strace_finds(bed: Bed, tmp_path: Path) -> None:
    summary = tmp_path / "summary"
    strace = ["strace", "-c", "-w", "-o", str(summary), "-e", f"trace={','.join(CALLS)}", "-U", "name,calls,total-time"]
    bed.volume.throttle(100)  # so that a call takes longer than strace does
    found = watched(
        lambda: subprocess.run([*strace, sys.executable, "-c", CALLER, bed.directory / "synced", "10"], check=True),
        lambda found: calls_of(found, bed.directory / "synced").total() == 40,
    )
    bed.volume.throttle(0)
    by_strace = {words[0]: words[1:] for words in map(str.split, summary.read_text().splitlines()) if words[0] in CALLS}
    rows = {row.labels["call"]: row for row in found.series if row.labels["file"] == str(bed.directory / "synced")}
    assert {call: len(row.took_ns) for call, row in rows.items()} == {
        call: int(calls) for call, (calls, _) in by_strace.items()
    }
    assert set(rows) == set(CALLS)
    for call, (_, seconds) in by_strace.items():
        total_s = sum(rows[call].took_ns) / 1e9
        # strace also counts the time in which the call's process waits for it and for a processor
        assert float(seconds) / 2 - 0.01 < total_s < 1.1 * float(seconds) + 0.01, call


def test_a_call_that_has_not_returned_at_the_end_counts_until_then(bed: Bed) -> None:
    file = bed.directory / "held"
    program = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"x" * (64 << 20), 0)
sys.stdin.read()
os.fsync(fd)
"""
    bed.volume.throttle(10)
    with subprocess.Popen([sys.executable, "-c", program, file], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        steps = who.measure(Namespace(who=2.0))
        next(steps)
        process.stdin.close()
        found = ended(steps)
        bed.volume.throttle(0)
        process.wait()
    (row,) = [row for row in found.series if row.labels["file"] == str(file)]
    assert 0.5e9 < sum(row.took_ns) <= 2.1e9
    assert any("had not returned at the end" in note for note in found.notes)


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


def test_a_kill_leaves_nothing_traced_and_no_directory(
    started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    logging = started("syslog", "--seconds=60", f"--directory={tmp_path}")
    tracing = started("fsync", "--who=60")
    assert eventually(lambda: len(children(logging.pid)) == 2)  # what removes, and journald
    assert eventually(lambda: f"{base.NAME}{tracing.pid}" in instances())
    assert list(tmp_path.iterdir()) != []
    below = [*children(logging.pid), *children(tracing.pid)]
    for process in (logging, tracing):
        process.kill()
        process.wait()
    assert eventually(lambda: all(map(gone, below)))
    assert f"{base.NAME}{tracing.pid}" not in instances()
    assert list(tmp_path.iterdir()) == []


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


def test_a_journald_that_dies_is_said_and_what_was_sent_before_is_shown(bed: Bed) -> None:
    steps = syslog.at(Target.of(bed.journald), Namespace(size=200, rate=200, seconds=5, flat_out=False), 1000)
    found = next(steps)
    for number, _ in enumerate(steps):
        if number == 50:
            bed.journald.kill()
    (fault,) = found.faults
    assert re.fullmatch(r"journald ended meanwhile \(.+\): only the messages before that are shown", fault)
    assert len(found.series[0].began_ns) == 51


def test_a_full_volume_ends_the_fsync_probe_with_its_reason_and_without_its_file(
    make_volume: Callable[..., ScratchVolume],
) -> None:
    volume = make_volume("128M")

    def fill_and_go_on() -> None:
        steps = fsync.measure(Namespace(directory=str(volume.mountpoint), rate=100, seconds=1, who=None))
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


def test_a_crit_message_is_the_cause_of_the_stall_after_it_and_not_of_the_one_in_which_it_came(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    os.kill(bed.journald.pid, signal.SIGSTOP)
    bed.journald.log("first")
    time.sleep(0.3)
    bed.journald.log("a disk is failing", PRIORITY="2")
    os.kill(bed.journald.pid, signal.SIGCONT)
    bed.journald.sync()
    assert run(["probe", "intake", "-D", str(bed.directory)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"stall of \d+ m?s at [^:]+:\d\d:\d\d: a sync, the disk, or journald did not run", said)
    assert "a message of priority crit" not in said


def test_fsync_measures_alone_and_beside_a_writer(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["probe", "fsync", "--seconds=0.3", "--rate=20", "-D", str(bed.directory)]
    assert run([*words, "-j"]) == 0
    before = capsys.readouterr().out
    check("probe", json.loads(before))
    names = ["fsync alone", "fsync, writer 5% busy", "fsync, writer 20% busy"]
    assert [(one["name"], one["count"]) for one in json.loads(before)["series"]] == [(name, 6) for name in names]
    assert os.listdir(bed.journald.journal) == ["system.journal"]


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ("syslog --seconds=0.3", {"until sent", "until journald took it"}),
        ("stream --seconds=0.5 --size=4096", {"python, journald", "python, journald to reader"}),
        ("stream --seconds=9 -- echo a line", {"echo, journald to reader"}),
        ("fsync --who=0.3", set()),
        ("intake", {"all"}),
    ],
)
def test_the_document_of_each_probe_is_what_its_schema_says(
    words: str, rows: set[str], bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.journald.log("a message")
    bed.journald.sync()
    probe, *rest = words.split()
    assert run(["probe", probe, "-j", "-D", str(bed.directory), *rest]) == 0
    document = json.loads(capsys.readouterr().out)
    check("probe", document)
    assert rows <= {series["name"] for series in document["series"] if series["count"]}


STEPPED = """\
import json, subprocess, sys
with subprocess.Popen([{journalctl!r}, *sys.argv[1:]], stdout=subprocess.PIPE) as journalctl:
    for line in journalctl.stdout:
        entry = json.loads(line)
        entry["__REALTIME_TIMESTAMP"] = str(int(entry["__REALTIME_TIMESTAMP"]) + 3600 * 10**6)
        print(json.dumps(entry), flush=True)
"""
"""journalctl of a machine whose clock was set forward by an hour after the messages were sent."""


@pytest.fixture
def replace_journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a program in place of journalctl: its interpreter, and its text with {journalctl} for the real one."""

    def replace(interpreter: str, text: str) -> None:
        program = tmp_path / "bin/journalctl"
        program.parent.mkdir()
        program.write_text(f"#!{interpreter}\n" + text.format(journalctl=shutil.which("journalctl")))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return replace


@contextmanager
def quiet_pipe() -> Iterator[Iterator[list[bytes]]]:
    """Yield a reader of a pipe into which nothing is written."""
    read, write = os.pipe()
    yield read_lines(read)
    os.close(read)
    os.close(write)


def asked(**more: object) -> Namespace:
    values: dict[str, object] = {
        "size": 200,
        "rate": 100,
        "seconds": 0.5,
        "flat_out": False,
        "host": False,
        "argv": [],
    }
    return Namespace(**values | more)


@pytest.mark.parametrize("probe", ["syslog", "stream"])
def test_a_clock_that_was_set_by_an_hour_makes_no_wait_longer(
    bed: Bed, probe: str, replace_journalctl: Callable[[str, str], None]
) -> None:
    replace_journalctl(sys.executable, STEPPED)
    where = Target.of(bed.journald)
    found = ended(syslog.at(where, asked(), 50) if probe == "syslog" else stream.at(where, asked()))
    assert all(series.took_ns for series in found.series)
    assert max(max(series.took_ns) for series in found.series) < 60 * 10**9
    assert found.losses == []


def test_lines_that_do_not_come_are_counted_and_said(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PATIENCE_S", 2)
    monkeypatch.setattr(stream, "_follow", lambda *_: quiet_pipe())
    found = ended(stream.at(Target.of(bed.journald), asked()))
    assert found.losses == [f"{name}, journald: 50 of 50 lines did not arrive." for name in ("python -u", "python")]


def test_a_reader_that_ends_fails_the_probe(bed: Bed, replace_journalctl: Callable[[str, str], None]) -> None:
    replace_journalctl("/bin/sh", 'case $* in *--follow*) ;; *) exec {journalctl} "$@" ;; esac')
    with pytest.raises(KeeperError, match="`journalctl --follow` has ended"):
        ended(stream.at(Target.of(bed.journald), asked()))


def test_messages_that_do_not_come_are_counted_and_said(
    make_bed: Callable[..., Bed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syslog, "PATIENCE_S", 1)
    """It takes long because a message counts as lost after 10 s."""
    found = ended(syslog.at(Target.of(make_bed("MaxLevelStore=warning").journald), asked(), 50))
    assert [len(series.took_ns) for series in found.series] == [50, 0]
    assert found.losses == ["50 of 50 messages did not arrive in the journal."]
    assert found.verdict(Limit(60 * 10**9, "X=")).startswith(found.losses[0])


def test_the_processor_time_of_journald_is_what_the_scheduler_counts(bed: Bed) -> None:
    def scheduled_s() -> float:
        tasks = Path(f"/proc/{bed.journald.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    steps = syslog.at(Target.of(bed.journald), asked(flat_out=True, seconds=2), sys.maxsize)
    found = next(steps)
    before_s, began_s = scheduled_s(), time.monotonic()
    for _ in steps:
        if time.monotonic() - began_s > 1.5:
            break
    share = (scheduled_s() - before_s) / (time.monotonic() - began_s)
    steps.close()
    (said,) = re.findall(r"journald ([\d.]+)%, its loggers ([\d.]+)%", " ".join(found.notes))
    assert float(said[0]) / 100 == pytest.approx(share, rel=0.15, abs=0.03)
    assert float(said[1]) > 0


def test_a_programs_own_buffer_is_not_taken_for_journalds_delay(bed: Bed) -> None:
    found = ended(stream.at(Target.of(bed.journald), asked(size=128, seconds=1.7)))
    said = found.verdict(Limit(500_000_000, "X="))
    assert re.match(r"A reader has a line at most \d+ ms after journald, (within|over) 500 ms \(X=\)\. ", said)
    assert re.search(r"python keeps lines back for up to [\d.]+ m?s: it writes up to \d+ lines \(8.0K\) at once", said)
    assert "python -u keeps" not in said


@pytest.mark.parametrize(
    ("program", "status", "lines", "says"),
    [
        ("print('one', flush=True); print('two', flush=True)", 0, 2, "A reader has a line at most "),
        ("import sys, time; time.sleep(0.1); sys.exit(3)", 3, 0, "wrote no line, or buffers its lines"),
        (
            "import time; out = open(1, 'w', 8192)\n"
            "for n in range(80): print('x' * 200, file=out, flush=n % 20 == 19); time.sleep(0.05)",
            0,
            80,
            "it writes up to 20 lines (3.9K) at once. If it has lines before that, have it write each line at once",
        ),
    ],
)
def test_a_command_of_the_users_is_measured(bed: Bed, program: str, status: int, lines: int, says: str) -> None:
    found = ended(stream.at(Target.of(bed.journald), asked(seconds=30, argv=[sys.executable, "-c", program])))
    (row,) = found.series
    assert len(row.took_ns) == lines
    assert says in found.verdict(Limit(500_000_000, "X="))
    assert any(f"exit status {status}" in note for note in found.notes) == bool(status)


def test_a_private_journald_starts_where_a_container_has_proc_sys_read_only(tmp_path: Path) -> None:
    script = 'mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec "$@"'
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", sys.executable]
    words += ["-m", "journalkeeper", "probe", "syslog", "--seconds=0.2", f"--directory={tmp_path}"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "max_dgram_qlen 512" in done.stdout


def test_a_private_journald_that_does_not_start_is_one_line_with_its_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(beds, "START", "echo 'mount: permission denied' >&2; exit 1")
    assert run(["probe", "syslog", "--seconds=0.1"]) == 1
    said = capsys.readouterr().err
    assert said == "journalkeeper: private journald: mount: permission denied\n"


@pytest.mark.parametrize("strategy", STRATEGIES[:2], ids=lambda one: one.name)
def test_journald_syncs_its_file_in_the_load_of_a_comparison_unless_the_strategy_is_no_fsync(
    make_bed: Callable[..., Bed], strategy: Strategy
) -> None:
    place = make_bed(sync_interval="1d")
    marker = place.directory / "marker"  # all events before its fsync are read when that is

    def during() -> None:
        measure_wait_s(place, strategy, 150)
        with marker.open("wb") as file:
            os.fsync(file.fileno())

    found = watched(during, lambda found: bool(calls_of(found, marker)))
    assert bool(calls_of(found, place.journald.active)) == strategy.syncs


def test_the_wait_of_a_load_is_how_long_journald_was_stopped(bed: Bed) -> None:
    stop = f"kill -STOP {bed.journald.pid}; sleep 0.7; kill -CONT {bed.journald.pid}"
    wait_s = measure_wait_s(bed, Strategy("stopped", by_day=stop, syncs=False), 0)
    assert wait_s == pytest.approx(0.7, rel=0.1)
