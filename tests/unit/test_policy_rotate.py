# SPDX-License-Identifier: LGPL-2.1-or-later
"""When journald is asked to rotate, and that no entry goes sooner for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from journalkeeper.config.directives import Budget, Config, Defrag, Nocow
from journalkeeper.model import GIB, MIB, Host, Instance, JournalFile, Kind, Plan, Reason, Refusal, Request, State, Verb
from journalkeeper.model.units import DAY_US, HOUR_US, INFINITY_US
from journalkeeper.policy.plan import plan, with_now
from tests.evidence import limits
from tests.hosts import DEVICE, DIRECTORY, NOW_US, extents, file, host, known, volume

KIB = MIB >> 10
UPKEEP = Request(upkeep=True)
KEEP_DATACOW = Config(nocow=Nocow(nocow="no"))
SYSTEM = f"{DIRECTORY}/system.journal"


def young(**words: Any) -> Instance:
    """A NOCOW directory that may grow to 4 GiB, in files of 128 MiB, and has a journald that can be asked."""
    plain: dict[str, Any] = {
        "nocow": True,
        "system_max_use_bytes": 4 * GIB,
        "system_max_file_size_bytes": 128 * MIB,
        "max_file_us": 30 * DAY_US,
        "inode": 256,
    }
    return limits(**{**plain, **words})


def active(stem: str = "system", size_mib: int = 32, per_mib: int = 1, **words: Any) -> JournalFile:
    """A file that journald writes, `per_mib` extents in each MiB."""
    each = (per_mib,) * size_mib
    plain: dict[str, Any] = {
        "size_bytes": size_mib * MIB,
        "allocated_bytes": size_mib * MIB,
        "extents": extents(sum(each), size_mib * MIB, per_mib=each),
        "inode": 300 + len(stem),
        "owner": "system" if stem == "system" else "user:1000",
    }
    return file(Kind.ACTIVE, stem, **{**plain, **words})


def dense_in(dense_mib: int, size_mib: int, dense: int = 100, rest: int = 0, **words: Any) -> JournalFile:
    """An active file of which the first MiBs have `dense` extents each."""
    each = (dense,) * dense_mib + (rest,) * (size_mib - dense_mib)
    return active(size_mib=size_mib, extents=extents(sum(each), size_mib * MIB, per_mib=each), **words)


def archives(count: int, size_mib: int) -> tuple[JournalFile, ...]:
    """Archives that need nothing."""
    return tuple(file(stem=f"a{one:03}", inode=1000 + one, allocated_bytes=size_mib * MIB) for one in range(count))


def ended(*sizes_mib: int) -> tuple[JournalFile, ...]:
    """Archives, the oldest first, whose hash tables are full at 62 MiB."""
    bare = zip(archives(len(sizes_mib), 0), sizes_mib, strict=True)
    return tuple(one._replace(allocated_bytes=size_mib * MIB, full_bytes=62 * MIB) for one, size_mib in bare)


def decided(given: Host, request: Request = UPKEEP, config: Config = Config()) -> Plan:  # noqa: B008 - frozen
    found = plan(given, request, config)
    files = {one.path for one in given.files}
    rows = [*(action.path for action in found.actions), *(skip.path for skip in found.skipped)]
    assert sorted(path for path in rows if path in files) == sorted(files), "every file once"
    return found


def by_price(*files: JournalFile, request: Request = UPKEEP, config: Config = KEEP_DATACOW, **words: Any) -> Plan:
    """What is decided where no file has to become NOCOW; `words` are the instance's."""
    return decided(host(*files, instances=(young(**{"nocow": False, **words}),)), request, config)


def said(found: Plan) -> list[tuple[Reason, str]]:
    """What is said of the directory."""
    return [(skip.reason, skip.detail) for skip in found.skipped if skip.path == DIRECTORY]


def tools(found: Plan) -> list[Verb]:
    return [action.action for action in found.actions]


def rotations(found: Plan) -> list[tuple[str, Reason]]:
    return [(action.path, action.reason) for action in found.actions if action.action is Verb.ROTATE]


# To make an active file NOCOW


def test_the_archive_of_a_rotation_is_compacted() -> None:
    one = file(extents=extents(3000))
    found = decided(host(one, instances=(young(),), past=known(one, verb=Verb.ROTATE)))
    assert [action.path for action in found.actions] == [one.path]


