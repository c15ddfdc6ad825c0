# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each command with an engine that answers what it is told to: text, JSON, exit status, stderr."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from journalkeeper.cli import check_config
from journalkeeper.cli.context import Context
from journalkeeper.cli.progress import ProgressLine
from journalkeeper.engine import Engine
from journalkeeper.history.store import Record
from journalkeeper.model import Action, Host, JournalFile, Kind, Outcome, Plan, Reason, Request, Result, Skip, Verb
from journalkeeper.model.errors import BusyError, FileError, KeeperError, NeedsRootError, NotBtrfsError
from journalkeeper.model.manager import Manager
from journalkeeper.model.run import Progress, Report
from journalkeeper.policy.cost import add_savings
from tests import hosts
from tests.adapters.command import Typed
from tests.evidence import evidence, recorded
from tests.hosts import configured

PLACED = hosts.extents(9_447, 45 << 20)
FILE = hosts.file(Kind.ACTIVE, path="/j/abc/system.journal", size_bytes=45 << 20, disk_bytes=89 << 20, extents=PLACED)
ACTION = add_savings(Action(FILE.path, Verb.COMPRESS, Reason.FRAGMENTED, FILE, (), 45 << 20, 9_447, 360, "zstd"))
DONE = Outcome(FILE.path, Verb.COMPRESS, Result.DONE, Reason.FRAGMENTED, 9_447, 360, 89 << 20, 10 << 20, 45 << 20, 1.25)
FAILED = DONE._replace(result=Result.FAILED, reason=Reason.IO_ERROR, detail="cannot read it: Input/output error")
SKIP = Skip("/j/abc/b\x1b[2J.journal", Reason.SETTLING, "changed 1s ago")
PLAN = Plan({}, (ACTION,), (SKIP,))


Files = tuple[JournalFile, ...]


class FakeEngine(Engine):
    """Answers as told, and remembers what it was asked."""

    def __init__(
        self, *outcomes: Outcome, files: Files = (FILE,), plan: Plan = PLAN, error: Exception | None = None
    ) -> None:
        self.outcomes, self.files, self.answer, self.error = outcomes, files, plan, error
        self.asked: list[Request] = []
        self.notices: tuple[str, ...] = ()
        self.during: Callable[[], object] = lambda: None
        self.stopped = False

    def look(self, request: Request) -> Host:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return Host(0, self.files, (), (), {}, 0)

    def plan(self, request: Request) -> Plan:
        self.look(request)
        return self.answer

    def run(
        self, request: Request, *, on_progress: Callable[[Progress], None], stop: Callable[[], bool], **_others: object
    ) -> Report:
        self.look(request)
        on_progress(Progress(1, 1, FILE.path, 0, 45 << 20))
        self.during()
        self.stopped = stop()
        interrupted = DONE._replace(result=Result.SKIPPED, reason=Reason.INTERRUPTED)
        outcomes = (interrupted,) if self.stopped else self.outcomes
        written = sum(one.bytes_written for one in outcomes)
        return Report(self.answer, outcomes, written, 1.5, self.notices, Host(0, self.files, (), (), {}, 0))

    defragment = run


def test_scan_is_a_table_with_a_footer(typed: Typed) -> None:
    assert typed("scan", engine=FakeEngine()).out == (
        "KIND    EXTENTS  IDEAL   SIZE   DISK  FLAGS    PATH\n"
        "active     9447      1  45.0M  89.0M  offline  /j/abc/system.journal\n"
        "\n"
        "No file is fragmented: 1 journal file, 9,447 extents (ideal 1), 45 MiB, 89 MiB on disk.\n"
    )


def test_scan_shows_flags_problems_and_what_is_not_known(typed: Typed) -> None:
    found = hosts.extents(7, 10, encoded_bytes=10, shared_bytes=4)
    odd = FILE._replace(path="/j/\n\udcff", disk_bytes=None, nocow=True, problem=Reason.BAD_HEADER, extents=found)
    line = "-  7  1  45.0M  -  bad-header,offline,compressed,nocow,shared  /j/\\n\\udcff\n"
    assert typed("scan", "--no-legend", engine=FakeEngine(files=(odd,))) == (0, line, "")


