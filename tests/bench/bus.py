# SPDX-License-Identifier: LGPL-2.1-or-later
"""What many readers of the bus wait, and what the work waits for them.

    sudo python -m tests.bench.bus
    sudo python -m tests.bench.bus --seconds 60 --clients 50

A service on a private system bus defragments archives in small chunks, alone and then while
clients read all of its properties, each again as soon as it has them. The volume is a slow one,
so that a chunk takes its time and not the processor's. It is timed from outside, by strace:
from DEFRAG_RANGE to the end of the sync that waits for it. The clients cost little (a call is
some bytes that are sent again) and yet use a processor, as the bus does.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from journalkeeper.bus import names
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests import bus as beds
from tests.bench.figures import Figure, at_most, count_is, need_a_bed, parser, show
from tests.bus import PrivateBus, RawClient, raw_call
from tests.daemon import Daemon
from tests.journal_files import archive_name, put
from tests.patience import eventually

CONFIG = "[Budget]\nBytesPerDay=0\n[Defrag]\nChunkBytes=1M\n"
CALL_MS = 5.0
CHUNK_RATIO = 1.1
LINE = re.compile(r"(?:\d+ +)?(?P<at>[\d.]+) (?P<call>.*?)(?: = .*<(?P<took>[\d.]+)>)?$")


class Crowd:
    """Clients that read all properties of the manager, each again as soon as it has them, and what they waited."""

    def __init__(self, bus: PrivateBus, clients: int) -> None:
        self._call = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.PROPERTIES, "GetAll", "s", names.MANAGER)
        self._clients = [RawClient(str(bus.socket)) for _ in range(clients)]
        self.waits_s: list[float] = []

    def read(self, seconds: float) -> None:
        """Go on for so long."""
        asked: dict[RawClient, float] = {}
        with selectors.DefaultSelector() as ready:
            for client in self._clients:
                ready.register(client.socket, selectors.EVENT_READ, client)
                asked[client] = time.perf_counter()
                client.send(self._call)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                for key, _ in ready.select(1):
                    client = key.data
                    if client.replies():
                        now = time.perf_counter()
                        self.waits_s.append(now - asked[client])
                        asked[client] = now
                        client.send(self._call)

    def close(self) -> None:
        """All hang up."""
        for client in self._clients:
            client.socket.close()


class Work:
    """A job over fresh copies of an archive, seen by strace."""

    def __init__(self, bus: PrivateBus, daemon: Daemon, place: Path) -> None:
        self._bus = bus
        self._daemon = daemon
        self._place = place
        self._number = 0

    def copies(self, content: bytes, count: int) -> None:
        """Make so many fragmented ones."""
        for _ in range(count):
            self._number += 1
            put(self._place, content, archive_name(self._number))

    @contextmanager
    def job(self, trace: Path) -> Iterator[None]:
        """A job that is over when the block ends, with its system calls in `trace`."""
        # Not the event loop's thread: each of its calls would wait for strace.
        tasks = Path(f"/proc/{self._daemon.process.pid}/task")
        workers = [f"-p{task.name}" for task in tasks.iterdir() if task.name != tasks.parent.name]
        words = ["-ttt", "-T", "-e", "trace=ioctl,sync_file_range,fsync", "-o", f"{trace}", *workers]
        follower = subprocess.Popen(["strace", *words], stderr=subprocess.DEVNULL)
        try:
            assert eventually(trace.exists)
            found = self._manager("Defragment", "a{sv}", "1", "now", "b", "true").split('"')[1]
            yield
            ended = ("busctl", f"--address={self._bus.address}", "introspect", names.BUS_NAME, found)
            assert eventually(lambda: self._bus.run(*ended).returncode != 0, 300)
        finally:
            follower.terminate()
            follower.wait()

    def _manager(self, *words: str) -> str:
        where = ("call", names.BUS_NAME, names.MANAGER_PATH, names.MANAGER)
        return self._bus.run("busctl", f"--address={self._bus.address}", *where, *words, check=True).stdout


def chunks_s(trace: Path) -> list[float]:
    """How long each chunk took: from a DEFRAG_RANGE to the end of the last sync before the next one."""
    took: list[float] = []
    began = ended = 0.0
    for line in trace.read_text(errors="replace").splitlines():
        found = LINE.match(line)
        if found is None:
            continue
        if "DEFRAG_RANGE" in found["call"]:
            if ended > began > 0:
                took.append(ended - began)
            began = float(found["at"])
        elif "sync_file_range" in found["call"]:
            ended = float(found["at"]) + float(found["took"] or 0)
    return [*took, ended - began] if ended > began > 0 else took


def archive(volume: ScratchVolume) -> bytes:
    """What is in a journald's archive of some MiB."""
    settings = ("SystemMaxFileSize=128M", "SystemMaxUse=512M")
    with PrivateJournald(volume.mountpoint / "content", settings=settings) as journald:
        journald.age(20)
        return journald.rotate().read_bytes()


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--clients", type=int, default=50, help="that read at the same time (default: %(default)s)")
    words.add_argument("--seconds", type=float, default=10, help="for which they read (default: %(default)s)")
    words.add_argument("--archives", type=int, default=10, help="that a job rewrites (default: %(default)s)")
    words.add_argument("--iops", type=int, default=500, help="of the volume, 0: no limit (default: %(default)s)")
    asked = words.parse_args()
    need_a_bed(words)
    reason = beds.missing() or (None if shutil.which("strace") else "strace is not installed")
    if reason:
        words.exit(1, f"{words.prog}: {reason}\n")
    with PrivateBus() as bus, ScratchVolume("4G") as volume:
        content = archive(volume)
        place = volume.mountpoint / "journal" / ("0123456789abcdef" * 2)
        place.mkdir(parents=True)
        with Daemon(volume.base / "service", place.parent, bus, CONFIG) as daemon:
            work = Work(bus, daemon, place)
            work.copies(content, asked.archives)
            os.sync()
            volume.throttle(asked.iops)
            with work.job(volume.base / "alone"):
                pass
            volume.throttle(0)
            work.copies(content, asked.archives)
            os.sync()
            volume.throttle(asked.iops)
            resident_kib = daemon.rss_kib()
            crowd = Crowd(bus, asked.clients)
            with work.job(volume.base / "beside"):
                crowd.read(asked.seconds)
            crowd.close()
            grown_kib = daemon.rss_kib() - resident_kib
            alone, beside = chunks_s(volume.base / "alone"), chunks_s(volume.base / "beside")
    waits_ms = sorted(wait * 1000 for wait in crowd.waits_s)
    figures = [
        at_most("a call, median, ms", median(waits_ms), CALL_MS),
        Figure("a call, 99 of 100, ms", f"{waits_ms[len(waits_ms) * 99 // 100]:.3g}"),
        Figure("calls a second", f"{len(waits_ms) / asked.seconds:.0f}"),
        at_most("the longest chunk beside the clients / alone", max(beside) / max(alone), CHUNK_RATIO),
        Figure("a chunk alone, median, ms", f"{median(alone) * 1000:.3g}"),
        Figure("a chunk beside the clients, median, ms", f"{median(beside) * 1000:.3g}"),
        Figure("the longest chunk alone, ms", f"{max(alone) * 1000:.3g}"),
        Figure("the longest chunk beside the clients, ms", f"{max(beside) * 1000:.3g}"),
        Figure("resident size, grown by KiB", str(grown_kib)),
        count_is("the service ended", int(daemon.process.returncode != 0), 0),
    ]
    notes = [f"{asked.clients} clients for {asked.seconds:g} s; {len(alone)} and {len(beside)} chunks"]
    show("Many readers of the bus", notes, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