def test_the_system_journal_comes_first_and_one_rotation_serves_all() -> None:
    found = decided(host(active("app"), active("user-1000", per_mib=100), active(), instances=(young(),)))
    assert rotations(found) == [(SYSTEM, Reason.BORN_DATACOW)]
    ended = {skip.path.rpartition("/")[2]: skip.reason for skip in found.skipped}
    assert ended == {"app.journal": Reason.NO_GAIN, "user-1000.journal": Reason.ROTATION}


# Reasons not to


def obstacle(**words: Any) -> list[tuple[str, Reason]] | list[Reason]:
    """The rotations, or where there are none the reasons."""
    of_instance = words.pop("instance", {})
    files = words.pop("files", (active(),))
    request, config = words.pop("request", UPKEEP), words.pop("config", Config())
    found = decided(host(*files, instances=(young(**of_instance),), **words), request, config)
    return rotations(found) or [reason for reason, _ in said(found)]


ROTATED = [(SYSTEM, Reason.BORN_DATACOW)]
HALF = active(size_mib=64)
SIXTEEN = (active(size_mib=1), *archives(16, 123))
EARLY, FULL = (31,) * 33, (62,) * 47
TEN = {"system_max_use_bytes": 0, "system_max_files": 10}
FEW = {"system_max_use_bytes": 200 * MIB, "system_max_file_size_bytes": 25 * MIB}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, ROTATED),
        ({"instance": {"nocow": False}, "volumes": (volume(options=("rw", "nodatacow")),)}, ROTATED),
        ({"instance": {"nocow": False}}, ROTATED),  # in the plan that makes the directory NOCOW
        ({"instance": {"nocow": False}, "volumes": (volume(redundant=True),)}, [Reason.REDUNDANT]),
        ({"config": Config(nocow=Nocow(rotate_to_apply=False))}, [Reason.NOT_ASKED]),
        ({"past": known(active(), verb=Verb.ROTATE)}, [Reason.NOT_TAKEN]),  # it came of a rotation
        ({"files": (active(extents=extents(32, 32 * MIB, shared_bytes=MIB)),)}, [Reason.SNAPSHOTS]),
        # Nothing becomes NOCOW by a rotation
        ({"files": (active(nocow=True),)}, []),
        ({"files": (active(owner="remote"),)}, []),
        ({"files": (active(links=2),)}, []),
        ({"files": (active(problem=Reason.BAD_HEADER),)}, []),
        ({"instance": {"rotatable": False}}, [Reason.NO_JOURNALD]),
        ({"files": (active(), active("user-1000", problem=Reason.UNKNOWN_FORMAT))}, [Reason.UNKNOWN_FORMAT]),
        ({"files": (active(), active("user-1000", problem=Reason.BAD_HEADER))}, ROTATED),
        ({"rotations": 3}, ROTATED),
        ({"rotations": 4}, [Reason.BUDGET]),
        ({"rotations": 4, "request": UPKEEP._replace(now=True)}, ROTATED),
        ({"refused": {(DEVICE, 256): Refusal(NOW_US, 0, 0, Reason.NO_JOURNALD, "it is gone")}}, [Reason.NO_JOURNALD]),
        ({"refused": {(DEVICE, 256): Refusal(NOW_US - HOUR_US, 0, 0, Reason.NO_JOURNALD, "x")}}, ROTATED),
        ({"files": (active(state=State.ONLINE, mtime_ns=NOW_US * 1000),)}, [Reason.WINDOW_CLOSED]),
        # Retention: the active file has 32 MiB, a full one 128, the limit is 4096. journald itself keeps 4,032 MiB in
        # the mean: 31 full files beside a new one of 8, and half a file
        ({"files": (active(), *archives(32, 128))}, ROTATED),  # 128 MiB go
        ({"files": (active(), *archives(1, 5000))}, [Reason.RETENTION]),  # the only archive
        # What is not available is not kept: 16 files of 123 MiB are there
        ({"files": SIXTEEN}, ROTATED),
        ({"files": SIXTEEN, "instance": {"available_bytes": 0}}, [Reason.RETENTION]),  # one goes: 122 of 1,984 too soon
        # 39 archives, a new file, and 12 full ones fill the bytes: SystemMaxFiles= may delete two of 64 MiB before that
        ({"files": (HALF, *archives(38, 64)), "instance": {"system_max_files": 50}}, ROTATED),
        ({"files": (HALF, *archives(38, 64)), "instance": {"system_max_files": 49}}, [Reason.RETENTION]),
        ({"files": (HALF, *archives(38, 64)), "instance": {"system_max_files": 0}}, ROTATED),
        # A hash table of 128 MiB is full at 62: such files are not early
        ({"files": (active(), *archives(64, 62))}, [Reason.RETENTION]),
        ({"files": (active(), *ended(*[62] * 64))}, ROTATED),
        # 17 files more than needed cost 1.6%. One more costs little if journald itself ended the files before it
        ({"files": (active(size_mib=9), *ended(*EARLY, *FULL))}, ROTATED),
        ({"files": (active(size_mib=9), *ended(*FULL, *EARLY))}, [Reason.RETENTION]),
        # Without limits nothing is deleted, and with unknown ones anything
        ({"instance": {"system_max_use_bytes": 0, "system_max_files": 0}}, ROTATED),
        ({"files": (active(), *archives(99, 128)), "instance": {"system_max_use_bytes": 0}}, ROTATED),
        ({"files": (active(), *archives(9, 128)), "instance": TEN}, [Reason.RETENTION]),
        ({"instance": {"system_max_use_bytes": None}}, [Reason.RETENTION]),
        ({"instance": {"available_bytes": None}}, [Reason.RETENTION]),
        # An archive must not age faster than files end
        ({"instance": {"max_retention_us": 0, "max_file_us": 30 * DAY_US}}, ROTATED),
        ({"instance": {"max_retention_us": INFINITY_US, "max_file_us": 30 * DAY_US}}, ROTATED),
        ({"instance": {"max_retention_us": 30 * DAY_US, "max_file_us": 30 * DAY_US}}, ROTATED),
        ({"instance": {"max_retention_us": 30 * DAY_US - 1, "max_file_us": 30 * DAY_US}}, [Reason.RETENTION]),
        ({"instance": {"max_retention_us": 30 * DAY_US, "max_file_us": 0}}, [Reason.RETENTION]),
        # 7 full files of 25 MiB beside a new one of 8, 187.5 in the mean
        ({"files": (active(size_mib=5), *archives(8, 25)), "instance": FEW}, ROTATED),  # one goes: 5 too soon
        ({"files": (active(size_mib=1), *archives(8, 25)), "instance": FEW}, [Reason.RETENTION]),  # 11
    ],
)
def test_journald_is_asked_only_when_nothing_speaks_against_it(words: dict[str, Any], expected: object) -> None:
    assert obstacle(**words) == expected


