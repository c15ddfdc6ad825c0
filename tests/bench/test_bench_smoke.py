# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each bench runs, in a tiny size, and prints the figures of journalkeeper-figures(7).

No figure that a clock made is judged here. A test takes long because flushes age a journal, or hosts boot.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from journalkeeper.probe.scratch_volume import run
from tests.bench.figures import REPOSITORY
from tests.guest.conftest import require_guest
from tests.patience import eventually

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.long]

MET, NO_LIMIT = "met", ""
QUICK = "--interval 3 --config [Window]\\nMarginSec=400ms\\nPressureMax=100%"
"""The service where flushes are three seconds apart, on a machine that may be busy with other tests."""


def run_bench(line: str) -> str:
    """Run a bench and return its output."""
    bench, *words = line.split()
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{bench}", *words],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.fspath(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_figures(said: str) -> dict[str, tuple[float, str]]:
    """Return the rows of a bench's table: the figure, and whether its limit is met."""
    table = said.partition("measured")[2]
    rows = (re.split(r" {2,}", line) for line in table.splitlines()[1:])
    return {row[0]: (float(row[1].split()[0]), row[3] if len(row) > 3 else NO_LIMIT) for row in rows if len(row) > 1}


@pytest.mark.parametrize(
    ("line", "verdicts"),
    [
        (
            "archive --extents 400 --full 500 --rounds 1 --volumes 2 --iops 0",
            {"extents after / ideal": MET, "cold journalctl, before / after": NO_LIMIT},
        ),
        (f"windows flushes --minutes 0.4 --extents 300 {QUICK}", {"of them overlapping a flush": MET}),
        (f"windows nocow --minutes 0.2 --extents 300 {QUICK}", {"nocow: extents at last": NO_LIMIT}),
        (f"windows intake --minutes 0.15 --extents 200 --iops 0 {QUICK}", {"with: p99.9, s": NO_LIMIT}),
        (f"windows quiet --minutes 0.05 --extents 100 {QUICK}", {"idle: CPU, ms": MET}),
    ],
    ids=lambda one: one.partition(" --")[0] if isinstance(one, str) else "figures",
)
def test_a_bench_prints_its_figures(line: str, verdicts: dict[str, str]) -> None:
    said = run_bench(line)
    found = read_figures(said)
    assert {name: found[name][1] for name in verdicts} == verdicts, said
    if "nocow" in line:
        assert found["nocow: extents at last"][0] < 30


def test_a_terminated_bench_leaves_no_process_and_no_loop_device() -> None:
    words = [sys.executable, "-m", "tests.bench.windows", "flushes", "--minutes=2", "--extents=100", "--interval=3"]
    with tempfile.TemporaryDirectory() as place:  # the path of a socket in it is too long below tmp_path

        def find_left() -> list[str]:
            return [line for line in run("sh", "-c", "ps -ewwo args; losetup --list").splitlines() if place in line]

        with subprocess.Popen(words, cwd=REPOSITORY, env={**os.environ, "TMPDIR": place}) as bench:
            assert eventually(lambda: any("system.journal" in one.read_text() for one in Path(place).glob("*/ours")))
            bench.terminate()
        assert eventually(lambda: not find_left()), find_left()


@pytest.mark.guest
def test_boots_compares_the_disk_usage_of_hosts_with_snapshots() -> None:
    require_guest()
    said = run_bench("boots --snapshots=2 --boots=2 --flushes=3 --rest=0 --iops=0 untouched rotate")
    assert re.search(r"(?m)^rotate +extents( +\d+){4}$", said), said
    assert re.search(r"(?m)^untouched +disk, MiB +\d+\.\d$", said), said


@pytest.mark.guest
def test_year_compares_three_hosts_with_snapshots_of_snapper(tmp_path: Path) -> None:
    """It is long because three guests install snapper, one of them also the service, and each boots three times."""
    require_guest()
    said = run_bench(f"year --days=2 --every=1 --flushes=4 --rest=0 --iops=0 --svg={tmp_path}/year.svg")
    found = read_figures(said)
    assert re.findall(r"(?m)^ +(\w+) +snapshots +6 +12$", said) == ["untouched", "nocow", "service"]
    assert found["service: boots kept - untouched"] == (0.0, MET)
    assert found["files rewritten twice"] == (0.0, MET)
    assert (tmp_path / "year.svg").read_text().count("<polyline") == 3
