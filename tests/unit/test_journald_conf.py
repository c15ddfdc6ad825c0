# SPDX-License-Identifier: LGPL-2.1-or-later
"""What journald makes of assignments, and the limits it computes."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper.config.files import parse
from journalkeeper.journald.conf import Settings, fill_defaults, from_assignments
from journalkeeper.model import GIB, KIB, MIB
from journalkeeper.model.units import INFINITY_US


def settings(*lines: str, namespace: str = "") -> Settings:
    return from_assignments(parse("\n".join(lines).encode("utf-8", "surrogateescape"), "x.conf"), namespace)


def test_a_namespace_stores_persistently_unless_told_otherwise() -> None:
    assert settings(namespace="web").storage == "persistent"
    assert settings("[Journal]", "Storage=volatile", namespace="web").storage == "volatile"


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("Storage=none", {"storage": "none"}),
        ("SyncIntervalSec=1min 30s", {"sync_interval_us": 90_000_000}),
        ("SyncIntervalSec=0", {"sync_interval_us": 0}),
        ("SyncIntervalSec=infinity", {"sync_interval_us": INFINITY_US}),
        ("SystemMaxUse=1G", {"system_max_use_bytes": GIB}),
        ("SystemKeepFree=15", {"system_keep_free_bytes": 15}),
        ("SystemMaxFileSize=16M", {"system_max_file_size_bytes": 16 * MIB}),
        ("SystemMaxFiles=0x10", {"system_max_files": 16}),
        ("SystemMaxFiles=18446744073709551614", {"system_max_files": 2**64 - 2}),
        ("SystemMaxFiles=18446744073709551615", {}),  # journald's mark for "not set"
    ],
)
def test_a_setting_is_read(line: str, changes: dict[str, Any]) -> None:
    assert settings("[Journal]", line) == Settings()._replace(**changes)


@pytest.mark.parametrize(
    "line",
    ["Storage=", "Storage=Persistent", "Storage=disk", "SyncIntervalSec=", "SyncIntervalSec=soon", "SyncIntervalSec=-1",
     "SystemMaxUse=10%", "SystemMaxUse=1g", "SystemMaxUse=", "SystemMaxFiles=", "SystemMaxFiles=many",
     "SystemMaxFiles=-1", "SystemMaxFiles=09", "SystemMaxFiles=1 2", f"SystemMaxFiles={'1' * 5000}",
     "syncintervalsec=1", "SyncInterval=1", "Unknown=1", "nonsense", "=1"]
)  # fmt: skip
def test_lines_that_journald_ignores_change_nothing(line: str) -> None:
    """The last good value wins."""
    before = ("SystemMaxFiles=1", "Storage=none", "SyncIntervalSec=7s", "SystemMaxUse=5M", "SystemMaxFiles=7")
    assert settings("[Journal]", *before, line) == Settings("none", 7_000_000, 5 * MIB, system_max_files=7)


@pytest.mark.parametrize("section", ["", "[journal]", "[Journal ]", "[Manager]"])
def test_settings_elsewhere_do_not_count(section: str) -> None:
    assert settings(section, "SystemMaxFiles=1") == Settings()


@pytest.mark.parametrize("stop", ["[Journal", "\udcff"])
def test_nothing_counts_after_what_stops_journald(stop: str) -> None:
    assert settings("[Journal]", "SystemMaxFiles=1", stop, "[Journal]", "SystemMaxFiles=2").system_max_files == 1


@pytest.mark.parametrize(
    ("filesystem_bytes", "use", "free", "size"),
    [(0, MIB, MIB, 512 * KIB), (40 * GIB, 4 * GIB, 2 * GIB, 128 * MIB), (400 * GIB, 4 * GIB, 4 * GIB, 128 * MIB)],
)
def test_limits_follow_the_size_of_the_file_system(filesystem_bytes: int, use: int, free: int, size: int) -> None:
    found = fill_defaults(Settings(), filesystem_bytes)
    assert found.system_max_use_bytes == use
    assert found.system_max_file_size_bytes == size
    assert found.system_keep_free_bytes is not None
    assert abs(found.system_keep_free_bytes - free) <= 4096  # to a page


@pytest.mark.parametrize(
    ("use", "size", "effective_use", "effective_size"),
    [
        (1, None, MIB, 512 * KIB),
        (MIB + 1, None, MIB + 4096, 512 * KIB),
        (800 * MIB, None, 800 * MIB, 100 * MIB),
        (800 * MIB, 1, 800 * MIB, 512 * KIB),
        (800 * MIB, 400 * MIB, 800 * MIB, 400 * MIB),
        (800 * MIB, 400 * MIB + 4096, 800 * MIB + 8192, 400 * MIB + 4096),
        (100 * GIB, 8 * GIB, 100 * GIB, 4 * GIB - 1),
        (0, 64 * MIB, 0, 64 * MIB),
    ],
)
def test_limits_are_made_to_fit_each_other(use: int, size: int | None, effective_use: int, effective_size: int) -> None:
    given = Settings(system_max_use_bytes=use, system_max_file_size_bytes=size, system_keep_free_bytes=3)
    found = fill_defaults(given, 100 * GIB)
    assert (found.system_max_use_bytes, found.system_max_file_size_bytes) == (effective_use, effective_size)
    assert found.system_keep_free_bytes == 3
