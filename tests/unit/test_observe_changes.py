# SPDX-License-Identifier: LGPL-2.1-or-later
"""What changed is told once, and what is not known is everything."""

from __future__ import annotations

from journalkeeper.observe.changes import MOST_NAMES, Changes


def told() -> Changes:
    """Changes of which the first, everything, was taken."""
    changes = Changes()
    assert changes.take() is None
    return changes


def test_names_are_taken_once() -> None:
    changes = told()
    changes.add("/j/a", ["x", "y"])
    changes.add("/j/a", ["y"])
    changes.add("/j/b", ["z"])
    assert changes.take() == {"/j/a": frozenset("xy"), "/j/b": frozenset("z")}
    assert changes.take() == {}


def test_everything_outlasts_names() -> None:
    changes = told()
    changes.add("/j/a", ["x"])
    changes.everything()
    changes.add("/j/a", ["y"])
    assert changes.take() is None
    assert changes.take() == {}


def test_too_many_names_are_everything() -> None:
    changes = told()
    changes.add("/j/a", map(str, range(MOST_NAMES)))
    changes.add("/j/a", ["0"])
    taken = changes.take()
    assert taken is not None
    assert len(taken["/j/a"]) == MOST_NAMES
    changes.add("/j/a", map(str, range(MOST_NAMES)))
    changes.add("/j/b", ["0"])
    assert changes.take() is None
