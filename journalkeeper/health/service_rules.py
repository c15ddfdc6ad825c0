# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rules of health: the service runs and answers, sees, may write, and succeeds. Every public function is a rule.

Each rule judges the present, and each finding is a problem. The service judges itself by `Evidence.present`. Only an
observer outside can see that the service is stopped, failed, hung or of another version.

The order is that of `status`: the first finding is its headline.
"""

from __future__ import annotations

from posixpath import dirname
from shlex import quote
from typing import Final

from journalkeeper import __version__
from journalkeeper.health.evidence import (
    SERVICE,
    TIMER,
    Evidence,
    Hung,
    Obstacle,
    Present,
    Silence,
    Unit,
    Unknown,
    find_unit,
    is_up,
    lacks_quota,
)
from journalkeeper.health.finding import FIRST_LOOK, Answers, list_names, problem
from journalkeeper.model import Reason, Volume
from journalkeeper.model.manager import Facts, Manager
from journalkeeper.model.run import list_long_waits
from journalkeeper.model.units import DAY_US, HOUR_US, MINUTE_US, format_span, pluralize, spell_size

LAST_RUN_US: Final = 2 * DAY_US
"""Where no service runs, the last run must be more recent: the timer runs once a day."""

START_US: Final = MINUTE_US
"""A start takes seconds, also on a busy host. systemd ends it after 90 s (DefaultTimeoutStartSec=) and tries again."""

BUSY_US: Final = HOUR_US
"""How long it is normal that another process holds what a run needs: a `defrag` by hand may take so long."""

BALANCE: Final = "-dusage=50 -dlimit=4"
"""The options of btrfs-balance(8) that free at most four chunks which are half empty. Mixed chunks need -m alike."""

UNMASK: Final = "systemctl unmask {0} && systemctl unmask --runtime {0} && "
RELOAD: Final = "systemctl try-reload-or-restart journalkeeper.service"
LOG: Final = "journalctl -u journalkeeper -n 20"
RESTART: Final = "systemctl restart journalkeeper.service"


def journald_silent(silent: tuple[tuple[str, Silence], ...]) -> Answers:
    """A journald of this host takes no messages: it is stopped, masked, has failed or does not answer.

    Or a rollback left the journal behind, and journald stores them in memory only: `isolate --apply`. One problem for
    the first unit, with all units as facts. The journald of a namespace without a listening socket is not used.
    """
    for unit, silence in silent[:1]:
        command = f"systemctl {'restart' if silence is Silence.HUNG else 'start'} {unit}"
        unmask = UNMASK.format(unit) if silence is Silence.MASKED else ""
        if silence is Silence.ROLLED_BACK:
            command = "journalkeeper isolate --apply"
        sentence = f"{unit} {silence}: no message that it should take is stored."
        yield problem(sentence, f"{unmask}{command}", units=[name for name, _ in silent])


def bad_configuration(evidence: Evidence) -> Answers:
    """The configuration on disk is wrong, or is not the one that runs.

    One problem with the error text; else Unknown while the service starts or hangs, and without service and history.
    """
    present = evidence.present
    wrong = evidence.config_error or (not isinstance(present, Unknown) and present.configuration)
    if wrong:
        yield problem(f"{wrong}.", f"journalkeeper check-config && {RELOAD}", problem=wrong)
    elif isinstance(present, Unknown):
        yield present


def keeper_down(evidence: Evidence) -> Answers:
    """Neither the service nor the timer that replaces it runs, so nothing keeps the journal in order.

    The timer is journalkeeper-defrag.timer. A run by it or by hand in the last two days is enough, unless the service
    has failed, or it or its own timer is enabled. A service that runs but is not on the bus, or starts for a minute, is
    a problem; one that hangs is left to keeper-hung. Without a journal on btrfs, nothing is. Unknown in that minute,
    before systemd starts a service that has not failed, and if units cannot be read and there was no such run.
    """
    look, units = evidence.look, evidence.units
    elsewhere = not isinstance(look, Unknown) and bool(look.foreign) and not look.host.instances
    recent = _ran_recently(evidence)
    if isinstance(evidence.service, Manager) or elsewhere:
        return
    if isinstance(units, Unknown):
        if not recent and not isinstance(evidence.service, Hung):
            yield units
        return
    service, timer = find_unit(units, SERVICE), find_unit(units, TIMER)
    if service.is_starting:
        late = problem(f"{service.start_sentence} and is not ready.", LOG, RESTART, age_us=service.age_us)
        yield Unknown(service.start_sentence) if service.age_us < START_US else late
        return
    if isinstance(evidence.service, Hung) and not evidence.service.is_bus_busy:
        return
    facts: Facts = {"state": service.active, "sub_state": service.sub, "result": service.result}
    if is_up(units):
        if service.sub == "auto-restart":  # it ended to be started again, because a directory was replaced
            yield Unknown("systemd starts journalkeeper.service again in a moment")
        elif service.active != "active" and timer.sub == "waiting":
            yield Unknown("the service does not run yet; journalkeeper.timer starts it about 10 s after the boot")
        elif service.active == "active" and evidence.service is None:
            found = "journalkeeper.service runs but is not on the system bus."
            # logind does not connect again either (systemd 257): `reboot` would wait 50 s for it, in vain
            restart = "systemctl try-restart systemd-logind.service journalkeeper.service"
            yield problem(found, f"systemctl start dbus.socket && {restart}", LOG, **facts)
    elif service.has_failed or "enabled" in {service.enabled, timer.enabled} or not recent:
        what, *remedy = _describe_down(service, timer)
        yield problem(f"journalkeeper.service {what}, so nothing defragments the journal.", *remedy, **facts)


def _describe_down(service: Unit, timer: Unit) -> tuple[str, ...]:
    """Return the state of a service that does not run, as a part of a sentence, and then the remedies."""
    if service.has_failed:
        again = "; systemd will start it again" if service.sub == "auto-restart" else ""
        return f"has failed ({service.result or service.sub}{again})", LOG, RESTART
    enable = "systemctl enable --now journalkeeper.service"
    if service.enabled.startswith("masked"):
        return "is masked", f"{UNMASK.format(SERVICE)}{enable}"
    if "enabled" in {service.enabled, timer.enabled}:
        return "is enabled but does not run", "systemctl start journalkeeper.service"
    if service.enabled:
        return "is installed but not enabled", enable
    return "is not installed", "journalkeeper defrag"


def _ran_recently(evidence: Evidence) -> bool:
    """Return whether the newest run was by hand or by the timer, and began in the last two days."""
    last = None if isinstance(evidence.record, Unknown) else evidence.record.last_run
    return last is not None and last.origin != "daemon" and evidence.now_us - last.began_us < LAST_RUN_US


def keeper_hung(service: Manager | Hung | None, evidence: Evidence) -> Answers:
    """The service, which is not just starting, has its name on the bus and does not answer.

    Unknown if the bus itself does not answer.
    """
    units = evidence.units
    starts = not isinstance(units, Unknown) and find_unit(units, SERVICE).is_starting
    if isinstance(service, Hung) and not starts:
        hung = problem(f"{service.why}.", RESTART, error=service.why)
        yield Unknown(service.why) if service.is_bus_busy else hung


def keeper_old(service: Manager | Hung | None) -> Answers:
    """The running service is of another version than the installed program. One problem."""
    if isinstance(service, Manager) and service.version not in {None, __version__}:
        sentence = f"The running service is still version {service.version}, and {__version__} is installed."
        yield problem(sentence, RESTART, version=service.version)


def no_room(full: tuple[tuple[str, Volume], ...]) -> Answers:
    """A volume has no room for a new chunk and little room in its chunks, even if df(1) shows free space.

    journald may soon not be able to store an entry. One problem for the first directory on such a volume: the quota of
    its subvolume if that is almost used up, else the room.
    """
    for directory, volume in full[:1]:
        if lacks_quota(volume):
            sentence = f"The quota of the subvolume of {directory} leaves {spell_size(volume.quota_bytes or 0)}."
            show = f"btrfs qgroup show -pcre {quote(directory)}"
            yield problem(sentence, show, directory=directory, quota_bytes=volume.quota_bytes)
            return
        unallocated, metadata = volume.unallocated_bytes, volume.metadata_free_bytes
        kind = "data" if volume.free_bytes < metadata else "metadata"
        sentence = f"The volume of {directory} has {spell_size(unallocated)} unallocated,"
        sentence += f" {spell_size(volume.free_bytes)} free for data and {spell_size(metadata)} for metadata:"
        sentence += f" {kind} is about to run out."
        facts: Facts = {"unallocated_bytes": unallocated, "metadata_free_bytes": metadata}
        facts |= {"directory": directory, "data_free_bytes": volume.free_bytes}
        yield problem(sentence, *_list_space_commands(directory, volume), **facts)


def directory_unwritable(unwritable: tuple[tuple[str, Obstacle], ...]) -> Answers:
    """The service may not write to one of its directories, or it is mounted read-only.

    They are the journal directories, that of the history and that of Textfile=. One problem for all paths, with the
    obstacle and the remedy of the first.
    """
    if unwritable:
        paths, (sentence, remedy) = [path for path, _ in unwritable], unwritable[0][1].value
        yield problem(sentence.format(list_names(paths)), remedy.format(quote(paths[0])), directories=list(paths))


def record_locked(present: Present, now_us: int) -> Answers:
    """Another process has held the lock of a run for longer than an hour. One problem."""
    held_us = now_us - present.busy_since_us
    if present.busy and held_us > BUSY_US:
        yield problem(f"{present.busy}.", "lslocks --output=COMMAND,PID,TYPE,PATH", held_us=held_us)


def record_unwritten(present: Present) -> Answers:
    """The history of actions could not be written. One problem with the error text."""
    if present.unrecorded:
        yield problem(f"{present.unrecorded}.", "df -h /var/lib/journalkeeper", error=present.unrecorded)


def directory_unwatched(present: Present) -> Answers:
    """A journal directory exists and is not watched. One problem with the error text, which only the service has."""
    if present.unwatched:
        yield problem(f"{present.unwatched}.", LOG, error=present.unwatched)


def keeper_failing(present: Present) -> Answers:
    """The last run as a whole failed.

    One problem with the error of the run. Without an error, Unknown until the service's first look is over.
    """
    if present.problem:
        yield problem(f"{present.problem}.", LOG, problem=present.problem)
    elif not present.looked:
        yield FIRST_LOOK


def limit_reached(present: Present) -> Answers:
    """A directory has more than 7,168 journal files, the most that the service looks at. One problem for all."""
    if limits := [f"{one.path}: {one.detail}" for one in present.failures if one.reason is Reason.TOO_MANY]:
        where = (one.path for one in present.failures if one.reason is Reason.TOO_MANY)
        remedy = (f"journalctl -D {quote(path)} --vacuum-files=1000" for path in where)
        yield problem(f"{'; '.join(limits)}.", *remedy, limits=list(limits))


def files_failing(present: Present) -> Answers:
    """The last action on a file failed, or the file cannot be looked at.

    One problem for all files, with the detail of the first, but without those of limit-reached and volume-full.
    Failures that end without an administrator are not in the evidence.
    """
    if failures := [one for one in present.failures if one.reason not in {Reason.TOO_MANY, Reason.FREE_SPACE}]:
        first, number = failures[0], len(failures) - 1
        rest = f" and {pluralize(number, 'more file')}" if number else ""
        sentence = f"{list_names([first.path])}{rest} failed: {first.detail or first.reason}."
        paths, reasons = [one.path for one in failures], sorted({one.reason for one in failures})
        quota = f"btrfs qgroup show -pcre {quote(dirname(first.path))}"
        remedy = quota if first.reason is Reason.QUOTA else "journalkeeper history --since=-7d"
        yield problem(sentence, remedy, files=paths, reasons=list(map(str, reasons)))


def volume_full(present: Present) -> Answers:
    """The volume has too little free space for an action that pays.

    One problem for all files that failed or were skipped for it, with the detail and the remedy of the first.
    """
    if lacking := [one for one in present.failures if one.reason is Reason.FREE_SPACE]:
        first, count = lacking[0], pluralize(len(lacking), "file")
        sentence = f"The volume has too little free space to rewrite {count}: {first.detail} for {first.path}."
        yield problem(sentence, *_list_space_commands(dirname(first.path)), files=[one.path for one in lacking])


def _list_space_commands(directory: str, volume: Volume | None = None) -> tuple[str, ...]:
    """Return commands that vacuum the journal, list snapshots, show the usage and, only with `volume`, balance it."""
    where = quote(directory)
    snapshots = f"btrfs subvolume list -s {where}   # btrfs subvolume delete SNAPSHOT"
    found = (f"journalctl -D {where} --vacuum-size=256M", snapshots, f"btrfs filesystem usage {where}")
    if volume is None:
        return found
    filters = BALANCE if not volume.mixed else f"{BALANCE} {BALANCE.replace('-d', '-m')}"
    return (*found, f"btrfs balance start {filters} {where}")


def keeper_starved(present: Present, now_us: int) -> Answers:
    """Files have waited for more than a day for an action, such as a rewrite, whatever the reason.

    One problem for all files, with the longest wait in days and up to three reasons.
    """
    if waits := list_long_waits(present.waiting, now_us):
        oldest_us, reasons = now_us - waits[0].since_us, sorted({wait.reason for wait in waits})
        have = f"{pluralize(len(waits), 'file')} {'has' if len(waits) == 1 else 'have'} waited"
        sentence = f"{have} for {format_span(oldest_us // DAY_US * DAY_US)} for work ({list_names(reasons)})."
        remedy = ("journalkeeper plan", "journalkeeper defrag --now")
        yield problem(sentence, *remedy, files=len(waits), oldest_us=oldest_us, reasons=reasons)


def window_closed(present: Present) -> Answers:
    """A file waits for a flush window that can never open, because the flush interval is too short.

    One problem for all instances, with the command `journalkeeper plan`.
    """
    if present.closed:
        short = f"SyncIntervalSec= of {list_names(present.closed)} leaves too little time for work between two flushes"
        yield problem(f"{short}, and files wait for work.", "journalkeeper plan", instances=list(present.closed))


def keeper_paused(present: Present) -> Answers:
    """The service is paused. The problem ends with the pause."""
    if present.paused:
        yield problem(f"The service is paused {present.paused}.", "journalkeeper resume", paused="yes")
