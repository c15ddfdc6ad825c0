# SPDX-License-Identifier: LGPL-2.1-or-later
"""`report -o`: where the page may be written, that it is whole or not there, and what ends it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.cli import report
from journalkeeper.health.evidence import Evidence, Unknown
from tests.adapters.command import Typed
from tests.report_data import evidence

Give = Callable[[Callable[[], Evidence]], None]
OLD = "an older page"


@pytest.fixture(autouse=True)
def collect(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Have the command be given this evidence, or error."""

    def give(some: Callable[[], Evidence]) -> None:
        monkeypatch.setattr(report, "collect_evidence", lambda *_: some())

    give(evidence)
    return give


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the page is to be; there is nothing yet."""
    return tmp_path / "page.html"


def names(directory: Path) -> list[str]:
    return sorted(one.name for one in directory.iterdir())


def is_page(path: Path) -> bool:
    return path.read_text().startswith("<!DOCTYPE html>")


def test_the_page_is_written_and_nothing_beside_it(path: Path, typed: Typed) -> None:
    said = typed("report", "-o", f"{path}")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith(f"Wrote {path}: ")
    assert is_page(path)
    assert names(path.parent) == ["page.html"]
    document = typed("report", "-o", f"{path}", "--force", "-j").document
    assert document == {"path": f"{path}", "size_bytes": path.stat().st_size}


NO_ROOT = Unknown("only root and the group systemd-journal may read the journal files", needs_root=True)


def test_without_the_right_to_read_the_journal_no_page_is_written(path: Path, typed: Typed, collect: Give) -> None:
    collect(lambda: evidence(look=NO_ROOT, journal=NO_ROOT, record=NO_ROOT))
    said = typed("report", "-o", f"{path}")
    assert (said.status, said.out, NO_ROOT.why in said.err, path.exists()) == (1, "", True, False)


def test_a_part_that_the_page_lacks_is_named(path: Path, typed: Typed, collect: Give) -> None:
    collect(lambda: evidence(record=Unknown("only root may read the history")))
    said = typed("report", "-o", f"{path}")
    assert (said.status, said.err) == (0, "journalkeeper: the page lacks a part: only root may read the history\n")
    assert is_page(path)


def test_a_file_that_is_there_is_refused_and_kept(path: Path, typed: Typed) -> None:
    path.write_text(OLD)
    said = typed("report", "-o", f"{path}")
    assert said.status == 1
    assert "--force writes the report in its place" in said.err
    assert path.read_text() == OLD
    assert typed("report", "-o", f"{path}", "--force").status == 0
    assert is_page(path)
    assert names(path.parent) == ["page.html"]


@pytest.mark.parametrize("leads", ["somewhere", "nowhere"])
def test_a_link_is_refused_and_with_force_replaced_but_never_followed(leads: str, path: Path, typed: Typed) -> None:
    target = path.with_name("target")
    if leads == "somewhere":
        target.write_text(OLD)
    path.symlink_to(target)
    assert typed("report", "-o", f"{path}").status == 1
    assert path.is_symlink()
    assert typed("report", "-o", f"{path}", "--force").status == 0
    assert not path.is_symlink()
    assert is_page(path)
    assert target.exists() == (leads == "somewhere")
    assert leads == "nowhere" or target.read_text() == OLD


def test_what_is_no_file_is_refused_also_with_force(tmp_path: Path, typed: Typed) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/null"), tmp_path):
        said = typed("report", "-o", f"{path}", "--force")
        assert said.status == 1
        assert "is neither a file nor a link" in said.err
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_the_target_is_looked_at_before_the_work(collect: Give, path: Path, typed: Typed) -> None:
    def never() -> Evidence:
        raise AssertionError("collect for nothing")

    collect(never)
    path.write_text(OLD)
    for target in (path, path.parent / "no" / "page.html"):
        said = typed("report", "-o", f"{target}")
        assert said.status == 1
        assert "collect" not in said.err


def test_a_file_that_came_meanwhile_is_not_replaced(collect: Give, path: Path, typed: Typed) -> None:
    def during() -> Evidence:
        path.write_text(OLD)
        return evidence()

    collect(during)
    said = typed("report", "-o", f"{path}")
    assert said.status == 1
    assert "File exists" in said.err
    assert path.read_text() == OLD
    assert names(path.parent) == ["page.html"]


@pytest.mark.root
def test_only_its_owner_may_read_the_page_and_no_link_of_a_user_leads_root_elsewhere(path: Path, typed: Typed) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.mkdir()
    home = path.with_name("home")
    home.mkdir()
    os.chown(home, 12345, 12345)
    (home / "link").symlink_to(elsewhere)
    os.chown(home / "link", 12345, 12345, follow_symlinks=False)
    for way in (home / "link", home / "link" / ".." / "link"):
        said = typed("report", "-o", f"{way}/page.html")
        assert said.status == 1
        assert "is a link of user 12345, which root does not follow" in said.err
    assert names(elsewhere) == []
    os.chown(home / "link", 0, 0, follow_symlinks=False)
    assert typed("report", "-o", f"{home}/link/page.html").status == 0
    assert (elsewhere / "page.html").stat().st_mode & 0o777 == 0o600
