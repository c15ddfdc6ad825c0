# SPDX-License-Identifier: LGPL-2.1-or-later
"""`explain` and `report` on real journals, and each -j against its published schema."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.btrfs import extent_count
from journalkeeper.cli import explain, program
from journalkeeper.cli.context import Context
from journalkeeper.cli.plan import make_plan
from journalkeeper.model import MIB, Plan, Request, Stretch
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.answers import check
from tests.daemon import PROGRAM, environment, journalkeeper, run_on_terminal
from tests.journal_files import PAGE
from tests.nobody import as_nobody

pytestmark = [pytest.mark.root, pytest.mark.slow]

MakeFile = Callable[..., int]


# the schemas


class Commands:
    """The program for one directory, with a state directory of its own."""

    def __init__(self, directory: Path, state: Path, **more: str) -> None:
        self.directory = directory
        self.state = state
        self._more = {"COLUMNS": "80", **more}

    def __call__(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return journalkeeper(*words, state=self.state, check=False, **self._more)

    def json(self, *words: str | Path, status: int = 0) -> Any:
        done = self(*words, "-j")
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the commands for a journal with a rewritten archive and a fragmented active file."""
    with ScratchVolume("2G") as volume:
        directory = volume.mountpoint / "log-of-a-host-with-quite-a-long-name"
        with PrivateJournald(directory) as journald:
            journald.age(20)
            journald.rotate()
            journald.age(20)
        asked = Commands(directory, tmp_path_factory.mktemp("state"))
        assert asked("defrag", "-D", directory, "--now", "--archived").returncode == 0
        yield asked


def active(commands: Commands) -> Path:
    return next(commands.directory.glob("*/system.journal"))


def test_nothing_is_promised_of_a_directory_that_the_service_does_not_watch(commands: Commands) -> None:
    """What is named there has its reasons, and the sentence that says who can do it."""
    for path in (commands.directory, active(commands).parent, active(commands)):
        said = " ".join(commands("explain", path).stdout.split())
        assert "The service works only in Directories= and follows no link; root's `defrag -D` can." in said
        assert "The next run" not in said
    watching = commands.state / "watching.conf"
    link = commands.state / "link"  # as /var/log may be one
    link.symlink_to(commands.directory)
    below = active(commands).relative_to(commands.directory)
    for top in (commands.directory, link):
        watching.write_text(f"[Watch]\nDirectories={top}\n")
        for path in (top, top / below.parent, top / below, active(commands)):
            said = " ".join(commands("explain", path, "--config", watching).stdout.split())
            assert "follows no link" not in said, path
    link.unlink()
    watching.unlink()


@pytest.mark.parametrize("name", ["scan", "plan", "defrag", "history", "status", "check-config"])
def test_the_json_of_a_command_follows_its_schema(commands: Commands, name: str) -> None:
    where = ("-D", commands.directory) if name not in {"status", "check-config"} else ("--config", "/dev/null")
    document = commands.json(name, *where, *(["-n"] if name == "defrag" else []))
    check("plan" if name == "defrag" else name, document)


def test_a_defrag_that_rewrote_something_is_what_its_schema_says(commands: Commands) -> None:
    document = commands.json("defrag", "-D", commands.directory, "--now")
    assert document["outcomes"]
    check("defrag", document)
    history = commands.json("history", "-D", commands.directory)
    assert history["outcomes"]
    check("history", history)
    status = commands.json("status")
    assert status["last_run"]
    check("status", status)


# the width


ON_TERMINAL = [
    *("scan", "plan", "plan --now", "defrag -n --now", "defrag --now", "history", "status"),
    *("explain FILE", "explain DIR", "doctor", "report -o PAGE", "check-config --config /dev/null"),
    *("probe intake", "probe fsync --seconds=0.1"),
]
"""`probe syslog` and `probe stream` need the host's journald and have the same table. `lab compare` takes minutes: its
table is in tests/unit/test_cli_lab.py. `pause`, `resume` and the status of a
running service are in test_cli_bus.py, all --help in tests/unit/test_cli_words.py."""