def test_the_veto_names_the_share_the_limit_and_what_goes_at_once() -> None:
    of_instance = young(**FEW)
    ((_, detail),) = said(decided(host(active(size_mib=1), *archives(8, 25), instances=(of_instance,))))
    why = "it costs 6% of the history, HistoryLoss=5%; journald would delete 25 MiB at once"
    assert detail == f"journald is not asked to rotate: {why}"


def test_a_days_last_rotation_is_followed_by_a_look_an_hour_later() -> None:
    found = decided(host(active(), instances=(young(),), rotations=4))
    assert [skip.until_us for skip in found.skipped if skip.reason is Reason.BUDGET] == [NOW_US + HOUR_US]


@pytest.mark.parametrize("nocow", [True, False])
def test_two_instances_share_the_days_rotations(*, nocow: bool) -> None:
    """An attribute that is set first counts as no rotation."""
    there = "/var/log/journal/b.web"
    instances = young(nocow=nocow), young(name="b.web", directory=there, namespace="web", inode=257, nocow=nocow)
    given = host(active(), active(path=f"{there}/system.journal", inode=400), instances=instances, rotations=3)
    assert len(rotations(decided(given))) == 1
    assert len(rotations(decided(given._replace(rotations=2)))) == 2


# As the cheaper tool