@pytest.mark.parametrize(
    ("word", "out"),
    [("--no-pager", "No journal file was examined.\n"), ("--no-legend", ""), ("-q", ""), ("-j", "[]\n")],
)
def test_scan_of_nothing_says_so_unless_it_must_not(typed: Typed, word: str, out: str) -> None:
    assert typed("scan", word, engine=FakeEngine(files=())) == (0, out, "")


@pytest.mark.parametrize("words", [("scan", "-q"), ("--quiet", "plan"), ("check-config", "-q")])
def test_quiet_commands_write_no_text(typed: Typed, words: tuple[str, ...]) -> None:
    assert typed(*words, engine=FakeEngine()) == (0, "", "")
    assert typed(*words, "-j", engine=FakeEngine()).document


def test_pretty_json_is_indented_and_says_the_same(typed: Typed) -> None:
    pretty, short = (typed("scan", f"--json={form}", engine=FakeEngine()) for form in ("pretty", "short"))
    assert '\n    "path": "' in pretty.out
    assert pretty.document == short.document


def test_json_is_one_line_of_ascii_from_which_any_path_comes_back(typed: Typed) -> None:
    path = b"/j/\xff\xc3\xbc\n.journal"
    said = typed("scan", "-j", engine=FakeEngine(files=(FILE._replace(path=os.fsdecode(path)),)))
    assert (said.out.count("\n"), said.out.isascii()) == (1, True)
    assert os.fsencode(said.document[0]["path"]) == path


LEFT_ALONE = (
    "\n"
    "SKIPPED   DETAIL          PATH\n"
    "settling  changed 1s ago  /j/abc/b\\x1b[2J.journal\n"
    "\n"
    "settling: The file changed less than SettleSec= ago; journald may still use it. --now does not wait.\n"
    "\n"
)


def test_plan_shows_actions_then_what_is_left_alone_with_reasons_then_windows(typed: Typed) -> None:
    assert typed("plan", engine=FakeEngine()).out == (
        "ACTION    REASON      EXTENTS  EXPECTED  WRITES  TIME SAVED  DISK SAVED  PATH\n"
        "compress  fragmented     9447       360   45.0M    ~1min 1s           -  /j/abc/system.journal\n"
        f"{LEFT_ALONE[:-1]}"
        "fragmented: The file has far more extents than its data needs, and each costs a cold reader a seek.\n\n"
        "1 file to do: 45 MiB to rewrite, 9,447 to ~360 extents, a cold read is ~1min 1s shorter at 150 IOPS."
        " 1 file left alone.\n"
    )


DIRECTORY = "/j/abc"
SET_NOCOW = Action(DIRECTORY, Verb.SET_NOCOW, Reason.NO_REDUNDANCY, FILE, (), 0, 0, 0, "")
NOCOW_SET = Outcome(DIRECTORY, Verb.SET_NOCOW, Result.DONE, Reason.NO_REDUNDANCY, 0, 0, None, None, 0, 0.002)


@pytest.mark.parametrize(
    ("word", "actions", "outcomes", "says"),
    [
        ("plan", (SET_NOCOW, ACTION), (), "1 file and 1 directory to do: 45 MiB to rewrite, 9,447 to ~360 extents,"),
        ("defrag", (), (NOCOW_SET, DONE), "1 file and 1 directory done: 9,447 to 360 extents, "),
    ],
)
def test_directories_are_counted_as_such_and_have_no_extents(
    word: str, actions: tuple[Action, ...], outcomes: tuple[Outcome, ...], says: str, typed: Typed
) -> None:
    out = typed(word, engine=FakeEngine(*outcomes, plan=PLAN._replace(actions=actions))).out
    assert f"\n{says}" in out
    row = "set-nocow no-redundancy - - 0B" if word == "plan" else "set +C on /j/abc: data stored once"
    assert row in " ".join(out.split())


def test_plan_adds_up_the_disk_space_that_is_known_before(typed: Typed) -> None:
    archive = FILE._replace(path="/j/abc/a.journal", kind=Kind.ARCHIVED, disk_bytes=89 << 20)
    whole = Action(archive.directory, Verb.SET_NOCOW, Reason.NO_REDUNDANCY, FILE, (), 0, 0, 0)
    actions = (ACTION, add_savings(ACTION._replace(path=archive.path, target=archive)), whole)
    out = typed("plan", engine=FakeEngine(plan=Plan({}, actions, ()))).out
    cells = [re.split(" {2,}", line)[5:7] for line in out.splitlines()[1:4]]
    assert cells == [["~1min 1s", "-"], ["~1min 1s", "~77.7M"], ["-", "-"]]
    assert "a cold read is ~2min 1s shorter at 150 IOPS, ~77.7 MiB less on disk." in out


