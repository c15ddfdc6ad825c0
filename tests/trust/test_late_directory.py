# SPDX-License-Identifier: LGPL-2.1-or-later
"""A journal directory that is made after the service's start, when its unit's mounts keep it read-only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.trust.services import quiet


@pytest.fixture
def volume() -> Iterator[ScratchVolume]:
    """A volume with a directory `journal`, not mounted."""
    with ScratchVolume("512M") as made:
        (made.mountpoint / "journal").mkdir()
        made.unmount()
        yield made


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(("option", "status"), [("ro", 1), ("rw", None)])
def test_a_service_ends_with_a_sentence_if_what_appears_is_read_only_to_it(
    tmp_path: Path, volume: ScratchVolume, option: str, status: int | None
) -> None:
    top = volume.mountpoint / "journal"
    with quiet(tmp_path, top, may_fail=status is not None) as service:
        assert service.eventually(lambda: any("to appear" in line for line in service.lines))
        volume.options = option
        volume.mount()
        if status is None:
            assert service.eventually(lambda: any("there now" in line for line in service.lines))
        else:
            service.eventually(lambda: service.status is not None)
            assert service.status == status
            assert f"{top} is there now, and read-only to this process" in service.lines[-1]


@pytest.mark.root
@pytest.mark.slow
def test_what_was_read_only_from_the_start_ends_nobody(tmp_path: Path, volume: ScratchVolume) -> None:
    volume.options = "ro"
    volume.mount()
    with quiet(tmp_path, volume.mountpoint / "journal") as service:
        run("mount", "-o", "remount,rw", volume.mountpoint)
        run("mount", "-o", "remount,ro", volume.mountpoint)
        assert not service.eventually(lambda: service.status is not None, 2)
