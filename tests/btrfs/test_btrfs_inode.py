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


@pytest.mark.parametrize(("content", "nocow"), [(b"", True), (b"x", False)])
def test_nocow_is_set_on_an_empty_file_only(make_file: MakeFile, place: Path, content: bytes, *, nocow: bool) -> None:
    fd = make_file(content)
    inode.set_flags(fd, inode.FS_NODUMP_FL | inode.FS_SYNC_FL)
    assert inode.set_nocow(fd) is nocow
    assert inode.get_flags(fd) & ~inode.FS_NOCOW_FL == inode.FS_NODUMP_FL | inode.FS_SYNC_FL
    assert set(run("lsattr", "-d", place / "file").split()[0]) - {"-"} == {"S", "d", *("C" * nocow)}
