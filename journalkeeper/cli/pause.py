# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper pause [SPAN]`: no work of the service's own for a while."""

from __future__ import annotations

import argparse

from journalkeeper.cli.context import Context
from journalkeeper.model.units import format_span, parse_span_us

DESCRIPTION = """\
Has the running service do no work of its own, for SPAN or until `resume`. What is under way ends
after the piece at hand; what others ask it for it does. A restart of the service ends the pause."""

EXAMPLES = """\
examples:
  sudo journalkeeper pause          until `journalkeeper resume`
  sudo journalkeeper pause 2h       while a backup runs

exit status:
  0 done; 1 the service does not run, or it may not be asked by this user; 2 wrong usage"""


def options(parser: argparse.ArgumentParser) -> None:
    """Add SPAN."""
    parser.add_argument(
        "span", nargs="?", metavar="SPAN", type=_span_us, default=0, help="as 30min or 2h (default: until `resume`)"
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Ask the service to pause its work."""
    with context.require_service() as service:
        service.pause(args.span)
    output = context.output
    if output.json != "off":
        output.document({"paused": True, "span_us": args.span or None})
        return 0
    until = f"for {format_span(args.span)}" if args.span else "until `journalkeeper resume`"
    output.lines([f"The service does no work of its own {until}."], paged=False)
    return 0


def _span_us(text: str) -> int:
    try:
        span_us = parse_span_us(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time span such as 30min or 2h") from error
    if span_us <= 0:
        raise argparse.ArgumentTypeError("a pause takes longer than nothing; `journalkeeper resume` ends one")
    return span_us
