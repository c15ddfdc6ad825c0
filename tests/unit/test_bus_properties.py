# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the bus shows and what it takes, by tables."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import Mock

import pytest

from journalkeeper.bus import contract, names, objects
from journalkeeper.bus.contract import Values
from journalkeeper.bus.objects import list_files, make_tree, write_document
from journalkeeper.health.evidence import Present
from journalkeeper.health.verdict import describe_waits
from journalkeeper.model import Action, Kind, Outcome, Plan, Reason, Request, Result, Skip, Verb
from journalkeeper.model.errors import UsageError
from journalkeeper.model.manager import Finding, Manager, Severity
from journalkeeper.model.run import Counters, Progress, Report
from journalkeeper.model.schema import to_json
from journalkeeper.service import snapshot as snapshots
from journalkeeper.service.jobs import Job
from journalkeeper.service.snapshot import Doing, Findings, Snapshot
from journalkeeper.service.worker import name_result
from tests import hosts
from tests.journal_files import archive_name

TOP = "/var/log/journal"
ROOT = Mock(may_read=lambda _: True)
OTHER = Mock(may_read=lambda _: False)
PATH = f"{TOP}/m/system.journal"
FILE = hosts.file(Kind.ACTIVE, path=PATH, instance="m", extents=hosts.extents(50))
DONE = Outcome(PATH, Verb.DEFRAGMENT, Result.DONE, Reason.FRAGMENTED, 50, 3, 90, 40, 77, 0.1)


def found(*skipped: Skip, outcomes: tuple[Outcome, ...] = ()) -> Findings:
    doings: tuple[Doing, ...] = (*skipped, *outcomes)
    files, decided = {PATH: FILE}, {one.path: one for one in doings}
    return Findings(files, decided, Manager(budget_left_bytes=7), describe_waits(skipped))


WAITS = Skip(PATH, Reason.WINDOW_CLOSED, "soon", until_us=5, puts_off=True)
LEFT = Skip(PATH, Reason.IDEAL, "is whole")
CALM = Snapshot((TOP,), findings=found(LEFT))

BAD = Present(problem="no room")

STATES = [
    (CALM, "idle", ""),
    (CALM._replace(findings=None), "waiting", "the service has just started and has not yet examined all files"),
    (CALM._replace(findings=found(WAITS)), "waiting", "1 file waits for journald's next flush"),
    (
        CALM._replace(findings=found(WAITS._replace(reason=Reason.TOO_YOUNG))),
        "waiting",
        "1 file waits until a day divided by RotationsPerDay= has passed since the last rotation",
    ),
    (CALM._replace(findings=found()._replace(missing=("/a", "/b"))), "waiting", "waiting for /a and /b to appear"),
    (CALM._replace(present=BAD), "degraded", "no room"),
    (CALM._replace(present=BAD._replace(paused="until noon")), "paused", "until noon"),
    (CALM._replace(present=BAD._replace(paused="until noon"), working=True), "working", ""),
]


@pytest.mark.parametrize(("snapshot", "word", "reason"), STATES)
def test_the_state_is_what_matters_most(snapshot: Snapshot, word: str, reason: str) -> None:
    assert snapshots.describe_state(snapshot) == (word, reason)


def test_the_total_saving_is_the_historys_and_not_this_services() -> None:
    snapshot = CALM._replace(counters=Counters(bytes_reclaimed=800), bytes_reclaimed=5)
    assert snapshots.make_manager(snapshot).bytes_reclaimed_total == 800


def manager(snapshot: Snapshot) -> dict[str, Any]:
    service = Mock(snapshot=lambda: snapshot, jobs=Mock(queue=[]))
    _, read = make_tree(service)[names.MANAGER_PATH]
    return {name: value for name, (_, value) in read().items()}


def list_page(findings: Findings, offset: int) -> list[Values]:
    service = Mock(snapshot=lambda: CALM._replace(findings=findings))
    return asyncio.run(list_files(service, "", ROOT, offset))


def listed(findings: Findings, offset: int = 0) -> list[dict[str, Any]]:
    """The records of ListFiles for root."""
    return [{name: value for name, (_, value) in one.items()} for one in list_page(findings, offset)]


def test_unknown_numbers_are_0_and_no_budget_is_the_largest_number() -> None:
    shown = manager(Snapshot((TOP,)))
    numbers = {name: value for name, value in shown.items() if type(value) is int}
    assert numbers.pop("BudgetLeft") == (1 << 64) - 1
    assert set(numbers.values()) == {0}
    assert manager(CALM)["BudgetLeft"] == 7


