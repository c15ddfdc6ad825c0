# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper pause [SPAN]` and `journalkeeper resume`: stop the service's automatic work for a while.

`pause` stops the service's automatic work for SPAN, or until `resume`. The service finishes the piece in
progress, and still does what users request. `resume` ends the pause, and the service does at once what was due
meanwhile. A restart of the service also ends a pause.

examples:
  sudo journalkeeper pause          until `journalkeeper resume`
  sudo journalkeeper pause 2h       while a backup runs
  sudo journalkeeper resume         work again, now

exit status:
  0 done, also if there was no pause to end; 1 the service does not run, or
  this user may not ask it; 2 wrong usage
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

from journalkeeper.cli.context import Context
from journalkeeper.model.schema import Span
from journalkeeper.model.units import INFINITY_US, TIME_LIMIT_US, parse_span_us
from journalkeeper.report.text import format_minute


class PauseAnswer(NamedTuple):
    """The answer of `pause` and of `resume`."""

    paused: bool
    span_us: Span | None = None
    """Microseconds until the pause ends; null: at the next resume, or there is no pause."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the optional argument SPAN, in microseconds and 0 by default, for `pause`; for `resume` add nothing."""
    if parser.prog.endswith(" pause"):
        text = "as 30min or 2h (default: until `resume`)"
        parser.add_argument("span", nargs="?", metavar="SPAN", type=_parse_span_us, default=0, help=text)


def run(args: argparse.Namespace, context: Context) -> int:
    """Ask the service to pause or to resume its work, show the new state, and return 0, also without a pause to end.

    A pause without SPAN, or beyond the year 9999, has no end.

    Raises: as `Context.require_service`; KeeperError if the service refuses.
    """
    with context.require_service() as service:
        if args.command == "resume":
            text = f"{'The pause has ended' if service.found.paused else 'There was no pause'}: the service works."
            service.resume()
            answer = PauseAnswer(paused=False)
        else:
            span_us = args.span if context.now_us + args.span < TIME_LIMIT_US else 0
            service.pause(span_us)
            until = f"until {format_minute(context.now_us + span_us)}" if span_us else "until `journalkeeper resume`"
            answer = PauseAnswer(paused=True, span_us=span_us or None)
            text = f"Paused {until}: the service works only on request."
    context.output.show(answer, [text])
    return 0


def _parse_span_us(text: str) -> int:
    """Return the length of a pause in microseconds, or 0 for "infinity". Raises: ArgumentTypeError, also for 0."""
    try:
        span_us = parse_span_us(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time span such as 30min or 2h") from error
    if span_us <= 0:
        raise argparse.ArgumentTypeError("a pause must be longer than 0 s; to end a pause: `journalkeeper resume`")
    return 0 if span_us == INFINITY_US else span_us
