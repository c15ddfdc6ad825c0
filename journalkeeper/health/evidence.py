# SPDX-License-Identifier: LGPL-2.1-or-later
"""All that doctor, explain and report know of a host, as data.

A part that could not be looked at is an `Unknown` with the reason, never an empty value: nothing that was
not looked at counts as healthy. Names and messages are those of the journal and the disk, unescaped: who
writes them to a terminal or a page escapes them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from journalkeeper.config import Config
from journalkeeper.model import Host, Plan
from journalkeeper.model.manager import Manager
from journalkeeper.model.recorded import Counters, Entry, Run, Sample, Totals
from journalkeeper.model.waiting import Wait

DOCTOR_ENTRIES: Final = 50_000
REPORT_ENTRIES: Final = 200_000


class Unknown(NamedTuple):
    """A part that could not be looked at; `why` is a sentence without its full stop.

    With `needs_root` the kernel refused the look, and root could make it.
    """

    why: str
    needs_root: bool = False


UNASKED: Final = Unknown("not asked for")


class Hung(NamedTuple):
    """A service that has its name on the bus and does not answer; `why` is a sentence without its full stop."""

    why: str


class Failure(NamedTuple):
    """A file on which the last action failed, or which cannot be looked at."""

    path: str
    reason: str
    detail: str


class Present(NamedTuple):
    """The state of the work on this host now, as the service knows it, or as the record shows it without a service.

    `looked` is False until the first look is over. `problem` is why the last run as a whole failed. `busy` says what
    another process holds that runs need, since `busy_since_us`; `busy_limit_us` is how long that is normal.
    `configuration` is why the running configuration is not the one on disk. `closed` are the instances whose window
    can never open, with files that wait for it.
    """

    looked: bool = True
    problem: str = ""
    busy: str = ""
    busy_since_us: int = 0
    busy_limit_us: int = 0
    configuration: str = ""
    unwatched: str = ""
    unwritable: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    unrecorded: str = ""
    failures: tuple[Failure, ...] = ()
    waiting: tuple[Wait, ...] = ()
    closed: tuple[str, ...] = ()
    paused: bool = False


class Wanted(NamedTuple):
    """What is to be looked at: `directory` is that of -D, None for this host's own.

    `entries` are read of the journal, the newest; 0 leaves it out. `since_us` is how far back the record is read.
    """

    directory: str | None = None
    entries: int = DOCTOR_ENTRIES
    since_us: int | None = None
    plan: bool = False


class Look(NamedTuple):
    """What the engine saw: `host` with the record's past, `foreign` the directories that are not on btrfs.

    `leftovers` are the temporary files that a killed run of ours left behind.
    """

    host: Host
    foreign: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()


class Recorded(NamedTuple):
    """What the record holds of the time that was asked for, each part the oldest first.

    `counters` are the totals since the installation. `first_us` is the oldest row of `entries`,
    `samples` and `totals`, None if there is none. `ignored` has a sentence on each table with rows that could not be
    understood. `unshared` are the directories in which something was rewritten beside a snapshot, as in a plan.
    """

    first_us: int | None
    entries: tuple[Entry, ...]
    samples: tuple[Sample, ...]
    totals: tuple[Totals, ...]
    last_run: Run | None
    waiting: tuple[Wait, ...]
    ignored: tuple[str, ...] = ()
    unshared: frozenset[str] = frozenset()
    counters: Counters | None = None


class Boot(NamedTuple):
    """One boot that the journal still tells of.

    `first_us` is the time of its first entry that was read. `userspace_us` and `finished_us` are None where
    its "Startup finished" message is missing. `flush_us` is how long systemd-journal-flush.service took, by the times
    of its two messages, `said_flush_us` what journald itself says of its part of it, for `flushed_entries`.
    """

    boot_id: str
    first_us: int
    finished_us: int | None = None
    userspace_us: int | None = None
    flush_us: int | None = None
    said_flush_us: int | None = None
    flushed_entries: int | None = None

    @property
    def waited_us(self) -> int | None:
        """How long it waited for the flush: the unit's time, else what journald itself says."""
        return self.said_flush_us if self.flush_us is None else self.flush_us


