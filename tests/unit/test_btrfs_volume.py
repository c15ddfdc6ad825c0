# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of profiles, and the options in a line of mountinfo."""

from __future__ import annotations

import pytest

from journalkeeper.btrfs.volume import Space, parse_options

LINE = "36 35 0:34 /@log /var/log rw,noatime shared:1 - btrfs /dev/sda2 rw,compress=zstd:3,autodefrag,subvol=/@log"


@pytest.mark.parametrize(
    ("flags", "profile"),
    [
        *((0x1, "single"), (0x9, "raid0"), (0x11, "raid1"), (0x21, "dup"), (0x41, "raid10"), (0x81, "raid5")),
        *((0x101, "raid6"), (0x201, "raid1c3"), (0x401, "raid1c4"), (0x5, "single"), (0x22, "dup")),
    ],
)
def test_a_profile_is_named_as_mkfs_names_it(flags: int, profile: str) -> None:
    assert Space(flags, 0, 0).profile == profile


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (LINE, ("rw", "noatime", "compress=zstd:3", "autodefrag", "subvol=/@log")),
        (
            LINE.replace(" rw,noatime", " ro,noatime"),
            ("ro", "noatime", "compress=zstd:3", "autodefrag", "subvol=/@log"),
        ),
        (LINE.replace("sda2 rw", "sda2 ro"), ("noatime", "ro", "compress=zstd:3", "autodefrag", "subvol=/@log")),
        (LINE.replace(" shared:1", " shared:1 master:2 unbindable"), parse_options(LINE)),
        # a user may name a mount point so, and the kernel does not escape these characters
        (LINE.replace("/var/log", "/mnt/a\rb\xa0c"), parse_options(LINE)),
    ],
)
def test_options_are_the_mounts_and_the_filesystems_and_read_only_wins(line: str, options: tuple[str, ...]) -> None:
    assert parse_options(line) == options
