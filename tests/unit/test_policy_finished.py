# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which files need no new judgement, and that what is left to judge is judged as if they were there."""

from __future__ import annotations

import pytest

from journalkeeper.config import Config
from journalkeeper.history.samples import news
from journalkeeper.metrics.status import status
from journalkeeper.model import MIB, Host, JournalFile, Kind, Reason, Request, State, Verb
from journalkeeper.model.finished import NONE_FINISHED
from journalkeeper.policy import nocow
from journalkeeper.policy.plan import finished, plan
from tests import hosts
from tests.hosts import NOW_US

UPKEEP = Request(upkeep=True)
ALONE = hosts.configured("defrag", archived=False)
COMPRESSED = hosts.extents(256, encoded_bytes=32 * MIB)
IDEAL = hosts.file(stem="ideal", extents=COMPRESSED)
TORN = hosts.file(stem="torn", extents=hosts.extents(5000))
SECOND_NS = 1_000_000_000

ROWS = [
    (IDEAL, Config(), True),
    (hosts.file(extents=COMPRESSED, links=2), Config(), True),
    (hosts.file(extents=hosts.extents(5000), uid=1000), Config(), True),
    (TORN, ALONE, True),
    (TORN, Config(), False),  # worth a rewrite
    (hosts.file(Kind.ACTIVE, extents=hosts.extents(1)), Config(), False),  # changes without an event
    (IDEAL._replace(problem=Reason.BAD_HEADER), Config(), False),
    (IDEAL._replace(ctime_ns=NOW_US * 1000), Config(), False),  # settling
    (IDEAL._replace(ctime_ns=(NOW_US + 1) * 1000 + 86_400 * SECOND_NS), Config(), False),  # will settle once more
    (TORN._replace(state=State.ONLINE), Config(), False),  # journald is at it
    (TORN._replace(state=State.ONLINE), ALONE, False),  # and changes it without an event
    (TORN._replace(state=State.ONLINE, kind=Kind.UNCLEAN), ALONE, True),
    (TORN._replace(state=State.OFFLINE, links=2), Config(), False),
    (TORN, hosts.configured("budget", bytes_per_day=0), False),  # put off
]


@pytest.mark.parametrize(("file", "config", "lasts"), ROWS)
def test_what_lasts_until_the_file_changes(file: JournalFile, config: Config, *, lasts: bool) -> None:
    host = hosts.host(file)
    assert [one.file for one in finished(host, UPKEEP, config)] == ([file] if lasts else [])


def apart(host: Host, config: Config) -> Host:
    """The same host with its finished files apart."""
    out = NONE_FINISHED.changed(came=finished(host, UPKEEP, config))
    assert out, "or nothing is compared"
    return host._replace(files=tuple(file for file in host.files if file.path not in out), finished=out)


def host_of(files: int, **words: object) -> Host:
    """An active file that a rotation would be cheaper for, and archives that are ideal."""
    active = hosts.file(Kind.ACTIVE, extents=hosts.extents(9000, per_mib=(300,) * 30))
    archives = [hosts.file(stem=f"a{number}", extents=COMPRESSED) for number in range(files)]
    limits = {
        "system_max_use_bytes": 1024 * MIB,
        "system_keep_free_bytes": 0,
        "available_bytes": 4096 * MIB,
        "system_max_file_size_bytes": 32 * MIB,
    }
    return hosts.host(active, *archives, instances=(hosts.instance(rotatable=True, **{**limits, **words}),))


@pytest.mark.parametrize("files", [1, 10, 29, 31, 40])
@pytest.mark.parametrize("words", [{}, {"system_max_files": 20}, {"system_max_files": 0}])
def test_a_rotation_is_decided_as_if_they_were_there(files: int, words: dict[str, int]) -> None:
    host = host_of(files, **words)
    whole, some = (plan(one, UPKEEP, Config()) for one in (host, apart(host, Config())))
    assert some.actions == whole.actions
    left = {skip.path for skip in some.skipped}
    assert some.skipped == tuple(skip for skip in whole.skipped if skip.path in left)


def test_the_rows_above_see_rotations_and_none() -> None:
    """Limits of journald's decide some of them."""
    verbs = [[one.action for one in plan(host_of(files), UPKEEP, Config()).actions] for files in (1, 10, 31)]
    assert [Verb.ROTATE in some for some in verbs] == [True, True, False]


def test_a_shared_file_is_evidence_of_snapshots_wherever_it_is() -> None:
    host = hosts.host(IDEAL._replace(extents=COMPRESSED._replace(shared_bytes=MIB)))
    assert nocow.snapshots(hosts.instance(), apart(host, Config()))
    assert not nocow.snapshots(hosts.instance(), apart(hosts.host(IDEAL), Config()))
    users = hosts.host(*(one._replace(owner="user:1000") for one in host.files))
    assert not nocow.snapshots(hosts.instance(), apart(users, Config()))


def test_numbers_are_those_of_all_files() -> None:
    config = ALONE
    host = hosts.host(IDEAL._replace(disk_bytes=5), TORN._replace(disk_bytes=7), hosts.file(Kind.ACTIVE, disk_bytes=1))
    some = apart(host, config)
    assert len(some.files) == 1
    whole_plan, some_plan = (plan(one, UPKEEP, config) for one in (host, some))
    assert status(some, some_plan, (), config) == status(host, whole_plan, (), config)


ELSEWHERE = f"/srv/{hosts.MACHINE}"
"""A directory of another top whose instance has the same name."""


@pytest.mark.parametrize(
    "others", [(), (IDEAL._replace(path=f"{ELSEWHERE}/{IDEAL.path.rpartition('/')[2]}", inode=99),)]
)
def test_what_the_record_keeps_is_about_all_files(others: tuple[JournalFile, ...]) -> None:
    class Empty:
        def execute(self, *_: object) -> Empty:
            return self

        def fetchone(self) -> None:
            return None

    instances = (hosts.instance(), hosts.instance(directory=ELSEWHERE))
    host = hosts.host(IDEAL, TORN, hosts.file(Kind.ACTIVE), *others, instances=instances)
    rows = [news(Empty(), NOW_US, one, 0) for one in (host, apart(host, Config()))]  # type: ignore[arg-type]
    assert rows[0] == rows[1]
