# SPDX-License-Identifier: LGPL-2.1-or-later
"""Threads that interrupt each other all the time: python -m tests.trust.threads [--seconds N] [--seed N]

The service runs with a switch interval of 1 us (tests/trust/switching.py) on a private bus and beside a private
journald. In rounds, at once, by a seed: messages, syncs and rotations of journald; journal files that are made,
appended to, renamed, replaced and removed, directories that come and go; jobs that are begun and canceled; reloads,
of good and wrong configurations and of other directories; pauses, plans, and reads of all there is. The end of each
round is without what makes a look at everything; then what the bus shows of all files must be what a fresh look
finds, so that no change was lost. At the end every job must have been told to be over, the log must have no line
that nobody expects, and SIGTERM, amid calls, must end the service soon.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from dbus_fast import BusType, Message, MessageType, Variant
from dbus_fast.aio import MessageBus

from journalkeeper.bus import names
from journalkeeper.bus.callers import BURST, LONG_COST, RATE_PER_S
from journalkeeper.bus.dispatch import LONG
from journalkeeper.history.record import Record
from journalkeeper.model.record import to_properties
from journalkeeper.observe.observer import Observer
from journalkeeper.probe.bed import Bed, bed
from tests import bus as beds
from tests.bench.figures import Option
from tests.bus import PrivateBus
from tests.daemon import Daemon
from tests.hosts import MACHINE
from tests.journal_files import archive_name
from tests.trust import table
from tests.trust.services import on_a_bus
from tests.trust.soak import CONFIG, INSIDE, WRONG

KIND: Final = "threads"
SETTINGS: Final = ("SystemMaxFileSize=1M", "SystemMaxFiles=12", "SystemKeepFree=1M")
OTHER: Final = CONFIG.replace("[Watch]\n", f"[Watch]\nDirectories={INSIDE}\nDirectories={INSIDE}/{MACHINE}\n")

NAMES: Final = 150
"""So many that a change which got lost is not soon followed by another of the same name."""

ROUND_S: Final = 6.0
WILD: Final = 0.5
"""The share of a round that has everything in it."""

ANSWER_S: Final = 20.0
SETTLE_S: Final = 20.0
END_S: Final = 20.0

EXPECTED: Final = frozenset(name.rpartition(".")[2] for kind, name in names.ERRORS if kind.__name__ in {
    "BusyError", "NoSuchJobError", "UsageError",
})  # fmt: skip
"""What a caller may be told here: a full queue, a job that is over, a file that has gone."""

LOGGED: Final = re.compile(
    r"<6>.*|<4>[0-9]+ messages were lost.*|<4>no file .*"
    r"|<3>configuration not reloaded, the running values stay: .*Archived.*"
    r"|<4>Act: (The service is paused|The configuration on disk is|SyncIntervalSec= of [0-9a-f]+ leaves too little).*"
)
"""What the service has a reason to log here."""

BAD_WORDS: Final = ("Traceback", "internal-error", "mistake", "bad-header (")


class Files:
    """Changes journal files of an instance that is nobody's, by `dice`."""

    def __init__(self, top: Path, content: bytes, dice: random.Random) -> None:
        self.top = top
        self.place = top / MACHINE
        self.place.mkdir()
        self._content = content
        self._dice = dice

    def change(self) -> None:
        """One change of one file."""
        path = self.place / archive_name(self._dice.randrange(1, NAMES))
        there = sorted(self.place.glob("*.journal"))
        old = self._dice.choice(there) if there else None
        kind = self._dice.randrange(8)
        if old is None or kind < 2:
            self._write(path)
        elif kind == 2:
            old.unlink()
        elif kind == 3:
            old.rename(path)
        elif kind == 4:
            old.chmod(self._dice.choice((0o600, 0o640)))
        elif kind == 5:
            os.utime(old, (1, self._dice.randrange(1, 1000)))
        elif kind == 6:
            self._append(old)
        else:
            fresh = self.place / archive_name(NAMES)
            self._write(fresh)
            fresh.rename(path)

    def change_directory(self) -> None:
        """Another instance comes, with a file, or goes, or another takes its place."""
        place, away = self.top / ("fedcba9876543210" * 2), self.top / "away"
        there = place.exists()
        if there:
            place.rename(away)
        if not there or self._dice.random() < 0.5:
            place.mkdir()
            (place / archive_name()).write_bytes(self._content)
        if there:
            shutil.rmtree(away)

    def _write(self, path: Path) -> None:
        """A copy whose first pages are extents of their own."""
        with open(path, "wb", buffering=0) as file:
            file.write(self._content)
            os.fsync(file.fileno())
            for offset in range(0, self._dice.randrange(0, 100) * 4096, 8192):
                os.pwrite(file.fileno(), self._content[offset : offset + 4096], offset)
            os.fsync(file.fileno())
        os.utime(path, (1, 1))

    def _append(self, path: Path) -> None:
        with open(path, "ab", buffering=0) as file:
            file.write(bytes(4096))
            os.fsync(file.fileno())


