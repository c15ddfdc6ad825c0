# SPDX-License-Identifier: LGPL-2.1-or-later
"""A trace of the processes that sync files and of the duration of each call, from our own tracefs instance.

Counts are exact, or a fault reports how many events the kernel dropped.
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

from psutil import disk_partitions

from journalkeeper.btrfs import inode, volume
from journalkeeper.journald import opening
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.escape import shown
from journalkeeper.model.units import counted
from journalkeeper.probe.base import NAME, Measurement, Steps, read_lines
from journalkeeper.probe.distribution import Limit, Series
from journalkeeper.probe.distribution import format_wait as span
from journalkeeper.probe.scratch_volume import OWN_MOUNTS, undo_at_end

TRACEFS: Final = "/sys/kernel/tracing"
CALLS: Final = ("fsync", "fdatasync", "sync_file_range", "msync", "syncfs")
EVENTS: Final = ("task/task_newtask", "task/task_rename", *(f"syscalls/sys_*_{call}" for call in CALLS))
BUFFER_KIB: Final = 1024
"""The buffer size for each processor: some 10,000 events."""

PREPARE: Final = """
set -e
[ -d "$1/instances" ] || mount -t tracefs tracefs "$1"
for dead in "$1"/instances/"${2%-*}"-*; do
    [ -d "/proc/${dead##*-}" ] || rmdir "$dead" || :
done
mkdir "$1/instances/$2"
trap 'echo 0 >tracing_on; cd /; while [ -d "$1/instances/$2" ] && ! rmdir "$1/instances/$2"; do sleep 0.1; done' EXIT
trap exit TERM
cd "$1/instances/$2"
echo mono >trace_clock
echo "$3" >buffer_size_kb
echo 0 >buffer_percent
[ ! -d events/btrfs ] || echo 1 >events/btrfs/btrfs_sync_file/enable
for event in $4; do
    for switch in events/$event/enable; do echo 1 >"$switch"; done
done
echo $$
read -r _ || :
"""
"""Make a trace instance and print our process id. Remove the instance when stdin ends.

Writing to it fails under kernel_lockdown(7).
"""

LINE: Final = re.compile(
    r".*-(\d+) +(?:\( *[\d-]+\) )?\[\d+\] \S+ +(\d+)\.(\d{6}): ((?!task_).*|.*oom_score_adj=.*)", re.DOTALL
)
"""A thread's id, perhaps the process's (the option record-tgid, which an instance inherits), seconds and microseconds,
and the event. The names in a line can lag behind, so they are not used.
"""

ENTER: Final = re.compile(rf"sys_({'|'.join(CALLS)})\((?:fd: (0x[0-9a-f]+|[0-9a-f]+))?")
EXIT: Final = re.compile(rf"sys_({'|'.join(CALLS)}) -> ")
SYNC_FILE: Final = re.compile(r"btrfs_sync_file: (\S+): root=(\d+)\(.*\) ino=(\d+) ")
NEW_TASK: Final = re.compile(r"task_newtask: pid=(\d+) comm=(.*) clone_flags=([0-9a-f]+) oom_score_adj=", re.DOTALL)
RENAME: Final = re.compile(r"task_rename: pid=(\d+) oldcomm=.* newcomm=(.*) oom_score_adj=", re.DOTALL)
CLONE_THREAD: Final = 0x10000
"""Source: clone(2), linux/sched.h."""

COLUMNS: Final = ("process", "call", "count", "mean", "worst", "total", "share")
JOURNALD: Final = "systemd-journal"
"""The main thread's name: all loggers wait for it. Its thread "journal-offline" delays only writers of the same pages.
"""

HOSTS_PROCESSES: Final = "pid:[4026531836]"
"""The first PID namespace; a trace names processes by their ids in it (PROC_PID_INIT_INO, linux/proc_ns.h)."""

INSTEAD: Final = "; instead: strace -c -f -p PID"


class Callers:
    """The calls in a trace, by process, thread, call and file, in `found`. `unread` has lines of an unknown form.

    The names of threads are those of /proc at the start, and then those of the trace's own events, so that also a
    thread that ended at once has its name.
    """

    def __init__(self) -> None:
        self.found: list[Series] = []
        self.unread = ""
        self._series: dict[tuple[str, ...], Series] = {}
        self._under: dict[str, tuple[int, int, dict[str, str]]] = {}
        """For each thread, the time in us at which its call began, the file's inode, and the labels of the row."""
        self._volumes = _list_volumes()
        self._groups: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for path in Path("/proc").glob("[0-9]*/task/*/comm"):
            with suppress(OSError):  # it has ended
                self._names[path.parts[4]] = path.read_text().removesuffix("\n")
                self._groups[path.parts[4]] = path.parts[2]

    def take(self, line: str) -> None:
        """Add one line of the trace, or a part of a line: a thread's name may contain line breaks."""
        if line.startswith("CPU:"):
            return  # lost events are counted by _count_lost_events
        match = LINE.match(self.unread + line)
        self.unread = f"{self.unread}{line}\n" if match is None else ""
        if match is None:
            return
        tid, seconds, micros, what = match.groups()
        now_us = int(seconds + micros)
        if enter := ENTER.match(what):
            group = self._groups.get(tid, tid)
            thread = self._names.get(tid, f"(thread {tid})")
            file, number = _find_file(group, enter[2])
            words = {"process": self._names.get(group, thread), "thread": thread, "call": enter[1], "file": file}
            self._under[tid] = now_us, number, words
        elif tid in self._under and (sync := SYNC_FILE.match(what)):
            _, number, words = self._under[tid]
            unknown = words["file"] if int(sync[3]) == number else f"? (inode {sync[3]})"
            words["file"] = self._find_path(sync[1].lower(), int(sync[2]), int(sync[3])) or unknown
        elif tid in self._under and EXIT.match(what):
            self._add(tid, now_us)
        elif new := NEW_TASK.match(what):
            self._groups[new[1]] = self._groups.get(tid, tid) if int(new[3], 16) & CLONE_THREAD else new[1]
            self._names[new[1]] = new[2]
        elif rename := RENAME.match(what):
            self._names[rename[1]] = rename[2]

    def _add(self, tid: str, now_us: int) -> None:
        """Add a thread's call, which ended now, to the Series of its process, thread, call and file."""
        began_us, _, words = self._under.pop(tid)
        key = tuple(words.values())
        if key not in self._series:
            labels = {name: shown(word) for name, word in words.items()}
            self._series[key] = Series(" ".join(labels.values()), labels)
            self.found.append(self._series[key])
        self._series[key].add(began_us * 1000, max(0, now_us - began_us) * 1000)

    def finish(self, now_us: int, length_us: int) -> int:
        """Add the calls that have not returned by `now_us`, with their time so far, and return their number.

        Each row gets its share: the time of its calls as a percentage of `length_us`.
        """
        unfinished = list(self._under)
        for tid in unfinished:
            self._add(tid, now_us)
        for series in self.found:
            series.labels["share"] = f"{sum(series.took_ns) / 1000 / length_us:.1%}"
        return len(unfinished)

    def _find_path(self, fsid: str, tree: int, number: int) -> str | None:
        """Return the path from here of the file with inode `number` in a subvolume; None if it cannot be found.

        It is right even if the descriptor was closed at once, and /proc may have the name of another mount namespace.
        """
        point = self._volumes.get((fsid, tree))
        with suppress(OSError):  # it was deleted, or the volume was unmounted
            if point is not None:
                with opening.open_directory(point) as fd:
                    path = f"{point.rstrip('/')}/{inode.ino_lookup(fd, tree, number)[1]}"
                if os.stat(path).st_ino == number:  # a lookup finds a name for a while after its deletion
                    return path
        return None


