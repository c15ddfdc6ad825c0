# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who syncs which file, and how long each call takes: by tracefs, in an instance of our own.

Counts are exact or said to be not: what the kernel had no room for is counted. Where tracefs is
closed, journald's threads are looked at 200 times a second.
"""

from __future__ import annotations

import os
import platform
import re
import select
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.btrfs import inode, volume
from journalkeeper.journald import opening
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.escape import shown
from journalkeeper.probe.base import NAME, Lines, Measurement, Steps, at_the_end, floor, host_journald
from journalkeeper.probe.scratch_volume import own_mounts
from journalkeeper.report.distribution import Series

TRACEFS: Final = "/sys/kernel/tracing"
CALLS: Final = ("fsync", "fdatasync", "sync_file_range", "msync", "syncfs")
EVENTS: Final = (
    *(f"syscalls/sys_{way}_{call}" for call in CALLS for way in ("enter", "exit")),
    "btrfs/btrfs_sync_file",
)
BUFFER_KIB: Final = 1024
"""For each processor: some 10,000 events."""

PREPARE: Final = """
set -e
[ -d "$1/instances" ] || mount -t tracefs tracefs "$1"
for dead in "$1"/instances/journalkeeper-*; do
    [ ! -d "$dead" ] || [ -d "/proc/${dead##*-}" ] || rmdir "$dead"
done
mkdir "$1/instances/$2"
echo ready
read -r _ || :
echo 0 >"$1/instances/$2/tracing_on"
while [ -d "$1/instances/$2" ] && ! rmdir "$1/instances/$2"; do sleep 0.1; done
"""

LINE: Final = re.compile(r"\s*(.*)-(\d+) +\( *([\d-]+)\) \[\d+\] \S+ +(\d+)\.(\d{6}): (.*)", re.DOTALL)
"""A thread's name, its id, its process, seconds and microseconds, and what it does (options/record-tgid)."""

UNKNOWN: Final = "<...>"
ENTER: Final = re.compile(rf"sys_({'|'.join(CALLS)})\((?:fd: (0x[0-9a-f]+|[0-9a-f]+))?")
EXIT: Final = re.compile(rf"sys_({'|'.join(CALLS)}) -> ")
SYNC_FILE: Final = re.compile(r"btrfs_sync_file: (?P<fsid>\S+): root=(?P<root>\d+)\(.*\) ino=(?P<ino>\d+) ")

COLUMNS: Final = ("process", "thread", "count", "mean", "p99", "worst", "file")
JOURNALD: Final = "systemd-journal"
"""Whose main thread keeps all loggers waiting; its thread "journal-offline" only those who touch the same pages."""

HZ: Final = 200
NUMBERS: Final = {
    "x86_64": (74, 75, 277, 26, 306),
    "aarch64": (82, 83, 84, 227, 267),
}
"""The system calls' numbers, in the order of CALLS (asm/unistd.h)."""


class Under(NamedTuple):
    """A call that has begun: when, in which process, and the file as far as it is known."""

    began_us: int
    process: str
    thread: str
    file: str
    inode: int


class Callers:
    """Takes in the lines of a trace: who called what, and for how long."""

    def __init__(self) -> None:
        self.found: list[Series] = []
        self.unread = ""
        self._series: dict[tuple[str, str, str], Series] = {}
        self._under: dict[str, Under] = {}
        self._processes: dict[str, str] = {}
        self._names: dict[tuple[str, str, int], str] = {}
        self._volumes = _volumes()

    def take(self, line: str) -> None:
        """One line, or a part of one: a thread's name may have line breaks in it."""
        if line.startswith("CPU:"):
            return  # events that were lost, which are counted elsewhere
        line = self.unread + line
        match = LINE.match(line)
        self.unread = f"{line}\n" if match is None and line else ""
        if match is None:
            return
        thread, tid, group, seconds, micros, what = match.groups()
        now_us = int(seconds + micros)
        if enter := ENTER.match(what):
            self._under[tid] = self.begun(tid, group, thread, now_us, enter[2])
        elif (sync := SYNC_FILE.match(what)) and tid in self._under:
            self._under[tid] = self._named(self._under[tid], sync)
        elif EXIT.match(what) and tid in self._under:
            call = self._under.pop(tid)
            self.add(call, now_us - call.began_us)

    def begun(self, tid: str, group: str, thread: str, now_us: int, fd: str | None) -> Under:
        """A call that begins: what it is about is asked for at once, or has gone."""
        file, number = "?", 0
        try:
            if thread == UNKNOWN:
                thread = Path(f"/proc/{tid}/comm").read_text().removesuffix("\n")
            if not group.isdecimal():
                group = re.findall(r"^Tgid:\s+(\d+)", Path(f"/proc/{tid}/status").read_text(), re.MULTILINE)[0]
            self._processes[group] = Path(f"/proc/{group}/comm").read_text().removesuffix("\n")
            if fd is not None:
                path = f"/proc/{group}/fd/{int(fd, 16)}"
                number, file = os.stat(path).st_ino, os.readlink(path)
        except OSError:
            pass  # it has ended, or closed the file: "?" is the answer
        return Under(now_us, self._processes.get(group, thread), thread, file, number)

    def add(self, call: Under, took_us: int) -> None:
        """One call of a process, a thread and a file."""
        key = (call.process, call.thread, call.file)
        if key not in self._series:
            words = dict(zip(("process", "thread", "file"), map(shown, key), strict=True))
            self._series[key] = Series(" ".join(words.values()), words)
            self.found.append(self._series[key])
        self._series[key].add(call.began_us * 1000, took_us * 1000)

    def _named(self, call: Under, sync: re.Match[str]) -> Under:
        """The call with the file that btrfs says: its inode is right also where the descriptor was closed at once.

        What /proc said is taken where it leads to that inode from here too, or has no name any more.
        """
        number = int(sync["ino"])
        key = (sync["fsid"], sync["root"], number)
        if number == call.inode:
            self._names[key] = call.file
            if _is_at(call.file, number):
                return call
        tree, points = int(sync["root"]), self._volumes.get(sync["fsid"].lower(), {})
        for point in (points[tree], *points.values()) if tree in points else points.values():
            try:
                with opening.directory(point) as fd:
                    name = inode.ino_lookup(fd, tree, number)
            except OSError:
                continue  # deleted, or the volume was unmounted
            path = f"{point.rstrip('/')}/{name}" if points.get(tree) == point else f"?/{name}"
            if path.startswith("?") or _is_at(path, number):  # a name stays found for a while after it was deleted
                return call._replace(file=path)
        return call._replace(file=self._names.get(key, f"? (inode {number})"))


