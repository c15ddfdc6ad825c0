# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the bus shows, from what the service knows; and what a caller asks for, as a Request.

The one rule: pure. Values here are plain ones, in the order of the contract's tables, and
what is not known is 0, "" or, of a budget, the highest number.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from journalkeeper import __version__
from journalkeeper.bus import names
from journalkeeper.journald.names import classify
from journalkeeper.metrics.status import Status
from journalkeeper.model import Action, Host, Instance, JournalFile, Order, Outcome, Plan, Request, Result, Skip
from journalkeeper.model.compression import parse_compression
from journalkeeper.model.errors import UsageError
from journalkeeper.service.jobs import Job

UNLIMITED: Final = (1 << 64) - 1
MOST_PATHS: Final = 1000
MOST_CHARACTERS: Final = 1 << 16
LONGEST: Final = 4096
"""PATH_MAX: no path is longer, and no other text of an option so long."""

FLAGS: Final = ("active", "archived", "now", "allow-unshare")
FLAGS_OF_ALL: Final = (*FLAGS, "upkeep", "before-shutdown")

OPTION_SIGNATURES: Final = {**dict.fromkeys(FLAGS_OF_ALL, "b"), "compress": "s", "paths": "as"}

Doing = Action | Order | Skip | Outcome
Reads = Callable[[str], bool]
"""Whether somebody may know what is in the journal files of an owner."""


class Findings(NamedTuple):
    """What the last whole look found and came to: files, and what is done with each, by path."""

    files: dict[str, JournalFile]
    doing: dict[str, Doing]
    status: Status
    next_flush_us: int
    waits_for: str

    def file(self, path: str, reads: Reads | None = None) -> dict[str, object] | None:
        """The properties of a file for one who `reads`, None if there is no such file."""
        row = self.files.get(path)
        return None if row is None else file(row, self.doing.get(path), reads or anybody)


class Tally(NamedTuple):
    """What was done since the service started; `last_us` is when the last of it was."""

    last_us: int = 0
    written_bytes: int = 0
    reclaimed_bytes: int = 0

    def add(self, outcome: Outcome, now_us: int) -> Tally:
        """With one more outcome."""
        return Tally(
            now_us, self.written_bytes + outcome.bytes_written, self.reclaimed_bytes + reclaimed_bytes(outcome)
        )


class Snapshot(NamedTuple):
    """What the service knows of itself. `problem` is why the last look failed, `working` whether files are at work.

    `limits` says in words which limits are reached: of inotify, of the files that are looked at.
    """

    directories: tuple[str, ...]
    missing: tuple[str, ...] = ()
    findings: Findings | None = None
    tally: Tally = Tally()
    problem: str = ""
    working: bool = False
    paused: bool = False
    intake_p99_us: int = 0
    limits: tuple[str, ...] = ()


class Variant(Protocol):
    """The part of dbus_fast.Variant that is read here."""

    @property
    def signature(self) -> str: ...
    @property
    def value(self) -> Any: ...


def findings(host: Host, plan: Plan, outcomes: tuple[Outcome, ...], status: Status, long: str = "") -> Findings:
    """Of a look at everything and what came of it; `long` says what has waited for more than a day."""
    everything: tuple[Doing, ...] = (*plan.skipped, *plan.orders, *plan.actions, *outcomes)
    doing = {one.path: one for one in everything}
    waiting = "; ".join(words for words in (long, waits_for(plan)) if words)
    return Findings({row.path: row for row in host.files}, doing, status, next_flush_us(host.instances), waiting)


def next_flush_us(instances: tuple[Instance, ...]) -> int:
    """When the first journald flushes, as far as is known."""
    known = [one.online_since_us + one.sync_interval_us for one in instances if one.online_since_us is not None]
    return min((moment for moment in known if moment < UNLIMITED), default=0)


def waits_for(plan: Plan) -> str:
    """What has to be over before something more can be done; "" if nothing is waited for."""
    reasons = sorted({str(skip.reason) for skip in plan.skipped if skip.puts_off})
    return f"waiting because of {', '.join(reasons)}" if reasons else ""


def reclaimed_bytes(outcome: Outcome) -> int:
    """What a file occupies less; 0 where that is not known, or where it occupies more."""
    before, after = outcome.disk_bytes_before, outcome.disk_bytes_after
    return max(0, before - after) if before is not None and after is not None else 0


