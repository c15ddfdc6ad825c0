# SPDX-License-Identifier: LGPL-2.1-or-later
"""Journal directories that a service may not write to: since its start, or because another one took their place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.trust.services import quiet

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def top() -> Iterator[Path]:
    """A journal directory, mounted by itself below a directory of its volume."""
    with ScratchVolume("512M") as made:
        journal, place = made.mountpoint / "journal", made.mountpoint / "place"
        for directory in (journal, place):
            directory.mkdir()
        run("mount", "--bind", journal, place)
        try:
            yield place
        finally:
            run("umount", "--lazy", place)


def mount_again(top: Path, options: str) -> None:
    """Change how the directory is mounted: "bind,ro" is this mount only, "ro" its whole filesystem."""
    run("mount", "-o", f"remount,{options}", top)


def test_a_service_ends_with_a_sentence_if_only_its_mount_takes_no_writes_any_more(tmp_path: Path, top: Path) -> None:
    with quiet(tmp_path, top, may_fail=True) as service:
        assert service.eventually(lambda: bool(service.said), 30)
        mount_again(top, "bind,ro")
        assert service.eventually(lambda: service.status is not None, 30)
        assert service.status == 1
        assert f"{top} was made or replaced after the service started" in service.lines[-1]


@pytest.mark.parametrize("before", [False, True])
def test_a_directory_that_a_new_start_could_not_write_to_ends_no_service_but_is_reported(
    tmp_path: Path, top: Path, *, before: bool
) -> None:
    if before:
        mount_again(top, "bind,ro")
    with quiet(tmp_path, top) as service:
        assert service.eventually(lambda: bool(service.said), 30)
        if not before:
            mount_again(top, "ro")
        assert service.eventually(lambda: any("is not writable to the service" in line for line in service.lines), 30)
        mount_again(top, "bind,rw" if before else "rw")
        assert service.eventually(lambda: any("OK: " in line for line in service.lines), 30), service.lines
        assert service.status is None
