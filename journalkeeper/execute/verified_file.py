# SPDX-License-Identifier: LGPL-2.1-or-later
"""A journal file, opened and verified to be the file that the plan saw.

No path is resolved twice. The directory is opened once, then the file from it, both without following links. All later
work uses these two descriptors. There is one second look (`look_again`): before the work, before a copy is made of a
file that was worked on in place, and around the exchange with the copy.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, NamedTuple

from journalkeeper.btrfs import fiemap, inode
from journalkeeper.journald import journal_file, opening
from journalkeeper.journald.opening import is_being_written
from journalkeeper.model import JournalFile, Kind, Reason, Result, State

BLOCK_DEVICES: Final = "/sys/block"


class Refused(Exception):  # noqa: N818 - it is an answer, not an error
    """The action must not start or continue: the file changed, a program uses it, or the time is over.

    The outcome is "skipped", with `reason` and `detail`.
    """

    result = Result.SKIPPED

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)


class Failed(Refused):
    """The action was carried out, and its result is wrong. The outcome is "failed", with `reason` and `detail`."""

    result = Result.FAILED


class VerifiedFile(NamedTuple):
    """A file that was opened, and verified to be the file in the plan.

    Its fields are its directory (`dir_fd`), its `name`, the file (`fd`, read-only), its stat at the last look, and its
    row in the plan (`file`). After an exchange `fd` is the copy that has taken the name.
    """

    dir_fd: int
    name: str
    fd: int
    status: os.stat_result
    file: JournalFile


@contextmanager
def hold(file: JournalFile, *, replacing: bool = False, moving: bool = True) -> Iterator[VerifiedFile]:
    """Open `file` read-only, check it as `look_again` does, and keep it open during the block.

    Raises: as `look_again`; OSError: ENOENT vanished; ELOOP, ENOTDIR a link is on the way; ENXIO a socket.
    """
    directory, _, name = file.path.rpartition("/")
    with opening.open_directory(directory or "/") as dir_fd, opening.hold_open(name, dir_fd) as fd:
        held = VerifiedFile(dir_fd, name, fd, os.fstat(fd), file)
        yield look_again(held, replacing=replacing, moving=moving)


def look_again(held: VerifiedFile, *, replacing: bool, moving: bool = False) -> VerifiedFile:
    """Check that the open file is still as in `held.file`. Return `held` with its present stat. No name is looked up.

    `replacing`: another inode will take the file's place. `moving`: its data will move on the disk. An active file may
    be written. Others need the same size and mtime, an archive also its state. It may be kept open, if not `replacing`.

    Raises: OSError if the file cannot be read; Refused with CHANGED, VANISHED, HARD_LINKED, READ_ONLY (chattr +i or +a,
    if `replacing` also of its directory), SHARED (now, not at the look; only if `moving`) or IN_USE.
    """
    fd, file, status = held.fd, held.file, os.fstat(held.fd)
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != (file.device, file.inode):
        raise Refused(Reason.CHANGED, "the name now belongs to another file")
    if status.st_nlink != 1:
        reason = Reason.VANISHED if status.st_nlink == 0 else Reason.HARD_LINKED
        raise Refused(reason, f"the file has {status.st_nlink} names")
    if (inode.get_flags(fd) | (inode.get_flags(held.dir_fd) if replacing else 0)) & inode.FIXED:
        raise Refused(Reason.READ_ONLY, "the file or its directory is immutable or append-only (chattr +i, +a)")
    if moving and not file.extents.shared_bytes and fiemap.is_shared_at(fd, 0):
        # Neither a snapshot nor its deletion shows in a file's stat.
        raise Refused(Reason.SHARED, "a snapshot or reflink has shared the file since the look")
    if file.kind is not Kind.ACTIVE:
        if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
            raise Refused(Reason.CHANGED, "a program has written to the file since the look")
        if file.kind is Kind.ARCHIVED and journal_file.read_state(fd) is not State.ARCHIVED:
            raise Refused(Reason.IN_USE, "the file's state is no longer archived")
        if is_being_written(fd) and (replacing or not is_only_kept_open(file)):
            raise Refused(Reason.IN_USE, "a program has the file open for writing")
    return held._replace(status=status)


def is_only_kept_open(file: JournalFile) -> bool:
    """Return whether `file`, open for writing, is an archive without a loop device, so that work in place is safe.

    The caller has checked its state: journald keeps an archive open and mapped until its next rotation, but never
    appends to a file in state ARCHIVED (systemd 252 to 262: process_deferred_closes(), journal_file_set_online()). A
    loop device may write to its file, which is known by its base name in any directory. A deleted file does
    not count.

    Raises: as `list_loop_files`.
    """
    if file.kind is not Kind.ARCHIVED:
        return False
    name = os.path.basename(file.path)
    return not any(os.path.basename(path) == name for path in list_loop_files())


def list_loop_files() -> Iterator[str]:
    """Yield the kernel's path of the file behind each loop device; it ends in " (deleted)" after the name was removed.

    In another mount namespace or chroot, the path can lead elsewhere.

    Raises: OSError if sysfs cannot be read: ENOENT it is not mounted.

    Source: drivers/block/loop.c, loop_attr_backing_file_show().
    """
    for device in os.listdir(BLOCK_DEVICES):
        if device.startswith("loop"):
            path = f"{BLOCK_DEVICES}/{device}/loop/backing_file"
            try:
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    yield file.read().rstrip("\n")
            except OSError as error:
                if error.errno not in {errno.ENOENT, errno.ENODEV}:
                    raise


def open_for_writing(held: VerifiedFile) -> AbstractContextManager[int]:
    """Open the same inode for writing, at once. The context's value is the descriptor, which it closes at the end.

    The file is opened through /proc, so that no name is resolved again. O_NONBLOCK is necessary: with another program's
    lease on the file, the call would wait for /proc/sys/fs/lease-break-time.

    Raises: Refused if another program has a lease on the file; OSError: EROFS, EPERM immutable, ETXTBSY.
    """
    try:
        return opening.hold(os.open(f"/proc/self/fd/{held.fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except BlockingIOError as error:
        raise Refused(Reason.IN_USE, "a program has a lease on the file") from error
