# SPDX-License-Identifier: LGPL-2.1-or-later
"""The history claims nothing that a power cut has undone."""

from __future__ import annotations

import pytest

from journalkeeper.config.directives import Config, Nocow
from journalkeeper.engine import Engine
from journalkeeper.model import Request, Verb
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.btrfs.faults import cut_power
from tests.btrfs.journals import go
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put
from tests.trust.claims import find_false_claims, read_claims
from tests.trust.scenarios import make_archive
from tests.trust.wholeness import CONFIG, STATE


@pytest.mark.root
@pytest.mark.parametrize(
    ("verb", "name", "config"),
    [
        (Verb.COMPRESS, archive_name(), CONFIG),
        (Verb.REWRITE, archive_name(), CONFIG),
        (Verb.DEFRAGMENT, "system.journal", CONFIG),
        (Verb.SET_NOCOW, "system.journal", CONFIG.model_copy(update={"nocow": Nocow(nocow="yes")})),
    ],
)
def test_a_power_cut_right_after_a_run_contradicts_no_claim(verb: Verb, name: str, config: Config) -> None:
    """SQLite's fsync makes a row durable, and nothing of the files that the row is about."""
    with ScratchVolume("512M", options="commit=300") as scratch:
        top = scratch.mountpoint
        (top / MACHINE).mkdir()
        put(top / MACHINE, make_archive(), name, nocow=verb is Verb.REWRITE, torn=verb is not Verb.SET_NOCOW)
        run("sync", "--file-system", top)
        engine = Engine(config, directories=(f"{top}",), state_directory=f"{top / STATE}")
        go(engine, Request(now=True, upkeep=True))
        cut_power(scratch)
        claims = read_claims(top / STATE)
        assert verb in {row.action for row in claims.done}
        assert find_false_claims(top, claims) == []
