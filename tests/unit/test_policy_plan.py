# SPDX-License-Identifier: LGPL-2.1-or-later
"""The plan as a whole: nothing left out, nothing twice, and no more than is affordable."""

from __future__ import annotations

import random
from typing import Any

import pytest

from journalkeeper.config import Config
from journalkeeper.model import GIB, MIB, Action, Host, JournalFile, Kind, Plan, Reason, Refusal, Request, State, Volume
from journalkeeper.model.units import DAY_US, HOUR_US, MINUTE_US, SECOND_US
from journalkeeper.policy.deferral import AGAIN_US
from journalkeeper.policy.plan import count_available_bytes, plan, with_now
from tests.hosts import DEVICE, DIRECTORY, NOW_US, configured, extents, file, host, instance, known, past, volume

KEEP_FREE = Config().budget.keep_free_bytes
BUDGET = Config().budget.bytes_per_day or 0


def fragmented(stem: str, total: int = 5000, mib: int = 32, **words: Any) -> JournalFile:
    return file(stem=stem, size_bytes=mib * MIB, extents=extents(total, mib * MIB), **words)


def plan_of(*files: JournalFile, request: Request | None = None, config: Config | None = None, **words: Any) -> Plan:
    return plan(host(*files, **words), request or Request(), config or Config())


def names(actions: tuple[Action, ...]) -> list[str]:
    return [action.path.rpartition("/")[2].partition("@")[0] for action in actions]


def put_off(found: Plan) -> list[tuple[Reason, bool]]:
    """Each skip's reason, and whether something is done when that ends."""
    return [(skip.reason, skip.puts_off) for skip in found.skipped]


def test_actions_are_ordered_by_gain_per_byte() -> None:
    found = plan_of(fragmented("few", 2000), fragmented("most", 9000), fragmented("small", 4000, mib=8))
    assert names(found.actions) == ["small", "most", "few"]
    few = fragmented("few", 100, mib=8)  # each keeps one extent: 99 for 8 MiB, 399 for 32
    assert names(plan_of(few, fragmented("many", 400), request=Request(compress="no")).actions) == ["many", "few"]
    assert names(plan_of(*(fragmented(stem) for stem in "cab")).actions) == ["a", "b", "c"]


def test_actions_that_the_last_run_did_not_begin_come_first() -> None:
    files = {stem: fragmented(stem, extents) for stem, extents in {"best": 9000, "begun": 8000, "left": 99}.items()}
    waiting = {files["begun"].path: "interrupted", files["left"].path: "not-begun", files["best"].path: "pressure"}
    assert names(plan_of(*files.values(), waiting=waiting).actions) == ["left", "begun", "best"]


# the budget and the space

A = fragmented("a")
TINY, BEST, NEXT = fragmented("tiny", 800, mib=16), fragmented("best", 9000, mib=64), fragmented("next", 6000, mib=64)
NOW, SHUTDOWN = Request(now=True), Request(archived=True, before_shutdown=True)
ROOM = KEEP_FREE + 32 * MIB
ALMOST, FULL = volume(free_bytes=2 * ROOM - KEEP_FREE - 1), volume(device=41, uuid="full", free_bytes=0)
NEXT_TO_IT = ALMOST._replace(device=41)
LAST = {"written_bytes": BUDGET - 32 * MIB}


@pytest.mark.parametrize(
    ("files", "words", "done", "reasons"),
    [
        ((A,), {"written_bytes": BUDGET - 32 * MIB}, ["a"], []),
        ((A,), {"written_bytes": BUDGET - 32 * MIB + 1}, [], [Reason.BUDGET]),
        ((BEST, NEXT, TINY), {"written_bytes": BUDGET - 90 * MIB}, ["best", "tiny"], [Reason.BUDGET]),
        ((A,), {"written_bytes": BUDGET, "request": NOW}, ["a"], []),
        ((A,), {"budget": 0, "request": SHUTDOWN}, [], [Reason.BUDGET]),
        ((A, file(stem="b", nocow=True)), {"budget": 0}, [], [Reason.BUDGET] * 2),
        ((A,), {"budget": None, "written_bytes": 1 << 60}, ["a"], []),
        ((A,), {"volumes": (volume(free_bytes=ROOM),)}, ["a"], []),
        ((A,), {"volumes": (volume(free_bytes=ROOM - 1),)}, [], [Reason.FREE_SPACE]),
        ((A,), {"volumes": (volume(free_bytes=0),), "request": NOW}, [], [Reason.FREE_SPACE]),
        ((A,), {"volumes": (volume(quota_bytes=8 * MIB),)}, ["a"], []),
        ((A,), {"volumes": (volume(quota_bytes=8 * MIB - 1),)}, [], [Reason.QUOTA]),
        ((A,), {"volumes": (volume(quota_bytes=8 * MIB, options=("nodatasum",)),)}, [], [Reason.QUOTA]),
        ((A, fragmented("b")), {"volumes": (volume(quota_bytes=16 * MIB - 1),)}, ["a"], [Reason.QUOTA]),
        ((A, fragmented("b")), {"volumes": (volume(free_bytes=2 * ROOM - KEEP_FREE - 1),)}, ["a"], [Reason.FREE_SPACE]),
        # two subvolumes share the space of their volume
        ((A, fragmented("b", device=41)), {"volumes": (ALMOST, NEXT_TO_IT)}, ["a"], [Reason.FREE_SPACE]),
        # an action for which there is no space takes nothing of the budget
        ((fragmented("b", 9000, device=41), A), {"volumes": (volume(), FULL), **LAST}, ["a"], [Reason.FREE_SPACE]),
    ],
)
def test_a_plan_keeps_to_the_days_budget_and_to_the_space(
    files: tuple[JournalFile, ...], words: dict[str, Any], done: list[str], reasons: list[Reason]
) -> None:
    config = configured("budget", bytes_per_day=words["budget"]) if "budget" in words else None
    found = plan_of(*files, config=config, **{key: value for key, value in words.items() if key != "budget"})
    assert (names(found.actions), [skip.reason for skip in found.skipped]) == (done, reasons)


