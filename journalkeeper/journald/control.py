# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a running journald does when it is asked to.

Only the journald that writes the directory in question is asked. Whoever was
given another machine's journal, or a copy, must never make the journald of this host rotate.

Source: systemd 252 to 262, src/journal/journald-varlink.c (until 257 in journald-server.c);
varlink.org: messages are JSON objects, each ended by a zero byte.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import time
from typing import Final

from journalkeeper.journald import layout
from journalkeeper.model.errors import FileError, KeeperError

RUNTIME: Final = "/run/systemd/journal"
TIMEOUT_S: Final = 30.0
"""The longest that journald was measured to be busy with one file, 5,992 extents at 150 IOPS, is 25 s."""

ANSWER_BYTES: Final = 1 << 16
PEER: Final = struct.Struct("=3i")
"""struct ucred: pid, uid, gid of who listens; pid 0 and uid 65534 if outside of our namespaces (unix(7))."""


def socket_path(namespace: str = "") -> str:
    """Where the journald of `namespace`, "" the main one, takes calls."""
    return f"{_runtime(namespace)}/io.systemd.journal"


def _runtime(namespace: str) -> str:
    return f"{RUNTIME}.{namespace}" if namespace else RUNTIME


def can_be_asked(directory: str, namespace: str = "") -> bool:
    """Whether a journald that takes our calls writes `directory`, as far as can be seen without calling it.

    So it is if this is the very directory that /var/log/journal/ID[.NAMESPACE] leads to here,
    ID being this machine's, if there is a socket, and if the main journald was told to write
    to /var at all: at the begin of a boot, and after the end of one, it writes to /run.
    Source: system_journal_open(), server_flushed_flag_is_set(), server_relinquish_var().
    """
    name = f"{layout.machine_id()}.{namespace}" if namespace else layout.machine_id()
    try:
        own = os.stat(f"{layout.TOP}/{name}")
        if not name or not os.path.samestat(os.stat(directory, follow_symlinks=False), own):
            return False
        if not namespace:
            os.stat(f"{RUNTIME}/flushed")
        return stat.S_ISSOCK(os.stat(socket_path(namespace)).st_mode)
    except OSError:
        return False  # whatever keeps us from looking there keeps us from asking


def rotate(namespace: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
    """Have journald archive all files of `namespace` and begin new ones; it vacuums, too. Returns when it has.

    A namespace's journald that ended for want of work is started by the call, where its socket unit stays
    (not with 252).

    Raises: FileError: ENOENT no such journald, ECONNREFUSED it is not running, EACCES not root;
        KeeperError where it answers with an error, not at all in `timeout_s` (it may rotate
        all the same), or is not of this machine or container.
    """
    _call("rotate", "Rotate", namespace, timeout_s)


def synchronize(namespace: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
    """Have journald begin to sync all files of `namespace`, which stops its timer until the next message.

    It also logs that it was asked to.

    Raises: as `rotate`.
    """
    _call("sync", "Synchronize", namespace, timeout_s)


def _call(what: str, method: str, namespace: str, timeout_s: float) -> None:
    """One call without parameters, as `rotate` says; `what` is the word for it in errors."""
    path = socket_path(namespace)
    call = json.dumps({"method": f"io.systemd.Journal.{method}", "parameters": {}}).encode() + b"\0"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(timeout_s)
            channel.connect(path)
            pid, uid, _ = PEER.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
            if pid == 0 or uid != 0:
                raise KeeperError(f"{path}: whoever listens there is not this machine's journald")
            channel.sendall(call)
            answer = json.loads(_received(channel, time.monotonic() + timeout_s))
    except TimeoutError as error:
        raise KeeperError(f"{path}: journald did not answer in {timeout_s:g} s; it may {what} yet") from error
    except OSError as error:
        raise FileError.wrap(f"ask journald to {what}", path, error) from error
    except ValueError as error:
        raise KeeperError(f"{path}: journald did not answer with an object of JSON") from error
    if not isinstance(answer, dict) or "error" in answer:
        why = answer.get("error") if isinstance(answer, dict) else answer
        raise KeeperError(f"{path}: journald does not {what}: {why}")


def _received(channel: socket.socket, deadline_s: float) -> bytes:
    """One message, without its zero byte."""
    answer = b""
    while b"\0" not in answer and len(answer) < ANSWER_BYTES:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        channel.settimeout(left_s)
        part = channel.recv(4096)
        if not part:
            raise ValueError(answer)
        answer += part
    return answer.partition(b"\0")[0]
