# SPDX-License-Identifier: LGPL-2.1-or-later
"""A volume that hangs, fails, fills or is unmounted under the service.

    sudo python -m tests.trust.outages                          # 60 points, 40 minutes
    sudo python -m tests.trust.outages --points 5 --hang 3
    sudo python -m tests.trust.outages --seed 7 --only 12       # one point again

Each point is a volume on a disk of ours (tests/slowdisk.py), with a real journald under load and archives that the
service works on. Meanwhile the fault strikes, lasts, and is mended: after errors of the disk, as by a reboot.
What was on the disk before must be there afterwards: each archive with its content and attributes, each message that
was archived, and the messages of the active file where the fault itself does not make journald destroy it.
The verdict must not be OK while the fault lasts, if the service can notice it, and must be OK afterwards. The service
must live or end with a sentence, end by SIGTERM, feed its watchdog, and compact a new archive once the volume is back.
A last `defrag --now` must leave no archive fragmented, no temporary file, and no false claim in the history.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.model import Reason, Verb
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.sentences import DONE
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.scratch_volume import run
from journalkeeper.service.daemon import STUCK_S
from tests.bench.figures import Option
from tests.btrfs.faults import fill
from tests.btrfs.journals import QUICK, Bearing, extents
from tests.daemon import Daemon, journalkeeper
from tests.journal_files import archive_name, put
from tests.patience import eventually
from tests.repeat import repeat
from tests.slowdisk import GO, HOLD, on_slow_disk
from tests.trust import table
from tests.trust.claims import find_false_claims, read_claims
from tests.trust.table import Tally
from tests.trust.wholeness import differences, find_leftovers, verify_failures, whole
from tests.volumes import kill

INSIDE, SUBVOLUME = "/var/log/journal", "journal"
IOPS: Final = 500
ARCHIVES, FLUSHES, MARKS = 4, 15, 100
JOURNALDS_OWN: Final = (".journal~", f"@{'0' * 32}-")
"""Parts of the names of files that journald itself damaged: unclean ones, and archived with zeros over the header."""

TORN: Final = 100
"""An archive of so many extents was not compacted: it has more than 500 before, and some 40 afterwards."""

STOP_S: Final = 45.0
"""TimeoutStopSec= of units/journalkeeper.service."""

WATCHDOG_S: Final = 2.0
PATIENCE_S: Final = 120.0
VERDICT_S: Final = 240.0
"""The service tries again a minute after the first failure in an outage, and two minutes after the second one."""

HANG_NOTICED_S: Final = STUCK_S + 2 * WATCHDOG_S
"""A shorter hang cannot be told from a slow disk."""

SETTINGS: Final = ("SystemMaxFileSize=64M", "SystemMaxUse=600M", "SystemKeepFree=0")


class Fault(StrEnum):
    """What happens to the volume."""

    HANG = "hang"
    READ_ERRORS = "read-errors"
    WRITE_ERRORS = "write-errors"
    FULL = "full"
    UNMOUNT = "unmount"


ERRORS: Final = (Fault.READ_ERRORS, Fault.WRITE_ERRORS)
SPARED: Final = (Fault.HANG, Fault.UNMOUNT)
"""After these journald has all in the file that it writes. Where a page of a mapping cannot be read or has no room, the
kernel sends SIGBUS, for which journald maps zeros over its own header, and archives that (seen: 0 bytes left)."""


class Point(NamedTuple):
    """One try. The fault strikes `delay_s` after work began, and SIGTERM comes `stop_s` after that, unless None.

    The history is on the volume, too, if `record_inside`.
    """

    number: int
    fault: Fault
    record_inside: bool
    delay_s: float
    lasts_s: float
    stop_s: float | None

    def __str__(self) -> str:
        where = ", history on the volume" if self.record_inside else ""
        stop = "" if self.stop_s is None else f", SIGTERM {self.stop_s:.1f} s later"
        return f"{self.number}: {self.fault} for {self.lasts_s:.1f} s{where}, {self.delay_s:.2f} s{stop}"


def make_point(number: int, seed: int, hang_s: float) -> Point:
    """Return a point of a seed: the faults take turns, all else is chance."""
    fault, dice = list(Fault)[number % len(Fault)], random.Random(f"{seed}-{number}")  # noqa: S311 - repeatable
    lasts_s = hang_s if fault is Fault.HANG else dice.uniform(0.5, 3)
    stop_s = dice.uniform(0, min(lasts_s, 3)) if dice.random() < 0.3 else None
    return Point(number, fault, dice.random() < 0.5, dice.uniform(0, 2), lasts_s, stop_s)


class Place:
    """A disk, its volume and the journald on it, in whose mounts the service is."""

    def __init__(self, stack: ExitStack, *, record_inside: bool) -> None:
        self._stack = stack
        self.volume, self.disk = stack.enter_context(on_slow_disk("1G"))
        self._directory = self.volume.mountpoint / SUBVOLUME
        run("btrfs", "subvolume", "create", self._directory)
        self.journald = stack.enter_context(
            PrivateJournald(self._directory, settings=(*SETTINGS, "SyncIntervalSec=2s"))
        )
        self.state = (self._directory if record_inside else self.volume.base) / "state"
        self._state_inside = Path(INSIDE if record_inside else self.volume.base, "state")
        self.borne: dict[str, Bearing] = {}
        self.sent = 0
        self.journald.age(FLUSHES)
        self._content = self.journald.rotate().read_bytes()

    def serve(self) -> Daemon:
        """Return a service that has looked once. It ends with the place at the latest."""
        base, inside, state = self.volume.base / "service", self.journald.inside, self._state_inside
        service = Daemon(base, INSIDE, config=QUICK, wrapper=inside, state=state, watchdog_s=WATCHDOG_S)
        return self._stack.enter_context(service).ready()

    def add(self, count: int) -> list[str]:
        """Make archives appear, all at once and on the disk; the very first one is NOCOW. Return their names."""
        stage = self._directory / "stage"
        stage.mkdir(exist_ok=True)
        first = len(self.borne) + 1
        added = [archive_name(number) for number in range(first, first + count)]
        for number, name in enumerate(added, start=first):
            self.borne[name] = whole(put(stage, self._content, name, nocow=number == 1))
        for name in added:
            (stage / name).rename(self.journald.journal / name)
        run("btrfs", "filesystem", "sync", self.volume.mountpoint)
        return added

    def mark(self) -> None:
        """Log messages that are on the disk at the end: `mark N` in an archive, `live N` in the active file."""
        for word in ("mark", "live"):
            for number in range(MARKS):
                self.journald.log(f"{word} {number}")
            assert eventually(lambda: f"{word} {MARKS - 1}\n" in self.read_messages())  # noqa: B023
            if word == "mark":
                self.journald.rotate()
        self.journald.sync()
        run("btrfs", "filesystem", "sync", self.volume.mountpoint)

    def log(self) -> None:
        """Log `load N`. A journald that hangs lets the caller wait."""
        self.journald.log(f"load {self.sent}")
        self.sent += 1

    def read_messages(self) -> str:
        """Return all messages, one per line."""
        return run("journalctl", "--quiet", "--output=cat", "--directory", self.journald.journal)

    def strike(self, fault: Fault) -> None:
        """Begin the fault."""
        match fault:
            case Fault.HANG:
                self.disk.order(HOLD)
            case Fault.READ_ERRORS | Fault.WRITE_ERRORS:
                for name in self.borne:  # what reads an archive must ask the disk
                    with open(self.journald.journal / name, "rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                self.disk.order(fault)
            case Fault.FULL:
                fill(self.volume.mountpoint / "filler")
            case Fault.UNMOUNT:
                run(*self.journald.inside, "umount", "--lazy", INSIDE)

    def mend(self, fault: Fault) -> None:
        """End the fault. After errors of the disk no service may run: everything is mounted and started anew."""
        match fault:
            case Fault.HANG:
                self.disk.order(GO)
            case Fault.READ_ERRORS | Fault.WRITE_ERRORS:
                kill(self.journald)
                self.volume.unmount()
                self.disk.order(GO)
                self.disk.set_iops(0)
                self.volume.await_release()
                self.volume.mount()
                self.journald.start()
            case Fault.FULL:
                (self.volume.mountpoint / "filler").unlink()
            case Fault.UNMOUNT:
                words = ("mount", "-o", f"subvol={SUBVOLUME}", self.volume.device, INSIDE)
                run(*self.journald.inside, *words)
        self.disk.set_iops(0)

    def finish(self) -> list[str]:
        """Run `defrag --now`, which does all that is left. Return a sentence for each trouble."""
        words = ("defrag", "-D", INSIDE, "--now", "--config", self.volume.base / "service/journalkeeper.conf")
        done = journalkeeper(*words, state=self._state_inside, inside=self.journald.inside, check=False)
        journal = self.journald.journal
        counts = {name: extents(journal / name) for name in self.borne if (journal / name).exists()}
        found = [f"{name} has {count} extents" for name, count in counts.items() if count >= TORN]
        found += [f"defrag ended with {done.returncode}: {done.stderr[-300:]}"] if done.returncode not in {0, 1} else []
        return found + find_leftovers(journal) + find_false_claims(journal, read_claims(self.state))

    def find_lost(self, fault: Fault) -> list[str]:
        """Return a sentence for each archive and message that is not what it was.

        A fault that does not spare journald's active file excuses files that journald itself damages.
        """
        journal, said = self.journald.journal, self.read_messages()
        found = [line for name, one in self.borne.items() for line in differences(one, journal / name, finished=True)]
        spared = fault in SPARED
        for word, count in {"mark": MARKS, **({"live": MARKS, "load": self.sent} if spared else {})}.items():
            there = {int(number) for number in re.findall(rf"(?m)^{word} (\d+)$", said)}
            found += [f"{word} {number} is gone" for number in range(count) if number not in there]
        excused = () if spared else JOURNALDS_OWN
        return found + [line for line in verify_failures(journal) if not any(mark in line for mark in excused)]


class Try:
    """One point at work; `unclean` has a sentence on each trouble, `outage_s` is how long the last archive took."""

    def __init__(self, place: Place, point: Point) -> None:
        self.place, self.point = place, point
        self.unclean: list[str] = []
        self.outage_s = 0.0

    def wait(self, is_true: Callable[[], bool], trouble: str, timeout_s: float = PATIENCE_S) -> None:
        """Note a trouble if a condition does not become true in time."""
        if not eventually(is_true, timeout_s, pause_s=0.05):
            self.unclean.append(trouble)

    def run(self) -> None:
        """Let the fault strike a service at work, and then let it compact a new archive; a new service if it ended."""
        place, point = self.place, self.point
        service = place.serve()
        before = len(service.said)
        place.add(ARCHIVES)
        place.disk.set_iops(IOPS)
        self.wait(lambda: "STATUS=working" in "\n".join(service.said[before:]), "it did not begin")
        time.sleep(point.delay_s)
        place.strike(point.fault)
        self._endure(service)
        if point.fault not in ERRORS:
            place.mend(point.fault)
        if point.fault in ERRORS or point.stop_s is not None:
            self._stop(service)
        if point.fault in ERRORS:
            place.mend(point.fault)
        time.sleep(0.5)
        began_s = time.monotonic()
        if service.process.poll() is not None:
            self._judge_end(service)
            service = place.serve()
        (name,) = place.add(1)
        text = "a new archive was not compacted once the volume was back"
        self.wait(lambda: name in {row.name for row in read_claims(place.state).done}, text)
        self.outage_s = time.monotonic() - began_s
        self.wait(lambda: service.status.startswith("OK: "), "the verdict was not OK after the outage", VERDICT_S)
        if self._stop(service) != 0:
            self.unclean.append(f"after the outage it ended with {service.process.returncode}")

    def _endure(self, service: Daemon) -> None:
        """Wait while the fault lasts. SIGTERM comes, or the watchdog is fed and the verdict reports the outage."""
        point, began_s = self.point, time.monotonic()
        if point.stop_s is not None:
            time.sleep(point.stop_s)
            service.process.send_signal(signal.SIGTERM)
        time.sleep(max(0.0, began_s + point.lasts_s - time.monotonic()))
        if point.stop_s is not None or service.process.poll() is not None:
            return
        fed_s = [began_s, *(moment_s for moment_s in service.alive_s if moment_s > began_s), time.monotonic()]
        gap_s = max(after_s - before_s for before_s, after_s in itertools.pairwise(fed_s))
        if gap_s > 2 * WATCHDOG_S:
            self.unclean.append(f"for {gap_s:.1f} s it did not feed its watchdog")
        if point.fault is not Fault.HANG or point.lasts_s >= HANG_NOTICED_S:
            self.wait(lambda: self._has_noticed(service), f"while the outage lasted its status was {service.status!r}")

    def _has_noticed(self, service: Daemon) -> bool:
        """Return whether the verdict is not OK, or the service has ended, or has no work left that could fail."""
        done = re.findall(rf"(?:{DONE[Verb.COMPRESS]}|{DONE[Verb.REWRITE]}) (\S+\.journal): ", service.log())
        return (
            service.process.poll() is not None
            or "STATUS=Act: " in "\n".join(service.said)
            or self.place.borne.keys() <= set(done)
        )

    def _stop(self, service: Daemon) -> int:
        """End the service by SIGTERM. Return its exit status, and note a trouble if the unit would kill it."""
        began_s = time.monotonic()
        status = service.stop()
        if time.monotonic() - began_s > STOP_S:
            self.unclean.append(f"SIGTERM did not end it within {STOP_S:.0f} s")
        return status

    def _judge_end(self, service: Daemon) -> None:
        """Note a trouble unless the service ended by SIGTERM, or with 1 because its state directory is gone."""
        status = service.process.returncode
        if status != 0 and not (self.point.record_inside and status == 1):
            self.unclean.append(f"it ended with {status}: {service.log()[-300:]}")
        if status == 0 and "STOPPING=1" not in service.said:
            self.unclean.append("it ended without a word")
        if Reason.INTERNAL_ERROR in service.log():
            self.unclean.append(service.log()[-1000:])


def attempt(point: Point) -> tuple[list[str], list[str], float]:
    """Try one point. Return its losses, its troubles, and the outage."""
    with ExitStack() as stack:
        place = Place(stack, record_inside=point.record_inside)
        place.mark()
        tried = Try(place, point)

        def fail(error: Exception) -> None:
            if not isinstance(error, OSError | KeeperError):  # journald was killed with its volume
                tried.unclean.append(f"the load: {error!r}")

        with repeat(place.log, lambda: 0.03, fail):
            tried.run()
        if point.fault in SPARED:
            place.journald.sync()
        else:
            kill(place.journald)
            place.journald.start()
        troubles = place.finish()
        return place.find_lost(point.fault), tried.unclean + troubles, tried.outage_s


OPTIONS: Final = {
    "points": Option(60, "that are tried"),
    "hang": Option(30.0, "seconds for which a volume hangs"),
    "only": Option(None, "only this point of the seed, by its number", int),
}


def attack(asked: Namespace, tally: Tally) -> None:
    """Try the points of a seed."""
    for number in range(asked.points) if asked.only is None else [asked.only]:
        point = make_point(number, asked.seed, asked.hang)
        lost, unclean, outage_s = attempt(point)
        table.say(f"{point}: at work after {outage_s:.1f} s")
        tally.add(f"{point}", lost=lost, unclean=unclean, outage_s=outage_s)


if __name__ == "__main__":
    sys.exit(table.command(__doc__, attack, OPTIONS))
