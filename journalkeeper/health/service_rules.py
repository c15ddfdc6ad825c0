# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rules of health: the service runs and answers, sees, may write, and succeeds.

Each rule judges the present, and each finding is a problem. The service judges itself by `Evidence.present`. An
observer outside adds the rules on a service that is stopped, failed, hung or of another version.
"""

from __future__ import annotations

from collections.abc import Iterable
from posixpath import dirname
from shlex import quote
from typing import Final

from journalkeeper import __version__
from journalkeeper.health.evidence import Evidence, Failure, Hung, Look, Obstacle, Present, Unit, Unknown
from journalkeeper.health.finding import Facts, Finding, Rule, Severity, list_names, require
from journalkeeper.model import Outcome, Result
from journalkeeper.model.manager import Manager
from journalkeeper.model.units import DAY_US, counted, format_span
from journalkeeper.model.waiting import long
from journalkeeper.policy.deferral import PASSING

SERVICE: Final = "journalkeeper.service"
TIMER: Final = "journalkeeper.timer"
DEFRAG_TIMER: Final = "journalkeeper-defrag.timer"

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


def _problem(word: str, facts: Facts, sentence: str, *remedy: str) -> Finding:
    return Finding(word, Severity.PROBLEM, facts, sentence, remedy)


def _unit(units: tuple[Unit, ...], name: str) -> Unit:
    """Return the unit with this name; if systemd does not know the unit, return it as inactive."""
    return next((unit for unit in units if unit.name == name), Unit(name, "inactive", "dead"))


def _has_failed(service: Unit) -> bool:
    return service.active == "failed" or (service.sub == "auto-restart" and service.result != "success")


def _is_started_soon(units: tuple[Unit, ...]) -> bool:
    """Return whether the timer that starts the service after a boot is still waiting."""
    return _unit(units, SERVICE).active != "active" and _unit(units, TIMER).sub == "waiting"


def is_up(units: tuple[Unit, ...]) -> bool:
    """Return whether the service runs, will be started by its timer, or is replaced by the timer for `defrag`.

    False if the service has failed.
    """
    service, timer, instead = (_unit(units, name) for name in (SERVICE, TIMER, DEFRAG_TIMER))
    running = service.active in {"active", "reloading", "activating"} or timer.sub == "waiting"
    return instead.active == "active" or (running and not _has_failed(service))


def has_btrfs(look: Look | Unknown) -> bool:
    """Return whether a journal directory may be on btrfs: False only if all are known to be elsewhere."""
    return isinstance(look, Unknown) or not look.foreign or bool(look.host.instances)


def bad_configuration(evidence: Evidence) -> Finding | None:
    """The configuration on disk is wrong, or is not the one that runs."""
    wrong = evidence.config_error or require(evidence.present).configuration
    if not wrong:
        return None
    return _problem("bad-configuration", {"problem": wrong}, f"{wrong}.", "journalkeeper check-config")


def keeper_down(evidence: Evidence) -> Finding | Unknown | None:
    """Neither the service nor the timer that replaces it runs, so nothing keeps the journal in order."""
    if isinstance(evidence.service, Manager | Hung) or not has_btrfs(evidence.look):
        return None
    recent = _ran_recently(evidence)
    if isinstance(evidence.units, Unknown) and recent:
        return None
    units = require(evidence.units)
    service, timer = _unit(units, SERVICE), _unit(units, TIMER)
    facts: Facts = {"state": service.active, "sub_state": service.sub, "result": service.result}
    if is_up(units):
        return _judge_up(units, facts, evidence.service)
    remedy = ["systemctl enable --now journalkeeper.service"]
    if _has_failed(service):
        again = "; systemd starts it again" if service.sub == "auto-restart" else ""
        what = f"journalkeeper.service has failed ({service.result or service.sub}){again}"
        remedy = [LOG, RESTART]
    elif "enabled" in {service.enabled, timer.enabled}:
        what = "journalkeeper.service is enabled and does not run"
        remedy = ["systemctl start journalkeeper.service"]
    elif recent:
        return None
    elif not service.enabled:
        what, remedy = "journalkeeper is not installed as a service", ["journalkeeper defrag"]
    else:
        what = "journalkeeper.service is installed and not enabled"
    return _problem("keeper-down", facts, f"{what}: nothing keeps the journal whole.", *remedy)


def _judge_up(units: tuple[Unit, ...], facts: Facts, service: object) -> Finding | Unknown | None:
    """Return the finding about a service that should run but does not answer on the bus.

    Return Unknown if systemd will start the service soon, None if there is no problem.
    """
    if _unit(units, SERVICE).sub == "auto-restart":  # it ended to be started again, because a directory was replaced
        return Unknown("systemd starts journalkeeper.service again in a moment")
    if _is_started_soon(units):
        return Unknown("journalkeeper.timer starts the service soon after the boot")
    if _unit(units, SERVICE).active != "active" or service is not None:
        return None
    return _problem("keeper-down", facts, "journalkeeper.service runs and is not on the system bus.", LOG, RESTART)


def _ran_recently(evidence: Evidence) -> bool:
    """Return whether the newest run in the history is one by hand or by the timer, of the last two days."""
    last = None if isinstance(evidence.record, Unknown) else evidence.record.last_run
    return last is not None and last.origin != "daemon" and evidence.now_us - last.began_us < RECENT_US


def keeper_hung(evidence: Evidence) -> Finding | None:
    """The service has its name on the bus and does not answer."""
    service = require(evidence.service)
    if not isinstance(service, Hung):
        return None
    return _problem("keeper-hung", {"error": service.why}, f"{service.why}.", RESTART)


def keeper_old(evidence: Evidence) -> Finding | None:
    """The running service is of another version than the installed program."""
    service = require(evidence.service)
    if not isinstance(service, Manager) or service.version in {None, __version__}:
        return None
    sentence = f"The running service is still version {service.version}, and {__version__} is installed."
    return _problem("keeper-old", {"version": service.version}, sentence, RESTART)


def keeper_failing(evidence: Evidence) -> Finding | Unknown | None:
    """The last run as a whole failed."""
    present = require(evidence.present)
    if present.problem:
        return _problem("keeper-failing", {"problem": present.problem}, f"{present.problem}.", LOG)
    return None if present.looked else Unknown("the first look runs")


def record_locked(evidence: Evidence) -> Finding | None:
    """Another process holds the record for more than a minute, or the lock of a run for more than an hour."""
    present = require(evidence.present)
    held_us = evidence.now_us - present.busy_since_us
    if not present.busy or held_us <= present.busy_limit_us:
        return None
    return _problem("record-locked", {"held_us": held_us}, f"{present.busy}.", "fuser -v /var/lib/journalkeeper/*")


def record_unwritten(evidence: Evidence) -> Finding | None:
    """The history of actions could not be written."""
    why = require(evidence.present).unrecorded
    return _problem("record-unwritten", {"error": why}, f"{why}.", "df -h /var/lib/journalkeeper") if why else None


def directory_unwatched(evidence: Evidence) -> Finding | None:
    """A journal directory exists and is not watched."""
    why = require(evidence.present).unwatched
    return _problem("directory-unwatched", {"error": why}, f"{why}.", LOG) if why else None


def directory_unwritable(evidence: Evidence) -> Finding | None:
    """The service may not write to a journal directory."""
    found = require(evidence.present).unwritable
    if not found:
        return None
    path, obstacle = found[0]
    why, remedy = UNWRITABLE[obstacle]
    sentence = f"{list_names(path for path, _ in found)} is not writable to the service: {why}."
    facts: Facts = {"directories": [path for path, _ in found]}
    return _problem("directory-unwritable", facts, sentence, remedy.format(quote(path)))


def limit_reached(evidence: Evidence) -> Finding | None:
    """A directory has more journal files than the service looks at."""
    limits = require(evidence.present).limits
    if not limits:
        return None
    return _problem(
        "limit-reached", {"limits": list(limits)}, f"{'; '.join(limits)}.", "journalctl --vacuum-files=1000"
    )


def files_failing(evidence: Evidence) -> Finding | None:
    """The last action on a file failed, or the file cannot be looked at."""
    failures = require(evidence.present).failures
    if not failures:
        return None
    first = failures[0]
    rest = f" and {counted(len(failures) - 1, 'more file')}" if len(failures) > 1 else ""
    sentence = f"{list_names([first.path])}{rest} failed: {first.detail or first.reason}."
    facts: Facts = {"files": [one.path for one in failures], "reasons": sorted({one.reason for one in failures})}
    return _problem("files-failing", facts, sentence, "journalkeeper history --since=-7d")


def volume_full(evidence: Evidence) -> Finding | None:
    """The volume has too little free space for an action that pays."""
    present = require(evidence.present)
    failing = {one.path for one in present.failures}
    lacking = [one for one in present.lacking_space if one.path not in failing]
    if not lacking:
        return None
    count = counted(len(lacking), "file")
    sentence = f"The volume has too little free space to rewrite {count}: {lacking[0].detail} for {lacking[0].path}."
    facts: Facts = {"files": [one.path for one in lacking]}
    where = quote(dirname(lacking[0].path))
    return _problem("volume-full", facts, sentence, *free_space(where), f"btrfs filesystem usage {where}")


def free_space(where: str) -> tuple[str, ...]:
    """Return two shell commands that free disk space: one deletes old journal entries, one lists snapshots to delete.

    `where` is a directory on the volume, quoted for the shell; only the second command names it.
    """
    return ("journalctl --vacuum-size=256M", f"btrfs subvolume list -s {where}   # btrfs subvolume delete SNAPSHOT")


def keeper_starved(evidence: Evidence) -> Finding | None:
    """Files with work that pays have waited for more than a day: for a budget, an idle disk, or a flush window."""
    waits = long(require(evidence.present).waiting, evidence.now_us)
    if not waits:
        return None
    oldest_us = evidence.now_us - waits[0].since_us
    reasons = sorted({wait.reason for wait in waits})
    have = f"{counted(len(waits), 'file')} {'has' if len(waits) == 1 else 'have'} waited"
    sentence = f"{have} for {format_span(oldest_us // DAY_US * DAY_US)}: {list_names(reasons)}."
    facts: Facts = {"files": len(waits), "oldest_us": oldest_us, "reasons": reasons}
    return _problem("keeper-starved", facts, sentence, "journalkeeper plan", "journalkeeper defrag --now")


def window_closed(evidence: Evidence) -> Finding | None:
    """A file waits for a flush window that can never open, because the flush interval is too short."""
    closed = require(evidence.present).closed
    if not closed:
        return None
    sentence = (
        f"SyncIntervalSec= of {list_names(closed)} is too short for work between two flushes, and files wait for it."
    )
    return _problem("window-closed", {"instances": list(closed)}, sentence, "journalkeeper plan")


def keeper_paused(evidence: Evidence) -> Finding | None:
    """The service is paused."""
    if not require(evidence.present).paused:
        return None
    return _problem("keeper-paused", {"paused": "yes"}, "The service is paused.", "journalkeeper resume")


OUTSIDE: Final[tuple[Rule, ...]] = (keeper_down, keeper_hung, keeper_old)
"""Rules on states that only an observer outside of the service can see."""

INSIDE: Final[tuple[Rule, ...]] = (
    bad_configuration,
    keeper_failing,
    record_locked,
    record_unwritten,
    directory_unwatched,
    directory_unwritable,
    limit_reached,
    files_failing,
    volume_full,
    keeper_starved,
    window_closed,
    keeper_paused,
)

HEALTH: Final[tuple[Rule, ...]] = (INSIDE[0], *OUTSIDE, *INSIDE[1:])
"""All rules on the service. The first finding in this order is the headline of `status`."""


def present(evidence: Evidence) -> Present | Unknown:
    """Return the facts about the last run, from which rules judge the work.

    A running service has judged them itself, so its facts are empty. Without a service, they come from the history.
    Return Unknown if the service hangs or the history cannot be read.
    """
    service, record = evidence.service, evidence.record
    if isinstance(service, Manager):
        return Present(looked=service.health != "unknown")
    if isinstance(service, Hung):
        return Unknown(service.why)
    if isinstance(record, Unknown):
        return record
    began_us = 0 if record.last_run is None else record.last_run.began_us
    outcomes = (one.outcome for one in record.entries if one.when_us >= began_us)
    return Present(waiting=record.waiting, failures=tuple(find_failures(outcomes)))


def find_failures(outcomes: Iterable[Outcome]) -> list[Failure]:
    """Return the failed actions among `outcomes`, except those with a reason that soon ends by itself."""
    failed = (one for one in outcomes if one.result is Result.FAILED and one.reason not in PASSING)
    return [Failure(one.path, one.reason, one.detail) for one in failed]
