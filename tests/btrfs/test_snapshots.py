# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether snapshots of the journal's subvolume exist, asked of btrfs and seen by a plan."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.btrfs.volume import count_snapshots, read_volume
from journalkeeper.cli import program
from journalkeeper.engine import Engine
from journalkeeper.execute import upkeep
from journalkeeper.execute.verified_file import Refused
from journalkeeper.journald import opening
from journalkeeper.model import Reason, Request
from journalkeeper.observe.disk_usage import find_tool
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.hosts import instance
from tests.journal_files import put
from tests.nobody import as_nobody

pytestmark = pytest.mark.root


@pytest.fixture
def root(volume: ScratchVolume) -> Path:
    """A subvolume with an empty journal directory, beside another subvolume."""
    path = volume.mountpoint / "@"
    for one in (path, volume.mountpoint / "other"):
        run("btrfs", "subvolume", "create", one)
    (path / "journal").mkdir()
    return path


def snapshot(source: Path, name: str, *words: str) -> Path:
    path = source.parent / name
    run("btrfs", "subvolume", "snapshot", *words, source, path)
    return path


def count(path: Path) -> int | None:
    with opening.open_directory(str(path)) as fd:
        return count_snapshots(fd)


def test_the_family_of_the_subvolume_counts_also_after_a_rollback(root: Path) -> None:
    journal = root / "journal"
    assert count(journal) == 0
    snapshot(snapshot(root.parent / "other", "other-1"), "other-2")
    run("btrfs", "subvolume", "create", root / "inside")
    assert count(journal) == 0
    first = snapshot(root, "first", "-r")
    assert count(journal) == 1
    assert count(root / "inside") == 0
    snapshot(first, "second")
    assert (count(journal), count(root.parent / "second")) == (2, 2)
    with opening.open_directory(str(journal)) as fd:
        assert as_nobody(lambda: count_snapshots(fd)) is None
    run("btrfs", "subvolume", "delete", root.parent / "second", first)
    assert count(journal) == 0


@pytest.mark.parametrize(("reflink", "reason"), [(False, "snapshots"), (True, "no-redundancy")])
def test_only_a_snapshot_keeps_an_empty_directory_datacow(
    root: Path, capsys: pytest.CaptureFixture[str], journal_bytes: bytes, reflink: bool, reason: str
) -> None:
    machine = root / "journal" / ("4" * 32)
    machine.mkdir()
    if reflink:
        shared = put(machine, journal_bytes)
        run("cp", "--reflink=always", shared, root / "copy")
    else:
        snapshot(root, "snapshot", "-r")
    program.run(["plan", "-j", "-D", str(machine.parent)])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    found = {one["reason"] for one in (*said["actions"], *said["skipped"]) if one["path"] == str(machine)}
    assert reason in found
    assert not reflink or "snapshot" not in str(said["skipped"])


def test_a_snapshot_after_the_look_is_in_time(root: Path) -> None:
    status = (root / "journal").stat()
    one = instance(directory=str(root / "journal"), device=status.st_dev, inode=status.st_ino)
    snapshot(root, "snapshot")
    with pytest.raises(Refused, match="snapshot") as refused:
        upkeep.set_nocow(one, Reason.NO_REDUNDANCY)
    assert refused.value.reason is Reason.SNAPSHOTS
    upkeep.set_nocow(one, Reason.CONFIGURED)


def test_a_snapshot_is_seen_after_a_day_and_a_reflink_of_a_user_is_none(
    root: Path, make_engine: Callable[..., Engine]
) -> None:
    (root / "journal" / ("4" * 32)).mkdir()
    engine = make_engine(root / "journal", follows=True)
    observer, now_us = engine.memory.observer, time.time_ns() // 1000

    def look(hours: int) -> int | None:
        return observer.look(engine.directories, now_us=now_us + hours * 3_600_000_000).volumes[0].snapshots

    assert look(0) == 0
    snapshot(root, "snapshot")
    assert (look(23), look(24)) == (0, 1)


def test_a_read_only_subvolume_is_known_before_the_plan(
    root: Path, make_engine: Callable[..., Engine], journal_bytes: bytes
) -> None:
    put(root / "journal", journal_bytes)
    engine = make_engine(root / "journal")
    with opening.open_directory(str(root)) as fd:
        assert not read_volume(fd).read_only_subvolume
        run("btrfs", "property", "set", "-t", "subvol", root, "ro", "true")
        assert read_volume(fd).read_only_subvolume
    _, chosen = engine.look_and_plan(Request(now=True, upkeep=True))
    assert not chosen.actions
    assert {skip.reason for skip in chosen.skipped} >= {Reason.READ_ONLY}
    assert all("subvolume is read-only" in skip.detail for skip in chosen.skipped if skip.reason is Reason.READ_ONLY)


@pytest.mark.parametrize(
    ("path", "text", "tool"),
    [
        ("snapper/configs/root", 'FSTYPE="btrfs"\nSUBVOLUME="{root}"\nALLOW_USERS=""\n', "snapper"),
        ("snapper/configs/home", 'SUBVOLUME="{other}"\n', ""),
        ("snapper/configs/root", '# SUBVOLUME="{root}"\n', ""),
        ("btrbk/btrbk.conf", "snapshot_dir x\nvolume {top}\n  subvolume @\n", "btrbk"),
        ("btrbk/btrbk.conf", "volume {top}\n  subvolume o*\n", ""),
        ("btrbk.conf", "subvolume {root}\n", "btrbk"),
        ("timeshift/timeshift.json", '{{"btrfs_mode" : "true"}}', ""),
        ("timeshift/timeshift.json", '{{"btrfs_mode" : "false"}}', ""),
    ],
)
def test_a_tool_is_named_whose_configuration_covers_the_subvolume(
    root: Path, tmp_path: Path, path: str, text: str, tool: str
) -> None:
    file = tmp_path / "etc" / path
    file.parent.mkdir(parents=True)
    file.write_text(text.format(root=root, other=root.parent / "other", top=root.parent))
    assert find_tool(os.stat(root / "journal").st_dev, str(tmp_path)) == tool
    if path.startswith("timeshift"):
        covers_root = find_tool(os.stat("/").st_dev, str(tmp_path))
        assert covers_root == ("timeshift" if "true" in text else "")
