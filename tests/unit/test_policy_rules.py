# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every rule on both sides of its boundary, and their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from journalkeeper.config import Config
from journalkeeper.model import KIB, MIB, Extents, JournalFile, Kind, Reason, Request, Skip, State, Verb
from journalkeeper.model.units import MINUTE_US, SECOND_US
from journalkeeper.policy import rules
from journalkeeper.policy.case import Case, Cases
from journalkeeper.policy.plan import plan
from tests.hosts import NOW_US, case, configured, extents, file, host, instance, known, volume

SETTLE_US = Config().watch.settle_us
NOCOW_SETTLE_US = Config().watch.nocow_settle_us


def reason(rule: Callable[[Case], Skip | None], one: Case) -> Reason | None:
    found = rule(one)
    assert found is None or (found.path == one.file.path and found.detail)
    return found.reason if found else None


def skip(rule: Callable[[Case], Skip | None], one: Case) -> Skip:
    found = rule(one)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", list(Kind))
def test_a_file_at_peace_passes_every_rule(kind: Kind) -> None:
    assert list(rules.vetoes(case(file(kind)))) == []


# what we cannot judge


@pytest.mark.parametrize("problem", [Reason.BAD_HEADER, Reason.NOT_REGULAR, Reason.NOT_JOURNAL, Reason.UNREADABLE])
def test_a_problem_is_said_in_its_own_words(problem: Reason) -> None:
    assert rules.veto_unreadable(case(file(problem=problem, problem_detail="so it is"))) == Skip(
        file().path, problem, "so it is"
    )


@pytest.mark.parametrize(
    ("kind", "active", "archived", "skipped"),
    [
        (Kind.ACTIVE, True, False, False),
        (Kind.ACTIVE, False, True, True),
        (Kind.ARCHIVED, True, False, True),
        (Kind.ARCHIVED, False, True, False),
    ],
)
def test_only_the_kind_that_was_asked_for(kind: Kind, active: bool, archived: bool, skipped: bool) -> None:
    expected = Reason.NOT_ASKED if skipped else None
    assert reason(rules.veto_unrequested, case(file(kind), Request(active=active, archived=archived))) is expected
    assert reason(
        rules.veto_unrequested, case(file(kind), None, configured("defrag", active=active, archived=archived))
    ) is (expected)


def test_the_detail_says_whether_request_or_configuration_left_it_out() -> None:
    assert "the request does not include" in skip(rules.veto_unrequested, case(file(), Request(active=True))).detail
    configuration = case(file(), None, configured("defrag", archived=False))
    assert "Archived=no" in skip(rules.veto_unrequested, configuration).detail


def test_without_a_volume_it_is_not_btrfs() -> None:
    assert reason(rules.veto_other_filesystem, case(file(), volumes=())) is Reason.NOT_BTRFS
    assert reason(rules.veto_other_filesystem, case(file(device=41))) is Reason.NOT_BTRFS
    assert reason(rules.veto_other_filesystem, case(file())) is None


@pytest.mark.parametrize(
    ("options", "skipped"), [(("ro",), True), (("rw", "ro"), True), (("rw", "errors=remount-ro"), False), ((), False)]
)
def test_a_read_only_mount_is_left_alone(options: tuple[str, ...], skipped: bool) -> None:
    expected = Reason.READ_ONLY if skipped else None
    assert reason(rules.veto_read_only, case(file(), volumes=(volume(options=options),))) is expected


@pytest.mark.parametrize(("links", "skipped"), [(1, False), (2, True), (3, True)])
def test_a_file_of_two_names_is_left_alone(links: int, skipped: bool) -> None:
    assert reason(rules.veto_hard_links, case(file(links=links))) is (Reason.HARD_LINKED if skipped else None)


