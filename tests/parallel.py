# SPDX-License-Identifier: LGPL-2.1-or-later
"""Spread the tests over the workers of pytest-xdist.

Each worker has its own mount namespace from its beginning, so that a volume that it unmounts is mounted nowhere else.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import NodeManager

CLONE_NEWNS, MS_PRIVATE_TREE = 0x00020000, (1 << 18) | (1 << 14)
"""Source: linux/sched.h; MS_PRIVATE | MS_REC of linux/mount.h."""

TOGETHER = ("tests/unit/", "tests/adapters/", "tests/guest/")
"""A whole module of these directories runs in one worker: its tests are short, or share a booted guest."""

RELEASE = re.compile(r"\[(bookworm|trixie)\b")


@cache
def shares_fixture(module: str) -> bool:
    """Return whether a module has a fixture of module scope."""
    return 'scope="module"' in Path(module).read_text()


class Scheduler(LoadScopeScheduling):  # type: ignore[misc] # xdist ships no types
    """Give each worker a single test, or a module whose tests stay together; of a guest's, those of one release."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if not module.startswith(TOGETHER) and not shares_fixture(os.path.join(self.config.rootpath, module)):
            return nodeid
        release = RELEASE.search(nodeid)
        return f"{module}[{release[1]}]" if release else module


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler:
    """Return this scheduler for every --dist, because a module with a booted guest cannot be split."""
    config.option.loadscopereorder = False
    return Scheduler(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Give a worker of root's a mount namespace. Threads that run already stay outside."""
    libc = ctypes.CDLL(None, use_errno=True)
    NodeManager.EXIT_TIMEOUT = 60  # an interrupted worker's fixtures take their time
    if hasattr(config, "workerinput") and os.geteuid() == 0 and libc.unshare(CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, MS_PRIVATE_TREE, None)  # fails in a chroot, which has nothing to make private


def cost(item: pytest.Item) -> int:
    """Return the place of a test in the order of a worker. Long tests begin first, so that no worker waits for them."""
    for place, mark in enumerate(("guest", "long", "slow", "root")):
        if item.get_closest_marker(mark):
            return place
    return 4


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests of a worker."""
    if hasattr(config, "workerinput"):
        items.sort(key=cost)
