# SPDX-License-Identifier: LGPL-2.1-or-later
"""Probes on a whole machine: their answers, the traces that they leave, and failures meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from journalkeeper.cli.program import run
from journalkeeper.model.errors import KeeperError
from journalkeeper.probe import bed as beds
from journalkeeper.probe import fsync, intake, stream, syslog, writes
from journalkeeper.probe.base import Measurement
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.scratch_volume import OWN_MOUNTS
from journalkeeper.probe.scratch_volume import run as run_command
from tests.answers import check
from tests.bench.figures import REPOSITORY
from tests.patience import PATIENCE_S, TRIES, eventually
from tests.slowdisk import GO, HOLD, on_slow_disk
from tests.volumes import kill

pytestmark = [pytest.mark.root, pytest.mark.slow]


T = TypeVar("T")


def sockets(bed: Bed) -> str:
    """Return the directory of the sockets of the bed's journald."""
    return f"/proc/{bed.journald.pid}/root/run/systemd/journal"


def options(bed: Bed, **more: object) -> Namespace:
    values: dict[str, object] = {"directory": str(bed.journald.directory), "size": 200, "rate": 100, "seconds": 0.5}
    return Namespace(**values | {"argv": LINES} | more)


def run_probe(measure: Callable[..., None], bed: Bed, **more: object) -> Measurement:
    """Return the measurement of `syslog.measure` or `stream.measure` at the bed's journald."""
    found = Measurement()
    measure(options(bed, **more), found, sockets(bed))
    return found


def call_after(count: int, found: Measurement, act: Callable[[], T]) -> Callable[[], T]:
    """Return a function that calls `act` when the first series of `found` has `count` waits."""

    def call() -> T:
        assert eventually(lambda: found.series and len(found.series[0].waits_ns) >= count)
        return act()

    return call


def test_ctrl_c_shows_the_values_so_far(bed: Bed) -> None:
    words = [*bed.journald.inside, "env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "journalkeeper"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*words, "probe", "syslog", "--seconds=40", "-j"], stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        try:
            assert eventually(lambda: b"journalkeeper-probe" in bed.journald.active.read_bytes())
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, err) == (1, b"")
    found = json.loads(out)
    assert found["series"][0]["count"] > 0
    assert "Interrupted: this is what there is." in found["notes"]


def test_a_journald_that_dies_is_a_fault_and_earlier_messages_are_shown(bed: Bed) -> None:
    found = Measurement()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call_after(50, found, lambda: kill(bed.journald)))
        syslog.measure(options(bed, rate=200, seconds=20), found, sockets(bed))
    (fault,) = found.faults
    assert re.fullmatch(r"journald ended meanwhile \(.+\): only the messages before that are shown", fault)
    assert 50 <= len(found.series[0].waits_ns) < 4000


STOPPER = """
import os, signal, sys, time
os.kill(int(sys.argv[1]), signal.SIGSTOP)
began_s = time.monotonic()
time.sleep(1)
os.kill(int(sys.argv[1]), signal.SIGCONT)
print(time.monotonic() - began_s)
"""


def test_the_longest_waits_are_as_long_as_journald_was_stopped(make_bed: Callable[..., Bed]) -> None:
    def agree(_: int) -> bool:
        bed, found, delays = make_bed(), Measurement(), Measurement()
        words = [sys.executable, "-c", STOPPER, str(bed.journald.pid)]
        with ThreadPoolExecutor(1) as pool:
            stopped = pool.submit(call_after(100, found, lambda: subprocess.check_output(words)))
            syslog.measure(options(bed, rate=1000, seconds=2), found, sockets(bed))
        stopped_s = float(stopped.result())
        intake.measure(options(bed, since=None, boot=False, follow=False), delays)
        in_queue_s, until_taken_s, until_received_s = (
            max(series.waits_ns) / 1e9 for series in (*found.series, delays.series[0])
        )
        # a program waits from the moment at which the queue is full
        in_time = [until_taken_s, until_received_s] == pytest.approx([stopped_s] * 2, rel=0.1)
        return 0.2 < in_queue_s < stopped_s + 0.1 and in_time

    assert any(map(agree, TRIES))


