# SPDX-License-Identifier: LGPL-2.1-or-later
"""The charts' drawing: scales, gaps, marks, hostile words, and bytes that do not grow with the data."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from journalkeeper.report import svg

BOX = svg.Boxes("flush", ((0.1, 0, 0.9, 5, "a boot"),))


def chart(*layers: svg.Boxes | svg.Line | svg.Ticks | svg.Words, high: float = 10, width: float = 10) -> svg.Chart:
    panel = svg.Panel("seconds", high, lambda number: f"{number:g} s", layers)
    return svg.Chart("about", 0, width, (panel,), ((0, "first"), (width, "last")))


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)  # noqa: S314 - made by us


@pytest.mark.parametrize(
    ("high", "binary", "expected"),
    [
        (41.5, False, [0, 20, 40, 60]),
        (40, False, [0, 10, 20, 30, 40]),
        (0.09, False, [0, 0.05, 0.1]),
        (1, False, [0, 0.5, 1.0]),
        (0, False, [0]),
        (300, True, [0, 128, 256, 384]),
        (1, True, [0, 1]),
    ],
)
def test_labels_are_round_numbers_that_reach_the_highest(high: float, binary: bool, expected: list[float]) -> None:
    assert svg.steps(high, 4, binary=binary) == pytest.approx(expected)


def test_a_box_stands_on_the_floor_as_high_as_its_number() -> None:
    (box,) = list(parsed(svg.draw(chart(BOX), 360)).iter("rect"))
    top, height = float(box.attrib["y"]), float(box.attrib["height"])
    assert height == pytest.approx(60, abs=0.1)  # 5 of 10, of 120
    assert top + height == pytest.approx(svg.TITLE + 120, abs=0.1)


@pytest.mark.parametrize("number", [-5.0, -0.001, 0.0])
def test_nothing_is_drawn_below_the_floor(number: float) -> None:
    drawn = svg.draw(chart(svg.Boxes("flush", ((0, 0, 1, number, ""),))), 360)
    assert [float(one.attrib["height"]) for one in parsed(drawn).iter("rect")] == [0]


def path(drawn: str, css: str) -> str:
    return next(one.attrib["d"] for one in parsed(drawn).iter("path") if one.attrib["class"] == css)


def test_a_line_has_a_gap_where_nothing_is_known() -> None:
    drawn = path(svg.draw(chart(svg.Line("extents", ((0, 1), (2, 3), (4, None), (6, 2)))), 360), "extents")
    assert drawn.count("M") == 2


def test_a_line_keeps_its_peaks_and_not_its_points() -> None:
    points = tuple((float(number), 9.0 if number == 60_001 else 1.0) for number in range(100_000))
    drawn = path(svg.draw(chart(svg.Line("extents", points), width=100_000), 360), "extents")
    assert len(drawn) < 20_000
    highest = min(float(number) for number in re.findall(r"V([\d.]+)", drawn))
    assert highest == pytest.approx(svg.TITLE + 120 * 0.1, abs=1)


def test_words_are_escaped() -> None:
    hostile = '</text></svg><script>alert("1")</script>'
    whole = chart(svg.Words("gap", ((1, hostile),)), svg.Boxes("flush", ((0, 0, 1, 1, hostile),)))
    whole = whole._replace(about=hostile, labels=((0, hostile),), marks=((1, hostile),))
    root = parsed(svg.draw(whole, 360))
    assert {one.tag for one in root.iter()} == {"svg", "text", "path", "g", "rect", "title"}
    assert root.attrib["aria-label"] == hostile


@pytest.mark.parametrize("width", [360, 900])
def test_labels_of_the_axis_do_not_touch(width: int) -> None:
    labels = tuple((float(number), f"2026-11-{number:02}") for number in range(1, 31))
    root = parsed(svg.draw(chart(BOX, width=30)._replace(labels=labels), width))
    places = [float(one.attrib["x"]) for one in root.iter("text") if (one.text or "").startswith("2026")]
    assert len(places) >= 3
    assert min(after - before for before, after in itertools.pairwise(places)) > 10 * 5.5
    assert places[0] > 30
    assert places[-1] < width - 30


def test_every_layer_of_a_key_has_a_picture() -> None:
    for layer in (BOX, svg.Line("ideal", ()), svg.Ticks("rewrites", ())):
        assert layer.css in svg.swatch(layer)
        parsed(svg.swatch(layer))


def test_drawing_is_at_most_200_lines() -> None:
    assert Path(svg.__file__).read_text().count("\n") <= 200
