# SPDX-License-Identifier: LGPL-2.1-or-later
"""`probe fsync --who`: known calls are counted exactly, timed as their program times them, and nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from journalkeeper.cli.program import run
from journalkeeper.model.errors import KeeperError
from journalkeeper.probe import who
from journalkeeper.probe.base import Measurement, Series, read_lines
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.scratch_volume import OWN_MOUNTS
from tests.answers import check
from tests.bench.figures import REPOSITORY
from tests.patience import TRIES, eventually
from tests.volumes import limit

pytestmark = [pytest.mark.root, pytest.mark.slow]

CALLER = """
import json, mmap, os, sys, time
took_s = dict.fromkeys(("fsync", "fdatasync", "msync"), 0.0)
with open(sys.argv[1], "w+b", buffering=0) as file:
    file.truncate(1 << 20)
    mapped = mmap.mmap(file.fileno(), 1 << 20)
    open("/proc/self/comm", "w").write("a-1 (2) [0]\\nb")
    for n in range(30):
        call = ("fsync", "fdatasync", "msync", "msync")[n % 4]
        mapped[n * 4096] = n + 1
        began_s = time.monotonic()
        mapped.flush() if call == "msync" else getattr(os, call)(file.fileno())
        took_s[call] += time.monotonic() - began_s
print(json.dumps(took_s))
"""
CALLS = {"fsync": 8, "fdatasync": 8, "msync": 14}


@pytest.fixture(autouse=True)
def _can_trace() -> None:
    try:
        with who.trace():
            pass
    except KeeperError as error:
        pytest.skip(str(error))


def watch(during: Callable[[], object], seconds: float = 5) -> dict[str, Series]:
    """Return the rows of a measurement, by name, during which a thread runs `during`."""
    found = Measurement()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: eventually(lambda: found.causes) and during())
        who.measure(Namespace(seconds=seconds), found)
    assert found.faults == []
    return {row.name: row for row in found.series}


def test_known_calls_are_counted_exactly_and_timed_as_their_program_does(bed: Bed) -> None:
    """Other work can keep the program from a processor, after a call or until the measurement is over."""
    limit(bed.volume, 100)  # a call takes long enough to find its names
    file = str(bed.journald.directory / "synced")

    def agree(_: int) -> bool:
        said: list[str] = []
        program = [sys.executable, "-c", CALLER, file]
        rows = watch(lambda: said.append(subprocess.check_output(program, text=True)))
        known = {f"a-1 (2) [0]\\nb: {call} {file}": call for call in CALLS}
        ours = {known.get(name, name): row for name, row in rows.items() if file in name}
        if {call: len(row.waits_ns) for call, row in ours.items()} != CALLS:
            return False
        ratios = [sum(ours[call].waits_ns) / 1e9 / took_s for call, took_s in json.loads(said[0]).items()]
        return all(0.95 <= ratio <= 1.05 for ratio in ratios)

    assert any(map(agree, TRIES))


def test_journalds_main_thread_has_rows_of_its_own_and_the_verdict(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = watch(lambda: bed.journald.age(2))
    name = f"fsync /var/log/journal/{bed.journald.journal.name}/system.journal"  # and in other tests' namespaces
    assert f"systemd-journal: {name}" in rows
    assert len(rows[f"systemd-journal/journal-offline: {name}"].waits_ns) >= 4  # around OFFLINE
    assert run(["probe", "fsync", "--who", "--seconds=0.3", "-j"]) == 0
    check("probe", json.loads(capsys.readouterr().out))


WRITER = "import os, sys; fd = os.open(sys.argv[1], 66); os.pwrite(fd, b'x' * (64 << 20), 0); os.fsync(fd)"


def test_a_call_that_has_not_returned_counts_until_the_end(bed: Bed) -> None:
    limit(bed.volume, 10)
    file = str(bed.journald.directory / "held")
    started: list[subprocess.Popen[bytes]] = []
    rows = watch(lambda: started.append(subprocess.Popen([sys.executable, "-c", WRITER, file])))
    assert started[0].poll() is None
    bed.volume.throttle(0)
    started[0].wait()
    (took_ns,) = [sum(row.waits_ns) for name, row in rows.items() if name.endswith(f": fsync {file}")]
    assert 1e9 < took_ns <= 5e9


def test_lost_events_fail_the_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(who, "PREPARE", who.PREPARE.replace("echo 1024", "echo 4"))

    def read_late(fd: int) -> Iterator[list[bytes]]:
        with (tmp_path / "file").open("w") as file:
            for _ in range(2000):
                os.fdatasync(file.fileno())
        return read_lines(fd)

    monkeypatch.setattr(who, "read_lines", read_late)
    found = Measurement()
    who.measure(Namespace(seconds=0.1), found)
    (fault,) = found.faults
    lost = re.fullmatch("events lost: ([0-9,]+); the counts are too low", fault)
    assert lost is not None
    assert int(lost[1].replace(",", "")) > 1000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_signal_leaves_an_instance(number: signal.Signals) -> None:
    words = [sys.executable, "-m", "journalkeeper", "probe", "fsync", "--who", "--seconds=60"]
    with who.trace() as place, subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
        shells = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        assert eventually(
            lambda: (
                (child := shells.read_text().strip()) and (place.parent / f"journalkeeper-{child}/trace_pipe").exists()
            )
        )
        theirs = place.parent / f"journalkeeper-{shells.read_text().strip()}"
        assert eventually(lambda: (theirs / "events/syscalls/sys_exit_msync/enable").read_text() == "1\n")
        process.send_signal(number)
        process.communicate()
        assert process.returncode == (1 if number != signal.SIGKILL else -number)
        assert eventually(lambda: not theirs.exists())


LOCKED = """
mount -t tmpfs none /sys/kernel/security
echo '[none] integrity [confidentiality]' >/sys/kernel/security/lockdown
exec "$@"
"""
FAILED = "cannot trace (`strace -f -T -y -e fsync,fdatasync -p PID` may work): "
NO_EVENTS = """
mount -t tmpfs none /sys/kernel/tracing
mkdir /sys/kernel/tracing/instances
exec "$@"
"""


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (["unshare", "--pid", "--fork", "--mount-proc"], "cannot trace in a container, where processes have other ids"),
        ([*OWN_MOUNTS, "sh", "-ec", LOCKED, "sh"], f"{FAILED}the kernel forbids it: see kernel_lockdown(7)"),
        ([*OWN_MOUNTS, "sh", "-ec", NO_EVENTS, "sh"], f"{FAILED}the kernel has no events of system calls (CONFIG"),
    ],
)
def test_the_reason_why_it_cannot_trace_is_one_line(setting: list[str], says: str) -> None:
    words = [*setting, sys.executable, "-m", "journalkeeper", "probe", "fsync", "--who"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"journalkeeper: {says}")


def test_a_process_that_ends_between_two_reads_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the whole suite the directory of its threads was seen empty."""
    monkeypatch.setattr(os, "listdir", lambda path: [])
    tally = who.Tally()
    tally.count_event(b"x-12 [000] ..... 1.000001: sys_fsync(fd: 3)")
    assert next(iter(tally.rows)).startswith("process 12, which ended: fsync ")