@pytest.mark.parametrize(
    ("size_mib", "dense_mib", "dense", "rest", "tool"),
    [
        (32, 32, 187, 0, Verb.ROTATE),  # measured: 5,992 extents in 32 MiB. Ranges 32 + 2, rotation 8 + 3.6 + 1.25
        (8, 8, 100, 0, Verb.ROTATE),  # 8 + 0.5 against 2 + 3.6 + 1.25
        (4, 4, 100, 0, Verb.DEFRAGMENT),  # 4 + 0.25 against 1 + 3.6 + 1.25: the hash tables decide
        (128, 8, 100, 0, Verb.DEFRAGMENT),  # 8 + 0.5 against 32 + 3.6 + 1.25
        (128, 8, 100, 8, Verb.ROTATE),  # but the 960 extents that ranges would leave are worth 60 MiB
    ],
)
def test_the_cheaper_tool_is_chosen(size_mib: int, dense_mib: int, dense: int, rest: int, tool: Verb) -> None:
    one = dense_in(dense_mib, size_mib, dense, rest)
    found = by_price(one)
    assert tools(found) == [tool]
    if tool is Verb.ROTATE:
        assert rotations(found) == [(SYSTEM, Reason.CHEAPER)]
        assert (found.actions[0].extents_before, found.actions[0].extents_expected) == (one.extents.total, 4)


@pytest.mark.parametrize(("nocow", "tool"), [(False, Verb.ROTATE), (True, Verb.DEFRAGMENT)])
def test_a_nocow_file_is_dearer_to_rotate_because_journald_copies_it(tool: Verb, *, nocow: bool) -> None:
    config = Config(nocow=Nocow(nocow="no", rotate_to_apply=False))
    assert tools(by_price(active(per_mib=40, nocow=nocow), config=config, nocow=True)) == [tool]


def test_no_rotations_a_day_are_none_before_a_shutdown_either() -> None:
    none = KEEP_DATACOW.model_copy(update={"budget": Budget(rotations_per_day=0)})
    one = active(size_mib=8, per_mib=100)
    for ending, tool in ((False, Verb.ROTATE), (True, Verb.DEFRAGMENT)):
        request = Request(now=True, before_shutdown=ending, upkeep=True)
        found = by_price(one, request=request, config=none)
        assert tools(found) == [tool]


@pytest.mark.parametrize(
    ("size_mib", "per_mib", "shared", "nocow", "ending", "rotated"),
    [
        (32, 6, 0, False, False, 0),  # 12 MiB worth of extents against 8 + 3.6 + 1.25
        (32, 7, 0, False, False, 1),  # 14, and no MiB reaches ExtentsPerMiB=
        (32, 7, 1, False, False, 1),  # nor may it be rewritten
        (32, 6, 1, False, False, 0),
        (32, 0, 0, False, True, 1),  # the shutdown's messages: 18.75
        (64, 0, 0, False, True, 0),  # against 16 + 3.6 + 1.25
        (8, 0, 0, True, True, 0),  # which tear no NOCOW file
        (8, 0, 1, True, True, 1),  # but one that a snapshot shares: 18.75 against 8 + 2 + 3.6 + 1.25
        (8, 0, 1, True, False, 0),
    ],
)
def test_a_rotation_is_judged_by_what_the_next_reader_pays(
    size_mib: int, per_mib: int, shared: int, *, nocow: bool, ending: bool, rotated: int
) -> None:
    """Whether or not there is a range to rewrite, and whether or not that may be done."""
    one = active(size_mib=size_mib, per_mib=per_mib, nocow=nocow)
    one = one._replace(extents=one.extents._replace(shared_bytes=shared * size_mib * MIB))
    one = one._replace(extents=one.extents._replace(shared_per_mib=(shared * MIB,) * size_mib))
    request = Request(now=ending, before_shutdown=ending, upkeep=True)
    found = by_price(one, request=request, nocow=nocow)
    assert tools(found) == [Verb.ROTATE] * rotated


