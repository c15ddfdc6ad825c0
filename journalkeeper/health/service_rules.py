# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rules of health: the service runs and answers, sees, may write, and succeeds. Every public function is a rule.

Each rule judges the present, and each finding is a problem. The service judges itself by `Evidence.present`. Only an
observer outside can see that the service is stopped, failed, hung or of another version.

The order is that of `status`: the first finding is its headline.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    Unit,
    Unknown,
    find_unit,
    is_up,
)
from journalkeeper.health.finding import Answer, Facts, free_space, list_names, problem, require
from journalkeeper.model import Reason, Skip
from journalkeeper.model.manager import Manager
from journalkeeper.model.units import DAY_US, counted, format_span
from journalkeeper.model.waiting import long

RECENT_US: Final = 2 * DAY_US
"""Where no service runs, the last run must be more recent: the timer runs once a day."""

LOG: Final = "journalctl -u journalkeeper -n 20"
RESTART: Final = "systemctl restart journalkeeper.service"

UNWRITABLE: Final = {
    Obstacle.FILESYSTEM: ("its filesystem is read-only", "findmnt --target {}"),
    Obstacle.MOUNT: (
        "ReadWritePaths= of the unit lacks it",
        "systemctl edit journalkeeper.service   # [Service] ReadWritePaths={}",
    ),
    Obstacle.OWNER: ("it belongs to another user", "chown root {}"),
    Obstacle.ATTRIBUTE: ("its mode or an attribute forbids it", "lsattr -d {}"),
}
"""The reason and the remedy for each obstacle. Without CAP_DAC_OVERRIDE root may not write where another user owns."""


def bad_configuration(evidence: Evidence) -> Iterator[Answer]:
    """The configuration on disk is wrong, or is not the one that runs."""
    wrong = evidence.config_error or require(evidence.present).configuration
    if wrong:
        yield problem({"problem": wrong}, f"{wrong}.", "journalkeeper check-config")


def keeper_down(evidence: Evidence) -> Iterator[Answer]:
    """Neither the service nor the timer that replaces it runs, so nothing keeps the journal in order."""
    look, recent = evidence.look, _ran_recently(evidence)
    elsewhere = not isinstance(look, Unknown) and bool(look.foreign) and not look.host.instances
    if isinstance(evidence.service, Manager | Hung) or elsewhere or (isinstance(evidence.units, Unknown) and recent):
        return
    units = require(evidence.units)
    service, timer = find_unit(units, SERVICE), find_unit(units, TIMER)
    facts: Facts = {"state": service.active, "sub_state": service.sub, "result": service.result}
    if is_up(units):
        yield from _judge_up(service, timer, evidence, facts)
        return
    remedy = ["systemctl enable --now journalkeeper.service"]
    what = "journalkeeper.service is installed and not enabled"
    if service.has_failed:
        again = "; systemd starts it again" if service.sub == "auto-restart" else ""
        what = f"journalkeeper.service has failed ({service.result or service.sub}){again}"
        remedy = [LOG, RESTART]
    elif "enabled" in {service.enabled, timer.enabled}:
        what = "journalkeeper.service is enabled and does not run"
        remedy = ["systemctl start journalkeeper.service"]
    elif recent:
        return
    elif not service.enabled:
        what, remedy = "journalkeeper is not installed as a service", ["journalkeeper defrag"]
    yield problem(facts, f"{what}: nothing keeps the journal whole.", *remedy)


def _judge_up(service: Unit, timer: Unit, evidence: Evidence, facts: Facts) -> Iterator[Answer]:
    """Yield the finding about a service that should run but does not answer on the bus, Unknown if it starts soon."""
    if service.sub == "auto-restart":  # it ended to be started again, because a directory was replaced
        yield Unknown("systemd starts journalkeeper.service again in a moment")
    elif service.active != "active" and timer.sub == "waiting":
        yield Unknown("journalkeeper.timer starts the service soon after the boot")
    elif service.active == "active" and evidence.service is None:
        yield problem(facts, "journalkeeper.service runs and is not on the system bus.", LOG, RESTART)


def _ran_recently(evidence: Evidence) -> bool:
    """Return whether the newest run in the history is one by hand or by the timer, of the last two days."""
    last = None if isinstance(evidence.record, Unknown) else evidence.record.last_run
    return last is not None and last.origin != "daemon" and evidence.now_us - last.began_us < RECENT_US


def keeper_hung(evidence: Evidence) -> Iterator[Answer]:
    """The service has its name on the bus and does not answer."""
    service = require(evidence.service)
    if isinstance(service, Hung):
        yield problem({"error": service.why}, f"{service.why}.", RESTART)


def keeper_old(evidence: Evidence) -> Iterator[Answer]:
    """The running service is of another version than the installed program."""
    service = require(evidence.service)
    if isinstance(service, Manager) and service.version not in {None, __version__}:
        sentence = f"The running service is still version {service.version}, and {__version__} is installed."
        yield problem({"version": service.version}, sentence, RESTART)


