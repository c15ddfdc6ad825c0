# SPDX-License-Identifier: LGPL-2.1-or-later
"""The former place of model.documents, for the commands that still use it."""

from __future__ import annotations

from typing import Any

from journalkeeper.model import Outcome
from journalkeeper.model.documents import defrag_document, disk_sums, plan_document, plan_windows, skips
from journalkeeper.model.record import to_json
from journalkeeper.model.recorded import Entry

__all__ = ["defrag_document", "disk_sums", "entry_document", "plan_document", "plan_windows", "skips"]


def entry_document(when_us: int, origin: str, outcome: Outcome) -> dict[str, Any]:
    """Return an outcome with its time and the origin of its run, as in `history -j`."""
    found: dict[str, Any] = to_json(Entry(when_us, origin, outcome))
    return found
