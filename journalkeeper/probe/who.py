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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

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
EVENTS: Final = (
    *(f"syscalls/sys_{way}_{call}" for call in CALLS for way in ("enter", "exit")),
    *("task/task_newtask", "task/task_rename", "btrfs/btrfs_sync_file"),
)
BUFFER_KIB: Final = 1024
"""The buffer size for each processor: some 10,000 events."""

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

LINE: Final = re.compile(
    r".*-(\d+) +(?:\( *[\d-]+\) )?\[\d+\] \S+ +(\d+)\.(\d{6}): ((?!task_).*|.*oom_score_adj=.*)", re.DOTALL
)
"""A thread's id, seconds and microseconds, and the event. The names in a line can lag behind, so they are not used."""

ENTER: Final = re.compile(rf"sys_({'|'.join(CALLS)})\((?:fd: (0x[0-9a-f]+|[0-9a-f]+))?")
EXIT: Final = re.compile(rf"sys_({'|'.join(CALLS)}) -> ")
SYNC_FILE: Final = re.compile(r"btrfs_sync_file: (?P<fsid>\S+): root=(?P<root>\d+)\(.*\) ino=(?P<ino>\d+) ")
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

LOCKDOWN: Final = Path("/sys/kernel/security/lockdown")
INSTEAD: Final = "; instead: strace -c -f -p PID"


class Under(NamedTuple):
    """A call that has begun: its name, time, process and thread, and the file as far as it is known."""

    call: str
    began_us: int
    process: str
    thread: str
    file: str
    inode: int


class Callers:
    """The calls in a trace, by process, thread, call and file.

    The names of threads are those of /proc at the start, and then those of the trace's own events, so that also a
    thread that ended at once has its name.
    """

    def __init__(self) -> None:
        self.found: list[Series] = []
        self.unread = ""
        self._series: dict[tuple[str, str, str, str], Series] = {}
        self._under: dict[str, Under] = {}
        self._files: dict[tuple[str, int, int], str] = {}
        self._volumes = _volumes()
        self._groups: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for path in Path("/proc").glob("[0-9]*/task/*/comm"):
            try:
                self._names[path.parts[4]] = path.read_text().removesuffix("\n")
                self._groups[path.parts[4]] = path.parts[2]
            except OSError:
                continue  # it has ended

    def take(self, line: str) -> None:
        """Add one line of the trace, or a part of a line: a thread's name may contain line breaks."""
        if line.startswith("CPU:"):
            return  # lost events are counted by _count_lost_events
        line = self.unread + line
        match = LINE.match(line)
        self.unread = f"{line}\n" if match is None and line else ""
        if match is None:
            return
        tid, seconds, micros, what = match.groups()
        now_us = int(seconds + micros)
        if enter := ENTER.match(what):
            self._under[tid] = self._begin(tid, now_us, *enter.groups())
        elif (sync := SYNC_FILE.match(what)) and tid in self._under:
            self._under[tid] = self._resolve_file(self._under[tid], sync)
        elif EXIT.match(what) and tid in self._under:
            call = self._under.pop(tid)
            self._add(call, now_us - call.began_us)
        elif new := NEW_TASK.match(what):
            self._groups[new[1]] = self._groups.get(tid, tid) if int(new[3], 16) & CLONE_THREAD else new[1]
            self._names[new[1]] = new[2]
        elif rename := RENAME.match(what):
            self._names[rename[1]] = rename[2]

    def _begin(self, tid: str, now_us: int, call: str, fd: str | None) -> Under:
        """Return the record of a call that begins now, with the path of its file from /proc.

        The path is looked up at once, because the process may close the file. It is "?" if it cannot be found.
        """
        group = self._groups.get(tid, tid)
        file, number = "?", 0
        if fd is not None:
            path = f"/proc/{group}/fd/{int(fd, 16)}"
            with suppress(OSError):  # the process has ended, or closed the file: btrfs may name it
                number, file = os.stat(path).st_ino, os.readlink(path)
        thread = self._names.get(tid, f"(thread {tid})")
        return Under(call, now_us, self._names.get(group, thread), thread, file, number)

    def _add(self, call: Under, took_us: int) -> None:
        """Add the start and the duration of one call to the Series of its process, thread, call and file.

        The first call makes the Series and appends it to `found`.
        """
        key = (call.process, call.thread, call.call, call.file)
        if key not in self._series:
            words = dict(zip(("process", "thread", "call", "file"), map(shown, key), strict=True))
            self._series[key] = Series(" ".join(words.values()), words)
            self.found.append(self._series[key])
        self._series[key].add(call.began_us * 1000, took_us * 1000)

    def finish(self, now_us: int, length_us: int) -> int:
        """Add the calls that have not returned by `now_us`, with their time so far, and return their number.

        Each row gets its share: the time of its calls as a percentage of `length_us`.
        """
        open_calls = list(self._under.values())
        for call in open_calls:
            self._add(call, max(0, now_us - call.began_us))
        for series in self.found:
            series.labels["share"] = f"{sum(series.took_ns) / 1000 / length_us:.1%}"
        return len(open_calls)

    def _resolve_file(self, call: Under, sync: re.Match[str]) -> Under:
        """Return the call with the file that btrfs names. Its inode is right even if the descriptor was closed at once.

        Its path from here is preferred to the name from /proc, which is that of another mount namespace.
        """
        tree, number = int(sync["root"]), int(sync["ino"])
        key = (sync["fsid"].lower(), tree, number)
        if number == call.inode:
            self._files[key] = call.file
        point = self._volumes.get(key[0], {}).get(tree)
        with suppress(OSError):  # it was deleted, or the volume was unmounted
            if point is not None:
                with opening.open_directory(point) as fd:
                    path = f"{point.rstrip('/')}/{inode.ino_lookup(fd, tree, number)[1]}"
                if os.stat(path).st_ino == number:  # a lookup finds a name for a while after its deletion
                    return call._replace(file=path)
        return call._replace(file=self._files.get(key, f"? (inode {number})"))


