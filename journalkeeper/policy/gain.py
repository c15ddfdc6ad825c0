# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare the gain of a rewrite with the gain that was expected.

The same definition of a useless rewrite serves the executor and the planner of the next rewrite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from journalkeeper.model import ideal_extents

ENOUGH: Final = 0.5
"""The share of the expected saving that a rewrite must reach.

Expectations are rough: up to a tenth off for compressed data, and more for an active file, to which journald appends
meanwhile. Useless rewrites saved nothing at all (measured).
"""


def is_useless_rewrite(extents_before: int, extents_expected: int, extents_after: int) -> bool:
    """Return whether a rewrite saved less than ENOUGH of the expected extents. False if no saving was expected."""
    expected = extents_before - extents_expected if extents_expected else 0
    return expected > 0 and extents_before - extents_after < expected * ENOUGH


def least_extents(runs: Sequence[tuple[int, int]], *, compressed: bool) -> int:
    """Return the fewest extents that data in these (offset, length) runs can have: a hole ends an extent."""
    return sum(ideal_extents(length, compressed=compressed) for _, length in runs)
