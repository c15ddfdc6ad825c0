# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a user does who may write in `remote/`: any operation on any name; tests.trust.remote lets it loose.

Some files it only appends to and tags, and remembers what they hold: `lost` has a sentence on each thing missing.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from journalkeeper.btrfs import inode, kernel, mtime_note
from journalkeeper.btrfs.kernel import fallocate
from journalkeeper.btrfs.writeback import FALLOC_FL_KEEP_SIZE, punch_hole
from tests.journal_files import archive_name

NAMES: Final = 60
TRACKED: Final = 8
MOST_BYTES: Final = (1 << 63) - 4096
PIECE: Final = b"an entry of the owner's, which must not be lost %012d\n"
TAG: Final = "user.tag"
COMPRESSION: Final = "btrfs.compression"
TIMES_NS: Final = (0, 1, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 40), 1_700_000_000_000_000_000)
REFUSED: Final = frozenset(
    {
        *(errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EACCES, errno.EPERM),
        *(errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.EFBIG, errno.ENOSPC, errno.EAGAIN, errno.ETXTBSY),
        *(errno.EMLINK, errno.ENODATA, errno.EOPNOTSUPP, errno.ENODEV, errno.ENAMETOOLONG, errno.ESPIPE),
        *(errno.EBADF, errno.EXDEV, errno.ENOTTY, errno.EADDRINUSE),
    }
)
"""What the kernel may answer to somebody who asks for anything; not EIO."""


