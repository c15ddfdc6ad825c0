# SPDX-License-Identifier: LGPL-2.1-or-later
"""When the service connects again to a bus that ends its connections."""

from __future__ import annotations

import asyncio
import time
from unittest.mock import Mock

import pytest

from journalkeeper.bus import server
from journalkeeper.bus.server import FIRST_S, MOST_S, serve_bus


@pytest.mark.parametrize(
    ("lasts_s", "waits_s"),
    [
        ((0, 0, MOST_S), [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]),
        ((0, 0, MOST_S + 1, 0), [FIRST_S, 2 * FIRST_S, FIRST_S, 2 * FIRST_S]),
        ((0,) * 10, [*(FIRST_S * 2**power for power in range(7)), MOST_S, MOST_S, MOST_S]),
    ],
)
async def test_a_lost_bus_is_tried_again_later_each_time_until_a_connection_lasts(
    monkeypatch: pytest.MonkeyPatch, lasts_s: tuple[float, ...], waits_s: list[float]
) -> None:
    now_s, waited_s = [0.0], list[float]()

    async def serve(*_: object) -> None:
        now_s[0] += lasts_s[len(waited_s)]
        raise ConnectionResetError

    async def sleep(wait_s: float) -> None:
        waited_s.append(wait_s)
        if len(waited_s) == len(lasts_s):
            raise asyncio.CancelledError

    monkeypatch.setattr(server, "_serve_connection", serve)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await serve_bus(Mock(), "unix:path=/none")
    assert waited_s == waits_s
