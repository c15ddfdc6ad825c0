# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every rule on both sides of its boundary, and their order."""

from __future__ import annotations

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


def reason(rule: rules.Rule, one: Case) -> Reason | None:
    found = rule(one)
    assert found is None or (found.path == one.file.path and found.detail)
    return found.reason if found else None


def skip(rule: rules.Rule, one: Case) -> Skip:
    found = rule(one)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", list(Kind))
def test_a_file_at_peace_passes_every_rule(kind: Kind) -> None:
    assert list(rules.find_vetoes(case(file(kind)))) == []


# each of them alone

QUICK = configured("watch", settle_us=5 * SECOND_US)
UNCOMPRESSED = configured("defrag", compress="no")
UNSYNCED = file(Kind.ACTIVE, state=State.ONLINE, mtime_ns=NOW_US * 1000)


def changed_ago(age_us: int, **words: Any) -> JournalFile:
    return file(ctime_ns=(NOW_US - age_us) * 1000, **words)


NO_UNSHARE = configured("defrag", allow_unshare="no")


def shares(kind: Kind = Kind.ARCHIVED, config: Config | None = None, **words: Any) -> Case:
    """A file of which a snapshot shares 32 MiB; `words` are its extents'."""
    return case(file(kind, extents=extents(**{"shared_bytes": 32 * MIB, **words})), config=config)


