# SPDX-License-Identifier: LGPL-2.1-or-later
"""The sentence on an outcome, which the log, the command line, the history and the report share."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from journalkeeper.cli.work import describe_sums
from journalkeeper.model import Outcome, Reason, Result, Verb
from journalkeeper.model.run import Counters
from journalkeeper.model.sentences import describe_outcome, shorten_path
from journalkeeper.report.text import describe_total_saving
from tests import hosts

MAIN = f"/var/log/journal/{'4f' * 16}"
done = partial(
    hosts.outcome,
    f"{MAIN}/a@1.journal",
    extents_before=3046,
    extents_after=46,
    disk_bytes_before=3_900_000,
    disk_bytes_after=576 << 10,
)
COUNTS = "3,046 to 46 extents"
UNSHARED = "other files share the old data, which stays on the disk until they are deleted"
UNMEASURED: dict[str, Any] = {"disk_bytes_before": None}
NOCOW: dict[str, Any] = {"path": MAIN, "action": Verb.SET_NOCOW}


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (done(), f"compressed a@1.journal: 3.7 MiB to 576 KiB on disk, {COUNTS}"),
        (done(extents_after=1), "compressed a@1.journal: 3.7 MiB to 576 KiB on disk, 3,046 to 1 extent"),
        (done()._replace(**UNMEASURED), f"compressed a@1.journal: {COUNTS}"),
        (done(disk_bytes_after=None), f"compressed a@1.journal: {COUNTS}"),
        (done(action=Verb.DEFRAGMENT, **UNMEASURED), f"defragmented a@1.journal: {COUNTS}"),
        (done(action=Verb.REWRITE, **UNMEASURED), f"copied a@1.journal: {COUNTS}"),
        (done(unshared_bytes=300 << 10, **UNMEASURED), f"compressed a@1.journal: {COUNTS}; {UNSHARED}"),
        (done(detail="as zstd", **UNMEASURED), f"compressed a@1.journal: {COUNTS}, as zstd"),
        (
            done(action=Verb.ROTATE, **UNMEASURED),
            "rotated a@1.journal: a run after SettleSec= compacts the archive of 3,046 extents",
        ),
        (
            done()._replace(**NOCOW, reason=Reason.NO_REDUNDANCY, detail="no snapshots"),
            f"set +C on {MAIN}: data stored once, no snapshots",
        ),
        (done()._replace(**NOCOW, reason=Reason.CONFIGURED), f"set +C on {MAIN}: Nocow=yes"),
        (done(result=Result.SKIPPED, reason=Reason.NO_GAIN, detail="45 extents"), "a@1.journal: 45 extents"),
        (
            done(result=Result.SKIPPED, reason=Reason.CHANGED, detail="another size"),
            "did not compress a@1.journal (changed): another size",
        ),
        (done(result=Result.FAILED, reason=Reason.IO_ERROR), "failed to compress a@1.journal (io-error)"),
        (
            done()._replace(**NOCOW, result=Result.FAILED, reason=Reason.NOT_TAKEN, detail="it is not there"),
            f"failed to set +C on {MAIN} (not-taken): it is not there",
        ),
    ],
)
def test_an_outcome_is_one_sentence(outcome: Outcome, sentence: str) -> None:
    assert describe_outcome(outcome) == sentence


def test_disk_sums_count_only_files_with_both_numbers() -> None:
    known, half = (done(disk_bytes_before=10, disk_bytes_after=after) for after in (4, None))
    assert describe_sums((known, half, known, half._replace(**UNMEASURED))).endswith(", 20 B to 8 B on disk")
    assert "disk" not in describe_sums((half,))
    assert describe_sums((known._replace(disk_bytes_before=0),)).endswith(", 0 B to 4 B on disk")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"{MAIN}/system.journal", f"{'4f' * 16}/system.journal"),
        (f"{MAIN}/system@1.journal", "system@1.journal"),
        ("/var/log/journal/remote/remote-a.journal", "remote/remote-a.journal"),
        (f"{MAIN}.web/system.journal", f"{'4f' * 16}.web/system.journal"),
        ("system.journal", "system.journal"),
    ],
)
def test_a_file_of_another_directory_is_named_with_it(path: str, name: str) -> None:
    assert shorten_path(path) == name


@pytest.mark.parametrize(
    ("counters", "saving"),
    [
        (Counters(), ""),
        (Counters(bytes_reclaimed=0, unmeasured=1), ""),
        (Counters(bytes_reclaimed=-5), ""),
        (Counters(extents_removed=1), "1 extent since the installation"),
        (Counters(extents_removed=1, unmeasured=1), "1 extent since the installation"),
        (
            Counters(bytes_reclaimed=3 << 29, extents_removed=31_415),
            "1.5 GiB on disk and 31,415 extents since the installation",
        ),
        (Counters(bytes_reclaimed=5 << 20, unmeasured=1), "at least 5 MiB on disk since the installation"),
    ],
)
def test_only_measured_bytes_are_a_saving(counters: Counters, saving: str) -> None:
    assert describe_total_saving(counters) == saving