@pytest.mark.parametrize(
    ("uid", "owner", "skipped"),
    [
        (0, "system", False),
        (1000, "system", True),
        (1000, "user:1000", True),
        (998, "remote", False),
    ],
)
def test_only_roots_files_and_remote_ones(uid: int, owner: str, skipped: bool) -> None:
    expected = Reason.FOREIGN_OWNER if skipped else None
    assert reason(rules.veto_foreign_owner, case(file(uid=uid, owner=owner))) is expected


# what would do harm


def changed_ago(age_us: int, **words: Any) -> JournalFile:
    return file(ctime_ns=(NOW_US - age_us) * 1000, **words)


@pytest.mark.parametrize(
    ("age_us", "words", "request_", "settles"),
    [
        (SETTLE_US - 1, {}, None, True),
        (SETTLE_US, {}, None, False),
        (SETTLE_US - 1, {"kind": Kind.UNCLEAN}, None, True),
        (NOCOW_SETTLE_US - 1, {"nocow": True}, None, True),
        (NOCOW_SETTLE_US, {"nocow": True}, None, False),
        (0, {"kind": Kind.ACTIVE}, None, False),
        (0, {}, Request(now=True), False),
        (1 - SETTLE_US, {}, None, True),
        (-365 * 24 * 60 * MINUTE_US, {}, None, False),  # the clock was set back by a year
    ],
)
def test_an_archive_settles_for_its_time(
    age_us: int, words: dict[str, Any], request_: Request | None, *, settles: bool
) -> None:
    one = case(changed_ago(age_us, **words), request_)
    assert reason(rules.veto_settling, one) is (Reason.SETTLING if settles else None)


def test_the_configured_settle_time_counts() -> None:
    config = configured("watch", settle_us=5 * SECOND_US)
    assert reason(rules.veto_settling, case(changed_ago(5 * SECOND_US), None, config)) is None
    assert reason(rules.veto_settling, case(changed_ago(5 * SECOND_US - 1), None, config)) is Reason.SETTLING


@pytest.mark.parametrize(
    ("kind", "state", "skipped"),
    [
        (Kind.ARCHIVED, State.ARCHIVED, False),
        (Kind.ARCHIVED, State.ONLINE, True),
        (Kind.ARCHIVED, State.OFFLINE, True),
        (Kind.UNCLEAN, State.ONLINE, False),
        (Kind.ACTIVE, State.ONLINE, False),
    ],
)
def test_a_file_named_as_an_archive_must_be_one(kind: Kind, state: State, skipped: bool) -> None:
    assert reason(rules.veto_unfinished_archive, case(file(kind, state=state))) is (Reason.IN_USE if skipped else None)


UNCOMPRESSED = configured("defrag", compress="no")


@pytest.mark.parametrize(
    ("kind", "words", "config", "skipped"),
    [
        (Kind.ARCHIVED, {}, Config(), False),
        (Kind.ARCHIVED, {"shared_bytes": 4 * KIB}, Config(), False),  # a quarter of what is shared, however little
        (Kind.ARCHIVED, {}, UNCOMPRESSED, True),  # it would be stored whole again
        (Kind.ARCHIVED, {"encoded_bytes": 16 * MIB}, Config(), True),  # and so would what is compressed already
        (Kind.ARCHIVED, {"encoded_bytes": 16 * MIB - 1}, Config(), False),
        (Kind.ARCHIVED, {"shared_bytes": 0}, UNCOMPRESSED, False),
        (Kind.ACTIVE, {}, Config(), True),  # active files are never compressed
        (Kind.ACTIVE, {"shared_bytes": 0}, Config(), False),
    ],
)
def test_a_shared_file_is_rewritten_where_only_a_small_copy_comes_to_stand_beside_the_snapshot(
    kind: Kind, words: dict[str, int], config: Config, *, skipped: bool
) -> None:
    one = case(file(kind, extents=extents(**{"shared_bytes": 32 * MIB, **words})), config=config)
    assert reason(rules.veto_shared_data, one) is (Reason.SHARED if skipped else None)