def test_plan_folds_what_is_fine_unless_it_is_asked_for(typed: Typed) -> None:
    fine = tuple(Skip(f"/j/abc/{number}.journal", Reason.IDEAL, "1 extents") for number in range(3))
    done = Skip("/j/abc/r.journal", Reason.RECORDED, "rewritten 1s ago")
    engine = FakeEngine(plan=Plan({}, (), (*fine, done, SKIP)))
    folded = typed("plan", engine=engine).out
    assert "Files that need no action: 1 already rewritten, 3 unfragmented.\n" in folded
    assert "/j/abc/1.journal" not in folded
    assert "settling" in folded
    assert "/j/abc/1.journal" in typed("plan", fine[1].path, engine=engine).out


def test_scan_shows_the_worst_first(typed: Typed) -> None:
    names = {"/j/a": 2, "/j/b": 900, "/j/c": 30}
    files = [FILE._replace(path=path, extents=hosts.extents(count, 10)) for path, count in names.items()]
    files.append(FILE._replace(path="/j/d", problem=Reason.BAD_HEADER))
    out = typed("scan", "--no-legend", engine=FakeEngine(files=tuple(files))).out
    assert [line.split()[-1] for line in out.splitlines()] == ["/j/d", "/j/b", "/j/c", "/j/a"]


def test_a_dry_run_is_the_plan_and_asks_the_same(typed: Typed) -> None:
    engines = FakeEngine(), FakeEngine()
    options = ("--now", "--archived", "--compress=lzo", "/j/a")
    said = typed("plan", *options, engine=engines[0]), typed("defrag", "-n", *options, engine=engines[1])
    assert (said[0], said[0].status) == (said[1], 0)
    assert [one._replace(asked=True) for one in engines[0].asked] == engines[1].asked


def test_defrag_shows_what_became_of_every_file(typed: Typed) -> None:
    out = (
        "compressed abc/system.journal: 89 MiB to 10 MiB on disk, 9,447 to 360 extents\n"
        f"{LEFT_ALONE[:-1]}"
        "fragmented: The file has far more extents than its data needs, and each costs a cold reader a seek.\n\n"
        "1 file done: 9,447 to 360 extents, 89 MiB to 10 MiB on disk, 45 MiB rewritten in 1.5s."
        " 1 file left alone.\n"
    )
    assert typed("defrag", engine=FakeEngine(DONE)) == (0, out, "")
    rotated = DONE._replace(action=Verb.ROTATE, bytes_written=0)
    assert "1 file done: 0 B rewritten in" in typed("defrag", engine=FakeEngine(rotated)).out, "no sum of extents"


def test_defrag_with_nothing_to_do_says_why_for_each_file_and_is_done(typed: Typed) -> None:
    for word in ("plan", "defrag"):
        said = typed(word, engine=FakeEngine(plan=Plan({}, (), (SKIP,))))
        assert said.status == 0
        assert said.out.endswith("\nNothing to do: 1 file left alone.\n")
    skip = SKIP._replace(path=FILE.path, extents=9_447)
    [row] = typed("defrag", "-j", engine=FakeEngine(plan=Plan({}, (), (skip,)))).document["skipped"]
    assert (row["reason"], row["extents"]) == ("settling", 9_447)


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (Reason.VANISHED, "as it is; `journalkeeper scan` lists"),
        (Reason.NOT_REGULAR, "as it is; name the files themselves, or a journal"),
        (Reason.BAD_HEADER, "as it is; `journalctl --verify"),
        (Reason.NOT_BTRFS, "as it is\n"),
        (Reason.UNREADABLE, "as it is; try sudo"),
    ],
)
@pytest.mark.parametrize("words", [["scan"], ["plan"], ["defrag"], ["defrag", "-n"], ["scan", "-j"], ["plan", "-j"]])
@pytest.mark.usefixtures("as_root")
def test_a_named_path_that_is_no_journal_is_said_and_exits_1_and_the_others_are_done(
    words: list[str], reason: Reason, says: str, typed: Typed
) -> None:
    odd = FILE._replace(path="/j/x.journal", problem=reason, problem_detail="as it is")
    engine = FakeEngine(DONE, files=(FILE, odd), plan=Plan({}, (ACTION,), (Skip("/j/x.journal", reason, "as it is"),)))
    said = typed(*words, "/j/x.journal", FILE.path, engine=engine)
    assert said.err.startswith(f"journalkeeper: /j/x.journal: {says}")
    assert (said.status, said.err.count("\n"), "abc/system.journal" in said.out) == (1, 1, True)
    # what nobody named is shown, and is nobody's mistake
    said, line = typed(*words, engine=engine), "journalkeeper: 1 of 2 files cannot be read: check the mount; for remote"
    assert (said.status, said.err[: len(line)]) == ((1, line) if reason is Reason.UNREADABLE else (0, ""))


