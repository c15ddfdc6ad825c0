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
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from journalkeeper.cli.program import run
from journalkeeper.model.errors import KeeperError
from journalkeeper.probe import bed as beds
from journalkeeper.probe import fsync, intake, stream, syslog
from journalkeeper.probe.base import Measurement, Steps, Target
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.compare import Strategy, measure_wait_s
from journalkeeper.probe.distribution import Limit
from tests.answers import check
from tests.bench.figures import REPOSITORY
from tests.patience import PATIENCE_S, TRIES, eventually
from tests.slowdisk import GO, HOLD, on_slow_disk

pytestmark = [pytest.mark.root, pytest.mark.slow]


def run_probe(steps: Steps) -> Measurement:
    """Return the measurement when the probe has ended."""
    *_, found = steps
    return found


def test_ctrl_c_shows_the_values_so_far(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "journalkeeper", "probe", "syslog", "--seconds=60", "-j", f"--directory={tmp_path}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        try:
            assert eventually(
                lambda: any(b"journalkeeper-probe" in one.read_bytes() for one in tmp_path.glob(".*/*/system.journal"))
            )
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, err) == (1, b"")
    found = json.loads(out)
    assert found["series"][0]["count"] > 0
    assert "Interrupted: this is what there is." in found["notes"]


def test_a_journald_that_dies_is_a_fault_and_earlier_messages_are_shown(bed: Bed) -> None:
    steps = syslog.measure_at(Target.of(bed.journald), Namespace(size=200, rate=200, seconds=5), 1000)
    found = next(steps)
    for number, _ in enumerate(steps):
        if number == 50:
            bed.journald.kill()
    (fault,) = found.faults
    assert re.fullmatch(r"journald ended meanwhile \(.+\): only the messages before that are shown", fault)
    assert len(found.series[0].began_ns) == 51


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
        bed = make_bed()
        steps = syslog.measure_at(Target.of(bed.journald), options(rate=1000), 2000)
        sent, taken = next(steps).series
        with ExitStack() as stack:
            for number, _found in enumerate(steps):
                if number == 100:
                    words = [sys.executable, "-c", STOPPER, str(bed.journald.pid)]
                    stopper = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            assert stopper.stdout is not None
            stopped_s = float(stopper.stdout.read())
        asked = Namespace(directory=str(bed.directory), since=None, boot=False, follow=False)
        delays = run_probe(intake.measure(asked))
        stalls = [note for note in delays.notes if note.startswith("stall of ")]
        in_queue_s, until_taken_s, until_received_s = (
            max(each) / 1e9 for each in (sent.took_ns, taken.waits_ns(), delays.series[0].waits_ns())
        )
        in_time = [until_taken_s, until_received_s] == pytest.approx([stopped_s] * 2, rel=0.1)
        unexplained = bool(stalls) and all(": no event explains it" in stall for stall in stalls)
        # a program waits from the moment at which the queue is full; other work makes more stalls than one, of which a
        # flush may explain some
        return unexplained and 0.2 < in_queue_s < stopped_s + 0.1 and in_time

    assert any(map(agree, TRIES))


def test_an_fsync_takes_as_long_as_the_disk_is_held() -> None:
    released_ns: list[int] = []

    def let_go() -> None:
        released_ns.append(time.monotonic_ns())
        disk.order(GO)

    with on_slow_disk("1G") as (slow, disk):
        steps = fsync.measure(Namespace(directory=str(slow.mountpoint), rate=20, seconds=0.5, who=False))
        alone, *_ = next(steps).series
        for number, _ in enumerate(steps):
            if number == 4:
                before_ns = time.monotonic_ns()
                disk.order(HOLD)
                release = threading.Timer(1, let_go)
                release.start()
            if number == 5:
                release.join()
                after_ns = time.monotonic_ns()
        assert released_ns[0] - alone.began_ns[5] < alone.took_ns[5] < after_ns - before_ns


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ("syslog --seconds=0.3", {"program waits", "message waits for journald"}),
        ("stream --seconds=0.5 --size=4096", {"until journald took it", "from journald to reader"}),
        ("stream --seconds=5 -- echo a line", {"between the program's writes", "from journald to reader"}),
        ("intake", {"all"}),
        ("fsync --seconds=0.3 --rate=20", {"fsync alone", "fsync, 5% write load", "fsync, 20% write load"}),
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