def state(snapshot: Snapshot) -> tuple[str, str]:
    """State and StateReason."""
    found = snapshot.findings
    if snapshot.working:
        return "working", ""
    if snapshot.paused:
        return "paused", "somebody asked for a pause; Resume ends it"
    if snapshot.problem:
        return "degraded", snapshot.problem
    if snapshot.missing:
        return "waiting", f"waiting for {' and '.join(snapshot.missing)} to appear"
    if found is None:
        return "waiting", "nothing was looked at yet"
    return ("waiting", found.waits_for) if found.waits_for else ("idle", "")


def manager(snapshot: Snapshot) -> dict[str, object]:
    """The properties of the manager."""
    word, reason = state(snapshot)
    found = snapshot.findings
    status = None if found is None else found.status
    left = None if status is None else status.budget_left_bytes
    return {
        "Version": __version__,
        "State": word,
        "StateReason": names.shown(reason),
        "Directories": [names.shown(path) for path in snapshot.directories],
        "FileCount": 0 if status is None else status.files,
        "Extents": 0 if status is None else status.extents,
        "ActiveExtents": 0 if status is None else status.active_extents,
        "FragmentedFiles": 0 if status is None else status.fragmented_files,
        "WindowOpen": status is not None and status.window_open,
        "NextFlushUSec": 0 if found is None else found.next_flush_us,
        "LastRunUSec": snapshot.tally.last_us,
        "BytesWritten": snapshot.tally.written_bytes,
        "BytesReclaimed": snapshot.tally.reclaimed_bytes,
        "BudgetLeft": UNLIMITED if left is None else left,
        "IntakeDelayP99USec": snapshot.intake_p99_us,
        "Paused": snapshot.paused,
        "Limits": [names.shown(sentence) for sentence in snapshot.limits],
    }


def anybody(owner: str) -> bool:
    """What everybody may know: all but what is in users' journals."""
    return not owner.startswith(names.USER_PREFIX)


def for_reader(document: str, reads: Reads) -> str:
    """The JSON `document` of a plan or of a job as one who `reads` may see it: details of others' files are empty."""
    told = json.loads(document)
    for row in told.get("skipped", ()):
        if not reads(_owner(row["path"])):
            row |= {"detail": "", "until_us": None}
    if "details" in told:
        told["details"] = {path: text for path, text in told["details"].items() if reads(_owner(path))}
    return json.dumps(told, separators=(",", ":"))


def _owner(path: str) -> str:
    """Whose journal it is; what is said of a directory, whose name is no file's, may tell of any user's."""
    base = posixpath.basename(path)
    name = classify(base)
    if name is not None:
        return name.owner
    return "system" if ".journal" in base else "user:?"


PRIVATE: Final = {"Entries": 0, "HeadTimeUSec": 0, "TailTimeUSec": 0, "Detail": ""}
"""What a file shows to those who may not read it."""


def file(row: JournalFile, doing: Doing | None, reads: Reads = anybody) -> dict[str, object]:
    """The properties of a file for one who `reads`."""
    known = _file(row, doing)
    return known if reads(row.owner) else {**known, **PRIVATE}


def _file(row: JournalFile, doing: Doing | None) -> dict[str, object]:
    done = doing if isinstance(doing, Outcome) and doing.result is Result.DONE else None
    return {
        "Path": names.shown(row.path),
        "Device": row.device,
        "Inode": row.inode,
        "Kind": str(row.kind),
        "Owner": names.shown(row.owner),
        "Instance": names.shown(row.instance),
        "State": str(row.state),
        "Size": row.size_bytes,
        "AllocatedSize": row.allocated_bytes,
        "SharedSize": row.extents.shared_bytes,
        "Extents": row.extents.total if done is None else done.extents_after,
        "IdealExtents": row.ideal_extents,
        "Compressed": row.compressed,
        "NoCOW": row.nocow,
        "Entries": row.entries,
        "HeadTimeUSec": row.head_time_us,
        "TailTimeUSec": row.tail_time_us,
        "Problem": "" if row.problem is None else str(row.problem),
        "Action": "" if doing is None or isinstance(doing, Skip) else str(doing.action),
        "Reason": "" if doing is None else str(doing.reason),
        "Detail": "" if doing is None or isinstance(doing, Action) else names.shown(doing.detail),
    }


