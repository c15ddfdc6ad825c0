# SPDX-License-Identifier: LGPL-2.1-or-later
"""Structs and numbers: an ioctl's number has the size of its struct in it, so each proves the other."""

from __future__ import annotations

import struct

import pytest

from journalkeeper.btrfs import defrag, disk, fiemap, inode, volume
from journalkeeper.btrfs.volume import Space, parse_options

WRITE, READ = 1, 2
LINE = "36 35 0:34 /@log /var/log rw,noatime shared:1 - btrfs /dev/sda2 rw,compress=zstd:3,autodefrag,subvol=/@log"


def ioc(direction: int, kind: int, number: int, size: int) -> int:
    """_IOC() of asm-generic/ioctl.h."""
    return direction << 30 | size << 16 | kind << 8 | number


@pytest.mark.parametrize(
    ("request_number", "direction", "kind", "number", "size"),
    [
        (fiemap.FS_IOC_FIEMAP, READ | WRITE, ord("f"), 11, fiemap.HEADER.size),
        (inode.FS_IOC_GETFLAGS, READ, ord("f"), 1, struct.calcsize("l")),
        (inode.FS_IOC_SETFLAGS, WRITE, ord("f"), 2, struct.calcsize("l")),
        (defrag.BTRFS_IOC_DEFRAG_RANGE, WRITE, 0x94, 16, defrag.ARGS.size),
        (disk.BTRFS_IOC_TREE_SEARCH_V2, READ | WRITE, 0x94, 17, disk.SEARCH.size),
        (volume.BTRFS_IOC_SPACE_INFO, READ | WRITE, 0x94, 20, volume.SPACE_ARGS.size),
        (volume.BTRFS_IOC_DEV_INFO, READ | WRITE, 0x94, 30, volume.DEV_INFO.size),
        (volume.BTRFS_IOC_FS_INFO, READ, 0x94, 31, volume.FS_INFO.size),
    ],
)
def test_numbers_and_structs_agree(request_number: int, direction: int, kind: int, number: int, size: int) -> None:
    assert request_number == ioc(direction, kind, number, size)


def test_both_forms_of_the_type_fill_its_place() -> None:
    assert defrag.TYPE.size == defrag.TYPE_AND_LEVEL.size == 4


@pytest.mark.parametrize(
    ("flags", "profile"),
    [
        *((0x1, "single"), (0x9, "raid0"), (0x11, "raid1"), (0x21, "dup"), (0x41, "raid10"), (0x81, "raid5")),
        *((0x101, "raid6"), (0x201, "raid1c3"), (0x401, "raid1c4"), (0x5, "single"), (0x22, "dup")),
    ],
)
def test_a_profile_is_named_as_mkfs_names_it(flags: int, profile: str) -> None:
    assert Space(flags, 0, 0).profile == profile


def test_only_profiles_that_a_checksum_can_repair_are_redundant() -> None:
    assert set(volume.PROFILES.values()) - volume.REDUNDANT == {"raid0"}
    assert "single" not in volume.REDUNDANT


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (LINE, ("rw", "noatime", "compress=zstd:3", "autodefrag", "subvol=/@log")),
        (
            LINE.replace(" rw,noatime", " ro,noatime"),
            ("ro", "noatime", "compress=zstd:3", "autodefrag", "subvol=/@log"),
        ),
        (LINE.replace("sda2 rw", "sda2 ro"), ("noatime", "ro", "compress=zstd:3", "autodefrag", "subvol=/@log")),
        (LINE.replace(" shared:1", ""), ("rw", "noatime", "compress=zstd:3", "autodefrag", "subvol=/@log")),
        (LINE.replace(" shared:1", " shared:1 master:2 unbindable"), parse_options(LINE)),
        ("36 35 0:34 / / rw - btrfs /dev/sda2 rw", ("rw",)),
    ],
)
def test_options_are_the_mounts_and_the_filesystems_and_read_only_wins(line: str, options: tuple[str, ...]) -> None:
    assert parse_options(line) == options
