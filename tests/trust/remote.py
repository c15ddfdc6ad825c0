# SPDX-License-Identifier: LGPL-2.1-or-later
"""The owner of remote/ against the service: python -m tests.trust.remote [--operations N] [--seed N]

A user who may write in `remote/` does anything there, under names of journald's and of ours, as fast as it can, while
the service's runs look at the files and rewrite them again and again. The user only appends to some files and tags
them: what is missing there later is lost. At the end nothing outside of `remote/` has changed, journald's own archives
are rewritten and whole, and nothing of ours is left. The seed makes the same operations, not the same moments.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import signal
import socket
import stat
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from journalkeeper.btrfs import fiemap, inode, kernel
from journalkeeper.config.directives import Budget, Config, WatchSection, WindowSection
from journalkeeper.engine import DAEMON, Engine
from journalkeeper.journald.layout import is_leftover
from journalkeeper.model import Reason, Request, Result
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.bench.figures import Option
from tests.btrfs.journals import Bearing, go
from tests.hosts import MACHINE
from tests.journal_files import FALLOC_FL_KEEP_SIZE, archive_name, empty, fallocate, punch_hole, put
from tests.nobody import in_child
from tests.repeat import repeat
from tests.trust import table
from tests.trust.table import Tally
from tests.trust.wholeness import whole

OWNER: Final = 998
CONFIG: Final = Config().model_copy(
    update={
        "watch": WatchSection(settle_us=0, nocow_settle_us=0),
        "window": WindowSection(pressure_max_percent=100),
        "budget": Budget(bytes_per_day=None, keep_free_bytes=0),
    }
)
CONTENT: Final = empty(size_bytes=1 << 20).ljust(1 << 20, b"\0")
"""An archive without entries that every check of the header passes."""

NAMES: Final = 60
TRACKED: Final = 8
MOST_BYTES: Final = (1 << 63) - 4096
PIECE: Final = b"an entry of the owner's, which must not be lost %012d\n"
TAG: Final = "user.tag"
TIMES_NS: Final = (0, 1, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 40), 1_700_000_000_000_000_000)


def list_names() -> list[str]:
    """Return names of each sort: archives and active files, temporary files of ours, odd names, one of 255 bytes."""
    archives = [archive_name(number, "remote-host") for number in range(NAMES // 3)]
    active = [f"remote-{number}.journal" for number in range(NAMES // 3)]
    unclean = [f"remote-x@{number:016x}-{number:016x}.journal~" for number in range(6)]
    ours = [f".journalkeeper-{number}.tmp" for number in range(4)]
    odd = [
        "a\nb.journal",
        "\udcff\udcfe.journal",
        "\x1b[31m.journal",
        "x" * 247 + ".journal",
        "system.journal",
        "notes",
    ]
    return archives + active + unclean + ours + odd


class Owner:
    """A user at work in the current directory; `victims` are paths elsewhere that the user links to.

    `lost` has a sentence for each thing that was missing in a file that the user only appends to.
    """

    def __init__(self, dice: random.Random, victims: list[str]) -> None:
        self._dice = dice
        self._victims = victims
        self._names = list_names()
        self._holds: dict[str, tuple[bytes, int]] = {}
        self._open: list[int] = []
        self._pieces = 0
        self.lost: list[str] = []
        self._anything: tuple[Callable[[], None], ...] = (
            *(self.make, self.make, self.write, self.resize, self.allocate, self.move, self.link, self.make_special),
            *(self.remove, self.change_attributes, self.hold, self.lock, self.store),
        )
        self._careful: tuple[Callable[[], None], ...] = (
            *(self.append, self.append, self.append_slowly, self.tag, self.begin, self.check_one),
        )

    def step(self) -> None:
        """Do one operation."""
        if self._dice.random() < 0.5:
            self._do_anything()
        else:
            self._try(self._dice.choice(self._careful))

    def _do_anything(self) -> None:
        self._try(self._dice.choice(self._anything))

    def _try(self, operation: Callable[[], None]) -> None:
        """Do an operation, which the kernel may refuse. Raises: OSError: EIO."""
        try:
            operation()
        except OSError as error:
            if error.errno == errno.EIO:
                raise

    def _name(self) -> str:
        return self._dice.choice(self._names)

    @contextmanager
    def _opened(self, name: str, flags: int = os.O_RDWR) -> Iterator[int]:
        fd = os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            yield fd
        finally:
            os.close(fd)

    # any operation on any name

    def make(self) -> None:
        """Write a whole journal, or a part of one, NOCOW or not."""
        with self._opened(self._name(), os.O_RDWR | os.O_CREAT) as fd:
            if self._dice.random() < 0.5 and os.fstat(fd).st_size == 0:
                inode.set_flags(fd, inode.get_flags(fd) | inode.FS_NOCOW_FL)
            os.pwrite(fd, CONTENT[: self._dice.choice([0, 7, 100, 4096, len(CONTENT)])], 0)

    def write(self) -> None:
        """Write some bytes at some place, also over the header."""
        with self._opened(self._name()) as fd:
            place = self._dice.choice([0, 16, 88, 4096, os.fstat(fd).st_size])
            os.pwrite(fd, self._dice.randbytes(self._dice.choice([1, 200, 5000])), place)

    def resize(self) -> None:
        """Cut a file short, or append a hole, up to the largest size that there can be."""
        with self._opened(self._name()) as fd:
            os.ftruncate(fd, self._dice.choice([0, 207, 4095, 4096, 1 << 19, 1 << 21, 1 << 30, 1 << 40, MOST_BYTES]))

    def allocate(self) -> None:
        """Allocate space that is not written, within the size or behind it; or punch a hole."""
        with self._opened(self._name()) as fd:
            offset, length = self._dice.randrange(1 << 20), self._dice.randrange(1, 1 << 22)
            if self._dice.random() < 0.5:
                punch_hole(fd, offset, length)
            else:
                fallocate(fd, self._dice.choice([0, FALLOC_FL_KEEP_SIZE]), offset, length)

    def move(self) -> None:
        """Move one name over another, or exchange two names."""
        if self._dice.random() < 0.5:
            os.rename(self._name(), self._name())
        else:
            with self._opened(".", os.O_RDONLY | os.O_DIRECTORY) as fd:
                kernel.exchange(fd, self._name(), self._name())

    def link(self) -> None:
        """Make a second name or a symbolic link, also for files elsewhere (the kernel may refuse the former)."""
        if self._dice.random() < 0.5:
            os.link(self._dice.choice([self._name(), *self._victims]), self._name(), follow_symlinks=False)
        else:
            target = self._dice.choice([*self._victims, self._name(), "..", "/dev/zero", "/etc/shadow"])
            os.symlink(target, self._name())

    def make_special(self) -> None:
        """Make a FIFO, a directory or a socket."""
        name, kind = self._name(), self._dice.randrange(3)
        if kind == 0:
            os.mkfifo(name)
        elif kind == 1:
            os.mkdir(name)
        elif len(name) < 100:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(name)

    def remove(self) -> None:
        """Remove anything that has the name."""
        name = self._name()
        (os.rmdir if stat.S_ISDIR(os.lstat(name).st_mode) else os.unlink)(name)

    def change_attributes(self) -> None:
        """Change the mode, the times, an extended attribute or the flags."""
        name = self._name()
        match self._dice.randrange(4):
            case 0:
                os.chmod(name, self._dice.choice([0, 0o400, 0o644, 0o4777]))
            case 1:
                os.utime(name, ns=(self._dice.choice(TIMES_NS), self._dice.choice(TIMES_NS)), follow_symlinks=False)
            case 2:
                values = [b"1 2 3", b"9" * 19 + b" 1 1", b"-5 0 0", b"zstd", b"none", self._dice.randbytes(9)]
                xattrs = ["btrfs.compression", "user.crtime_usec", "system.posix_acl_access"]
                os.setxattr(name, self._dice.choice(xattrs), self._dice.choice(values), follow_symlinks=False)
            case _:
                flags = [inode.FS_NOCOW_FL, inode.FS_NOCOMP_FL, inode.FS_COMPR_FL, inode.FS_NODUMP_FL]
                with self._opened(name, os.O_RDONLY) as fd:
                    inode.set_flags(fd, inode.get_flags(fd) ^ self._dice.choice(flags))

    def hold(self) -> None:
        """Keep a file open for reading or writing, or close one of these."""
        if len(self._open) > self._dice.randrange(20):
            os.close(self._open.pop(self._dice.randrange(len(self._open))))
        else:
            self._open.append(os.open(self._name(), self._dice.choice([os.O_RDONLY, os.O_RDWR]) | os.O_NONBLOCK))

    def lock(self) -> None:
        """Take a lock or a lease on a file that is kept open."""
        if self._open:
            fd = self._dice.choice(self._open)
            if self._dice.random() < 0.5:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, self._dice.choice([fcntl.F_RDLCK, fcntl.F_UNLCK]))

    def store(self) -> None:
        """Store a byte in a mapping, as journald does."""
        with self._opened(self._name()) as fd:
            if 0 < os.fstat(fd).st_size <= 1 << 30:
                with mmap.mmap(fd, min(1 << 20, os.fstat(fd).st_size)) as memory:
                    memory[self._dice.randrange(len(memory))] = self._dice.randrange(256)

    # files whose content must not be lost

    def begin(self) -> None:
        """Give a tracked name to a new file, which is NOCOW so that the service copies it."""
        name = archive_name(900 + self._dice.randrange(TRACKED), "remote-mine")
        with self._opened("fresh", os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            inode.set_flags(fd, inode.get_flags(fd) | inode.FS_NOCOW_FL)
            os.pwrite(fd, CONTENT, 0)
        os.rename("fresh", name)
        self._holds[name] = CONTENT, 0

    def _choose(self) -> str:
        if not self._holds:
            self.begin()
        return self._dice.choice(sorted(self._holds))

    def _append(self, pieces: int, meanwhile: Callable[[], None]) -> None:
        name = self._choose()
        with self._opened(name, os.O_WRONLY | os.O_APPEND) as fd:
            for _ in range(pieces):
                self._pieces += 1
                piece = PIECE % self._pieces
                os.write(fd, piece)
                content, tag = self._holds[name]
                self._holds[name] = content + piece, tag
                meanwhile()

    def append(self) -> None:
        """Append one piece."""
        self._append(1, lambda: None)

    def append_slowly(self) -> None:
        """Append pieces with other operations between them, while the file stays open."""
        self._append(5, self._do_anything)

    def tag(self) -> None:
        """Set an extended attribute."""
        name = self._choose()
        content, number = self._holds[name]
        os.setxattr(name, TAG, b"%d" % (number + 1))
        self._holds[name] = content, number + 1

    def check_one(self) -> None:
        """Compare one of the files with what it must contain."""
        self.check(self._choose())

    def check(self, name: str) -> None:
        """Note what is missing in a file. From then on its present content is right."""
        content, number = self._holds[name]
        found = Path(name).read_bytes()
        tag = int(os.getxattr(name, TAG)) if TAG in os.listxattr(name) else 0
        if found != content:
            self.lost.append(f"{name}: {len(found)} bytes instead of {len(content)}, or others")
        if tag != number:
            self.lost.append(f"{name}: the tag is {tag} and not {number}")
        self._holds[name] = found, tag

    def work(self, operations: int) -> list[str]:
        """Do so many operations. Return `lost` after a check of all files."""
        for _ in range(operations):
            self.step()
        for name in sorted(self._holds):
            self.check(name)
        return self.lost


class Scene:
    """A journal directory whose remote/ belongs to OWNER, and files elsewhere that only root may change."""

    def __init__(self, base: Path) -> None:
        self.top = base / "journal"
        self.own, self.remote, elsewhere = self.top / MACHINE, self.top / "remote", base / "elsewhere"
        for directory in (self.own, self.remote, elsewhere):
            directory.mkdir(parents=True)
        self.victims = [put(elsewhere, CONTENT, archive_name(2)), put(elsewhere, CONTENT, archive_name(3), nocow=True)]
        self.victims[1].chmod(0o600)
        os.link(self.victims[1], self.remote / archive_name(3, "remote-victim"))
        os.chown(self.remote, OWNER, OWNER)

    def see_victims(self) -> list[tuple[Bearing, int, list[fiemap.Extent]]]:
        """Return all of the victims that a change would show in."""
        found = []
        for path in self.victims:
            with path.open("rb") as file:
                extents = list(fiemap.iterate_extents(file.fileno(), sync=True))
                found.append((whole(path), path.stat().st_ctime_ns, extents))
        return found

    def become_owner(self) -> None:
        """Give this process the rights of OWNER, in remote/."""
        os.chdir(self.remote)
        os.setgroups([])
        os.setgid(OWNER)
        os.setuid(OWNER)
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # a lease of the owner's that is broken is not given back


class Service:
    """The service's runs over the directory, one after the other."""

    def __init__(self, place: Scene, state: Path) -> None:
        self._place = place
        self._engine = Engine(CONFIG, directories=(f"{place.top}",), state_directory=f"{state}", follows=True)
        self.made: list[Path] = []
        self.unclean: list[str] = []
        self.counts: Counter[str] = Counter()
        self.longest_s = 0.0

    def run(self) -> None:
        """Do one run. Before every twentieth journald archives a file, which must be rewritten despite the owner."""
        fresh = None
        if self.counts["runs"] % 20 == 0:
            fresh = put(self._place.own, CONTENT, archive_name(10 + len(self.made)))
            self.made.append(fresh)
        began_s = time.monotonic()
        report = go(self._engine, Request(), origin=DAEMON)
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        self.counts["runs"] += 1
        self.counts.update(f"{one.action} {one.result} {one.reason}" for one in report.outcomes)
        rows: list[Any] = [*report.outcomes, *report.plan.skipped]
        self.unclean += [f"{one.path!r}: {one.detail}" for one in rows if one.reason is Reason.INTERNAL_ERROR]
        if fresh and f"{fresh}" not in {one.path for one in report.outcomes if one.result is Result.DONE}:
            self.unclean.append(f"{fresh.name}, of journald, was not rewritten")


