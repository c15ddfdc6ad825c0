# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper lab compare`: each strategy has the effect that it is known for, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.probe.compare import STRATEGIES
from journalkeeper.probe.scratch_volume import PREFIX, ScratchVolume
from tests.answers import check
from tests.btrfs.test_try import await_no_traces
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.root
MIB = 1 << 20


def command(directory: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "journalkeeper", "lab", "compare", str(directory), *words]


@pytest.mark.slow
@pytest.mark.long
def test_each_strategy_has_its_effect(tmp_path: Path) -> None:
    """It takes long because six journals are aged, flushed and read cold at 900 requests a second."""
    done = subprocess.run(
        command(tmp_path, "--extents=800", "--iops=900", "-j"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    check("lab", found)
    rows = {row["strategy"]: row for row in found["strategies"]}
    assert list(rows) == [strategy.name for strategy in STRATEGIES]
    assert (found["directory"], found["iops"]) == (str(tmp_path), 900)
    extents = {name: row["active_extents"] for name, row in rows.items()}
    assert extents["untouched"] >= 800
    assert all(extents[name] < 100 for name in ("NOCOW", "defrag", "rotate", "keeper")), extents
    assert [name for name, row in rows.items() if not row["checksummed"]] == ["NOCOW"]
    assert rows["keeper"]["disk_bytes"] < rows["rotate"]["disk_bytes"]
    assert rows["keeper"]["extents"] < rows["rotate"]["extents"]
    for row in rows.values():
        assert row["last_s"] > 0
        assert row["written_bytes"] > MIB
    assert await_no_traces(tmp_path) == []


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, with its first volume mounted."""
    with subprocess.Popen(command(tmp_path, "--extents=15000"), stderr=subprocess.PIPE, text=True) as child:
        while f"{tmp_path}/{PREFIX}" not in Path(f"/proc/{child.pid}/mountinfo").read_text():  # of its own namespace
            assert child.poll() is None
            time.sleep(0.05)
        yield child
        child.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_takes_everything_down(running: subprocess.Popen[str], tmp_path: Path, number: signal.Signals) -> None:
    running.send_signal(number)
    _, said = running.communicate(timeout=PATIENCE_S)
    if number != signal.SIGKILL:
        assert (running.returncode, said) == (1, "journalkeeper: lab was interrupted\n")
    assert await_no_traces(tmp_path) == []


def test_it_says_when_there_is_no_space_left() -> None:
    with ScratchVolume("128M") as volume:
        done = subprocess.run(command(volume.mountpoint), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "are free, 1.0G are needed" in done.stderr
