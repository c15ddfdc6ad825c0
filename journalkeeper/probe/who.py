# SPDX-License-Identifier: LGPL-2.1-or-later
"""A trace of the processes that sync files and of the duration of each call, from our own tracefs instance.

Counts are exact, or a fault reports how many events the kernel dropped.
"""

from __future__ import annotations

import os
import re
import select
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from psutil import disk_partitions

from journalkeeper.btrfs import inode, volume
from journalkeeper.journald import opening
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.escape import shown
from journalkeeper.model.units import counted
from journalkeeper.probe.base import NAME, Lines, Measurement, Steps
from journalkeeper.probe.distribution import Limit, Series
from journalkeeper.probe.distribution import format_wait as span
from journalkeeper.probe.scratch_volume import own_mounts, undo_at_end

TRACEFS: Final = "/sys/kernel/tracing"
CALLS: Final = ("fsync", "fdatasync", "sync_file_range", "msync", "syncfs")
SYNC_EVENT: Final = "btrfs/btrfs_sync_file"
EVENTS: Final = (*(f"syscalls/sys_{way}_{call}" for call in CALLS for way in ("enter", "exit")), SYNC_EVENT)
BUFFER_KIB: Final = 1024
"""The buffer size for each processor: some 10,000 events."""

MOMENT_S: Final = 0.1
PREPARE: Final = """
set -e
[ -d "$1/instances" ] || mount -t tracefs tracefs "$1"
for dead in "$1"/instances/"${2%-*}"-*; do
    [ ! -d "$dead" ] || [ -d "/proc/${dead##*-}" ] || rmdir "$dead"
done
mkdir "$1/instances/$2"
echo $$
read -r _ || :
echo 0 >"$1/instances/$2/tracing_on"
while [ -d "$1/instances/$2" ] && ! rmdir "$1/instances/$2"; do sleep 0.1; done
"""

LINE: Final = re.compile(r" *(.*)-(\d+) +\[\d+\] \S+ +(\d+)\.(\d{6}): (.*)")
"""A thread's name and id, seconds and microseconds, and the event.

A name has 15 characters at most, so a name with a line break cannot look like a line.
"""

ENTER: Final = re.compile(rf"sys_({'|'.join(CALLS)})\((?:fd: (0x[0-9a-f]+|[0-9a-f]+))?")
EXIT: Final = re.compile(rf"sys_({'|'.join(CALLS)}) -> ")
SYNC_FILE: Final = re.compile(r"btrfs_sync_file: (\S+): root=(\d+)\(.*\) ino=(\d+) ")
COLUMNS: Final = ("process", "call", "count", "mean", "worst", "total", "share")
JOURNALD: Final = "systemd-journal"
"""The main thread's name: all loggers wait for it. Its thread "journal-offline" delays only writers of the same pages.
"""

HOSTS_PROCESSES: Final = "pid:[4026531836]"
"""The first PID namespace; a trace names processes by their ids in it (PROC_PID_INIT_INO, linux/proc_ns.h)."""

INSTEAD: Final = "; instead: strace -c -f -p PID"


class Under(NamedTuple):
    """A call that has begun: its time in microseconds, process, thread and name, its file and the file's inode.

    The file is "?" and the inode 0 until they are known.
    """

    began_us: int
    process: str
    thread: str
    call: str
    file: str
    inode: int