class Intake(NamedTuple):
    """One message that a program sent by /dev/log or the native socket: when journald took it, and after what wait."""

    when_us: int
    wait_us: int
    unit: str


class Dropped(NamedTuple):
    """Messages that never reached the journal: of `unit` by its rate limit, or "kernel" for missed kernel messages."""

    when_us: int
    unit: str
    messages: int


class Ended(NamedTuple):
    """A journald that ended by itself: `unit` is its service, `result` systemd's word (watchdog, signal, oom-kill…)."""

    when_us: int
    unit: str
    result: str


class Line(NamedTuple):
    """One line of a program's standard output; `length` in bytes without its newline, None where it is not known.

    `unended`: no newline came, the stream ended (_LINE_BREAK=eof).
    """

    when_us: int
    length: int | None
    unended: bool = False


class Process(NamedTuple):
    """A running program: its executable, its words, and whether its environment has PYTHONUNBUFFERED."""

    pid: int
    exe: str
    argv: tuple[str, ...]
    python_unbuffered: bool


class Stream(NamedTuple):
    """One program's standard output as the journal has it, its lines the oldest first.

    `process` is None where it has ended or cannot be looked at.
    """

    unit: str
    program: str
    lines: tuple[Line, ...]
    process: Process | None = None


class Journal(NamedTuple):
    """What the journal tells of itself, each part the oldest first.

    `intake` and `streams` are of the newest `entries` entries, which begin at `oldest_us`; `complete` says that
    these are all entries that are kept. The other parts are of the newest `events` entries of their kinds,
    `events_complete` in the same sense.
    """

    entries: int
    oldest_us: int | None
    complete: bool
    intake: tuple[Intake, ...] = ()
    streams: tuple[Stream, ...] = ()
    events: int = 0
    events_oldest_us: int | None = None
    events_complete: bool = True
    boots: tuple[Boot, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    ended: tuple[Ended, ...] = ()


class Unit(NamedTuple):
    """One unit as PID 1 shows it on D-Bus; `active` and `sub` are its states, `result` how its last run ended.

    `enabled` is systemctl is-enabled's word, "" where there is no such unit file. `restarts` are automatic ones.
    """

    name: str
    active: str
    sub: str
    enabled: str = ""
    result: str = ""
    restarts: int = 0
    can_reload: bool = False


class System(NamedTuple):
    """The machine that this runs on: uname(2)'s release and version, systemd's version, and the length of a
    datagram socket's queue, None where the kernel does not tell."""

    kernel: str
    build: str
    systemd: str | Unknown
    max_dgram_qlen: int | None


class Storage(NamedTuple):
    """Where the main journald of this machine writes: its Storage=, whether /var/log/journal is there, and
    whether it has moved to /var in this boot. `retention_bytes` is what our drop-in wants the journal to really take,
    None where there is none."""

    storage: str
    persistent_directory: bool
    flushed: bool
    retention_bytes: int | None = None


class Evidence(NamedTuple):
    """One look at a host at `now_us`.

    `config` is the configuration that the plan was made with, `config_error` what is wrong with the one on disk.
    `service` is the running service, None where it is not on the bus.
    """

    now_us: int
    look: Look | Unknown = UNASKED
    plan: Plan | Unknown = UNASKED
    config: Config | Unknown = UNASKED
    record: Recorded | Unknown = UNASKED
    journal: Journal | Unknown = UNASKED
    units: tuple[Unit, ...] | Unknown = UNASKED
    system: System | Unknown = UNASKED
    storage: Storage | Unknown = UNASKED
    service: Manager | Hung | Unknown | None = UNASKED
    present: Present | Unknown = UNASKED
    config_error: str = ""
