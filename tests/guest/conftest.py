# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests for tests: `guest` is a booted host of each release in turn, one for a whole module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.guest import base
from tests.guest.host import Guest, missing

EVERYDAY = "bookworm"
"""The release of `tests/run`, and of what makes one guest only: a fresh machine needs no other."""

OTHERS = sorted(base.SYSTEMD.keys() - {EVERYDAY})


def require_guest() -> None:
    """Skip the test where no guest can be booted."""
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="module", params=[EVERYDAY, *(pytest.param(one, marks=pytest.mark.long) for one in OTHERS)])
def release(request: pytest.FixtureRequest) -> str:
    """Return one release after the other."""
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
    """Yield a booted host whose journal is datacow, so that there is something to do."""
    require_guest()
    with Guest(release, nocow=False) as host:
        host.boot()
        yield host