@pytest.mark.parametrize("word", ["scan", "plan", "defrag"])
def test_a_named_file_that_is_left_alone_for_any_other_reason_is_no_failure(word: str, typed: Typed) -> None:
    said = typed(word, FILE.path, engine=FakeEngine(plan=Plan({}, (), (SKIP._replace(reason=Reason.SHARED),))))
    assert (said.status, said.err) == (0, "")


def test_a_failure_is_named_on_stderr_and_exits_1_but_a_skip_does_not(typed: Typed) -> None:
    skipped = DONE._replace(result=Result.SKIPPED, reason=Reason.VANISHED)
    said = typed("defrag", engine=FakeEngine(DONE, skipped))
    assert (said.status, said.err) == (0, "")
    said = typed("defrag", engine=FakeEngine(DONE, FAILED, DONE))
    failure = "journalkeeper: /j/abc/system.journal: cannot read it: Input/output error\n"
    assert (said.status, said.err) == (1, failure)
    assert "2 of 3 files done, 1 failed: 18,894 to 720 extents" in said.out
    said = typed("defrag", "-j", engine=FakeEngine(FAILED))
    assert (said.status, json.loads(said.out)["outcomes"][0]["result"]) == (1, "failed")


def test_notices_of_a_run_go_to_stderr(typed: Typed) -> None:
    engine = FakeEngine(DONE)
    engine.notices = ("the record was damaged\nand set aside",)
    said = typed("defrag", "-j", engine=engine)
    assert (said.status, said.err) == (0, "journalkeeper: the record was damaged\\nand set aside\n")
    json.loads(said.out)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_only_ask_defrag_to_stop_also_when_its_terminal_has_closed(
    number: signal.Signals, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, closed = FakeEngine(DONE), Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    engine.during = lambda: list(map(signal.raise_signal, [number, number]))
    before = signal.getsignal(number)
    monkeypatch.setattr("journalkeeper.cli.defrag.on_terminal", lambda _: ProgressLine(Mock(write=closed)))
    monkeypatch.setattr("os.write", closed)
    said = typed("defrag", "-j", engine=engine)
    assert (said.status, engine.stopped, signal.getsignal(number)) == (1, True, before)
    assert [one["reason"] for one in json.loads(said.out)["outcomes"]] == ["interrupted"]


def test_nohup_keeps_protecting_defrag_from_sighup(typed: Typed) -> None:
    engine = FakeEngine(DONE)
    engine.during = lambda: signal.raise_signal(signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        said = typed("defrag", engine=engine)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (said.status, engine.stopped) == (0, False)
    assert "1 file done" in said.out


def test_ctrl_c_ends_a_reading_command_with_one_line(typed: Typed) -> None:
    engine = FakeEngine()
    engine.look = lambda _: signal.raise_signal(signal.SIGINT)  # type: ignore[assignment, method-assign, return-value]
    assert typed("scan", engine=engine) == (1, "", "journalkeeper: scan was interrupted\n")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NotBtrfsError("/j"), "/j: not on btrfs"),
        (KeeperError("two\nlines"), r"two\nlines"),
        (FileError("list it", "/j/\x1b", errno.EIO), r"/j/\x1b: cannot list it: Input/output error"),
        (FileError.wrap("list it", "/j", OSError("no errno")), "/j: cannot list it: unknown error"),
        (NeedsRootError("they may be read by root only"), "defrag needs root, try sudo: they may be read by root only"),
        (PermissionError(errno.EACCES, "Permission denied", "/j"), "/j: Permission denied"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
    ],
)
def test_an_error_is_one_line_without_a_traceback_and_exits_1(error: Exception, says: str, typed: Typed) -> None:
    said = typed("defrag", engine=FakeEngine(error=error))
    assert (said.status, said.out, said.err.count("\n")) == (1, "", 1)
    assert said.err.startswith("journalkeeper: ")
    assert says in said.err


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)


