# SPDX-License-Identifier: LGPL-2.1-or-later
"""The three charts of small histories: their columns, their notes on missing data, and wrong clocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from journalkeeper.health.evidence import Boot, Evidence, Intake, Journal, Recorded
from journalkeeper.model import Extents, Reason, Result
from journalkeeper.model.run import Counters, HistoryEntry, Totals
from journalkeeper.model.units import DAY_US, HOUR_US
from journalkeeper.report import charts
from journalkeeper.report.charts import FIRST_US, LEAST_BARS, MOST_ROWS, Chart, Figure, Layer
from tests.evidence import look
from tests.hosts import NOW_US
from tests.report_data import entry, file

MS = 1000
LATER_US = NOW_US + 30 * DAY_US


def boot(number: int, **changes: object) -> Boot:
    row = Boot(f"{number:032x}", NOW_US + (number - charts.MOST_BOOTS) * DAY_US, 2_000_000, 500_000)
    return row._replace(**changes)  # type: ignore[arg-type]


def draw(title: str, evidence: Evidence) -> Figure:
    return charts.draw_all(evidence)[title]


def boots(known: Sequence[Boot], since_us: int | None = None) -> Figure:
    record = Recorded((), (), None, (), counters=Counters(since_us=since_us))
    return draw("Boots", Evidence(NOW_US, journal=Journal(0, None, True, boots=tuple(known)), record=record))


def drawn(figure: Figure) -> Chart:
    assert figure.chart is not None
    return figure.chart


def heights(figure: Figure, css: str) -> list[float]:
    """Return the known heights of a layer."""
    (layer,) = (layer for layer in drawn(figure).layers if layer.css == css)
    assert len(layer.heights) == len(drawn(figure).times)
    return [height for height in layer.heights if height is not None]


def reach(figure: Figure) -> tuple[Any, Any]:
    """Return the beginning of the first and of the last column."""
    return drawn(figure).times[0], drawn(figure).times[-1]


def cells(figure: Figure) -> list[tuple[str, ...]]:
    assert figure.table is not None
    return list(figure.table.rows)


# the drawing


@pytest.mark.parametrize(
    ("high", "unit", "expected"),
    [
        (40, "", ["0", "10", "20", "30", "40"]),
        (0.09, " s", ["0 s", "0.05 s", "0.1 s"]),
        (0, "", ["0"]),
        (11_984, "", ["0", "5,000", "10,000", "15,000"]),
    ],
)
def test_levels_are_round_numbers_that_reach_the_highest(high: float, unit: str, expected: list[str]) -> None:
    assert [text for _, text in charts._choose_levels(high, unit)] == expected


SCALE = Chart(range(5), ((0, "0"), (10, "10")), (Layer("", "", (), bars=True), Layer("", "", ())))


def test_a_line_has_a_gap_where_nothing_is_known_and_stays_in_the_chart() -> None:
    assert SCALE.make_path(Layer("", "", (1, 3, None, None, 2, 11, -5))) == "M0 144H1V112H2M4 128H5V0H6V160H7"


@pytest.mark.parametrize(
    ("times", "labels"),
    [
        ([NOW_US], ["11-14 22:13"]),
        (range(NOW_US, NOW_US + 7 * HOUR_US, HOUR_US), ["22:13", "00:13", "02:13", "04:13"]),
        (range(NOW_US, NOW_US + 7 * DAY_US, DAY_US), ["2023-11-14", "11-16", "11-18", "11-20"]),
    ],
)
def test_an_axis_has_few_labels_with_the_day_or_the_hour(times: Sequence[int], labels: list[str]) -> None:
    found = SCALE._replace(times=times).labels
    assert [text[-len(label) :] for (_, _, text), label in zip(found, labels, strict=True)] == labels
    assert [x for x, _, _ in found] == ([50.0] if len(labels) == 1 else [7.14, 35.71, 64.29, 92.86])


@pytest.mark.parametrize(
    ("number", "columns", "classes"),
    [(1, LEAST_BARS, ["first"]), (LEAST_BARS + 1, 13, ["first", "inner", "inner", "last"])],
)
def test_a_single_boot_is_no_giant_bar(number: int, columns: int, classes: list[str]) -> None:
    chart = drawn(boots([boot(day) for day in range(number)]))
    assert (chart.columns, [css.split()[1] for _, css, _ in chart.labels]) == (columns, classes)


# boots


def test_each_boot_has_its_seconds_and_one_without_its_finish_message_is_a_gap() -> None:
    silent, slow = boot(2, userspace_us=None, flush_us=None), boot(0, userspace_us=41_500_000, flush_us=25_000_000)
    figure = boots([silent, boot(1), slow])
    assert heights(figure, "userspace") == [41.5, 2.0]
    assert heights(figure, "flush") == [25.0, 0.5]
    assert [row[1:] for row in cells(figure)] == [("unknown", "unknown"), ("2s", "500ms"), ("41.5s", "25s")]
    assert figure.notes[0].startswith("1 boot has no “Startup finished” message")


@pytest.mark.parametrize(
    ("times_s", "before", "since"),
    [
        ([10, None, 20, 2, 4, None], "15s in the median of 2 boots", "3s in the median of 2 boots"),
        ([10, 30, None, 2, None, None], "20s in the median of 2 boots", "2s in the median of 1 boot"),
    ],
)
def test_the_first_day_is_marked_and_medians_leave_gaps_out(times_s: list[int | None], before: str, since: str) -> None:
    known = [boot(n, userspace_us=None if time_s is None else time_s * 1_000_000) for n, time_s in enumerate(times_s)]
    figure = boots(known, boot(3).when_us - HOUR_US)
    assert (drawn(figure).mark or ())[:1] == (3,)
    assert before in figure.summary
    assert since in figure.summary


def test_the_newest_boots_are_shown() -> None:
    figure = boots([boot(number) for number in range(charts.MOST_BOOTS + 1)])
    assert reach(figure) == (boot(1).when_us, NOW_US)
    assert figure.table is not None
    assert figure.table.caption == f"The newest {MOST_ROWS} of {charts.MOST_BOOTS + 1} boots"


@pytest.mark.parametrize("since", [boot(-1).when_us, boot(2).when_us])
def test_no_first_day_between_the_boots_is_no_mark(since: int) -> None:
    assert drawn(boots([boot(0), boot(1)], since)).mark is None


# extents


def extents(totals: Sequence[Totals], *entries: HistoryEntry, now_us: int = LATER_US) -> Figure:
    return draw("Extents", Evidence(now_us, record=Recorded(entries, tuple(totals), None, ())))


def moment(when_us: int, instance: str, extents: int, size: int = 100 << 20) -> Totals:
    return Totals(when_us, instance, 2, extents, 10, extents, size, size)


def test_sums_are_over_all_instances_as_last_noted() -> None:
    rows = [moment(3, "b", 5), moment(1, "a", 100), moment(5, "a", 40)]
    assert [(one.when_us, one.extents) for one in charts.sum_instances(rows)] == [(1, 100), (3, 105), (5, 45)]


def test_a_rewrite_is_a_tick_and_a_failure_is_none() -> None:
    rows = [moment(NOW_US, "a", 900), moment(NOW_US + DAY_US, "a", 100)]
    figure = extents(rows, entry(NOW_US + HOUR_US), entry(NOW_US + 2 * HOUR_US, result=Result.FAILED))
    assert len(heights(figure, "rewrites")) == 1
    assert "100 extents" in figure.summary


def test_ten_thousand_notes_are_thinned_and_keep_their_peaks_and_the_newest() -> None:
    rows = [moment(NOW_US + number, "a", number % 90) for number in range(10_000)]
    rows[5_000] = rows[5_000]._replace(extents=900)
    figure = extents(rows)
    assert len(cells(figure)) == MOST_ROWS
    assert cells(figure)[0][1] == str(9_999 % 90)
    assert len(heights(figure, "extents")) <= charts.MOST_SPANS
    assert heights(figure, "extents").count(900) == 1


def test_the_chart_ends_with_the_files_as_they_are_now() -> None:
    record = Recorded((), (moment(NOW_US - DAY_US, "a", 2928),), None, ())
    seen = look(file(), file(extents=Extents(total=8, data_bytes=1 << 20)), file(problem=Reason.VANISHED))
    figure = draw("Extents", Evidence(NOW_US, seen, record=record))
    assert figure.summary.startswith("6,000 extents at ")
    assert cells(figure)[0][1:] == ("6,000", "2", "6,000", "2")
    assert reach(figure) == (NOW_US - DAY_US, pytest.approx(NOW_US, abs=DAY_US / charts.MOST_SPANS))
    assert heights(figure, "extents") == [2928] * (len(drawn(figure).times) - 1) + [6000]


@pytest.mark.parametrize("wrong_us", [0, FIRST_US - 1, NOW_US + 2 * HOUR_US, 1 << 62])
def test_notes_of_a_clock_that_was_wrong_do_not_stretch_the_axis_and_are_said(wrong_us: int) -> None:
    rows = (moment(NOW_US - HOUR_US, "a", 5), moment(NOW_US, "a", 6), moment(wrong_us, "a", 7))
    figure = extents(rows, entry(wrong_us), now_us=NOW_US)
    assert reach(figure) == (NOW_US - HOUR_US, pytest.approx(NOW_US, abs=HOUR_US / charts.MOST_SPANS))
    assert figure.notes == ("1 note dated before 2011 or after now by a wrong clock, left out.",)
    taken = [Intake(wrong_us, 7, ""), Intake(NOW_US, 7, "")]
    assert "left out." in intake(taken).notes[-1]
    dated = boots([boot(0, when_us=wrong_us), boot(1), boot(2)])
    assert reach(dated) == (boot(1).when_us, boot(2).when_us)
    assert "1 boot dated before 2011" in dated.notes[-1]


# intake


def intake(taken: list[Intake], *, complete: bool = True) -> Figure:
    return draw("Intake delay", Evidence(NOW_US, journal=Journal(len(taken), NOW_US, complete, tuple(taken))))


def test_the_lines_are_the_median_the_p99_and_the_longest_wait_of_each_span() -> None:
    """A wait of 100 ms is 4 powers of ten above the axis, which begins at 10 us."""
    taken = [Intake(NOW_US + at * 100 * MS, 100 if at % 100 else 100 * MS, "a") for at in range(12_000)]
    taken[5_050] = taken[5_050]._replace(wait_us=10_000 * MS, unit="slow.service")
    figure = intake(taken)
    assert "Of 12,000 messages, 99 in 100 waited at most 100ms, the longest 10s." in figure.summary
    assert heights(figure, "p50") == [1.0] * 120
    assert {*heights(figure, "p99")} == {1.0, 4.0}
    assert heights(figure, "worst").count(6.0) == 1
    assert max(heights(figure, "worst")) == 6.0
    assert drawn(figure).levels[-1] == (6, "10s")
    assert next(row for row in cells(figure) if row[-1] == "slow.service")[4] == "10s"
    assert sum(int(row[1].replace(",", "")) for row in cells(figure)) == 12_000


def test_a_span_without_a_message_is_a_gap_and_the_axis_ends_with_the_data() -> None:
    taken = [Intake(NOW_US - 5 * HOUR_US, 9, ""), Intake(NOW_US - HOUR_US, 5 * MS, "")]
    figure = intake(taken)
    assert reach(figure) == (NOW_US - 5 * HOUR_US, pytest.approx(NOW_US - HOUR_US, abs=HOUR_US))
    assert heights(figure, "p50") == [0.0, pytest.approx(2.7, abs=0.1)]
    assert len(cells(figure)) == 2
    assert ["read back to" in " ".join(intake(taken, complete=whole).notes) for whole in (False, True)] == [True, False]


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        (boots([]), "The journal contains no boot with a plausible date."),
        (boots([boot(0, userspace_us=None, flush_us=None)]), "None of 1 boot has a message with its duration."),
        (extents(()), "The history has no counts: "),
        (intake([]), "No message in the journal has a plausible time"),
        (intake([Intake(NOW_US, 59_919, "")]), "Of 1 message, 99 in 100 waited at most 59.9ms, the longest 59.9ms."),
        (intake([Intake(NOW_US, 1_234, "")]), "Of 1 message, 99 in 100 waited at most 1.23ms, "),
    ],
)
def test_missing_data_is_said_and_a_wait_has_three_digits(figure: Figure, said: str) -> None:
    assert figure.summary.startswith(said)