def test_a_shared_file_is_looked_at_again_within_a_day() -> None:
    """Neither a snapshot nor its deletion wakes anybody."""
    found = skip(rules.veto_shared_data, case(file(extents=extents(shared_bytes=32 * MIB)), config=UNCOMPRESSED))
    assert found.until_us == NOW_US + 24 * 60 * MINUTE_US
    assert found.detail == "a rewrite stores 32 MiB more, because a snapshot keeps 32 MiB of the file"


@pytest.mark.parametrize(
    ("configuration", "asked", "skipped"),
    [("no", False, True), ("yes", False, False), ("no", True, False)],
)
@pytest.mark.parametrize("kind", [Kind.ARCHIVED, Kind.ACTIVE])
def test_a_request_overrides_allow_unshare(kind: Kind, configuration: str, *, asked: bool, skipped: bool) -> None:
    shared = file(kind, extents=extents(shared_bytes=4 * KIB))
    one = case(shared, Request(allow_unshare=asked), configured("defrag", allow_unshare=configuration))
    assert reason(rules.veto_shared_data, one) is (Reason.SHARED if skipped else None)


def test_an_active_file_waits_for_its_window() -> None:
    online = file(Kind.ACTIVE, state=State.ONLINE, mtime_ns=NOW_US * 1000)
    assert reason(rules.veto_closed_window, case(online)) is Reason.WINDOW_CLOSED
    assert reason(rules.veto_closed_window, case(online, Request(now=True))) is None
    assert reason(rules.veto_closed_window, case(online._replace(state=State.OFFLINE))) is None


def test_an_archive_needs_no_window() -> None:
    active = file(Kind.ACTIVE, state=State.ONLINE, mtime_ns=NOW_US * 1000)
    cases = Cases(host(file(), active), Request(), Config())
    assert [reason(rules.veto_closed_window, cases.build(one)) for one in (file(), active)] == [
        None,
        Reason.WINDOW_CLOSED,
    ]


def test_the_other_instances_unsynced_file_closes_no_window_of_ours() -> None:
    other = instance(name="other", directory="/var/log/journal/other")
    busy = file(Kind.ACTIVE, path=f"{other.directory}/system.journal", state=State.ONLINE, mtime_ns=NOW_US * 1000)
    quiet = file(Kind.ACTIVE)
    cases = Cases(host(busy, quiet, instances=(instance(), other)), Request(), Config())
    assert [reason(rules.veto_closed_window, cases.build(one)) for one in (busy, quiet)] == [Reason.WINDOW_CLOSED, None]


def test_an_active_file_of_no_known_instance_has_no_window() -> None:
    stray = file(Kind.ACTIVE, path="/srv/odd.journal")
    assert reason(rules.veto_closed_window, case(stray)) is Reason.WINDOW_CLOSED


@pytest.mark.parametrize(
    ("age_us", "wait_us"),
    [
        (NOCOW_SETTLE_US - 1, MINUTE_US),
        (NOCOW_SETTLE_US, 60 * MINUTE_US),  # its journald was killed, or stores the state without an event
    ],
)
def test_an_archive_that_journald_still_writes_is_looked_at_again(age_us: int, wait_us: int) -> None:
    one = file(state=State.ONLINE, ctime_ns=(NOW_US - age_us) * 1000)
    found = skip(rules.veto_unfinished_archive, case(one))
    assert found.until_us == NOW_US + wait_us


# what is not worth it


def again(one: JournalFile, **words: Any) -> Reason | None:
    """Why a file is not rewritten again that was rewritten so."""
    return reason(rules.veto_repeated_rewrite, case(one, past=known(one, **words)))


def test_an_archive_is_rewritten_once() -> None:
    assert again(file()) is Reason.RECORDED
    assert reason(rules.veto_repeated_rewrite, case(file())) is None


