# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper resume`: end a pause."""

from __future__ import annotations

import argparse

from journalkeeper.cli.context import Context

DESCRIPTION = """\
Ends what `pause` began; what was due meanwhile is done now."""

EXAMPLES = """\
examples:
  sudo journalkeeper resume         work again, now
  journalkeeper status              is it paused?

exit status:
  0 done, also if there was no pause; 1 the service does not run, or it may not be asked by this
  user; 2 wrong usage"""


def options(_: argparse.ArgumentParser) -> None:
    """Add nothing: there are no options."""


def run(_: argparse.Namespace, context: Context) -> int:
    """Ask the service to resume its work."""
    with context.require_service() as service:
        service.resume()
    if context.output.json != "off":
        context.output.document({"paused": False})
    else:
        context.output.lines(["The service is at work."], paged=False)
    return 0