def options(**more: object) -> Namespace:
    values: dict[str, object] = {"size": 200, "rate": 100, "seconds": 0.5, "host": False, "argv": []}
    return Namespace(**values | more)


@pytest.mark.parametrize("probe", ["syslog", "stream"])
def test_a_change_of_the_clock_makes_no_wait_longer(
    bed: Bed, probe: str, replace_journalctl: Callable[[str, str], None]
) -> None:
    replace_journalctl(sys.executable, STEPPED)
    where = Target.of(bed.journald)
    found = run_probe(
        syslog.measure_at(where, options(), 50) if probe == "syslog" else stream.measure_at(where, options())
    )
    assert all(series.took_ns for series in found.series)
    assert max(max(series.took_ns) for series in found.series) < 60 * 10**9
    assert found.losses == []


def test_a_reader_that_ends_fails_the_probe(bed: Bed, replace_journalctl: Callable[[str, str], None]) -> None:
    replace_journalctl("/bin/sh", 'case $* in *--follow*) ;; *) exec {journalctl} "$@" ;; esac')
    with pytest.raises(KeeperError, match="`journalctl --follow` has ended"):
        run_probe(stream.measure_at(Target.of(bed.journald), options()))


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
BUFFER = r"{}'s own buffer delays lines: it wrote nothing for [\d.]+ m?s, then \d+ lines \({}\) at once\. Let it write"
READER = r"Only the reader delays lines, as .*: {} wrote at least every [\d.]+ m?s, and journald took each line within"


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (["env", "-u", "PYTHONUNBUFFERED", sys.executable, "-c", PYTHON], BUFFER.format("env", r"[78]\.\dK")),
        (["env", "PYTHONUNBUFFERED=1", sys.executable, "-c", PYTHON], READER.format("env")),
        ([sys.executable, "-u", "-c", PYTHON], READER.format(os.path.basename(sys.executable))),
        (["STDIO"], BUFFER.format("stdio", r"4\.0K")),
        (["stdbuf", "-oL", "STDIO"], READER.format("stdbuf")),
        (["sh", "-c", "for n in $(seq 60); do echo line $n; sleep 0.02; done"], READER.format("sh")),
        (["sh", "-c", BURSTS], r"sh itself pauses: it wrote nothing for 1\.\d+ s, then \d lines? at once, which fill"),
        (["sh", "-c", "sleep 1; seq 20"], r"sh wrote 20 lines at once after 1\.\d+ s: its buffer held them, or it had"),
        (["sh", "-c", "sleep 9"], "sh wrote nothing: its buffer holds its lines, or it had none"),
        (["sh", "-c", "kill -9 $$"], "sh wrote nothing: its buffer holds its lines, or it had none"),
        (["false"], r"false ended and wrote nothing\."),
        (["sh", "-c", "for n in $(seq 60); do echo $n; sleep .02; [ $n != 9 ] || kill -STOP JOURNALD; done & "
          "sleep 1.5; kill -CONT JOURNALD; wait"], r"journald delays lines: it took one 1\.\d+ s after sh wrote it\."),
    ],
)  # fmt: skip
def test_the_part_that_delays_the_lines_of_a_command_is_named(
    command: list[str], cause: str, bed: Bed, tmp_path: Path
) -> None:
    subprocess.run(["cc", "-x", "c", "-o", tmp_path / "stdio", "-"], input=STDIO.encode(), check=True)
    words = [word.replace("STDIO", f"{tmp_path}/stdio").replace("JOURNALD", f"{bed.journald.pid}") for word in command]

    said: list[str] = []

    def is_named() -> bool:
        found = run_probe(stream.measure_at(Target.of(bed.journald), options(argv=words, seconds=4)))
        said.append(found.verdict(Limit(60 * 10**9, "X=")))
        return not found.losses and bool(re.match(cause, said[-1]))

    assert any(is_named() for _ in TRIES), said  # other work can delay a line, too


