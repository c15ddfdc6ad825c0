# SPDX-License-Identifier: LGPL-2.1-or-later
"""A day of a host in minutes: a service whose memory, descriptors, threads and record must stay what they were.

    sudo python -m tests.trust.soak                  # 8 minutes: about as many flushes as a day has
    sudo python -m tests.trust.soak --minutes 1 --seed 7

journald flushes each second instead of each five minutes. At once, by a seed: load, rotations and vacuum,
snapshots and their deletion, callers on a private bus (jobs, plans, pauses, who never reads, who may not),
hostile names and sizes in remote/, and reloads, every other one with a wrong configuration. Figures are taken
every few seconds; those of the last third may not lie above those of the third before it. At the end the
configuration is right, the hostile files are gone, and the verdict must become OK.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import statistics
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dbus_fast import Variant

from journalkeeper.bus import names
from journalkeeper.history.record import Record
from journalkeeper.probe.bed import Bed, bed
from journalkeeper.probe.scratch_volume import run
from tests.bench.figures import Option
from tests.btrfs.journals import QUICK
from tests.bus import PrivateBus, RawClient, raw_call
from tests.daemon import Daemon
from tests.journal_files import archive_name
from tests.patience import eventually
from tests.repeated import repeated
from tests.trust import table
from tests.trust.claims import find_false_claims, read_claims
from tests.trust.services import on_a_bus
from tests.trust.table import Row
from tests.trust.wholeness import verify_failures

INSIDE = Path("/var/log/journal")
SETTINGS = ("SystemMaxFileSize=8M", "SystemMaxFiles=12", "SystemKeepFree=1M")
CONFIG = QUICK + "[Budget]\nBytesPerDay=infinity\nRotationsPerDay=1000\n[History]\nMaxRows=1000\n"
WRONG = "[Defrag]\nArchived=perhaps\n"
KEPT = 10
"""Archives that vacuum leaves at least under SystemMaxFiles= above."""

EVERY_S = 3.0
"""How often figures are taken."""

MEMORY_SLACK_KIB = 2048
"""By which the median of the last third may lie above that of the one before: pages of SQLite and of the allocator."""

LEAST = 10
"""Figures in each third: half a minute."""

STOP_S = 45.0
VERDICT_S = 120.0
"""The service tries again a minute after the first failure."""

OUTAGE_S = 20.0
"""A caller who waits longer was not served."""


class Figures(NamedTuple):
    """What the service holds at one moment; rows and bytes are its record's."""

    at_s: float
    rss_kib: int
    descriptors: int
    threads: int
    rows: int
    record_bytes: int

    def __str__(self) -> str:
        record = f"{self.rows} rows in {self.record_bytes >> 10} KiB"
        return f"{self.at_s:4.0f} s: {self.rss_kib} KiB, {self.descriptors} fds, {self.threads} threads, {record}"


