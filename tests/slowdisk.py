# SPDX-License-Identifier: LGPL-2.1-or-later
"""A disk image that does one read or write after the other, each in the same time.

    python -m tests.slowdisk IMAGE  # mounts itself over IMAGE; takes orders on stdin, see SlowDisk.order

The kernel's limit of IOPS (io.max, blkio.throttle) lets the I/Os of a tenth of a second pass at once, and then none
until that time is over (49 at once at 500 IOPS, then 100 ms of nothing). So one I/O too many costs 100 ms. Here it
costs its own 2 ms.

It is a FUSE of one file, mounted on the image, which loop devices use instead of the image. An answered write is in the
image's page cache, and nothing is kept here: the end of this process is a disk pulled out.
Source: include/uapi/linux/fuse.h, 7.12 to 7.23 of the protocol.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import IO, Final

from journalkeeper.probe.scratch_volume import PREFIX, ScratchVolume
from tests.volumes import make_images

IN_HEADER: Final = struct.Struct("=IIQQIIIHH")
OUT_HEADER: Final = struct.Struct("=IiQ")
INIT_OUT: Final = struct.Struct("=IIIIHHIIHHI28x")
ATTR_OUT: Final = struct.Struct("=QIIQQQQQQIIIIIIIIII")
OPEN_OUT: Final = struct.Struct("=QII")
READ_IN: Final = struct.Struct("=QQIIQII")
WRITE_OUT: Final = struct.Struct("=II")

ASYNC_READ, BIG_WRITES, ASYNC_DIO, MAX_PAGES = 1 << 0, 1 << 5, 1 << 15, 1 << 22
DIRECT_IO = 1
MAJOR, MINOR = 7, 31
MOST_BYTES: Final = 1 << 20
PAGE: Final = 4096

SOON_S: Final = 0.001
MOUNTED = "mounted"


class Op(IntEnum):
    """The operations of a file system of one file; all others are answered with ENOSYS."""

    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


UNANSWERED = {Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT}
HOLD, GO = "hold", "go"
ERRORS = {"read-errors": Op.READ, "write-errors": Op.WRITE}


class SlowDisk:
    """The FUSE at the file descriptor `fuse`, which answers from the file descriptor `image`."""

    def __init__(self, fuse: int, image: int) -> None:
        self._fuse = fuse
        self._image = image
        self._pause_s = 0.0
        self._free_s = 0.0
        self._failing: set[int] = set()
        self.held = False

    def order(self, line: str) -> str:
        """Execute an order, and return its text.

        A number sets the IOPS, 0 for no limit. "hold" stops all answers. "read-errors" and "write-errors" make these
        operations fail with EIO. "go" ends "hold" and the errors.

        Raises: ValueError for another text.
        """
        match line.split():
            case ["hold"]:
                self.held = True
            case ["go"]:
                self.held = False
                self._failing.clear()
            case [word] if word in ERRORS:
                self._failing.add(ERRORS[word])
            case _:
                iops = int(line)
                self._pause_s = 1 / iops if iops else 0.0
        return line.strip()

    def answer(self) -> bool:
        """Answer one request, with the image's error if it fails. Return False after the unmount.

        Raises: OSError of the FUSE.
        """
        try:
            request = os.read(self._fuse, MOST_BYTES + PAGE)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return False
            if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):  # ENOENT: it was interrupted
                return True
            raise
        _, operation, unique, *_ = IN_HEADER.unpack_from(request)
        if operation in UNANSWERED:
            return True
        try:
            code, answer = 0, self._do(operation, memoryview(request)[IN_HEADER.size :])
        except OSError as error:
            code, answer = -(error.errno or errno.EIO), b""
        try:
            os.writev(self._fuse, [OUT_HEADER.pack(OUT_HEADER.size + len(answer), code, unique), answer])
        except OSError as error:
            if error.errno != errno.ENOENT:  # the caller was interrupted, and waits no more
                raise
        return bool(operation != Op.DESTROY)

    def _do(self, operation: int, words: memoryview) -> bytes:
        if operation in self._failing:
            raise OSError(errno.EIO, "")
        match operation:
            case Op.INIT:
                flags = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES
                return INIT_OUT.pack(MAJOR, MINOR, MOST_BYTES, flags, 64, 48, MOST_BYTES, 1, MOST_BYTES // PAGE, 0, 0)
            case Op.GETATTR | Op.SETATTR:
                return self._attributes()
            case Op.OPEN:
                return OPEN_OUT.pack(0, DIRECT_IO, 0)
            case Op.READ:
                self._take_time()
                _, offset, size, *_ = READ_IN.unpack_from(words)
                return os.pread(self._image, size, offset)
            case Op.WRITE:
                self._take_time()
                _, offset, size, *_ = READ_IN.unpack_from(words)
                return WRITE_OUT.pack(os.pwrite(self._image, words[READ_IN.size : READ_IN.size + size], offset), 0)
            case Op.RELEASE | Op.FSYNC | Op.FLUSH | Op.DESTROY:
                return b""
        raise OSError(errno.ENOSYS, "")

    def _attributes(self) -> bytes:
        status = os.fstat(self._image)
        times = (int(status.st_atime), int(status.st_mtime), int(status.st_ctime))
        where = (status.st_mode, 1, status.st_uid, status.st_gid, 0, PAGE, 0)
        return ATTR_OUT.pack(1, 0, 0, 1, status.st_size, status.st_blocks, *times, 0, 0, 0, *where)

    def _take_time(self) -> None:
        """Wait until the disk has done this I/O, which began at its arrival or at the end of the one before.

        An I/O that arrives soon after the end of another had waited for it: the 0.3 ms that the kernel and this process
        took in between are no time of the disk.
        """
        now_s = time.monotonic()
        if now_s - self._free_s >= min(self._pause_s / 2, SOON_S):
            self._free_s = now_s
        self._free_s += self._pause_s
        while (left_s := self._free_s - time.monotonic()) > 0:
            time.sleep(left_s)


def mount(path: Path) -> int:
    """Mount a FUSE on the file `path`, and return its descriptor.

    Raises: OSError: ENOENT no /dev/fuse; CalledProcessError if mount(8) fails.
    """
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fuse},rootmode={stat.S_IFREG:o},user_id=0,group_id=0,max_read={MOST_BYTES}"
    # --internal-only: without the helper of libfuse
    words = ["mount", "--internal-only", "-t", "fuse.slowdisk", "-o", options, "slowdisk", os.fspath(path)]
    subprocess.run(words, pass_fds=[fuse], check=True)
    return fuse


def serve(image: Path, make: Callable[[int, int], SlowDisk] = SlowDisk) -> None:
    """Answer for the disk in `image`, which `make` makes, until it is unmounted, and execute the orders on stdin.

    When stdin ends, the parent has ended: the disk is unmounted as soon as nothing uses it.
    """
    held = os.open(image, os.O_RDWR | os.O_CLOEXEC)  # before it is covered
    fuse = mount(image)
    disk = make(fuse, held)
    print(MOUNTED, flush=True)  # noqa: T201 - the parent waits for it
    orders = sys.stdin.buffer
    listening = [fuse, orders]
    while True:
        ready, _, _ = select.select([one for one in listening if one != fuse or not disk.held], [], [])
        if orders in ready:
            line = orders.readline()
            if line:
                print(disk.order(line.decode()), flush=True)  # noqa: T201
            else:
                listening.remove(orders)
                disk.held = False
                subprocess.Popen(["umount", "--lazy", image])  # which asks this disk, and so is not waited for
        if fuse in ready and not disk.answer():
            return


class Control:
    """Sends orders to a disk process."""

    def __init__(self, orders: IO[str], answers: IO[str]) -> None:
        self._orders = orders
        self._answers = answers

    def order(self, order: str) -> str:
        """Send an order, and return its answer when it is executed.

        Raises: RuntimeError if the disk process has ended.
        """
        self._orders.write(f"{order}\n")
        self._orders.flush()
        if answer := self._answers.readline():
            return answer.strip()
        raise RuntimeError("the slow disk has gone")

    def set_iops(self, iops: int) -> None:
        """Limit the disk to so many I/Os a second; 0 removes the limit."""
        self.order(str(iops))


@contextmanager
def served(module: str, image: Path, *words: str) -> Iterator[Control]:
    """Run `python -m module image words` as the disk in `image`, which nothing may use at the end of the block."""
    argv = [sys.executable, "-m", module, os.fspath(image), *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None or process.stdout.readline() != f"{MOUNTED}\n":
            raise RuntimeError(f"{module} did not start")
        try:
            yield Control(process.stdin, process.stdout)
        finally:
            for _ in range(300):  # a loop device releases it a moment after its last user
                if subprocess.run(["umount", image], capture_output=True, check=False).returncode == 0:
                    break
                time.sleep(0.1)
            else:
                process.kill()


@contextmanager
def on_slow_disk(size: str) -> Iterator[tuple[ScratchVolume, Control]]:
    """Yield a sparse volume of this size, and its disk."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as place:
        (image,) = make_images(Path(place), size)
        with served("tests.slowdisk", image) as disk, ScratchVolume(images=[image]) as volume:
            yield volume, disk


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
