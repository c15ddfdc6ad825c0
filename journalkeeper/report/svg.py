# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts as SVG text: panels above each other that share an axis of time.

Colours are classes of the page's style sheet. Coordinates have one decimal. A line is thinned to three points for each
unit of width and keeps its peaks, so a chart's size does not grow with the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from itertools import groupby
from math import ceil, log10
from typing import Final, NamedTuple

LEFT: Final = 58
RIGHT: Final = 12
TITLE: Final = 20
FOOT: Final = 22
GAP: Final = 14
MARK: Final = 16
LETTER: Final = 6.6
"""Lengths of the view box: LEFT of the panels, TITLE above each, FOOT for the axis, GAP between, and a
LETTER's width.
"""


class Boxes(NamedTuple):
    """Rectangles from (x0, y0) to (x1, y1) in the panel's numbers, each with a tooltip, or ""."""

    css: str
    boxes: tuple[tuple[float, float, float, float, str], ...]


class Line(NamedTuple):
    """A stepped line: each (x, y) holds until the next; a y of None is a gap."""

    css: str
    points: tuple[tuple[float, float | None], ...]


class Ticks(NamedTuple):
    """Short vertical lines at the bottom of the panel."""

    css: str
    places: tuple[float, ...]


class Words(NamedTuple):
    """Words at the bottom of the panel: ((x, text), ...)."""

    css: str
    words: tuple[tuple[float, str], ...]


Layer = Boxes | Line | Ticks | Words


class Panel(NamedTuple):
    """An axis from 0 to at least `high`. Labels come from `unit`, at powers of two if `binary`, or from `labels`."""

    title: str
    high: float
    unit: Callable[[float], str]
    layers: tuple[Layer, ...]
    height: int = 120
    binary: bool = False
    labels: tuple[tuple[float, str], ...] = ()


class Chart(NamedTuple):
    """Panels over one axis from `low` to `high`, its labels ((x, text), ...), marks, and a summary."""

    about: str
    low: float
    high: float
    panels: tuple[Panel, ...]
    labels: tuple[tuple[float, str], ...]
    marks: tuple[tuple[float, str], ...] = ()


class _Scale(NamedTuple):
    """A linear map from numbers to coordinates."""

    low: float
    high: float
    first: float
    last: float

    def at(self, number: float) -> float:
        """Return the coordinate of a number; a number outside of the scale is put at its edge."""
        share = (min(max(number, self.low), self.high) - self.low) / ((self.high - self.low) or 1)
        return self.first + share * (self.last - self.first)


def steps(high: float, most: int, *, binary: bool = False) -> list[float]:
    """Return about `most` round numbers from 0 to at least `high`: multiples of 1, 2, 5 times 10^n, or of 2^n."""
    step = max(high, 1e-6) / most
    if binary:
        size = 1.0
        while size < step:
            size *= 2
    else:
        power = 10.0 ** (ceil(log10(step)) - 1)
        size = next(power * times for times in (1, 2, 5, 10) if power * times >= step * 0.999)
    return [number * size for number in range(ceil(high / size - 1e-9) + 1)]


def draw(chart: Chart, width: int) -> str:
    """Return the chart as an <svg> element with a view box of this width; it scales with the page."""
    top = MARK if chart.marks else 0
    height = top + sum(TITLE + panel.height + GAP for panel in chart.panels) - GAP + FOOT
    across = _Scale(chart.low, chart.high, LEFT, width - RIGHT)
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(chart.about)}">']
    for x, words in chart.marks:
        at, side = _short(across.at(x)), "end" if across.at(x) > width / 2 else "start"
        parts.append(f'<path class="mark" d="M{at} {top}V{height - FOOT}"/>')
        parts.append(f'<text class="marked" x="{at}" y="{MARK - 4}" text-anchor="{side}">{escape(words)}</text>')
    place = top
    for panel in chart.panels:
        parts += _panel(panel, across, place + TITLE)
        place += TITLE + panel.height + GAP
    return "".join([*parts, *_axis(chart.labels, across, height), "</svg>"])


