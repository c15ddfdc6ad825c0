# SPDX-License-Identifier: LGPL-2.1-or-later
"""Long runs: the progress line on the terminal, and the signals that stop a run at the next chunk border."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self, TextIO

from journalkeeper.cli.output import DEFAULT_COLUMNS, Output, find_width
from journalkeeper.cli.table import elide
from journalkeeper.model.run import Progress
from journalkeeper.model.units import escape

REDRAW_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def catch_signals(*, hints: bool) -> Iterator[Callable[[], bool]]:
    """Record SIGINT, SIGTERM and SIGHUP during the block. Yield a function that returns whether one arrived.

    With `hints`, the first writes a line to stderr. A signal that is ignored, as SIGHUP under nohup(1), stays ignored.
    """
    caught: list[int] = []

    def record_signal(number: int, _: FrameType | None) -> None:
        """Add the signal to `caught`, and write a line to stderr if it is the first, and if there are `hints`."""
        if not caught and hints:
            # not print(): a handler may run in the middle of one, and buffered files are not re-entrant
            with suppress(OSError):  # the terminal has closed
                os.write(2, b"\nStopping after this chunk.\n")
        caught.append(number)

    heeded = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, record_signal) for number in heeded}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt_on_signals() -> None:
    """Make SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt from now on. An ignored one (nohup(1)) stays ignored."""
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


class ProgressLine:
    """A line on `stream` with the progress of a run. As a context manager it erases the line at the end.

    `seen` is whether there is a stream. If `stream` is None, nothing is drawn.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.seen = stream is not None
        self._stream = stream
        self._drawn_s = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._replace_line("")

    def __call__(self, progress: Progress) -> None:
        """Draw a line such as "2/7  43%  PATH" with the path cut, unless one was drawn less than REDRAW_S ago."""
        text = f"{progress.number}/{progress.total} {progress.fraction:4.0%}  "
        self.update(f"{text}{elide(escape(progress.path), (find_width() or DEFAULT_COLUMNS) - 1 - len(text))}")

    def update(self, text: str) -> None:
        """Draw the start of `text` that fits the line, unless something was drawn less than REDRAW_S ago."""
        now_s = time.monotonic()
        if now_s - self._drawn_s >= REDRAW_S:
            self._drawn_s = now_s
            # the last column stays free: many terminals wrap as soon as it is written
            self._replace_line(text[: (find_width() or DEFAULT_COLUMNS) - 1])

    def _replace_line(self, text: str) -> None:
        """Erase the line and write `text`, which must fit the line. Do nothing without a stream; ignore OSError."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.write(f"\r\x1b[K{text}")
                self._stream.flush()


def on_terminal(output: Output) -> ProgressLine:
    """Return a progress line on stderr. It draws nothing with --quiet or JSON, or without a terminal that can erase."""
    dumb = os.environ.get("TERM") in {None, "dumb"} or not sys.stderr.isatty()
    return ProgressLine(None if dumb or output.quiet or output.json != "off" else sys.stderr)