def _volumes() -> dict[str, dict[int, str]]:
    """Return the mount points of every btrfs: {fsid: {subvolume id: mount point}}.

    Mounts of a directory inside a subvolume are left out, and so are mount points that cannot be opened.
    """
    found: dict[str, dict[int, str]] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if not kind.startswith("btrfs "):
            continue
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields.split()[4])
        try:
            with opening.open_directory(point) as fd:
                if os.fstat(fd).st_ino == inode.FIRST_FREE_OBJECTID:
                    found.setdefault(volume.fs_info(fd)[0], {})[inode.ino_lookup(fd)[0]] = point
        except OSError:
            continue  # a file is mounted on a file, or the volume was unmounted
    return found


@contextmanager
def instance() -> Iterator[Path]:
    """Make a trace instance of our own, yield its directory, and remove it at the end of the block.

    Its name contains the number of our PID namespace and our process id, so that equal process ids in different
    namespaces do not collide.

    Raises: KeeperError with the reason if no instance can be made.
    """
    processes = os.readlink("/proc/self/ns/pid")
    if processes != HOSTS_PROCESSES:
        raise KeeperError(
            f"cannot trace in a container, because a trace has the host's process ids: run it on the host{INSTEAD}"
        )
    name = f"{NAME}{processes.strip('pid:[]')}-{os.getpid()}"
    alone = () if os.path.isdir(f"{TRACEFS}/instances") else own_mounts()
    try:
        with undo_at_end(*alone, "sh", "-c", PREPARE, "sh", TRACEFS, name) as child:
            yield Path(f"/proc/{child}/root{TRACEFS}/instances/{name}")
    except OSError as error:
        locked = LOCKDOWN.exists() and "[none]" not in LOCKDOWN.read_text()
        why = "the kernel is locked down (kernel_lockdown(7))" if locked else f"{error.filename}: {error.strerror}"
        raise KeeperError(f"cannot trace: {why}{INSTEAD}") from error


def measure(asked: Namespace) -> Steps:
    """Watch the sync calls of all processes for the requested time."""
    callers = Callers()
    found = Measurement(callers.found, COLUMNS)
    length_us = round(asked.who * 1e6)
    found.own_verdict = lambda limit: describe(callers.found, length_us, limit)
    with ExitStack() as stack:
        place = stack.enter_context(instance())
        pipe = _open_pipe(place, stack)
        began_us = time.monotonic_ns() // 1000
        try:
            yield from _trace(place, pipe, asked.who, callers, found)
        finally:
            length_us = min(length_us, time.monotonic_ns() // 1000 - began_us)
            if number := callers.finish(began_us + length_us, length_us):
                found.notes.append(
                    f"{number} of the calls had not returned at the end: their time until then is counted."
                )


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
    compared = "within" if longest_ns <= limit.ns else "over"
    return (
        f"{text} All loggers waited for {_count(mains)} of journald's main thread, the longest {span(longest_ns)}, "
        f"{compared} {span(limit.ns)} ({limit.source})."
    )


def _count(rows: list[Series]) -> str:
    return counted(sum(len(row.took_ns) for row in rows), "call")


def _open_pipe(place: Path, stack: ExitStack) -> int:
    """Enable the events and return the descriptor of the instance's pipe.

    Raises: OSError; EPERM under lockdown.
    """
    (place / "trace_clock").write_text("mono")
    (place / "buffer_size_kb").write_text(str(BUFFER_KIB))
    (place / "buffer_percent").write_text("0")
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
        if lost := _count_lost_events(place) + bool(callers.unread):
            found.faults.append(f"{lost} events were lost: the counts are too low")


def _count_lost_events(place: Path) -> int:
    """Return the number of events that the buffers of all processors dropped (Documentation/trace/ftrace.rst)."""
    text = "".join(path.read_text() for path in place.glob("per_cpu/cpu*/stats"))
    return sum(map(int, re.findall(r"^(?:overrun|dropped events): (\d+)$", text, re.MULTILINE)))