class Stress:
    """What happens to the service; `unclean` has a sentence on each thing that is wrong."""

    def __init__(self, place: Bed, bus: MessageBus, daemon: Daemon, seed: int) -> None:
        self.place, self.daemon = place, daemon
        self.acts: Counter[str] = Counter()
        self.unclean: list[str] = []
        self.jobs: dict[str, str] = {}
        self.removed: dict[str, str] = {}
        self.slowest_s = 0.0
        self._bus = bus
        self._seed = seed
        self._over = False
        self._tokens, self._paced_s, self._took_s = BURST, time.monotonic(), 0.0
        self._files = Files(place.volume.mountpoint, place.journald.rotate().read_bytes(), self._dice("files"))
        bus.add_message_handler(self._hear)

    def _dice(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}-{name}")  # noqa: S311 - repeatable is the point

    def _hear(self, message: Message) -> None:
        if message.message_type is MessageType.SIGNAL and message.member == "JobRemoved":
            _, job, result = message.body
            self.removed[job] = result

    # -- Calls ---------------------------------------------------------------------------------

    async def _pace(self, member: str) -> None:
        """Wait as long as keeps the caller below its rate: above it a call gets no answer."""
        now_s = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now_s - self._paced_s) * RATE_PER_S)
        self._tokens -= LONG_COST if member in LONG else 1
        self._paced_s = now_s
        if self._tokens < BURST / 2:
            await asyncio.sleep((BURST / 2 - self._tokens) / RATE_PER_S)

    async def _ask(self, member: str, signature: str = "", *body: object, interface: str = names.MANAGER) -> Message:
        call = Message(names.BUS_NAME, names.MANAGER_PATH, interface, member, signature=signature, body=list(body))
        began_s = time.monotonic()
        answer = await asyncio.wait_for(self._bus.call(call), ANSWER_S)
        self._took_s = time.monotonic() - began_s
        assert answer is not None
        return answer

    async def _call(self, member: str, signature: str = "", *body: object, interface: str = names.MANAGER) -> list[Any]:
        """The answer; nothing where it is an error that is expected."""
        await self._pace(member)
        answer = await self._ask(member, signature, *body, interface=interface)
        if answer.message_type is MessageType.ERROR:
            name = str(answer.error_name)
            if name.rpartition(".")[2] not in EXPECTED and not self._over:
                self.unclean.append(f"{member}: {name} {answer.body}")
            return []
        return list(answer.body)

    async def job(self, dice: random.Random) -> None:
        """A job, which is canceled at once or soon, or not."""
        now = {"now": Variant("b", True)}
        if dice.random() < 0.5:
            files = [Path(INSIDE, path.parent.name, path.name) for path in self._files.place.iterdir()]
            paths = Variant("as", [f"{dice.choice([*files, Path(INSIDE, 'x')])}"])
            answer = await self._call("Defragment", "a{sv}", now | {"paths": paths})
        else:
            choice = {dice.choice(("active", "archived")): Variant("b", True)}
            answer = await self._call("Defragment", "a{sv}", now | choice)
        if answer:
            self.jobs[answer[0]] = ""
            if dice.random() < 0.4:
                await asyncio.sleep(dice.choice((0, 0.01, 0.1)))
                await self._call("Cancel", "o", answer[0])

    async def read(self, dice: random.Random) -> None:
        """What there is, as a whole or in parts."""
        if dice.random() < 0.3:
            await self._call("ListFiles", "a{sv}", {})
            return
        if dice.random() < 0.5:
            await self._call("GetAll", "s", names.MANAGER, interface=names.PROPERTIES)
        else:
            await self._call("Introspect", interface=names.INTROSPECTABLE)
        self.slowest_s = max(self.slowest_s, self._took_s)

    async def plan(self, _dice: random.Random) -> None:
        """A plan."""
        await self._call("Plan", "a{sv}", {})

    async def pause(self, dice: random.Random) -> None:
        """A pause that ends by itself, or by a call."""
        await self._call("Pause", "t", dice.choice((0, 1000, 100_000)))
        await asyncio.sleep(dice.uniform(0, 0.2))
        await self._call("Resume")

    async def rescan(self, _dice: random.Random) -> None:
        """A look at everything."""
        await self._call("Rescan")

    async def reload(self, dice: random.Random) -> None:
        """The configuration as it was or with another directory, or a wrong one; by a signal, and then by a call."""
        config = dice.choice((CONFIG, OTHER, OTHER, WRONG))
        await self._reloaded(config, signals=dice.randrange(3))

    async def _reloaded(self, config: str, signals: int = 0) -> None:
        self.daemon.config.write_text(config)
        for _ in range(signals):
            self.daemon.process.send_signal(signal.SIGHUP)
        answer = await self._ask("Reload")
        if (answer.message_type is MessageType.ERROR) != (config is WRONG):
            self.unclean.append(f"Reload of {config!r:.40}: {answer.error_name} {answer.body}")

    # -- Events --------------------------------------------------------------------------------

    async def log(self, dice: random.Random) -> None:
        """Messages, and now and then a sync or a rotation by journald."""
        journald = self.place.journald
        for _ in range(dice.choice((1, 1, 1, 60))):
            await asyncio.to_thread(journald.log, f"{dice.getrandbits(200):x}")
        if dice.random() < 0.1:
            os.kill(journald.pid, dice.choice((signal.SIGUSR2, signal.SIGRTMIN + 1)))

    async def file(self, _dice: random.Random) -> None:
        """A change of a file."""
        await asyncio.to_thread(self._files.change)

    async def directory(self, _dice: random.Random) -> None:
        """A directory more or less."""
        await asyncio.to_thread(self._files.change_directory)

    # -- Rounds --------------------------------------------------------------------------------

    async def rounds(self, seconds: float) -> None:
        """All of it for so long, in rounds, each with a comparison at its end."""
        calm = ((self.log, 0.02), (self.file, 0.02), (self.read, 0.02), (self.plan, 0.3), (self.job, 0.3))
        wild = (*calm, (self.reload, 0.15), (self.pause, 0.3), (self.rescan, 0.5), (self.directory, 0.1))
        end_s, number, round_s = time.monotonic() + seconds, 0, min(ROUND_S, seconds)
        while not self.unclean and (number == 0 or time.monotonic() < end_s):
            await self._together(wild, WILD * round_s, number)
            await self._reloaded(CONFIG)
            await self._together(calm, (1 - WILD) * round_s, -1 - number)
            await self._same()
            number += 1

    async def _together(
        self, works: Sequence[tuple[Callable[[random.Random], Awaitable[None]], float]], seconds: float, number: int
    ) -> None:
        end_s = time.monotonic() + seconds

        async def repeat(work: Callable[[random.Random], Awaitable[None]], every_s: float) -> None:
            name = getattr(work, "__name__", "")
            dice = self._dice(f"{name}-{number}")
            while time.monotonic() < end_s and not self._over:
                await work(dice)
                self.acts[name] += 1
                await asyncio.sleep(every_s * dice.uniform(0, 2))

        await asyncio.gather(*(repeat(*one) for one in works))

    async def _same(self) -> None:
        """When all is quiet the bus shows what a fresh look finds; each try is a look at what changed alone."""
        await asyncio.to_thread(self.place.journald.sync)
        end_s, wrong = time.monotonic() + SETTLE_S, "never"
        while wrong and time.monotonic() < end_s:
            for made in (True, False):
                marker = self._files.place / archive_name(NAMES + 1)
                marker.touch() if made else marker.unlink()
                while (f"{INSIDE}/{marker.parent.name}/{marker.name}" in await self._shown()) is not made:
                    if time.monotonic() > end_s:
                        self.unclean.append("a look that was due is not made")
                        return
                    await asyncio.sleep(0.1)
            seen = self._seen()
            wrong = _difference(seen, await self._shown())
        self.acts["same"] += 1
        if wrong:
            self.unclean.append(f"the bus shows what is not so: {wrong}")

    async def _shown(self) -> dict[str, dict[str, object]]:
        files: dict[str, dict[str, object]] = {}
        while True:
            after = {"after": Variant("s", max(files))} if files else {}
            (page,) = await self._call("ListFiles", "a{sv}", after)
            if not page:
                return files
            files |= {one["Path"].value: {name: value.value for name, value in one.items()} for one in page}

    def _seen(self) -> dict[str, dict[str, object]]:
        top = f"{self.place.volume.mountpoint}"
        rows = Observer().look([top], now_us=time.time_ns() // 1000).files
        placed = [row._replace(path=f"{INSIDE}{row.path.removeprefix(top)}") for row in rows]
        return {row.path: to_properties(row) for row in placed}

    async def end(self) -> None:
        """Wait for the jobs; then SIGTERM amid calls."""
        end_s = time.monotonic() + SETTLE_S
        while self.jobs.keys() - self.removed.keys() and time.monotonic() < end_s:
            await asyncio.sleep(0.1)
        if missing := sorted(self.jobs.keys() - self.removed.keys()):
            self.unclean.append(f"no JobRemoved for {missing}")
        works = ((self.read, 0.0), (self.job, 0.0), (self.plan, 0.0))
        calls = asyncio.ensure_future(self._together(works, END_S, 0))
        await asyncio.sleep(0.3)
        self._over = True
        self.daemon.process.terminate()
        began_s = time.monotonic()
        while self.daemon.process.poll() is None and time.monotonic() < began_s + END_S:
            await asyncio.sleep(0.05)
        if self.daemon.process.poll() != 0:
            self.unclean.append(f"{time.monotonic() - began_s:.1f} s after SIGTERM: {self.daemon.process.poll()}")
        await calls


def _difference(seen: dict[str, dict[str, object]], shown: dict[str, dict[str, object]]) -> str:
    """In what the two differ."""
    if seen.keys() != shown.keys():
        return f"files {sorted(seen.keys() ^ shown.keys())}"
    for path, row in seen.items():
        other = {name: value for name, value in shown[path].items() if name in row}
        if other != row:
            return f"{path}: {dict(row.items() - other.items())}, shown as {dict(other.items() - row.items())}"
    return ""


def judged(log: str) -> list[str]:
    """The lines of a log that nobody expects."""
    lines = [line for line in log.splitlines() if not LOGGED.fullmatch(line) or any(bad in line for bad in BAD_WORDS)]
    return [f"logged: {line:.2000}" for line in dict.fromkeys(lines)][:10]


async def _stressed(place: Bed, bus: PrivateBus, daemon: Daemon, seed: int, seconds: float) -> Stress:
    caller = await MessageBus(bus.address, BusType.SYSTEM).connect()
    stress = Stress(place, caller, daemon, seed)
    dbus = "org.freedesktop.DBus"
    rule = f"type='signal',sender='{names.BUS_NAME}',member='JobRemoved'"
    await caller.call(Message(dbus, "/org/freedesktop/DBus", dbus, "AddMatch", signature="s", body=[rule]))
    try:
        await stress.rounds(seconds)
        await stress.end()
    except (AssertionError, TimeoutError, EOFError, OSError, ValueError) as error:
        stress.unclean.append(f"no answer: {error!r}")
    finally:
        caller.disconnect()
    return stress


def stress(asked: Namespace) -> table.Row:
    """Do it; the verdict."""
    with ExitStack() as stack:
        place = stack.enter_context(bed(*SETTINGS, size="2G", sync_interval="1s"))
        bus, daemon = stack.enter_context(on_a_bus(place, None, CONFIG, module="tests.trust.switching"))
        done = asyncio.run(_stressed(place, bus, daemon, asked.seed, asked.seconds))
        unclean = done.unclean + judged(daemon.log())
        with Record(daemon.config.parent / "state", read_only=True) as record:
            outcomes = Counter(entry.outcome.reason for entry in record.history())
        unclean += [f"{reason} in the record" for reason in outcomes if "internal" in reason]
    table.say(f"{dict(done.acts)}; {dict(Counter(done.removed.values()))} jobs; {dict(outcomes)}")
    return table.judged(KIND, sum(done.acts.values()), asked.seed, unclean=unclean, outage_s=done.slowest_s)


OPTIONS: Final = {"seconds": Option(60.0, "that it lasts"), "seed": table.SEED}

if __name__ == "__main__":
    sys.exit(table.command(__doc__, KIND, stress, OPTIONS, missing=beds.missing, on_a_bed=True))
