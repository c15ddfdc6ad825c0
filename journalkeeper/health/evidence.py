# SPDX-License-Identifier: LGPL-2.1-or-later
"""The evidence about a host that doctor, explain and report judge, as plain data.

A part that could not be collected is an `Unknown` with the reason, never an empty value, so that it does not count as
healthy. Names and messages are those of the journal and the disk, unescaped. Code that writes them to a terminal or a
page escapes them.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple

from journalkeeper.config import Config
from journalkeeper.model import MIB, Host, Instance, JournalFile, Skip, Volume
from journalkeeper.model.manager import Manager
from journalkeeper.model.run import Counters, HistoryEntry, Run, Totals, Wait
from journalkeeper.model.schema import Count, Hidden, PastMoment
from journalkeeper.model.units import DAY_US, format_span

DOCTOR_ENTRIES: Final = 50_000
REPORT_ENTRIES: Final = 200_000

RECENT_US: Final = 7 * DAY_US
"""How far back failures, losses and crashes are judged: older ones are over, or happen again."""

SERVICE: Final = "journalkeeper.service"
TIMER: Final = "journalkeeper.timer"
DEFRAG_TIMER: Final = "journalkeeper-defrag.timer"


class Unknown(NamedTuple):
    """A part that could not be collected; `why` is a sentence without its full stop.

    `needs_root` is True if the kernel refused access that root would have.
    """

    why: str
    needs_root: bool = False


UNASKED: Final = Unknown("not asked for")


class Hung(NamedTuple):
    """A service that has its name on the bus and does not answer, or, with `is_bus_busy`, a bus that does not.

    `why` is a sentence without its full stop.
    """

    why: str = "journalkeeper.service runs and does not answer"
    is_bus_busy: bool = False


PERMIT: Final = "systemctl edit journalkeeper && systemctl restart journalkeeper   # [Service] ReadWritePaths={}"
"""systemd makes the mounts of a unit when it starts."""

CANNOT: Final = "The service cannot write to {}: "


class Obstacle(Enum):
    """Why the service, or with READ_ONLY any process, cannot write to a directory: the sentence and the remedy.

    Without CAP_DAC_OVERRIDE root may not write as any owner.
    """

    MISSING = f"{CANNOT}it does not exist.", "mkdir -p {}"
    READ_ONLY = "{} is mounted read-only.", "mount -o remount,rw {}"
    MOUNT = f"{CANNOT}ReadWritePaths= of the unit lacks it.", PERMIT
    LATE = f"{CANNOT}it was not writable when the service started.", f"systemctl restart {SERVICE}"
    SUBVOLUME = f"{CANNOT}this subvolume is read-only.", "btrfs property set {} ro false"
    MODE = f"{CANNOT}its owner or mode forbids it.", "chown root {0} && chmod u+rwx {0}"
    ATTRIBUTE = f"{CANNOT}it is immutable or append-only.", "chattr -ia {}"


ROOM_BYTES: Final = 64 * MIB
"""With less than this btrfs may end a transaction for want of space: the metadata of one busy commit, and the kernel's
own reserve for it on a small volume, is tens of MiB."""


def lacks_room(volume: Volume) -> bool:
    """Return whether less than ROOM_BYTES are left for data or for metadata, with unallocated ones, or by the quota."""
    room_bytes = min(volume.free_bytes, volume.metadata_free_bytes) + volume.unallocated_bytes
    return lacks_quota(volume) or room_bytes < ROOM_BYTES


def lacks_quota(volume: Volume) -> bool:
    """Return whether the quota of the subvolume leaves less than ROOM_BYTES. False without a limit."""
    return volume.quota_bytes is not None and volume.quota_bytes < ROOM_BYTES


class Silence(StrEnum):
    """Why a journald takes or stores no messages."""

    STOPPED = "is stopped"
    MASKED = "is masked and does not run"
    HUNG = "does not answer"
    ROLLED_BACK = "keeps messages in memory only, because a rollback left the journal in the old root"


class Present(NamedTuple):
    """The present state of the service's work, from the service itself or, if it does not run, from the history.

    `looked` is False until the first look is over. `problem` is why the last run as a whole failed. `busy` names what
    another process has held since `busy_since_us` and runs need. `configuration` is why the running configuration is
    not the one on disk. `unwatched` is why a journal directory is not watched, and `unrecorded` why the history could
    not be written. `unwritable` are the paths that the service may not write to, `silent` the units of journalds that
    take no messages, and `full` the directories on a volume without room.
    `failures` are the files on which the last action failed, that cannot be looked at, or that wait for free space.
    Directories with too many files are among them. `waiting` are the files with delayed or failed actions. `closed` are
    the instances with waiting files whose window can never open. `foreign` is the directory where a look ended because
    no journal directory is on btrfs. `paused` is when a pause ends: "until 2026-11-24 01:10". A text of ""
    means that there is no such trouble.
    """

    looked: bool = True
    foreign: str = ""
    problem: str = ""
    busy: str = ""
    busy_since_us: int = 0
    configuration: str = ""
    unwatched: str = ""
    unwritable: tuple[tuple[str, Obstacle], ...] = ()
    silent: tuple[tuple[str, Silence], ...] = ()
    full: tuple[tuple[str, Volume], ...] = ()
    unrecorded: str = ""
    failures: tuple[Skip, ...] = ()
    waiting: tuple[Wait, ...] = ()
    closed: tuple[str, ...] = ()
    paused: str = ""


class Wanted(NamedTuple):
    """The parts of the evidence to collect. `directory` is the argument of -D, None for this host's own journal.

    `entries` is how many of the newest journal entries are read, 0 for none. `since_us` is where the history starts.
    Without `files` the look is only needed where no service answers. `boots` are read in addition to the entries.
    """

    directory: str | None = None
    entries: int = DOCTOR_ENTRIES
    since_us: int = 0
    files: bool = True
    boots: bool = False


class Look(NamedTuple):
    """The result of the engine's look: `host` with the history of its files, `foreign` the directories not on btrfs."""

    host: Host
    foreign: tuple[str, ...] = ()