@pytest.mark.parametrize(
    ("words", "says", "until_us"),
    [
        ({"written_bytes": BUDGET + GIB}, "0 B left of today's budget", NOW_US + HOUR_US),
        ({"budget": 0}, "BytesPerDay=0", None),  # which is no wait
        ({"volumes": (volume(free_bytes=0),)}, "0 B are to spare", NOW_US + MINUTE_US),
    ],
)
def test_nothing_left_is_shown_with_the_next_look(words: dict[str, Any], says: str, until_us: int | None) -> None:
    config = configured("budget", bytes_per_day=words.pop("budget")) if "budget" in words else None
    (skip,) = plan_of(A, config=config, **words).skipped
    assert says in skip.detail
    assert (skip.until_us, skip.puts_off) == (until_us, until_us is not None)


@pytest.mark.parametrize(("profile", "available"), [("single", 13 * GIB), ("dup", 7 * GIB), ("raid1c3", 5 * GIB)])
def test_unallocated_space_is_raw_and_free_space_is_not(profile: str, available: int) -> None:
    assert count_available_bytes(volume(data_profile=profile, free_bytes=GIB, unallocated_bytes=12 * GIB)) == available


# every host


def any_file(dice: random.Random, number: int) -> JournalFile:
    kind = dice.choice(list(Kind))
    size = dice.choice((4096, 5 * MIB, 32 * MIB, 128 * MIB))
    data = dice.randrange(size + 1)
    per_mib = tuple(dice.choice((0, 1, 15, 16, 99)) for _ in range(-(-size // MIB)))
    total = sum(per_mib) if kind is Kind.ACTIVE else dice.choice((0, 1, 40, 300, 5000))
    bytes_of = {"unwritten_bytes": dice.choice((0, size - data)), "encoded_bytes": dice.choice((0, data))}
    bytes_of["shared_bytes"] = dice.choice((0, 0, 0, data))
    return file(
        kind,
        stem=f"f{number:02}",
        inode=300 + number,
        device=dice.choice((DEVICE, DEVICE, 41, 99)),
        size_bytes=size,
        extents=extents(total, data, **bytes_of, per_mib=per_mib if kind is Kind.ACTIVE else ()),
        nocow=dice.random() < 0.3,
        links=dice.choice((1, 1, 1, 1, 2)),
        uid=dice.choice((0, 0, 0, 0, 1000)),
        state=State.ARCHIVED if kind is Kind.ARCHIVED else dice.choice(list(State)),
        ctime_ns=(NOW_US - dice.choice((0, 30, 100, 10_000)) * SECOND_US) * 1000,
        problem=dice.choice((None, None, None, None, Reason.BAD_HEADER)),
    )


def any_host(seed: int) -> tuple[Host, Request, Config]:
    dice = random.Random(seed)  # noqa: S311 - repeatable
    files = tuple(any_file(dice, number) for number in range(dice.randrange(20)))
    rewritten = {(one.device, one.inode): past(one) for one in files if dice.random() < 0.1}
    volumes: tuple[Volume, ...] = (
        volume(free_bytes=dice.randrange(2 * GIB)),
        volume(device=41, subvolume=257, unallocated_bytes=dice.randrange(GIB), data_profile="dup"),
    )
    request = Request(
        active=dice.random() < 0.8,
        archived=dice.random() < 0.9,
        now=dice.random() < 0.3,
        compress=dice.choice((None, "no", "zstd:3")),
        allow_unshare=dice.random() < 0.5,
    )
    return host(*files, past=rewritten, volumes=volumes, written_bytes=dice.randrange(BUDGET)), request, Config()


@pytest.mark.parametrize("seed", range(100))
def test_every_file_is_in_the_plan_exactly_once_and_no_plan_spends_more_than_there_is(seed: int) -> None:
    given, request, config = any_host(seed)
    found = plan(given, request, config)
    assert found == plan(given._replace(files=given.files[::-1]), request, config), "the order does not matter"
    skipped = [skip.path for skip in found.skipped]
    assert skipped == sorted(skipped)
    assert sorted([*(action.path for action in found.actions), *skipped]) == sorted(one.path for one in given.files)
    files = {one.path: one for one in given.files}
    assert len(files) == len(given.files)
    for skip in found.skipped:
        assert (skip.instance, skip.extents) == (files[skip.path].instance, files[skip.path].extents.total)
    for action in found.actions:
        file = next(file for file in given.files if file == action.target)
        assert file.problem is None
        assert action.extents_expected >= 1
        assert 0 <= action.bytes_to_write <= file.size_bytes
        ends = [(part.offset, part.offset + part.length) for part in action.ranges]
        assert all(0 <= begin < end <= file.size_bytes for begin, end in ends)
    spent = sum(action.bytes_to_write for action in found.actions)
    room = max(count_available_bytes(one) for one in given.volumes) - config.budget.keep_free_bytes
    assert spent <= max(0, room)
    assert request.now or spent <= max(0, BUDGET - given.written_bytes)


# what time brings


SETTLING = fragmented("settling", ctime_ns=(NOW_US - SECOND_US) * 1000)
AHEAD = fragmented("ahead", ctime_ns=(NOW_US + SECOND_US) * 1000)
DENSE = extents(900, per_mib=(900,))
UNSYNCED = file(Kind.ACTIVE, state=State.ONLINE, extents=DENSE, mtime_ns=(NOW_US - SECOND_US) * 1000)
REFUSED = {(DEVICE, 300): Refusal(NOW_US - SECOND_US, 1, 1, Reason.IO_ERROR, "why")}


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (host(SETTLING), Reason.SETTLING),
        (host(AHEAD), Reason.SETTLING),
        (host(UNSYNCED), Reason.WINDOW_CLOSED),
        (host(UNSYNCED, instances=(instance(online_since_us=NOW_US + 1),)), Reason.WINDOW_CLOSED),
        (host(UNSYNCED._replace(state=State.OFFLINE), refused=REFUSED), Reason.IO_ERROR),
    ],
)
def test_a_reason_that_time_ends_is_gone_at_the_time_that_the_plan_names(before: Host, reason: Reason) -> None:
    first = plan(before, Request(), Config())
    assert put_off(first) == [(reason, True)]
    wake_us = first.wake_at_us
    assert wake_us is not None
    assert plan(before._replace(now_us=wake_us - 1), Request(), Config()).skipped
    assert plan(before._replace(now_us=wake_us), Request(), Config()).actions


WHOLE = file(extents=extents(8, MIB, encoded_bytes=MIB), size_bytes=MIB, ctime_ns=NOW_US * 1000)
SHARED_AND_TORN = extents(900, per_mib=(30,) * 30, shared_per_mib=(MIB,) * 30, shared_bytes=32 * MIB)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (host(fragmented("a", state=State.ONLINE, ctime_ns=(NOW_US - DAY_US + 1) * 1000)), (Reason.IN_USE, True)),
        # after a power cut its state byte is stored by no journald any more
        (host(fragmented("a", state=State.ONLINE, ctime_ns=(NOW_US - DAY_US) * 1000)), (Reason.IN_USE, False)),
        (host(fragmented("a"), volumes=(volume(maintenance="scrub"),)), (Reason.PRESSURE, True)),
        # only what would be done is put off
        (host(WHOLE), (Reason.SETTLING, False)),
        (host(SETTLING, past=known(SETTLING)), (Reason.SETTLING, False)),
        (host(fragmented("a", links=2)), (Reason.HARD_LINKED, False)),
        # a shared file that needs nothing waits for no snapshot
        (host(file(Kind.ACTIVE, extents=extents(2, shared_bytes=32 * MIB))), (Reason.NO_GAIN, False)),
        (host(file(Kind.ACTIVE, extents=SHARED_AND_TORN)), (Reason.SHARED, False)),
    ],
)
def test_only_what_would_be_done_is_put_off_for_an_hour_at_most(before: Host, expected: tuple[Reason, bool]) -> None:
    found = plan(before, Request(), Config())
    assert put_off(found) == [expected]
    if expected[1]:
        assert found.wake_at_us is not None
        assert NOW_US < found.wake_at_us <= NOW_US + AGAIN_US


