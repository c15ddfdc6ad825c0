# SPDX-License-Identifier: LGPL-2.1-or-later
"""A piece of work in a process of its own, one of whose system calls fails, kills it or brings a signal.

The child stops itself until strace(1) is attached, which counts the calls of each name from then on. Two calls of
getppid(), which nothing else here uses, mark the begin and the end of the work.
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

MARK: Final = "getppid"
ROOM: Final = 1 << 16
CALL: Final = re.compile(r"([a-z_0-9]+)\(")
RAISED: Final = "!"
"""The first character of what the work said, if it raised an exception."""


class Ended(NamedTuple):
    """What the work said, "" if it was killed; and its calls between the marks, each with its number of its name.

    `met`: the fault happened. `status` is that of waitpid(2), or None if the work did not end in time.
    """

    said: str
    calls: list[tuple[str, int]]
    met: bool
    status: int | None
    took_s: float


def run(work: Callable[[], str], log: Path, fault: str | None = None, *, timeout_s: float = 60) -> Ended:
    """Do `work` in a child with a `fault`, in the form of strace's inject=; None only lists its calls.

    The child's output goes to files next to `log`, which strace writes. Raises: RuntimeError if strace does not attach.
    """
    room = mmap.mmap(-1, ROOM)
    child = os.fork()
    if child == 0:
        _be_child(work, room, log)
    os.waitpid(child, os.WUNTRACED)
    words = ["strace", "-p", f"{child}", "-o", os.fspath(log)]
    words += ["-e", "trace=all"] if fault is None else ["-e", f"trace={fault.split(':')[0]}", "-e", f"inject={fault}"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        attached = tracer.stderr.readline()
        if " attached" not in attached:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise RuntimeError(attached + tracer.stderr.read())
        began_s = time.monotonic()
        os.kill(child, signal.SIGCONT)
        status = _wait(child, began_s + timeout_s)
        took_s = time.monotonic() - began_s
        tracer.stderr.read()
    text = log.read_text(errors="replace")
    said = room[:].rstrip(b"\0").decode(errors="replace")
    room.close()
    met = "(INJECTED)" in text or "--- SIGTERM " in text or "+++ killed by SIGKILL" in text
    return Ended(said, _list_calls(text), met, status, took_s)


def _be_child(work: Callable[[], str], room: mmap.mmap, log: Path) -> None:
    try:
        for descriptor, suffix in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(log.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.getppid()
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001 - that the work raises nothing is what is tested
            said = f"{RAISED}{type(error).__name__}: {error}"
        os.getppid()
        data = said.encode(errors="replace")[:ROOM]
        room[: len(data)] = data
    finally:
        os._exit(0)


def _wait(child: int, deadline_s: float) -> int | None:
    """Return the child's status; None if it had to be killed."""
    while time.monotonic() < deadline_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _list_calls(text: str) -> list[tuple[str, int]]:
    """Return each call between the marks, with its number among the calls of its name since strace was attached."""
    counts: dict[str, int] = {}
    found: list[tuple[str, int]] = []
    for line in text.splitlines():
        match = CALL.match(line)
        if match is None or match[1].startswith("syscall_"):  # newer than this strace, which cannot let it fail
            continue
        counts[match[1]] = counts.get(match[1], 0) + 1
        if counts.get(MARK) == 1 and match[1] != MARK:
            found.append((match[1], counts[match[1]]))
    return found
