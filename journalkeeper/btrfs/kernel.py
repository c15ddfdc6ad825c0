# SPDX-License-Identifier: LGPL-2.1-or-later
"""System calls for which Python has no function, called through libc.

Every call releases the interpreter's lock, so a call that waits for a slow disk does not stop the event loop.
fcntl.ioctl keeps the lock for buffers over 1,024 bytes; a ctypes call takes as long and does not keep it.
"""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)

_ioctl = _libc.ioctl
_ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)

# On 32-bit machines plain fallocate has 32-bit offsets.
_fallocate = _libc.fallocate64
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

_sync_file_range = _libc.sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

_syscall = _libc.syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
CACHESTAT = 451
"""The number of cachestat(2), which has no function in libc. It is the same on every architecture except Alpha and
MIPS.
"""

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
"""The flags of renameat2(2) (linux/fs.h)."""

_renameat2 = _libc.renameat2
_renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


def _raise() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def ioctl(fd: int, request: int, buffer: bytearray) -> None:
    """Call ioctl(2) on `fd` with a buffer that the kernel reads and writes in place.

    Raises: OSError with the kernel's errno; ENOTTY if the filesystem does not know the request.
    """
    if _ioctl(fd, request, (ctypes.c_char * len(buffer)).from_buffer(buffer)) < 0:
        _raise()


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """Call fallocate(2).

    Raises: OSError with the kernel's errno.
    """
    if _fallocate(fd, mode, offset, length) < 0:
        _raise()


def sync_file_range(fd: int, offset: int, length: int, flags: int) -> None:
    """Call sync_file_range(2).

    Raises: OSError with the kernel's errno.
    """
    if _sync_file_range(fd, offset, length, flags) < 0:
        _raise()


def cachestat(fd: int, offset: int, length: int) -> tuple[int, int]:
    """Return (the number of cached pages, the number of dirty pages and pages in write-back) of a range.

    Raises: OSError: ENOSYS the kernel is older than 6.5; EPERM the caller may not write to the file.
    Source: linux/mman.h, struct cachestat_range and struct cachestat.
    """
    asked, answer = (ctypes.c_uint64 * 2)(offset, length), (ctypes.c_uint64 * 5)()
    if _syscall(CACHESTAT, fd, asked, answer, 0) < 0:
        _raise()
    return answer[0], answer[1] + answer[2]


def renameat2(dir_fd: int, old: str, new: str, flags: int) -> None:
    """Call renameat2(2) with two names in one directory.

    Raises: OSError with the kernel's errno.
    """
    if _renameat2(dir_fd, os.fsencode(old), dir_fd, os.fsencode(new), flags) < 0:
        _raise()


def exchange(dir_fd: int, name_a: str, name_b: str) -> None:
    """Exchange two names in one directory; both must exist. Every file has a name at every moment.

    The exchange is durable after an fsync of the directory.

    Raises: OSError: ENOENT one is missing; EACCES, EPERM no right to write in the directory; EROFS; ENOSPC no room for
    the metadata; EINVAL the filesystem does not support it.
    """
    renameat2(dir_fd, name_a, name_b, RENAME_EXCHANGE)


def rename_without_replacing(dir_fd: int, old: str, new: str) -> None:
    """Rename `old` to `new` in the same directory, unless a file named `new` exists.

    Raises: OSError: EEXIST a file has that name; EINVAL the filesystem does not support it; as `exchange`.
    """
    renameat2(dir_fd, old, new, RENAME_NOREPLACE)
