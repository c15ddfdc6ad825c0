# SPDX-License-Identifier: LGPL-2.1-or-later
"""The processes that sync files, and the duration of each call, from a tracefs instance of our own.

The kernel times the calls. Counts are exact, or a fault says how many events were lost. Names are looked up in /proc
when a call begins, so that of a file that is closed at once can be missing.
"""

from __future__ import annotations

import os
import re
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from journalkeeper.model.errors import KeeperError
from journalkeeper.model.units import escape
from journalkeeper.probe.base import Measurement, Series, read_lines
from journalkeeper.probe.scratch_volume import OWN_MOUNTS, undo_at_end

TRACEFS: Final = "/sys/kernel/tracing"
PREPARE: Final = """
fail() { echo "cannot trace (\\`strace -f -T -y -e fsync,fdatasync -p PID\\` may work): $1" >&2; exit 1; }
! grep -qs '\\[confidentiality\\]' /sys/kernel/security/lockdown || fail "the kernel forbids it: see kernel_lockdown(7)"
[ -d "$1/instances" ] || said=$(mount -t tracefs tracefs "$1" 2>&1) || fail "$said"
[ -d "$1/events/syscalls" ] || fail "the kernel has no events of system calls (CONFIG_FTRACE_SYSCALLS)"
ours=$1/instances/journalkeeper-$$
mkdir "$ours"
trap 'cd /; echo 0 >"$ours/tracing_on"; while [ -d "$ours" ] && ! rmdir "$ours" 2>&-; do sleep 0.1; done' EXIT
trap exit TERM
cd "$ours"
echo mono >trace_clock; echo 1024 >buffer_size_kb; echo 0 >buffer_percent
for call in fsync fdatasync msync; do echo 1 | tee events/syscalls/sys_*_$call/enable >/dev/null; done
echo $$
read -r _ || :
"""
"""Make a trace instance, and print the process id that its name contains. Remove it when stdin ends; it is busy for as
long as a reader has it open. The buffer of each processor holds some 10,000 events.
"""

JOURNALD: Final = "systemd-journal: "

EVENT: Final = re.compile(
    rb"-(\d+) +(?:\( *[-\d]+\) +)?\[\d+\] \S+ +(\d+)\.(\d{6}): sys_(\w+)(?: -> |\((?:fd|start): (?:0x)?([0-9a-f]+))"
)


class Tally:
    """The calls in a trace, by process, call and file. `unread` counts events of an unknown form."""

    def __init__(self) -> None:
        self.rows: dict[str, Series] = {}
        self.unread = 0
        self.running: dict[int, tuple[Series, int]] = {}
        """The row and the start (ns) of the call of each thread."""

    def count_event(self, line: bytes) -> None:
        """Record the begin of a call, or its end with its duration. A line with ": sys_" of an unknown form is unread.

        Other lines are ignored. Names are from /proc: that in the line can contain a line break and lag behind.
        """
        event = EVENT.search(line)
        if event is None:
            self.unread += b": sys_" in line
            return
        tid, now_ns = int(event[1]), int(event[2] + event[3]) * 1000
        if event[5]:
            name = f"{_find_process(tid)}: {event[4].decode()} {_find_file(tid, event[4], int(event[5], 16))}"
            self.running[tid] = self.rows.setdefault(name, Series(name)), now_ns
        elif tid in self.running:
            row, began_ns = self.running.pop(tid)
            row.waits_ns.append(now_ns - began_ns)


@contextmanager
def trace() -> Iterator[Path]:
    """Yield the directory of a temporary trace instance for fsync, fdatasync and msync. Raises: KeeperError."""
    if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":  # PROC_PID_INIT_INO of linux/proc_ns.h
        raise KeeperError("cannot trace in a container, where processes have other ids: run it on the host")
    with undo_at_end(*OWN_MOUNTS, "sh", "-ec", PREPARE, "sh", TRACEFS) as child:
        yield Path(f"/proc/{child}/root{TRACEFS}/instances/journalkeeper-{child}")


def measure(asked: Namespace, found: Measurement, pid: int | None = None) -> None:
    """Watch the calls of process `pid` or of all for --seconds. Only those of journald's main thread are judged.

    A call that still runs at the end counts with its time so far. Lost events are a fault. `found` also gets the
    length of the trace, and a cause that loggers wait for these calls. Raises: as `trace`.
    """
    tally = Tally()
    with trace() as place, open(place / "trace_pipe", "rb", buffering=0) as pipe:
        if pid is not None:
            (place / "options/event-fork").write_text("1")
            (place / "set_event_pid").write_text(" ".join(os.listdir(f"/proc/{pid}/task")))
        until_ns = time.monotonic_ns() + int(asked.seconds * 1e9)
        found.causes.append("All loggers wait for the calls of journald's main thread.")
        try:
            for lines in read_lines(pipe.fileno()):
                for line in lines:
                    tally.count_event(line)
                if time.monotonic_ns() >= until_ns:
                    (place / "tracing_on").write_text("0")
                    if not lines:
                        break
        finally:
            ended_ns = min(until_ns, time.monotonic_ns())
            for row, call_ns in tally.running.values():
                row.waits_ns.append(max(0, ended_ns - call_ns))
            found.length_s = asked.seconds - (until_ns - ended_ns) / 1e9
            found.series += sorted(tally.rows.values(), key=lambda row: -sum(row.waits_ns))
            found.judged += [row for row in found.series if row.name.startswith(JOURNALD)] or [Series("none")]
            stats = "".join(path.read_text() for path in place.glob("per_cpu/cpu*/stats"))
            if lost := tally.unread + sum(map(int, re.findall(r"^(?:overrun|dropped events): (\d+)$", stats, re.M))):
                found.faults.append(f"events lost: {lost:,}; the counts are too low")


def _find_process(tid: int) -> str:
    """Return "PROCESS", "PROCESS/THREAD" if the thread has another name, or "process TID, which ended"."""
    with suppress(OSError, IndexError):  # the directory of a process that just ended can be empty
        threads = os.listdir(f"/proc/{tid}/task")  # the main one is the first
        names = [Path(f"/proc/{one}/comm").read_text()[:-1] for one in (threads[0], tid)]
        return escape("/".join(dict.fromkeys(names)))
    return f"process {tid}, which ended"


def _find_file(tid: int, call: bytes, number: int) -> str:
    """Return the escaped path of descriptor `number`, or for msync of the file at that address; "?" without a path."""
    with suppress(OSError):
        if call != b"msync":
            path = os.readlink(f"/proc/{tid}/fd/{number}")
            return escape(path) if path.startswith("/") else "?"  # another file has the number by now
        for mapped in Path(f"/proc/{tid}/map_files").iterdir():
            begin, end = (int(address, 16) for address in mapped.name.split("-"))
            if begin <= number < end:
                return escape(os.readlink(mapped))
    return "?"
