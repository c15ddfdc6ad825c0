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

from journalkeeper.lab.volume import own_mounts

CONFTEST = Path(__file__).parent.parent / "conftest.py"
Session = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """Run a test module in a pytest session of its own, with our conftest.py."""

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
            timeout=60,
            check=False,
        )

    return run


def test_a_clean_session_passes(session: Session) -> None:
    done = session("def test_it(tmp_path): assert True\n")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_process_left_running_fails_the_session(session: Session, tmp_path: Path) -> None:
    done = session(
        "def test_it():\n"
        f"    child = subprocess.Popen(['sleep', '60'])\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
    )
    os.kill(int((tmp_path / "pid").read_text()), 9)
    assert done.returncode == 1
    assert "still runs: sleep 60" in done.stdout
    assert "1 passed, 1 error" in done.stdout.splitlines()[-1]


def test_a_skip_is_a_skip_by_default(session: Session) -> None:
    done = session("def test_it(): pytest.skip('no moon')\n")
    assert done.returncode == 0
    assert "1 skipped" in done.stdout


@pytest.mark.parametrize(
    "source",
    [
        "def test_it(): pytest.skip('no moon')\n",
        "@pytest.mark.skip(reason='no moon')\ndef test_it(): pass\n",
        "pytest.skip('no moon', allow_module_level=True)\n",
    ],
    ids=["in the test", "by a mark", "the whole module"],
)
def test_a_skip_fails_where_nothing_may_be_skipped(session: Session, source: str) -> None:
    done = session(source, no_skip=True)
    assert done.returncode != 0
    assert "no moon" in done.stdout
    assert any(word in done.stdout.splitlines()[-1] for word in ("1 failed", "1 error"))


def test_what_depends_on_the_kernel_may_be_skipped_everywhere(session: Session) -> None:
    done = session("@pytest.mark.may_skip\ndef test_it(): pytest.skip('no moon')\n", no_skip=True)
    assert done.returncode == 0, done.stdout


def test_an_expected_failure_is_no_skip(session: Session) -> None:
    done = session("@pytest.mark.xfail\ndef test_it(): assert False\n", no_skip=True)
    assert done.returncode == 0, done.stdout


def test_benches_run_only_when_asked_for(session: Session) -> None:
    source = "@pytest.mark.bench\ndef test_it(): pass\ndef test_other(): pass\n"
    assert "1 passed, 1 deselected" in session(source).stdout
    assert "1 passed, 1 deselected" in session(source, "-m", "bench").stdout


@pytest.mark.root
def test_a_mount_and_its_loop_device_left_behind_fail_the_session(session: Session) -> None:
    source = (
        "from journalkeeper.lab.volume import ScratchVolume\nkept = []\ndef test_it(): kept.append(ScratchVolume())\n"
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
    assert "needs root: only root may set up loop devices" in done.stdout
