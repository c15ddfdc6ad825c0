# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page is one small file without scripts and network, and hostile names cannot change its markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from journalkeeper.health.evidence import Boot, Evidence, Intake, Unknown
from journalkeeper.health.finding import Verdict
from journalkeeper.model import Reason, Result
from journalkeeper.model.manager import Finding, Severity
from journalkeeper.model.run import Counters
from journalkeeper.model.units import DAY_US, HOUR_US
from journalkeeper.report.page import render_page
from tests.hosts import NOW_US
from tests.report_data import ACTIVE, entry, evidence, journal, nothing, recorded

MOST_BYTES = 500 << 10
"""As the manual says."""

NOTHING_FOUND = Verdict((), ("volatile",), ())
VOID = frozenset({"meta"})
HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a\nb\x1b[31mc\x00",
    "\udcff\udcfe.service",
    "u" * 10_000,
    "\u202egnp.exe",
    "&lt;b&gt;",
)


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and its text; every element must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}


def made(some: Evidence | None = None, verdict: Verdict = NOTHING_FOUND, host: str = "debian") -> Parsed:
    text = render_page(evidence() if some is None else some, verdict, host)
    assert len(text.encode()) <= MOST_BYTES
    return Parsed(text)


def test_the_page_has_no_script_and_fetches_nothing() -> None:
    text = render_page(evidence(), NOTHING_FOUND, "debian")
    found = Parsed(text)
    assert not found.tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base", "use", "image"}
    for _, attributes in found.elements:
        assert not [name for name in attributes if name.startswith("on") or name in {"src", "srcset", "style"}]
        assert (attributes.get("href") or "#").startswith("#")
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert "@import" not in text
    policy = next(one for _, one in found.elements if one.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_every_chart_has_a_table_below_it_and_a_label_for_screen_readers() -> None:
    found = made()
    drawn = [attributes for tag, attributes in found.elements if tag == "svg" and attributes.get("role") == "img"]
    assert len(drawn) == 3
    assert all(attributes["aria-label"] for attributes in drawn)
    order = [tag for tag, _ in found.elements if tag in {"figure", "table", "section"}]
    assert re.findall("figure,table", ",".join(order)) == ["figure,table"] * 3


def test_findings_reasons_and_actions_are_shown() -> None:
    finding = Finding("no-room", Severity.PROBLEM, {"left": None}, "It is full.", ("a & b", "c"))
    verdict = Verdict((finding,), ("a", "b"), (("units", Unknown("no D-Bus")),))
    record = recorded(days=1)._replace(entries=(entry(NOW_US), entry(NOW_US, reason=Reason.IN_USE)))
    said = " ".join(made(evidence(record=record), verdict).words)
    reasons = [reason.sentence for reason in (entry(NOW_US).outcome.reason, Reason.IN_USE)]
    wanted = ["no-room", "It is full.", "a & b\nc", "2 checks passed, 1 could", *reasons]
    assert [words for words in wanted if words not in said] == []


def test_each_missing_part_is_unknown_with_the_reason() -> None:
    said = " ".join(made(nothing()).words)
    assert said.count("Unknown: only root may read it.") == 5
    assert "could not be examined: only root may read it" in said


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_words_are_text_and_short(hostile: str) -> None:
    known = journal()
    record = recorded(days=2)
    bad = entry(NOW_US - HOUR_US, path=f"/var/log/journal/{hostile}", result=Result.FAILED, detail=hostile)
    finding = Finding("waits", Severity.PROBLEM, {"units": [hostile], hostile: 5}, hostile, (hostile,))
    some = evidence(
        journal=known._replace(intake=(*known.intake, Intake(NOW_US, 9_999_999, hostile))),
        record=record._replace(entries=(*record.entries, bad)),
        units=Unknown(hostile),
    )
    verdict = Verdict((finding,), (), (("units", Unknown(hostile)),))
    text = render_page(some, verdict, hostile)
    found = Parsed(text)
    assert found.tags == made(verdict=Verdict((finding,), (), (("a", Unknown("b")),))).tags
    assert not any("onerror" in attributes for _, attributes in found.elements)
    assert "<script" not in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "u" * 700 not in text
    text.encode("utf-8")


def test_five_years_of_a_busy_host_fit() -> None:
    record = recorded(days=1)
    entries = tuple(
        entry(NOW_US - number * HOUR_US, path=f"{ACTIVE}{'&' * 300}{number}", result=Result.FAILED, detail="&" * 900)
        for number in range(5 * 365 * 24)
    )
    boots = tuple(Boot("", NOW_US - number * DAY_US, 10**6, 10**5) for number in range(1825))
    some = evidence(record=record._replace(entries=entries[::-1]), journal=journal()._replace(boots=boots))
    said = " ".join(made(some).words)
    assert "of 43,800 actions" in said


# the head


def head(some: Evidence, verdict: Verdict = NOTHING_FOUND) -> str:
    text = render_page(some, verdict, "debian")
    return " ".join(Parsed(text[text.index('<ul class="head">') : text.index("<nav")]).words)


def test_the_page_begins_with_the_verdict_the_saving_and_the_boots() -> None:
    known = Counters(extents_removed=31_415, bytes_reclaimed=3 << 29, unmeasured=1, since_us=NOW_US - 9 * DAY_US)
    said = head(evidence(record=recorded()._replace(counters=known)))
    assert "1 check passed." in said
    assert "at least 1.5 GiB on disk and 31,415 extents since 2023-11-05" in said
    assert re.search(r"Before journalkeeper a boot took [\d.]+s .* since then 1\.\d+s", said)


def test_the_first_problem_is_the_verdict() -> None:
    one = Finding("no-room", Severity.PROBLEM, {}, "It is full.", ())
    advice = one._replace(severity=Severity.ADVICE, sentence="It is slow.")
    assert "It is full. 1 more problem below." in head(evidence(), Verdict((one, one, advice), (), ()))
    assert "1 check passed, 1 suggestion below." in head(evidence(), Verdict((advice,), ("a",), ()))


@pytest.mark.parametrize("counters", [None, Counters(), Counters(bytes_reclaimed=0)])
def test_a_saving_that_is_not_known_is_left_out(counters: Counters | None) -> None:
    assert "Saved" not in head(evidence(record=recorded()._replace(counters=counters)))


def test_the_boots_since_the_installation_count_also_where_older_rows_are_pruned() -> None:
    """The oldest row of the history is from yesterday, and the installation was nine days ago."""
    known = recorded(days=1)._replace(counters=Counters(since_us=NOW_US - 9 * DAY_US - HOUR_US))
    assert "in the median of 8 boots." in head(evidence(record=known))


def test_every_action_has_its_disk_bytes_before_and_after() -> None:
    record = recorded(days=1)._replace(entries=(entry(NOW_US - HOUR_US), entry(NOW_US, disk_bytes_before=None)))
    said = " ".join(" ".join(made(evidence(record=record)).words).split())
    assert "/system.journal: 40 MiB to 5 MiB on disk, 2,110 to 40 extents" in said
    assert "/system.journal: 2,110 to 40 extents" in said