def swatch(layer: Boxes | Line | Ticks) -> str:
    """Return a small picture of the layer's look, for a key."""
    css = f'class="{layer.css}"'
    shape = f'<path {css} d="{"M0 6H20" if isinstance(layer, Line) else "M4 2V10M10 2V10M16 2V10"}"/>'
    if isinstance(layer, Boxes):
        shape = f'<rect {css} x="3" y="2" width="14" height="8"/>'
    return f'<svg class="swatch" viewBox="0 0 20 12" aria-hidden="true">{shape}</svg>'


def _panel(panel: Panel, across: _Scale, top: float) -> list[str]:
    counted = steps(panel.high, 4, binary=panel.binary)
    labels = panel.labels or tuple((number, panel.unit(number)) for number in counted)
    high = panel.high if panel.labels else counted[-1]
    up = _Scale(0, high, top + panel.height, top)
    parts = [f'<text class="title" x="0" y="{_short(top - 8)}">{escape(panel.title)}</text>']
    for number, text in labels:
        y = up.at(number)
        parts.append(f'<path class="grid" d="M{LEFT} {_short(y)}H{_short(across.last)}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{_short(y + 4)}" text-anchor="end">{escape(text)}</text>')
    for layer in panel.layers:
        parts += _layer(layer, across, up)
    return parts


def _layer(layer: Layer, across: _Scale, up: _Scale) -> Iterator[str]:
    match layer:
        case Boxes():
            yield f'<g class="{layer.css}">'
            for x0, y0, x1, y1, said in layer.boxes:
                left, floor = across.at(x0), up.at(y0)
                wide, tall = max(across.at(x1) - left, 0.5), floor - up.at(y1)
                size = f'x="{_short(left)}" y="{_short(floor - tall)}" width="{_short(wide)}" height="{_short(tall)}"'
                yield f"<rect {size}><title>{escape(said)}</title></rect>" if said else f"<rect {size}/>"
            yield "</g>"
        case Line():
            yield f'<path class="{layer.css}" d="{"".join(_steps(layer, across, up))}"/>'
        case Ticks():
            foot = _short(up.first)
            places = sorted({_short(across.at(place)) for place in layer.places}, key=float)
            yield f'<path class="{layer.css}" d="{"".join(f"M{place} {foot}v-9" for place in places)}"/>'
        case Words():
            for x, text in layer.words:
                spot = f'x="{_short(across.at(x))}" y="{_short(up.first - 4)}"'
                yield f'<text class="{layer.css}" {spot} text-anchor="middle">{escape(text)}</text>'


def _steps(line: Line, across: _Scale, up: _Scale) -> Iterator[str]:
    """Yield the commands of an SVG path."""
    pen = False
    for column, some in groupby(line.points, key=lambda point: int(across.at(point[0]))):
        heights = [y for _, y in some]
        known = [y for y in heights if y is not None]
        for y in dict.fromkeys([known[0], max(known), known[-1]]) if known else ():
            yield f"{'H' if pen else 'M'}{column}{'V' if pen else ' '}{_short(up.at(y))}"
            pen = True
        if heights[-1] is None:
            pen = False
    if pen and line.points[-1][0] < across.high:
        yield f"H{_short(across.last)}"


def _axis(labels: tuple[tuple[float, str], ...], across: _Scale, height: int) -> Iterator[str]:
    """Yield the labels from left to right that fit into the width without overlap."""
    free = 0.0
    for x, text in labels:
        half = len(text) * LETTER / 2
        at = min(max(across.at(x), LEFT + half - 16), across.last + RIGHT - half)
        if at - half >= free:
            free = at + half + 2 * LETTER
            yield f'<text x="{_short(at)}" y="{height - 6}" text-anchor="middle">{escape(text)}</text>'


def _short(number: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{number:.1f}".removesuffix(".0")
