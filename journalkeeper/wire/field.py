# SPDX-License-Identifier: LGPL-2.1-or-later
"""The former place of model.record, for the commands that still use it."""

from __future__ import annotations

from typing import Any

from journalkeeper.model.record import to_json


def document(_: type, value: object) -> dict[str, Any]:
    """Return a record as JSON."""
    found: dict[str, Any] = to_json(value)
    return found
