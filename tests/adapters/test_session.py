# SPDX-License-Identifier: LGPL-2.1-or-later
"""A session of the tests that is stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import CHECKOUT
from tests.patience import eventually

SESSION = """
import pathlib, subprocess, time
from tests.conftest import *

def test_failure(): assert not "this is why"

def test_hang():
    with subprocess.Popen(["sleep", "987654321"]) as child:
        pathlib.Path(__file__).with_name("pid").write_text(str(child.pid))
        time.sleep(600)
"""


@pytest.mark.slow
def test_a_stopped_session_ends_what_it_started_and_has_named_what_failed(tmp_path: Path) -> None:
    """The test has no fixture that ends its child."""
    (tmp_path / "test_it.py").write_text(SESSION.replace("def test_", "\ndef test_"))
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    words = (sys.executable, "-m", "pytest", "-n2", "-c", CHECKOUT / "pyproject.toml", "--rootdir", tmp_path)
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen([*words, tmp_path / "test_it.py"], cwd=CHECKOUT, stdout=said)
        assert eventually(lambda: (tmp_path / "pid").exists() and b"FAILED" in (tmp_path / "said").read_bytes())
        child = (tmp_path / "pid").read_text()
        process.terminate()
        process.wait()
    assert "::test_failure: AssertionError: assert not 'this is why'\n" in (tmp_path / "said").read_text()
    assert not Path("/proc", child).exists()