def test_an_fsync_takes_as_long_as_the_disk_is_held() -> None:
    with on_slow_disk("1G") as (slow, disk), ThreadPoolExecutor(1) as pool:

        def hold() -> int:
            began_ns = time.monotonic_ns()
            disk.order(HOLD)
            time.sleep(1)
            disk.order(GO)
            return began_ns

        found = Measurement()
        held = pool.submit(call_after(4, found, hold))
        fsync.measure(Namespace(directory=str(slow.mountpoint), rate=20, seconds=6, who=False), found)
        assert 0.9e9 < max(found.series[0].waits_ns) < time.monotonic_ns() - held.result()


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ("syslog --seconds=0.3", {"program waits", "message waits for journald"}),
        ("stream --seconds=5 -- echo a line", {"between the program's writes", "from journald to reader"}),
        ("intake", {"all"}),
        ("fsync --seconds=0.3 --rate=20", {"fsync"}),
    ],
)
def test_the_document_of_each_probe_is_what_its_schema_says(
    words: str, rows: set[str], bed: Bed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (syslog, stream):
        monkeypatch.setattr(module, "measure", partial(module.measure, sockets=sockets(bed)))
    bed.journald.log("a message")
    bed.journald.sync()
    probe, *rest = words.split()
    assert run(["probe", probe, "-j", "-D", str(bed.journald.directory), *rest]) == 0
    document = json.loads(capsys.readouterr().out)
    check("probe", document)
    assert rows <= {series["name"] for series in document["series"] if series["count"]}
    assert os.listdir(bed.journald.journal) == ["system.journal"]


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


@pytest.mark.parametrize("measure", [syslog.measure, stream.measure])
def test_a_change_of_the_clock_makes_no_wait_longer(
    bed: Bed, measure: Callable[..., None], replace_journalctl: Callable[[str, str], None]
) -> None:
    replace_journalctl(sys.executable, STEPPED)
    found = run_probe(measure, bed)
    assert all(series.waits_ns for series in found.series)
    assert max(max(series.waits_ns) for series in found.series) < 60 * 10**9
    assert found.losses == []


def test_a_reader_that_ends_fails_the_probe(bed: Bed, replace_journalctl: Callable[[str, str], None]) -> None:
    replace_journalctl("/bin/sh", 'case $* in *--follow*) ;; *) exec {journalctl} "$@" ;; esac')
    with pytest.raises(KeeperError, match="`journalctl --follow` has ended"):
        run_probe(stream.measure, bed)


LINES = ["sh", "-c", "for n in $(seq 50); do echo line $n; sleep 0.01; done"]
PYTHON = """
import time
for n in range(100):
    print("x" * 200)
    time.sleep(0.02)
"""
STDIO = """
#include <stdio.h>
#include <unistd.h>
int main(void) { for (int n = 0; n < 60; n++) { printf("line %0100d\\n", n); usleep(20000); } }
"""
BURSTS = "for n in 1 2 3; do for m in 1 2 3 4 5 6 7 8 9; do echo line $m; done; sleep 1; done"
BUFFER = r"{}'s own buffer delays lines: it wrote nothing for [\d.]+m?s, then \d+ lines \({}\) at once\. Let it write"
READER = r"Only the reader delays lines, as .*: {} wrote at least every [\d.]+m?s, and journald took each line within"


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (["env", "-u", "PYTHONUNBUFFERED", sys.executable, "-c", PYTHON], BUFFER.format("env", r"[78]\.\dK")),
        (["env", "PYTHONUNBUFFERED=1", sys.executable, "-c", PYTHON], READER.format("env")),
        ([sys.executable, "-u", "-c", PYTHON], READER.format(os.path.basename(sys.executable))),
        (["STDIO"], BUFFER.format("stdio", r"4\.0K")),
        (["stdbuf", "-oL", "STDIO"], READER.format("stdbuf")),
        (["sh", "-c", "for n in $(seq 60); do echo line $n; sleep 0.02; done"], READER.format("sh")),
        (["sh", "-c", BURSTS], r"sh itself pauses: it wrote nothing for 1[.\d]*s, then \d lines? at once, which fill"),
        (["sh", "-c", "sleep 1; seq 20"], r"sh wrote 20 lines at once after 1[.\d]*s: its buffer held them, or it had"),
        (["sh", "-c", "sleep 9"], "sh wrote nothing: its buffer holds its lines, or it had none"),
        (["sh", "-c", "kill -9 $$"], "sh wrote nothing: its buffer holds its lines, or it had none"),
        (["false"], r"false ended and wrote nothing\."),
        (["sh", "-c", "for n in $(seq 60); do echo $n; sleep .02; [ $n != 9 ] || kill -STOP JOURNALD; done & "
          "sleep 1.5; kill -CONT JOURNALD; wait"], r"journald delays lines: it took one 1\.\d+s after sh wrote it\."),
    ],
)  # fmt: skip
def test_the_part_that_delays_the_lines_of_a_command_is_named(
    command: list[str], cause: str, bed: Bed, tmp_path: Path
) -> None:
    subprocess.run(["cc", "-x", "c", "-o", tmp_path / "stdio", "-"], input=STDIO.encode(), check=True)
    words = [word.replace("STDIO", f"{tmp_path}/stdio").replace("JOURNALD", f"{bed.journald.pid}") for word in command]

    said: list[str] = []

    def is_named() -> bool:
        found = run_probe(stream.measure, bed, argv=words, seconds=4)
        said.append(found.describe_verdict(60 * 10**9, "X="))
        return not found.losses and bool(re.match(cause, said[-1]))

    assert any(is_named() for _ in TRIES), said  # other work can delay a line, too


