# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an attack comes to, one row of the table in journalkeeper-trust(7), and the command that ends by printing it."""

from __future__ import annotations

import json
import secrets
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.bench.figures import Option, need_a_bed, parser

SEEDS: Final = 1 << 31
SHOWN: Final = 50
"""Sentences of each sort that are printed."""


class Row(NamedTuple):
    """`points` that were tried, entries `lost` in them, points `unclean` afterwards, the worst outage.

    `seed` makes the same attack again. `skipped` is why nothing was tried, "" if it was.
    """

    kind: str
    points: int
    lost: int
    unclean: int
    worst_outage_s: float
    seed: int
    skipped: str = ""

    @property
    def fine(self) -> bool:
        """Whether nothing was lost or left."""
        return not self.lost and not self.unclean


def fresh_seed() -> int:
    """A seed for who gave none."""
    return secrets.randbelow(SEEDS)


def say(text: str) -> None:
    """Print a line at once: who reads it may be another process."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def finish(row: Row) -> int:
    """Print the row; the exit status."""
    say(json.dumps(row._asdict()))
    return 0 if row.fine else 1


def judged(kind: str, points: int, seed: int, *, lost: Sequence[str] = (), unclean: Sequence[str] = (),
           outage_s: float = 0.0) -> Row:  # fmt: skip
    """The row of sentences on what was lost and what is wrong; the first of them are printed."""
    for word, sentences in (("LOST", lost), ("UNCLEAN", unclean)):
        for sentence in sentences[:SHOWN]:
            say(f"{word}: {sentence}")
    return Row(kind, points, len(lost), len(unclean), round(outage_s, 1), seed)


def nothing_tried(kind: str, reason: str) -> Row:
    """The row of a kind that cannot be tried here."""
    return Row(kind, 0, 0, 0, 0.0, 0, reason)


SEED: Final = Option(None, "of all that is left to chance (default: another one each time)", int)


def command(
    doc: str | None,
    kind: str,
    attack: Callable[[Namespace], Row],
    options: Mapping[str, Option],
    argv: Sequence[str] | None = None,
    *,
    missing: Callable[[], str | None] = lambda: None,
    on_a_bed: bool = False,
) -> int:
    """The command of a kind: one attack, as its options say; the exit status.

    Where something is `missing` nothing is tried, and that is the row. An attack `on_a_bed` makes one, in a mount
    namespace of its own: where that cannot be, the command fails.
    """
    words = parser(doc, options)
    asked = words.parse_args(argv)
    if on_a_bed:
        need_a_bed(words)
    if reason := missing():
        return finish(nothing_tried(kind, reason))
    if "seed" in options:
        asked.seed = fresh_seed() if asked.seed is None else asked.seed
        say(f"seed {asked.seed}")
    return finish(attack(asked))


def parse(text: str) -> Row:
    """The row in the last line that is an object of JSON.

    Raises: ValueError if there is none, or a key is missing.
    """
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                said = json.loads(line)
                return Row(**{name: said[name] for name in Row._fields if name in said})
            except (TypeError, KeyError) as error:
                raise ValueError(f"{line!r}: {error}") from error
    raise ValueError("no row was printed")
