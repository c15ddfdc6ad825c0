# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every rule of doctor, in the order of its output. The docstring of a rule is its description in the man page."""

from __future__ import annotations

from typing import Final

from journalkeeper.health.finding import Rule
from journalkeeper.health.intake import waits
from journalkeeper.health.journal_rules import dropped, journald_ended, slow_boot
from journalkeeper.health.service_rules import HEALTH
from journalkeeper.health.storage_rules import (
    damaged,
    fragmented,
    namespace_datacow,
    no_room,
    nocow_redundant,
    nocow_snapshots,
    not_btrfs,
    pinned_by_snapshots,
    rivals,
    unclean,
    volatile,
)
from journalkeeper.health.system_rules import faulty_systemd, short_queue

RULES: Final[tuple[Rule, ...]] = (
    volatile,
    not_btrfs,
    nocow_redundant,
    nocow_snapshots,
    namespace_datacow,
    pinned_by_snapshots,
    fragmented,
    unclean,
    damaged,
    no_room,
    rivals,
    faulty_systemd,
    dropped,
    journald_ended,
    waits,
    short_queue,
    slow_boot,
    *HEALTH,
)
