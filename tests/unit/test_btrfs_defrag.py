# SPDX-License-Identifier: LGPL-2.1-or-later
"""The compression that a kernel is asked for: older kernels get no level."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import nullcontext
from typing import Any

import pytest

from journalkeeper.btrfs import kernel
from journalkeeper.btrfs.defrag import defrag_range
from journalkeeper.model.compression import Compression

ZSTD_9 = Compression("zstd", 9)
COMPRESS, LEVEL = 1, 4
PLAIN = (0, bytes(4))
TYPE_ALONE, TYPE_AND_LEVEL = (COMPRESS, struct.pack("=I", 3)), (COMPRESS | LEVEL, bytes([3, 9, 0, 0]))


@pytest.mark.parametrize(
    ("compress", "refused", "error", "calls"),
    [
        (None, 0, 0, [PLAIN]),
        (Compression("zstd"), 0, 0, [TYPE_ALONE]),
        (ZSTD_9, 0, 0, [TYPE_AND_LEVEL]),
        (ZSTD_9, LEVEL, errno.EOPNOTSUPP, [TYPE_AND_LEVEL, TYPE_ALONE]),
        (ZSTD_9, LEVEL, errno.EINVAL, [TYPE_AND_LEVEL, TYPE_ALONE]),
        (ZSTD_9, COMPRESS, errno.EINVAL, [TYPE_AND_LEVEL, TYPE_ALONE]),
        (ZSTD_9, COMPRESS, errno.ENOSPC, [TYPE_AND_LEVEL]),
        (Compression("zstd"), COMPRESS, errno.EINVAL, [TYPE_ALONE]),
    ],
)
def test_a_level_is_left_out_if_the_kernel_does_not_know_levels(
    monkeypatch: pytest.MonkeyPatch, compress: Compression | None, refused: int, error: int, calls: list[Any]
) -> None:
    seen = []

    def ioctl(_fd: int, _request: int, buffer: bytearray) -> None:
        (flags,) = struct.unpack_from("=Q", buffer, 16)
        seen.append((flags, bytes(buffer[28:32])))
        if flags & refused:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(kernel, "ioctl", ioctl)
    fails = calls[-1][0] & refused
    with pytest.raises(OSError, match=os.strerror(error)) if fails else nullcontext():
        defrag_range(3, 0, 4096, compress=compress)
    assert seen == calls
