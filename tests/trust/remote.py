# SPDX-License-Identifier: LGPL-2.1-or-later
"""The owner of remote/ against the service: python -m tests.trust.remote [--operations N] [--seed N]

A user who may write in `remote/` does anything there (tests/trust/owner.py), under names of journald's and of ours, as
fast as it can, while the service's runs look at the files and rewrite them again and again. What it appends to some of
its files and misses there is lost. Afterwards nothing outside of `remote/` is another than before, journald's own
archive is rewritten and whole, and nothing of ours is left. The seed makes the same operations, not the same moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from journalkeeper.btrfs import fiemap
from journalkeeper.config import Budget, Config, Watch, Window
from journalkeeper.engine import DAEMON, Engine
from journalkeeper.journald.names import is_leftover
from journalkeeper.model import Reason, Request, Result
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.run import Report
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.bench.figures import Option
from tests.btrfs.journals import Bearing, bearing
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put
from tests.trust import table
from tests.trust.owner import Owner
from tests.trust.test_boundary import CONTENT
from tests.volumes import why_no_bed

KIND: Final = "remote"
OWNER: Final = 998
CONFIG: Final = Config().model_copy(
    update={
        "watch": Watch(settle_us=0, nocow_settle_us=0),
        "window": Window(pressure_max_percent=100),
        "budget": Budget(bytes_per_day=None, keep_free_bytes=0),
    }
)


class Scene(NamedTuple):
    """A journal directory whose `remote` is OWNER's, and what nobody may touch."""

    top: Path
    remote: Path
    own: Path
    victims: list[Path]


def scene(base: Path) -> Scene:
    """journald's own archive; a file elsewhere, and one that has a second name in `remote`."""
    top = base / "journal"
    found = Scene(top, top / "remote", top / MACHINE, [])
    for directory in (found.own, found.remote, base / "elsewhere"):
        directory.mkdir(parents=True)
    put(found.own, CONTENT, archive_name(1))
    found.victims.append(put(base / "elsewhere", CONTENT, archive_name(2)))
    found.victims.append(put(base / "elsewhere", CONTENT, archive_name(3), nocow=True))
    found.victims[1].chmod(0o600)
    os.link(found.victims[1], found.remote / archive_name(3, "remote-victim"))
    os.chown(found.remote, OWNER, OWNER)
    return found


def touched(path: Path) -> tuple[Bearing, int, list[fiemap.Extent]]:
    """All of a file that a change would show in."""
    fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
    try:
        return bearing(path), os.fstat(fd).st_ctime_ns, fiemap.list_extents(fd, sync=True)
    finally:
        os.close(fd)


class Reported(NamedTuple):
    """What the owner tells at its end."""

    operations: int
    lost: list[str]
    failed: str


class Attack:
    """The owner's process."""

    def __init__(self, place: Scene, operations: int, seed: int) -> None:
        readable, writable = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(readable)
            self._be(place, operations, seed, writable)
        os.close(writable)
        self._pipe = readable
        os.set_blocking(readable, False)
        self._heard = b""

    def _be(self, place: Scene, operations: int, seed: int, pipe: int) -> None:
        done, lost, failed = 0, [], ""
        try:
            os.setgroups([])
            os.setgid(OWNER)
            os.setuid(OWNER)
            os.chdir(place.remote)
            signal.signal(signal.SIGIO, signal.SIG_IGN)  # a lease of the owner's that is broken is not given back
            owner = Owner(random.Random(seed), CONTENT, [f"{path}" for path in place.victims])  # noqa: S311 - repeatable
            for done in range(1, operations + 1):  # noqa: B007 - how many were done is told
                owner.step()
            owner.check_all()
            lost = owner.lost
        except BaseException as error:  # noqa: BLE001 - all of it is told to the parent
            failed = f"the owner's operation {done}: {type(error).__name__}: {error}"
        finally:
            os.write(pipe, json.dumps([done, lost[:50], failed]).encode())
            os._exit(0)

    def goes_on(self) -> bool:
        """Whether the owner has not ended."""
        try:
            part = os.read(self._pipe, 1 << 20)
        except BlockingIOError:
            return True
        self._heard += part
        return bool(part)

    def reported(self) -> Reported:
        """What it reported; it has ended."""
        os.waitpid(self._pid, 0)
        os.close(self._pipe)
        return Reported(*json.loads(self._heard or b'[0, [], "the owner reported nothing"]'))