CLOSED = FILE._replace(problem=Reason.UNREADABLE)


@pytest.mark.parametrize("words", [["scan"], ["plan"], ["defrag"], ["defrag", "-j"], ["scan", "-j"]])
@pytest.mark.usefixtures("as_user")
def test_a_user_who_may_read_no_file_is_told_to_be_root(words: list[str], typed: Typed) -> None:
    engine = FakeEngine(files=(CLOSED,), plan=Plan({}, (), (Skip("/j/a", Reason.UNREADABLE, ""),)))
    line = f"journalkeeper: {words[0]} needs root, try sudo: the file is not readable\n"
    assert typed(*words, engine=engine) == (1, "", line)
    if words[0] == "defrag":
        why = "/j: cannot open it: Permission denied"
        refused = FakeEngine(error=FileError("open it", "/j", errno.EACCES))
        assert typed(*words, engine=refused) == (1, "", f"journalkeeper: defrag needs root, try sudo: {why}\n")


@pytest.mark.usefixtures("as_user")
def test_a_user_who_may_read_some_files_sees_them_and_is_told_of_the_rest(typed: Typed) -> None:
    said = typed("scan", engine=FakeEngine(files=(FILE, CLOSED)))
    assert (said.status, said.err) == (1, "journalkeeper: 1 of 2 files cannot be read as this user: try sudo\n")
    assert "\nNo file is fragmented: 1 journal file, " in said.out


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("problem", [Reason.UNREADABLE, Reason.VANISHED])
def test_a_scan_says_nothing_of_files_that_it_did_not_examine(problem: Reason, typed: Typed) -> None:
    odd = FILE._replace(path="/j/x.journal", problem=problem, extents=hosts.extents(0, 0), size_bytes=0)
    said = typed("scan", engine=FakeEngine(files=(FILE, odd)))
    assert "fragmented: 1 journal file, 9,447 extents (ideal 1), 45 MiB, 89 MiB on disk. 1 not examined" in said.out
    said = typed("scan", engine=FakeEngine(files=(odd,)))
    assert "No journal file was examined. 1 not examined: see FLAGS." in said.out
    assert "fragmented" not in said.out


