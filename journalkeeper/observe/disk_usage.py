# SPDX-License-Identifier: LGPL-2.1-or-later
"""The disk bytes of one file, for a process without CAP_SYS_ADMIN.

The service sends a file descriptor to journalkeeper-measure.socket and receives the number. The socket's unit has only
that capability. FIEMAP cannot replace this. For 40 archives, an estimate by physical addresses was up to 18% wrong
before a rewrite, and more than 15% wrong for 27 of them after it.

One connection serves one question. The caller sends a byte with the descriptor. The unit answers with the number in
decimal digits, or closes the connection.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
from typing import Final

from journalkeeper.btrfs import disk
from journalkeeper.journald import header

SOCKET: Final = "/run/journalkeeper-measure"
ANSWER_S: Final = 10.0
"""The longest wait for an answer. The unit starts in 0.2 s, and its TimeoutStartSec= is as long as this."""

ANSWER_BYTES: Final = 32


def measure_disk_bytes(fd: int, path: str = SOCKET) -> int | None:
    """Return the disk usage of a file, as compsize(8) counts it. Ask the unit at `path` if this process has no right.

    The result is None if the unit does not exist, refuses the connection or does not answer.

    Raises: as disk.read_disk_bytes.
    """
    found = disk.read_disk_bytes(fd)
    if found is not None:
        return found
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(ANSWER_S)
        try:
            channel.connect(path)
            socket.send_fds(channel, [b"?"], [fd])
            answer = channel.recv(ANSWER_BYTES)
        except OSError:  # the outcome of the work does not depend on this number
            return None
    return int(answer) if answer.isdigit() else None


def serve(connection: socket.socket) -> None:
    """Receive a descriptor of a journal file over `connection`, and send back the file's disk bytes as text.

    Any caller may ask, because only journal files are measured. The descriptor is closed.

    Raises: ValueError or HeaderError for any other descriptor, or none; ValueError without CAP_SYS_ADMIN; OSError
    as disk.read_disk_bytes.
    """
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    try:
        if len(descriptors) != 1:
            raise ValueError("the question contains no file descriptor")
        status = os.fstat(descriptors[0])
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        header.read(descriptors[0], status.st_size)
        found = disk.read_disk_bytes(descriptors[0])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    if found is None:
        raise ValueError("this process lacks CAP_SYS_ADMIN")
    connection.send(str(found).encode())


def main() -> int:
    """Serve the connection on standard input, as a socket unit with Accept=yes passes it.

    Return 0, or 1 after an error, which is written to stderr.
    """
    try:
        with socket.socket(fileno=os.dup(0)) as connection:
            connection.settimeout(ANSWER_S)
            serve(connection)
    except (OSError, ValueError, header.HeaderError) as error:
        sys.stderr.write(f"journalkeeper: cannot measure: {error}\n")
        return 1
    return 0