@pytest.mark.parametrize("change", [{"size_bytes": 1}, {"mtime_ns": 1}])
def test_an_archive_that_changed_since_is_judged_anew(change: dict[str, int]) -> None:
    assert again(file(), **change) is None


PLAIN, PACKED = extents(1), extents(256, encoded_bytes=32 * MIB)


@pytest.mark.parametrize(
    ("asked", "had", "lies", "verb"),
    [
        (None, "zstd", PACKED, None),
        ("zstd", "zstd", PACKED, None),
        ("no", "no", PLAIN, None),
        ("no", "no", PACKED, None),  # the mount compresses whatever is asked for
        ("no", "zstd", PLAIN, None),  # what could not be compressed is plain already
        ("zstd", None, PACKED, Verb.COMPRESS),
        ("lzo", "zstd", PACKED, Verb.COMPRESS),
        ("zstd:9", "zstd", PACKED, Verb.COMPRESS),
        ("zstd", "no", PLAIN, Verb.COMPRESS),
        ("no", "zstd", PACKED, Verb.REWRITE),
        ("no", None, PACKED, Verb.REWRITE),
    ],
)
def test_a_compression_that_is_asked_for_by_name_is_obeyed_where_it_is_another(
    asked: str | None, had: str | None, lies: Extents, verb: Verb | None
) -> None:
    """`had` is the recorded compression; None in a record of 0.1.0."""
    one = file(extents=lies)
    found = plan(host(one, past=known(one, compress=had)), Request(compress=asked), Config())
    if verb is None:
        assert [skip.reason for skip in found.skipped] == [Reason.RECORDED]
    else:
        assert [(action.action, action.reason, action.compress) for action in found.actions] == [
            (verb, Reason.ASKED, asked)
        ]
        assert found.actions[0].extents_expected == (1 if asked == "no" else 256)


def test_an_active_file_is_never_compressed_by_name() -> None:
    one = file(Kind.ACTIVE, extents=PACKED)
    assert not case(one, Request(compress="no"), past=known(one)).other_compression


@pytest.mark.parametrize(("more", "why"), [(0, Reason.RECORDED), (31, Reason.RECORDED), (32, None)])
def test_a_rewrite_that_a_power_cut_took_back_is_judged_anew(more: int, why: Reason | None) -> None:
    assert again(file(extents=extents(5000)), extents=5000 - more) is why


MIN_EXTENTS = Config().defrag.min_extents
PER_MIB = Config().defrag.extents_per_mib
VAIN: dict[str, Any] = {"extents_before": 5000, "extents_expected": 40, "extents": 5000}


@pytest.mark.parametrize(
    ("achieved", "skipped"),
    [
        ({}, True),
        ({"extents": 2521}, True),  # a gain of 2,479, where 4,960 were expected
        ({"extents": 2520}, False),  # half of it
        ({"extents_expected": 5000}, False),  # none was expected: it was for the bytes
        ({"extents_expected": 0}, False),  # an older version's, which noted no expectation
    ],
)
def test_a_rewrite_that_gained_too_little_is_not_repeated(achieved: dict[str, int], skipped: bool) -> None:
    then = {**VAIN, **achieved}
    found = again(file(extents=extents(then["extents"])), **then)
    assert found is (Reason.NO_GAIN if skipped else Reason.RECORDED)


@pytest.mark.parametrize("kind", [Kind.ARCHIVED, Kind.UNCLEAN])
def test_an_archive_that_has_as_many_more_as_a_rewrite_takes_is_judged_anew(kind: Kind) -> None:
    for more, why in ((MIN_EXTENTS - 1, Reason.NO_GAIN), (MIN_EXTENTS, None)):
        assert again(file(kind, extents=extents(5000 + more)), **VAIN) is why


