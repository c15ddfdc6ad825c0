# SPDX-License-Identifier: LGPL-2.1-or-later
"""A level on kernels that have none: refused as they refuse it, by an ioctl that is not the kernel's."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable

import pytest

from journalkeeper.btrfs import defrag
from journalkeeper.btrfs.defrag import defrag_range
from journalkeeper.model.compression import Compression

ZSTD_9 = Compression("zstd", 9)
COMPRESS, START_IO, LEVEL = 1, 2, 4


class Kernel:
    """Answers BTRFS_IOC_DEFRAG_RANGE with `error(flags)`, and keeps (flags, the four bytes of compress_type)."""

    def __init__(self, error: Callable[[int], int] = lambda _: 0) -> None:
        self.error = error
        self.calls: list[tuple[int, bytes]] = []

    def __call__(self, fd: int, request: int, buffer: bytearray) -> None:
        assert request == defrag.BTRFS_IOC_DEFRAG_RANGE
        assert len(buffer) == 48
        (flags,) = struct.unpack_from("=Q", buffer, 16)
        self.calls.append((flags, bytes(buffer[28:32])))
        if number := self.error(flags):
            raise OSError(number, os.strerror(number))


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kernel]:
    def install(error: Callable[[int], int] = lambda _: 0) -> Kernel:
        kernel = Kernel(error)
        monkeypatch.setattr(defrag, "ioctl", kernel)
        return kernel

    return install


def refuses_levels(number: int) -> Callable[[int], int]:
    return lambda flags: number if flags & LEVEL else 0


def test_type_and_level_are_two_bytes(boot: Callable[..., Kernel]) -> None:
    kernel = boot()
    assert defrag_range(3, 0, 4096, compress=ZSTD_9) == ZSTD_9
    assert kernel.calls == [(COMPRESS | START_IO | LEVEL, bytes([3, 9, 0, 0]))]


@pytest.mark.parametrize(("algorithm", "number"), [("zlib", 1), ("lzo", 2), ("zstd", 3)])
def test_without_a_level_the_type_is_a_number(boot: Callable[..., Kernel], algorithm: str, number: int) -> None:
    kernel = boot()
    assert defrag_range(3, 0, 4096, compress=Compression(algorithm)) == Compression(algorithm)
    assert kernel.calls == [(COMPRESS | START_IO, struct.pack("=I", number))]


@pytest.mark.parametrize(("start_io", "flags"), [(True, START_IO), (False, 0)])
def test_without_compression_no_type_is_given(boot: Callable[..., Kernel], start_io: bool, flags: int) -> None:
    kernel = boot()
    assert defrag_range(3, 0, 4096, start_io=start_io) is None
    assert kernel.calls == [(flags, bytes(4))]


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_refused_level_is_left_out(boot: Callable[..., Kernel], number: int) -> None:
    kernel = boot(refuses_levels(number))
    assert defrag_range(3, 0, 4096, compress=ZSTD_9) == Compression("zstd")
    assert [flags for flags, _ in kernel.calls] == [COMPRESS | START_IO | LEVEL, COMPRESS | START_IO]
    assert kernel.calls[1][1] == struct.pack("=I", 3)


def test_a_call_that_fails_either_way_fails(boot: Callable[..., Kernel]) -> None:
    boot(lambda _: errno.EINVAL)
    with pytest.raises(OSError, match="Invalid argument"):
        defrag_range(3, 0, 4096, compress=ZSTD_9)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOSPC, errno.EROFS, errno.EPERM, errno.ETXTBSY])
def test_other_errors_are_the_callers(boot: Callable[..., Kernel], number: int) -> None:
    kernel = boot(lambda _: number)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        defrag_range(3, 0, 4096, compress=ZSTD_9)
    assert caught.value.errno == number
    assert len(kernel.calls) == 1