@pytest.mark.parametrize(("end", "status"), [("exit 3", 3), ("kill -SEGV $$", -11)])
def test_blank_lines_and_a_part_of_one_arrive_and_the_exit_status_is_a_note(bed: Bed, end: str, status: int) -> None:
    found = run_probe(stream.measure, bed, argv=["sh", "-c", f"printf '  \\n\\n{{}}\\n  {{}}'; {end}"])
    assert (found.losses, found.notes) == ([], [f"sh ended with exit status {status} (below 0: a signal)."])


def test_a_command_that_ignores_sigterm_ends_with_the_measurement(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PATIENCE_S", 2)
    endless = ["sh", "-c", f"trap '' TERM; echo $$ >{tmp_path}/pid; echo; while :; do sleep 1; done"]
    run_probe(stream.measure, bed, argv=endless)
    assert eventually(lambda: not Path("/proc", (tmp_path / "pid").read_text().strip()).exists())


@pytest.mark.parametrize("user", [1000, 999])  # journald's SplitMode=uid: only the first one has a journal
def test_a_user_without_root_runs_a_command_on_the_hosts_journald(bed: Bed, user: int) -> None:
    bed.volume.mountpoint.chmod(0o755)
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
    words = [*become, sys.executable, "-m", "journalkeeper", "probe", "stream", "--seconds=30", "-j", "--"]
    command = ["sh", "-c", 'for n in $(seq 30); do echo "line $n"; sleep 0.02; done; echo error >&2']
    done = subprocess.run([*bed.journald.inside, "env", f"PYTHONPATH={REPOSITORY}", *words, *command],
                          capture_output=True, text=True, check=False)  # fmt: skip
    if user == 999:
        assert (done.returncode, done.stderr) == (1, f"journalkeeper: {stream.NO_LINE} within 10 s\n")
        return
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    check("probe", found)
    assert (found["notes"], [series["count"] for series in found["series"]]) == ([], [31, 31, 31])


@pytest.mark.parametrize("words", [["/no/such/command"], ["no-such-command"]])
def test_a_command_that_does_not_exist_is_named(bed: Bed, words: list[str]) -> None:
    with pytest.raises(KeeperError, match=r"no.such.command: no such command"):
        run_probe(stream.measure, bed, argv=words)


def test_without_a_journald_the_socket_is_named(bed: Bed, tmp_path: Path) -> None:
    for measure in (syslog.measure, stream.measure):
        with pytest.raises(KeeperError, match=f"no systemd-journald takes messages at {tmp_path}/.*: No such file"):
            measure(options(bed), Measurement(), f"{tmp_path}")


def test_lost_messages_are_counted_in_the_verdict(
    make_bed: Callable[..., Bed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syslog, "PATIENCE_S", 1)
    found = run_probe(syslog.measure, make_bed("MaxLevelStore=warning"))
    assert [len(series.waits_ns) for series in found.series] == [50, 0]
    assert found.losses == ["50 of 50 messages did not arrive in the journal."]
    assert found.describe_verdict(60 * 10**9, "X=").startswith(found.losses[0])


START = """
import sys
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.scratch_volume import run
with PrivateJournald(sys.argv[1]) as journald:
    print(run("nsenter", f"--target={journald.pid}", "--net", "cat", "/proc/sys/net/unix/max_dgram_qlen"))
"""


def test_a_private_journald_starts_where_a_container_has_proc_sys_read_only(tmp_path: Path) -> None:
    script = 'mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec "$@"'
    words = [*OWN_MOUNTS, "sh", "-ec", script, "sh", sys.executable, "-c", START, str(tmp_path)]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "512", "")


def test_a_private_journald_that_fails_to_start_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beds, "START", "echo 'mount: permission denied' >&2; exit 1")
    with pytest.raises(KeeperError, match=r"^private journald: mount: permission denied$"):
        beds.PrivateJournald(tmp_path)