@pytest.mark.parametrize(("name", "says"), [("missing", "No such file"), ("file", "is not a directory; -D takes")])
@pytest.mark.parametrize("command", ["scan", "status"])
def test_a_path_to_no_directory_is_named(command: str, name: str, says: str, typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = typed(command, "-D", f"{tmp_path / name}")
    assert said.status == 1
    assert f"{tmp_path / name}: {says}" in said.err


@pytest.mark.parametrize("words", [["pause", "2h"], ["resume"]])
@pytest.mark.parametrize("options", [["-D", "/"], ["--config", "/"], []])
@pytest.mark.usefixtures("state")
def test_commands_of_the_service_refuse_another_journal(typed: Typed, words: list[str], options: list[str]) -> None:
    line = "journalkeeper: only the host's service can do this: leave out -D, --config and STATE_DIRECTORY=\n"
    assert typed(*words, *options) == (2, "", line)


def test_paths_are_made_absolute_and_links_kept(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to("/etc")
    monkeypatch.chdir(tmp_path)
    engine = FakeEngine()
    typed("plan", "link/../a", "/j//b", engine=engine)
    typed("plan", "link", engine=engine)
    assert [request.paths for request in engine.asked] == [(f"{tmp_path}/a", "/j/b"), (f"{tmp_path}/link",)]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record with one run of two actions."""
    directory = tmp_path / "state"
    with Record(directory) as record:
        number = record.begin_run(1_795_255_200_000_000, "defrag")
        for inode, outcome in ((258, DONE), (259, FAILED._replace(path="/j/\x1b/b"))):
            record.insert_outcome(number, ("uuid", 5), hosts.done(inode, outcome), 1_795_255_201_000_000 + inode)
        record.end_run(number, 1_795_255_203_500_000)
    monkeypatch.setenv("STATE_DIRECTORY", f"{directory}:/elsewhere")
    return directory


@pytest.fixture
def no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path / 'none'}")
    return tmp_path / "none"


@pytest.fixture
def unserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of the service's record, where there is none; no service is on the bus."""
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setattr("journalkeeper.history.state.DEFAULT", f"{tmp_path / 'none'}")
    monkeypatch.setattr(Context, "find_service", lambda _: None)


@pytest.mark.usefixtures("state")
def test_history_lists_what_was_done_the_oldest_first(typed: Typed) -> None:
    head, first, second, *_, last = typed("history").out.splitlines()
    assert head.split() == ["TIME", "RUN", "BY", "OUTCOME"]
    sizes = "89 MiB to 10 MiB on disk"
    assert f"  `journalkeeper defrag`  compressed abc/system.journal: {sizes}, 9,447 to 360 extents" in first
    assert r"failed to compress \x1b/b (io-error): cannot read it: " in second
    sums = f"9,447 to 360 extents, {sizes}, 90 MiB of data rewritten."
    assert last == f"1 of 2 actions done, 1 failed or without effect: {sums}"


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("words", "paths"),
    [
        ([], ["/j/abc/system.journal", "/j/\x1b/b"]),
        (["/j/abc/system.journal"], ["/j/abc/system.journal"]),
        (["-D", "/j/abc"], ["/j/abc/system.journal"]),
        (["{link}/abc/system.journal"], ["/j/abc/system.journal"]),
        (["-D", "{link}/abc"], ["/j/abc/system.journal"]),
        (["--since=@1795255201.000259"], ["/j/\x1b/b"]),
        (["--until=@1795255201.000259"], ["/j/abc/system.journal"]),
        (["--since", "2026-11-21 UTC", "--until", "2026-11-22 UTC"], ["/j/abc/system.journal", "/j/\x1b/b"]),
    ],
)
def test_history_is_of_the_requested_paths_and_times(
    words: list[str], paths: list[str], typed: Typed, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("/j")
    rows = typed("history", "-j", *(word.format(link=tmp_path / "link") for word in words)).document["outcomes"]
    assert [row["path"] for row in rows] == paths
    keys = ["when_us", "origin", "path", "action", "result", "reason", "extents_before", "extents_after"]
    assert all(list(row)[:8] == keys for row in rows)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.journal", "nothing is recorded of it; `journalkeeper scan` lists the journal files"),
        ("notes.txt", "nothing is recorded of it; `journalkeeper scan` lists the journal files"),
        ("link.journal", ""),
        ("system.journal", ""),
        (".", ""),
    ],
)
def test_history_of_an_unknown_path_exits_1_with_the_rest(name: str, says: str, typed: Typed, tmp_path: Path) -> None:
    for there in ("notes.txt", "system.journal"):
        (tmp_path / there).touch()
    (tmp_path / "link.journal").symlink_to("system.journal")
    given = [os.path.normpath(tmp_path / name), "/j/abc/system.journal"]
    # what was recorded at another time is known
    assert typed("history", "-j", "--since=now", *given).status == bool(says)
    said = typed("history", *given)
    assert said.status == bool(says)
    assert said.err == "" if not says else said.err.startswith(f"journalkeeper: {given[0]}: {says}")
    assert "1 of 1 action done" in said.out


def test_history_of_no_record_is_empty_and_of_no_time_wrong_usage(typed: Typed, no_state: Path) -> None:
    assert typed("history") == (0, "No action is recorded.\n", "")
    assert not no_state.exists()
    said = typed("history", "--since=soon")
    assert said.status == 2
    assert "'soon' is not a time; allowed are" in said.err


def test_status_tells_the_last_run(typed: Typed, state: Path) -> None:
    out = typed("status").out
    assert "Service" not in out, "a state directory of one's own is not the service's"
    assert "took 3s 500ms: 1 of 2 actions done, 1 failed, 90 MiB rewritten\n" in out
    document = typed("status", "-j").document
    keys = ["version", "state_directory", "readable", "last_run", "written_day_bytes", "totals", "service", "waiting"]
    assert list(document) == [*keys, "saving"]
    assert (document["service"], document["last_run"]["failed"]) == (None, 1)


def test_status_begins_with_the_saving_since_the_installation(typed: Typed, state: Path) -> None:
    out = typed("status").out
    assert re.match(r" +Saved: 158 MiB on disk and 9,087 extents since \d{4}-\d\d-\d\d\n", out), out
    saving = typed("status", "-j").document["saving"]
    assert (saving["bytes_reclaimed"], saving["extents_removed"], saving["unmeasured"]) == (158 << 20, 9087, 0)
    with Record(state) as record:
        record.insert_outcome(1, ("u", 5), hosts.done(7, DONE._replace(disk_bytes_after=None)), 1)
    assert "Saved: at least 158 MiB on disk and 18,174 extents since" in typed("status").out


