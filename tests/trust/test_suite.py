# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sample of each attack that has no test of its own, and the runner of all: python -m tests.trust."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import eventually
from tests.trust import __main__ as suite
from tests.trust import caller, fuzz, races, rights, soak, table
from tests.trust.__main__ import KINDS, TABLE, Kind
from tests.trust.table import Row

SEED = 20261122
SAMPLED = ("fuzz", "remote", "bus", "races", "threads")

# the attacks


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_loses_nothing_and_leaves_nothing(name: str) -> None:
    words = [sys.executable, "-m", "tests.trust", "--sample", "--kinds", name, "--seed", f"{SEED}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    row = table.parse(done.stdout)
    if row.skipped:
        pytest.skip(row.skipped)
    assert row.points > 0
    assert row.seed == SEED


def test_an_input_that_failed_is_given_again() -> None:
    header = fuzz.SEEDS["header"][0]
    words = fuzz.replay_of("header", header).split()
    assert fuzz.main(words[3:]) == 0
    with pytest.raises(KeyError):
        fuzz.main(["--replay", "nothing:AAAA"])


# what they see


def test_an_entry_that_was_there_when_the_file_was_read_before_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = [races.text(number) for number in range(3)]
    monkeypatch.setattr(races, "PrivateJournald", lambda *_, **__: None)
    monkeypatch.setattr(races, "run", lambda *_: "\n".join(lines))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0))
    volume: Any = SimpleNamespace(mountpoint=tmp_path)
    one = races.Race(volume, 1)
    one.witness(tmp_path / "a")
    del lines[1]
    one.witness(tmp_path / "a")
    assert (one.witnessed, one.gone, one.unclean) == ({0, 1, 2}, {1}, [])


def test_who_is_not_answered_is_told_of(tmp_path: Path) -> None:
    bus: Any = SimpleNamespace(socket=tmp_path / "none")
    asking = caller.Asking(bus)
    asking.start()
    assert eventually(lambda: len(asking.unanswered) > 1)
    asking.over.set()
    asking.join()
    assert asking.unanswered[0].startswith("FileNotFoundError")


def test_archives_that_are_all_gone_are_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(soak, "run", lambda *_: "load 8\nload 9\n")
    place: Any = SimpleNamespace(journald=SimpleNamespace(journal=tmp_path))
    assert soak.lost(place, 10, 1) == []
    assert soak.lost(place, 10, 80) == ["0 archives are there after 80 rotations"]
    assert soak.lost(place, 11, 1) == ["load 10"]


def test_a_right_that_a_unit_lacks_or_should_not_have_is_found(tmp_path: Path) -> None:
    lines = (
        'openat(AT_FDCWD, "/etc/x", O_WRONLY|O_CREAT, 0600) = 3</etc/x>',
        'openat(AT_FDCWD, "x", O_RDWR) = 4</var/log/journal/m/x>',
        "ioctl(4, BTRFS_IOC_TREE_SEARCH_V2, 0x7f) = -1 EPERM (Operation not permitted)",
        "fchown(4</var/log/journal/m/x>, 0, 4) = -1 EPERM (Operation not permitted)",
    )
    (tmp_path / f"{rights.SERVICE}.1.2").write_text("\n".join(lines))
    tracer = rights.Tracer(tmp_path)
    tracer._capabilities[rights.SERVICE] |= {"0" * 16, "0" * 15 + "1"}
    assert rights.wrong(rights.SERVICE, tracer.census(rights.SERVICE)) == [
        f"refused: {lines[3]}", f"it has the capabilities {'0' * 15}1", "it wrote in /etc",
    ]  # fmt: skip
    assert rights.wrong(rights.DEFRAG, tracer.census(rights.DEFRAG)) == ["nothing was seen of it"]


# what comes of them


def test_a_row_is_the_last_line_of_json() -> None:
    said = 'a line\n{"kind": "fuzz"}\n' + '{"kind": "x", "points": 7, "lost": 1, "unclean": 0, "worst_outage_s": 0.5, '
    row = table.parse(said + '"seed": 3, "more": 1}\nanother line\n')
    assert row == Row("x", 7, 1, 0, 0.5, 3)
    assert not row.fine
    assert row._replace(lost=0).fine
    assert not row._replace(lost=0, unclean=1).fine


