# SPDX-License-Identifier: LGPL-2.1-or-later
"""A volume that hangs, fails, fills, loses its quota or is unmounted under the service and under `defrag`.

    sudo python -m tests.trust.outages                          # 60 points, 40 minutes
    sudo python -m tests.trust.outages --points 6 --hang 3
    sudo python -m tests.trust.outages --seed 7 --only 12       # one point again

Each point is a volume on a disk of ours (tests/slowdisk.py) with a real journald under load and
archives that the subject works on; while it works, the fault strikes, lasts, and is mended. What was on
the disk before must be there afterwards: each archive with all that it bears, each message that was archived,
and of the active file where the fault itself does not have journald destroy it.
The verdict of the service must not be OK while the fault lasts, if it can notice it, and must be OK afterwards.
The service must live or end with a sentence, hear SIGTERM, feed its watchdog, give each outcome a reason, and
do a new archive once the volume is back; a last `defrag --now` must leave no archive torn.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from journalkeeper.history.record import Record
from journalkeeper.model import Reason, Result
from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.scratch_volume import run
from journalkeeper.service.daemon import STUCK_S
from tests.bench.figures import Option
from tests.btrfs.journals import QUICK, Bearing, bearing, extents
from tests.daemon import environment
from tests.journal_files import archive_name, put
from tests.patience import eventually
from tests.repeated import repeated
from tests.slowdisk import GO, HOLD, on_slow_disk
from tests.trust import table
from tests.trust.claims import find_false_claims, read_claims
from tests.trust.services import Quiet, quiet
from tests.trust.tally import Tally
from tests.trust.wholeness import verify_failures

INSIDE, SUBVOLUME = "/var/log/journal", "journal"
SIZE = "1G"
IOPS = 500
ARCHIVES, FLUSHES, MARKS = 4, 15, 100
JOURNALDS_OWN = (".journal~", f"@{'0' * 32}-")
"""In the names of files that journald itself damaged: unclean ones, and archived with zeros over the header."""

TORN = 100
"""An archive of so many extents was not compacted: it has more than 500 before, and some 40 afterwards."""

STOP_S = 45.0
"""TimeoutStopSec= of units/journalkeeper.service."""

WATCHDOG_S = 2.0
"""Half of it is how often the service feeds its watchdog."""

PATIENCE_S = 120.0

VERDICT_S = 240.0
"""The service tries again a minute after the first failure in an outage, and two minutes after the second one."""

HANG_NOTICED_S = STUCK_S + WATCHDOG_S
"""A shorter hang cannot be told from a slow disk."""

SETTINGS = ("SystemMaxFileSize=64M", "SystemMaxUse=600M", "SystemKeepFree=0")


class Fault(StrEnum):
    """What happens to the volume."""

    HANG = "hang"
    READ_ERRORS = "read-errors"
    WRITE_ERRORS = "write-errors"
    FULL = "full"
    QUOTA = "quota"
    UNMOUNT = "unmount"


ERRORS = (Fault.READ_ERRORS, Fault.WRITE_ERRORS)
SPARED = (Fault.HANG, Fault.UNMOUNT)
"""After which journald has all in the file that it writes. Where a page of a mapping cannot be read or has no room,
the kernel sends SIGBUS, for which journald maps zeros over its own header, and archives that (seen: 0 bytes left)."""


class Point(NamedTuple):
    """One try. `delay_s` after work began the fault strikes; `stop_s` after that comes SIGTERM, unless None.

    The record lies on the volume, too, if `record_inside`; `defrag` instead of the service.
    """

    number: int
    fault: Fault
    defrag: bool
    record_inside: bool
    delay_s: float
    lasts_s: float
    stop_s: float | None

    def __str__(self) -> str:
        subject = "defrag" if self.defrag else "service"
        where = ", its record on the volume" if self.record_inside else ""
        stop = "" if self.stop_s is None else f", SIGTERM {self.stop_s:.1f} s later"
        fault = f"{self.fault} for {self.lasts_s:.1f} s"
        return f"{self.number}: {fault} under {subject}{where}, {self.delay_s:.2f} s{stop}"


class Tried(NamedTuple):
    """What a point came to: sentences, and how long after the mending a new archive was done."""

    lost: list[str]
    unclean: list[str]
    outage_s: float


def points(count: int, seed: int, hang_s: float) -> list[Point]:
    """The points of a seed: the faults in turn, all else by chance."""
    found = []
    for number, fault in zip(range(count), itertools.cycle(Fault), strict=False):
        dice = random.Random(f"{seed}-{number}")  # noqa: S311 - repeatable is the point
        lasts_s = hang_s if fault is Fault.HANG else dice.uniform(0.5, 3)
        stop_s = dice.uniform(0, min(lasts_s, 3)) if dice.random() < 0.3 else None
        subject, inside = dice.random() < 0.3, dice.random() < 0.5
        found.append(Point(number, fault, subject, inside, dice.uniform(0, 2), lasts_s, stop_s))
    return found


class Load:
    """Messages `load 0`, `load 1`, ...; `sent` is how many journald took."""

    def __init__(self, journald: PrivateJournald) -> None:
        self._journald = journald
        self.sent = 0

    def log(self) -> None:
        """One more; where journald hangs this waits for it."""
        self._journald.log(f"load {self.sent}")
        self.sent += 1


class Place:
    """The disk, its volume and the journald on it, in whose mounts the service is."""

    def __init__(self, stack: ExitStack, *, record_inside: bool, quota: bool) -> None:
        self.volume, self.disk = stack.enter_context(on_slow_disk(SIZE))
        self.base = self.volume.base
        if quota:
            run("btrfs", "quota", "enable", self.top)
        self.directory = self.top / SUBVOLUME
        run("btrfs", "subvolume", "create", self.directory)
        self.subvolume = int(run("btrfs", "inspect-internal", "rootid", self.directory))
        self.journald = stack.enter_context(PrivateJournald(self.directory, sync_interval="2s", settings=SETTINGS))
        self.config = self.base / "journalkeeper.conf"
        self.config.write_text(QUICK)
        self.state_inside = Path(INSIDE if record_inside else self.base, "state")
        self.state = (self.directory if record_inside else self.base) / "state"
        self.borne: dict[str, Bearing] = {}
        self.journald.age(FLUSHES)
        self._content = self.journald.rotate().read_bytes()

    @property
    def top(self) -> Path:
        """Where the volume is mounted here; its subvolume is INSIDE to journald and the service."""
        return self.volume.mountpoint

    def add(self, count: int) -> list[str]:
        """Archives that everything is known of appear, all at once and on the disk; the first one is NOCOW."""
        stage = self.directory / "stage"
        stage.mkdir(exist_ok=True)
        first = len(self.borne) + 1
        added = [archive_name(number) for number in range(first, first + count)]
        for number, name in enumerate(added, start=first):
            self.borne[name] = bearing(put(stage, self._content, name, nocow=number == 1))
        for name in added:
            (stage / name).rename(self.journald.journal / name)
        run("btrfs", "filesystem", "sync", self.top)
        return added

    def mark(self) -> None:
        """Messages that are on the disk when this returns: `mark N` in an archive, `live N` in the active file."""
        for word in ("mark", "live"):
            for number in range(MARKS):
                self.journald.log(f"{word} {number}")
            while f"{word} {MARKS - 1}\n" not in self.messages():
                time.sleep(0.05)
            if word == "mark":
                self.journald.rotate()
        self.journald.sync()
        run("btrfs", "filesystem", "sync", self.top)

    def messages(self) -> str:
        """What readers get, one message a line."""
        return run("journalctl", "--quiet", "--output=cat", "--directory", self.journald.journal)

    def fill(self) -> Path:
        """Take all the room there is."""
        filler = self.top / "filler"
        fd, offset = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o600), 0
        try:
            for length in (64 << 20, 1 << 20, 4096):
                while _allocated(fd, offset, length):
                    offset += length
        finally:
            os.close(fd)
        return filler

    def forget(self) -> None:
        """Keep no archive in memory: what reads it asks the disk."""
        for name in self.borne:
            fd = os.open(self.journald.journal / name, os.O_RDONLY | os.O_NOATIME)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def history(self) -> list[str]:
        """The names of the files that the record says were done."""
        with Record(self.state, read_only=True) as record:
            outcomes = [entry.outcome for entry in record.history()]
        return [os.path.basename(outcome.path) for outcome in outcomes if outcome.result is Result.DONE]

    @property
    def mounting(self) -> tuple[str, ...]:
        """The words that mount the subvolume where journald and the service look for it."""
        return ("mount", "-o", f"subvol={SUBVOLUME}", self.volume.device, INSIDE)

    def renew(self, service: Quiet | None) -> None:
        """Mount the volume anew on a disk that works, as after a reboot; journald and its mounts, too."""
        self.journald.kill()
        if service:
            unless_gone(service, "umount", "--lazy", INSIDE)
        self.volume.unmount()
        self.disk.order(GO)
        self.disk.set_iops(0)
        self.volume.await_release()
        self.volume.mount()
        if service:
            unless_gone(service, *self.mounting)
        self.journald.start()


def _allocated(fd: int, offset: int, length: int) -> bool:
    try:
        os.posix_fallocate(fd, offset, length)
    except OSError:
        return False
    return True


def unless_gone(service: Quiet, *words: str) -> None:
    """Run a command with the mounts of a service, which it alone keeps; who was sent SIGTERM may end at any moment."""
    try:
        run("nsenter", f"--target={service.pid}", "--mount", "--root", "--wdns=/", "--", *words)
    except KeeperError:
        if os.path.exists(f"/proc/{service.pid}/ns/mnt"):
            raise


@contextmanager
def broken(place: Place, fault: Fault, service: Quiet | None) -> Iterator[None]:
    """The fault strikes at the beginning, and is mended at the end."""
    match fault:
        case Fault.HANG:
            place.disk.order(HOLD)
            yield
            place.disk.order(GO)
        case Fault.READ_ERRORS | Fault.WRITE_ERRORS:
            place.forget()
            place.disk.order(fault)
            yield
            place.renew(service)
        case Fault.FULL:
            filler = place.fill()
            yield
            filler.unlink()
        case Fault.QUOTA:
            run("btrfs", "qgroup", "limit", "1M", place.directory)
            yield
            # by the top: within the subvolume not even this has the quota
            run("btrfs", "qgroup", "limit", "none", f"0/{place.subvolume}", place.top)
        case Fault.UNMOUNT:
            run(*place.journald.inside, "umount", "--lazy", INSIDE)
            yield
            run(*place.journald.inside, *place.mounting)


class Subject:
    """The service or one `defrag`, in journald's mounts."""

    def __init__(self, place: Place, point: Point) -> None:
        self.place, self.point = place, point
        self.unclean: list[str] = []
        self.told = ""
        self.outage_s = 0.0

    def wait(self, true: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Note what does not come true in time."""
        if not eventually(true, timeout_s, pause_s=0.05):
            self.unclean.append(what)

    @contextmanager
    def service(self) -> Iterator[Quiet]:
        """A service that has looked once. What it says is judged when it has ended."""
        state, inside = self.place.state_inside, self.place.journald.inside
        with quiet(
            self.place.base, Path(INSIDE), config=QUICK, enter=inside, state=state, watchdog_s=WATCHDOG_S, may_fail=True
        ) as service:
            yield service
        self.told += "\n".join(service.lines)
        self.unclean += [line for line in service.lines if "Traceback" in line or Reason.INTERNAL_ERROR in line]

    def under_service(self) -> None:
        """The fault, and then a new archive; by a service started anew if the first one ended."""
        place, point = self.place, self.point
        with self.service() as service:
            before = len(service.said)
            place.add(ARCHIVES)
            place.disk.set_iops(IOPS)
            self.wait(
                lambda: any(line.startswith("STATUS=working") for line in service.said[before:]), "it did not begin"
            )
            time.sleep(point.delay_s)
            with broken(place, point.fault, service):
                self._endure(service)
                self._await_bad_verdict(service)
                if point.record_inside and point.fault in ERRORS:
                    self._stop(service)  # it keeps its record's volume in use: what mends that is a reboot
            place.disk.set_iops(0)
            began_s = time.monotonic()
            self._judge(service)
            if service.status is None:
                self._at_work_again(began_s)
                self._await_good_verdict(service)
        if service.status is not None and not self.outage_s:
            with self.service() as again:
                self._at_work_again(began_s)
                self._await_good_verdict(again)

    def _await_bad_verdict(self, service: Quiet) -> None:
        """Wait until the service reports the outage, unless it ends, or has no work in which it could notice it."""
        point = self.point
        if point.stop_s is not None or (point.fault is Fault.HANG and point.lasts_s < HANG_NOTICED_S):
            return
        self.wait(
            lambda: service.status is not None or service.verdict == "Act" or not self._undone(service),
            f"its verdict was {service.headline!r} while the outage lasted",
        )

    def _undone(self, service: Quiet) -> set[str]:
        """Return the archives that the log does not report as done: the disk itself may not answer."""
        log = "\n".join(service.lines)
        return {
            name
            for name in self.place.borne
            if not re.search(rf"(compressed|rewrote|rewritten) {re.escape(name)}", log)
        }

    def _await_good_verdict(self, service: Quiet) -> None:
        self.wait(lambda: service.verdict == "OK", "its verdict was not OK after the outage", VERDICT_S)
        if service.verdict != "OK":
            self.unclean.append(service.headline)

    def _endure(self, service: Quiet) -> None:
        """What happens while the fault lasts."""
        began_s = time.monotonic()
        if self.point.stop_s is not None:
            time.sleep(self.point.stop_s)
            service.signal(signal.SIGTERM)
        time.sleep(max(0.0, began_s + self.point.lasts_s - time.monotonic()))
        if service.status is None and self.point.stop_s is None:
            end_s = time.monotonic()
            fed_s = [began_s, *(moment_s for moment_s in service.alive_s if began_s < moment_s < end_s), end_s]
            gap_s = max(after_s - before_s for before_s, after_s in itertools.pairwise(fed_s))
            if gap_s > 2 * WATCHDOG_S:
                self.unclean.append(f"for {gap_s:.1f} s it did not feed its watchdog")

    def _judge(self, service: Quiet) -> None:
        """How it ended if it did: by SIGTERM, or with a sentence because its record's directory is gone."""
        if self.point.stop_s is not None:
            self._stop(service)
        time.sleep(0.5)
        if service.status not in (None, 0) and not (self.point.record_inside and service.status == 1):
            self.unclean.append(f"it ended with {service.status}: {service.lines[-1:]}")
        if service.status == 0 and "STOPPING=1" not in service.said:
            self.unclean.append("it ended without a word")

    def _stop(self, service: Quiet) -> None:
        """End it as its unit does."""
        if self.point.stop_s is None:
            service.signal(signal.SIGTERM)
        try:
            service.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.unclean.append(f"SIGTERM did not end it within {STOP_S:.0f} s")
            service.signal(signal.SIGKILL)

    def _at_work_again(self, began_s: float) -> None:
        (name,) = self.place.add(1)
        self.wait(lambda: name in self.place.history(), "a new archive was not done once the volume was back")
        self.outage_s = time.monotonic() - began_s

    def under_defrag(self) -> None:
        """The fault under one run."""
        place, point = self.place, self.point
        place.add(ARCHIVES)
        place.disk.set_iops(IOPS)
        with self.defrag("--now") as process:
            time.sleep(0.3 + point.delay_s)
            with broken(place, point.fault, None):
                if point.stop_s is not None:
                    time.sleep(point.stop_s)
                    process.send_signal(signal.SIGTERM)
                time.sleep(point.lasts_s - (point.stop_s or 0))
            place.disk.set_iops(0)

    @contextmanager
    def defrag(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A run that ends by itself; what it says is judged then."""
        place = self.place
        argv = (sys.executable, "-m", "journalkeeper", "defrag", "-D", INSIDE, "-j", "--config", str(place.config))
        with subprocess.Popen(
            (*place.journald.inside, *argv, *words), env=environment(place.state_inside), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            yield process
            said, complaints = process.communicate(timeout=PATIENCE_S)
        self.told += said + complaints
        if "Traceback" in complaints or process.returncode not in (0, 1, -signal.SIGTERM):
            self.unclean.append(f"defrag ended with {process.returncode}: {complaints[-300:]}")
        elif process.returncode == 1 and not complaints and not said:
            self.unclean.append("defrag failed without a word")
        self.unclean += [f"{one}" for one in _outcomes(said) if one["result"] != "done" and _is_bare(one)]

    def finish(self) -> None:
        """All that is left is done by one run on the whole volume, and nothing is left behind."""
        with self.defrag("--now"):
            pass
        journal = self.place.journald.journal
        torn = {name: extents(journal / name) for name in self.place.borne if (journal / name).exists()}
        self.unclean += [f"{name} has {count} extents" for name, count in torn.items() if count >= TORN]
        self.unclean += [path.name for path in journal.iterdir() if path.name.startswith(".journalkeeper")]
        self.unclean += find_false_claims(journal, read_claims(self.place.state))
        unrecorded = [name for name in set(torn).difference(self.place.history()) if not self._was_told(name)]
        # A volume that lost writes may have lost the end of the last transaction, which SQLite then rolls back. A file
        # that is rewritten while its volume is unmounted has no name when the work ends: its outcome is "vanished".
        one_is_excused = self.point.fault is Fault.UNMOUNT or (self.point.record_inside and self.point.fault in ERRORS)
        self.unclean += [f"{name} was rewritten and is not recorded" for name in unrecorded[one_is_excused:]]

    def _was_told(self, name: str) -> bool:
        return f"{name}: not recorded" in self.told


def _outcomes(said: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(said)["outcomes"] if said else []
    return found


def _is_bare(outcome: dict[str, Any]) -> bool:
    """An outcome that says nothing, or of a mistake of ours."""
    return outcome["reason"] not in set(Reason) or outcome["reason"] == Reason.INTERNAL_ERROR


def lost(place: Place, wanted: dict[str, int], excused: tuple[str, ...] = ()) -> list[str]:
    """What is no longer as it was: archives, and messages: of each word so many.

    Files with one of the `excused` in their names may be damaged.
    """
    found = []
    journal = place.journald.journal
    for name, before in place.borne.items():
        if not (journal / name).exists():
            found.append(f"{name} is gone")
        elif (after := bearing(journal / name)) != before:
            found += [
                f"{name}: {field} was {was!r:.80}, is {now!r:.80}"
                for field, was, now in zip(Bearing._fields, before, after, strict=True)
                if was != now
            ]
    said = place.messages()
    for word, count in wanted.items():
        there = {int(number) for number in re.findall(rf"(?m)^{word} (\d+)$", said)}
        found += [f"{word} {number} is gone" for number in range(count) if number not in there]
    return found + [line for line in verify_failures(journal) if not any(mark in line for mark in excused)]


def attempt(point: Point) -> Tried:
    """Try one point."""
    with ExitStack() as stack:
        place = Place(stack, record_inside=point.record_inside, quota=point.fault is Fault.QUOTA)
        place.mark()
        load, subject = Load(place.journald), Subject(place, point)

        def stopped(error: Exception) -> None:
            if not isinstance(error, OSError | KeeperError):  # journald was killed with its volume
                subject.unclean.append(f"the load: {error!r}")

        with repeated(load.log, lambda: 0.03, stopped):
            if point.defrag:
                subject.under_defrag()
            else:
                subject.under_service()
        wanted, excused = {"mark": MARKS}, () if point.fault in SPARED else JOURNALDS_OWN
        if point.fault in SPARED:
            place.journald.sync()
            wanted |= {"live": MARKS, "load": load.sent}
        else:
            place.journald.kill()
            place.journald.start()
        subject.finish()
        return Tried(lost(place, wanted, excused), subject.unclean, subject.outage_s)


OPTIONS = {
    "points": Option(60, "that are tried"),
    "hang": Option(30.0, "seconds for which a volume hangs"),
    "seed": table.SEED,
    "only": Option(None, "only this point of the seed, by its number", int),
}


def attack(asked: Namespace) -> table.Row:
    """Try the points of a seed."""
    chosen = points(asked.points, asked.seed, asked.hang)
    if asked.only is not None:
        chosen = [points(asked.only + 1, asked.seed, asked.hang)[-1]]
    tally = Tally("outages", asked.seed)
    for point in chosen:
        tried = attempt(point)
        table.say(f"{point}: at work after {tried.outage_s:.1f} s")
        tally.add(f"{point}", **tried._asdict())
    return tally.row()


if __name__ == "__main__":
    sys.exit(table.command(__doc__, "outages", attack, OPTIONS, on_a_bed=True))