@pytest.mark.usefixtures("no_state")
def test_status_without_a_record_says_what_to_do_next(typed: Typed) -> None:
    said = typed("status")
    assert said.status == 0
    assert "none yet; `journalkeeper plan` shows" in said.out
    assert "Saved" not in said.out


@pytest.mark.usefixtures("unserved")
def test_status_on_a_host_without_btrfs_has_nothing_to_do(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "read_config", lambda _: configured("watch", directories=("/dev",)))
    said = typed("status")
    assert said.status == 0
    assert said.out.startswith("OK: /dev is not on btrfs; there is nothing to do.\n")
    document = typed("status", "-j").document
    assert (document["fine"], document["health"], document["verdict"][:3]) == (True, "ok", "OK:")


def test_a_run_without_an_end_is_running_while_the_service_works(
    typed: Typed, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Record(state) as record:
        record.begin_run(1_795_255_300_000_000, "daemon")
        past = recorded(last_run=record.read_last_run())
    assert ", its end is not recorded: no action done" in typed("status").words
    for word, shown in (("idle", "its end is not recorded"), ("working", "running")):
        found = evidence(record=past, service=Manager(state=word))
        monkeypatch.setattr("journalkeeper.cli.status._collect_evidence", Mock(return_value=found))
        assert f", {shown}: no action done" in typed("status").words


def test_status_with_a_locked_history_shows_what_else_is_known(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(_: Context) -> Record:
        raise BusyError("/h.db: another process has held it locked for 5 s")

    monkeypatch.setattr(Context, "open_record", locked)
    assert "Last run: /h.db: another process has held it locked for 5 s\n" in typed("status").out


def test_check_config_shows_each_value(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_config, "HAS_LEVELS", False)
    file = tmp_path / "right.conf"
    file.write_text("[Defrag]\nMinExtents=64\nCompress=zstd:9\n")
    said = typed("check-config", "--config", f"{file}")
    assert said.status == 0
    assert "\n[Defrag]   MinExtents         64\n" in said.out
    assert "\nThe configuration is valid. journalkeeper.conf(5) explains each key.\n" in said.out
    assert said.out.endswith("\nCompress= acts as zstd, not zstd:9: Linux before 6.15 takes no level.\n")
    document = typed("check-config", "-j", "--config", f"{file}").document
    assert document["problems"] == []
    changed = [(one["section"], one["key"], one["value"]) for one in document["values"] if not one["default"]]
    assert changed == [("Defrag", "Compress", "zstd:9"), ("Defrag", "MinExtents", "64")]


def test_a_bad_configuration_is_named_by_file_line_and_key_wherever_it_is_read(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "bad.conf"
    file.write_text("[Defrag]\nMinExtents=64\nCompress=gzip\nFoo=1\n")
    for word in ("check-config", "scan", "plan", "defrag"):
        said = typed(word, "--config", f"{file}", "-D", f"{tmp_path}")
        assert (said.status, said.out) == (1, "")
        first, second = sorted(said.err.splitlines())
        assert first.startswith(f"journalkeeper: {file}:3: Compress: ")
        assert second.startswith(f"journalkeeper: {file}:4: Foo: ")
    said = typed("check-config", "-j", "--config", f"{file}")
    assert said.status == 1
    problems = json.loads(said.out)["problems"]
    assert {(problem["line"], problem["key"]) for problem in problems} == {(3, "Compress"), (4, "Foo")}
    assert all(list(problem) == ["file", "line", "key", "allowed"] for problem in problems)


@pytest.mark.parametrize(("name", "says"), [("", "is a directory, not a file"), ("fifo", "is not a regular file")])
def test_a_problem_of_a_whole_file_has_no_line_number(typed: Typed, tmp_path: Path, name: str, says: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    place = tmp_path / name
    assert typed("check-config", "--config", f"{place}") == (1, "", f"journalkeeper: {place}: {says}\n")
    said = typed("check-config", "-j", "--config", f"{place}")
    problem = {"file": f"{place}", "line": 0, "key": "", "allowed": says}
    assert json.loads(said.out)["problems"] == [problem]
