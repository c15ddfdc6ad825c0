# SPDX-License-Identifier: LGPL-2.1-or-later
"""The findings of `doctor` on real volumes and journals."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.cli import program
from journalkeeper.health import storage_rules
from journalkeeper.health.evidence import Obstacle, Present
from journalkeeper.health.verdict import judge_present
from journalkeeper.journald import layout
from journalkeeper.model import MIB
from journalkeeper.observe.obstacles import find_unwritable, list_places, read_mounts
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.daemon import journalkeeper
from tests.hosts import MACHINE
from tests.journal_files import archive_name

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


@pytest.fixture
def _aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_rules, "ASIDE", tmp_path / "aside")


def damage(where: Path, _: bytes) -> None:
    (where / archive_name()).write_bytes(b"LPKSHHRX" + bytes(4096))


def crowd(where: Path, content: bytes) -> None:
    """Fill the volume with archives. Nothing is written but their headers."""
    with suppress(OSError):
        for number in range(1, 1000):
            with (where / archive_name(number)).open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 16 * MIB)
                file.write(content[:4096])


def hollow(where: Path, content: bytes) -> None:
    """Leave every chunk of the volume a quarter full, so that none is left for metadata."""
    crowd(where, content)
    for number, path in enumerate(sorted(where.iterdir())):
        path.unlink() if number % 4 else path.rename(where.parent / f"{number}")


def mount_read_only(where: Path, _: bytes) -> None:
    run("sh", "-c", f"mount --bind {where.parent} {where.parent}; mount -o remount,bind,ro {where.parent}")


CAUSES = [("damaged", damage), ("no-room", crowd), ("no-room", hollow), ("directory-unwritable", mount_read_only)]


@pytest.mark.parametrize(("rule", "cause"), CAUSES)
@pytest.mark.usefixtures("_aside")
def test_the_commands_that_doctor_prints_end_the_finding(
    make_volume: MakeVolume,
    doctor: Callable[..., dict[str, Any]],
    journal_bytes: bytes,
    rule: str,
    cause: Callable[[Path, bytes], object],
) -> None:
    where = make_volume("1G").mountpoint / "journal" / layout.read_machine_id()
    where.mkdir(parents=True)
    assert rule not in doctor(where)["findings"]
    cause(where, journal_bytes)
    run("sync", "-f", where)
    found = doctor(where)["findings"][rule]
    assert found["severity"] == ("advice" if rule == "damaged" else "problem")
    for command in found["remedy"]:
        run("sh", "-c", command)
    run("sync", "-f", where)
    assert rule not in doctor(where)["findings"]


@pytest.mark.parametrize("name", ["system.journal", "user-1000.journal"])
def test_the_remedy_of_a_damaged_active_file_does_not_take_it_from_journald(
    bed: Bed, tmp_path: Path, name: str
) -> None:
    with (bed.journald.journal / name).open("r+b" if name == "system.journal" else "wb") as file:
        file.write(bytes(8))
    inside = bed.journald.inside

    def find_remedies() -> list[list[str]]:
        said = json.loads(journalkeeper("doctor", "-j", state=tmp_path, inside=inside).stdout)
        return [one["remedy"] for one in said["findings"] if one["rule"] == "damaged"]

    assert find_remedies() == [["journalctl --rotate"]]
    run(*inside, "journalctl", "--rotate")
    assert f"/{name}" not in str(find_remedies())
    bed.journald.log("after it")
    run(*inside, "journalctl", "--sync")
    assert "after it" in run("journalctl", "--quiet", "--output=cat", f"--directory={bed.journald.directory}")


@pytest.mark.parametrize(
    ("options", "obstacle"), [("remount,ro", Obstacle.READ_ONLY), ("remount,bind,ro", Obstacle.MOUNT)]
)
def test_a_filesystem_after_an_error_is_not_taken_for_a_replaced_directory(
    volume: ScratchVolume, options: str, obstacle: Obstacle
) -> None:
    path = str(volume.mountpoint)
    run("mount", "-o", options, path)
    assert find_unwritable(path, (), {}) == {path: obstacle}


@pytest.mark.parametrize(
    ("cause", "obstacle"),
    [("btrfs property set {} ro true", Obstacle.SUBVOLUME), ("chattr +i {0} {0}/" + MACHINE, Obstacle.ATTRIBUTE)],
)
def test_the_remedy_of_an_obstacle_ends_it(place: Path, cause: str, obstacle: Obstacle) -> None:
    top = place / "sub"
    run("btrfs", "subvolume", "create", top)
    (top / MACHINE).mkdir()
    run("sh", "-c", cause.format(shlex.quote(str(top))))
    for path in (top / MACHINE, top):
        while found := find_unwritable(str(path), list_places([str(path)])[str(path)], read_mounts()):
            assert set(found.values()) == {obstacle}
            (finding,) = judge_present(Present(unwritable=tuple(found.items())), 0).findings
            run("sh", "-c", *finding.remedy)
    (top / MACHINE / "system.journal").touch()
