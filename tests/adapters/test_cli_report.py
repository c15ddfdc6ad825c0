# SPDX-License-Identifier: LGPL-2.1-or-later
"""`report -o`: where the page may be written, that it is whole or not there, and what ends it."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.cli import report
from journalkeeper.cli.program import run
from journalkeeper.journald.journalctl import JournalctlError
from journalkeeper.model.errors import KeeperError
from journalkeeper.report.evidence import Evidence
from tests.report_data import evidence

Captured = pytest.CaptureFixture[str]
OLD = "an older page"


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Evidence]], None]:
    """Have the command be given this evidence, or error."""

    def give(some: Callable[[], Evidence]) -> None:
        monkeypatch.setattr(report, "gathered", lambda *_: some())

    give(evidence)
    return give


def names(directory: Path) -> list[str]:
    return sorted(one.name for one in directory.iterdir())


@pytest.mark.usefixtures("gathered")
def test_the_page_is_written_and_nothing_beside_it(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "page.html"
    assert run(["report", "-o", f"{path}"]) == 0
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert names(tmp_path) == ["page.html"]
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"{path}: ")
    assert run(["report", "-o", f"{path}", "--force", "-j"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": f"{path}", "size_bytes": path.stat().st_size}


@pytest.mark.usefixtures("gathered")
def test_a_file_that_is_there_is_refused_and_kept(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "page.html"
    path.write_text(OLD)
    assert run(["report", "-o", f"{path}"]) == 1
    assert path.read_text() == OLD
    assert "--force writes the report in its place" in capsys.readouterr().err
    assert run(["report", "-o", f"{path}", "--force"]) == 0
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert names(tmp_path) == ["page.html"]


@pytest.mark.usefixtures("gathered")
@pytest.mark.parametrize("leads", ["somewhere", "nowhere"])
def test_a_link_is_refused_and_with_force_replaced_but_never_followed(leads: str, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "page.html"
    if leads == "somewhere":
        target.write_text(OLD)
    link.symlink_to(target)
    assert run(["report", "-o", f"{link}"]) == 1
    assert link.is_symlink()
    assert run(["report", "-o", f"{link}", "--force"]) == 0
    assert not link.is_symlink()
    assert link.read_text().startswith("<!DOCTYPE html>")
    assert target.exists() == (leads == "somewhere")
    assert leads == "nowhere" or target.read_text() == OLD


@pytest.mark.usefixtures("gathered")
def test_what_is_no_file_is_refused_also_with_force(tmp_path: Path, capsys: Captured) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/null"), tmp_path):
        assert run(["report", "-o", f"{path}", "--force"]) == 1
    assert capsys.readouterr().err.count("is neither a file nor a link") == 3
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.usefixtures("gathered")
def test_a_directory_that_is_not_there_is_said(tmp_path: Path, capsys: Captured) -> None:
    assert run(["report", "-o", f"{tmp_path}/no/page.html"]) == 1
    assert "cannot write the report: No such file or directory" in capsys.readouterr().err


@pytest.mark.usefixtures("gathered")
def test_without_o_it_makes_no_sense() -> None:
    assert run(["report"]) == 2


def test_the_target_is_looked_at_before_the_work(
    gathered: Callable[[Callable[[], Evidence]], None], tmp_path: Path, capsys: Captured
) -> None:
    def never() -> Evidence:
        raise AssertionError("gathered for nothing")

    gathered(never)
    path = tmp_path / "page.html"
    path.write_text(OLD)
    assert run(["report", "-o", f"{path}"]) == 1
    assert run(["report", "-o", f"{tmp_path}/no/page.html"]) == 1
    assert "gathered" not in capsys.readouterr().err


def test_a_file_that_came_meanwhile_is_not_replaced(
    gathered: Callable[[Callable[[], Evidence]], None], tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "page.html"

    def during() -> Evidence:
        path.write_text(OLD)
        return evidence()

    gathered(during)
    assert run(["report", "-o", f"{path}"]) == 1
    assert path.read_text() == OLD
    assert names(tmp_path) == ["page.html"]
    assert "File exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [JournalctlError("journalctl broke off: killed by signal 9"), KeyboardInterrupt(), OSError(errno.EIO, "x")]
)
def test_what_ends_the_gathering_leaves_nothing(
    error: BaseException, gathered: Callable[[Callable[[], Evidence]], None], tmp_path: Path, capsys: Captured
) -> None:
    def broken() -> Evidence:
        raise error

    gathered(broken)
    assert run(["report", "-o", f"{tmp_path}/page.html"]) == 1
    assert names(tmp_path) == []
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.usefixtures("gathered")
@pytest.mark.parametrize("call", ["fsync", "rename"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_what_ends_the_writing_leaves_the_old_page(
    call: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    path = tmp_path / "page.html"
    path.write_text(OLD)
    monkeypatch.setattr(os, call, broken)
    assert run(["report", "-o", f"{path}", "--force"]) == 1
    monkeypatch.undo()
    assert path.read_text() == OLD
    assert names(tmp_path) == ["page.html"]


@pytest.mark.usefixtures("gathered")
def test_a_filesystem_that_cannot_rename_so_gets_a_hard_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(report, "rename_new", cannot)
    path = tmp_path / "page.html"
    assert run(["report", "-o", f"{path}"]) == 0
    assert run(["report", "-o", f"{path}"]) == 1
    assert names(tmp_path) == ["page.html"]


@pytest.mark.usefixtures("gathered")
def test_a_name_of_255_bytes_is_a_name(tmp_path: Path) -> None:
    assert run(["report", "-o", f"{tmp_path}/{'ä' * 125}.html"]) == 0


def test_a_refusal_is_an_error_of_ours(tmp_path: Path) -> None:
    path = f"{tmp_path}/page.html"
    Path(path).touch()
    dir_fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(KeeperError):
        report.refuse(path, dir_fd, force=False)
    os.close(dir_fd)
