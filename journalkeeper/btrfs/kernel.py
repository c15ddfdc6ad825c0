# SPDX-License-Identifier: LGPL-2.1-or-later
"""System calls for which Python has no function, called through libc.

Every call releases the interpreter's lock, so a call that waits for a slow disk does not stop the event loop.
fcntl.ioctl keeps the lock for buffers over 1,024 bytes; a ctypes call takes as long and does not keep it.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, cast

_libc = ctypes.CDLL(None, use_errno=True)

CACHESTAT = 451
"""The number of cachestat(2), which has no function in libc. It is the same on every architecture except Alpha and
MIPS.
"""

RELEASE: Final = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
"""The kernel's version, such as (6, 12)."""

RENAME_EXCHANGE = 2
"""A flag of renameat2(2) (linux/fs.h)."""


def _raise_error(result: int, _function: object, _arguments: object) -> int:
    """Return `result`, or raise OSError with the thread's errno if it is negative. ctypes calls it after each call."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _declare_function(name: str, *types: Any) -> Callable[..., int]:
    """Return the function `name` of libc. A negative result raises OSError."""
    function: Any = _libc[name]
    function.argtypes = types
    function.errcheck = _raise_error
    return cast("Callable[..., int]", function)


_ioctl = _declare_function("ioctl", ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
_syscall = _declare_function("syscall", ctypes.c_long, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)

sync_file_range = _declare_function("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
"""sync_file_range(fd, offset, length, flags): sync_file_range(2)."""

syncfs = _declare_function("syncfs", ctypes.c_int)
"""syncfs(fd): write back and commit the filesystem of `fd`: syncfs(2)."""

renameat2 = _declare_function("renameat2", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
"""renameat2(old_dir_fd, old, new_dir_fd, new, flags): renameat2(2), with names as bytes."""


def ioctl(fd: int, request: int, buffer: bytearray) -> None:
    """Call ioctl(2) on `fd` with a buffer that the kernel changes in place.

    Raises: OSError with the kernel's errno; ENOTTY if the filesystem does not know the request.
    """
    _ioctl(fd, request, (ctypes.c_char * len(buffer)).from_buffer(buffer))


def call_ioctl(fd: int, request: int, layout: Struct, *values: Any) -> tuple[Any, ...]:
    """Call ioctl(2) with a struct of `values`, and return its fields as the kernel left them. Raises: as `ioctl`."""
    buffer = bytearray(layout.pack(*values))
    ioctl(fd, request, buffer)
    return layout.unpack(buffer)


def cachestat(fd: int, offset: int, length: int) -> tuple[int, int]:
    """Return two numbers for a range of a file: the cached pages, and the pages that are dirty or in write-back.

    Raises: OSError: ENOSYS the kernel is older than 6.5; EPERM the caller may not write to the file. Source:
    linux/mman.h, struct cachestat_range and struct cachestat.
    """
    asked, answer = (ctypes.c_uint64 * 2)(offset, length), (ctypes.c_uint64 * 5)()
    _syscall(CACHESTAT, fd, asked, answer, 0)
    return answer[0], answer[1] + answer[2]


def exchange(dir_fd: int, name_a: str, name_b: str) -> None:
    """Exchange two names in one directory; both must exist. The exchange is durable after an fsync of the directory.

    Raises: OSError: ENOENT one is missing; EACCES, EPERM no right to write in the directory; EROFS; ENOSPC no room for
    the metadata; EINVAL the filesystem does not support it.
    """
    renameat2(dir_fd, os.fsencode(name_a), dir_fd, os.fsencode(name_b), RENAME_EXCHANGE)
