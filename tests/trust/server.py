# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bus server of the service with invented files: python -m tests.trust.server FILES LENGTH [ends], until killed.

Each name has LENGTH letters. The owners are the system and the users 1000 and 65534, in turn. A plan without paths
never ends, unless `ends` is given. A plan or job for a path with "mistake" raises an unexpected exception. The log goes
to stderr. stdout has a line that begins with PRIVILEGED for each call of a method that polkit must allow.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

from journalkeeper.bus.server import serve_bus
from journalkeeper.model import JournalFile, Plan, Reason, Request, Skip
from journalkeeper.model.manager import Manager
from journalkeeper.model.run import Report
from journalkeeper.service.jobs import Job, Jobs, Notification
from journalkeeper.service.log import Log
from journalkeeper.service.snapshot import Findings, Snapshot
from tests import hosts

TOP = "/var/log/journal"
PRIVILEGED = "privileged: "
OWNERS = ("system", "user:1000", "user:65534")


def file(number: int, length: int) -> JournalFile:
    """Return an archive all of whose fields are known."""
    owner = OWNERS[number % len(OWNERS)]
    stem = owner.replace(":", "-").ljust(length, "x") if length else owner.replace(":", "-")
    name = f"{stem}@{number:032x}-{number:016x}-{number:016x}.journal"
    return hosts.file(
        path=f"{TOP}/m/{name}",
        inode=number,
        owner=owner,
        instance="m",
        size_bytes=8 << 20,
        allocated_bytes=8 << 20,
        extents=hosts.extents(50, 8 << 20),
        entries=99,
        head_time_us=11,
        tail_time_us=22,
    )


class Made:
    """A service that does no work."""

    def __init__(self, files: int, length: int, say: Callable[[str], None], *, ends: bool) -> None:
        self._say = say
        self.log = Log(None)
        self._ends = ends
        rows = {row.path: row for row in (file(number, length) for number in range(files))}
        skips = {path: Skip(path, Reason.SETTLING, "changed 3s ago") for path in rows}
        self._snapshot = Snapshot((TOP,), findings=Findings(rows, dict(skips), Manager()))
        self._skips = skips
        self.bus_was_tried = asyncio.Event()
        self.followers: list[Callable[[Notification], None]] = []
        self.jobs = Jobs(self._do, self._tell)

    def _tell(self, notification: Notification) -> None:
        for follow in self.followers:
            follow(notification)

    async def _do(self, job: Job) -> tuple[str, Report]:
        self._say(f"{PRIVILEGED}job {job.number}")
        if any("mistake" in path for path in job.request.paths):
            raise RuntimeError("a secret of the inside")
        return "done", Report(Plan({}, (), ()), (), 0, 0.0, ())

    def snapshot(self) -> Snapshot:
        return self._snapshot

    async def refresh(self) -> None: ...

    async def plan(self, request: Request) -> Plan:
        if any("mistake" in path for path in request.paths):
            raise RuntimeError("a secret of the inside")
        if not request.paths and not self._ends:
            await asyncio.Event().wait()
        return Plan({}, (), tuple(self._skips.values()))

    def pause(self, span_us: int) -> None:
        self._say(f"{PRIVILEGED}pause {span_us}")

    def resume(self) -> None:
        self._say(f"{PRIVILEGED}resume")

    def rescan(self) -> None:
        self._say(f"{PRIVILEGED}rescan")

    async def reload(self) -> None:
        self._say(f"{PRIVILEGED}reload")


async def main(files: int, length: int, *, ends: bool) -> None:
    """Serve."""

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    made: Any = Made(files, length, say, ends=ends)
    await serve_bus(made, os.environ["DBUS_SYSTEM_BUS_ADDRESS"])


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), ends=sys.argv[3:] == ["ends"]))
