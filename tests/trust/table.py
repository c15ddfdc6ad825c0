# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an attack comes to: one row of the table in journalkeeper-trust(7), the last line of what its module prints."""

from __future__ import annotations

import json
import secrets
import sys
from typing import Final, NamedTuple

SEEDS: Final = 1 << 31


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


def finish(row: Row) -> int:
    """Print the row; the exit status."""
    sys.stdout.write(f"{json.dumps(row._asdict())}\n")
    sys.stdout.flush()
    return 0 if row.fine else 1


def skipped(kind: str, reason: str) -> int:
    """Print why nothing was tried; the exit status."""
    return finish(Row(kind, 0, 0, 0, 0.0, 0, reason))


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
