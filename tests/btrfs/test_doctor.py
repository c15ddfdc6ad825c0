# SPDX-License-Identifier: LGPL-2.1-or-later
"""The findings of `doctor` on real volumes and journals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.cli import program
from journalkeeper.health import storage_rules
from journalkeeper.journald import layout
from journalkeeper.model import MIB
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.journal_files import archive_name, put

pytestmark = [pytest.mark.root, pytest.mark.slow]

MakeVolume = Callable[..., ScratchVolume]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def doctor(capsys: Captured) -> Callable[..., dict[str, Any]]:
    """Return a function that runs `doctor -j -D DIR` and returns its answer, with the findings by rule."""

    def call(directory: Path, status: int = 0, *words: str) -> dict[str, Any]:
        assert program.run(["doctor", "-j", "-D", str(directory), *words]) == status
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        said["findings"] = {one["rule"]: one for one in said["findings"]}
        return said

    return call


def test_a_snapshot_beside_a_nocow_journal(
    make_volume: MakeVolume, doctor: Callable[..., dict[str, Any]], journal_bytes: bytes
) -> None:
    volume = make_volume("1G")
    where = volume.mountpoint / layout.read_machine_id()
    where.mkdir()
    run("chattr", "+C", where)
    for number in range(-(-16 * MIB // len(journal_bytes)) + 1):
        put(where, journal_bytes, archive_name(number + 1), nocow=True, torn=False)
    rules = ("nocow-snapshots", "pinned-by-snapshots")
    assert not doctor(volume.mountpoint)["findings"].keys() & set(rules)
    run("btrfs", "subvolume", "snapshot", "-r", volume.mountpoint, volume.mountpoint / "snapshot")
    said = doctor(volume.mountpoint)["findings"]
    assert said["nocow-snapshots"]["facts"] == {"directories": [str(where)]}
    assert said["pinned-by-snapshots"]["facts"]["shared_bytes"] >= 16 * MIB
    assert said["pinned-by-snapshots"]["facts"]["snapshots"] == 1
    (remedy,) = said["pinned-by-snapshots"]["remedy"]  # the volume's root is a subvolume already
    assert "snapshot" in run(*remedy.split())


def test_a_damaged_file_is_advice_until_its_remedy_is_done(
    bed: Bed, doctor: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_rules, "ASIDE", tmp_path / "aside")
    assert "damaged" not in doctor(bed.directory)["findings"]
    bad = bed.directory / ("0" * 32) / archive_name()  # another machine's: journald vacuums what looks empty in its own
    bad.parent.mkdir()
    bad.write_bytes(b"LPKSHHRX" + bytes(4096))
    found = doctor(bed.directory, 0, "--check")["findings"]["damaged"]
    assert found["facts"] == {"files": [str(bad)]}
    for command in found["remedy"]:
        run("sh", "-c", command)
    assert "damaged" not in doctor(bed.directory)["findings"]
    assert (tmp_path / "aside" / bad.name).exists()