class Callers:
    """The calls in a trace, by process, thread, call and file, in `found`."""

    def __init__(self) -> None:
        self.found: list[Series] = []
        self._series: dict[tuple[str, ...], Series] = {}
        self._under: dict[str, Under] = {}
        self._files: dict[tuple[str, int, int], str] = {}
        self._volumes = _list_volumes()

    def take(self, line: str) -> None:
        """Add one line of the trace. A line that is no event of a sync call is ignored."""
        match = LINE.match(line)
        if match is None:
            return
        recorded, tid, seconds, micros, what = match.groups()
        now_us = int(seconds + micros)
        if enter := ENTER.match(what):
            call, fd = enter.groups()
            self._under[tid] = Under(now_us, *_read_names(tid, recorded), call, *_find_file(tid, fd))
        elif tid in self._under and (sync := SYNC_FILE.match(what)):
            self._under[tid] = self._resolve_file(self._under[tid], sync[1].lower(), int(sync[2]), int(sync[3]))
        elif tid in self._under and EXIT.match(what):
            self._add(self._under.pop(tid), now_us)

    def _add(self, call: Under, now_us: int) -> None:
        """Add a call that ended now to the Series of its process, thread, call and file; the first call makes it."""
        key = call[1:5]
        if key not in self._series:
            words = dict(zip(("process", "thread", "call", "file"), map(shown, key), strict=True))
            self._series[key] = Series(" ".join(words.values()), words)
            self.found.append(self._series[key])
        self._series[key].add(call.began_us * 1000, max(0, now_us - call.began_us) * 1000)

    def finish(self, now_us: int, length_us: int) -> int:
        """Add the calls that have not returned by `now_us`, with their time so far, and return their number.

        Each row gets its share: the time of its calls as a percentage of `length_us`.
        """
        for call in self._under.values():
            self._add(call, now_us)
        for series in self.found:
            series.labels["share"] = f"{sum(series.took_ns) / 1000 / length_us:.1%}"
        return len(self._under)

    def _resolve_file(self, call: Under, fsid: str, tree: int, number: int) -> Under:
        """Return the call with the file that btrfs names. Its inode is right even if the descriptor was closed at once.

        Its path from here is preferred to the name from /proc, which is that of another mount namespace.
        """
        if number == call.inode:
            self._files[fsid, tree, number] = call.file
        point = self._volumes.get((fsid, tree))
        with suppress(OSError):  # it was deleted, or the volume was unmounted
            if point is not None:
                with opening.open_directory(point) as fd:
                    path = f"{point.rstrip('/')}/{inode.ino_lookup(fd, tree, number)[1]}"
                if os.stat(path).st_ino == number:  # a lookup finds a name for a while after its deletion
                    return call._replace(file=path)
        return call._replace(file=self._files.get((fsid, tree, number), f"? (inode {number})"))


def _read_names(tid: str, recorded: str) -> tuple[str, str]:
    """Return the names of a thread's process and of the thread; `recorded`, from the trace, if the thread has ended."""
    with suppress(OSError, StopIteration):
        status = Path(f"/proc/{tid}/status").read_text().splitlines()
        group = next(line.split()[1] for line in status if line.startswith("Tgid:"))
        process, thread = (Path(f"/proc/{one}/comm").read_text().removesuffix("\n") for one in (group, tid))
        return process, thread
    name = f"(thread {tid})" if recorded == "<...>" else recorded
    return name, name


def _find_file(tid: str, fd: str | None) -> tuple[str, int]:
    """Return the path and the inode of a thread's descriptor (a hexadecimal number); ("?", 0) if it is closed."""
    with suppress(OSError):
        if fd is not None:
            path = f"/proc/{tid}/fd/{int(fd, 16)}"
            return os.readlink(path), os.stat(path).st_ino
    return "?", 0


def _list_volumes() -> dict[tuple[str, int], str]:
    """Return the mount points of all btrfs: {(fsid, subvolume id): mount point}.

    Mounts of a directory inside a subvolume are left out, and so are mount points that cannot be opened.
    """
    found: dict[tuple[str, int], str] = {}
    for mount in disk_partitions(all=True):
        with suppress(OSError):  # a file is mounted on a file, or the volume was unmounted
            if mount.fstype == "btrfs":
                with opening.open_directory(mount.mountpoint) as fd:
                    if os.fstat(fd).st_ino == inode.FIRST_FREE_OBJECTID:
                        found[volume.fs_info(fd)[0], inode.ino_lookup(fd)[0]] = mount.mountpoint
    return found