class Recorded(NamedTuple):
    """The contents of the history for the requested time, each part the oldest first.

    `written_day_bytes` were written in the last 24 hours. `made_nocow` are the directories that became NOCOW, as
    in a plan. `counters` are the totals since the installation.
    """

    entries: tuple[HistoryEntry, ...]
    totals: tuple[Totals, ...]
    last_run: Run | None
    waiting: tuple[Wait, ...]
    written_day_bytes: int = 0
    made_nocow: frozenset[str] = frozenset()
    counters: Counters | None = None


class Boot(NamedTuple):
    """One boot that the journal still has entries of.

    `when_us` is the time of its first entry that was read. `userspace_us` is None if its "Startup finished" message is
    missing. `flush_us` is how long journald's flush to /var took, as journald logged it; None without that message.
    """

    boot_id: str
    when_us: int
    userspace_us: int | None = None
    flush_us: int | None = None


class Intake(NamedTuple):
    """One message that a program sent by /dev/log or the native socket: when journald took it, and after what wait.

    The wait is never negative: messages whose times the clock's setting made useless are left out.
    """

    when_us: int
    wait_us: int
    unit: str


class Journal(NamedTuple):
    """The evidence from the journal's own entries, each part the oldest first.

    `intake` covers the newest `entries` entries, which begin at `oldest_us`, `boots` as many newest messages of boots.
    """

    entries: Count
    oldest_us: PastMoment | None
    complete: bool
    """Whether these are all entries that are kept."""
    intake: Hidden[tuple[Intake, ...]] = ()
    boots: Hidden[tuple[Boot, ...]] = ()


class Unit(NamedTuple):
    """One unit as PID 1 shows it on D-Bus; `active` and `sub` are its states, `result` how its last run ended.

    `enabled` is systemctl is-enabled's word, "" where there is no such unit file. `age_us` is the age of this state.
    """

    name: str
    active: str
    sub: str
    enabled: str = ""
    result: str = ""
    age_us: int = 0

    @property
    def has_failed(self) -> bool:
        """Whether the unit has failed, also if systemd is about to start it again after a failure."""
        return self.active == "failed" or (self.sub == "auto-restart" and self.result != "success")

    @property
    def is_starting(self) -> bool:
        """Whether the unit is activating and not ready yet, in any sub-state but "auto-restart"."""
        return self.active == "activating" and self.sub != "auto-restart"

    @property
    def start_sentence(self) -> str:
        """The unit's name and the time for which it has been starting, a sentence without its full stop."""
        return f"{self.name} has been starting for {format_span(self.age_us)}"


def find_unit(units: tuple[Unit, ...], name: str) -> Unit:
    """Return the unit with this name. If `units` lacks it, return an inactive unit with this name."""
    return next((unit for unit in units if unit.name == name), Unit(name, "inactive", "dead"))


def is_up(units: tuple[Unit, ...]) -> bool:
    """Return whether work on the journal goes on: by the service, or by the timer that runs `defrag` in its place.

    A service that starts, or that its own timer will start, counts unless it has failed. A missing unit is inactive.
    """
    service, timer, instead = (find_unit(units, name) for name in (SERVICE, TIMER, DEFRAG_TIMER))
    running = service.active in {"active", "reloading", "activating"} or timer.sub == "waiting"
    return instead.active == "active" or (running and not service.has_failed)


class Storage(NamedTuple):
    """The storage of this machine's main journald.

    `storage` is its Storage=. `persistent_directory` is whether /var/log/journal exists, and `flushed` whether journald
    moved there in this boot. `retention` is what our drop-in contains of the time before it, None without a drop-in:
    the disk space that the journal may take, and SystemMaxFileSize= (0 if unknown).
    """

    storage: str
    persistent_directory: bool
    flushed: bool
    retention: tuple[int, int] | None = None


class Evidence(NamedTuple):
    """The evidence about a host at `now_us`.

    `config` is the configuration of the look, `config_error` the error in the one on disk. `service` is the running
    service, None if it is not on the bus. `unwritable`, `silent` and `full` are those of Present.
    """

    now_us: int
    look: Look | Unknown = UNASKED
    config: Config | Unknown = UNASKED
    record: Recorded | Unknown = UNASKED
    journal: Journal | Unknown = UNASKED
    units: tuple[Unit, ...] | Unknown = UNASKED
    storage: Storage | Unknown = UNASKED
    service: Manager | Hung | Unknown | None = UNASKED
    present: Present | Unknown = UNASKED
    unwritable: tuple[tuple[str, Obstacle], ...] | Unknown = UNASKED
    silent: tuple[tuple[str, Silence], ...] | Unknown = UNASKED
    full: tuple[tuple[str, Volume], ...] | Unknown = UNASKED
    config_error: str = ""

    @property
    def files(self) -> tuple[JournalFile, ...] | Unknown:
        """The files of the look, or Unknown if there was no look."""
        return self.look if isinstance(self.look, Unknown) else self.look.host.files

    @property
    def places(self) -> list[tuple[Instance, Volume]] | Unknown:
        """Each instance whose directory is on btrfs, with its volume; Unknown if there was no look."""
        if isinstance(self.look, Unknown):
            return self.look
        volumes = {volume.device: volume for volume in self.look.host.volumes}
        return [(one, volumes[one.device]) for one in self.look.host.instances if one.device in volumes]
