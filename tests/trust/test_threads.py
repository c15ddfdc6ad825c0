# SPDX-License-Identifier: LGPL-2.1-or-later
"""The worker and the event loop at the same objects, at the worst moment.

tests/trust/threads.py waits for such moments; here they are made.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.execute.piece_times import PieceTimes
from journalkeeper.journald import layout
from journalkeeper.service.watch import Watch
from tests.hosts import MACHINE


class Interrupted(dict[Any, Any]):
    """A dictionary in whose reading, once, another thread has its turn."""

    during: Callable[[], object] | None = None

    def _interrupt(self) -> None:
        during, self.during = self.during, None
        if during is not None:
            during()

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self._interrupt()
        return found

    def items(self) -> Any:
        for item in super().items():
            self._interrupt()
            yield item


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def watches(fd: int) -> int:
    """How many watches an inotify instance has."""
    return Path(f"/proc/self/fdinfo/{fd}").read_text().count("inotify wd")


def test_the_worker_drops_a_watch_while_the_loop_hears_that_it_is_dropped(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    """Without a lock it ended the service: KeyError in pyinotify's rm_watch."""
    instance = tmp_path / "journal" / MACHINE
    instance.mkdir(parents=True)
    watch = Watch([f"{instance.parent}"], lambda _: None)
    watch.attach(loop)
    watch.refresh()
    instance.rename(tmp_path / "away")
    instance.mkdir()
    assert watch._manager is not None
    known = Interrupted(watch._manager.watches)
    reader = threading.Thread(target=watch._read)

    def during() -> None:
        """Let the loop read, and wait for it a little: it may have to wait for us."""
        reader.start()
        reader.join(0.3)

    known.during = during
    watch._manager._wmd = known
    watch.refresh()
    reader.join()
    assert f"{instance}" in watch.watched
    watch.close()


def test_a_watch_that_is_closed_during_a_refresh_touches_no_other(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload of other directories closed the descriptor under the worker, and the next watch was given its number."""
    (tmp_path / MACHINE).mkdir()
    old = Watch([f"{tmp_path}"], lambda _: None)
    old.attach(loop)
    real, fresh = layout.find_directories, list[Watch]()

    def reloaded(top: str) -> Any:
        if not fresh:
            old.close()
            fresh.append(Watch(["/nowhere"], lambda _: None))
        return real(top)

    monkeypatch.setattr(layout, "find_directories", reloaded)
    descriptors = len(os.listdir("/proc/self/fd"))
    old.refresh()
    assert watches(fresh[0].fd) == 0
    assert fresh[0].fd != old.fd
    fresh[0].close()
    assert len(os.listdir("/proc/self/fd")) == descriptors - 3, "the old one's are given back"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(old.fd)
    old.refresh()
    assert len(os.listdir("/proc/self/fd")) == descriptors - 3


def test_the_loop_asks_for_the_longest_piece_while_the_worker_adds_the_first_of_a_directory() -> None:
    """It ended the service: RuntimeError, dictionary changed size during iteration."""
    times = PieceTimes()
    pieces = Interrupted({"/a": (5, 0.0)})
    times._pieces = pieces
    pieces.during = lambda: times.add("/b", 7)
    times.get_longest_us()
    assert times.get_longest_us("/b") == 7
