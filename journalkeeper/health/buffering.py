# SPDX-License-Identifier: LGPL-2.1-or-later
"""Detect programs, in any language, whose standard output reaches the journal in blocks.

A C library buffers its output to a socket in blocks of the socket's st_blksize, 4,096 bytes. It writes a block when it
is full, even in the middle of a line. Python gathers up to 8,192 bytes of whole lines. So lines come in bursts, and
each burst is a multiple of 4,096 bytes, give or take one line. journald stamps a line with the time when it reads it,
so all lines of a burst have nearly the time of its last line.

A burst can have such a size by chance, and more easily with longer lines: about one burst in 2048/L with lines of L
bytes. So the rule requires enough bursts in a row that only one stream in a thousand would pass by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, log
from shlex import quote
from typing import Final, NamedTuple

from journalkeeper.health.evidence import Evidence, Line, Stream
from journalkeeper.health.finding import Facts, Finding, Severity, list_names, require
from journalkeeper.model.units import SECOND_US, format_span

BLOCK: Final = 4096
GAP_US: Final = SECOND_US
"""Lines closer together than this belong to one burst."""

BURSTS: Final = 3
CHANCE: Final = 1 / 1000
"""The acceptable probability that a program that does not buffer is reported, by the sizes of its bursts alone."""

LONGEST: Final = BLOCK // 8
"""Bursts with longer lines are no evidence: at least every fourth would fit by chance."""


class Buffered(NamedTuple):
    """A stream that is buffered: the number of fitting bursts in a row, and the mean time from one to the next."""

    stream: Stream
    bursts: int
    interval_us: int


class Burst(NamedTuple):
    """Lines that came together; `size` in bytes with their newlines, None if a line's length is unknown."""

    first_us: int
    last_us: int
    lines: int
    size: int | None
    longest: int
    unended: bool


def buffered(evidence: Evidence) -> Finding | None:
    """A program's standard output reaches the journal in blocks: its messages come late, and all with one time."""
    journal = require(evidence.journal)
    found = [one for one in map(judge_stream, journal.streams) if one is not None]
    if not found:
        return None
    worst = max(found, key=lambda one: one.interval_us)
    names = [one.stream.unit or one.stream.program for one in found]
    sentence = (
        f"{list_names(names)} writes its messages in blocks, {format_span(worst.interval_us, 100_000)} apart: they"
        " arrive that"
        " late, all with the time of the last one, and are lost if the process dies."
    )
    facts: Facts = {
        "units": names,
        "programs": [one.stream.program for one in found],
        "interval_s": round(worst.interval_us / 1e6, 1),
        "bursts": [str(one.bursts) for one in found],
    }
    return Finding("buffered", Severity.ADVICE, facts, sentence, tuple(_remedy(found[0])))


def judge_stream(stream: Stream) -> Buffered | None:
    """Return the evidence that a stream is buffered, or None."""
    run: list[Burst] = []
    best: list[Burst] = []
    for burst in bursts(stream.lines):
        run = [*run, burst] if fits(burst) else []
        if len(run) >= count_needed_bursts(run) and len(run) >= len(best):
            best = run
        elif len(run) >= BURSTS - 1 and burst.unended and sum(one.size or 0 for one in run) % BLOCK == 0:
            best = best or run  # the stream ended within a line, at a block's end
    if not best:
        return None
    return Buffered(stream, len(best), (best[-1].first_us - best[0].first_us) // max(1, len(best) - 1))


def bursts(lines: Sequence[Line]) -> list[Burst]:
    """Return the lines grouped by bursts, the oldest first."""
    found: list[Burst] = []
    start = 0
    gaps = [number for number, (one, other) in enumerate(pairwise(lines), 1) if other.when_us - one.when_us >= GAP_US]
    for end in [*gaps, len(lines)]:
        if part := lines[start:end]:
            found.append(_burst(part))
        start = end
    return found


def _burst(lines: Sequence[Line]) -> Burst:
    lengths = [line.length + (not line.unended) for line in lines if line.length is not None]
    return Burst(
        first_us=lines[0].when_us,
        last_us=lines[-1].when_us,
        lines=len(lines),
        size=sum(lengths) if len(lengths) == len(lines) else None,
        longest=max(lengths, default=0),
        unended=lines[-1].unended,
    )


def fits(burst: Burst) -> bool:
    """Return whether a burst came at once and has the size of whole blocks, give or take one line."""
    if burst.size is None or burst.lines < 2 or burst.longest > LONGEST or burst.last_us - burst.first_us >= GAP_US:
        return False
    blocks = round(burst.size / BLOCK)
    return blocks > 0 and abs(burst.size - blocks * BLOCK) <= burst.longest


def count_needed_bursts(run: Sequence[Burst]) -> int:
    """Return how many fitting bursts in a row are required, which depends on the longest line among them."""
    longest = max((burst.longest for burst in run), default=1)
    return max(BURSTS, ceil(log(CHANCE) / log(min(2 * longest, BLOCK // 4) / BLOCK)))


def _remedy(found: Buffered) -> list[str]:
    """Return the command that makes the first stream's program write each line at once."""
    unit = quote(found.stream.unit or "UNIT")
    if found.stream.program.startswith("python"):
        return [f"systemctl edit {unit}   # [Service] Environment=PYTHONUNBUFFERED=1"]
    return [f"systemctl edit {unit}   # [Service] ExecStart=stdbuf -oL PROGRAM, or what the program has for it"]
