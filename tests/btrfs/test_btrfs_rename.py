# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two names trade places, or nothing happens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.btrfs.kernel import exchange

pytestmark = pytest.mark.root


@pytest.fixture
def directory(place: Path) -> Iterator[int]:
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_each_name_leads_to_the_others_file(place: Path, directory: int) -> None:
    (place / "a").write_text("first")
    (place / "b").write_text("second")
    inodes = (place / "a").stat().st_ino, (place / "b").stat().st_ino
    with open(place / "a", encoding="ascii") as reader:
        exchange(directory, "a", "b")
        assert reader.read() == "first"
    assert ((place / "b").stat().st_ino, (place / "a").stat().st_ino) == inodes
    assert ((place / "a").read_text(), (place / "b").read_text()) == ("second", "first")


def test_names_are_bytes_to_the_kernel(place: Path, directory: int) -> None:
    odd = os.fsdecode(b"odd \xff name")
    (place / odd).write_text("odd")
    (place / "b").write_text("plain")
    exchange(directory, odd, "b")
    assert (place / odd).read_text() == "plain"


def test_nothing_happens_if_one_is_missing(place: Path, directory: int) -> None:
    (place / "a").write_text("first")
    for names in (("a", "b"), ("b", "a")):
        with pytest.raises(FileNotFoundError):
            exchange(directory, *names)
    assert os.listdir(place) == ["a"]
    assert (place / "a").read_text() == "first"