@pytest.mark.parametrize("typed", ON_TERMINAL)
def test_every_line_fits_80_columns(commands: Commands, typed: str, tmp_path: Path) -> None:
    """A line that is only a path may be longer, so that it can be copied."""
    places = {"FILE": active(commands), "DIR": commands.directory, "PAGE": tmp_path / "page.html"}
    words: list[str | Path] = [places.get(word, word) for word in typed.split()]
    where: list[str | Path] = [] if words[0] in {"explain", "check-config", "status"} else ["-D", commands.directory]
    variables = environment(commands.state, TERM="xterm")
    variables.pop("COLUMNS", None)
    line = [*PROGRAM, "--no-pager", *words, *where]
    status, shown = run_on_terminal(line, variables, columns=80, with_stderr=False)
    lines = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown).splitlines()
    assert (status in {0, 1}, bool(lines)) == (True, True)
    assert [line for line in lines if len(line) > 80 and not re.fullmatch(r" */\S+", line)] == []


def test_explain_of_a_directory_without_journals_says_what_to_name(commands: Commands) -> None:
    above = commands.directory.parent  # as /var/log is
    done = commands("explain", above)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{above}: contains no journal directory; name one" in done.stderr


# explain


def test_the_story_of_an_active_file(commands: Commands) -> None:
    document = commands.json("explain", active(commands))
    check("explain", document)
    check("explain", commands.json("explain", commands.directory))
    scanned = next(one for one in commands.json("scan", "-D", commands.directory) if one["kind"] == "active")
    assert document["file"]["inode"] == scanned["inode"]
    assert sum(part["extents"] for part in document["picture"]) == document["file"]["extents"]
    assert sum(part["length"] for part in document["picture"]) == document["file"]["size_bytes"]
    for part in document["picture"]:
        assert sum(value for key, value in part.items() if key.endswith("_bytes")) == part["length"]
    assert document["price"]["read_seconds"] == pytest.approx(document["file"]["extents"] / 150, abs=0.001)
    assert document["decision"]["sentences"]
    assert document["window"]["open"] in {True, False}
    text = commands("explain", active(commands)).stdout
    assert max(map(len, text.splitlines()[1:])) <= 80
    for words in ("Extents:", "Reading:", "History:", "Plan:", "each column 1 MiB"):
        assert words in text


def test_a_file_whose_flush_is_due_has_no_picture(
    commands: Commands, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The flush would wait for it, and for the sample of the read time."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))

    def make(asked: Request, context: Context) -> Plan:
        plan = make_plan(asked, context)
        due = [one._replace(open=False, reason="flush-due", closes_at_us=None) for one in plan.window.values()]
        return plan._replace(window={one.instance: one for one in due})

    monkeypatch.setattr(explain, "make_plan", make)
    assert program.run(["explain", "-j", str(active(commands))]) == 0
    document = json.loads(capfd.readouterr().out)
    check("explain", document)
    assert (document["picture"], document["price"]["disk_read_seconds"]) == ([], None)
    assert document["unknown"]["disk"].startswith("journald is about to flush the file")
    assert program.run(["explain", str(active(commands))]) == 0
    assert "journald is about to flush the file; try again" in " ".join(capfd.readouterr().out.split())


def test_the_story_of_a_rewritten_archive_has_its_past(commands: Commands) -> None:
    (archive,) = commands.directory.glob("*/system@*.journal")
    document = commands.json("explain", archive)
    check("explain", document)
    assert [row["result"] for row in document["past"]] == ["done"]
    assert document["file"]["compressed"]
    assert document["picture"][0]["compressed_bytes"]  # btrfs leaves some last blocks as they were
    assert "compressed it: " in commands("explain", archive).stdout


def test_a_new_active_file_has_no_past_of_the_one_before(tmp_path: Path) -> None:
    with ScratchVolume("1G") as volume, PrivateJournald(volume.mountpoint / "log") as journald:
        journald.age(20)
        asked = Commands(volume.mountpoint / "log", tmp_path)
        assert asked("defrag", "-D", asked.directory, "--now", "--active").returncode == 0
        before = asked.json("explain", journald.active)
        assert before["past"]
        journald.rotate()
        after = asked.json("explain", journald.active)
        assert after["file"]["inode"] != before["file"]["inode"]
        assert (after["past"], after["samples"]) == ([], [])


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/nowhere/at.all", "No such file or directory"),
        ("{directory}/x", "not a journal file's name"),
        ("{directory}/link.journal", "is a symbolic link; name the files themselves"),
    ],
)
def test_a_path_that_is_no_journal_is_one_line_and_status_1(commands: Commands, path: str, words: str) -> None:
    directory = active(commands).parent
    (directory / "x").touch()
    link = directory / "link.journal"
    if not link.is_symlink():
        link.symlink_to("system.journal")
    done = commands("explain", path.format(directory=directory))
    link.unlink()
    (directory / "x").unlink()
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_record_that_is_damaged_is_unknown_and_the_rest_is_told(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "history.db").write_bytes(b"SQLite format 3\0" + os.urandom(9000))
    (tmp_path / "history.db").chmod(0o600)
    broken = Commands(commands.directory, tmp_path)
    document = broken.json("explain", active(commands))
    check("explain", document)
    assert document["past"] is None
    assert document["decision"] is None
    assert "history.db" in document["unknown"]["past"]
    assert document["picture"]