@pytest.mark.parametrize(("lost", "unclean", "status"), [(0, 0, 0), (1, 0, 1), (0, 1, 1)])
def test_what_is_printed_is_read_again_and_has_a_status(
    capsys: pytest.CaptureFixture[str], lost: int, unclean: int, status: int
) -> None:
    row = Row("outages", 6, lost, unclean, 1.26, 7)
    assert table.finish(row) == status
    assert table.parse(capsys.readouterr().out) == row


@pytest.mark.parametrize("said", ["", "no row\n", '{"kind": "x"}\n', "{\n"])
def test_what_is_no_row_is_an_error(said: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        table.parse(said)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kinds whose modules print what they are given, and a table of their own."""
    package = Path(suite.__file__).parent
    monkeypatch.setattr(suite, "TABLE", tmp_path / "trust.txt")
    monkeypatch.setattr(suite, "KINDS", (Kind("one", "table"), Kind("two", "there_is_none")))
    assert (package / "table.py").exists()
    return tmp_path / "trust.txt"


@pytest.mark.parametrize(
    ("row", "status"),
    [
        (Row("one", 5, 0, 0, 0.1, 1), 0),
        (Row("one", 5, 1, 0, 0.1, 1), 1),
        (Row("one", 5, 0, 1, 0.1, 1), 1),
        (Row("one", 0, 0, 0, 0.0, 1, "no such thing here"), 0),
    ],
)
def test_it_fails_where_something_was_lost_or_left(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], row: Row, status: int
) -> None:
    monkeypatch.setattr(suite, "run", lambda kind, words, seed: row)
    assert suite.main(["--seed", "1", "--write"]) == status
    said = capsys.readouterr().out
    assert "skipped: there is no tests/trust/there_is_none.py" in said
    assert made.read_text().startswith("one\t5\t") == (not row.skipped)


def test_a_module_that_ends_without_a_row_is_unclean(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.run(Kind("one", "table"), (), 1) == Row("one", 0, 0, 1, 0.0, 1)
    assert "no row was printed" in capsys.readouterr().out


def test_a_kind_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        suite.main(["--kinds", "fuzz,fizz"])
    assert "no such kind: fizz; there are " in capsys.readouterr().err


def test_a_samples_row_is_not_written_as_the_long_forms(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        suite.main(["--sample", "--write"])
    assert "--sample cannot be written" in capsys.readouterr().err
    assert not made.exists()


def test_a_row_is_shown_with_the_command_that_makes_it_again() -> None:
    text = suite.shown([Row("races", 12, 0, 0, 0.5, 7), Row("rights", 9, 0, 0, 0, 7)], sample=True)
    assert text.splitlines()[1:] == [
        "races   12      0     0        0.5 s   python -m tests.trust.races --rotations 12 --seed 7",
        "rights  9       0     0        0 s     python -m tests.trust.rights --release bookworm",
    ]


def test_rows_take_the_place_of_the_same_kinds_and_others_stay() -> None:
    text = "fuzz\t1\t0\t0\t1\tcommand\nraces\t2\t0\t0\t1\tcommand\n"
    after = suite.written(text, [Row("races", 1000, 0, 0, 0.7, 1), Row("fuzz", 0, 0, 0, 0, 1, "not here")])
    assert after.splitlines() == [
        "fuzz\t1\t0\t0\t1\tcommand",
        "races\t1000\t0\t0\t0.7\tpython -m tests.trust.races --rotations 1000",
    ]


def test_the_table_of_the_page_is_of_kinds_that_there_are_and_nothing_was_lost() -> None:
    commands = {kind.name: kind.command() for kind in KINDS}
    for line in TABLE.read_text().splitlines():
        kind, points, lost, unclean, _, command = line.split("\t")
        assert (command, int(points) > 0, lost, unclean) == (commands[kind], True, "0", "0")


def test_every_attempt_of_the_page_names_its_test() -> None:
    checkout = Path(__file__).parents[2]
    page = (checkout / "configs/man/journalkeeper-trust.7.in").read_text()
    named = re.findall(r"`python -m pytest (\S+) -k (\w+)`", page)
    assert len(named) > 5
    for file, words in named:
        assert re.search(rf"def test_\w*{words}", (checkout / file).read_text()), f"{file} has no {words}"