def test_a_finding_about_thousands_of_files_lists_the_first() -> None:
    paths = [f"{TOP}/m/system@{number:04}.journal" for number in range(7000)]
    finding = Finding("files-failing", Severity.PROBLEM, {"files": paths}, "7,000 files fail.", ())
    ((_, facts),) = (one["Facts"] for one in objects.to_values(Manager(findings=(finding,)))["Findings"][1])
    kept = facts["files"][1]
    assert kept == paths[: len(kept)]
    assert objects.FACT_MOST - 100 < sum(map(len, kept)) <= objects.FACT_MOST


def test_a_file_is_listed_with_what_is_done_about_it() -> None:
    (left,) = listed(found(LEFT))
    assert (left["Action"], left["Reason"], left["Detail"], left["Extents"]) == ("", "ideal", "is whole", 50)
    (done,) = listed(found(LEFT, outcomes=(DONE,)))
    assert (done["Action"], done["Reason"], done["Extents"]) == ("defragment", "fragmented", 3)
    (failed,) = listed(found(outcomes=(DONE._replace(result=Result.FAILED),)))
    assert failed["Extents"] == 50


def many(*paths: str) -> Findings:
    return found()._replace(files={path: hosts.file(path=path) for path in paths})


@pytest.mark.parametrize("count", [0, 500, 501, 1100])
def test_files_are_listed_in_pages_until_an_answer_is_empty(count: int) -> None:
    findings = many(*(f"{TOP}/m/system@{number}.journal" for number in range(count)))
    paths: list[str] = []
    while page := listed(findings, len(paths)):
        assert len(page) <= 500
        paths += [one["Path"] for one in page]
    assert paths == sorted(findings.files)


def test_long_texts_make_a_page_shorter_and_lose_no_file() -> None:
    findings = many(*(f"{TOP}/m/{chr(233) * 300}{number}.journal" for number in range(1000)))
    paths: list[str] = []
    while page := list_page(findings, len(paths)):
        assert sum(len(text) for one in page for signature, text in one.values() if signature == "s") <= 400_000
        assert len(page) < 500
        paths += [one["Path"][1] for one in page]
    assert paths == sorted(map(names.to_ascii, findings.files))


def plan(skipped: int) -> Plan:
    paths = [f"{TOP}/m/{archive_name(number, 'user-1000')}" for number in range(skipped)]
    skips = [Skip(path, Reason.IDEAL, "x" * 100, until_us=5) for path in paths]
    skips[-1] = skips[-1]._replace(puts_off=True)
    return Plan({}, (Action(PATH, Verb.DEFRAGMENT, Reason.FRAGMENTED),), tuple(skips))


def test_a_document_that_is_too_long_lacks_rows_without_work_and_counts_them() -> None:
    text = write_document(plan(7168), ROOT)
    assert objects.DOCUMENT_MOST - 1000 < len(text) <= objects.DOCUMENT_MOST
    written = json.loads(text)
    assert [row["path"] for row in written["actions"]] == [PATH]
    assert written["skipped"][0]["puts_off"]
    assert len(written["skipped"]) + written["omitted"] == 7168
    assert json.loads(write_document(plan(3), ROOT)) == to_json(plan(3)), "one that fits is whole"


def test_a_jobs_document_hides_details_of_others_and_lacks_rows_where_it_is_too_long() -> None:
    paths = [f"{TOP}/m/{archive_name(number, 'user-1000')}" for number in range(5000)]
    outcomes = tuple(DONE._replace(path=path, detail="y" * 200) for path in paths)
    skips = tuple(Skip(path, Reason.IDEAL, "x" * 200, until_us=5) for path in paths)
    report = Report(Plan({}, (), skips), outcomes, 7, 0.0, ("n",))
    text = write_document(report, ROOT)
    assert len(text) <= objects.DOCUMENT_MOST
    written = json.loads(text)
    assert len(written["outcomes"]) + len(written["skipped"]) + written["omitted"] == 10_000
    written = json.loads(write_document(report._replace(outcomes=outcomes[:9]), ROOT))
    assert (written["written_bytes"], written["notices"]) == (7, ["n"])
    assert written["outcomes"] == to_json(outcomes[:9])
    assert 0 < written["omitted"] < 5000
    written = json.loads(write_document(report._replace(outcomes=outcomes[:9]), OTHER))
    assert {row["detail"] for row in (*written["outcomes"], *written["skipped"])} == {""}
    assert {row["until_us"] for row in written["skipped"]} == {None}