class Soak:
    """The bed, the bus and the service, and what happens to them by `dice`, each thing in a thread of its own."""

    def __init__(self, place: Bed, bus: PrivateBus, daemon: Daemon, seed: int) -> None:
        self.place, self.bus, self.daemon = place, bus, daemon
        self.counts: dict[str, int] = {}
        self.troubles: list[str] = []
        self.slowest_s = 0.0
        self.sent = 0
        self._seed = seed
        self._end = threading.Event()

    @contextmanager
    def going(self) -> Iterator[None]:
        """All of it, until the end of the block."""
        works: tuple[tuple[Callable[[random.Random], None], float], ...] = (
            (self.load, 0.02), (self.rotate, 6), (self.snapshot, 9), (self.call, 0.4), (self.hang_on, 7),
            (self.intrude, 0.7), (self.reload, 5),
        )  # fmt: skip
        with ExitStack() as stack:
            for work, every_s in works:
                stack.enter_context(self._repeated(work, every_s))
            stack.callback(self._end.set)  # before them: who hangs on lets go
            yield

    def _repeated(self, work: Callable[[random.Random], None], every_s: float) -> AbstractContextManager[None]:
        name = work.__name__
        dice = random.Random(f"{self._seed}-{name}")  # noqa: S311 - repeatable is the point

        def act() -> None:
            self.counts[name] = self.counts.get(name, 0) + 1
            work(dice)

        def rest_s() -> float:
            return every_s * dice.uniform(0.5, 1.5)

        return repeated(act, rest_s, lambda error: self.troubles.append(f"{name}: {error!r:.200}"))

    def load(self, dice: random.Random) -> None:
        """A message; a burst of a hundred now and then."""
        for _ in range(100 if dice.random() < 0.02 else 1):
            self.place.journald.log(f"load {self.sent}", LAB_REQUEST=f"{dice.getrandbits(64):016x}")
            self.sent += 1

    def rotate(self, _dice: random.Random) -> None:
        """A rotation, with which journald vacuums."""
        os.kill(self.place.journald.pid, signal.SIGUSR2)

    def snapshot(self, dice: random.Random) -> None:
        """A read-only snapshot of the volume; two are kept."""
        top = self.place.volume.mountpoint
        run("btrfs", "subvolume", "snapshot", "-r", top, top / f"snapshot-{dice.getrandbits(32):08x}")
        for old in sorted(top.glob("snapshot-*"), key=lambda path: path.stat().st_ctime_ns)[:-2]:
            run("btrfs", "subvolume", "delete", old)

    def call(self, dice: random.Random) -> None:
        """A caller with one wish, who waits for the answer."""
        manager = (names.BUS_NAME, names.MANAGER_PATH, names.MANAGER)
        now, unknown = {"now": Variant("b", True)}, f"{INSIDE}/{dice.getrandbits(32)}.journal"
        calls = (
            raw_call(*manager, "ListFiles", "a{sv}", {}),
            raw_call(names.BUS_NAME, names.MANAGER_PATH, names.PROPERTIES, "GetAll", "s", names.MANAGER),
            raw_call(*manager, "Plan", "a{sv}", {}),
            raw_call(*manager, "Defragment", "a{sv}", now),
            raw_call(*manager, "Defragment", "a{sv}", {**now, "paths": Variant("as", [unknown])}),
            raw_call(*manager, "Rescan"),
            raw_call(*manager, "Pause", "t", 300_000),
            raw_call(*manager, "Resume"),
            raw_call(*manager, "Cancel", "o", f"{names.JOB_PATHS}/{dice.randrange(50)}"),
            raw_call(*manager, "Nonsense", "s", "x" * dice.randrange(30_000)),
        )
        wish = dice.choice(calls)
        if dice.random() < 0.1:
            self.bus.call(names.BUS_NAME, "Rescan", nobody=True)
            return
        began_s = time.monotonic()
        with RawClient(os.fspath(self.bus.socket)) as client:
            client.send(wish)
            client.wait()
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)

    def hang_on(self, dice: random.Random) -> None:
        """A caller who asks for everything and reads none of it, for a while."""
        with RawClient(os.fspath(self.bus.socket)) as client:
            call = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "ListFiles", "a{sv}", {})
            client.socket.settimeout(1)
            with suppress(TimeoutError):
                for _ in range(50):
                    client.send(call)
            self._end.wait(dice.uniform(0, 3))

    def intrude(self, dice: random.Random) -> None:
        """Who owns remote/ makes something, or takes it away."""
        remote = self.place.volume.mountpoint / "remote"
        remote.mkdir(exist_ok=True)
        there = sorted(remote.iterdir())
        if len(there) > 40:
            for path in dice.sample(there, 20):
                path.unlink() if path.is_symlink() or path.is_file() else path.rmdir()
        number = dice.getrandbits(40)
        path = remote / dice.choice(
            (
                f"remote-{number}.journal", archive_name(number, f"remote-{number}"), f"new\nline-{number}.journal",
                f"\033[2J{number}.journal", f"{number}-{'x' * 200}.journal", f"\udcff{number}.journal",
                f".journalkeeper-{number}.tmp", f"remote-{number}@0123456789abcdef-0123456789abcdef.journal~",
            )
        )  # fmt: skip
        match dice.randrange(5):
            case 0:
                path.symlink_to("/etc/shadow")
            case 1:
                path.mkdir()
            case 2:
                path.touch()
                os.truncate(path, dice.choice((0, 207, 4096, (1 << 63) - 4096)))
            case _:
                source = dice.choice(sorted(self.place.journald.journal.glob("*.journal")))
                with suppress(FileNotFoundError):  # vacuumed meanwhile
                    content = source.read_bytes()
                    path.write_bytes(content[: dice.randrange(len(content))] if dice.random() < 0.5 else content)
        with suppress(FileNotFoundError):
            os.utime(path, (0, dice.choice((0, 1e9, 9_300_000_000))), follow_symlinks=False)

    def reload(self, dice: random.Random) -> None:
        """The configuration is written anew, in one case of two a wrong one."""
        self.daemon.config.write_text(dice.choice((CONFIG, WRONG)))
        self.daemon.process.send_signal(signal.SIGHUP)


def taken(soak: Soak, state: Path, began_s: float) -> Figures:
    """The figures of now."""
    proc = Path(f"/proc/{soak.daemon.process.pid}")
    with Record(state, read_only=True) as record:
        rows = len(record.history())
    size = sum(path.stat().st_size for path in state.glob("history.db*"))
    descriptors, threads = (len(os.listdir(proc / name)) for name in ("fd", "task"))
    return Figures(time.monotonic() - began_s, soak.daemon.rss_kib(), descriptors, threads, rows, size)


