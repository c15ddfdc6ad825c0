# SPDX-License-Identifier: LGPL-2.1-or-later
"""Places, a bus and a command line for tests of the library's edges."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.cli.context import EngineLike
from journalkeeper.cli.program import run
from tests import bus as buses
from tests.adapters.command import Said, Typed
from tests.bus import PrivateBus


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody gets to, which tmp_path is not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)  # noqa: S103 - the point
        yield Path(name)


@pytest.fixture(scope="module")
def bus() -> Iterator[PrivateBus]:
    """A system bus of the module's own."""
    if reason := buses.missing():
        pytest.skip(reason)
    with PrivateBus() as private:
        yield private


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """`typed("scan", "-j")` runs a command line and tells its exit status and output."""

    def typed(*words: str, engine: EngineLike | None = None) -> Said:
        capsys.readouterr()
        status = run(words, engine)
        return Said(status, *capsys.readouterr())

    return typed