def keeper_failing(evidence: Evidence) -> Iterator[Answer]:
    """The last run as a whole failed."""
    present = require(evidence.present)
    if present.problem:
        yield problem({"problem": present.problem}, f"{present.problem}.", LOG)
    elif not present.looked:
        yield Unknown("the first look runs")


def record_locked(evidence: Evidence) -> Iterator[Answer]:
    """Another process holds the record for more than a minute, or the lock of a run for more than an hour."""
    present = require(evidence.present)
    held_us = evidence.now_us - present.busy_since_us
    if present.busy and held_us > present.busy_limit_us:
        yield problem({"held_us": held_us}, f"{present.busy}.", "fuser -v /var/lib/journalkeeper/*")


def record_unwritten(evidence: Evidence) -> Iterator[Answer]:
    """The history of actions could not be written."""
    if why := require(evidence.present).unrecorded:
        yield problem({"error": why}, f"{why}.", "df -h /var/lib/journalkeeper")


def directory_unwatched(evidence: Evidence) -> Iterator[Answer]:
    """A journal directory exists and is not watched."""
    if why := require(evidence.present).unwatched:
        yield problem({"error": why}, f"{why}.", LOG)


def directory_unwritable(evidence: Evidence) -> Iterator[Answer]:
    """The service may not write to a journal directory."""
    if found := require(evidence.present).unwritable:
        paths, (why, remedy) = [path for path, _ in found], UNWRITABLE[found[0][1]]
        sentence = f"{list_names(paths)} is not writable to the service: {why}."
        yield problem({"directories": list(paths)}, sentence, remedy.format(quote(paths[0])))


def limit_reached(evidence: Evidence) -> Iterator[Answer]:
    """A directory has more journal files than the service looks at."""
    if limits := [f"{one.path}: {one.detail}" for one in _list_failures(evidence, Reason.TOO_MANY)]:
        yield problem({"limits": list(limits)}, f"{'; '.join(limits)}.", "journalctl --vacuum-files=1000")


def files_failing(evidence: Evidence) -> Iterator[Answer]:
    """The last action on a file failed, or the file cannot be looked at."""
    if failures := _list_failures(evidence, *(set(Reason) - {Reason.TOO_MANY, Reason.FREE_SPACE})):
        first, number = failures[0], len(failures) - 1
        rest = f" and {counted(number, 'more file')}" if number else ""
        yield problem(
            {"files": [one.path for one in failures], "reasons": sorted({one.reason for one in failures})},
            f"{list_names([first.path])}{rest} failed: {first.detail or first.reason}.",
            "journalkeeper history --since=-7d",
        )


def volume_full(evidence: Evidence) -> Iterator[Answer]:
    """The volume has too little free space for an action that pays."""
    if lacking := _list_failures(evidence, Reason.FREE_SPACE):
        path, count, where = lacking[0].path, counted(len(lacking), "file"), quote(dirname(lacking[0].path))
        sentence = f"The volume has too little free space to rewrite {count}: {lacking[0].detail} for {path}."
        usage = f"btrfs filesystem usage {where}"
        yield problem({"files": [one.path for one in lacking]}, sentence, *free_space(where), usage)


def _list_failures(evidence: Evidence, *reasons: Reason) -> list[Skip]:
    return [one for one in require(evidence.present).failures if one.reason in reasons]


def keeper_starved(evidence: Evidence) -> Iterator[Answer]:
    """Files with work that pays have waited for more than a day: for a budget, an idle disk, or a flush window."""
    if waits := long(require(evidence.present).waiting, evidence.now_us):
        oldest_us = evidence.now_us - waits[0].since_us
        reasons = sorted({wait.reason for wait in waits})
        have = f"{counted(len(waits), 'file')} {'has' if len(waits) == 1 else 'have'} waited"
        sentence = f"{have} for {format_span(oldest_us // DAY_US * DAY_US)}: {list_names(reasons)}."
        facts: Facts = {"files": len(waits), "oldest_us": oldest_us, "reasons": reasons}
        yield problem(facts, sentence, "journalkeeper plan", "journalkeeper defrag --now")


def window_closed(evidence: Evidence) -> Iterator[Answer]:
    """A file waits for a flush window that can never open, because the flush interval is too short."""
    if closed := require(evidence.present).closed:
        short = f"SyncIntervalSec= of {list_names(closed)} is too short for work between two flushes"
        yield problem({"instances": list(closed)}, f"{short}, and files wait for it.", "journalkeeper plan")


def keeper_paused(evidence: Evidence) -> Iterator[Answer]:
    """The service is paused."""
    if require(evidence.present).paused:
        yield problem({"paused": "yes"}, "The service is paused.", "journalkeeper resume")
