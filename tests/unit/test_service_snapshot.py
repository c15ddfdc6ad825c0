# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the bus shows of files that were looked at, and of those that were not as they did not change."""

from __future__ import annotations

from journalkeeper.model import JournalFile, Reason, Skip
from journalkeeper.model.finished import NONE_FINISHED, Finished, FinishedFile
from journalkeeper.service.snapshot import Findings
from tests import hosts
from tests.figures import STATUS


def file(name: str) -> JournalFile:
    return hosts.file(path=f"/j/{name}")


def skip(name: str) -> Skip:
    return Skip(f"/j/{name}", Reason.IDEAL, "")


def out(*names: str) -> Finished:
    return NONE_FINISHED.changed(came=[FinishedFile(file(name), skip(name), fragmented=False) for name in names])


def found(live: tuple[str, ...], finished: Finished) -> Findings:
    rows = {f"/j/{name}": file(name) for name in live}
    return Findings(rows, {f"/j/{name}": skip(name) for name in live}, STATUS, 0, "", finished)


def test_a_file_is_found_wherever_it_is_kept() -> None:
    both = found(("a",), out("b"))
    assert sorted(both.files) == ["/j/a", "/j/b"]
    assert both.file("/j/a") == (file("a"), skip("a"))
    assert both.file("/j/b") == (file("b"), skip("b"))
    assert both.file("/j/c") is None


def test_only_what_was_looked_at_or_came_or_went_may_differ() -> None:
    before = out("b", "c")
    assert found((), before).perhaps_others(found((), before)) == set()
    after = before.changed(gone=["/j/b"])
    assert found(("a",), after).perhaps_others(found((), before)) == {"/j/a", "/j/b"}
    assert found((), before).perhaps_others(found(("a",), before)) == {"/j/a"}