@pytest.mark.parametrize(
    ("written", "enough"),
    [(0, PER_MIB), (MIB, PER_MIB), (MIB + 1, 2 * PER_MIB), (3 * MIB, 3 * PER_MIB)],
)
def test_an_active_file_is_tried_again_when_what_came_pays_for_what_the_last_try_wrote(
    written: int, enough: int
) -> None:
    for more, why in ((-100, Reason.NO_GAIN), (enough - 1, Reason.NO_GAIN), (enough, None)):
        one = file(Kind.ACTIVE, extents=extents(39 + more))
        then = {"extents_before": 39, "extents_expected": 8, "extents": 39, "bytes_written": written, "mtime_ns": 1}
        assert again(one, **then) is why


def test_a_vain_rewrite_is_told_with_its_numbers() -> None:
    one = file(extents=extents(5000))
    first_veto, *_ = rules.vetoes(case(one, past=known(one, **VAIN)))
    assert first_veto.reason is Reason.NO_GAIN  # and not RECORDED
    assert first_veto.detail == (
        f"rewritten without gain: 5,000 extents before, 5,000 after, 40 expected; tried again with {MIN_EXTENTS} more"
    )


@pytest.mark.parametrize("change", [{"size_bytes": 1}, {"mtime_ns": 1}])
def test_a_vain_rewrite_of_an_archive_that_changed_says_nothing(change: dict[str, int]) -> None:
    assert again(file(extents=extents(5000)), **VAIN, **change) is None


@pytest.mark.parametrize("kind", [Kind.ARCHIVED, Kind.UNCLEAN])
def test_what_was_done_to_the_active_file_says_nothing_of_its_archive(kind: Kind) -> None:
    """journald may archive a file while its ranges are rewritten, and append nothing to it any more."""
    one = file(kind, extents=extents(5000))
    assert again(one, **VAIN, kind=kind) is not None
    assert again(one, **VAIN, kind=Kind.ACTIVE) is None


# their order

TROUBLES: list[tuple[Reason, dict[str, Any]]] = [
    (Reason.BAD_HEADER, {"problem": Reason.BAD_HEADER, "problem_detail": "wrong magic"}),
    (Reason.NOT_BTRFS, {"device": 99}),
    (Reason.HARD_LINKED, {"links": 2}),
    (Reason.FOREIGN_OWNER, {"uid": 1000}),
    (Reason.SETTLING, {"ctime_ns": NOW_US * 1000}),
    (Reason.IN_USE, {"state": State.ONLINE}),
    (Reason.RECORDED, {"inode": 777}),
    (Reason.SHARED, {"extents": extents(total=5000, shared_bytes=4 * KIB, encoded_bytes=32 * MIB)}),
]


@pytest.mark.parametrize("first", range(len(TROUBLES)), ids=[str(trouble) for trouble, _ in TROUBLES])
def test_the_first_rule_that_answers_ends_the_matter(first: int) -> None:
    words: dict[str, Any] = {}
    for _, trouble in TROUBLES[first:]:
        words |= trouble
    one = file(**words)
    first_veto, *_ = rules.vetoes(case(one, past=known(one) if one.inode == 777 else {}))
    assert first_veto.reason is TROUBLES[first][0]


def test_what_is_broken_says_so_also_when_it_was_not_asked_for() -> None:
    """A FIFO that was named has no kind; it would be called an active file."""
    fifo = file(Kind.ACTIVE, problem=Reason.NOT_REGULAR, problem_detail="not a regular file")
    first_veto, *_ = rules.vetoes(case(fifo, Request(archived=True)))
    assert first_veto.reason is Reason.NOT_REGULAR


def test_every_rule_is_in_the_table_once() -> None:
    defined = [
        value
        for value in vars(rules).values()
        if callable(value) and getattr(value, "__module__", "") == rules.__name__ and value.__name__[0] != "_"
    ]
    assert sorted(rule.__name__ for rule in rules.RULES) == sorted(
        rule.__name__ for rule in defined if rule is not rules.vetoes
    )