@pytest.mark.parametrize(
    ("rule", "one", "expected"),
    [
        # only the kind that was asked for
        (rules.veto_unrequested, case(file(Kind.ACTIVE), Request(active=True)), None),
        (rules.veto_unrequested, case(file(Kind.ACTIVE), Request(archived=True)), Reason.NOT_ASKED),
        (rules.veto_unrequested, case(file(), Request(active=True)), Reason.NOT_ASKED),
        (rules.veto_unrequested, case(file(), Request(archived=True)), None),
        (rules.veto_unrequested, case(file(Kind.ACTIVE), Request(before_shutdown=True)), None),
        (rules.veto_unrequested, case(file(), Request(before_shutdown=True)), Reason.NOT_ASKED),
        (rules.veto_unrequested, case(file(), Request(before_shutdown=True, archived=True)), None),
        (rules.veto_unrequested, case(file(Kind.ACTIVE), None, configured("defrag", archived=False)), None),
        (rules.veto_unrequested, case(file(Kind.ACTIVE), None, configured("defrag", active=False)), Reason.NOT_ASKED),
        (rules.veto_unrequested, case(file(), None, configured("defrag", archived=False)), Reason.NOT_ASKED),
        (rules.veto_unrequested, case(file(), None, configured("defrag", active=False)), None),
        (rules.veto_other_filesystem, case(file(device=41)), Reason.NOT_BTRFS),
        (rules.veto_other_filesystem, case(file()), None),
        (rules.veto_read_only, case(file(), volumes=(volume(options=("rw", "ro")),)), Reason.READ_ONLY),
        (rules.veto_read_only, case(file(), volumes=(volume(options=("rw", "errors=remount-ro")),)), None),
        (rules.veto_read_only, case(file(fixed=True)), Reason.READ_ONLY),
        (rules.veto_hard_links, case(file(links=1)), None),
        (rules.veto_hard_links, case(file(links=2)), Reason.HARD_LINKED),
        # only root's files and remote ones
        (rules.veto_foreign_owner, case(file(uid=0, owner="system")), None),
        (rules.veto_foreign_owner, case(file(uid=1000, owner="user:1000")), Reason.FOREIGN_OWNER),
        (rules.veto_foreign_owner, case(file(uid=998, owner="remote")), None),
        # an archive settles for its time
        (rules.veto_settling, case(changed_ago(SETTLE_US - 1)), Reason.SETTLING),
        (rules.veto_settling, case(changed_ago(SETTLE_US)), None),
        (rules.veto_settling, case(changed_ago(SETTLE_US - 1, kind=Kind.UNCLEAN)), Reason.SETTLING),
        (rules.veto_settling, case(changed_ago(NOCOW_SETTLE_US - 1, nocow=True)), Reason.SETTLING),
        (rules.veto_settling, case(changed_ago(NOCOW_SETTLE_US, nocow=True)), None),
        (rules.veto_settling, case(changed_ago(0, kind=Kind.ACTIVE)), None),
        (rules.veto_settling, case(changed_ago(0), Request(now=True)), None),
        (rules.veto_settling, case(changed_ago(1 - SETTLE_US)), Reason.SETTLING),
        (rules.veto_settling, case(changed_ago(-365 * 24 * 60 * MINUTE_US)), None),  # the clock was set back by a year
        (rules.veto_settling, case(changed_ago(5 * SECOND_US), None, QUICK), None),
        (rules.veto_settling, case(changed_ago(5 * SECOND_US - 1), None, QUICK), Reason.SETTLING),
        # a file named as an archive must be one
        (rules.veto_unfinished_archive, case(file(state=State.ARCHIVED)), None),
        (rules.veto_unfinished_archive, case(file(state=State.OFFLINE)), Reason.IN_USE),
        (rules.veto_unfinished_archive, case(file(Kind.UNCLEAN, state=State.ONLINE)), None),
        (rules.veto_unfinished_archive, case(file(Kind.ACTIVE, state=State.ONLINE)), None),
        # a shared file is rewritten where only a small copy comes to stand beside the snapshot
        (rules.veto_shared_data, shares(shared_bytes=4 * KIB), None),  # a quarter of what is shared, however little
        (rules.veto_shared_data, shares(config=UNCOMPRESSED), Reason.SHARED),  # it would be stored whole again
        (rules.veto_shared_data, shares(encoded_bytes=16 * MIB), Reason.SHARED),  # so would what is compressed already
        (rules.veto_shared_data, shares(encoded_bytes=16 * MIB - 1), None),
        (rules.veto_shared_data, case(file(refuses_compression=True, extents=extents(shared_bytes=1))), Reason.SHARED),
        (rules.veto_shared_data, shares(config=UNCOMPRESSED, shared_bytes=0), None),
        (rules.veto_shared_data, shares(Kind.ACTIVE), Reason.SHARED),  # active files are never compressed
        # a byte that is stored twice costs 4 written ones: of 16 extents a MiB, 5 times as many if all of it is shared
        (rules.veto_shared_data, shares(Kind.ACTIVE, per_mib=(79,), shared_per_mib=(MIB,)), Reason.SHARED),
        (rules.veto_shared_data, shares(Kind.ACTIVE, per_mib=(80,), shared_per_mib=(MIB,)), None),
        (rules.veto_shared_data, shares(Kind.ACTIVE, per_mib=(31,), shared_per_mib=(MIB // 4,)), Reason.SHARED),
        (rules.veto_shared_data, shares(Kind.ACTIVE, per_mib=(15, 32), shared_per_mib=(0, MIB // 4)), None),
        (
            rules.veto_shared_data,
            shares(Kind.ACTIVE, NO_UNSHARE, per_mib=(99, 15), shared_per_mib=(1, 0)),
            Reason.SHARED,
        ),
        (rules.veto_shared_data, shares(Kind.ACTIVE, NO_UNSHARE, per_mib=(99, 16), shared_per_mib=(1, 0)), None),
        (rules.veto_shared_data, shares(Kind.ACTIVE, shared_bytes=0), None),
        # an active file waits for its window, and of no known instance has none
        (rules.veto_closed_window, case(UNSYNCED), Reason.WINDOW_CLOSED),
        (rules.veto_closed_window, case(UNSYNCED, Request(now=True)), None),
        (rules.veto_closed_window, case(UNSYNCED._replace(state=State.OFFLINE)), None),
        (rules.veto_closed_window, case(UNSYNCED._replace(kind=Kind.ARCHIVED)), None),
        (rules.veto_closed_window, case(file(Kind.ACTIVE, path="/srv/odd.journal")), Reason.WINDOW_CLOSED),
    ],
)
def test_each_rule_at_its_boundary(rule: rules.Rule, one: Case, expected: Reason | None) -> None:
    assert reason(rule, one) is expected


# what we cannot judge


@pytest.mark.parametrize("problem", [Reason.BAD_HEADER, Reason.NOT_REGULAR, Reason.NOT_JOURNAL, Reason.UNREADABLE])
def test_a_problem_is_said_in_its_own_words(problem: Reason) -> None:
    one = file(problem=problem, problem_detail="so it is")
    assert rules.veto_unreadable(case(one)) == Skip(one.path, problem, "so it is")


# what would do harm


def test_a_shared_file_is_looked_at_again_within_a_day() -> None:
    """Neither a snapshot nor its deletion wakes anybody."""
    found = skip(rules.veto_shared_data, case(file(extents=extents(shared_bytes=32 * MIB)), config=UNCOMPRESSED))
    assert found.until_us == NOW_US + 24 * 60 * MINUTE_US
    assert found.detail == ("a rewrite stores 32 MiB more, because other files share 32 MiB of the file (uncompressed)")


@pytest.mark.parametrize(
    ("configuration", "asked", "skipped"), [("no", False, True), ("yes", False, False), ("no", True, False)]
)
@pytest.mark.parametrize("kind", [Kind.ARCHIVED, Kind.ACTIVE])
def test_a_request_overrides_allow_unshare(kind: Kind, configuration: str, *, asked: bool, skipped: bool) -> None:
    shared = file(kind, extents=extents(shared_bytes=4 * KIB))
    one = case(shared, Request(allow_unshare=asked), configured("defrag", allow_unshare=configuration))
    assert reason(rules.veto_shared_data, one) is (Reason.SHARED if skipped else None)


def test_the_other_instances_unsynced_file_closes_no_window_of_ours() -> None:
    other = instance(name="other", directory="/var/log/journal/other")
    busy = file(Kind.ACTIVE, path=f"{other.directory}/system.journal", state=State.ONLINE, mtime_ns=NOW_US * 1000)
    quiet = file(Kind.ACTIVE)
    cases = Cases(host(busy, quiet, instances=(instance(), other)), Request(), Config())
    assert [reason(rules.veto_closed_window, Case(one, cases)) for one in (busy, quiet)] == [Reason.WINDOW_CLOSED, None]


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


PLAIN, PACKED = extents(1), extents(256, encoded_bytes=32 * MIB)


@pytest.mark.parametrize(
    ("asked", "had", "lies", "verb"),
    [
        (None, "zstd", PACKED, None),
        ("zstd", "zstd", PACKED, None),
        ("no", "no", PACKED, None),  # the mount compresses whatever is asked for
        ("no", "zstd", PLAIN, None),  # what could not be compressed is plain already
        ("zstd", None, PACKED, Verb.COMPRESS),
        ("lzo", "zstd", PACKED, Verb.COMPRESS),
        ("zstd:9", "zstd", PACKED, Verb.COMPRESS),
        ("zstd", "no", PLAIN, Verb.COMPRESS),
        ("no", "zstd", PACKED, Verb.REWRITE),
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
        (action,) = found.actions
        assert (action.action, action.reason, action.compress) == (verb, Reason.ASKED, asked)
        assert action.extents_expected == (1 if asked == "no" else 256)


def test_a_level_that_the_kernel_does_not_take_is_no_other_compression() -> None:
    one = file(extents=PACKED)
    found = plan(host(one, past=known(one, compress="zstd"), has_levels=False), Request(compress="zstd:9"), Config())
    assert [skip.reason for skip in found.skipped] == [Reason.RECORDED]


def test_an_active_file_is_never_compressed_by_name() -> None:
    one = file(Kind.ACTIVE, extents=PACKED)
    assert not case(one, Request(compress="no"), past=known(one)).needs_other_compression


MIN_EXTENTS = Config().defrag.min_extents
PER_MIB = Config().defrag.extents_per_mib
VAIN: dict[str, Any] = {"extents_before": 5000, "extents_expected": 40, "extents": 5000}


TORN = extents(5000)


@pytest.mark.parametrize(
    ("one", "then", "why"),
    [
        (file(), {}, Reason.RECORDED),
        (file(), {"size_bytes": 1}, None),
        (file(), {"mtime_ns": 1}, None),
        # a power cut took the rewrite back
        (file(extents=TORN), {"extents": 5000 - 31}, Reason.RECORDED),
        (file(extents=TORN), {"extents": 5000 - 32}, None),
        # it gained too little
        (file(extents=TORN), VAIN, Reason.NO_GAIN),
        (file(extents=extents(2521)), {**VAIN, "extents": 2521}, Reason.NO_GAIN),  # 2,479, where 4,960 were expected
        (file(extents=extents(2520)), {**VAIN, "extents": 2520}, Reason.RECORDED),  # half of it
        (file(extents=TORN), {**VAIN, "extents_expected": 5000}, Reason.RECORDED),  # none: it was for the bytes
        (file(extents=TORN), {**VAIN, "extents_expected": 0}, Reason.RECORDED),  # an older version noted none
        (file(extents=TORN), {**VAIN, "size_bytes": 1}, None),
        (file(extents=TORN), {**VAIN, "mtime_ns": 1}, None),
        # until there are as many more as a rewrite takes
        (file(extents=extents(5000 + MIN_EXTENTS - 1)), VAIN, Reason.NO_GAIN),
        (file(extents=extents(5000 + MIN_EXTENTS)), VAIN, None),
        (file(Kind.UNCLEAN, extents=extents(5000 + MIN_EXTENTS - 1)), VAIN, Reason.NO_GAIN),
        (file(Kind.UNCLEAN, extents=extents(5000 + MIN_EXTENTS)), VAIN, None),
        # journald may archive a file while its ranges are rewritten, and append nothing to it any more
        (file(extents=TORN), {**VAIN, "kind": Kind.ARCHIVED}, Reason.NO_GAIN),
        (file(extents=TORN), {**VAIN, "kind": Kind.ACTIVE}, None),
        (file(Kind.UNCLEAN, extents=TORN), {**VAIN, "kind": Kind.ACTIVE}, None),
    ],
)
def test_an_archive_is_rewritten_once_until_changed(one: JournalFile, then: dict[str, Any], why: Reason | None) -> None:
    assert again(one, **then) is why
    assert reason(rules.veto_repeated_rewrite, case(one)) is None


@pytest.mark.parametrize(
    ("written", "enough"), [(0, PER_MIB), (MIB, PER_MIB), (MIB + 1, 2 * PER_MIB), (3 * MIB, 3 * PER_MIB)]
)
def test_an_active_file_is_tried_again_when_new_extents_pay_for_the_last_try(written: int, enough: int) -> None:
    for more, why in ((enough - 1, Reason.NO_GAIN), (enough, None)):
        one = file(Kind.ACTIVE, extents=extents(39 + more))
        then = {"extents_before": 39, "extents_expected": 8, "extents": 39, "bytes_written": written, "mtime_ns": 1}
        assert again(one, **then) is why


def test_a_vain_rewrite_is_told_with_its_numbers() -> None:
    one = file(extents=extents(5000))
    first_veto, *_ = rules.find_vetoes(case(one, past=known(one, **VAIN)))
    assert first_veto.reason is Reason.NO_GAIN  # and not RECORDED
    assert first_veto.detail == (
        f"rewritten without gain: 5,000 extents before, 5,000 after, 40 expected; tried again with {MIN_EXTENTS} more"
    )


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
    first_veto, *_ = rules.find_vetoes(case(one, past=known(one) if one.inode == 777 else {}))
    assert first_veto.reason is TROUBLES[first][0]


def test_an_unreadable_file_is_reported_also_if_it_is_not_requested() -> None:
    """A FIFO that was named has no kind; it would be called an active file."""
    fifo = file(Kind.ACTIVE, problem=Reason.NOT_REGULAR, problem_detail="not a regular file")
    first_veto, *_ = rules.find_vetoes(case(fifo, Request(archived=True)))
    assert first_veto.reason is Reason.NOT_REGULAR


def test_every_rule_is_in_the_table_once() -> None:
    defined = {name for name, value in vars(rules).items() if getattr(value, "__module__", "") == rules.__name__}
    public = sorted(name for name in defined if not name.startswith("_"))
    assert sorted(rule.__name__ for rule in (*rules.RULES, rules.find_vetoes)) == public
