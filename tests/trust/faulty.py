# SPDX-License-Identifier: LGPL-2.1-or-later
"""A piece of work in a process of its own, one of whose system calls fails, kills it or brings a signal.

strace(1) counts the calls of each name from when it is attached, and the child begins its work only then. Between
two calls of getppid(), which nothing else here uses, is what counts as the work's own.
"""

from __future__ import annotations

import mmap
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

BEGIN: Final = signal.SIGUSR1
MARK: Final = "getppid"
ROOM: Final = 1 << 16
CALL: Final = re.compile(r"([a-z_0-9]+)\(")
READY: Final = b"\1"
"""The last byte of the room that the child shares with us, when it is about to wait for BEGIN."""

RAISED: Final = "!"
"""What is said begins so if the work raised what nobody foresaw."""


class Ended(NamedTuple):
    """What the work said, "" if it was killed; its calls between the marks, in their order with their count.

    `met`: the fault happened. `status` is as waitpid(2) gives it, None: it did not end in time.
    """

    said: str
    calls: list[tuple[str, int]]
    met: bool
    status: int | None
    took_s: float


def run(
    work: Callable[[], str],
    log: Path,
    fault: str | None = None,
    *,
    first: Callable[[], None] = lambda: None,
    timeout_s: float = 60,
) -> Ended:
    """Do `work` in a child with `fault`, as strace's inject= takes it; None only lists its calls.

    What the child does `first` is not part of the work.
    """
    room = mmap.mmap(-1, ROOM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {BEGIN})
    try:
        child = os.fork()
        if child == 0:
            _be_child(first, work, room)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _until_ready(child, room)
    words = ["strace", "-p", f"{child}", "-o", os.fspath(log)]
    words += ["-e", "trace=all"] if fault is None else ["-e", f"trace={fault.split(':')[0]}", "-e", f"inject={fault}"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        attached = tracer.stderr.readline()
        if " attached" not in attached:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise RuntimeError(attached + tracer.stderr.read())
        began = time.monotonic()
        os.kill(child, BEGIN)
        status = _wait(child, began + timeout_s)
        took_s = time.monotonic() - began
        tracer.stderr.read()
    text = log.read_text(errors="replace")
    said = room[:-1].rstrip(b"\0").decode(errors="replace")
    room.close()
    met = "(INJECTED)" in text or "--- SIGTERM " in text or "+++ killed by SIGKILL" in text
    return Ended(said, _calls(text), met, status, took_s)


def _be_child(first: Callable[[], None], work: Callable[[], str], room: mmap.mmap) -> None:
    try:
        first()
        room[-1:] = READY
        signal.sigwait({BEGIN})
        os.getppid()
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001 - that there is none is what is tested
            said = f"{RAISED}{type(error).__name__}: {error}"
        os.getppid()
        data = said.encode(errors="replace")[: ROOM - 1]
        room[: len(data)] = data
    except BaseException as error:  # noqa: BLE001 - a child has nobody above it
        room[:] = f"{RAISED}{error!r}".encode()[: ROOM - 1].ljust(ROOM - 1, b"\0") + READY
    finally:
        os._exit(0)


def _until_ready(child: int, room: mmap.mmap) -> None:
    """Raises: RuntimeError if what it had to do first came to nothing."""
    while room[-1:] != READY:
        time.sleep(0.001)
    if room[:1] != b"\0":
        os.waitpid(child, 0)
        raise RuntimeError(room[:-1].rstrip(b"\0").decode())


def _wait(child: int, deadline_s: float) -> int | None:
    """The child's status; None if it had to be killed."""
    while time.monotonic() < deadline_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _calls(text: str) -> list[tuple[str, int]]:
    """Each call between the marks, and the how many-th of its name it is since strace was attached."""
    counts: dict[str, int] = {}
    found: list[tuple[str, int]] = []
    for line in text.splitlines():
        match = CALL.match(line)
        if match is None:
            continue
        name = match[1]
        if name.startswith("syscall_"):
            continue  # newer than this strace, which can inject no fault into it
        counts[name] = counts.get(name, 0) + 1
        if counts.get(MARK) == 1 and name != MARK:
            found.append((name, counts[name]))
    return found
