# SPDX-License-Identifier: LGPL-2.1-or-later
"""The result of an attack, one row of the table in journalkeeper-trust(7), and the command that each kind is."""

from __future__ import annotations

import json
import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from journalkeeper.probe.scratch_volume import isolate
from tests.bench.figures import Option, parser
from tests.volumes import why_no_bed

SEED: Final = Option(None, "of all that is left to chance (default: another one each time)", int)


class Row(NamedTuple):
    """The result of one kind: the number of points, of losses and of troubles, and the worst outage.

    `seed` repeats the attack. `skipped` is the reason why nothing was tried, "" if the attack took place.
    """

    points: int
    lost: int
    unclean: int
    outage_s: float
    seed: int
    skipped: str = ""

    @property
    def fine(self) -> bool:
        """Whether nothing was lost, and nothing is wrong."""
        return not self.lost and not self.unclean


class Tally:
    """The points that an attack has tried, a sentence for each loss and trouble, and the worst outage."""

    def __init__(self) -> None:
        self.points = 0
        self.lost: list[str] = []
        self.unclean: list[str] = []
        self.outage_s = 0.0

    def add(
        self, point: str, *, lost: Iterable[str] = (), unclean: Iterable[str] = (), outage_s: float = 0, points: int = 1
    ) -> None:
        """Count a point, or several. Print each loss and trouble with the name of the point, which replays it."""
        self.points += points
        self.outage_s = max(self.outage_s, outage_s)
        for word, found, kept in (("LOST", lost, self.lost), ("UNCLEAN", unclean, self.unclean)):
            for sentence in found:
                kept.append(f"{point}: {sentence}")
                say(f"{word}: {point}: {sentence}")


def say(text: str) -> None:
    """Print a line, and flush it: another process may read it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def command(
    doc: str | None,
    attack: Callable[[Namespace, Tally], None],
    options: Mapping[str, Option],
    *,
    find_obstacle: Callable[[], str | None] = why_no_bed,
) -> int:
    """Run one attack with the options of the command line, and print its row as JSON. Return the exit status.

    As root it runs in a mount namespace of its own. If `find_obstacle` returns a reason, nothing is tried: the row
    contains the reason, and the status is 0.
    """
    asked = parser(doc, {**options, "seed": SEED}).parse_args()
    if reason := find_obstacle():
        say(json.dumps(Row(0, 0, 0, 0.0, 0, reason)))
        return 0
    if os.geteuid() == 0:
        isolate()
    if asked.seed is None:
        asked.seed = secrets.randbelow(1 << 31)
    say(f"seed {asked.seed}")
    tally = Tally()
    attack(asked, tally)
    row = Row(tally.points, len(tally.lost), len(tally.unclean), round(tally.outage_s, 1), asked.seed)
    say(json.dumps(row))
    return 0 if row.fine else 1


def parse(text: str) -> Row:
    """Return the row in the last line of what an attack printed. Raises: ValueError if there is none."""
    line = text.rstrip().rpartition("\n")[2]
    try:
        return Row(*json.loads(line))
    except TypeError as error:
        raise ValueError(f"no row: {line!r}") from error