def test_a_window_that_never_opens_names_the_setting() -> None:
    short = host(UNSYNCED, instances=(instance(sync_interval_us=SECOND_US, online_since_us=NOW_US),))
    details = [plan(given, Request(), Config()).skipped[0].detail for given in (short, host(UNSYNCED))]
    assert ["SyncIntervalSec=" in detail for detail in details] == [True, False]


@pytest.mark.parametrize("seed", range(50))
def test_no_file_that_time_gives_an_action_sleeps(seed: int) -> None:
    given, request, config = any_host(seed)
    dice = random.Random(-seed)  # noqa: S311 - repeatable
    files = [one._replace(mtime_ns=(NOW_US - dice.randrange(-600, 600) * SECOND_US) * 1000) for one in given.files]
    tried = {(one.device, one.inode): Refusal(NOW_US - dice.randrange(5000) * SECOND_US, 0, 0, Reason.IO_ERROR, "")
             for one in files if dice.random() < 0.2}  # fmt: skip
    given = given._replace(files=tuple(files), refused=tried)
    now = plan(given, request, config)
    done = {action.path for action in now.actions}
    for later_us in sorted(NOW_US + dice.randrange(7200) * SECOND_US for _ in range(50)):
        later = plan(given._replace(now_us=later_us), request, config)
        if any(action.path not in done for action in later.actions):
            assert now.wake_at_us is not None
            assert now.wake_at_us <= later_us
            return


