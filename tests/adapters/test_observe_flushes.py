# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tracking of flushes, on a file whose states, blocks and clocks the test sets. Real ones: tests/btrfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from journalkeeper.btrfs import fiemap, inode, volume, writeback
from journalkeeper.model import Instance, Kind
from journalkeeper.model.units import SECOND_US
from journalkeeper.observe.flushes import COMMIT_S, Flushes
from journalkeeper.policy.flush_timer import COALESCED_US, LATE_US
from tests import hosts
from tests.journal_files import put_empty

OFFLINE, ONLINE = 0, 1
SKEW_US = 10**15
"""The difference of the wall clock and the monotonic clock."""


class Journal:
    """An instance with an active file and a vanished one, on a volume without commits by others."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch, interval_us: int) -> None:
        self.now_us, self.skew_us, self.block, self.generation = 10**12, SKEW_US, 7, 1
        self.waited: list[int] = []
        self.slept_s: list[float] = []
        self.path = place / "system.journal"
        self.directory = f"{place}"
        self.instance = hosts.instance(directory=self.directory, sync_interval_us=interval_us, rotatable=True)
        patch.setattr(volume, "read_generation", lambda _: self.generation)
        patch.setattr(inode, "is_nocow", lambda _: False)
        patch.setattr(fiemap, "locate_byte", lambda *_: self.block)
        patch.setattr(writeback, "wait_writeback", lambda *words: self.waited.append(words[0]))
        patch.setattr("journalkeeper.observe.flushes.time.sleep", self.slept_s.append)
        self.flushes = Flushes(clock=lambda: self.now_us, wall=lambda: self.now_us + self.skew_us)

    def write(self, state: int) -> None:
        put_empty(self.path, state)
        os.utime(self.path, ns=((self.now_us + self.skew_us) * 1000,) * 2)

    def look(self, state: int | None = None, after_us: int = SECOND_US) -> Instance:
        """Set the file's state, if given, and look `after_us` later. Return the renewed instance."""
        self.now_us += after_us
        if state is not None:
            self.write(state)
        files = [hosts.file(Kind.ACTIVE, path=f"{path}") for path in (self.path.with_name("gone"), self.path)]
        (found,) = self.flushes.look((self.instance,), files)
        return found

    def closes_us(self) -> int | None:
        return self.flushes.get_closing_us(self.directory, 0)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """Return the journal of a journald that flushes after five minutes."""
    return Journal(tmp_path, monkeypatch, 300 * SECOND_US)


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """Return the journal of a journald that flushes after five seconds, sooner than the kernel."""
    return Journal(tmp_path, monkeypatch, 5 * SECOND_US)


def test_an_interval_begins_with_the_reported_append_and_ends_with_the_flush(journal: Journal) -> None:
    assert journal.look(OFFLINE).online_since_us is None
    assert journal.flushes.look_for_due_plan()
    assert journal.closes_us() is None
    journal.now_us += SECOND_US
    heard_us = journal.now_us
    journal.flushes.note_append(journal.directory, heard_us)
    journal.flushes.note_append("/elsewhere", heard_us)
    assert journal.flushes.get_next_look_us(0) == heard_us
    found = journal.look(ONLINE)
    assert found.online_since_us == heard_us - COALESCED_US + SKEW_US
    assert not journal.flushes.look_for_due_plan()
    assert journal.closes_us() == heard_us - COALESCED_US + 300 * SECOND_US
    assert journal.waited == []
    journal.flushes.note_append(journal.directory, journal.now_us)  # is flushed, too, as it came before the next look
    journal.write(OFFLINE)
    journal.flushes.look_again("/elsewhere")
    assert journal.waited == []
    journal.flushes.look_again(journal.directory)
    assert len(journal.waited) == 1, "what the flush has begun to write is waited for"
    assert journal.slept_s == [COMMIT_S]
    assert [journal.flushes.look_for_due_plan(), journal.flushes.look_for_due_plan()] == [True, False]
    assert journal.closes_us() is None


@pytest.mark.parametrize(("ours", "committed", "found"), [(False, 0, True), (True, 0, False), (False, 1, False)])
def test_a_block_that_moved_shows_a_flush_unless_we_or_a_sync_moved_it(
    quick: Journal, ours: bool, committed: int, found: bool
) -> None:
    assert quick.look(ONLINE).online_since_us is None
    assert quick.closes_us() == 0, "unsynced since an unknown time"
    quick.look()
    if ours:
        quick.flushes.note_rewrite(quick.directory)
    quick.block += 1
    quick.generation += committed
    assert (quick.look().online_since_us is not None) is found


@pytest.mark.parametrize("after", [OFFLINE, ONLINE])
def test_an_unknown_timer_is_learned_by_a_sync_after_its_interval(journal: Journal, after: int) -> None:
    """A busy journal is ONLINE again at once."""
    journal.look(ONLINE)
    assert not journal.look(ONLINE, 300 * SECOND_US + LATE_US).sync_tells
    assert journal.look(ONLINE, 1).sync_tells
    assert journal.flushes.look_for_due_plan()
    asked_us = journal.now_us
    journal.flushes.learn(journal.directory, lambda: journal.write(after))
    assert journal.waited, "the data of the sync is waited for"
    assert journal.flushes.look_for_due_plan()
    assert not journal.look(ONLINE, SECOND_US).sync_tells, "it is asked for once in an hour at most"
    assert journal.closes_us() == asked_us + 300 * SECOND_US


@pytest.mark.parametrize(("set_by_us", "moved"), [(49_000, False), (51_000, True)])
def test_the_shown_time_moves_only_with_a_clock_that_was_set(journal: Journal, set_by_us: int, moved: bool) -> None:
    journal.look(OFFLINE)
    before = journal.look(ONLINE).online_since_us
    journal.skew_us += set_by_us
    assert (journal.look(ONLINE).online_since_us != before) is moved
