# SPDX-License-Identifier: LGPL-2.1-or-later
"""`probe writes`: its figures are those of the kernel's counters, on a volume that only journald writes."""

from __future__ import annotations

import json
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from journalkeeper.cli.program import run
from journalkeeper.model.errors import KeeperError
from journalkeeper.probe import writes
from journalkeeper.probe.base import Measurement
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.scratch_volume import run as run_command
from tests.answers import check
from tests.patience import eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

FLUSHES = 10


def make_nocow(bed: Bed) -> None:
    run_command("chattr", "+C", bed.journald.journal)
    bed.journald.rotate().unlink()


@pytest.mark.parametrize(("nocow", "metadata"), [(False, 1.3), (True, 1.1)])
def test_the_figures_are_those_of_a_volume_that_only_journald_writes(
    bed: Bed, metadata: float, *, nocow: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`metadata` is the most that the device may write for each byte that journald dirties."""
    if nocow:
        make_nocow(bed)
    bed.journald.age(20)
    run_command("btrfs", "filesystem", "sync", bed.volume.mountpoint)

    found, before = Measurement(), bed.volume.count_written_bytes()

    def log() -> None:
        assert eventually(lambda: found.causes)
        bed.journald.age(FLUSHES, messages=100)
        run_command("btrfs", "filesystem", "sync", bed.volume.mountpoint)

    asked = Namespace(seconds=6, directory=str(bed.directory))
    with ThreadPoolExecutor(1) as pool:
        logging = pool.submit(log)
        writes.measure(asked, found, bed.journald.pid)
        device = bed.volume.count_written_bytes() - before
        logging.result()
    assert found.writes is not None
    logged, dirtied, disk, flushes = found.writes
    assert disk / device == pytest.approx(1, rel=0.1)
    assert 0.99 < device / dirtied < metadata
    assert 900 * FLUSHES * 100 < logged < 1600 * FLUSHES * 100  # with the command line of the tests
    assert FLUSHES <= flushes < 1.5 * FLUSHES  # on a loaded machine the bed asks for a sync again
    measure = partial(writes.measure, pid=bed.journald.pid)
    monkeypatch.setattr(writes, "measure", measure)
    assert run(["probe", "writes", "-j", "--seconds=1", "-D", str(bed.directory)]) == 0
    document = json.loads(capsys.readouterr().out)
    check("probe", document)
    assert document["writes"]["logged_bytes"] == 0
    assert document["verdict"].startswith("journald logged 0B and dirtied 0B")


def test_a_journald_that_ends_is_one_sentence(bed: Bed) -> None:
    found = Measurement()

    def stop() -> None:
        assert eventually(lambda: found.causes)
        bed.journald.stop()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(stop)
        with pytest.raises(KeeperError, match="no systemd-journald runs here, or it ended meanwhile"):
            writes.measure(Namespace(seconds=1, directory=str(bed.directory)), found, bed.journald.pid)