@pytest.mark.parametrize(
    ("name", "owner"),
    [("user-7.journal", "user:7"), ("system.journalx", "system"), ("x.journal", "remote"), ("x", "user:?")],
)
def test_a_row_has_the_owner_that_its_name_shows(name: str, owner: str) -> None:
    asked = Mock(may_read=Mock(return_value=False))
    write_document(Plan({}, (), (Skip(name, Reason.VANISHED, ""),)), asked)
    asked.may_read.assert_called_once_with(owner)


@pytest.mark.parametrize(("before", "after", "reclaimed"), [(90, 40, 50), (40, 90, 0), (None, 40, 0), (90, None, 0)])
def test_only_what_is_known_to_be_less_was_reclaimed(before: int | None, after: int | None, reclaimed: int) -> None:
    outcome = DONE._replace(disk_bytes_before=before, disk_bytes_after=after)
    assert outcome.reclaimed_bytes == reclaimed
    assert outcome._replace(unshared_bytes=1).reclaimed_bytes == 0


@pytest.mark.parametrize(("done", "total", "progress"), [(0, 0, 0.0), (1, 4, 0.25), (9, 4, 1.0)])
def test_progress_is_from_0_to_1(done: int, total: int, progress: float) -> None:
    job = Job(1, Request())
    job.progress = Progress(1, 2, PATH, done, total)
    _, values = make_tree(Mock(jobs=Mock(queue=[job])))[names.job_path(1)]
    assert values()["Progress"][1] == progress


@pytest.mark.parametrize(
    ("given", "request_"),
    [
        (([], "", 1), Request(active=True)),
        (([], "", 2), Request(archived=True)),
        (([], "", 4), Request(now=True)),
        (([], "zstd:3", 0), Request(compress="zstd:3")),
        (([], "", 8), Request(allow_unshare=True)),
        (([], "", 16), Request(before_shutdown=True)),
        (([PATH, PATH], "", 0), Request(paths=(PATH,))),
    ],
)
def test_arguments_mean_the_same_at_the_command_line(given: tuple[list[str], str, int], request_: Request) -> None:
    for arguments in (given, contract.list_arguments(request_)):
        assert contract.make_request(*arguments, (TOP,)) == request_._replace(upkeep=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (([], "", 64), r"64 has unknown flags; known are active, .*asked, which are 1, 2"),
        (([], "gzip", 0), "compress: 'gzip' is not a compression"),
        (([], "z" * (1 << 20), 0), "compress: "),
        (([f"{TOP}/{'x' * 1000}"] * 66, "", 0), "paths may have 65536 characters together"),
        (([PATH, "/etc/passwd"], "", 0), "'/etc/passwd' is not below /var/log/journal"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_allowed(given: tuple[list[str], str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        contract.make_request(*given, (TOP,))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "wrong",
    [
        "system.journal",
        f"{TOP}/",
        f"{TOP}/../x",
        f"{TOP}//x",
        f"/{TOP}/x",
        f"{TOP}x/y",
        f"{TOP}/m/x/",
        f"{TOP}/{'x' * 4096}",
    ],
)
def test_a_path_that_is_no_files_below_a_directory_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError):
        contract.check_path(wrong, (TOP,))


@pytest.mark.parametrize("directory", [TOP, f"{TOP}/", "/"])
def test_a_path_below_a_directory_is_taken(directory: str) -> None:
    assert contract.check_path(PATH, ("/srv", directory)) == PATH


NAMED = Request(paths=("/j/a",))


@pytest.mark.parametrize(
    ("outcomes", "reason", "request_", "word"),
    [
        ((), None, Request(), "done"),
        ((DONE, DONE._replace(result=Result.FAILED)), None, Request(), "failed"),
        ((DONE._replace(result=Result.SKIPPED, reason=Reason.WINDOW_CLOSED),), None, Request(), "done"),
        ((DONE._replace(result=Result.FAILED), DONE._replace(reason=Reason.INTERRUPTED)), None, Request(), "canceled"),
        ((DONE,), Reason.NOT_BEGUN, Request(), "canceled"),
        # a path that was named and is no journal
        ((), Reason.VANISHED, NAMED, "failed"),
        ((), Reason.IDEAL, NAMED, "done"),
        ((), Reason.BAD_HEADER, Request(), "done"),
    ],
)
def test_a_jobs_result_is_that_of_its_worst_outcome(
    outcomes: tuple[Outcome, ...], reason: Reason | None, request_: Request, word: str
) -> None:
    skipped = () if reason is None else (Skip("/j/a", reason, ""),)
    assert name_result(Report(Plan({}, (), skipped), outcomes, 0, 0.0, ()), request_) == word
