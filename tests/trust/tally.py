# SPDX-License-Identifier: LGPL-2.1-or-later
"""The points of one kind of fault as they are tried, and the row that they come to."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Final

from tests.trust.table import Row

MANY: Final = 100
"""Points from one word about the progress to the next."""


@dataclass
class Tally:
    """The points that were tried, and those after which something was lost or left.

    `lost` and `unclean` have a sentence for each such point, by its name; `worst_outage_s` is the longest that
    it took after a fault until everything was in order again.
    """

    kind: str
    seed: int
    points: int = 0
    lost: dict[str, str] = field(default_factory=dict)
    unclean: dict[str, str] = field(default_factory=dict)
    worst_outage_s: float = 0.0

    def add(self, point: str, *, lost: list[str], unclean: list[str], outage_s: float) -> None:
        """Count one point; what is wrong is said at once, with the point's name, by which it is replayed."""
        self.points += 1
        self.worst_outage_s = max(self.worst_outage_s, outage_s)
        for found, where, word in ((lost, self.lost, "LOST"), (unclean, self.unclean, "UNCLEAN")):
            if found:
                where[point] = "; ".join(found)
                sys.stderr.write(f"{word} at {point}: {where[point]}\n")
        if self.points % MANY == 0:
            sys.stderr.write(f"{self.points:,} points\n")

    def row(self) -> Row:
        """What they come to."""
        outage_s = round(self.worst_outage_s, 1)
        return Row(self.kind, self.points, len(self.lost), len(self.unclean), outage_s, self.seed)
