# SPDX-License-Identifier: LGPL-2.1-or-later
"""The span of history that fits the same bytes, and the journald limit that ends it."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper.config import files as conffiles
from journalkeeper.health.evidence import Evidence, Storage, Unknown
from journalkeeper.health.finding import answer, supply
from journalkeeper.journald import conf
from journalkeeper.model import GIB, KIB, MIB, JournalFile, Kind
from journalkeeper.model.manager import Finding
from journalkeeper.model.units import DAY_US, format_exact, parse_size
from journalkeeper.report import retention
from journalkeeper.report.retention import Retention, describe_retention, format_dropin, history, summarize_history
from tests.evidence import STORAGE, archives, evidence, limits, look
from tests.hosts import DIRECTORY, NOW_US, file, instance


def host(*files: JournalFile, storage: Storage = STORAGE, **words: Any) -> Evidence:
    """Return the evidence of a host with these files and 512 MiB for its journal; `words` replace its limits."""
    return evidence(look=look(*files, instances=(limits(**words),)), storage=storage)


def kept(*, ratio: float = 6.4, hours: int = 24, count: int = 8, storage: Storage = STORAGE, **words: Any) -> Retention:
    """Return the retention of a host with 512 MiB for its journal, and one archive of 32 MiB for each `hours`."""
    return known(host(*archives(count, ratio, hours), storage=storage, **words))


def known(given: Evidence) -> Retention:
    found = supply(retention.propose_retention, given)
    assert isinstance(found, Retention)
    return found


def why_unknown(given: Evidence) -> str:
    found = supply(retention.propose_retention, given)
    assert isinstance(found, Unknown)
    return found.why


def test_the_present_history_and_its_disk_space() -> None:
    """512 MiB at 32 MiB a day are 16 days; 32 MiB of them are active, the rest takes a 6.4th."""
    found = kept()
    assert (found.limit_bytes, found.binds) == (512 * MIB, "SystemMaxUse=512M")
    assert found.kept_us == 16 * DAY_US
    assert found.disk_bytes == 32 * MIB + 75 * MIB
    assert found.ratio == pytest.approx(6.4)
    assert found.bytes_per_day == 32 * MIB


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ([(-1500 * DAY_US, -1499 * DAY_US)], "an archive of years ago, beside those of today"),
        ([(-25 * DAY_US, -24 * DAY_US), (-12 * DAY_US, -11 * DAY_US)], "a host that was off for two weeks"),
        ([(2500 * DAY_US, 2501 * DAY_US)], "a clock that was wrong for a day"),
        ([(-9000 * DAY_US, -8 * DAY_US)], "a clock that was set within a file: MaxFileSec= ends each after a month"),
        ([(-8 * DAY_US, -9 * DAY_US)], "a clock that was set back within a file"),
    ],
)
def test_a_rate_is_taken_over_the_times_that_files_cover(more: list[tuple[int, int]], why: str) -> None:
    days = archives()
    others = [
        days[-1]._replace(path=f"{days[-1].path}~{n}", head_time_us=NOW_US + head, tail_time_us=NOW_US + tail)
        for n, (head, tail) in enumerate(more)
    ]
    given = host(*days, *others, max_file_us=31 * DAY_US)
    assert known(given).bytes_per_day == 32 * MIB, why


def test_nights_belong_to_the_days_that_files_cover() -> None:
    """A laptop that runs for 8 hours a day, and whose files end at each shutdown."""
    days = [file._replace(tail_time_us=file.head_time_us + DAY_US // 3) for file in archives(80)]
    assert known(host(*days)).bytes_per_day == pytest.approx(32 * MIB, rel=0.1)


def test_files_of_one_time_count_together() -> None:
    days = archives()
    users = [file._replace(path=f"{file.path}.user") for file in days[1:]]
    assert known(host(*days, *users)).bytes_per_day == 64 * MIB


def test_the_proposed_limit_takes_no_more_than_the_present_one() -> None:
    """The active file and one full file, 320 MiB, are not compacted yet. The other 192 MiB hold 6.4 times as much."""
    found = kept()
    assert found.proposed_use_bytes <= 320 * MIB + 192 * MIB * 6.4 < found.proposed_use_bytes * 1.1
    assert found.proposed_use_bytes % MIB == 0
    assert found.proposed_disk_bytes <= found.target_bytes == 512 * MIB
    assert found.proposed_us >= 2.9 * found.kept_us
    assert found.proposed_us == round(found.proposed_use_bytes / (32 * MIB) * DAY_US)


@pytest.mark.parametrize(
    ("words", "binds"),
    [
        ({}, "SystemMaxUse=512M"),
        ({"available_bytes": GIB, "system_keep_free_bytes": GIB}, "SystemKeepFree=1G"),
        ({"system_max_files": 9}, "SystemMaxFiles=9"),
        ({"system_max_files": 0}, "SystemMaxUse=512M"),
        ({"max_retention_us": 7 * DAY_US}, "MaxRetentionSec=1w"),
        ({"max_retention_us": 17 * DAY_US}, "SystemMaxUse=512M"),
    ],
)
def test_the_limit_that_binds_is_named(words: dict[str, Any], binds: str) -> None:
    found = kept(**words)
    assert found.binds == binds
    assert describe_retention(found).startswith(f"{binds} keeps ")
    assert describe_retention(found).endswith("then limit it.") is (found.proposed_binds != "")


def test_a_limit_of_files_is_raised_with_the_other() -> None:
    found = kept(system_max_files=20)
    assert found.proposed_files >= found.proposed_use_bytes // (32 * MIB)
    assert found.proposed_binds == ""
    assert [kept(ratio=1.1, system_max_files=files).proposed_files for files in (0, 100, 5000)] == [0, 100, 5000]


@pytest.mark.parametrize(("ratio", "said"), [(1.5, False), (6.0, True)])
def test_a_longer_history_is_advised_where_it_is_half_as_long_again(ratio: float, *, said: bool) -> None:
    assert isinstance(answer(history, host(*archives(ratio=ratio))), Finding) is said


def test_once_applied_it_starts_from_the_bytes_of_before() -> None:
    """Otherwise each --apply would multiply the limit again."""
    first = kept()
    storage = STORAGE._replace(retention=conf.parse_target(format_dropin(first)))
    after = {"system_max_use_bytes": first.proposed_use_bytes, "system_max_file_size_bytes": first.max_file_bytes}
    again = kept(storage=storage, **after)
    assert again.applied
    assert again.target_bytes == first.target_bytes
    assert format_dropin(again) == format_dropin(first)
    assert answer(history, host(*archives(ratio=6.4), storage=storage, **after)) is None


def test_journald_reads_what_the_drop_in_says() -> None:
    found = kept()
    rows = conffiles.parse(format_dropin(found).encode(), "retention.conf")
    assert [row.problem for row in rows] == ["", "", ""]
    settings = conf.from_assignments(rows)
    assert settings.system_max_use_bytes == found.proposed_use_bytes
    assert settings.system_max_file_size_bytes == found.max_file_bytes == 160 * MIB
    assert settings.system_max_files == found.proposed_files


@pytest.mark.parametrize("size", [1, 65 * 1024, 513 * MIB, 3 * GIB])
def test_sizes_are_written_as_journald_reads_them(size: int) -> None:
    assert parse_size(format_exact(size)) == size


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("", None),
        ("# target-bytes=x\n", None),
        ("# target-bytes=" + "9" * 30, None),
        ("# a\n# target-bytes=77\n[Journal]\n", (77, 0)),  # of version 0.2
    ],
)
def test_a_drop_in_has_the_limit_before_the_first_change(text: str, target: tuple[int, int] | None) -> None:
    assert conf.parse_target(text) == target


@pytest.mark.parametrize("files", [1, 4, 8, 100])
@pytest.mark.parametrize("ratio", [1.0, 1.6, 6.4, 12.0])
def test_the_proposed_files_are_few_and_fit_the_disk_space(files: int, ratio: float) -> None:
    """Where few files fit, a few more are no burden."""
    found = kept(ratio=ratio, system_max_file_size_bytes=512 * MIB // files)
    after = found.proposed_use_bytes / found.max_file_bytes
    assert after <= max(1.2 * files, 6)
    assert found.max_file_bytes >= found.before_file_bytes == 512 * MIB // files
    if ratio >= 1.6 and files > 4:
        size_bytes = 2 * found.max_file_bytes + (found.proposed_use_bytes - 2 * found.max_file_bytes) / ratio
        assert 0.85 * found.target_bytes < size_bytes <= found.target_bytes


UNMEASURED = tuple(one._replace(disk_bytes=None) for one in archives())
UNCOMPRESSED = tuple(file(inode=number, disk_bytes=1) for number in range(9))


@pytest.mark.parametrize(
    ("files", "words", "why"),
    [
        (archives(1, 6.4), {}, "it needs 2 compressed archives (so far: 1)"),
        (archives(8, 6.4), {"rotatable": False}, "none of the configured directories"),
        (archives(8, 6.4), {"namespace": "shop"}, "none of the configured directories"),
        (archives(8, 6.4), {"system_max_use_bytes": 0}, "SystemMaxUse= is off"),
        (archives(8, 6.4), {"available_bytes": None}, "limits are not known"),
        ((file(Kind.ACTIVE), *UNMEASURED), {}, "only root can measure"),
        ((file(Kind.ACTIVE), *UNCOMPRESSED), {}, "it needs 2 compressed archives (so far: 0)"),
    ],
)
def test_an_unknown_retention_has_a_reason(files: tuple[JournalFile, ...], words: dict[str, Any], why: str) -> None:
    assert why in why_unknown(host(*files, **words))


def test_a_rate_takes_a_day_of_history() -> None:
    def since(span_us: int) -> Evidence:
        return host(*(one._replace(head_time_us=NOW_US - span_us, tail_time_us=NOW_US) for one in archives()))

    assert known(since(DAY_US)).bytes_per_day == 8 * 32 * MIB
    assert "must cover 1d (so far: 23h 59min)" in why_unknown(since(DAY_US - 1))


def test_the_next_deletion_is_foreseen_where_one_file_will_end_next() -> None:
    place = limits(system_max_use_bytes=512 * MIB, system_max_file_size_bytes=32 * MIB)
    begun = file(Kind.ACTIVE, allocated_bytes=8 * MIB)
    found = summarize_history(place, (*archives(8, 6.4)[1:], begun))
    assert found.full_span_us == kept().kept_us, "explain and retention agree"
    # 256 MiB of archives, 7 full files and a new one fit; the eighth of 32 MiB a day ends after 7 3/4 days
    assert found.next_deletion_in_us == pytest.approx(7.75 * DAY_US, rel=0.02)
    assert found.next_deleted_us == min(one.tail_time_us for one in archives(8, 6.4)[1:])
    assert (found.early_files, found.early_bytes) == (0, 0)
    both = summarize_history(place, (*archives(8, 6.4)[1:], begun, begun._replace(path=f"{DIRECTORY}/user-1.journal")))
    assert (both.next_deletion_in_us, both.next_deleted_us) == (None, found.next_deleted_us)
    aged = summarize_history(place._replace(max_retention_us=DAY_US), (*archives(8, 6.4)[1:], begun))
    assert aged.next_deletion_in_us is None
    small = summarize_history(place._replace(system_max_file_size_bytes=64 * MIB), (*archives(8, 6.4)[1:], begun))
    assert (small.early_files, small.early_bytes) == (4, 4 * (64 * MIB // 36 + 256 * KIB))


def test_archives_that_do_not_pay_to_be_compacted_count_in_the_ratio() -> None:
    plain = file(inode=1, path=f"{DIRECTORY}/system@x.journal", disk_bytes=32 * MIB)
    found = known(host(*archives(4, 4.0), plain))
    assert found.ratio == pytest.approx(5 * 32 / (4 * 8 + 32))


def test_other_directories_count_for_nothing() -> None:
    other = instance(directory="/var/log/journal/other", rotatable=False)
    stray = archives()[1]._replace(path="/var/log/journal/other/system@0-0-0.journal", allocated_bytes=GIB)
    given = look(*archives(ratio=6.4), stray, instances=(other, limits()))
    assert known(evidence(look=given)) == kept()
    assert kept().kept_us < NOW_US