def growth(found: Sequence[Figures]) -> list[str]:
    """What did not stay flat: the last third of the figures against the third before it, if there are enough."""
    third = len(found) // 3
    if third < LEAST:
        return []
    before, after = found[third : 2 * third], found[2 * third :]
    rows = []
    for field, slack in (("rss_kib", MEMORY_SLACK_KIB), ("descriptors", 2), ("threads", 1)):
        medians = [statistics.median(getattr(one, field) for one in part) for part in (before, after)]
        if medians[1] > medians[0] + slack:
            rows.append(f"{field} grew from {medians[0]:.0f} to {medians[1]:.0f}")
    return rows


def lost(place: Bed, sent: int, rotations: int) -> list[str]:
    """What journald took and does not give back.

    Messages may be missing before the oldest one, and none after. Vacuum leaves KEPT archives; fewer are too few.
    """
    journal = place.journald.journal
    said = run("journalctl", "--quiet", "--output=cat", "--directory", journal)
    there = {int(number) for number in re.findall(r"(?m)^load (\d+)$", said)}
    found = [f"load {number}" for number in range(min(there), sent) if number not in there] if there else ["all"]
    archives = len(list(journal.glob("*@*.journal*")))
    if archives < min(rotations - 1, KEPT):
        found.append(f"{archives} archives are there after {rotations} rotations")
    return found + verify_failures(journal)


def doubt_verdict(soak: Soak) -> list[str]:
    """Return the verdict if it does not become OK once the configuration is right and the hostile files are gone."""
    daemon = soak.daemon
    if daemon.process.poll() is not None:
        return []
    shutil.rmtree(soak.place.volume.mountpoint / "remote", ignore_errors=True)
    daemon.reload(CONFIG)
    soak.bus.call(names.BUS_NAME, "Resume")
    soak.bus.call(names.BUS_NAME, "Rescan")
    well = eventually(lambda: daemon.status.startswith("OK: "), VERDICT_S)
    return [] if well else [f"the verdict at the end was {daemon.status!r}"]


def soak(seed: int, minutes: float) -> tuple[Row, list[Figures]]:
    """Do it; the verdict, and the figures."""
    with ExitStack() as stack:
        place = stack.enter_context(bed(*SETTINGS, size="6G", sync_interval="1s"))
        bus, daemon = stack.enter_context(on_a_bus(place, INSIDE, CONFIG))
        state = daemon.config.parent / "state"
        going = Soak(place, bus, daemon, seed)
        figures: list[Figures] = []
        began_s = time.monotonic()
        with going.going():
            while (left_s := began_s + 60 * minutes - time.monotonic()) > 0 and daemon.process.poll() is None:
                time.sleep(min(EVERY_S, left_s))
                figures.append(taken(going, state, began_s))
                if len(figures) % 10 == 0:
                    table.say(str(figures[-1]))
        unclean = going.troubles + growth(figures) + doubt_verdict(going)
        if going.slowest_s > OUTAGE_S:
            unclean.append(f"a caller waited for {going.slowest_s:.1f} s")
        ended_s = time.monotonic()
        if daemon.process.poll() is not None or daemon.stop() != 0:
            unclean.append(f"it ended with {daemon.process.returncode}: {daemon.log()[-300:]}")
        elif time.monotonic() - ended_s > STOP_S:
            unclean.append("SIGTERM took longer than its unit waits")
        if "Traceback" in daemon.log():
            unclean.append(f"a traceback: {daemon.log()[-300:]}")
        with Record(state, read_only=True) as record:
            mistakes = {entry.outcome.detail for entry in record.history() if "internal" in entry.outcome.reason}
        unclean += sorted(mistakes)
        place.journald.sync()
        unclean += find_false_claims(place.journald.journal, read_claims(state))
        gone = lost(place, going.sent, going.counts.get("rotate", 0))
        table.say(f"{going.counts}, {going.sent} messages")
        points = sum(going.counts.values())
        verdict = table.judged("soak", points, seed, lost=gone, unclean=unclean, outage_s=going.slowest_s)
        return verdict, figures


OPTIONS = {"minutes": Option(8.0, "that it lasts"), "seed": table.SEED}


def attack(asked: Namespace) -> Row:
    """Soak it."""
    return soak(asked.seed, asked.minutes)[0]


if __name__ == "__main__":
    sys.exit(table.command(__doc__, "soak", attack, OPTIONS, on_a_bed=True))