def hostile_names() -> list[str]:
    """Names of each sort: archives and active files, of ours, odd ones, and one of 255 bytes."""
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
    """Works in the current directory, with `content` as a whole journal; `victims` are paths that it links to."""

    def __init__(self, dice: random.Random, content: bytes, victims: list[str]) -> None:
        self._dice = dice
        self._content = content
        self._victims = victims
        self._names = hostile_names()
        self._tracked = [archive_name(900 + number, "remote-mine") for number in range(TRACKED)]
        self._holds: dict[str, tuple[bytes, int]] = {}
        self._open: list[int] = []
        self._pieces = 0
        self.lost: list[str] = []
        self._anything: tuple[Callable[[], None], ...] = (
            *(self.make, self.make, self.write, self.truncate, self.extend, self.punch, self.allocate, self.move),
            *(self.trade, self.link, self.symlink, self.special, self.remove, self.mode, self.times, self.xattr),
            *(self.flags, self.hold, self.let_go, self.lock, self.through_memory),
        )
        self._careful: tuple[Callable[[], None], ...] = (
            *(self.append, self.append, self.append_slowly, self.tag, self.anew, self.check_one),
        )

    def step(self) -> None:
        """One operation; what the kernel refuses is done."""
        self._try(self._dice.choice(self._anything if self._dice.random() < 0.5 else self._careful))

    def _try(self, operation: Callable[[], None]) -> None:
        try:
            operation()
        except OSError as error:
            if error.errno not in REFUSED:
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

    # anything

    def make(self) -> None:
        """A whole journal, or a part of one, NOCOW or not."""
        with self._opened(self._name(), os.O_RDWR | os.O_CREAT) as fd:
            if self._dice.random() < 0.5 and os.fstat(fd).st_size == 0:
                inode.set_flags(fd, inode.get_flags(fd) | inode.FS_NOCOW_FL)
            os.pwrite(fd, self._content[: self._dice.choice([0, 7, 100, 4096, len(self._content)])], 0)

    def write(self) -> None:
        """Some bytes at some place, also over the header."""
        with self._opened(self._name()) as fd:
            place = self._dice.choice([0, 16, 88, 4096, os.fstat(fd).st_size])
            os.pwrite(fd, self._dice.randbytes(self._dice.choice([1, 200, 5000])), place)

    def truncate(self) -> None:
        """Shorter."""
        with self._opened(self._name()) as fd:
            os.ftruncate(fd, self._dice.choice([0, 207, 4095, 4096, 1 << 19]))

    def extend(self) -> None:
        """A hole at the end, up to the longest one that there can be."""
        with self._opened(self._name()) as fd:
            os.ftruncate(fd, self._dice.choice([1 << 21, 1 << 30, 1 << 36, 1 << 40, MOST_BYTES]))

    def punch(self) -> None:
        """A hole."""
        with self._opened(self._name()) as fd:
            punch_hole(fd, self._dice.randrange(1 << 20), self._dice.randrange(1, 1 << 20))

    def allocate(self) -> None:
        """Space that is not written, within the size or behind it."""
        with self._opened(self._name()) as fd:
            mode = self._dice.choice([0, FALLOC_FL_KEEP_SIZE])
            fallocate(fd, mode, self._dice.randrange(1 << 20), self._dice.randrange(1, 1 << 22))

    def move(self) -> None:
        """One name over another."""
        os.rename(self._name(), self._name())

    def trade(self) -> None:
        """Two names trade places."""
        with self._opened(".", os.O_RDONLY | os.O_DIRECTORY) as fd:
            kernel.exchange(fd, self._name(), self._name())

    def link(self) -> None:
        """A second name, also of a file elsewhere, which the kernel may refuse (fs.protected_hardlinks)."""
        os.link(self._dice.choice([self._name(), *self._victims]), self._name(), follow_symlinks=False)

    def symlink(self) -> None:
        """A link to anything."""
        os.symlink(self._dice.choice([*self._victims, self._name(), "..", "/dev/zero", "/etc/shadow"]), self._name())

    def special(self) -> None:
        """A FIFO, a socket or a directory of the name."""
        name = self._name()
        match self._dice.randrange(3):
            case 0:
                os.mkfifo(name)
            case 1:
                os.mkdir(name)
            case _ if len(name) < 100:
                with socket.socket(socket.AF_UNIX) as one:
                    one.bind(name)
            case _:
                os.mknod(name, stat.S_IFREG | 0o600)

    def remove(self) -> None:
        """Whatever has the name."""
        name = self._name()
        if stat.S_ISDIR(os.lstat(name).st_mode):
            os.rmdir(name)
        else:
            os.unlink(name)

    def mode(self) -> None:
        """Other rights."""
        os.chmod(self._name(), self._dice.choice([0, 0o400, 0o644, 0o4777]))

    def times(self) -> None:
        """Times that no clock shows."""
        os.utime(self._name(), ns=(self._dice.choice(TIMES_NS), self._dice.choice(TIMES_NS)), follow_symlinks=False)

    def xattr(self) -> None:
        """A note as ours, a property of btrfs's, an ACL that is none."""
        values = [b"1 2 3", b"9" * 19 + b" 1 1", b"-5 0 0", b"zstd", b"none", self._dice.randbytes(9)]
        names = [mtime_note.NAME, COMPRESSION, "user.crtime_usec", "system.posix_acl_access"]
        os.setxattr(self._name(), self._dice.choice(names), self._dice.choice(values), follow_symlinks=False)

    def flags(self) -> None:
        """Attributes, as far as an owner may."""
        with self._opened(self._name(), os.O_RDONLY) as fd:
            one = self._dice.choice([inode.FS_NOCOW_FL, inode.FS_NOCOMP_FL, inode.FS_COMPR_FL, inode.FS_NODUMP_FL])
            inode.set_flags(fd, inode.get_flags(fd) ^ one)

    def hold(self) -> None:
        """Keep a file open, for reading or writing."""
        if len(self._open) < 20:
            self._open.append(os.open(self._name(), self._dice.choice([os.O_RDONLY, os.O_RDWR]) | os.O_NONBLOCK))

    def let_go(self) -> None:
        """Close one of those."""
        if self._open:
            os.close(self._open.pop(self._dice.randrange(len(self._open))))

    def lock(self) -> None:
        """A lock or a lease on one of those."""
        if self._open:
            fd = self._dice.choice(self._open)
            if self._dice.random() < 0.5:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, self._dice.choice([fcntl.F_RDLCK, fcntl.F_UNLCK]))

    def through_memory(self) -> None:
        """A store into a mapping, as journald's are."""
        with self._opened(self._name()) as fd:
            if 0 < os.fstat(fd).st_size <= 1 << 30:
                with mmap.mmap(fd, min(1 << 20, os.fstat(fd).st_size)) as memory:
                    memory[self._dice.randrange(len(memory))] = self._dice.randrange(256)

    # what must not be lost

    def anew(self) -> None:
        """A file of which the content is remembered, NOCOW so that it is copied, takes one of their names."""
        name = self._dice.choice(self._tracked)
        with self._opened("fresh", os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            inode.set_flags(fd, inode.get_flags(fd) | inode.FS_NOCOW_FL)
            os.pwrite(fd, self._content, 0)
        os.rename("fresh", name)
        self._holds[name] = self._content, 0

    def _mine(self) -> str:
        if not self._holds:
            self.anew()
        return self._dice.choice(sorted(self._holds))

    def _piece(self, fd: int, name: str) -> None:
        self._pieces += 1
        piece = PIECE % self._pieces
        content, tag = self._holds[name]
        os.write(fd, piece)
        self._holds[name] = content + piece, tag

    def append(self) -> None:
        """One piece more."""
        name = self._mine()
        with self._opened(name, os.O_WRONLY | os.O_APPEND) as fd:
            self._piece(fd, name)

    def append_slowly(self) -> None:
        """Pieces with other work between them, the file being open all the time."""
        name = self._mine()
        with self._opened(name, os.O_WRONLY | os.O_APPEND) as fd:
            for _ in range(5):
                self._piece(fd, name)
                self._try(self._dice.choice(self._anything))

    def tag(self) -> None:
        """An attribute of the owner's own."""
        name = self._mine()
        content, number = self._holds[name]
        os.setxattr(name, TAG, b"%d" % (number + 1))
        self._holds[name] = content, number + 1

    def check_one(self) -> None:
        """Whether one of them holds what it must."""
        self.check(self._mine())

    def check_all(self) -> None:
        """The same of each."""
        for name in sorted(self._holds):
            self.check(name)

    def check(self, name: str) -> None:
        """Whether a file holds what it must; from then on what it holds is right."""
        content, number = self._holds[name]
        found = Path(name).read_bytes()
        tag = int(os.getxattr(name, TAG)) if TAG in os.listxattr(name) else 0
        if found != content:
            self.lost.append(f"{name}: {len(found)} bytes instead of {len(content)}, or others")
        if tag != number:
            self.lost.append(f"{name}: the tag is {tag} and not {number}")
        self._holds[name] = found, tag
