# SPDX-License-Identifier: LGPL-2.1-or-later
"""The guards of conftest.py can fail: each is shown a session that deserves it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent / "conftest.py"
pytestmark = pytest.mark.slow
Session = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """Run a test module in a pytest session of its own, with our conftest.py."""

    def run(source: str, *options: str, no_skip: bool = False) -> subprocess.CompletedProcess[str]:
        shutil.copy(CONFTEST, tmp_path)
        (tmp_path / "test_it.py").write_text("import os, pathlib, subprocess, pytest\n" + source)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "JOURNALKEEPER"))}
        environment = inherited | {
            "PYTHONPATH": os.pathsep.join([str(CONFTEST.parent.parent), *sys.path]),
            "JOURNALKEEPER_NO_SKIP": "1" if no_skip else "0",
            "JOURNALKEEPER_CLEANUP_S": "1",
            "TMPDIR": str(tmp_path),
        }
        argv = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path), *options, str(tmp_path)]
        argv += ["-p", "no:cacheprovider"]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=240, check=False)

    return run


SKIP = "def test_it(): pytest.skip('no moon')\n"
COROUTINE = "async def test_it(tmp_path): assert False\n"


@pytest.mark.parametrize(("source", "last", "no_skip"), [(SKIP, "1 failed", True), (COROUTINE, "1 failed", False)])
def test_what_must_fail_fails(session: Session, source: str, last: str, no_skip: bool) -> None:
    done = session(source, no_skip=no_skip)
    assert last in done.stdout.splitlines()[-1], done.stdout


@pytest.mark.root
def test_what_a_worker_leaves_behind_fails_its_session(session: Session) -> None:
    """A process, and a volume, which is unmounted with the worker's mount namespace."""
    source = (
        "from journalkeeper.probe.scratch_volume import ScratchVolume\n"
        "kept = []\n"
        "def test_it(): kept.extend([ScratchVolume(), subprocess.Popen(['sleep', '60'])])\n"
    )
    done = session(source, "-n", "1")
    for pid in re.findall(r"process (\d+) still runs: sleep", done.stdout)[:1]:
        os.kill(int(pid), signal.SIGKILL)
    assert done.returncode == 1
    assert "1 passed, 1 error" in done.stdout.splitlines()[-1]
    for words in ("is still mounted", "is still attached to", "still runs: sleep 60"):
        assert words in done.stdout
