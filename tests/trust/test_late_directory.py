# SPDX-License-Identifier: LGPL-2.1-or-later
"""Journal directories that a service may not write to: since its start, or because another one took their place."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.daemon import Daemon
from tests.patience import eventually

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


class Trouble(NamedTuple):
    """What keeps the service from writing, the command that ends it, and the words for it."""

    cause: str
    end: str
    why: str


EXCLUDED = "ReadWritePaths= of the unit lacks it"
TROUBLES = (
    Trouble("mount -o remount,bind,ro TOP", "mount -o remount,bind,rw TOP", EXCLUDED),
    Trouble("mount -o remount,ro TOP", "mount -o remount,rw TOP", "is mounted read-only"),
    Trouble("chown nobody TOP", "chown root TOP", "it belongs to another user"),
    Trouble("chmod 555 TOP", "chmod 755 TOP", "its mode forbids it"),
    Trouble("chattr +i TOP", "chattr -i TOP", "it is immutable or append-only"),
)
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""As the unit runs the service: root may then not write where another user owns."""


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda one: one.cause)
def test_a_directory_that_a_new_start_could_not_write_to_ends_no_service_but_is_reported(
    tmp_path: Path, top: Path, trouble: Trouble
) -> None:
    def change(command: str) -> None:
        run(*(word.replace("TOP", f"{top}") for word in command.split()))

    first = top.with_name("first")
    first.mkdir()
    config = f"[Watch]\nDirectories={first}"
    with Daemon(tmp_path / "daemon", None, config=f"{config}\n", wrapper=WITHOUT_CAPABILITIES).ready() as daemon:
        change(trouble.cause)
        try:
            refused = subprocess.run([*WITHOUT_CAPABILITIES, "touch", top / "new"], capture_output=True, check=False)
            assert refused.returncode != 0
            daemon.reload(f"{config} {top}\n")
            assert eventually(lambda: daemon.logged(f"{trouble.why}.")), daemon.log()
        finally:
            change(trouble.end)
        daemon.reload(f"{config} {top}\n")
        assert eventually(lambda: daemon.logged("OK: ")), daemon.log()
        assert daemon.process.poll() is None
