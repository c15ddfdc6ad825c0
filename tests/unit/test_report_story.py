# SPDX-License-Identifier: LGPL-2.1-or-later
"""The story of a file and of a directory: each fact is shown or unknown, and lines fit the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from journalkeeper.model import MIB, JournalFile, Kind, Reason, Result, Stretch, Sums, Verb, Window
from journalkeeper.model.run import Sample
from journalkeeper.model.units import DAY_US, HOUR_US
from journalkeeper.report import story
from journalkeeper.report.retention import summarize_history
from journalkeeper.report.story import Decision, DirectoryAnswer, ReadPrice, Story
from tests.evidence import limits
from tests.hosts import NOW_US
from tests.report_data import ACTIVE, entry, file

PARTS = tuple(Stretch(number * MIB, MIB, 187, data_bytes=MIB) for number in range(32))
PRICE = ReadPrice(39.947, 2.5)
DOING = Decision(Verb.DEFRAGMENT, Reason.FRAGMENTED, "", None, False, 5992, 40, 32 << 20, 0, 39.6)
WAITING = Decision(None, Reason.SETTLING, "changed 3s ago", NOW_US + 57_000_000, now=True)


def a_story(*, decided: Decision | None = DOING, window: Window | None = None, **changes: object) -> Story:
    explained = story.explain_decision([decided] if decided else [], window, NOW_US)
    whole = Story(file(), PARTS, PRICE, (entry(NOW_US - DAY_US),), (), explained, window, {})
    return whole._replace(**changes)  # type: ignore[arg-type]


def join(blocks: list[story.Lines]) -> str:
    return " ".join(" ".join(head + text for block in blocks for head, text in block).split())


def said(some: Story) -> str:
    return join(story.explain_file(some, 80))


@pytest.mark.parametrize(
    ("some", "words"),
    [
        (a_story(), "Reading: 2.5s on this disk with cold caches, estimated from a sample; 39.9s on a hard disk (150"),
        (a_story(), "saves 39.6s of a cold read at 150 reads a second The file"),
        (a_story(decided=DOING._replace(disk_bytes_saved=9 << 20)), "150 reads a second and about 9 MiB on disk"),
        (a_story(past=(), samples=(Sample(NOW_US, ACTIVE, 9, 1, 0, 0),)), "no action in the history 9 extents at"),
    ],
)
def test_the_price_and_the_saving_of_a_file(some: Story, words: str) -> None:
    assert words in said(some)


def test_each_part_that_could_not_be_looked_at_is_unknown_and_the_rest_is_told() -> None:
    unknown = dict.fromkeys(("disk", "past", "decision"), "only root may ask")
    text = said(a_story(price=ReadPrice(39.9, None), past=None, samples=None, decision=None, unknown=unknown))
    assert text.count("unknown: only root may ask") == 3
    assert "5,992, where 1 would be ideal" in text
    assert "reads a second" not in text, "no price of another disk stands alone"


def test_the_past_is_told_newest_first_and_its_end_is_said() -> None:
    entries = tuple(entry(NOW_US - days * DAY_US, extents_before=days) for days in range(30, 0, -1))
    samples = tuple(Sample(NOW_US - days * DAY_US, ACTIVE, days * 100, 1, 0, 0) for days in range(3, 0, -1))
    lines = story.describe_past(a_story(past=entries, samples=samples))
    assert [line.split(", ")[1].split(" to ")[0] for line in lines[:10]] == [str(days) for days in range(1, 11)]
    assert "20 older actions" in lines[10]
    assert "300 extents at" in lines[11]
    assert "at most 300" in lines[11]


@pytest.mark.parametrize(
    ("decided", "window", "words"),
    [
        (DOING, None, "The next run does it, unless the file changes"),
        (DOING, Window("a", open=True, closes_at_us=NOW_US, reason="online"), "when the window closes, does it."),
        (WAITING, None, "This can change in 57s, at 2023-"),
        (WAITING, None, ". `journalkeeper defrag --now` does not wait."),
        (WAITING._replace(until_us=NOW_US - 5), None, "This can change in 1s"),
        (Decision(None, Reason.RECORDED), None, "an archive is rewritten once, unless it changes."),
        (Decision(Verb.ROTATE, Reason.CHEAPER), None, "The next run of the service does it; `journalkeeper defrag` do"),
        (None, None, "Plan: nothing to do"),
    ],
)
def test_when_a_decision_can_change_is_said(decided: Decision | None, window: Window | None, words: str) -> None:
    assert words in said(a_story(decided=decided, window=window))


def test_a_closed_window_says_when_it_opens() -> None:
    window = Window("a", open=False, closes_at_us=None, reason="unsynced", opens_at_us=NOW_US)
    closed = "ctive files are rewritten only after journald's next flush to the disk"
    assert f"A{closed}, due by 2023-11-1" in said(a_story(window=window))
    assert story.describe_window(window._replace(opens_at_us=None), named=True) == f"a: a{closed}."
    assert "can be rewritten now: journald has written all entries to the disk." in said(
        a_story(window=Window("a", open=True, closes_at_us=None, reason="flushed"))
    )


def test_hostile_names_cannot_steer_the_terminal() -> None:
    bad = "\x1b]0;owned\x07\n\udcff"
    row = file(path=f"/var/{bad}", owner=bad, instance=bad, problem=Reason.BAD_HEADER, problem_detail=bad)
    failed = entry(NOW_US, result=Result.FAILED, reason=Reason.IO_ERROR, detail="Input/output error\x1b[2J")
    decided = Decision(None, Reason.IN_USE, bad)
    assert said(a_story(file=row, decided=decided, past=None, unknown={"past": bad})).isprintable()
    assert r"failed to compress it (io-error): Input/output error\x1b[2J" in said(a_story(past=(failed,)))


# directories


ARCHIVES = tuple(file(kind=Kind.ARCHIVED, head_time_us=NOW_US - days * DAY_US) for days in (8, 4))


def place(
    files: Sequence[JournalFile] = ARCHIVES, decided: Decision | None = None, window: Window | None = None, **words: Any
) -> DirectoryAnswer:
    one = limits(name="4f3a", directory="/var/log/journal/4f3a")
    decision = story.explain_decision([decided] if decided else [], None, NOW_US)
    fit = [one for one in files if one.problem is None]
    unexamined = len(files) - len(fit)
    return DirectoryAnswer(one, window, summarize_history(limits(**words), files), decision, Sums.of(fit), unexamined)


def told(some: DirectoryAnswer) -> str:
    return join(story.explain_directory(some, None))


def test_a_history_is_from_the_oldest_entry_to_the_newest_and_what_would_fit() -> None:
    kept = place().retention
    assert (kept.files, kept.allocated_bytes, kept.disk_bytes) == (2, 64 << 20, 102 << 20)
    assert kept.oldest_us == NOW_US - 8 * DAY_US
    assert kept.full_span_us == (8 * DAY_US - HOUR_US) * 8
    assert kept.binding == "SystemMaxUse="
    assert "SystemMaxUse= is reached first; now 2 files and " in told(place(system_max_files=0))


@pytest.mark.parametrize(
    ("files", "words"),
    [((), "Covers: no entries"), ((file(head_time_us=NOW_US, tail_time_us=NOW_US - DAY_US),), "Covers: 0, 20")],
    ids=["empty", "a clock that ran backwards"],
)
def test_without_a_span_there_is_no_rate(files: tuple[JournalFile, ...], words: str) -> None:
    assert place(files).retention.full_span_us is None
    assert words in told(place(files))


def test_a_boot_with_an_unset_clock_adds_no_years_to_what_is_covered() -> None:
    early = file(head_time_us=HOUR_US, tail_time_us=2 * HOUR_US)
    assert "Covers: 1w 23h," in told(place(ARCHIVES))
    assert "Covers: 1w 23h," in told(place(ARCHIVES, max_file_us=HOUR_US))
    assert "Covers: 1w 1d, 1970-" in told(place((early, *ARCHIVES)))


def test_files_that_are_not_examined_are_counted() -> None:
    damaged = file(path="/var/log/journal/4f3a/x.journal", problem=Reason.BAD_HEADER)
    assert "not examined" not in told(place())
    assert "2 files, 11,984 extents, where 2 would be ideal; 1 more not examined" in told(place((*ARCHIVES, damaged)))


def test_a_directory_tells_instance_window_and_decision() -> None:
    window = Window("4f3a", open=True, closes_at_us=NOW_US, reason="online")
    text = told(place(decided=Decision(Verb.SET_NOCOW, Reason.NO_REDUNDANCY), window=window))
    for words in (
        "Journald: this host's own writes here; it can be asked to rotate files",
        "SyncIntervalSec=5min",
        "can be rewritten now until",
        "set-nocow (no-r",
    ):
        assert words in text
    assert "Window: unknown" in told(place())
    assert "0 to about" not in text
