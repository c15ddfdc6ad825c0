# SPDX-License-Identifier: LGPL-2.1-or-later
"""Places, a bus, a command line and a journalctl for tests of the library's edges."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.cli.context import Context
from journalkeeper.cli.program import run
from journalkeeper.engine import Engine
from tests import bus as buses
from tests.adapters.command import Said, Says, Typed
from tests.adapters.pages import make
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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of what configs/man/make writes: man pages, completions, schemas."""
    return make(tmp_path_factory.mktemp("made"))


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """`typed("scan", "-j")` runs a command line and tells its exit status and output."""

    def typed(*words: str, engine: Engine | None = None) -> Said:
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            if engine is not None:
                patch.setattr(Context, "make_engine", lambda *_, **_others: engine)
                patch.setattr(Context, "find_service", lambda _: None)
            status = run(words)
        return Said(status, *capsys.readouterr())

    return typed


JOURNALCTL = """#!/bin/sh
echo "$@" >>{place}/asked
case "$1" in --version) echo 'systemd 252 (252.39-1~deb12u2)'; exit;; esac
case "$*" in *_TRANSPORT=driver*) cat {place}/events;; *) cat {place}/entries;; esac
cat {place}/stderr >&2
{end}
"""


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Have journalctl answer with these entries or events, and end so; what it was asked for is in `asked`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def set_up(
        *entries: dict[str, Any], events: Sequence[dict[str, Any]] = (), rest: str = "", end: str = "", stderr: str = ""
    ) -> None:
        (tmp_path / "entries").write_text("".join(f"{json.dumps(one)}\n" for one in entries) + rest)
        (tmp_path / "events").write_text("".join(f"{json.dumps(one)}\n" for one in events))
        (tmp_path / "stderr").write_text(stderr)
        program = tmp_path / "journalctl"
        program.write_text(JOURNALCTL.format(place=tmp_path, end=end))
        program.chmod(0o755)

    return set_up