@pytest.mark.parametrize(
    ("words", "request_", "defrag", "options"),
    [
        ({"uid": 1000}, UPKEEP, {}, ("rw",)),
        ({"links": 2}, UPKEEP, {}, ("rw",)),
        ({}, UPKEEP._replace(archived=True), {}, ("rw",)),
        ({}, UPKEEP, {"active": False}, ("rw",)),
        ({}, UPKEEP, {}, ("ro",)),
    ],
    ids=["foreign", "linked", "archived only", "Active=no", "read-only"],
)
def test_a_file_that_may_not_be_rewritten_is_no_reason_to_rotate(
    words: dict[str, Any], request_: Request, defrag: dict[str, Any], options: tuple[str, ...]
) -> None:
    config = KEEP_DATACOW.model_copy(update={"defrag": Defrag(**defrag)})
    given = host(active(per_mib=40, **words), instances=(young(nocow=False),), volumes=(volume(options=options),))
    assert rotations(decided(given, request_, config)) == []


@pytest.mark.parametrize("words", [{"maintenance": "scrub"}, {"busy_percent": 90}])
def test_a_busy_volume_brings_no_rotation_about_and_is_given_none(words: dict[str, Any]) -> None:
    for one, tool in ((dense_in(1, 48), Verb.DEFRAGMENT), (active(per_mib=100), Verb.ROTATE)):
        given = host(one, instances=(young(nocow=False),))
        calm = decided(given, config=KEEP_DATACOW)
        assert tools(calm) == [tool]
        found = decided(given._replace(volumes=(volume(**words),)), config=KEEP_DATACOW)
        assert found.actions == ()
        at_once = decided(given._replace(volumes=(volume(**words),)), UPKEEP._replace(now=True), KEEP_DATACOW)
        assert tools(at_once) == [tool]


def test_a_rotation_that_waits_is_marked_where_now_would_make_it() -> None:
    one = active(per_mib=100, state=State.ONLINE, mtime_ns=NOW_US * 1000)
    given = host(one, instances=(young(nocow=False),))
    found = with_now(decided(given, config=KEEP_DATACOW), given, UPKEEP, KEEP_DATACOW)
    assert {skip.path for skip in found.skipped} == {DIRECTORY, SYSTEM}, "--now rotates the file"
    assert {(skip.reason, skip.now, skip.puts_off) for skip in found.skipped} == {(Reason.WINDOW_CLOSED, True, True)}


def test_a_refused_attribute_is_not_marked_although_now_would_rotate() -> None:
    """Both answers have the path of the directory."""
    one = active(per_mib=100, state=State.ONLINE, mtime_ns=NOW_US * 1000)
    given = host(one, instances=(young(nocow=False),), volumes=(volume(redundant=True),))
    found = with_now(decided(given), given, UPKEEP, Config())
    marks = {skip.reason: skip.now for skip in found.skipped if skip.path == DIRECTORY}
    assert (marks[Reason.REDUNDANT], marks[Reason.WINDOW_CLOSED]) == (False, True)


def test_each_user_makes_a_rotation_dearer() -> None:
    torn, others = active(size_mib=8, per_mib=100), [active(f"user-{uid}", size_mib=8) for uid in range(1000, 1003)]
    alone = by_price(torn)
    among = by_price(torn, *others)
    assert (len(rotations(alone)), len(rotations(among))) == (1, 0)
    assert [action.path for action in among.actions] == [SYSTEM]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"rotatable": False}, Reason.NO_JOURNALD),
        ({"system_max_use_bytes": 100 * MIB, "system_max_files": 1}, Reason.RETENTION),
        ({"max_retention_us": DAY_US}, Reason.RETENTION),
    ],
)
def test_where_a_rotation_may_not_be_ranges_are_the_tool(words: dict[str, Any], reason: Reason) -> None:
    found = by_price(active(per_mib=100), **words)
    assert [action.action for action in found.actions] == [Verb.DEFRAGMENT]
    assert [one for one, _ in said(found)] == [reason]
    assert not any(skip.puts_off for skip in found.skipped)


@pytest.mark.parametrize(
    ("small", "size_mib", "tool"),
    [
        # a quarter of 5.5% of 4,032 MiB are 55 MiB: 14 early files of any size
        (14, 16, Verb.ROTATE),
        (15, 16, Verb.DEFRAGMENT),
        # then 166 MiB: 43 more than the 31 full files, each of 54 MiB
        (20, 54, Verb.ROTATE),
        (20, 53, Verb.DEFRAGMENT),
        (59, 60, Verb.DEFRAGMENT),  # 224 MiB are spent
    ],
)
def test_early_files_are_spread_by_what_the_history_may_lose(small: int, size_mib: int, tool: Verb) -> None:
    one = dense_in(size_mib, size_mib)
    found = by_price(one, *archives(small, 1), request=UPKEEP._replace(now=True), system_max_files=0)
    assert [one.action for one in found.actions if one.is_on_active_file or one.action is Verb.ROTATE] == [tool]