@contextmanager
def instance() -> Iterator[Path]:
    """Make a trace instance of our own, yield its directory, and remove it at the end of the block.

    Raises: KeeperError with the reason if no instance can be made.
    """
    if os.readlink("/proc/self/ns/pid") != HOSTS_PROCESSES:
        raise KeeperError(
            f"cannot trace in a container, because a trace has the host's process ids: run it on the host{INSTEAD}"
        )
    name = f"{NAME}{os.getpid()}"
    alone = () if os.path.isdir(f"{TRACEFS}/instances") else own_mounts()
    try:
        with undo_at_end(*alone, "sh", "-c", PREPARE, "sh", TRACEFS, name) as child:
            yield Path(f"/proc/{child}/root{TRACEFS}/instances/{name}")
    except OSError as error:
        raise KeeperError(f"cannot trace: {error.filename}: {error.strerror}{INSTEAD}") from error


@contextmanager
def _open_pipe(place: Path) -> Iterator[int]:
    """Enable the events, and yield the descriptor of the instance's pipe.

    Raises: OSError; EPERM under kernel_lockdown(7).
    """
    settings = {"trace_clock": "mono", "buffer_size_kb": f"{BUFFER_KIB}", "buffer_percent": "0"}
    settings |= {f"events/{event}/enable": "1" for event in EVENTS}
    if not (place / "events/btrfs").exists():
        del settings[f"events/{SYNC_EVENT}/enable"]
    for name, value in settings.items():
        (place / name).write_text(value)
    pipe = os.open(place / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield pipe
    finally:
        os.close(pipe)


def measure(asked: Namespace) -> Steps:
    """Watch the sync calls of all processes for the requested time."""
    callers = Callers()
    found = Measurement(callers.found, COLUMNS)
    with instance() as place, _open_pipe(place) as pipe:
        began_s, lines = time.monotonic(), Lines(pipe)
        try:
            while time.monotonic() < began_s + asked.who:
                yield found
                select.select([pipe], [], [], MOMENT_S)
                _take(lines, callers)
        finally:
            (place / "tracing_on").write_text("0")
            length_us = round(min(asked.who, time.monotonic() - began_s) * 1e6)
            while _take(lines, callers):
                pass
            if number := callers.finish(round(began_s * 1e6) + length_us, length_us):
                found.notes.append(
                    f"{number} of the calls had not returned at the end: their time until then is counted."
                )
            if lost := _count_lost_events(place):
                found.faults.append(f"{lost} events were lost: the counts are too low")
            found.own_verdict = lambda limit: describe(callers.found, length_us, limit)


def _take(lines: Lines, callers: Callers) -> bool:
    """Add the lines that have arrived. Return False if there are none."""
    try:
        for line in lines.take():
            callers.take(line.decode(errors="surrogateescape"))
    except BlockingIOError:
        return False
    return True


def describe(rows: list[Series], length_us: int, limit: Limit) -> str:
    """Return a sentence about all calls, and one about those of journald's main thread."""
    length = span(length_us * 1000)
    if not rows:
        return f"No process synced a file in {length}."
    worst = max(rows, key=lambda row: max(row.took_ns))
    total_ns, words = sum(sum(row.took_ns) for row in rows), worst.labels
    text = (
        f"{_count(rows)} took {span(total_ns)} in {length} ({total_ns / 10 / length_us:.1f}%). The longest, "
        f"{span(max(worst.took_ns))}, was {words['call']} by {words['process']} of {words['file']}."
    )
    mains = [row for row in rows if row.labels["thread"] == row.labels["process"] == JOURNALD]
    if not mains:
        return f"{text} journald's main thread, for which all loggers wait, made none."
    longest_ns = max(max(row.took_ns) for row in mains)
    return (
        f"{text} All loggers waited for {_count(mains)} of journald's main thread, the longest {span(longest_ns)}, "
        f"{limit.compare(longest_ns)}."
    )


def _count(rows: list[Series]) -> str:
    return counted(sum(len(row.took_ns) for row in rows), "call")


def _count_lost_events(place: Path) -> int:
    """Return the number of events that the buffers of all processors dropped (Documentation/trace/ftrace.rst)."""
    text = "".join(path.read_text() for path in place.glob("per_cpu/cpu*/stats"))
    return sum(map(int, re.findall(r"^(?:overrun|dropped events): (\d+)$", text, re.MULTILINE)))
