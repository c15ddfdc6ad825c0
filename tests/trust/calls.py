# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every system call of the work fails in every way, kills the process, or brings a SIGTERM.

    python -m tests.trust.calls [--points N] [--seed N] [--only FLOW]
    python -m tests.trust.calls --replay FLOW:CALL:K:FAULT      # a failing point, by its name

Without --points every point is tried: each call of each flow, with each fault. Of the whole command, which makes
thousands of calls, COMMAND_POINTS are tried. With --points, a random choice of so many of each flow.
A fault is an errno, or SIGKILL or SIGTERM before the call. Calls that only the process itself can make fail (memory
given back, signal masks, locks of threads) get the signals, and no errno.

Lost: a journal file is gone or differs in anything, the history does not open, lacks rows, or claims what other
programs do not see. Unclean: the work raised an exception, or ended without a word and was not killed; the next run
fails, or leaves a temporary file or a note. Outage: the time of the work with the fault, and of the next run.
"""

from __future__ import annotations

import collections
import io
import json
import os
import random
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from unittest.mock import patch

from journalkeeper.cli import progress
from journalkeeper.cli.program import run as command
from journalkeeper.journald.journal_file import STATE_OFFSET
from journalkeeper.model import KIB
from journalkeeper.model.errors import InternalError, catch_errors
from journalkeeper.probe.bed import OFFLINE
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.bench.figures import Option
from tests.btrfs.journals import Bearing, action, allocate_ahead, do
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put
from tests.trust import claims, faulty, table
from tests.trust.scenarios import make_archive
from tests.trust.table import Tally
from tests.trust.wholeness import STATE, adorn, examine, read_rows, whole

ERRNOS: Final = ("EIO", "ENOSPC", "EINTR", "EAGAIN", "EPERM", "EBUSY", "ENOMEM", "EMFILE", "EDQUOT", "EROFS")
SIGNALS: Final = ("SIGKILL", "SIGTERM")
CANNOT_FAIL: Final = frozenset(
    {"munmap", "mprotect", "madvise", "futex", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "getpid", "gettid"}
    | {"exit_group", "exit", "set_robust_list", "rseq", "getuid", "geteuid", "getgid", "getegid", "sched_yield"}
)
COMMAND_POINTS: Final = 300
FLOWS: Final = {
    "archive": [(archive_name(1), False)],
    "nocow": [(archive_name(1), True)],
    "active": [("system.journal", False)],
    "command": [(archive_name(1), False), (archive_name(2), True)],
}
"""The journal files of each flow, and whether they are NOCOW. "command" is `journalkeeper defrag`, as users have it."""


class Flow:
    """One kind of work on journal files below `top`."""

    def __init__(self, name: str, top: Path, content: bytes, log: Path) -> None:
        self._name, self._top, self._content = name, top, content
        self.log = log
        self._own, self._state = top / MACHINE, top / STATE
        self._config = top / "conf"
        self._own.mkdir(parents=True)
        self._config.write_text("[Nocow]\nNocow=no\n[Defrag]\nMinReclaim=0\n[Budget]\nKeepFree=0\n")

    def prepare(self) -> None:
        """Bring everything to where it is before a point."""
        shutil.rmtree(self._own)
        self._own.mkdir()
        for name, nocow in FLOWS[self._name]:
            active = self._content[:STATE_OFFSET] + bytes([OFFLINE]) + self._content[STATE_OFFSET + 1 :]
            path = put(self._own, self._content if "@" in name else active, name, nocow=nocow)
            if "@" in name and not nocow:
                allocate_ahead(path)
            adorn(path)
        paths = sorted(self._own.iterdir())
        self._wanted: dict[str, Bearing] = {f"{path.relative_to(self._top)}": whole(path) for path in paths}
        self._rows, self._claims = read_rows(self._state), claims.read_claims(self._state)
        if self._name != "command":
            self._action = action(paths[0])

    def work(self) -> str:
        """Do the work. Return one line that states the result."""
        if self._name == "command":
            words = ["defrag", "-j", "--now", "-D", f"{self._top}", "--config", f"{self._config}"]
            with patch.dict(os.environ, {"STATE_DIRECTORY": f"{self._state}"}):
                return f"exit {command(words)}"
        with progress.catch_signals(hints=False) as stop:
            done = catch_errors(partial(do, self._action, stop=stop, chunk_bytes=256 * KIB))
        return f"internal-error: {done.detail}" if isinstance(done, InternalError) else f"{done.outcome.result}"

    def look(self, ended: faulty.Ended, name: str, tally: Tally) -> None:
        """Look at what a point has left, let the next run work, and look again."""
        lost, unclean = [], []
        report, complaints = (self.log.with_suffix(suffix).read_text() for suffix in (".out", ".err"))
        if ended.said and report:
            now = claims.read_claims(self._state)
            lost += claims.compare_with_report(now, self._claims, json.loads(report), complaints)
        if ended.status is None:
            unclean.append("it did not end")
        elif not ended.said and not os.WIFSIGNALED(ended.status):
            unclean.append("it ended without a word")
        if ended.said.startswith(faulty.RAISED) or "Traceback" in complaints:
            unclean.append(ended.said + complaints[-300:])
        found = examine(self._top, self._wanted, self._rows)
        took_s = ended.took_s + found.took_s
        tally.add(name, lost=lost + found.lost, unclean=unclean + found.unclean, outage_s=took_s)


class Point(NamedTuple):
    """One call of a flow, and what happens to it."""

    flow: str
    call: str
    ordinal: int
    fault: str

    def __str__(self) -> str:
        """Return its name, as --replay takes it."""
        return ":".join(map(str, self))

    @property
    def injected(self) -> str:
        """The fault, as strace takes it."""
        kind = "signal" if self.fault in SIGNALS else "error"
        return f"{self.call}:{kind}={self.fault}:when={self.ordinal}"


def list_points(name: str, calls: Sequence[tuple[str, int]]) -> list[Point]:
    """Return every point of a flow that makes these calls."""
    return [
        Point(name, call, ordinal, fault)
        for call, ordinal in calls
        for fault in (*SIGNALS, *(() if call in CANNOT_FAIL else ERRNOS))
    ]


def try_points(names: Sequence[str], tally: Tally, choose: Callable[[list[Point]], list[Point]]) -> None:
    """Try the points that `choose` takes of each flow. A point whose call is not made this time does not count.

    Each flow works once in this process before, so that all modules are imported: no program can answer for a disk from
    which the interpreter cannot read the program.
    """
    with ScratchVolume("2G", options="noatime,nodiscard") as volume, tempfile.TemporaryDirectory() as logs:
        content = make_archive()
        for name in names:
            results: collections.Counter[str] = collections.Counter()
            flow = Flow(name, volume.mountpoint / name, content, Path(logs) / name)
            flow.prepare()
            with redirect_stdout(io.StringIO()):
                flow.work()
            flow.prepare()
            sound = faulty.run(flow.work, flow.log)
            if not sound.calls or sound.said.startswith(faulty.RAISED):
                raise RuntimeError(f"{name} without a fault: {sound}")
            for point in choose(list_points(name, sound.calls)):
                flow.prepare()
                ended = faulty.run(flow.work, flow.log, point.injected)
                results[(ended.said.split(":")[0] or "killed") if ended.met else "not met"] += 1
                if ended.met:
                    flow.look(ended, f"{point}", tally)
            table.say(f"{name}: {len(sound.calls)} calls; {dict(results.most_common())}")


OPTIONS: Final = {
    "points": Option(None, "so many of each flow, chosen by the seed (default: every one)", int),
    "only": Option(None, "only this flow", str, choices=FLOWS),
    "replay": Option(None, "FLOW:CALL:K:FAULT, only this point", str),
}


def attack(asked: Namespace, tally: Tally) -> None:
    """Try the points that were asked for."""
    dice = random.Random(asked.seed)  # noqa: S311 - repeatable is the point

    def choose(found: list[Point]) -> list[Point]:
        if asked.replay is not None:
            name, call, ordinal, fault = asked.replay.split(":")
            return [Point(name, call, int(ordinal), fault)]
        count = asked.points or (COMMAND_POINTS if found[0].flow == "command" else len(found))
        return found if count >= len(found) else dice.sample(found, count)

    only = asked.replay.partition(":")[0] if asked.replay is not None else asked.only
    try_points([only] if only else list(FLOWS), tally, choose)


if __name__ == "__main__":
    sys.exit(table.command(__doc__, attack, OPTIONS))