class Service:
    """The service's runs over the directory, one after the other."""

    def __init__(self, place: Scene, state: Path) -> None:
        self._place = place
        self._engine = Engine(CONFIG, directories=(f"{place.top}",), state_directory=f"{state}", follows=True)
        self.made = [place.own / archive_name(1)]
        self.unclean: list[str] = []
        self.counts: Counter[str] = Counter()
        self.longest_s = 0.0

    def run(self) -> Report | None:
        """One run; what it raises ends the service."""
        began_s = time.monotonic()
        try:
            report = self._engine.run(Request(), on_progress=lambda _: None, stop=lambda: False, origin=DAEMON)
        except (KeeperError, OSError, ArithmeticError, LookupError, TypeError, ValueError, MemoryError) as error:
            self.unclean.append(f"a run ended: {type(error).__name__}: {error}")
            return None
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        self.counts["runs"] += 1
        self.counts.update(f"{one.action} {one.result} {one.reason}" for one in report.outcomes)
        rows: list[Any] = [*report.outcomes, *report.plan.skipped]
        self.unclean += [f"{one.path!r}: {one.detail}" for one in rows if one.reason is Reason.INTERNAL_ERROR]
        return report

    def own_again(self, number: int) -> None:
        """journald archives one more file: what others do to `remote` keeps nobody from doing this one."""
        self.made.append(put(self._place.own, CONTENT, archive_name(10 + number)))
        report = self.run()
        done = [one.path for one in report.outcomes if one.result is Result.DONE] if report else []
        if f"{self._place.own}/{archive_name(10 + number)}" not in done:
            self.unclean.append(f"journald's archive {number} was not done")

    def settle(self) -> None:
        """Runs without anybody's disturbance; then nothing of ours may be left."""
        for _ in range(3):
            self.run()
        left = [path for path in self._place.remote.iterdir() if is_leftover(path.name) and path.is_file()]
        self.unclean += [f"{path.name}: left behind" for path in left]


@contextmanager
def wide_mask() -> Iterator[None]:
    """What root makes here is read by all."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def attack(asked: Namespace) -> table.Row:
    """Let the owner loose for so many operations."""
    with ExitStack() as stack:
        stack.enter_context(wide_mask())
        volume = stack.enter_context(ScratchVolume("8G"))
        volume.base.chmod(0o755)
        place = scene(volume.mountpoint)
        before = [touched(path) for path in place.victims]
        service = Service(place, volume.base / "state")
        owner = Attack(place, asked.operations, asked.seed)
        number = 0
        while owner.goes_on():
            if service.counts["runs"] % 20 == 0:
                number += 1
                service.own_again(number)
            service.run()
        said = owner.reported()
        service.settle()
        changed = [path.name for path, was in zip(place.victims, before, strict=True) if touched(path) != was]
        torn = [path.name for path in service.made if not path.exists() or path.read_bytes() != CONTENT]
    service.unclean += [f"{name}: changed, and it is outside of remote/" for name in changed]
    service.unclean += [said.failed] if said.failed else []
    lost = [*said.lost, *(f"{name}: not whole" for name in torn)]
    table.say(f"{said.operations:,} operations, {dict(service.counts)}")
    return table.judged(
        KIND, said.operations, asked.seed, lost=lost, unclean=service.unclean, outage_s=service.longest_s
    )


OPTIONS: Final = {"operations": Option(20_000, "of the owner's"), "seed": table.SEED}

if __name__ == "__main__":
    sys.exit(table.command(__doc__, KIND, attack, OPTIONS, missing=why_no_bed))