def _find_file(process: str, fd: str | None) -> tuple[str, int]:
    """Return the path and the inode of a process's descriptor (a hexadecimal number); ("?", 0) if it is closed."""
    with suppress(OSError):
        if fd is not None:
            path = f"/proc/{process}/fd/{int(fd, 16)}"
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
    alone = () if os.path.isdir(f"{TRACEFS}/instances") else OWN_MOUNTS
    words = (*alone, "sh", "-c", PREPARE, "sh", TRACEFS, name, str(BUFFER_KIB), " ".join(EVENTS))
    with undo_at_end(*words) as child:
        yield Path(f"/proc/{child}/root{TRACEFS}/instances/{name}")


def measure(asked: Namespace) -> Steps:
    """Watch the sync calls of all processes for the requested time."""
    callers = Callers()
    found = Measurement(callers.found, COLUMNS)
    with instance() as place, open(place / "trace_pipe", "rb", buffering=0) as pipe:
        began_s = time.monotonic()
        try:
            yield found
            for lines in read_lines(pipe.fileno()):
                for line in lines:
                    callers.take(line.decode(errors="surrogateescape"))
                yield found
                if time.monotonic() >= began_s + asked.who:
                    (place / "tracing_on").write_text("0")
                    if not lines:
                        break
        finally:
            length_us = round(min(asked.who, time.monotonic() - began_s) * 1e6)
            if number := callers.finish(round(began_s * 1e6) + length_us, length_us):
                found.notes.append(
                    f"{number} of the calls had not returned at the end: their time until then is counted."
                )
            if lost := _count_lost_events(place) + bool(callers.unread):
                found.faults.append(f"{lost} events were lost: the counts are too low")
            found.own_verdict = lambda limit: describe(callers.found, length_us, limit)


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
    waited = f"All loggers waited for {_count(mains)} of journald's main thread, the longest {span(longest_ns)}"
    return f"{text} {waited}, {limit.compare(longest_ns)}."


def _count(rows: list[Series]) -> str:
    return counted(sum(len(row.took_ns) for row in rows), "call")


def _count_lost_events(place: Path) -> int:
    """Return the number of events that the buffers of all processors dropped (Documentation/trace/ftrace.rst)."""
    text = "".join(path.read_text() for path in place.glob("per_cpu/cpu*/stats"))
    return sum(map(int, re.findall(r"^(?:overrun|dropped events): (\d+)$", text, re.MULTILINE)))
