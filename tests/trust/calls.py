# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every system call of the work fails in every way, kills the process, or brings a SIGTERM.

    python -m tests.trust.calls [--points N] [--seed N] [--only FLOW]
    python -m tests.trust.calls --replay FLOW:CALL:K:FAULT      # as failing points are named

Without --points every point is tried: each call of each flow, with each fault; of the whole command, which does the
same again and makes thousands of calls, COMMAND_POINTS. With --points, a random choice of so many of each flow.
A fault is an errno, or SIGKILL or SIGTERM before the call. Calls that only the process itself can make fail (memory
given back, signal masks, locks of threads) get the signals, and no errno.

Lost: a journal file is gone or differs in anything (its modification time after the next run), an entry is gone,
the record does not open or lacks rows. Left unclean: the work ended without an outcome or an error of ours and was
not killed; or the next run fails, or leaves a temporary file or a note. Outage: how long the work took with the
fault, and the next run after it.
"""

from __future__ import annotations

import collections
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from unittest.mock import patch

from journalkeeper.cli import progress
from journalkeeper.cli.program import run as command
from journalkeeper.history.record import Record
from journalkeeper.journald.header import STATE_OFFSET
from journalkeeper.model import KIB, Action, Kind
from journalkeeper.model.errors import InternalError, KeeperError, catch_errors
from journalkeeper.model.run import Done
from journalkeeper.model.waiting import Wait
from journalkeeper.probe.bed import OFFLINE, PrivateJournald
from journalkeeper.probe.scratch_volume import ScratchVolume
from journalkeeper.probe.scratch_volume import run as tool
from tests import hosts
from tests.bench.figures import Option
from tests.btrfs.journals import action, do
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put
from tests.trust import claims, faulty, inside, table
from tests.trust.faulty import Ended
from tests.trust.tally import Tally
from tests.trust.wholeness import adorn, allocate_ahead, differences, next_run, record_troubles, whole

ERRNOS: Final = ("EIO", "ENOSPC", "EINTR", "EAGAIN", "EPERM", "EBUSY", "ENOMEM", "EDQUOT", "EROFS")
SIGNALS: Final = ("SIGKILL", "SIGTERM")
CANNOT_FAIL: Final = frozenset(
    {"munmap", "mprotect", "madvise", "futex", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "getpid", "gettid"}
    | {"exit_group", "exit", "set_robust_list", "rseq", "getuid", "geteuid", "getgid", "getegid", "sched_yield"}
)
MESSAGES: Final = 10
ROWS: Final = 5
COMMAND_POINTS: Final = 300
STATE: Final = "STATE_DIRECTORY"
VOLUME: Final = ("uuid-a", 256)
FIELD: Final = "LAB_NUMBER"
DONE: Final = re.compile(r"done [\w-]+: (\d+) extents; ")


class Looked(NamedTuple):
    """What was lost and what is left after a point, and how long the run took that came next.

    `cleaned`: that run had something to remove or to put back.
    """

    lost: list[str]
    unclean: list[str]
    took_s: float
    cleaned: bool = False


class Flow(Protocol):
    """One kind of work: made ready, done in a child, looked at afterwards."""

    def ready(self) -> None:
        """Bring everything to where it is before a point."""

    def first(self) -> None:
        """What the child does before it begins."""

    def work(self) -> str:
        """Do it, and say what became of it."""

    def look(self, said: str) -> Looked:
        """What came of it, before and after the next run; `said` is "" if the work was killed."""


def in_words(what: Done | InternalError) -> str:
    """An outcome in words."""
    if isinstance(what, InternalError):
        return f"internal-error: {what.detail}"
    outcome = what.outcome
    return f"{outcome.result} {outcome.reason}: {outcome.extents_after} extents; {outcome.detail}"


class FileFlow:
    """One journal file, which its action rewrites or moves."""

    def __init__(self, base: Path, content: bytes, *, name: str, nocow: bool = False) -> None:
        self._top, self._state = base / "top", base / "state"
        self._content, self._nocow = content, nocow
        self._path = self._top / MACHINE / name

    def ready(self) -> None:
        shutil.rmtree(self._top, ignore_errors=True)
        self._path.parent.mkdir(parents=True)
        put(self._path.parent, self._content, self._path.name, nocow=self._nocow)
        if "@" in self._path.name and not self._nocow:
            allocate_ahead(self._path)
        adorn(self._path)
        self._before, self._action = whole(self._path), action(self._path)

    def first(self) -> None:
        """Nothing."""

    def work(self) -> str:
        with progress.catch_signals("") as stop:
            return in_words(catch_errors(partial(do, self._action, stop=stop, chunk_bytes=256 * KIB)))

    def look(self, said: str) -> Looked:
        lost = differences(self._before, self._path, finished=False)
        if claim := DONE.match(said):
            lost += claims.contradict_extents(self._path, int(claim[1]))
        after = next_run(self._top, self._state)
        lost += differences(self._before, self._path, finished=True)
        return Looked(lost, after.failed + after.left, after.took_s, after.cleaned)


class RotationFlow:
    """A journald that is made to rotate."""

    def __init__(self, base: Path, journald: PrivateJournald) -> None:
        self._journald, self._pid = journald, journald.pid
        self._state, self._count = base / "state", 0
        self._action: Action | None = None

    def ready(self) -> None:
        for path in self._journald.journal.glob("*@*"):
            path.unlink()
        for number in range(self._count + 1, self._count + MESSAGES + 1):
            self._journald.log(f"entry {number}", **{FIELD: f"{number}"})
        self._count += MESSAGES
        self._journald.sync()

    def first(self) -> None:
        inside.enter(self._pid)
        self._action = inside.rotation()

    def work(self) -> str:
        assert self._action is not None
        with progress.catch_signals(""):
            return in_words(catch_errors(partial(do, self._action)))

    def look(self, said: str) -> Looked:
        del said
        after = next_run(self._journald.directory, self._state)
        journal = self._journald.directory
        text = tool("journalctl", "--quiet", "--no-pager", "-D", journal, "-o", "cat", f"--output-fields={FIELD}")
        found = {int(line) for line in text.split() if line.isdigit()}
        gone = set(range(self._count - MESSAGES + 1, self._count + 1)) - found
        lost = [f"{len(gone)} entries of {MESSAGES}"] if gone else []
        return Looked(lost, after.failed + after.left, after.took_s, after.cleaned)


class RecordFlow:
    """The record of a run."""

    def __init__(self, base: Path) -> None:
        self._state, self._before = base / "state", base / "before"
        with Record(self._before) as record:
            for number in range(ROWS):
                self._keep(record, number)

    def _keep(self, record: Record, number: int) -> None:
        record.outcome(1, VOLUME, hosts.done(number), number)

    def ready(self) -> None:
        shutil.rmtree(self._state, ignore_errors=True)
        shutil.copytree(self._before, self._state)

    def first(self) -> None:
        """Nothing."""

    def work(self) -> str:
        try:
            with Record(self._state) as record:
                run_id = record.begin_run(1, "defrag")
                self._keep(record, ROWS)
                self._keep(record, ROWS + 1)
                record.observe(10**9, hosts.host(hosts.file(Kind.ACTIVE)))
                record.wait([Wait("/j/1.journal", 1, "pressure")], now_us=0)
                record.end_run(run_id, 1)
                record.prune(1, 1 << 62)
        except KeeperError as error:
            return f"error: {error}"
        return "done"

    def look(self, said: str) -> Looked:
        began = time.monotonic()
        unclean = []
        try:
            with Record(self._state) as record:
                record.begin_run(2, "defrag")
        except KeeperError as error:
            unclean.append(str(error))
        took_s = time.monotonic() - began
        return Looked(record_troubles(self._state, ROWS + 2 * (said == "done")), unclean, took_s)


def rows_in(state: Path) -> int:
    """How many outcomes are recorded."""
    with Record(state, read_only=True) as record:
        return len(record.history())


class CommandFlow:
    """`journalkeeper defrag` over a directory with an archive of each kind, as a user has it.

    It is done once before, so that all modules are there: a disk that does not give the interpreter the program
    is nothing that the program can answer for. What its look does in a thread of its own meets no fault.
    """

    def __init__(self, base: Path, content: bytes) -> None:
        self._top, self._state, self._said = base / "top", base / "state", base / "said"
        self._report = base / "report"
        self._conf = base / "conf"
        base.mkdir()
        self._conf.write_text("[Nocow]\nNocow=no\n[Defrag]\nMinReclaim=0\n[Budget]\nKeepFree=0\n")
        self._content = content
        self.ready()
        with patch.dict(os.environ, {STATE: os.fspath(self._state)}), redirect_stdout(io.StringIO()):
            self.work()

    def ready(self) -> None:
        shutil.rmtree(self._top, ignore_errors=True)
        (self._top / MACHINE).mkdir(parents=True)
        paths = [put(self._top / MACHINE, self._content, archive_name(number), nocow=number == 2) for number in (1, 2)]
        allocate_ahead(paths[0])
        for path in paths:
            adorn(path)
        self._before = {path: whole(path) for path in paths}
        self._rows = rows_in(self._state)
        self._claims = claims.read_claims(self._state)

    def first(self) -> None:
        os.environ[STATE] = os.fspath(self._state)
        for number, path in ((1, self._report), (2, self._said)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)

    def work(self) -> str:
        words = ["defrag", "-j", "--now", "-D", os.fspath(self._top), "--config", os.fspath(self._conf)]
        return f"exit {command(words)}"

    def look(self, said: str) -> Looked:
        complaints = self._said.read_text()
        unclean = ["a traceback on stderr"] if "Traceback" in complaints else []
        lost = self._differences(finished=False)
        now = claims.read_claims(self._state)
        lost += claims.find_false_claims(self._top, now)
        if said and (report := self._report.read_text()):
            lost += claims.compare_with_report(now, self._claims, json.loads(report), complaints)
        after = next_run(self._top, self._state)
        lost += self._differences(finished=True) + record_troubles(self._state, self._rows)
        return Looked(lost, unclean + after.failed + after.left, after.took_s, after.cleaned)

    def _differences(self, *, finished: bool) -> list[str]:
        rows = self._before.items()
        return [line for path, before in rows for line in differences(before, path, finished=finished)]


FLOWS: Final = ("archive", "nocow", "active", "rotation", "record", "command")


@contextmanager
def flow(name: str, base: Path, content: bytes) -> Iterator[Flow]:
    """The flow of this name, below `base`."""
    match name:
        case "archive":
            yield FileFlow(base, content, name=archive_name())
        case "nocow":
            yield FileFlow(base, content, name=archive_name(), nocow=True)
        case "active":
            offline = content[:STATE_OFFSET] + bytes([OFFLINE]) + content[STATE_OFFSET + 1 :]
            yield FileFlow(base, offline, name="system.journal")
        case "rotation":
            settings = ("SystemMaxFileSize=8M", "SystemMaxUse=128M")
            with PrivateJournald(base / "top", settings=settings) as journald:
                yield RotationFlow(base, journald)
        case "record":
            yield RecordFlow(base)
        case _:
            yield CommandFlow(base, content)


class Point(NamedTuple):
    """One call of a flow, and what happens to it."""

    flow: str
    call: str
    ordinal: int
    fault: str

    @property
    def name(self) -> str:
        """As --replay takes it."""
        return f"{self.flow}:{self.call}:{self.ordinal}:{self.fault}"

    @property
    def injected(self) -> str:
        """As strace takes it."""
        kind = "signal" if self.fault in SIGNALS else "error"
        return f"{self.call}:{kind}={self.fault}:when={self.ordinal}"


def points(name: str, calls: Sequence[tuple[str, int]]) -> list[Point]:
    """Every point of a flow that makes these calls."""
    return [
        Point(name, call, ordinal, fault)
        for call, ordinal in calls
        for fault in (*SIGNALS, *(() if call in CANNOT_FAIL else ERRNOS))
    ]


def attempt(work: Flow, point: Point, log: Path, tally: Tally, answers: collections.Counter[str]) -> None:
    """Try one point; it is not counted where the work did not come to that call this time."""
    work.ready()
    ended = faulty.run(work.work, log, point.injected, first=work.first)
    if not ended.met:
        answers["not met"] += 1
        return
    looked = work.look(ended.said)
    unclean = list(looked.unclean)
    if ended.status is None:
        unclean.append("it did not end")
    elif not ended.said and not os.WIFSIGNALED(ended.status):
        unclean.append("it ended without a word")
    if ended.said.startswith(faulty.RAISED):
        unclean.append(ended.said)
    answers[_short(ended)] += 1
    answers["the next run cleaned up"] += looked.cleaned
    tally.add(point.name, lost=looked.lost, unclean=unclean, outage_s=ended.took_s + looked.took_s)


def _short(ended: Ended) -> str:
    words = ended.said.split(":", 1)
    return ended.said if words[0] == "internal-error" else words[0] or "killed"


def small_archive(base: Path) -> bytes:
    """What is in the smallest archive that a journald writes."""
    with PrivateJournald(base, settings=("SystemMaxFileSize=512K", "SystemMaxUse=64M")) as journald:
        journald.age(4)
        return journald.rotate().read_bytes()


def attempts(names: Sequence[str], tally: Tally, chosen: Callable[[list[Point]], list[Point]]) -> None:
    """Try what `chosen` takes of the points of each of these flows."""
    with ScratchVolume("2G", options="noatime,nodiscard") as volume, tempfile.TemporaryDirectory() as logs:
        content = small_archive(volume.mountpoint / "aged")
        log = Path(logs) / "strace"
        for name in names:
            answers: collections.Counter[str] = collections.Counter()
            with flow(name, volume.mountpoint / name, content) as work:
                work.ready()
                sound = faulty.run(work.work, log, first=work.first)
                if not sound.calls or sound.said.startswith(faulty.RAISED):
                    raise RuntimeError(f"{name} without a fault: {sound}")
                work.look(sound.said)
                for point in chosen(points(name, sound.calls)):
                    attempt(work, point, log, tally, answers)
            sys.stderr.write(f"{name}: {len(sound.calls)} calls; {dict(answers.most_common())}\n")


OPTIONS: Final = {
    "points": Option(None, "so many of each flow, chosen by the seed (default: every one)", int),
    "seed": table.SEED,
    "only": Option(None, "only this flow", str, choices=FLOWS),
    "replay": Option(None, "FLOW:CALL:K:FAULT, only this point", str),
}


def attack(asked: Namespace) -> table.Row:
    """Try the points that were asked for."""
    tally = Tally("calls", asked.seed)
    dice = random.Random(asked.seed)  # noqa: S311 - repeatable is the point

    def chosen(found: list[Point]) -> list[Point]:
        if asked.replay is not None:
            name, call, ordinal, fault = asked.replay.split(":")
            return [Point(name, call, int(ordinal), fault)]
        count = asked.points or (COMMAND_POINTS if found[0].flow == "command" else len(found))
        return found if count >= len(found) else dice.sample(found, count)

    only = asked.replay.partition(":")[0] if asked.replay is not None else asked.only
    attempts([only] if only else FLOWS, tally, chosen)
    return tally.row()


if __name__ == "__main__":
    sys.exit(table.command(__doc__, "calls", attack, OPTIONS))