def job(one: Job) -> dict[str, object]:
    """The properties of a job, but for its Options."""
    at = one.progress
    return {
        "Id": one.number,
        "State": one.state,
        "Progress": min(1.0, at.done_bytes / at.total_bytes) if at.total_bytes else 0.0,
        "File": names.shown(at.path),
        "FileNumber": at.number,
        "FileTotal": at.total,
        "BytesDone": at.done_bytes,
        "BytesTotal": at.total_bytes,
    }


def options(request: Request) -> dict[str, tuple[str, object]]:
    """What was asked for, with signatures, as Options shows it."""
    given: dict[str, tuple[str, object]] = {}
    if request.paths:
        given["paths"] = ("as", [names.shown(path) for path in request.paths])
    flags = {
        "active": request.active and not request.archived,
        "archived": request.archived and not request.active,
        "now": request.now,
        "allow-unshare": bool(request.allow_unshare),
        "upkeep": request.upkeep,
        "before-shutdown": request.ending,
    }
    given |= {name: ("b", True) for name, is_set in flags.items() if is_set}
    if request.compress is not None:
        given["compress"] = ("s", request.compress)
    return given


def request(given: Mapping[str, Variant], directories: tuple[str, ...], path: str | None = None) -> Request:
    """What a caller asks for: the same as the command line with the same words.

    `path` is Defragment's; None: DefragmentAll and Plan.

    Raises: UsageError with what is allowed.
    """
    others = () if path is None else (*sorted({*FLAGS_OF_ALL} - {*FLAGS}), "paths")
    allowed = {name: signature for name, signature in OPTION_SIGNATURES.items() if name not in others}
    for name, value in given.items():
        if name not in allowed:
            listed = ", ".join(f"{one} ({signature})" for one, signature in sorted(allowed.items()))
            raise UsageError(f"{_short(name)} is no option; allowed are {listed}")
        if value.signature != allowed[name]:
            raise UsageError(f"option {name} has signature {_short(value.signature)}; it must be {allowed[name]}")
    on = {name: name in given and given[name].value for name in FLAGS_OF_ALL}
    paths = [path] if path is not None else _paths(given)
    ending = on["before-shutdown"]
    both = on["active"] == on["archived"] and not ending
    return Request(
        paths=tuple(dict.fromkeys(checked_path(one, directories) for one in paths)),
        active=on["active"] or both or ending,
        archived=on["archived"] or both,
        now=on["now"] or ending,
        compress=_compression(given["compress"].value) if "compress" in given else None,
        allow_unshare=on["allow-unshare"] or None,
        upkeep=on["upkeep"] or ending,
        ending=ending,
    )


def checked_path(path: str, directories: tuple[str, ...]) -> str:
    """`path`, which must be a file's below one of `directories`, by its name alone.

    Raises: UsageError otherwise.
    """
    plain = len(path) < LONGEST and path.startswith("/") and posixpath.normpath(path) == path
    if not plain or path.startswith("//"):
        raise UsageError(f"{_short(path)} is not an absolute path without . and ..")
    if not any(path.startswith(f"{directory.rstrip('/')}/") for directory in directories):
        raise UsageError(f"{_short(path)} is not below {' or '.join(directories)}; this service is for what is there")
    return path


def _paths(given: Mapping[str, Variant]) -> list[str]:
    paths: list[str] = given["paths"].value if "paths" in given else []
    if "paths" in given and not 0 < len(paths) <= MOST_PATHS:
        raise UsageError(f"option paths has {len(paths)} paths; 1 to {MOST_PATHS} are allowed, and without it all")
    if sum(map(len, paths)) > MOST_CHARACTERS:
        raise UsageError(
            f"option paths is too long; {MOST_CHARACTERS} characters are allowed, and without it all files"
        )
    return paths


def _compression(text: str) -> str:
    try:
        parse_compression(text[:100])
    except ValueError as error:
        raise UsageError(f"option compress: {error}") from error
    return text


def _short(text: str) -> str:
    """A caller's word, to be said back to it."""
    return repr(text if len(text) <= 100 else f"{text[:100]}...")
