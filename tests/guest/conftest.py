# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests for tests: `guest` is a booted host of each release in turn, one for a whole module.

A test that changes what the next one counts on makes a host of its own,
with `make_guest`, which costs two seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.guest import base
from tests.guest.host import Guest, missing

EVERYDAY = "bookworm"
"""The release of `tests/run`, and of what makes one guest only: a fresh machine needs no other."""

OTHERS = sorted(base.SYSTEMD.keys() - {EVERYDAY})


def require_guest() -> None:
    """Skip, with the reason, where no guest can be booted; a failure under JOURNALKEEPER_NO_SKIP=1."""
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="module", params=[EVERYDAY, *(pytest.param(one, marks=pytest.mark.long) for one in OTHERS)])
def release(request: pytest.FixtureRequest) -> str:
    """One release after the other."""
    return str(request.param)


@pytest.fixture(scope="module")
def guest(release: str) -> Iterator[Guest]:
    """A booted host as Debian ships it, on a disk without a throttle."""
    require_guest()
    with Guest(release) as host:
        host.boot()
        yield host


@contextmanager
def datacow_guest(release: str) -> Iterator[Guest]:
    """A booted host whose journal is datacow, where there is something to do."""
    require_guest()
    with Guest(release, nocow=False) as host:
        host.boot()
        yield host


@pytest.fixture
def make_guest() -> Iterator[Callable[..., Guest]]:
    """Make further hosts, with Guest's arguments; gone after the test."""
    require_guest()
    with ExitStack() as made:

        def make(release: str, *, nocow: bool | None = None, size: str = "4G") -> Guest:
            return made.enter_context(Guest(release, nocow=nocow, size=size))

        yield make
