# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a rewrite achieved against what was expected of it.

One definition of "in vain" for who carries a rewrite out and for who plans the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from journalkeeper.model import ideal_extents

ENOUGH: Final = 0.5
"""The share of the expected saving that a rewrite has to bring. Expectations are rough: of compressed data
by a tenth, of an active file by what journald appends meanwhile. Vain rewrites saved nothing at all (measured)."""


def fell_short(extents_before: int, extents_expected: int, extents_after: int) -> bool:
    """Whether a rewrite saved too few extents; no, where none were to be saved or nobody knows (expected 0)."""
    expected = extents_before - extents_expected if extents_expected else 0
    return expected > 0 and extents_before - extents_after < expected * ENOUGH


def least_extents(runs: Sequence[tuple[int, int]], *, compressed: bool) -> int:
    """The fewest extents that data in these (offset, length) can have: a hole ends one."""
    return sum(ideal_extents(length, compressed=compressed) for _, length in runs)
