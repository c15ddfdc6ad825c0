# SPDX-License-Identifier: LGPL-2.1-or-later
"""The guards of conftest.py can fail: each is shown a session that deserves it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.probe.scratch_volume import own_mounts

CONFTEST = Path(__file__).parent / "conftest.py"
pytestmark = pytest.mark.slow
Session = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """Run a test module in a pytest session of its own, with our conftest.py; `alone` in mounts of its own."""

    def run(source: str, *options: str, no_skip: bool = False, alone: bool = False) -> subprocess.CompletedProcess[str]:
        shutil.copy(CONFTEST, tmp_path)
        (tmp_path / "test_it.py").write_text("import os, pathlib, subprocess, pytest\n" + source)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "JOURNALKEEPER"))}
        environment = {
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(CONFTEST.parent.parent), *sys.path]),
            "JOURNALKEEPER_NO_SKIP": "1" if no_skip else "0",
            "TMPDIR": str(tmp_path),
        }
        argv = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path), *options, str(tmp_path)]
        # what is left behind on purpose must not stay
        own = own_mounts() or () if alone else ()
        return subprocess.run(
            [*own, *argv, "-p", "no:cacheprovider"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run


SKIP = "pytest.skip('no moon')"
BENCH = "@pytest.mark.bench\ndef test_it(): pass\ndef test_other(): pass\n"


SESSIONS: dict[str, tuple[str, tuple[str, ...], str, bool]] = {
    "clean": ("def test_it(tmp_path): assert True\n", (), "1 passed", False),
    "a skip": (f"def test_it(): {SKIP}\n", (), "1 skipped", False),
    "in the test": (f"def test_it(): {SKIP}\n", (), "1 failed", True),
    "by a mark": ("@pytest.mark.skip(reason='no moon')\ndef test_it(): pass\n", (), "1 error", True),
    "the whole module": ("pytest.skip('no moon', allow_module_level=True)\n", (), "1 error", True),
    "depends on the kernel": (f"@pytest.mark.may_skip\ndef test_it(): {SKIP}\n", (), "1 skipped", True),
    "expected failure": ("@pytest.mark.xfail\ndef test_it(): assert False\n", (), "1 xfailed", True),
    "benches": (BENCH, (), "1 passed, 1 deselected", False),
    "benches asked for": (BENCH, ("-m", "bench"), "1 passed, 1 deselected", False),
    "coroutine": ("async def test_it(tmp_path): assert False\n", (), "1 failed", False),
}
"""A module, words for pytest, how the last line sums up, and whether nothing may be skipped."""


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_ends_as_its_test_deserves(session: Session, name: str) -> None:
    source, options, last, no_skip = SESSIONS[name]
    done = session(source, *options, no_skip=no_skip)
    assert last in done.stdout.splitlines()[-1], done.stdout
    failed = last in ("1 failed", "1 error")
    assert bool(done.returncode) is failed
    assert not no_skip or not failed or "no moon" in done.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_process_left_running_fails_the_session(session: Session, tmp_path: Path, workers: str) -> None:
    done = session(
        "def test_it():\n"
        f"    child = subprocess.Popen(['sleep', '60'])\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n",
        "-n",
        workers,
    )
    os.kill(int((tmp_path / "pid").read_text()), 9)
    assert done.returncode == 1
    assert "still runs: sleep 60" in done.stdout
    assert "1 passed, 1 error" in done.stdout.splitlines()[-1]


WHERE = """
@pytest.fixture(scope="SCOPE")
def place(): return pathlib.Path(os.environ['PYTEST_XDIST_WORKER'], os.readlink('/proc/self/ns/mnt'))
@pytest.mark.parametrize('number', range(8))
def test_it(place, number):
    with open('FILE', 'a') as file: file.write(f'{place}\\n')
"""


@pytest.mark.root
@pytest.mark.parametrize(("scope", "workers"), [("module", 1), ("function", 2)])
def test_workers_have_mounts_of_their_own_and_modules_with_a_fixture_stay_whole(
    session: Session, tmp_path: Path, scope: str, workers: int
) -> None:
    places = tmp_path / "places"
    done = session(WHERE.replace("SCOPE", scope).replace("FILE", str(places)), "-n", "2")
    assert done.returncode == 0, done.stdout
    lines = places.read_text().splitlines()
    assert len(lines) == 8
    found = {line.partition("/")[::2] for line in lines}
    assert len(found) == len({mounts for _, mounts in found}) == workers
    assert os.readlink("/proc/self/ns/mnt") not in {mounts for _, mounts in found}


@pytest.mark.root
def test_a_mount_and_its_loop_device_left_behind_fail_the_session(session: Session) -> None:
    source = (
        "from journalkeeper.probe.scratch_volume import ScratchVolume\n"
        "kept = []\n"
        "def test_it(): kept.append(ScratchVolume())\n"
    )
    done = session(source, alone=True)
    assert done.returncode == 1
    assert "is still mounted" in done.stdout
    assert "is still attached to" in done.stdout


def test_as_a_user_a_root_test_says_what_it_needs(session: Session) -> None:
    done = session(
        "import conftest\nconftest.os.geteuid = lambda: 1000\n@pytest.mark.root\ndef test_it(): pass\n", "-rs"
    )
    assert done.returncode == 0
    assert "loop devices and mounts need root" in done.stdout