# probe writes


FLUSHES = 10


@pytest.mark.parametrize(("nocow", "metadata"), [(False, 1.3), (True, 1.1)])
def test_the_figures_are_those_of_a_volume_that_only_journald_writes(
    bed: Bed, metadata: float, *, nocow: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`metadata` is the most that the device may write for each byte that journald dirties."""
    if nocow:
        run_command("chattr", "+C", bed.journald.journal)
        bed.journald.rotate().unlink()
    bed.journald.age(20)
    run_command("btrfs", "filesystem", "sync", bed.volume.mountpoint)

    found, before = Measurement(), bed.volume.count_written_bytes()

    def log() -> None:
        assert eventually(lambda: found.causes)
        bed.journald.age(FLUSHES, messages=100)
        run_command("btrfs", "filesystem", "sync", bed.volume.mountpoint)

    asked = Namespace(seconds=6, directory=str(bed.journald.directory))
    with ThreadPoolExecutor(1) as pool:
        logging = pool.submit(log)
        writes.measure(asked, found, bed.journald.pid)
        device = bed.volume.count_written_bytes() - before
        logging.result()
    assert found.writes is not None
    logged, dirtied, disk, flushes = found.writes
    assert disk / device == pytest.approx(1, rel=0.1)
    assert 0.99 < device / dirtied < metadata
    assert 900 * FLUSHES * 100 < logged < 1600 * FLUSHES * 100  # with the command line of the tests
    assert FLUSHES <= flushes < 1.5 * FLUSHES  # on a loaded machine the bed asks for a sync again
    measure = partial(writes.measure, pid=bed.journald.pid)
    monkeypatch.setattr(writes, "measure", measure)
    assert run(["probe", "writes", "-j", "--seconds=1", "-D", str(bed.journald.directory)]) == 0
    document = json.loads(capsys.readouterr().out)
    check("probe", document)
    assert document["writes"]["logged_bytes"] == 0
    assert document["verdict"].startswith("journald logged 0B and dirtied 0B")


def test_a_journald_that_ends_is_one_sentence(bed: Bed) -> None:
    found = Measurement()

    def stop() -> None:
        assert eventually(lambda: found.causes)
        bed.journald.stop()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(stop)
        with pytest.raises(KeeperError, match="no systemd-journald runs here, or it ended meanwhile"):
            writes.measure(Namespace(seconds=1, directory=str(bed.journald.directory)), found, bed.journald.pid)
