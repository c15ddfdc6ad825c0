# SPDX-License-Identifier: LGPL-2.1-or-later
"""Everything at once: a service whose host changes all the time, and which must not lose anything nor grow.

    sudo python -m tests.trust.soak                  # 10 minutes: about as many flushes as two days have
    sudo python -m tests.trust.soak --minutes 1 --seed 7

A private journald takes numbered messages, syncs each second, rotates, and is killed now and then. Meanwhile, each at
random moments: vacuum, snapshots, balance, a second defragmenter, `journalkeeper defrag`, callers on a private bus
(jobs, plans, pauses, refused calls, answers that nobody reads), changes of files and directories with hostile names,
and reloads of right and wrong configurations. The service runs with a switch interval of 1 us, so that its threads
interrupt each other (tests/trust/switching.py). The seed makes the same choices again, not the same moments.

A message is lost if no archive had its number: before a vacuum, and at the end, every archive is verified and read. At
the end of each round only calls and changes of files go on, none of which causes a look at everything. Then the bus
must show what a fresh look finds, or an event was lost. Memory, descriptors and threads of the last third of the time
may not exceed those of the third before it. At the end no job is left, the verdict becomes OK, and SIGTERM, amid calls,
ends the service soon.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from journalkeeper.bus import names
from journalkeeper.journald.names import classify
from journalkeeper.model.schema import to_properties
from journalkeeper.observe.observer import Observer
from journalkeeper.probe.bed import SIGNAL_SYNC, Bed, bed
from journalkeeper.probe.scratch_volume import run
from tests import bus as beds
from tests.bench.figures import Option
from tests.btrfs.journals import QUICK
from tests.bus import PrivateBus, RawClient, raw_call
from tests.daemon import Daemon, journalkeeper
from tests.hosts import MACHINE
from tests.journal_files import archive_name
from tests.patience import eventually
from tests.repeat import repeat
from tests.trust import table
from tests.trust.table import Tally
from tests.trust.wholeness import find_leftovers, verify_failures

INSIDE: Final = "/var/log/journal"
SETTINGS: Final = ("SystemMaxUse=4G", "SystemMaxFiles=0", "SystemKeepFree=1M", "SystemMaxFileSize=8M")
"""By itself this journald removes no archive."""

CONFIG: Final = f"{QUICK}[Budget]\nBytesPerDay=infinity\nRotationsPerDay=1000\n[History]\nMaxRows=1000\n"
WRONG: Final = "[Defrag]\nArchived=perhaps\n"
ARCHIVES: Final = 15
"""Archives that a vacuum leaves."""

SNAPSHOTS: Final = 4
BURST: Final = 40
MESSAGE: Final = re.compile(r"(?m)^number (\d+) ([0-9a-f]{64})$")
BAD_WORDS: Final = ("Traceback", "internal-error", "mismatch", "io-error", "bug in journalkeeper")
"""What the service has no reason to log here."""

UNSEEN: Final = {"Path", "Extents", "IdealExtents", "SharedSize", "Compressed"}
"""The path is escaped. The others are changed by a snapshot, a balance and a defragmentation, which cause no event."""

ROUND_S: Final = 60.0
EVERY_S: Final = 3.0
"""How often figures are taken."""

LEAST: Final = 10
"""The number of figures that each third must have at least."""

MEMORY_SLACK_KIB: Final = 2048
"""By how much the median of the last third may be higher than that of the third before: pages of SQLite and malloc."""

OUTAGE_S: Final = 20.0
"""A caller who waits longer was not served."""

SETTLE_S: Final = 60.0
VERDICT_S: Final = 120.0
"""The service tries again a minute after a first failure."""

STOP_S: Final = 45.0
"""TimeoutStopSec= of the unit."""


class Figures(NamedTuple):
    """What the service has at one moment."""

    rss_kib: int
    descriptors: int
    threads: int


SLACK: Final = Figures(MEMORY_SLACK_KIB, 2, 1)
Act = Callable[[random.Random], None]


def make_text(number: int) -> str:
    """Return the message of this number."""
    return f"number {number} {hashlib.sha256(b'%d' % number).hexdigest()}"


class Soak:
    """A bed, a bus and a service, and all that happens to them; `unclean` has a sentence on each trouble."""

    def __init__(self, place: Bed, bus: PrivateBus, daemon: Daemon, seed: int) -> None:
        self.place, self.bus, self.daemon, self.seed = place, bus, daemon, seed
        self.top, self.journald = place.volume.mountpoint, place.journald
        self.remote, self.snapshots = self.top / "remote", self.top / "snapshots"
        self.acts: Counter[str] = Counter()
        self.unclean: list[str] = []
        self.figures: list[Figures] = []
        self.slowest_s = 0.0
        self.sent = 0
        self.gone: set[int] = set()
        self._read: dict[str, set[int]] = {}
        self._logging = threading.Lock()
        self._content = self.journald.rotate().read_bytes()
        self.remote.mkdir()
        self.snapshots.mkdir()

    # messages and archives

    def log(self, dice: random.Random) -> None:
        """Log some numbered messages."""
        with self._logging:
            for _ in range(dice.randrange(1, BURST)):
                noise = hashlib.sha256(b"noise %d" % self.sent).hexdigest()
                self.journald.log(make_text(self.sent), LAB_NOISE=noise)
                self.sent += 1

    def rotate(self, dice: random.Random) -> None:
        """Make journald rotate or sync; or kill it after a sync, with an active file that is NOCOW or not."""
        chance = dice.random()
        if chance < 0.3:
            os.kill(self.journald.pid, SIGNAL_SYNC)
        elif chance < 0.9:
            os.kill(self.journald.pid, signal.SIGUSR2)
        else:
            with self._logging:
                run("chattr", dice.choice(("+C", "-C")), self.journald.journal)
                self.journald.rotate()
                run(*self.journald.inside, "journalctl", "--sync")
                self.journald.kill()
                self.journald.start()
                run(*self.journald.inside, "journalctl", "--sync")  # before it a signal ends journald

    def archives(self) -> list[Path]:
        """Return the archives of journald, the oldest first."""
        found = [(classify(path.name), path) for path in self.journald.journal.glob("*@*.journal*")]
        return [path for _, path in sorted((name.realtime_us, path) for name, path in found if name)]

    def witness(self, path: Path) -> None:
        """Read the numbers in a journal file. Numbers that were there at an earlier reading must still be there."""
        lines = run("journalctl", "--quiet", "--output=cat", "--all", f"--file={path}")
        numbers = [int(found[1]) for found in MESSAGE.finditer(lines) if found[0] == make_text(int(found[1]))]
        if numbers != sorted(set(numbers)) or len(numbers) != lines.count("number "):
            self.unclean.append(f"{path.name}: an entry was changed, or is there twice")
        self.gone |= self._read.get(path.name, set()) - set(numbers)
        self._read[path.name] = set(numbers)

    def find_lost(self) -> list[str]:
        """Read all that is left. Return a sentence for each message that no archive has had, and each damaged file."""
        for path in (*self.archives(), self.journald.active):
            self.witness(path)
        missing = set(range(self.sent)).difference(*self._read.values()) | self.gone
        return [f"message {number}" for number in sorted(missing)] + verify_failures(self.journald.journal)

    def vacuum(self, _dice: random.Random) -> None:
        """Make journalctl remove the oldest archives, after all archives that it could choose were read."""
        there = self.archives()
        for path in there:
            if path in there[:-ARCHIVES] or path.name not in self._read:
                self.witness(path)
        if len(there) > ARCHIVES:
            left = len(self.archives()) - len(there) + ARCHIVES  # newer ones may have come
            run("journalctl", "--quiet", f"--directory={self.top}", f"--vacuum-files={left + 1}")

    # other programs

    def snapshot(self, dice: random.Random) -> None:
        """Take a snapshot, or delete one."""
        there = sorted(self.snapshots.iterdir())
        if len(there) >= SNAPSHOTS:
            run("btrfs", "subvolume", "delete", dice.choice(there))
        else:
            readonly = ["-r"] if dice.random() < 0.7 else []
            run("btrfs", "subvolume", "snapshot", *readonly, self.top, self.snapshots / f"{time.time_ns()}")

    def balance(self, dice: random.Random) -> None:
        """Move the data of some block groups."""
        run("btrfs", "balance", "start", f"-dusage={dice.choice((10, 50, 100))}", self.top)

    def defragment(self, dice: random.Random) -> None:
        """Defragment a journal file with another program, before vacuum or a rotation takes its name."""
        path = dice.choice(sorted(self.journald.journal.glob("*.journal")))
        words = ["btrfs", "filesystem", "defragment", "-f", *dice.choice(([], ["-czstd"], ["-t", "32M"])), f"{path}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0 and os.strerror(errno.ENOENT) not in done.stderr:
            self.unclean.append(f"{words}: {done.stderr[-300:]}")

    def keep(self, dice: random.Random) -> None:
        """Run `journalkeeper defrag` without the bus, so that it and the service compete for the lock."""
        words = ["--allow-unshare"] if dice.random() < 0.5 else []
        done = journalkeeper(
            *("defrag", "-D", f"{self.top}", "--now", *words), state=self.daemon.state, check=False,
            DBUS_SYSTEM_BUS_ADDRESS="unix:path=/none",
        )  # fmt: skip
        said = done.stdout + done.stderr
        if done.returncode not in {0, 1} or any(word in said for word in BAD_WORDS):
            self.unclean.append(f"journalkeeper defrag: exit status {done.returncode}: {said[-1000:]}")

    # callers

    def call(self, dice: random.Random) -> None:
        """Make one call, and wait for the answer."""
        manager = (names.BUS_NAME, names.MANAGER_PATH, names.MANAGER)
        unknown = [f"{INSIDE}/{dice.getrandbits(32)}.journal"]
        wish = dice.choice(
            (
                raw_call(*manager, "ListFiles", "t", 0),
                raw_call(names.BUS_NAME, names.MANAGER_PATH, names.PROPERTIES, "GetAll", "s", names.MANAGER),
                raw_call(*manager, "Plan", "asst", [], "", 0),
                raw_call(*manager, "Defragment", "asst", [], "", 4),
                raw_call(*manager, "Defragment", "asst", unknown, "", 4),
                *(raw_call(*manager, "Cancel", "o", f"{names.JOB_PATHS}/{dice.randrange(50)}") for _ in range(2)),
                raw_call(*manager, "Nonsense", "s", "x" * dice.randrange(30_000)),
            )
        )
        began_s = time.monotonic()
        with RawClient(os.fspath(self.bus.socket)) as client:
            client.send(wish)
            client.wait()
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)

    def hang(self, dice: random.Random) -> None:
        """Ask for everything, read no answer for a while, and make a call that is refused."""
        with RawClient(os.fspath(self.bus.socket)) as client:
            client.socket.settimeout(1)
            with suppress(TimeoutError):
                client.send(raw_call(names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "ListFiles", "t", 0) * 50)
            time.sleep(dice.uniform(0, 3))
        if self.bus.call(names.BUS_NAME, "Rescan", nobody=True).returncode == 0:
            self.unclean.append("nobody may rescan")

    def pause(self, dice: random.Random) -> None:
        """Pause the service for a while, and have it look at everything."""
        self.bus.call(names.BUS_NAME, "Pause", "t", dice.choice(("1000", "300000")))
        self.bus.call(names.BUS_NAME, dice.choice(("Resume", "Rescan")))

    def reload(self, dice: random.Random) -> None:
        """Write a right or a wrong configuration, and have the service read it."""
        self.daemon.reload(dice.choice((CONFIG, WRONG)))

    # files of other users

    def change(self, dice: random.Random) -> None:
        """Make, change, rename or remove a file in remote/, with a name that its owner could choose."""
        there = sorted(self.remote.iterdir())
        number = dice.randrange(150)
        path = self.remote / dice.choice(
            (
                archive_name(number, f"remote-{number}"), f"remote-{number}.journal", f"new\nline-{number}.journal",
                f"\033[2J{number}.journal", f"{number}-{'x' * 200}.journal", f"\udcff{number}.journal",
                f".journalkeeper-{number}.tmp", f"remote-{number}@0123456789abcdef-0123456789abcdef.journal~",
            )
        )  # fmt: skip
        old = dice.choice(there) if there else path
        with suppress(FileExistsError, FileNotFoundError):
            match dice.randrange(7):
                case 0:
                    path.symlink_to("../victim")
                case 1:
                    with path.open("xb") as file:  # "x": no link is followed
                        file.truncate(dice.choice((0, 207, 4096, (1 << 63) - 4096)))
                case 2:
                    old.unlink()
                case 3:
                    old.rename(path)
                case 4:
                    os.utime(old, (0, dice.choice((0, 1e9, 9_300_000_000))), follow_symlinks=False)
                case _:
                    path.unlink(missing_ok=True)
                    with path.open("xb") as file:
                        file.write(self._content[: dice.choice((300, len(self._content) // 2, len(self._content)))])

    def change_directory(self, dice: random.Random) -> None:
        """Make another instance's directory, with a file; or take it away, or put another one in its place."""
        place, away = self.top / MACHINE, self.top / "away"
        there = place.exists()
        if there:
            place.rename(away)
        if not there or dice.random() < 0.5:
            place.mkdir()
            (place / archive_name()).write_bytes(self._content)
        if there:
            shutil.rmtree(away)

    # rounds

    @contextmanager
    def acting(self, name: str, *acts: tuple[Act, float]) -> Iterator[None]:
        """Let each act happen again and again during the block, with rests whose mean is given in seconds."""
        with ExitStack() as stack:
            for act, rest_s in acts:
                stack.enter_context(self._repeat(act, rest_s, random.Random(f"{self.seed} {act.__name__} {name}")))  # noqa: S311
            yield

    def _repeat(self, act: Act, rest_s: float, dice: random.Random) -> Any:
        def go() -> None:
            act(dice)
            self.acts[act.__name__] += 1

        def fail(error: Exception) -> None:
            self.unclean.append(f"{act.__name__}: {error!r:.300}")

        return repeat(go, lambda: dice.expovariate(1 / rest_s), fail)

    def last(self, seconds: float) -> None:
        """Take figures for so long, unless the service ends."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and self.daemon.process.poll() is None:
            proc = Path(f"/proc/{self.daemon.pid}")
            self.figures.append(
                Figures(self.daemon.rss_kib(), *(len(os.listdir(proc / name)) for name in ("fd", "task")))
            )
            time.sleep(min(EVERY_S, left_s))

    def round(self, number: int, seconds: float) -> None:
        """Let everything happen for most of the time, and then only what causes no look at everything."""
        calm: tuple[tuple[Act, float], ...] = ((self.log, 0.05), (self.change, 0.05), (self.call, 0.5))
        wild: tuple[tuple[Act, float], ...] = (
            (self.rotate, 2), (self.vacuum, 3), (self.snapshot, 3), (self.balance, 10), (self.defragment, 0.5),
            (self.keep, 3), (self.hang, 5), (self.pause, 1), (self.reload, 2), (self.change_directory, 1),
        )  # fmt: skip
        with self.acting(f"{number}", *calm, *wild):
            self.last(0.7 * seconds)
        self.daemon.reload(CONFIG)
        self.bus.call(names.BUS_NAME, "Resume")
        with self.acting(f"{number} calm", *calm):
            self.last(0.3 * seconds)
        self.journald.sync()
        if not eventually(lambda: not self.compare(), SETTLE_S, pause_s=1):
            self.unclean.append(f"the bus shows other files than there are: {self.compare():.1000}")

    def compare(self) -> str:
        """Return how the files on the bus differ from those of a fresh look; "" if they do not.

        A new name comes and goes before: journald's own writes cause no event, and so no look.
        """
        marker = self.remote / "remote-marker.journal"
        marker.touch()
        marker.unlink()
        seen = Observer().look([f"{self.top}"], now_us=time.time_ns() // 1000).files
        rows = [to_properties(row._replace(path=row.path.replace(f"{self.top}", INSIDE, 1))) for row in seen]
        wanted = {names.to_ascii(f"{row['Path']}"): row for row in rows}
        found = self.list_files()
        if wanted.keys() != found.keys():
            return f"files {sorted(wanted.keys() ^ found.keys())}"
        for name, row in wanted.items():
            differ = {key: (value, found[name].get(key)) for key, value in row.items() if key not in UNSEEN}
            if any(value != shown for value, shown in differ.values()):
                return f"{name}: {differ}"
        return ""

    def list_files(self) -> dict[str, dict[str, Any]]:
        """Return the records of all files that the bus shows, by their paths."""
        found: dict[str, dict[str, Any]] = {}
        words = ("--json=short", "call", names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "ListFiles", "t")
        offset = 0  # two hostile names can have one spelling
        while True:
            said = self.bus.run("busctl", f"--address={self.bus.address}", *words, f"{offset}", check=True).stdout
            (page,) = json.loads(said)["data"]
            if not page:
                return found
            offset += len(page)
            found |= {one["Path"]["data"]: {name: value["data"] for name, value in one.items()} for one in page}

    def end(self) -> None:
        """Wait for the verdict OK without hostile files and jobs, and end the service amid calls."""
        shutil.rmtree(self.remote)
        self.bus.call(names.BUS_NAME, "Rescan")
        if not eventually(lambda: self.daemon.status.startswith("OK: "), VERDICT_S):
            self.unclean.append(f"the verdict at the end is {self.daemon.status!r}")
        tree = ("busctl", f"--address={self.bus.address}", "tree", names.BUS_NAME)
        if not eventually(lambda: names.JOB_PATHS not in self.bus.run(*tree).stdout, SETTLE_S):
            self.unclean.append("a job is left")
        with self.acting("end", (self.log, 0.05)):
            for _ in range(20):
                with RawClient(os.fspath(self.bus.socket)) as client:
                    client.send(raw_call(names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "Plan", "asst", [], "", 0))
            began_s = time.monotonic()
            status = self.daemon.stop()
        if status != 0 or time.monotonic() - began_s > STOP_S:
            self.unclean.append(f"SIGTERM ended it with {status} after {time.monotonic() - began_s:.0f} s")


def find_growth(found: Sequence[Figures]) -> list[str]:
    """Return a sentence for each figure whose last third is above the third before it; none if there are too few."""
    third = len(found) // 3
    if third < LEAST:
        return []
    before, after = (
        [statistics.median(column) for column in zip(*part, strict=True)]
        for part in (found[third : 2 * third], found[2 * third :])
    )
    rows = zip(Figures._fields, before, after, SLACK, strict=True)
    return [f"{name} grew from {old:.0f} to {new:.0f}" for name, old, new, slack in rows if new > old + slack]


def attack(asked: Namespace, tally: Tally) -> None:
    """Let everything happen for so many minutes, in rounds."""
    with ExitStack() as stack:
        place = stack.enter_context(bed(*SETTINGS, size="8G", sync_interval="1s"))
        bus = stack.enter_context(PrivateBus())
        bus.start_polkit()
        base = place.volume.base / "service"
        inside, module = place.journald.inside, "tests.trust.switching"
        daemon = stack.enter_context(Daemon(base, INSIDE, bus, CONFIG, wrapper=inside, module=module))
        soak = Soak(place, bus, daemon, asked.seed)
        rounds = max(1, round(60 * asked.minutes / ROUND_S))
        for number in range(rounds):
            if not soak.unclean:
                soak.round(number, 60 * asked.minutes / rounds)
                table.say(f"{soak.figures[-1]}, {soak.sent} messages, {dict(soak.acts)}")
        if daemon.process.poll() is None:
            soak.end()
        else:
            soak.unclean.append(f"the service ended with {daemon.process.returncode}")
        if soak.slowest_s > OUTAGE_S:
            soak.unclean.append(f"a caller waited for {soak.slowest_s:.1f} s")
        lines = [line for line in daemon.log().splitlines() if any(word in line for word in BAD_WORDS)]
        outcomes = Counter(f"{one.outcome.result} {one.outcome.reason}" for one in daemon.history())
        place.journald.sync()
        left = find_leftovers(place.journald.journal)
        table.say(f"{dict(outcomes)}")
        tally.add(
            "soak", lost=soak.find_lost(), unclean=soak.unclean + find_growth(soak.figures) + lines + left,
            outage_s=soak.slowest_s, points=soak.acts.total(),
        )  # fmt: skip


OPTIONS: Final = {"minutes": Option(10.0, "that it lasts")}

if __name__ == "__main__":
    sys.exit(table.command(__doc__, attack, OPTIONS, find_obstacle=beds.missing))
