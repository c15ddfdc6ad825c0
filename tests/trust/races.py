# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rotations under load, with all others at it: python -m tests.trust.races [--rotations N] [--seed N]

A private journald takes numbered messages without a pause and rotates after a random number of them. At the same
time, each at random moments: the service and `journalkeeper defrag --now`, vacuum, snapshots taken and deleted,
`btrfs balance`, `btrfs filesystem defragment` of any journal file, readers of all files, +C set on the directory
and cleared, journald killed after a sync. Before a vacuum every archive is read and verified, and so is all that is
left at the end: an entry counts as lost if its number was in none of them, or its text is another one.
The seed makes the same choices again, not the same moments.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import re
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final

from journalkeeper.btrfs import mtime_note
from journalkeeper.journald import names
from journalkeeper.journald.names import is_leftover
from journalkeeper.model import reasons
from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.bed import SIGNAL_SYNC, PrivateJournald
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.bench.figures import Option
from tests.btrfs.journals import QUICK, is_nocow
from tests.patience import eventually
from tests.repeated import repeated
from tests.trust import table
from tests.trust.services import CHECKOUT, WATCHDOG_S, Quiet, quiet
from tests.volumes import why_no_bed

KIND: Final = "races"
SETTINGS: Final = ("SystemMaxUse=12G", "SystemMaxFiles=0", "SystemKeepFree=1M", "SystemMaxFileSize=64M")
"""By itself this journald removes nothing: what vacuum may remove was read before."""

SNAPSHOTS: Final = 4
KEPT: Final = 15
"""Archives that a vacuum leaves."""

BURST: Final = 40
LOG_REST_S: Final = 0.02
ROTATE_REST_S: Final = 0.1

MESSAGE: Final = re.compile(r"number (\d+) ([0-9a-f]{64})")
UNDONE: Final = [f"{begun} {verb}" for begun in ("did not", "failed to") for verb in reasons.UNDONE.values()]
OUTCOME: Final = re.compile(rf"\b({'|'.join(map(re.escape, [*reasons.DONE.values(), *UNDONE]))}) \S*\.journal")
"""The words with which the log begins an outcome of a file."""
BAD_WORDS: Final = ("Traceback", "internal-error", "mismatch", "io-error", "mistake")
"""What the service never has a reason to say here."""

SETTLE_S: Final = 60.0


def text(number: int) -> str:
    """The message of this number."""
    return f"number {number} {hashlib.sha256(b'%d' % number).hexdigest()}"


