# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages as a web service logs them, the same ones at every run.

What ages a journal is not bytes but old pages patched everywhere, so some
fields are new in every message and some come back after a thousand others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

VERBS = ("GET", "GET", "GET", "PUT", "POST", "HEAD")
NOUNS = ("invoice", "customer", "basket", "picture", "session", "report", "address", "voucher", "shipment", "comment")
STATUSES = (200, 200, 200, 304, 404, 503)
USERS, SESSIONS, PEERS, SEGMENTS = 2000, 700, 250, 8


def messages(seed: int = 1) -> Iterator[dict[str, str]]:
    """Fields of one journal entry after the other, without end; MESSAGE is always among them."""
    dice = random.Random(seed)  # noqa: S311 (repeatable is the point, and nothing is secret)
    while True:
        user = dice.randrange(USERS)
        request = f"{dice.getrandbits(64):016x}"
        peer = f"192.0.2.{user % PEERS}"
        path = "/".join(dice.choices(NOUNS, k=SEGMENTS)) + f"/{dice.randrange(100_000)}"
        answer = f"{dice.choice(STATUSES)} {dice.randrange(200_000)} bytes in {dice.random():.6f} s"
        yield {
            "MESSAGE": f"{peer} {dice.choice(VERBS)} /{path} {answer}, request {request}",
            "LAB_REQUEST": request,
            "LAB_PATH": path,
            "LAB_USER": f"user{user}",
            "LAB_PEER": peer,
            "LAB_SESSION": f"session-{user % SESSIONS:05d}",
            "LAB_TRACE": f"request {request} by user{user} of {peer} for /{path}",
        }
