# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a volume, a directory or a right excludes is known before the work, and what was done is what was measured."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.config.directives import Budget, Config, Defrag
from journalkeeper.engine import Engine
from journalkeeper.model import JournalFile, Kind, Outcome, Reason, Request, Result, Verb
from journalkeeper.observe import observer
from journalkeeper.observe.observer import Observer
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.btrfs.journals import go, is_nocow
from tests.daemon import journalkeeper
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put, scatter
from tests.volumes import disk_bytes

pytestmark = pytest.mark.root

MakeEngine = Callable[..., Engine]
EAGER = Config(budget=Budget(keep_free_bytes=0), defrag=Defrag(min_reclaim_bytes=0))


def remount(volume: ScratchVolume, option: str) -> None:
    run("mount", "-o", f"remount,{option}", volume.mountpoint)


def run_once(engine: Engine) -> Outcome:
    (outcome,) = go(engine, Request(archived=True, now=True)).outcomes
    return outcome


def test_a_shared_archive_is_not_stored_again_where_it_cannot_be_compressed(
    machine: Path, volume: ScratchVolume, make_engine: MakeEngine, journal_bytes: bytes
) -> None:
    archive = put(machine, journal_bytes)
    run("cp", "--reflink=always", archive, volume.mountpoint / "copy")
    remount(volume, "nodatasum")
    engine = make_engine(machine.parent, config=EAGER)
    _, chosen = engine.look_and_plan(Request(archived=True, now=True))
    assert not chosen.actions
    (skip,) = chosen.skipped
    assert skip.reason is Reason.SHARED
    assert "mounted with nodatasum" in skip.detail
    assert "other files" in skip.detail
    assert "snapshot" not in skip.detail


@pytest.mark.parametrize("entries", [0, 2**64 - 1])
def test_a_file_of_an_unknown_format_is_left_alone_in_every_view(
    machine: Path, journal_bytes: bytes, tmp_path: Path, entries: int
) -> None:
    """systemd's segmented format has bit 5, the state OFFLINE while it is written, and either of these counters."""
    head = bytearray(journal_bytes)
    head[12], head[16], head[152:160] = head[12] | 1 << 5, 0, entries.to_bytes(8, "little")
    paths = [put(machine, bytes(head), name) for name in ("system.journal", "user-1000.journal", archive_name())]
    before = {path: (path.stat().st_ctime_ns, path.read_bytes()) for path in paths}

    def call(*words: str) -> Any:
        done = journalkeeper(*words, "-D", machine.parent, "-j", state=tmp_path, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done
        return json.loads(done.stdout)

    everywhere = {str(path): "unknown-format" for path in paths}
    assert {row["path"]: row["problem"] for row in call("scan")} == everywhere
    everywhere[str(machine)] = "unknown-format"
    skipped = call("plan")["skipped"], call("defrag", "--now")["skipped"]
    assert [{row["path"]: row["reason"] for row in rows} for rows in skipped] == [everywhere] * 2
    checks = call("doctor")
    assert not [row for row in checks["findings"] if "damaged" in str(row) or str(machine) in str(row)]
    assert {path: (path.stat().st_ctime_ns, path.read_bytes()) for path in paths} == before


def test_plain_data_is_not_called_compressed(
    machine: Path, volume: ScratchVolume, make_engine: MakeEngine, journal_bytes: bytes
) -> None:
    archive = put(machine, journal_bytes)
    run("chattr", "+m", machine)
    outcome = run_once(make_engine(machine.parent, config=EAGER))
    assert (outcome.action, outcome.result) == (Verb.DEFRAGMENT, Result.DONE)
    run("chattr", "-m", machine)
    remount(volume, "nodatasum")
    made = machine / f"system@{'0' * 32}-0000000000000009-0000000000000009.journal"
    made.write_bytes(journal_bytes)
    scatter(made)
    remount(volume, "datasum")
    (outcome,) = (
        one
        for one in go(make_engine(machine.parent, config=EAGER), Request(archived=True, now=True)).outcomes
        if one.path == str(made)
    )
    assert (outcome.action, outcome.result) != (Verb.COMPRESS, Result.DONE)
    assert disk_bytes(made) >= len(journal_bytes)
    assert archive.exists()


def test_an_attribute_that_may_not_be_set_is_named_with_the_right(
    machine: Path, tmp_path: Path, journal_bytes: bytes
) -> None:
    archive = put(machine, journal_bytes, nocow=True)
    os.setxattr(archive, "security.ima", b"\1signature")
    words = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    done = journalkeeper("defrag", "--now", "-D", machine.parent, state=tmp_path / "state", inside=words, check=False)
    assert "security.ima" in done.stdout
    assert "CAP_SYS_ADMIN" in done.stdout
    assert "read-only" not in done.stdout
    assert is_nocow(archive)


def look(observer_: Observer, top: Path, *, hours: int) -> tuple[JournalFile, ...]:
    return observer_.look((str(top),), now_us=time.time_ns() // 1000 + hours * 3_600_000_000).files


@pytest.mark.parametrize("state", [0, 1], ids=["offline", "online"])
@pytest.mark.parametrize("nocow", [False, True], ids=["datacow", "nocow"])
def test_a_journal_without_a_writer_is_compressed_once_after_a_day(  # noqa: PLR0917 - fixtures and two tables
    machine: Path,
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    journal_bytes: bytes,
    state: int,
    nocow: bool,
) -> None:
    content = bytearray(journal_bytes)
    content[16] = state
    dead = put(machine, bytes(content), "system.journal", nocow=nocow)
    engine = make_engine(machine.parent, config=EAGER, follows=True)
    assert [row.kind for row in look(engine.memory.observer, machine.parent, hours=23)] == [Kind.ACTIVE]
    with dead.open("r+b"):
        assert [row.kind for row in look(engine.memory.observer, machine.parent, hours=25)] == [Kind.ACTIVE]
    assert [row.kind for row in look(engine.memory.observer, machine.parent, hours=25)] == [Kind.ORPHANED]
    monkeypatch.setattr(observer, "DAY_US", 0)
    found = go(engine, Request(archived=True, now=True)).outcomes
    assert [(one.action, one.result) for one in found] == [(Verb.REWRITE if nocow else Verb.COMPRESS, Result.DONE)]
    assert disk_bytes(dead) < len(journal_bytes) / 2
    assert not go(engine, Request(archived=True, now=True)).outcomes
    said = journalkeeper("history", "-D", machine.parent, state=Path(engine.state_directory)).stdout
    assert f"{MACHINE[:8]}" in said


def test_the_journal_of_a_journald_here_is_never_an_orphan(machine: Path, journal_bytes: bytes) -> None:
    put(machine, journal_bytes, "system.journal")
    root = machine.parent.parent / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/machine-id").write_text(f"{MACHINE}\n")
    assert [row.kind for row in look(Observer(str(root)), machine.parent, hours=25)] == [Kind.ACTIVE]
    web = machine.parent / f"{MACHINE}.web"
    web.mkdir()
    put(web, journal_bytes, "system.journal")
    kinds = {row.instance: row.kind for row in look(Observer(str(root)), machine.parent, hours=25)}
    assert kinds == {MACHINE: Kind.ACTIVE, f"{MACHINE}.web": Kind.ORPHANED}