def _is_at(path: str, number: int) -> bool:
    try:
        return os.stat(path).st_ino == number
    except OSError:
        return False


def _volumes() -> dict[str, dict[int, str]]:
    """The mount points of each btrfs, by the subvolume that is seen there whole."""
    found: dict[str, dict[int, str]] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if not kind.startswith("btrfs "):
            continue
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields.split()[4])
        try:
            with opening.directory(point) as fd:
                if os.fstat(fd).st_ino == inode.FIRST_FREE_OBJECTID:
                    found.setdefault(volume.fs_info(fd)[0], {})[inode.tree_of(fd)] = point
        except OSError:
            continue  # a file that is mounted on a file, or it was unmounted
    return found


@contextmanager
def instance() -> Iterator[Path]:
    """A trace instance of our own, as found in a mount namespace that has a tracefs; gone at the end.

    Raises: KeeperError, OSError where the kernel has none, or keeps it closed (lockdown).
    """
    name = f"{NAME}{os.getpid()}"
    alone = () if os.path.isdir(f"{TRACEFS}/instances") else own_mounts() or ()
    with at_the_end(*alone, "sh", "-c", PREPARE, "sh", TRACEFS, name) as child:
        yield Path(f"/proc/{child}/root{TRACEFS}/instances/{name}")


def measured(asked: Namespace) -> Steps:
    """Watch for as long as `asked.who` says."""
    callers = Callers()
    with open(os.memfd_create("floor"), "wb") as sink:
        found = Measurement(callers.found, floor(lambda: os.fsync(sink.fileno())), COLUMNS)
    found.judged = lambda series: series.labels["thread"] == series.labels["process"] == JOURNALD
    with ExitStack() as stack:
        try:
            place = stack.enter_context(instance())
            steps = _trace(place, _opened(place, stack), asked.who, callers, found)
        except (KeeperError, OSError) as error:
            found.notes.append(f"No tracefs ({error}): journald alone was looked at, {HZ} times a second, within 5 ms.")
            steps = _looks(host_journald(), asked.who, callers, found)
        yield from steps


def _opened(place: Path, stack: ExitStack) -> int:
    """The instance's pipe, with the events on.

    Raises: OSError; EPERM under lockdown.
    """
    (place / "trace_clock").write_text("mono")
    (place / "buffer_size_kb").write_text(str(BUFFER_KIB))
    (place / "buffer_percent").write_text("0")
    (place / "options/record-tgid").write_text("1")
    pipe = os.open(place / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    stack.callback(os.close, pipe)
    for event in EVENTS:
        if not event.startswith("btrfs") or (place / "events" / event).exists():
            (place / "events" / event / "enable").write_text("1")
    return pipe


def _trace(place: Path, pipe: int, length_s: float, callers: Callers, found: Measurement) -> Steps:
    until_s, lines = time.monotonic() + length_s, Lines(pipe)
    on = True
    try:
        while True:
            yield found
            if on and time.monotonic() >= until_s:
                (place / "tracing_on").write_text("0")
                on = False
            try:
                for line in lines.take():
                    callers.take(line.decode(errors="surrogateescape"))
            except BlockingIOError:
                if not on:
                    break
                select.select([pipe], [], [], min(0.1, max(0.0, until_s - time.monotonic())))
    finally:
        if lost := _lost(place) + bool(callers.unread):
            found.faults.append(f"{lost} events were lost: the counts are too low")


def _lost(place: Path) -> int:
    """How many events the buffers of all processors had no room for (Documentation/trace/ftrace.rst)."""
    text = "".join(path.read_text() for path in place.glob("per_cpu/cpu*/stats"))
    return sum(map(int, re.findall(r"^(?:overrun|dropped events): (\d+)$", text, re.MULTILINE)))


def _looks(pid: int, length_s: float, callers: Callers, found: Measurement) -> Steps:
    """What each thread of journald is in, by /proc/TID/syscall: calls shorter than a look may be missed."""
    numbers = NUMBERS.get(platform.machine(), ())
    if not numbers:
        raise KeeperError(f"no tracefs, and the system calls of {platform.machine()} are not known here")
    until_s, under = time.monotonic() + length_s, dict[str, Under]()
    while time.monotonic() < until_s:
        now_us, seen = time.monotonic_ns() // 1000, set[str]()
        for task in Path(f"/proc/{pid}/task").iterdir():
            tid = task.name
            try:
                words, comm = (task / "syscall").read_text().split(), (task / "comm").read_text().strip()
            except OSError:
                continue  # the thread has ended
            if words[0].isdigit() and int(words[0]) in numbers:
                seen.add(tid)
                under.setdefault(tid, callers.begun(tid, str(pid), comm, now_us, words[1]))
        for tid in under.keys() - seen:
            callers.add(under[tid], now_us - under.pop(tid).began_us)
        yield found
        time.sleep(1 / HZ)
