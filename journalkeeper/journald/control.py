# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls to a running journald, rotate and synchronize, and connections to its sockets.

Only the journald that writes the given directory is called. A copy of a journal, or another machine's journal, must
never make this host's journald rotate.

Source: systemd 252 to 262, src/journal/journald-varlink.c (until 257 in journald-server.c); varlink.org: messages are
JSON objects, each followed by a zero byte.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from contextlib import suppress
from typing import Final

from journalkeeper.journald import layout
from journalkeeper.model.errors import FileError, KeeperError

RUNTIME: Final = "/run/systemd/journal"
TIMEOUT_S: Final = 30.0
"""More than the longest time, 25 s, that journald was measured to be busy with one file (5,992 extents at 150 IOPS)."""

ANSWER_BYTES: Final = 1 << 16
PEER: Final = struct.Struct("=3i")
"""struct ucred: pid, uid and gid of the listener; pid 0 and uid 65534 if it is outside of our namespaces (unix(7))."""


def get_socket_path(namespace: str = "") -> str:
    """Return the path of the socket on which the journald of `namespace` takes calls. It need not exist."""
    runtime = f"{RUNTIME}.{namespace}" if namespace else RUNTIME
    return f"{runtime}/io.systemd.journal"


def connect(path: str, kind: socket.SocketKind) -> socket.socket:
    """Return a blocking socket connected to journald's at `path`. Raises: KeeperError (no FileError) if that fails."""
    channel = socket.socket(socket.AF_UNIX, kind)
    try:
        channel.connect(path)
    except OSError as error:
        channel.close()
        raise KeeperError(f"no systemd-journald takes messages at {path}: {error.strerror}") from error
    return channel


def can_be_asked(place: layout.Directory) -> bool:
    """Return whether `has_journald` is true of `place`, and its socket for requests exists. No request is sent.

    The main journald must have the mark RUNTIME/flushed: early and late in a boot it writes to /run. False on OSError.

    Source: system_journal_open(), server_flushed_flag_is_set(), server_relinquish_var().
    """
    with suppress(OSError):  # without access to these places, the call would fail, too
        if not place.namespace:
            os.stat(f"{RUNTIME}/flushed")
        return has_journald(place) and stat.S_ISSOCK(os.stat(get_socket_path(place.namespace)).st_mode)
    return False


def has_journald(place: layout.Directory) -> bool:
    """Return whether `place` is in /var/log/journal and this machine's; a namespace needs a socket. Raises: OSError."""
    if not place.machine_id or place.machine_id != layout.read_machine_id():
        return False
    own = f"{layout.TOP}/{'.'.join(filter(None, (place.machine_id, place.namespace)))}"
    with suppress(FileNotFoundError):
        if os.path.samefile(place.path, own):
            return not place.namespace or stat.S_ISSOCK(os.stat(get_socket_path(place.namespace)).st_mode)
    return False


def rotate(namespace: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
    """Make journald archive all files of `namespace`, begin new files and vacuum. Wait for its answer.

    journald may still sync the archives afterwards. A namespace's journald that ended is started (not with 252).

    Raises: FileError: ENOENT no such journald, ECONNREFUSED it is not running, EACCES not root; KeeperError if journald
    answers with an error or not within `timeout_s` (it may still rotate), or is not of this machine or container.
    """
    _require_done("rotate", "Rotate", namespace, timeout_s)


def synchronize(namespace: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
    """Make journald start to sync all files of `namespace`, and wait for its answer, not for the end of the sync.

    The request stops journald's sync timer until the next message. Raises: as `rotate`.
    """
    _require_done("sync", "Synchronize", namespace, timeout_s)


def is_responsive(namespace: str, timeout_s: float) -> bool | None:
    """Return whether the journald of `namespace` answers within `timeout_s`; None if its socket fails.

    Any other error counts as an answer: a foreign listener's, or that of systemd 252, which does not know the question.
    """
    try:
        _exchange("answer", "org.varlink.service.GetInfo", namespace, timeout_s)
    except FileError:
        return None
    except KeeperError as error:
        return not isinstance(error.__cause__, TimeoutError)
    return True


def _require_done(what: str, method: str, namespace: str, timeout_s: float) -> None:
    """Call io.systemd.Journal.`method` of journald. Raises: KeeperError if it refuses; as `_exchange`."""
    path = get_socket_path(namespace)
    answer = _exchange(what, f"io.systemd.Journal.{method}", namespace, timeout_s)
    if not isinstance(answer, dict) or "error" in answer:
        why = answer.get("error") if isinstance(answer, dict) else answer
        raise KeeperError(f"{path}: journald refused to {what}: {why}")


def _exchange(what: str, method: str, namespace: str, timeout_s: float) -> object:
    """Call `method`, a full name, of the journald of `namespace`, and return its answer, which can be an error.

    After a timeout journald may still execute the request. A listener that is not root, or is not of this machine or
    container, gets no request. Raises: FileError and KeeperError as `rotate`; KeeperError if the answer is no JSON.
    """
    path = get_socket_path(namespace)
    call = json.dumps({"method": method, "parameters": {}}).encode() + b"\0"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(timeout_s)
            channel.connect(path)
            pid, uid, _ = PEER.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
            if pid == 0 or uid != 0:
                raise KeeperError(f"{path}: the listener is not this machine's journald")
            channel.sendall(call)
            return json.loads(channel.recv(ANSWER_BYTES).partition(b"\0")[0])  # journald sends it in one piece
    except TimeoutError as error:
        raise KeeperError(f"{path}: journald did not answer within {timeout_s:g} s; it may still {what}") from error
    except OSError as error:
        raise FileError.wrap(f"ask journald to {what}", path, error) from error
    except ValueError as error:
        raise KeeperError(f"{path}: journald's answer is not a JSON object") from error
