# SPDX-License-Identifier: LGPL-2.1-or-later
"""A command line as it is typed, run in this process; conftest.py has the fixture."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Said(NamedTuple):
    """What a command line came to: its exit status and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What --json wrote; the command has succeeded and complained of nothing."""
        assert (self.status, self.err) == (0, "")
        return json.loads(self.out)

    @property
    def words(self) -> str:
        """Its output without line breaks and columns."""
        return " ".join(self.out.split())


Typed = Callable[..., Said]
"""Runs the words, with `engine` in place of the host's."""