JUST_NOW: dict[str, Any] = {"ctime_ns": (NOW_US - SECOND_US) * 1000}
TORN = extents(9000, per_mib=(280,) * 32)
ONLINE: dict[str, Any] = {"state": State.ONLINE, "mtime_ns": NOW_US * 1000}


def marked(*files: JournalFile, request: Request | None = None, **words: Any) -> list[tuple[Reason, bool]]:
    """Each skip's reason, and whether --now would do it."""
    seen, config = host(*files, **words), configured("budget", bytes_per_day=100 * MIB)
    request = request or Request()
    return [(skip.reason, skip.now) for skip in with_now(plan(seen, request, config), seen, request, config).skipped]


def refused(of: JournalFile) -> dict[tuple[int, int], Refusal]:
    return {(of.device, of.inode): Refusal(NOW_US - SECOND_US, of.size_bytes, of.mtime_ns, Reason.IO_ERROR, "EIO")}


@pytest.mark.parametrize(
    ("one", "words", "expected"),
    [
        (fragmented("a", **JUST_NOW), {}, (Reason.SETTLING, True)),
        (file(extents=extents(256, encoded_bytes=32 * MIB), **JUST_NOW), {}, (Reason.SETTLING, False)),  # it is whole
        (fragmented("a", **JUST_NOW), {"past": known(fragmented("a", **JUST_NOW))}, (Reason.SETTLING, False)),
        (fragmented("a", state=State.ONLINE), {}, (Reason.IN_USE, False)),
        (fragmented("a", state=State.ONLINE, **JUST_NOW), {}, (Reason.SETTLING, False)),  # another reason is behind it
        (file(Kind.ACTIVE, extents=TORN, **ONLINE), {}, (Reason.WINDOW_CLOSED, True)),
        (file(Kind.ACTIVE, **ONLINE), {}, (Reason.IDEAL, False)),  # it waits for no flush
        (fragmented("a"), {"written_bytes": 99 * MIB}, (Reason.BUDGET, True)),
        (fragmented("a"), {"volumes": (volume(busy_percent=99.0),)}, (Reason.PRESSURE, True)),
        (fragmented("a"), {"refused": refused(fragmented("a"))}, (Reason.IO_ERROR, True)),
        (fragmented("a"), {"volumes": (volume(free_bytes=KEEP_FREE),)}, (Reason.FREE_SPACE, False)),
        (fragmented("a", **JUST_NOW), {"volumes": (volume(free_bytes=KEEP_FREE),)}, (Reason.SETTLING, False)),
    ],
)  # fmt: skip
def test_a_skip_says_where_now_helps(one: JournalFile, words: dict[str, Any], expected: tuple[Reason, bool]) -> None:
    assert marked(one, **words) == [expected]


def test_a_sync_is_asked_for_where_nothing_else_tells_and_is_shown_as_no_action() -> None:
    other = instance(name="b.web", directory="/var/log/journal/b.web")
    given = host(file(), instances=(instance(sync_tells=True), other))
    found = plan(given, Request(), Config())
    assert [one.directory for one in found.syncs] == [DIRECTORY]
    without = plan(given._replace(instances=(instance(), other)), Request(), Config())
    assert without.syncs == ()
    assert found._replace(syncs=()) == without