def test_without_rights_what_can_be_told_is_told_and_the_rest_is_unknown(
    commands: Commands, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir(0o700)
    monkeypatch.setenv("STATE_DIRECTORY", str(state))
    path = active(commands)
    commands.directory.parent.parent.chmod(0o755)
    run("chmod", "--recursive", "a+rX", commands.directory)
    check_as_root = program.run(["explain", "-j", str(path)])  # imports what nobody may not
    capfd.readouterr()
    assert (check_as_root, as_nobody(lambda: program.run(["explain", "-j", str(path)]))) == (0, 0)
    document = json.loads(capfd.readouterr().out)
    check("explain", document)
    assert document["picture"]
    assert document["file"]["disk_bytes"] is None
    assert document["unknown"].keys() >= {"past", "decision"}


# report


def test_a_page_of_another_hosts_directory(commands: Commands, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = commands("report", "-D", commands.directory, "-o", page)
    assert (done.returncode, done.stderr) == (0, "")
    assert "compress" in page.read_text().partition('<h2 id="actions">')[2]


# what the kernel tells


def stretches(fd: int) -> tuple[Stretch, ...]:
    return extent_count.list_stretches(fd, sync=True)


def test_holes_and_unwritten_space_are_told_apart(make_file: MakeFile) -> None:
    fd = make_file(b"x" * PAGE)
    os.ftruncate(fd, 4 * MIB)
    os.posix_fallocate(fd, 2 * MIB, MIB)
    os.pwrite(fd, b"x" * MIB, 3 * MIB)
    found = stretches(fd)
    assert [part.hole_bytes for part in found] == [MIB - PAGE, MIB, 0, 0]
    assert [part.unwritten_bytes for part in found] == [0, 0, MIB, 0]
    assert [part.data_bytes for part in found] == [PAGE, 0, 0, MIB]
    assert sum(part.extents for part in found) == extent_count.count(fd, sync=False)


def test_shared_and_compressed_are_told_apart_and_together(make_file: MakeFile, place: Path) -> None:
    fd = make_file()
    run("btrfs", "property", "set", place / "file", "compression", "zstd")
    os.pwrite(fd, b"much the same " * (MIB // 14 + 1), 0)
    os.fsync(fd)
    assert stretches(fd)[0].compressed_bytes == MIB
    run("cp", "--reflink=always", place / "file", place / "copy")
    assert stretches(fd)[0].both_bytes == MIB
    plain = make_file(os.urandom(MIB), "plain")
    run("cp", "--reflink=always", place / "plain", place / "copy2")
    assert stretches(plain) == (Stretch(0, MIB, 1, shared_bytes=MIB),)