class Race:
    """One private journald, and the actors around it; `unclean` has a sentence on each thing that is wrong."""

    def __init__(self, volume: ScratchVolume, seed: int) -> None:
        self.seed = seed
        self.volume = volume
        self.top = volume.mountpoint / "journal"
        self.snapshots = volume.mountpoint / "snapshots"
        run("btrfs", "subvolume", "create", self.top)
        self.snapshots.mkdir()
        self.logging = threading.Lock()
        self.unclean: list[str] = []
        self.acts: Counter[str] = Counter()
        self.sent = 0
        self.witnessed: set[int] = set()
        self.gone: set[int] = set()
        self._read: dict[str, frozenset[int]] = {}
        self.journald = PrivateJournald(self.top, settings=SETTINGS)

    def dice(self, who: str) -> random.Random:
        """The choices of one actor."""
        return random.Random(f"{self.seed} {who}")  # noqa: S311 - repeatable is the point

    def files(self) -> list[Path]:
        """Journal files that are there now."""
        return sorted(path for path in self.journald.journal.iterdir() if names.classify(path.name))

    def archives(self) -> list[Path]:
        """Those that journald is done with, the oldest first."""
        found = [(names.classify(path.name), path) for path in self.files() if "@" in path.name]
        return [path for _, path in sorted((name.realtime_us, path) for name, path in found if name)]

    # who looks after the entries

    def witness(self, path: Path) -> None:
        """Verify an archive, and read its numbers; those that it had when it was read before must be there still."""
        words = ["journalctl", "--verify", "--quiet", f"--file={path}"]
        verified = subprocess.run(words, capture_output=True, text=True, check=False)
        if verified.returncode != 0:
            self.unclean.append(f"{path.name}: journalctl --verify: {verified.stderr.strip()[-300:]}")
        lines = run("journalctl", "--quiet", "--output=cat", "--all", f"--file={path}").splitlines()
        found = [MESSAGE.fullmatch(line) for line in lines if line.startswith("number ")]
        numbers = [int(one[1]) for one in found if one and one[0] == text(int(one[1]))]
        if len(numbers) != len(found) or numbers != sorted(set(numbers)):
            self.unclean.append(f"{path.name}: an entry is another one, or is there twice")
        self.witnessed.update(numbers)
        self.gone |= self._read.get(path.name, frozenset()) - set(numbers)
        self._read[path.name] = frozenset(numbers)

    def vacuum(self, _: random.Random) -> None:
        """Have the oldest archives removed by journalctl, after they were read.

        All that were never read are read as well: which are the oldest journalctl judges by more than their names.
        """
        there = self.archives()
        old = there[:-KEPT]
        for path in there:
            if path in old or path.name not in self._read:
                self.witness(path)
        if old:
            # more of them may be there by now, but only newer ones
            left = len(self.archives()) - len(old)
            run("journalctl", "--quiet", f"--directory={self.top}", f"--vacuum-files={left + 1}")

    # who else is at it

    def snapshot(self, dice: random.Random) -> None:
        """Take one, or delete one."""
        there = sorted(self.snapshots.iterdir(), key=lambda path: int(path.name))
        if len(there) >= SNAPSHOTS or (there and dice.random() < 0.4):
            run("btrfs", "subvolume", "delete", dice.choice(there))
        else:
            number = int(there[-1].name) + 1 if there else 0
            readonly = ["-r"] if dice.random() < 0.7 else []
            run("btrfs", "subvolume", "snapshot", *readonly, self.top, self.snapshots / f"{number}")

    def balance(self, dice: random.Random) -> None:
        """Move the data of some block groups."""
        run("btrfs", "balance", "start", f"-dusage={dice.choice([10, 50, 100])}", f"{self.volume.mountpoint}")

    def defragment(self, dice: random.Random) -> None:
        """What a second defragmenter does to any file."""
        path = dice.choice(self.files())
        words = dice.choice([[], ["-czstd"], ["-t", "32M"], ["-clzo"]])
        self._on_file("btrfs", "filesystem", "defragment", "-f", *words, f"{path}")

    def reader(self, dice: random.Random) -> None:
        """Read all files, or the newest entries."""
        words = dice.choice([[], ["-n", "100"], ["-r", "-n", "2000"]])
        self._ended("journalctl", "--quiet", "--directory", f"{self.top}", "--output=json", *words)

    def keeper(self, dice: random.Random) -> None:
        """A person's own run, beside the service; another run may be on."""
        words = ["--allow-unshare"] if dice.random() < 0.5 else []
        command = [sys.executable, "-m", "journalkeeper", "defrag", "-D", f"{self.top}", "--now", *words]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
        said = done.stdout + done.stderr
        if done.returncode not in {0, 1} or any(word in said for word in BAD_WORDS):
            self.unclean.append(f"journalkeeper defrag: exit {done.returncode}: {said[-2000:]}")

    @property
    def environment(self) -> dict[str, str]:
        """Where the service has its state, and no bus."""
        base = self.volume.base
        return {
            "STATE_DIRECTORY": f"{base / 'state'}",
            "PYTHONPATH": f"{CHECKOUT}",
            "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={base}/none",
        }

    def _on_file(self, *words: str) -> None:
        """A command on a file that vacuum may have removed, or journald renamed."""
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0 and os.strerror(errno.ENOENT) not in done.stderr:
            self.unclean.append(f"{' '.join(words)}: {done.stderr.strip()[-300:]}")

    def _ended(self, *words: str) -> None:
        """A command that must come to its end, whatever it says of files that go while it reads."""
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300, check=False)

    def actor(self, act: Callable[[random.Random], None], rest_s: float) -> AbstractContextManager[None]:
        """Somebody who does one thing again and again, with a rest of random length."""
        name = act.__name__
        dice = self.dice(name)

        def go() -> None:
            act(dice)
            self.acts[name] += 1

        def failed(error: Exception) -> None:
            self.unclean.append(f"{name}: {type(error).__name__}: {error}")

        return repeated(go, lambda: dice.expovariate(1 / rest_s), failed)

    # messages and rotations

    def logger(self, dice: random.Random) -> None:
        """Some numbered messages."""
        with self.logging:
            for _ in range(dice.randrange(1, BURST)):
                self._log()

    def _log(self) -> None:
        self.journald.log(text(self.sent), LAB_NOISE=hashlib.sha256(b"noise %d" % self.sent).hexdigest())
        self.sent += 1

    def killed(self, dice: random.Random) -> None:
        """journald ends as by a power cut, with nothing in its socket; what it leaves is NOCOW or not."""
        run("chattr", dice.choice(["+C", "-C"]), self.journald.journal)
        self.journald.rotate()
        with self.logging:
            for _ in range(BURST):
                self._log()
            run(*self.journald.inside, "journalctl", "--sync")
            self.journald.kill()
            self.journald.start()
            run(*self.journald.inside, "journalctl", "--sync")  # before that a signal ends it
        self.acts["kill"] += 1

    def rotations(self, count: int, service: Quiet) -> int:
        """Rotate until it was done so often, or somebody found something; how often it was."""
        dice = self.dice("rotations")
        for number in range(count):
            time.sleep(dice.expovariate(1 / ROTATE_REST_S))
            if dice.random() < 0.3:
                os.kill(self.journald.pid, SIGNAL_SYNC)
            if dice.random() < 0.06:
                self.killed(dice)
            self.journald.rotate()
            if number % 50 == 49:
                table.say(f"{number + 1} rotations, {self.sent:,} messages, {dict(self.acts)}")
            if self.unclean or not service.lives:
                return number + 1
        return count

    # afterwards

    def look_back(self, service: Quiet) -> None:
        """All that is left is read and verified, after the service had time to end what it began."""
        self.journald.stop()
        eventually(lambda: not self.leftovers(), SETTLE_S, pause_s=0.1)
        self.unclean += [f"{path}: left behind" for path in self.leftovers()]
        self.unclean += [line for line in service.lines if any(word in line for word in BAD_WORDS)]
        if not service.lives:
            self.unclean.append(f"the service ended: {service.lines[-3:]}")
        for path in self.files():
            self.witness(path)

    def leftovers(self) -> list[Path]:
        """Temporary files of ours, and files with a note of ours."""
        found = [path for path in self.journald.journal.iterdir() if is_leftover(path.name)]
        return found + [path for path in self.files() if mtime_note.NAME in os.listxattr(path)]


