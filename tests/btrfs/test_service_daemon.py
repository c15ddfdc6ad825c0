# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service beside a real journald: what it does, when it sleeps, and its bad days.

The daemon runs in journald's own mount namespace, where it reads the settings that journald
runs by. Nothing is timed: what must happen is waited for, what must not is looked for.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from journalkeeper.history.store import Record
from journalkeeper.model import Reason, Result
from journalkeeper.model.run import Wait
from journalkeeper.model.units import DAY_US
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.btrfs.journals import QUICK
from tests.daemon import Daemon
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put, unclean_name
from tests.patience import PATIENCE_S, eventually
from tests.volumes import drop_caches, extents

pytestmark = [pytest.mark.root, pytest.mark.slow]

INSIDE = "/var/log/journal"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Start the service on a directory; without a bus, and QUICK unless its configuration is given."""
    with ExitStack() as stack:

        def start(
            directory: Path | str, config: str = QUICK, wrapper: tuple[str, ...] = (), watchdog_s: float | None = None
        ) -> Daemon:
            made = Daemon(tmp_path, directory, config=config, wrapper=wrapper, watchdog_s=watchdog_s)
            return stack.enter_context(made)

        yield start


class Copies(NamedTuple):
    """A directory on a volume, and the bytes of a real archive to fill it with."""

    volume: ScratchVolume
    machine: Path
    content: bytes

    def put(self, number: int = 1, directory: Path | None = None) -> Path:
        """A fragmented copy of the archive."""
        return put(directory or self.machine, self.content, archive_name(number))


@pytest.fixture
def copies(volume: ScratchVolume, machine: Path, journal_bytes: bytes) -> Copies:
    return Copies(volume, machine, journal_bytes)


# What it does


def test_archives_are_compressed_once_and_active_files_kept_whole(
    make_bed: Callable[..., Bed], serve: Callable[..., Daemon]
) -> None:
    bed = make_bed("SystemMaxFileSize=64M", "SyncIntervalSec=2s")
    journald = bed.journald
    journald.age(40)
    first = journald.rotate()
    journald.age(40)
    before = extents(journald.active)
    service = serve(INSIDE, wrapper=journald.inside).ready()
    assert eventually(lambda: first.name in service.done())
    assert eventually(lambda: "system.journal" in service.done())
    assert extents(journald.active) < before / 2
    second = journald.rotate()
    assert eventually(lambda: second.name in service.done())
    assert eventually(service.sleeps)
    names = [Path(entry.outcome.path).name for entry in service.history()]
    assert names.count(first.name) == names.count(second.name) == 1
    assert service.stop() == 0
    for file in (first, second, journald.active):
        run("journalctl", "--verify", "--file", file)


def test_quiet_hours_are_those_of_the_place_where_the_host_is(
    copies: Copies, serve: Callable[..., Daemon], tmp_path: Path
) -> None:
    path, zone, hour = copies.put(), tmp_path / "localtime", time.gmtime().tm_hour
    shutil.copyfile("/usr/share/zoneinfo/Etc/UTC", zone)
    os.utime(zone, (1, 1))  # libc reads no file again that has the same second of change
    travel = f'mount --bind {zone} /etc/localtime && exec "$@"'
    travels = ("unshare", "--mount", "env", "-u", "TZ", "sh", "-c", travel, "sh")
    quiet = f"{QUICK}QuietHours={hour}:00..{(hour + 2) % 24}:00\n"
    service = serve(copies.machine.parent, quiet, travels).ready()
    end = f"1 file waits until .* {(hour + 2) % 24:02}:00 [(]QuietHours=[)]"
    assert eventually(lambda: any(re.search(end, line) for line in service.said)), service.said
    assert path.name not in service.done()
    shutil.copyfile("/usr/share/zoneinfo/Etc/GMT-12", zone)
    service.reload(quiet)
    assert eventually(lambda: path.name in service.done()), service.log()


def test_a_wait_of_a_day_is_reported_after_a_restart_too(
    copies: Copies, serve: Callable[..., Daemon], tmp_path: Path
) -> None:
    path = copies.put()
    now_us = time.time_ns() // 1000
    with Record(tmp_path / "state") as record:
        waits = Wait(os.fspath(path), now_us - 2 * DAY_US, "pressure"), Wait("/gone", 1, "pressure")
        record.store_waits(waits, now_us=now_us)
    settled = QUICK.replace("500ms", "0", 2)  # the first look logs the reason
    service = serve(copies.machine.parent, settled + "[Budget]\nBytesPerDay=1\n").ready()
    assert eventually(lambda: service.logged("1 file has waited for 2d for work (budget)")), service.log()
    service.reload(QUICK)
    assert eventually(lambda: service.logged("OK: "))
    assert path.name in service.done()
    with Record(service.state, read_only=True) as record:
        assert record.list_waits() == {}


def test_nothing_happens_and_nothing_wakes(make_bed: Callable[..., Bed], serve: Callable[..., Daemon]) -> None:
    """It takes long because the service has to sleep for 3 s several times, and for 5 s."""
    bed = make_bed("SyncIntervalSec=2s")
    bed.journald.age(2)
    service = serve(INSIDE, wrapper=bed.journald.inside).ready()
    assert eventually(service.sleeps)
    before, open_before = service.wakes(), len(os.listdir(f"/proc/{service.pid}/fd"))
    bed.journald.log("one message wakes it for one interval")
    assert eventually(lambda: service.wakes() != before)

    def rests() -> bool:
        used = service.cpu_s()
        return service.sleeps(5) and service.cpu_s() == used

    assert eventually(rests)  # journald's sync can be late
    assert len(os.listdir(f"/proc/{service.pid}/fd")) == open_before


def test_its_own_messages_in_the_watched_journal_cause_no_loop(
    make_bed: Callable[..., Bed], serve: Callable[..., Daemon]
) -> None:
    """An unclean file that somebody has open is refused at each cycle, and said once."""
    bed = make_bed("SyncIntervalSec=1500ms")
    journald = bed.journald
    journald.age(30)
    unclean = journald.journal / unclean_name()
    unclean.write_bytes(journald.active.read_bytes())
    log = ("journalctl", "-D", journald.journal, "--quiet", "--output=cat", "--identifier=journalkeeper")
    with open(unclean, "r+b"):
        service = serve(INSIDE, wrapper=(*journald.inside, "systemd-cat", "--identifier=journalkeeper")).ready()
        assert eventually(lambda: Reason.IN_USE in run(*log))
        for _ in range(3):
            journald.log("somebody else's message, and a cycle after it")
            time.sleep(2)
        assert eventually(service.sleeps)
    assert run(*log).count(Reason.IN_USE) == 1
    assert sum(entry.outcome.reason is Reason.IN_USE for entry in service.history()) == 1


# Signals and doors


def test_sigterm_ends_it_between_two_pieces(copies: Copies, serve: Callable[..., Daemon]) -> None:
    path = copies.put()
    drop_caches()
    copies.volume.throttle(60)
    service = serve(copies.machine.parent)
    assert eventually(lambda: service.status.startswith("working on"))
    assert service.stop() == 0
    copies.volume.throttle(0)
    (entry,) = service.history()
    assert (entry.outcome.result, entry.outcome.reason) == (Result.SKIPPED, Reason.INTERRUPTED)
    assert path.read_bytes() == copies.content
    assert {"STOPPING=1", "STATUS="} <= set(service.said)


def test_a_wrong_configuration_leaves_the_old_settings(copies: Copies, serve: Callable[..., Daemon]) -> None:
    service = serve(copies.machine.parent, QUICK.replace("[Defrag]", "[Defrag]\nArchived=no")).ready()
    path = copies.put()
    service.reload("[Defrag]\nArchived=perhaps\n")
    assert eventually(lambda: service.logged("configuration not reloaded, the old settings stay"))
    assert service.done() == set()
    service.reload(QUICK)
    assert eventually(lambda: path.name in service.done())


def test_an_idle_service_renews_the_time_of_its_metrics_until_it_hangs(copies: Copies, tmp_path: Path) -> None:
    """It takes long because a stopped process has to renew nothing for 3 s."""
    metrics = tmp_path / "journalkeeper.prom"
    config = f"{QUICK}\n[Watch]\nDirectories={copies.machine.parent}\n[Metrics]\nTextfile={metrics}\n"
    with Daemon(tmp_path, None, config=config, watchdog_s=1) as service:
        assert eventually(metrics.exists), service.log()

        def is_renewed(patience_s: float = PATIENCE_S) -> bool:
            os.utime(metrics, (1, 1))
            return eventually(lambda: metrics.stat().st_mtime > 1, patience_s)

        assert is_renewed()
        written = metrics.stat().st_ino
        assert is_renewed()
        assert metrics.stat().st_ino == written
        service.process.send_signal(signal.SIGSTOP)
        assert not is_renewed(3)
        service.process.send_signal(signal.SIGCONT)


# Bad days


def test_a_directory_that_is_not_there_is_waited_for_asleep(copies: Copies, serve: Callable[..., Daemon]) -> None:
    """It takes long because the service has to sleep for 3 s, and looks for the directory each 5 s."""
    top = copies.volume.mountpoint / "later" / "journal"
    service = serve(top, watchdog_s=10).ready()
    assert eventually(lambda: service.logged(f"waiting for {top} to appear"))
    assert eventually(service.sleeps)
    (top / MACHINE).mkdir(parents=True)
    path = copies.put(directory=top / MACHINE)
    assert eventually(lambda: path.name in service.done())
    assert eventually(lambda: service.logged("found again"))


def test_a_lost_state_directory_is_made_anew_and_said(copies: Copies, serve: Callable[..., Daemon]) -> None:
    service = serve(copies.machine.parent).ready()
    assert eventually(service.sleeps)  # or it makes a file while they are removed
    shutil.rmtree(service.state)
    path = copies.put()
    assert eventually(lambda: service.state.exists() and path.name in service.done())
    assert eventually(lambda: service.logged("the history was removed, and a new one was started"))


def test_a_second_service_in_a_state_directory_made_anew_ends_the_first(
    copies: Copies, serve: Callable[..., Daemon]
) -> None:
    """The first holds a lock on a file that is no longer there: two would rewrite the same files."""
    first = serve(copies.machine.parent).ready()
    assert eventually(first.sleeps)  # or it makes a file while they are removed
    first.process.send_signal(signal.SIGSTOP)  # or it may lock the new directory first
    shutil.rmtree(first.state)
    second = serve(copies.machine.parent).ready()
    first.process.send_signal(signal.SIGCONT)
    path = copies.put()
    assert eventually(lambda: first.process.poll() is not None)
    assert first.stop() == 1
    assert first.logged(f"journalkeeper is already at work: process {second.process.pid} holds")
    assert eventually(lambda: path.name in second.done())
    assert [entry.outcome.result for entry in second.history()] == [Result.DONE]


def test_on_another_filesystem_it_waits_for_a_mount(tmp_path: Path, copies: Copies) -> None:
    """It takes long because the service has to sleep for 3 s. It looks for mounts when it feeds its watchdog."""
    point = tmp_path / "point"
    point.mkdir()
    run("mount", "-t", "tmpfs", "journalkeeper-test", point)
    try:
        with Daemon(tmp_path, point, config=QUICK, watchdog_s=10) as service:
            assert eventually(lambda: service.logged("not on btrfs"))
            assert eventually(service.sleeps)
            path = copies.put()
            run("mount", "--bind", copies.machine.parent, point)
            assert eventually(lambda: path.name in service.done())
            assert service.stop() == 0
        run("umount", point)
    finally:
        run("umount", point)
