# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scratch volumes without a journald, and files on them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.btrfs import fiemap, kernel
from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.execute import inplace
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.hosts import MACHINE
from tests.journal_files import PAGE, scatter, write_out
from tests.volumes import make_images


@pytest.fixture(scope="session")
def shared_volume() -> Iterator[ScratchVolume]:
    """One volume for all tests that need no more than a directory of their own on it."""
    with ScratchVolume("8G") as volume:
        yield volume


@pytest.fixture
def make_volume() -> Iterator[Callable[..., ScratchVolume]]:
    """Make volumes as ScratchVolume does; gone after the test."""
    with ExitStack() as stack:

        def make(size: str = "1G", *, profile: str = "single", **words: Any) -> ScratchVolume:
            """Return a volume of this size; a profile other than single has as many disks as it needs."""
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            images = make_images(place, size, profile) if profile != "single" else ()
            return stack.enter_context(ScratchVolume(size, images=images, **words))

        yield make


@pytest.fixture
def volume(make_volume: Callable[..., ScratchVolume]) -> ScratchVolume:
    """A fresh volume."""
    return make_volume("512M")


@pytest.fixture
def machine(volume: ScratchVolume) -> Path:
    """An instance's directory on a fresh volume."""
    path = volume.mountpoint / "journal" / MACHINE
    path.mkdir(parents=True)
    return path


@pytest.fixture
def place(shared_volume: ScratchVolume, request: pytest.FixtureRequest) -> Path:
    """A directory on the shared volume, named after the test."""
    path = shared_volume.mountpoint / f"{request.node.name.replace('/', '_')}-{os.urandom(4).hex()}"
    path.mkdir()
    return path


@pytest.fixture
def top(place: Path) -> Path:
    """An empty journal directory, with the machine's below it."""
    (place / MACHINE).mkdir()
    return place


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[..., Engine]:
    """Make an engine of the directories that are given, with its record in tmp_path; `words` are Engine's."""

    def make(*directories: Path, config: Config | None = None, **words: Any) -> Engine:
        watched = {"directories": tuple(map(str, directories))} if directories else {}
        return Engine(config or Config(), **{"state_directory": str(tmp_path / "state"), **watched, **words})

    return make


@pytest.fixture(scope="session")
def journal_bytes(shared_volume: ScratchVolume) -> bytes:
    """What is in an archive of about 5 MiB that a journald wrote."""
    settings = ("SystemMaxFileSize=128M", "SystemMaxUse=512M")
    with PrivateJournald(shared_volume.mountpoint / "journal-bytes", settings=settings) as journald:
        journald.age(20)
        return journald.rotate().read_bytes()


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of rows that calls of FIEMAP ask for from now on, without counts and lookups of one byte."""
    real, asked = kernel.ioctl, list[int]()

    def ioctl(fd: int, request: int, buffer: bytearray) -> None:
        rows = fiemap.HEADER.unpack_from(buffer)[4]
        asked.extend([rows] if rows > 1 else [])
        real(fd, request, buffer)

    monkeypatch.setattr(fiemap, "ioctl", ioctl)
    return asked


@pytest.fixture(autouse=True)
def _late_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let btrfs place new extents up to half a second late, because its workers share a busy machine."""
    monkeypatch.setattr(inplace, "PLACED_TRIES", 25)


@pytest.fixture
def make_file(place: Path) -> Iterator[Callable[..., int]]:
    """Make a file of `content` in `place` and give its descriptor, open for reading and writing; `name` names it."""
    with ExitStack() as stack:

        def make(content: bytes = b"", name: str = "file") -> int:
            fd = os.open(place / name, os.O_RDWR | os.O_CREAT, 0o644)
            stack.callback(os.close, fd)
            os.pwrite(fd, content, 0)
            write_out(fd)
            return fd

        yield make


@pytest.fixture
def fragmented(place: Path, make_file: Callable[..., int]) -> Callable[..., int]:
    """Make a file of `pages` pages, each an extent of its own."""

    def make(pages: int, name: str = "file") -> int:
        fd = make_file((bytes(range(1, 256)) * (pages * PAGE // 255 + 1))[: pages * PAGE], name)
        scatter(place / name)
        return fd

    return make
