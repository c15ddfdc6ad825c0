# SPDX-License-Identifier: LGPL-2.1-or-later
"""NOCOW is what was read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.btrfs import inode
from journalkeeper.probe.scratch_volume import run

pytestmark = pytest.mark.root

MakeFile = Callable[..., int]


def lsattr(path: Path) -> str:
    return run("lsattr", "-d", path).split()[0]


def test_an_empty_file_becomes_nocow_and_datacow_again(make_file: MakeFile, place: Path) -> None:
    fd = make_file()
    assert not inode.is_nocow(fd)
    assert inode.set_nocow(fd, True)
    assert inode.is_nocow(fd)
    assert "C" in lsattr(place / "file")
    assert not inode.set_nocow(fd, False)
    assert "C" not in lsattr(place / "file")


def test_a_file_with_data_stays_what_it_is_and_says_so(make_file: MakeFile, place: Path) -> None:
    fd = make_file(b"x")
    assert inode.set_nocow(fd, True) is False
    assert "C" not in lsattr(place / "file")


def test_other_flags_survive(make_file: MakeFile) -> None:
    fd = make_file()
    others = inode.FS_NODUMP_FL | inode.FS_NOATIME_FL
    inode.set_flags(fd, others)
    inode.set_nocow(fd, True)
    assert inode.get_flags(fd) == others | inode.FS_NOCOW_FL
    inode.set_nocow(fd, False)
    assert inode.get_flags(fd) == others


def test_it_is_not_set_where_it_is_already(make_file: MakeFile, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = make_file()
    inode.set_nocow(fd, True)
    monkeypatch.setattr(inode, "set_flags", lambda *_: pytest.fail("nothing was to be set"))
    assert inode.set_nocow(fd, True)


def test_a_filesystem_without_flags_says_so() -> None:
    with open("/proc/self/status", "rb") as file, pytest.raises(OSError, match=r"Inappropriate|not supported"):
        inode.get_flags(file.fileno())