def race(asked: Namespace) -> table.Row:
    """Let all of them race for so many rotations."""
    with ExitStack() as stack:
        volume = stack.enter_context(ScratchVolume("16G"))
        one = Race(volume, asked.seed)
        stack.callback(one.journald.stop)
        service = stack.enter_context(quiet(volume.base, one.top, config=QUICK, watchdog_s=WATCHDOG_S))
        try:
            with ExitStack() as actors:
                for act, rest_s in (
                    (one.keeper, 1.0), (one.vacuum, 3.0), (one.snapshot, 0.5), (one.balance, 5.0),
                    (one.defragment, 0.2), (one.reader, 1.0), (one.logger, LOG_REST_S),
                ):  # fmt: skip
                    actors.enter_context(one.actor(act, rest_s))
                done = one.rotations(asked.rotations, service)
        except (KeeperError, OSError) as error:
            one.unclean.append(f"rotations: {error}")
            done = 0
        nocow = sum(map(is_nocow, one.files()))
        one.look_back(service)
        outage_s = max(0.0, service.silence_s - WATCHDOG_S / 2)
        outcomes = Counter(found[1] for line in service.lines if (found := OUTCOME.search(line)))
    lost = sorted((set(range(one.sent)) - one.witnessed) | one.gone)
    table.say(f"{one.sent:,} messages, {dict(one.acts)}, {nocow} files NOCOW at the end")
    table.say(f"the service: {dict(outcomes)}")
    entries = [f"entry {number}" for number in lost]
    return table.judged(KIND, done, asked.seed, lost=entries, unclean=one.unclean, outage_s=outage_s)


OPTIONS: Final = {"rotations": Option(1000, "of journald"), "seed": table.SEED}

if __name__ == "__main__":
    sys.exit(table.command(__doc__, KIND, race, OPTIONS, missing=why_no_bed))
