# SPDX-License-Identifier: LGPL-2.1-or-later
"""What pays and is left for later all the same, and when it is thought of again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from journalkeeper.config import Config
from journalkeeper.config.weekly import find_weekly_end
from journalkeeper.model import Action, JournalFile, Kind, Plan, Reason, Refusal, Request, Result, Rotation, State, Verb
from journalkeeper.model.units import MINUTE_US, SECOND_US
from journalkeeper.policy.deferral import AGAIN_US, LATER_US, SOON_US, remember
from journalkeeper.policy.plan import plan
from tests.hosts import DIRECTORY, NOW_US, configured, extents, file, host, instance, outcome, volume

MOST = Config().window.pressure_max_percent
FRAGMENTED = file(extents=extents(5_000))
BUSY = (Reason.PRESSURE, NOW_US + SOON_US)


def planned(one: JournalFile = FRAGMENTED, request: Request | None = None, **words: Any) -> Plan:
    return plan(host(one, **words), request or Request(), Config())


def refusal(age_us: int, one: JournalFile = FRAGMENTED, **words: Any) -> dict[tuple[int, int], Refusal]:
    last = Refusal(NOW_US - age_us, one.size_bytes, one.mtime_ns, Reason.IN_USE, "a program has the file open")
    return {(one.device, one.inode): last._replace(**words)}


def reason(found: Plan) -> tuple[Reason, int | None] | None:
    """Why the only file was left for later, and until when; None if it was not."""
    if found.actions:
        return None
    (skip,) = found.skipped
    return skip.reason, skip.until_us


THEIRS = FRAGMENTED._replace(uid=998, owner="remote")
LACKING = refusal(10 * AGAIN_US, reason=Reason.FOREIGN_OWNER)
BUG = Reason.INTERNAL_ERROR
ACTIVE = file(Kind.ACTIVE, state=State.OFFLINE, extents=extents(500, per_mib=(500,)))
OUTAGES = ((Reason.IO_ERROR, 1, 1), (Reason.READ_ONLY, 2, 2), (Reason.IO_ERROR, 6, 32), (Reason.IO_ERROR, 7, 60))


@pytest.mark.parametrize(
    ("one", "words", "expected"),
    [
        # a refused action is tried again after an hour, and at once after the clock was set back
        (FRAGMENTED, {"refused": refusal(0)}, (Reason.IN_USE, NOW_US + AGAIN_US)),
        (FRAGMENTED, {"refused": refusal(AGAIN_US - 1)}, (Reason.IN_USE, NOW_US + 1)),
        (FRAGMENTED, {"refused": refusal(AGAIN_US)}, None),
        (FRAGMENTED, {"refused": refusal(-1)}, None),
        # after an outage within minutes
        *(
            (FRAGMENTED, {"refused": refusal(0, reason=why, tries=tries)}, (why, NOW_US + minutes * MINUTE_US))
            for why, tries, minutes in (*OUTAGES, (Reason.MISMATCH, 1, 60))
        ),
        # without the right never on the same file
        (THEIRS, {"refused": LACKING}, (Reason.FOREIGN_OWNER, None)),
        (THEIRS._replace(mtime_ns=1), {"refused": LACKING}, None),
        (THEIRS._replace(uid=0), {"refused": LACKING}, None),
        # after a mistake of ours never on the same file
        *((one, {"refused": refusal(30 * AGAIN_US, one, reason=BUG)}, (BUG, None)) for one in (FRAGMENTED, ACTIVE)),
        *((one, {"refused": refusal(AGAIN_US, one, reason=BUG, mtime_ns=1)}, None) for one in (FRAGMENTED, ACTIVE)),
        # on an archive that changed at once; an active file always changes
        (FRAGMENTED, {"refused": refusal(0, size_bytes=1)}, None),
        (FRAGMENTED, {"refused": refusal(0, mtime_ns=1)}, None),
        (ACTIVE, {}, None),
        (ACTIVE, {"refused": refusal(0, ACTIVE, mtime_ns=1)}, (Reason.IN_USE, NOW_US + AGAIN_US)),
        # other programs keep the disk busy
        *((FRAGMENTED, {"volumes": (volume(busy_percent=percent),)}, None) for percent in (None, MOST)),
        (FRAGMENTED, {"volumes": (volume(busy_percent=MOST + 1),)}, BUSY),
    ],
)
def test_an_action_waits(one: JournalFile, words: dict[str, Any], expected: tuple[Reason, int | None] | None) -> None:
    assert reason(planned(one, **words)) == expected


HERE = instance(inode=256)
TARGETS = (FRAGMENTED, HERE, Rotation(HERE.directory, HERE.device, HERE.inode, "", file(Kind.ACTIVE)))


def tried(target: Any, result: Result, reason: Reason) -> dict[tuple[int, int], Refusal]:
    """What is remembered where the try before came to nothing, too, but for another reason."""
    key = (target.device, target.inode)
    refused = {key: Refusal(NOW_US - AGAIN_US, 1, 1, Reason.MISMATCH, "before")}
    action = Action("/j/a", Verb.ROTATE, Reason.CHEAPER, target)
    remember(refused, action, outcome("/j/a", result=result, reason=reason, detail="why"), NOW_US)
    assert set(refused) <= {key}
    return refused


@pytest.mark.parametrize("target", TARGETS, ids=["file", "directory", "rotation"])
def test_a_failure_is_remembered_until_the_action_is_done(target: Any) -> None:
    seen = (target.size_bytes, target.mtime_ns) if isinstance(target, JournalFile) else (0, 0)
    for reason in (Reason.NOT_TAKEN, Reason.IO_ERROR, Reason.INTERNAL_ERROR):
        (last,) = tried(target, Result.FAILED, reason).values()
        assert last == (NOW_US, *seen, reason, "why", 2)
    assert tried(target, Result.DONE, Reason.CHEAPER) == {}


@pytest.mark.parametrize("target", TARGETS, ids=["file", "directory", "rotation"])
@pytest.mark.parametrize(
    "reason",
    [
        *(Reason.INTERRUPTED, Reason.WINDOW_CLOSED, Reason.PRESSURE),
        *(Reason.VANISHED, Reason.CHANGED, Reason.SHARED, Reason.NO_GAIN),
    ],
)
def test_a_passing_reason_leaves_the_failure(target: Any, reason: Reason) -> None:
    """A rotation that finds its directory datacow says nothing against the refusal to make that NOCOW.

    How much more there must be after a rewrite in vain is in the record, and on a busy host that comes within an hour.
    """
    (last,) = tried(target, Result.SKIPPED, reason).values()
    assert last.detail == "before"


@pytest.mark.parametrize("doing", ["balance", "scrub"])
def test_beside_a_balance_or_scrub_nothing_is_begun(doing: str) -> None:
    found = planned(volumes=(volume(maintenance=doing),))
    assert reason(found) == (Reason.PRESSURE, NOW_US + LATER_US)
    assert doing in found.skipped[0].detail


def test_another_volumes_disk_may_be_busy() -> None:
    volumes = (volume(), volume(device=41, uuid="other", busy_percent=100))
    other = file(stem="other", device=41, extents=extents(5_000))
    found = plan(host(FRAGMENTED, other, volumes=volumes), Request(), Config())
    assert [action.path for action in found.actions] == [FRAGMENTED.path]
    assert [skip.reason for skip in found.skipped] == [Reason.PRESSURE]


BATTERY = (Reason.BATTERY, NOW_US + LATER_US)
QUIET = (Reason.QUIET_HOURS, 1_700_002_800 * SECOND_US)  # NOW_US is 22:13:20 UTC on a Tuesday


@pytest.mark.parametrize(
    ("request_", "on_battery", "window", "rests"),
    [
        (Request(upkeep=True), True, {}, BATTERY),
        (Request(upkeep=True), True, {"on_battery": True}, None),
        (Request(upkeep=True), False, {"quiet_hours": "Mon..Fri 20:00..23:00"}, QUIET),
        (Request(upkeep=True), False, {"quiet_hours": "Wed 20:00..23:00"}, None),
        (Request(upkeep=True, asked=True), True, {"quiet_hours": "20:00..23:00"}, None),
        (Request(upkeep=True, now=True), True, {"quiet_hours": "20:00..23:00"}, None),
        (Request(before_shutdown=True, upkeep=True, archived=True), True, {"quiet_hours": "20:00..23:00"}, None),
    ],
    ids=["battery", "OnBattery=yes", "quiet", "another day", "defrag", "--now", "shutdown"],
)
def test_the_services_own_work_rests_on_battery_and_in_quiet_hours(
    local: Callable[[str], None],
    request_: Request,
    window: dict[str, Any],
    rests: tuple[Reason, int] | None,
    *,
    on_battery: bool,
) -> None:
    local("UTC0")
    old = file(Kind.ACTIVE, extents=extents(0))  # a rotation makes it NOCOW
    given = host(FRAGMENTED, old, on_battery=on_battery, instances=(instance(rotatable=True, sync_tells=True),))
    found = plan(given, request_, configured("window", **window))
    resting = {(one.path, one.reason, one.until_us) for one in found.skipped if one.puts_off}
    assert resting == ({(FRAGMENTED.path, *rests), (DIRECTORY, *rests)} if rests else set())
    assert (not found.actions, not found.syncs) == (rests is not None,) * 2


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the time zone, in the form of tzset(3)."""

    def set_zone(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


DAYTIME = "Mon..Fri 08:00..18:00"
NIGHTS = "22:00..06:30"
WEEKEND = "Sat,Sun 00:00..24:00 Mon 00:00..08:00"
CHANGE = "02:30..04:30"


@pytest.mark.parametrize(
    ("quiet", "now", "end"),
    [
        (DAYTIME, "2026-11-27 07:59:59", None),  # a Friday
        (DAYTIME, "2026-11-27 08:00:00", "2026-11-27 18:00:00"),
        (DAYTIME, "2026-11-27 18:00:00", None),
        (DAYTIME, "2026-11-28 12:00:00", None),
        (NIGHTS, "2026-11-29 23:00:00", "2026-11-30 06:30:00"),  # the end of a week
        (NIGHTS, "2026-11-28 06:30:00", None),
        ("Fri 22:00..06:00", "2026-11-28 05:59:59", "2026-11-28 06:00:00"),
        ("Fri 22:00..06:00", "2026-11-27 05:00:00", None),  # Thursday's night
        (WEEKEND, "2026-11-28 00:00:00", "2026-11-30 08:00:00"),
        (CHANGE, "2026-03-29 01:59:59", None),  # 02:00 to 03:00 do not exist
        (CHANGE, "2026-03-29 03:00:00", "2026-03-29 04:30:00"),
        ("02:00..03:00", "2026-03-29 03:00:00", None),
        (CHANGE, "2026-10-25 02:45:00", "2026-10-25 02:00:00"),  # 02:00 to 03:00 exist twice
    ],
)
def test_quiet_hours_are_of_the_wall_clock(local: Callable[[str], None], quiet: str, now: str, end: str | None) -> None:
    local("CET-1CEST,M3.5.0,M10.5.0/3")
    found = find_weekly_end(round(datetime.fromisoformat(now).timestamp() * 1e6), quiet)
    assert (None if found is None else f"{found:%Y-%m-%d %H:%M:%S}") == end
