# SPDX-License-Identifier: LGPL-2.1-or-later
"""The four charts on small records: what they say, what they leave out and tell, and what clocks do to them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from journalkeeper.health.evidence import Boot, Intake, Journal, Recorded
from journalkeeper.model import Extents, Result
from journalkeeper.model.recorded import Entry, Sample, Totals
from journalkeeper.model.units import DAY_US, HOUR_US, format_span
from journalkeeper.report import charts, growth, svg
from journalkeeper.report.figure import FIRST_US, MOST_ROWS, Figure
from tests.report_data import ACTIVE, NOW_US, entry, file, journal, recorded

MS = 1000
LATER_US = NOW_US + 30 * DAY_US


def boot(number: int, **changes: object) -> Boot:
    row = Boot(f"{number:032x}", NOW_US + number * DAY_US, None, 2_000_000, 500_000)
    return row._replace(**changes)  # type: ignore[arg-type]


def boots(
    known: Sequence[Boot], samples: Sequence[Sample] = (), since_us: int | None = None, *entries: Entry
) -> Figure:
    return charts.boots(known, Recorded(since_us, entries, tuple(samples), (), None, ()))


def drawn(figure: Figure) -> svg.Chart:
    assert figure.chart is not None
    return figure.chart


def boxes(figure: Figure, css: str) -> tuple[tuple[float, float, float, float, str], ...]:
    layers = [layer for panel in drawn(figure).panels for layer in panel.layers]
    return next(layer.boxes for layer in layers if isinstance(layer, svg.Boxes) and layer.css == css)


def heights(figure: Figure, css: str) -> list[float]:
    return [box[3] for box in boxes(figure, css)]


def cells(figure: Figure) -> list[tuple[str, ...]]:
    assert figure.table is not None
    return list(figure.table.rows)


# boots


def test_each_boot_has_its_seconds_and_the_extents_it_found() -> None:
    samples = [Sample(boot(1).first_us - 5, ACTIVE, 800, 1, 0, 0), Sample(boot(1).first_us - 9, ACTIVE, 1, 1, 0, 0)]
    figure = boots([boot(1), boot(0, userspace_us=41_500_000, flush_us=25_000_000)], samples, None)
    assert heights(figure, "userspace") == [41.5, 2.0]
    assert heights(figure, "flush") == [25.0, 0.5]
    assert heights(figure, "extents") == [800]
    assert [row[1:] for row in cells(figure)] == [("2.0s", "0.5s", "800"), ("41.5s", "25.0s", "unknown")]


def test_the_extents_of_several_active_files_add_up_as_of_the_boot() -> None:
    at = boot(0).first_us
    samples = [Sample(at - 9, "a", 100, 1, 0, 0), Sample(at - 8, "b", 50, 1, 0, 0), Sample(at - 7, "a", 20, 1, 0, 0)]
    late = Sample(at + 1, "a", 999, 1, 0, 0)
    assert heights(boots([boot(0)], [*samples, late], None), "extents") == [70]


def test_what_an_action_left_is_what_the_next_boot_found() -> None:
    at = boot(0).first_us
    noted = Sample(at - 9, ACTIVE, 800, 1, 0, 0)
    rotated = entry(at - 5, extents_before=800, extents_after=2)
    failed = entry(at - 4, extents_after=700, result=Result.FAILED)
    archive = entry(at - 3, f"{ACTIVE[:-8]}@1.journal", extents_after=500)
    assert heights(boots([boot(0)], [noted], None, rotated, failed, archive), "extents") == [2]
    assert heights(charts.boots([boot(0)], None), "userspace") == [2.0]


@pytest.mark.parametrize("userspace_us", [None, -1, -5_000_000])
def test_a_boot_without_its_finish_message_is_a_gap_and_said(userspace_us: int | None) -> None:
    figure = boots([boot(0), boot(1, userspace_us=userspace_us, flush_us=None)], (), None)
    assert len(heights(figure, "userspace")) == 1
    assert cells(figure)[0][1:3] == ("unknown", "unknown")
    assert "1 boot shown as “?” has no" in " ".join(figure.notes)
    assert any(isinstance(layer, svg.Words) and layer.words for layer in drawn(figure).panels[0].layers)


@pytest.mark.parametrize(
    ("times_s", "before", "since"),
    [
        ([10, 30, 20, 2, 1, 3], "20.0s in the median of 3 boots", "2.0s in the median of 3 boots"),
        ([10, None, 20, 2, 4, None], "15.0s in the median of 2 boots", "3.0s in the median of 2 boots"),
        ([10, 30, -1, 2, None, None], "20.0s in the median of 2 boots", "2.0s in the median of 1 boot"),
    ],
)
def test_the_first_day_is_marked_and_medians_are_of_boots_with_a_time(
    times_s: list[int | None], before: str, since: str
) -> None:
    known = [boot(n, userspace_us=None if time_s is None else time_s * 1_000_000) for n, time_s in enumerate(times_s)]
    figure = boots(known, (), boot(3).first_us - HOUR_US)
    assert [place for place, _ in drawn(figure).marks] == [3.0]
    assert before in figure.said
    assert since in figure.said


@pytest.mark.parametrize("since", [None, NOW_US - DAY_US, NOW_US + 90 * DAY_US])
def test_no_first_day_between_the_boots_is_no_mark(since: int | None) -> None:
    figure = boots([boot(0), boot(1)], (), since)
    assert not drawn(figure).marks


def test_journald_itself_says_how_long_a_flush_took_where_the_unit_does_not() -> None:
    figure = boots([boot(0, flush_us=None, said_flush_us=9_000)], (), None)
    assert heights(figure, "flush") == [0.009]


def test_the_newest_boots_are_shown_and_the_others_are_said() -> None:
    figure = boots([boot(number) for number in range(charts.MOST_BOOTS + 1)], (), None)
    assert len(heights(figure, "userspace")) == charts.MOST_BOOTS
    assert f"The newest {charts.MOST_BOOTS} of {charts.MOST_BOOTS + 1} boots" in " ".join(figure.notes)


def test_no_boots_at_all_is_said() -> None:
    assert boots((), (), None).chart is None


# extents and bytes


def extents(totals: list[Totals], *entries: Entry) -> Figure:
    return growth.growth(Recorded(None, entries, (), tuple(totals), None, ()), (), LATER_US)[0]


def sizes(record: Recorded, disk_bytes: int | None) -> Figure:
    return growth.growth(record, (file(disk_bytes=disk_bytes),), NOW_US)[1]


def moment(when_us: int, instance: str, extents: int, size: int = 100 << 20) -> Totals:
    return Totals(when_us, instance, 2, extents, 10, extents, size, size)


def test_sums_are_over_all_instances_as_last_noted() -> None:
    rows = [moment(3, "b", 5), moment(1, "a", 100), moment(5, "a", 40)]
    assert [(one.when_us, one.extents) for one in growth.sum_instances(rows)] == [(1, 100), (3, 105), (5, 45)]


def test_a_rewrite_is_a_tick_and_a_failure_is_none() -> None:
    rows = [moment(NOW_US, "a", 900), moment(NOW_US + DAY_US, "a", 100)]
    done = entry(NOW_US + HOUR_US)
    failed = entry(NOW_US + 2 * HOUR_US, result=Result.FAILED)
    figure = extents(rows, done, failed)
    (ticks,) = (layer for layer in drawn(figure).panels[0].layers if isinstance(layer, svg.Ticks))
    assert ticks.places == (NOW_US + HOUR_US,)
    assert "100 extents" in figure.said


def test_ten_thousand_notes_keep_their_peak_and_their_last() -> None:
    rows = [moment(NOW_US + number, "a", 7000 if number == 4321 else number % 90) for number in range(10_000)]
    figure = extents(rows)
    (_, line, _) = drawn(figure).panels[0].layers
    assert isinstance(line, svg.Line)
    assert len(line.points) <= 2 * growth.MOST_POINTS
    assert max(height or 0 for _, height in line.points) == 7000
    assert line.points[-1] == (NOW_US + 9999, 9999 % 90)
    assert list(line.points) == sorted(line.points)
    assert len(cells(figure)) <= MOST_ROWS


def test_the_charts_end_with_the_files_as_they_are_now() -> None:
    record = Recorded(None, (), (), (moment(NOW_US - DAY_US, "a", 2928),), None, ())
    extents, sizes = growth.growth(record, (file(), file(extents=Extents(total=8, data_bytes=1 << 20))), NOW_US)
    assert extents.said.startswith("6,000 extents at ")
    assert cells(extents)[0][1:] == ("6,000", "2", "6,000", "2")
    assert sizes.said.startswith("64.0M logged")
    assert (drawn(extents).low, drawn(extents).high) == (NOW_US - DAY_US, NOW_US)


def test_what_was_written_is_by_day_and_the_table_counts_all_of_it() -> None:
    record = recorded(days=10)
    figure = sizes(record, 70 << 20)
    written = sum(one.outcome.bytes_written for one in record.entries)
    assert sum(heights(figure, "written")) == written
    assert heights(figure, "disk") == [70 << 20]
    assert "70.0M on disk" in figure.said
    rows = sum(int(float(row[3].rstrip("MB"))) << 20 for row in cells(figure))
    assert rows == written


def test_disk_bytes_that_nobody_may_ask_are_unknown_and_not_nothing() -> None:
    figure = sizes(recorded(days=2), None)
    assert "on disk unknown" in figure.said
    assert "on disk, now" not in [name for _, name in figure.key]


def test_a_single_note_is_drawn() -> None:
    record = Recorded(NOW_US, (), (), (moment(NOW_US, "a", 5),), None, ())
    for figure in growth.growth(record, (), NOW_US):
        assert svg.draw(drawn(figure), 360)


@pytest.mark.parametrize("wrong_us", [0, FIRST_US - 1, NOW_US + 2 * HOUR_US, 1 << 62])
def test_notes_of_a_clock_that_was_wrong_do_not_stretch_the_axis_and_are_said(wrong_us: int) -> None:
    rows = (moment(NOW_US - HOUR_US, "a", 5), moment(NOW_US, "a", 6), moment(wrong_us, "a", 7))
    wrong = entry(wrong_us)
    for figure in growth.growth(Recorded(0, (wrong,), (), rows, None, ()), (), NOW_US):
        assert (drawn(figure).low, drawn(figure).high) == (NOW_US - HOUR_US, NOW_US)
        assert figure.notes == ("1 note dated before 2011 or after now by a wrong clock, left out.",)
    taken = [Intake(wrong_us, 7, ""), Intake(NOW_US, 7, "")]
    assert "left out." in intake(taken).notes[-1]


def test_an_empty_record_is_said() -> None:
    for figure in growth.growth(Recorded(None, (), (), (), None, ()), (), NOW_US):
        assert figure.chart is None
        assert figure.said.startswith("The history is empty")


# intake


def intake(taken: list[Intake], *, oldest_us: int | None = None, complete: bool = True) -> Figure:
    return charts.intake(Journal(len(taken), oldest_us, complete, tuple(taken)), NOW_US)


def lines(figure: Figure) -> dict[str, tuple[tuple[float, float | None], ...]]:
    (panel,) = drawn(figure).panels
    return {layer.css: layer.points for layer in panel.layers if isinstance(layer, svg.Line)}


def test_the_lines_are_the_median_the_p99_and_the_longest_wait_of_each_span() -> None:
    """A wait of 100 ms is 4 powers of ten above the axis, which begins at 10 us."""
    taken = [Intake(NOW_US + at * 100 * MS, 100 if at % 100 else 100 * MS, "a") for at in range(12_000)]
    taken[5_050] = taken[5_050]._replace(wait_us=10_000 * MS, unit="slow.service")
    figure = intake(taken)
    found = lines(figure)
    assert {level for _, level in found["p50"]} == {1.0}
    assert {level for _, level in found["p99"]} == {1.0, 4.0}
    assert [level for _, level in found["worst"]].count(6.0) == 1
    assert max(level or 0 for _, level in found["worst"]) == 6.0
    assert len(found["p50"]) == charts.MOST_SPANS
    assert next(row for row in cells(figure) if row[-1] == "slow.service")[4] == "10s"
    assert sum(int(row[1].replace(",", "")) for row in cells(figure)) == 12_000


def test_a_span_without_a_message_is_a_gap_and_the_axis_ends_with_the_data() -> None:
    taken = [Intake(NOW_US - 5 * HOUR_US, 9, ""), Intake(NOW_US - HOUR_US, 5 * MS, "")]
    figure = intake(taken)
    assert (drawn(figure).low, drawn(figure).high) == (NOW_US - 5 * HOUR_US, NOW_US - HOUR_US)
    known = [level for _, level in lines(figure)["p50"] if level is not None]
    assert len(known) == 2
    assert known[0] == 0.0
    assert len(cells(figure)) == 2


def test_p99_equals_a_count_by_hand_of_10000_entries() -> None:
    random_ = random.Random(3)  # noqa: S311 - the same numbers each time
    waits = [int(random_.lognormvariate(6, 2)) for _ in range(10_000)]
    taken = [Intake(NOW_US + number * 1000, wait, "a.service") for number, wait in enumerate(waits)]
    p99 = sorted(waits)[9_899]
    assert sum(wait <= p99 for wait in waits) >= 9_900 > sum(wait < p99 for wait in waits)
    assert f"99 in 100 waited at most {format_span(p99, 1)}" in intake(taken).said


def test_a_clock_that_was_set_back_makes_no_negative_wait_and_is_said() -> None:
    taken = [Intake(NOW_US, 5 * MS, "a"), Intake(NOW_US, -3_600_000_000, "b")]
    figure = intake(taken)
    assert "Of 1 message," in figure.said
    assert "1 message left out: received before being sent" in " ".join(figure.notes)


def test_where_the_journal_was_not_read_to_its_beginning_is_said() -> None:
    known = journal()
    assert "read back to" in " ".join(charts.intake(known, NOW_US).notes)
    assert "read back to" not in " ".join(charts.intake(known._replace(complete=True), NOW_US).notes)


def test_no_message_with_a_time_is_said() -> None:
    assert intake([]).chart is None