@pytest.mark.parametrize(
    ("script", "notes"),
    [
        ("printf '{}'; exit 3", ["sh ended with exit status 3."]),
        ("printf '{}'; kill -SEGV $$", ["Signal 11 ended sh."]),
    ],
)
def test_a_line_without_a_newline_arrives_and_the_end_of_the_command_is_a_note(
    bed: Bed, script: str, notes: list[str]
) -> None:
    found = run_probe(stream.measure_at(Target.of(bed.journald), options(argv=["sh", "-c", script])))
    assert (found.losses, found.notes) == ([], notes)


def test_a_command_that_ignores_sigterm_ends_with_the_measurement(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PATIENCE_S", 2)
    endless = ["sh", "-c", f"trap '' TERM; echo $$ >{tmp_path}/pid; echo; while :; do sleep 1; done"]
    run_probe(stream.measure_at(Target.of(bed.journald), options(argv=endless, seconds=0.5)))
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


@pytest.mark.parametrize(("user", "note"), [(1000, []), (999, [stream.UNREAD])])  # journald's SplitMode=uid
def test_a_user_without_root_runs_a_command_on_the_hosts_journald(bed: Bed, user: int, note: list[str]) -> None:
    bed.volume.mountpoint.chmod(0o755)
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
    words = [*become, sys.executable, "-m", "journalkeeper", "probe", "stream", "--seconds=30", "-j", "--"]
    command = ["sh", "-c", 'for n in $(seq 30); do echo "line $n"; sleep 0.02; done; echo error >&2; exit 3']
    done = subprocess.run([*bed.journald.inside, "env", f"PYTHONPATH={REPOSITORY}", *words, *command],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    check("probe", found)
    assert found["notes"] == [*note, "sh ended with exit status 3."]
    assert [series["count"] for series in found["series"]] == [31, *([0, 0] if note else [31, 31])]


def test_lost_messages_are_counted_in_the_verdict(
    make_bed: Callable[..., Bed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syslog, "PATIENCE_S", 1)
    found = run_probe(syslog.measure_at(Target.of(make_bed("MaxLevelStore=warning").journald), options(), 50))
    assert [len(series.took_ns) for series in found.series] == [50, 0]
    assert found.losses == ["50 of 50 messages did not arrive in the journal."]
    assert found.verdict(Limit(60 * 10**9, "X=")).startswith(found.losses[0])


def test_a_private_journald_starts_where_a_container_has_proc_sys_read_only(tmp_path: Path) -> None:
    script = 'mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec "$@"'
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", sys.executable]
    words += ["-m", "journalkeeper", "probe", "syslog", "--seconds=0.2", f"--directory={tmp_path}"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "max_dgram_qlen 512" in done.stdout


def test_a_private_journald_that_fails_to_start_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(beds, "START", "echo 'mount: permission denied' >&2; exit 1")
    assert run(["probe", "syslog", "--seconds=0.1"]) == 1
    said = capsys.readouterr().err
    assert said == "journalkeeper: private journald: mount: permission denied\n"


def test_the_wait_of_a_load_is_the_time_without_journald(bed: Bed) -> None:
    stop = f"kill -STOP {bed.journald.pid}; sleep 2; kill -CONT {bed.journald.pid}"
    strategy = Strategy("stopped", by_day=stop, syncs=False)
    assert any(measure_wait_s(bed, strategy, 0) == pytest.approx(2, rel=0.1) for _ in TRIES)
