# SPDX-License-Identifier: LGPL-2.1-or-later
"""What everybody may ask of the service: a plan leaves no trace, and is about watched files only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.engine import Engine
from journalkeeper.journald import control
from journalkeeper.model import Request
from journalkeeper.model.errors import UsageError
from journalkeeper.observe import flushes
from journalkeeper.policy.flush_timer import FlushTimer
from journalkeeper.probe.scratch_volume import ScratchVolume
from journalkeeper.service import api
from tests.btrfs.journals import ALWAYS, NOW, go
from tests.hosts import MACHINE
from tests.journal_files import put

pytestmark = pytest.mark.root


@pytest.fixture
def top(make_volume: Callable[..., ScratchVolume], journal_bytes: bytes) -> Path:
    """A journal directory, and beside it a journal file that is not watched."""
    volume = make_volume("512M").mountpoint
    top = volume / "journal"
    (top / MACHINE).mkdir(parents=True)
    (top / "remote" / "sub").mkdir(parents=True)
    put(top / MACHINE, journal_bytes, "system.journal")
    put(top / "remote" / "sub", journal_bytes)
    (volume / "elsewhere").mkdir()
    put(volume / "elsewhere", journal_bytes)
    return top


@pytest.fixture
def engine(top: Path, make_engine: Callable[..., Engine]) -> Engine:
    """The service's."""
    made = make_engine(top, config=ALWAYS, follows=True)
    go(made, stop=lambda: True)
    return made


def test_only_a_run_makes_journald_sync(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(control, "can_be_asked", lambda *_: True)
    monkeypatch.setattr(control, "synchronize", asked.append)
    monkeypatch.setattr(FlushTimer, "needs_sync", lambda *_: True)
    monkeypatch.setattr(flushes, "ASKED_LOOKS", 0)
    assert engine.plan(NOW).syncs
    engine.plan(NOW._replace(paths=(f"{engine.directories[0]}/{MACHINE}/system.journal",)))
    engine.look(NOW)
    go(engine, stop=lambda: True)
    assert asked == []
    assert engine.has_flush_passed(), "it is still time for a plan"
    go(engine)
    assert asked


def test_a_directory_that_became_a_link_after_it_was_checked_leads_nowhere(engine: Engine, top: Path) -> None:
    """The owner of remote/ may exchange what is in it at any moment."""
    sub = top / "remote" / "sub"
    (name,) = os.listdir(sub)
    checked = api._resolve(Request(paths=(f"{sub}/{name}",), now=True), engine.directories)
    assert [action.path for action in engine.plan(checked).actions] == [f"{sub}/{name}"]
    sub.rename(top / "remote" / "moved")
    sub.symlink_to(top.parent / "elsewhere")
    found = engine.plan(checked)
    assert found.actions == ()
    assert [skip.path for skip in found.skipped] == [f"{sub}/{name}"]
    with pytest.raises(UsageError, match="behind a link"):
        api._resolve(checked, engine.directories)


def test_a_watched_directory_itself_may_be_a_link(top: Path) -> None:
    link = top.with_name("link")
    link.symlink_to(top)
    given = Request(paths=(f"{link}/{MACHINE}/system.journal", f"{link}/{MACHINE}/not-there.journal"))
    placed = api._resolve(given, (f"{link}/",))
    assert placed.paths == (f"{top}/{MACHINE}/system.journal", f"{top}/{MACHINE}/not-there.journal")
