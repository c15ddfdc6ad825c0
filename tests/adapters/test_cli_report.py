# SPDX-License-Identifier: LGPL-2.1-or-later
"""`report -o`: the names that it accepts, the mode of the page, and missing evidence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.cli import report
from journalkeeper.health.evidence import Evidence, Unknown
from tests.adapters.command import Typed
from tests.report_data import evidence

Give = Callable[[Callable[[], Evidence]], None]


@pytest.fixture(autouse=True)
def collect(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Return a function that sets the evidence of the command, or its error."""

    def give(some: Callable[[], Evidence]) -> None:
        monkeypatch.setattr(report, "gather", lambda *_: some())

    give(evidence)
    return give


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a free name for the page."""
    return tmp_path / "page.html"


def names(directory: Path) -> list[str]:
    return sorted(one.name for one in directory.iterdir())


def is_page(path: Path) -> bool:
    return path.read_text().startswith("<!DOCTYPE html>")


def test_the_page_is_written_and_an_earlier_one_of_the_same_user_replaced(path: Path, typed: Typed) -> None:
    said = typed("report", "-o", f"{path}")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith(f"Wrote {path}: ")
    assert is_page(path)
    assert names(path.parent) == ["page.html"]
    assert path.stat().st_mode & 0o777 == 0o600, "only its owner may read the page"
    # a cron job writes it again and again
    path.chmod(0o644)
    before = path.stat().st_ino
    document = typed("report", "-o", f"{path}", "-j").document
    assert document == {"path": f"{path}", "size_bytes": path.stat().st_size}
    assert path.stat().st_ino != before
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(path.parent) == ["page.html"]


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


ODD = ("a link", "a link to nowhere", "a second name", "another user", "not at the beginning", "a FIFO", "a directory")


@pytest.mark.parametrize("odd", [*ODD, "another text"])
def test_no_other_file_is_taken_for_a_page(path: Path, typed: Typed, odd: str) -> None:
    page = path.with_name("other.html")
    assert typed("report", "-o", f"{page}").status == 0
    if odd.startswith("a link"):
        path.symlink_to("nowhere" if "nowhere" in odd else page)
    elif odd == "a directory":
        path.mkdir()
    elif odd == "another text":
        path.write_text("an older page")
    elif odd == "a second name":
        path.hardlink_to(page)
    elif odd == "a FIFO":
        os.mkfifo(path)
    else:
        path.write_text("<p>" * 2000 * (odd == "not at the beginning") + page.read_text())
        if odd == "another user":
            if os.geteuid() != 0:
                pytest.skip("only root can give a file away")
            os.chown(path, 1, 1)
    before = path.lstat()
    said = typed("report", "-o", f"{path}")
    assert (said.status, "is no page of this user's: remove it, or choose another name" in said.err) == (1, True)
    assert (path.lstat().st_ino, path.lstat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert names(path.parent) == ["other.html", "page.html"]