@pytest.mark.parametrize(
    ("small", "shuts_down", "tool"),
    [
        # a quarter of 1.75% of 4,032 MiB are 18 MiB, of 5.5% they are 55: 4 and 14 early files of any size
        (4, False, Verb.ROTATE),
        (5, False, Verb.DEFRAGMENT),
        (14, True, Verb.ROTATE),
        (15, True, Verb.DEFRAGMENT),
    ],
)
def test_most_of_history_loss_is_for_rotations_before_a_shutdown(small: int, shuts_down: bool, tool: Verb) -> None:
    request = UPKEEP._replace(before_shutdown=shuts_down)
    found = by_price(dense_in(16, 16), *archives(small, 1), request=request, system_max_files=0)
    assert [one.action for one in found.actions if one.is_on_active_file or one.action is Verb.ROTATE] == [tool]
    if tool is Verb.DEFRAGMENT:
        assert ("25% of HistoryLoss=5% until a shutdown" in said(found)[0][1]) is not shuts_down


def test_space_allocated_ahead_is_no_loss_because_full_files_have_it_too() -> None:
    # 131.8 MiB in files that end at 2.6 of 8.2 MiB: a file of each day costs 7% if the room ahead counts as lost
    small: dict[str, Any] = {"system_max_use_bytes": 16 * 8432 * KIB, "system_max_file_size_bytes": 8432 * KIB}
    unused = extents(500, 2200 * KIB, unwritten_bytes=(8192 - 2200) * KIB)
    one = active(size_mib=8, extents=unused, full_bytes=2660 * KIB)
    days = [old._replace(allocated_bytes=2200 * KIB, full_bytes=2660 * KIB) for old in archives(55, 1)]
    found = by_price(one, *days, request=UPKEEP._replace(before_shutdown=True), system_max_files=0, **small)
    assert [action.action for action in found.actions] == [Verb.ROTATE]


@pytest.mark.parametrize(
    ("a_day", "age_us", "now", "rotated"),
    [
        *((4, 6 * HOUR_US, False, 1), (4, 6 * HOUR_US - 1, False, 0), (4, 0, True, 1), (4, -HOUR_US, False, 1)),
        *((1, 24 * HOUR_US, False, 1), (1, 24 * HOUR_US - 1, False, 0)),
    ],
)
def test_the_days_rotations_are_spread_over_it(a_day: int, age_us: int, *, now: bool, rotated: int) -> None:
    one = active(per_mib=100, head_time_us=NOW_US - age_us)
    config = KEEP_DATACOW.model_copy(update={"budget": Budget(rotations_per_day=a_day)})
    found = by_price(one, request=UPKEEP._replace(now=now), config=config)
    assert len(rotations(found)) == rotated
    if not rotated:
        assert [reason for reason, _ in said(found)] == [Reason.TOO_YOUNG]
        assert len(found.actions) == 1
        assert found.wake_at_us == one.head_time_us + 24 * HOUR_US // a_day
        old, every = {4: ("5h 59min", "6h"), 1: ("23h 59min", "1d")}[a_day]
        says = f"the file is {old} old; a file is rotated to save writes after {every}"
        (detail,) = (skip.detail for skip in found.skipped if skip.reason is Reason.TOO_YOUNG)
        assert detail == f"journald is not asked to rotate yet: {says}"


def test_many_instances_do_not_make_all_files_be_gone_through_for_each() -> None:
    times = 0

    class Files(tuple[JournalFile, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[JournalFile]:
            nonlocal times
            times += 1
            return super().__iter__()

    def count(instances: int) -> int:
        before, places = times, tuple(young(nocow=False, directory=f"/j/{one}") for one in range(instances))
        plan(host(instances=places)._replace(files=Files([active()])), UPKEEP, KEEP_DATACOW)
        return times - before

    assert count(9) == count(1) > 0