def attack(asked: Namespace, tally: Tally) -> None:
    """Let the owner do so many operations."""
    before = os.umask(0o022)  # root's files are readable for all
    with ExitStack() as stack:
        stack.callback(os.umask, before)
        volume = stack.enter_context(ScratchVolume("8G"))
        volume.base.chmod(0o755)
        place = Scene(volume.mountpoint)
        victims = place.see_victims()
        service, settling = (Service(place, volume.base / "state") for _ in range(2))
        owner = Owner(random.Random(asked.seed), [f"{path}" for path in place.victims])  # noqa: S311 - repeatable
        with repeat(service.run, lambda: 0.0, lambda error: service.unclean.append(f"a run ended: {error!r}")):
            lost = in_child(lambda: owner.work(asked.operations), place.become_owner)
        for _ in range(3):
            settling.run()
        lost += [f"{path.name}: not whole" for path in service.made if path.read_bytes() != CONTENT]
        unclean = service.unclean + settling.unclean
        unclean += [
            f"{path.name} is left" for path in place.remote.iterdir() if is_leftover(path.name) and path.is_file()
        ]
        unclean += ["a file outside of remote/ was changed"] if place.see_victims() != victims else []
    table.say(f"{dict(service.counts)}")
    tally.add("remote", lost=lost, unclean=unclean, outage_s=service.longest_s, points=asked.operations)


OPTIONS: Final = {"operations": Option(20_000, "of the owner's")}

if __name__ == "__main__":
    sys.exit(table.command(__doc__, attack, OPTIONS))
