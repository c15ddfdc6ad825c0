# SPDX-License-Identifier: LGPL-2.1-or-later
"""An exception costs one file or event, and no name forges a line of the log, which names each mistake once."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from journalkeeper.btrfs import extent_count
from journalkeeper.cli.output import complain
from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.execute import inplace
from journalkeeper.execute.pace import Pace
from journalkeeper.execute.verified_file import VerifiedFile
from journalkeeper.model import Action, Extents, Outcome, Reason, Request, Result, Skip, Verb
from journalkeeper.model.errors import FRAMES, WORDS, ConfigError, FileError, InternalError, catch_errors
from journalkeeper.observe.observer import Observer
from journalkeeper.policy import rules
from journalkeeper.policy.case import Case
from journalkeeper.policy.plan import plan as planned
from journalkeeper.probe.scratch_volume import ScratchVolume
from journalkeeper.service.daemon import Daemon
from journalkeeper.service.log import Log
from journalkeeper.service.watch import Change, DirectoryWatch
from tests import hosts
from tests.btrfs.journals import go
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put
from tests.patience import PATIENCE_S
from tests.trust.remote import CONFIG, CONTENT


def mistake(*_: object, **__: object) -> NoReturn:
    raise ZeroDivisionError("ours")


# Which errors are caught, and how they are reported


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), MemoryError(), RecursionError("deep"), KeyError("x")])
def test_any_exception_is_a_sentence_that_names_its_place(error: Exception) -> None:
    def fail() -> NoReturn:
        raise error

    found = catch_errors(fail)
    assert isinstance(found, InternalError)
    assert found.detail.startswith(f"{type(error).__name__}: ")
    assert "tests/trust/test_boundary.py:" in found.detail
    assert "called from catch_errors (/" in found.detail


def test_a_message_is_one_line_of_bounded_length() -> None:
    def fail(depth: int) -> None:
        if not depth:
            raise ValueError("a\nb\n" * 1000)
        fail(depth - 1)

    found = catch_errors(lambda: fail(50))
    assert isinstance(found, InternalError)
    assert "\n" not in found.detail
    assert found.detail.startswith("ValueError: a b a b")
    assert len(found.detail.partition(" in fail")[0]) <= WORDS
    assert found.detail.count("called from") == FRAMES - 1


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_program_is_not_caught(end: type[BaseException]) -> None:
    def fail() -> NoReturn:
        raise end

    with pytest.raises(end):
        catch_errors(fail)


# Judging


def test_a_file_that_cannot_be_judged_is_left_alone_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = (hosts.file(stem=stem, extents=hosts.extents(9000)) for stem in ("good", "bad"))

    def rule(case: Case) -> Skip | None:
        return mistake() if case.file == bad else None

    monkeypatch.setattr(rules, "RULES", (rule,))
    found = planned(hosts.host(good, bad), Request(), Config())
    assert [action.path for action in found.actions] == [good.path]
    (skip,) = found.skipped
    assert (skip.path, skip.reason, skip.until_us) == (bad.path, Reason.INTERNAL_ERROR, None)
    assert skip.detail.startswith("ZeroDivisionError: ours in mistake (/")


# Doing, on real files


@pytest.fixture
def top() -> Iterator[Path]:
    """A journal directory with three archives, each of a thousand extents."""
    with ScratchVolume("512M") as volume:
        directory = volume.mountpoint / "journal" / MACHINE
        directory.mkdir(parents=True)
        for number in range(1, 4):
            put(directory, CONTENT, archive_name(number))
        yield directory.parent


@pytest.mark.root
def test_a_look_that_raises_anything_costs_one_file_and_no_descriptor(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey, open_before = extent_count.survey, len(os.listdir("/proc/self/fd"))

    def fail(fd: int, *, sync: bool, per_mib: bool = False) -> Extents:
        bad = os.readlink(f"/proc/self/fd/{fd}").endswith(archive_name(2))
        return mistake() if bad else survey(fd, sync=sync, per_mib=per_mib)

    monkeypatch.setattr(extent_count, "survey", fail)
    files = Observer().look([str(top)], now_us=0).files
    assert [file.problem for file in files] == [None, Reason.INTERNAL_ERROR, None]
    assert files[1].problem_detail.startswith("ZeroDivisionError: ours in mistake")
    assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.root
def test_a_run_records_a_mistake_and_does_the_rest(top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(CONFIG, directories=(str(top),), state_directory=str(tmp_path / "state"))
    compact = inplace.compact

    def fail(held: VerifiedFile, what: Action, pace: Pace) -> tuple[int, bool]:
        if what.path.endswith(archive_name(2)):
            mistake()
        return compact(held, what, pace)

    monkeypatch.setattr(inplace, "compact", fail)
    report = go(engine, Request())
    became = {os.path.basename(outcome.path): outcome.reason for outcome in report.outcomes}
    (bug,) = [outcome for outcome in report.outcomes if outcome.reason is Reason.INTERNAL_ERROR]
    assert (bug.result, bug.extents_before) == (Result.FAILED, bug.extents_after)
    assert bug.detail.startswith("ZeroDivisionError: ours in mistake (/")
    assert became == {
        archive_name(1): Reason.FRAGMENTED,
        archive_name(2): Reason.INTERNAL_ERROR,
        archive_name(3): Reason.FRAGMENTED,
    }
    again = go(engine, Request())
    assert again.outcomes == ()
    assert {os.path.basename(skip.path): skip.reason for skip in again.plan.skipped}[archive_name(2)] == (
        Reason.INTERNAL_ERROR
    )


# Events


async def test_an_event_that_raises_anything_has_everything_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, errors = list[str](), [ZeroDivisionError("ours")]
    judge = DirectoryWatch._judge_event

    def judge_once(*words: Any) -> Change:
        if errors:
            raise errors.pop()
        return judge(*words)

    monkeypatch.setattr(DirectoryWatch, "_judge_event", judge_once)
    top = tmp_path / "journal"
    top.mkdir()
    engine = partial(Engine, Config(), directories=(str(top),), state_directory=str(tmp_path), follows=True)
    log = Log(None)
    monkeypatch.setattr(log, "say", lambda _, sentence, *__, **___: said.append(sentence))
    daemon = Daemon(engine, log)
    work = asyncio.create_task(daemon.run())
    async with asyncio.timeout(PATIENCE_S):
        while not any("not on btrfs" in line for line in said):
            await asyncio.sleep(0.01)
        cycles = daemon._worker.cycles
        (top / "system.journal").touch()
        while daemon._worker.cycles == cycles:
            await asyncio.sleep(0.01)
        daemon._wake_to_stop()
        await work
    (bug,) = [line for line in said if "bug in journalkeeper" in line]
    assert bug.startswith("an event could not be handled, so all files are examined: ")
    assert "ZeroDivisionError: ours" in bug


# hostile names


HOSTILE = {
    "newline": "a\n<0>kernel: forged",
    "carriage return": "a\rforged",
    "ESC": "a\x1b]0;forged\x07",
    "C1": "a\u009b31mforged",
    "direction": "a\u202eforged",
    "line separator": "a\u2028forged",
    "NUL": "a\0forged",
    "not UTF-8": os.fsdecode(b"a\xff\x9bforged"),
    "field": "a\nJOURNALKEEPER_RESULT=done\nMAINPID=1",
}
NAMES = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
RAW = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def outcome(name: str) -> Outcome:
    path = f"/var/log/journal/remote/{name}.journal"
    said = str(FileError("rewrite it", path, 5))
    return Outcome(path, Verb.REWRITE, Result.FAILED, Reason.IO_ERROR, 9, 9, None, None, 0, 0.1, said)


@NAMES
def test_no_name_reaches_a_field_of_the_log_raw(journald: socket.socket, name: str) -> None:
    """`journalctl -x` puts JOURNALKEEPER_FILE into the catalog's text as it is (catalog_get, replace_var)."""
    log = Log(str(journald.getsockname()))
    done = outcome(name)
    log.say(3, f"{done.path}: rewrite failed {done.detail}", done)
    sent = journald.recv(1 << 20).decode("utf-8", "surrogateescape")
    lines = sent.removesuffix("\n").split("\n")
    assert [line for line in lines if RAW.search(line) or "=" not in line] == []
    fields = [line.partition("=")[0] for line in lines]
    assert len(fields) == len(set(fields)), "a name made a field of its own"
    assert "MAINPID" not in fields
    assert [line for line in lines if line.startswith("JOURNALKEEPER_RESULT=")] == ["JOURNALKEEPER_RESULT=failed"]


def log_to_stderr(path: str) -> None:
    log = Log(None)
    log.say(6, f"{path}: defragment done")


@NAMES
@pytest.mark.parametrize("write", [log_to_stderr, lambda path: complain(str(FileError("open it", path, 13)))])
def test_no_name_makes_a_second_line_on_stderr(
    capsys: pytest.CaptureFixture[str], name: str, write: Callable[[str], None]
) -> None:
    """systemd reads the priority at the beginning of each line of the service's."""
    write(f"/j/{name}.journal")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "/j/a" in said
    assert RAW.search(said.rstrip("\n")) is None


def test_a_configuration_file_with_a_newline_in_its_name_is_one_line_a_problem() -> None:
    error = ConfigError((("/etc/j.conf.d/a\nforged: 1.conf", 3, "Compress", "no"), ("b.conf", 1, "Active", "no")))
    assert len(error.lines) == len(error.problems)
    assert "\n" not in "".join(error.lines).replace("a\nforged", "")
