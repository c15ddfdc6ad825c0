# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide whether a caller may call a method: root may, and polkit decides about other users.

Any error means no. A caller is identified by its name on the bus, which the bus itself writes into each message and
never reuses. Source: polkit's interface org.freedesktop.PolicyKit1.Authority; D-Bus specification,
ALLOW_INTERACTIVE_AUTHORIZATION.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from journalkeeper.bus import names, options
from journalkeeper.bus.callers import Ask, Caller
from journalkeeper.bus.connection import make_call
from journalkeeper.bus.contract import Method
from journalkeeper.bus.names import ACCESS_DENIED, CallError

POLKIT: Final = "org.freedesktop.PolicyKit1"
ANSWER_S: Final = 25.0
PERSON_S: Final = 300.0
ALLOW_USER_INTERACTION: Final = 1
"""CheckAuthorization's flag: an agent may ask for a password."""


async def authorize(ask: Ask, caller: Caller, method: Method, values: Sequence[Any], *, interactive: bool) -> None:
    """Ask polkit whether `caller` may do the action that `method` requires with these values, except for root.

    Wait at most PERSON_S for a user if `interactive`, else ANSWER_S.

    Raises: CallError (ACCESS_DENIED) if polkit refuses or does not answer.
    """
    if caller.uid == 0:
        return
    subject = ("system-bus-name", {"name": ("s", caller.name)})
    place = (POLKIT, "/org/freedesktop/PolicyKit1/Authority", f"{POLKIT}.Authority", "CheckAuthorization")
    flags = ALLOW_USER_INTERACTION if interactive else 0
    details = list_details(method, values)
    question = make_call(*place, "(sa{sv})sa{ss}us", subject, method.action, details, flags, "")
    try:
        ((authorized, *_),) = await asyncio.wait_for(ask(question), PERSON_S if interactive else ANSWER_S)
    except (CallError, OSError, TimeoutError):
        raise CallError(ACCESS_DENIED, f"polkit does not answer ({method.action}): try as root") from None
    if not authorized:
        raise CallError(ACCESS_DENIED, f"polkit authorization is required ({method.action})")


def list_details(method: Method, values: Sequence[Any]) -> dict[str, str]:
    """Return the details for polkit's rules as texts in ASCII: the method, and its arguments by name."""
    given = {name: value for (name, _), value in zip(method.takes, values, strict=True)}
    if "flags" in given:
        given["flags"] = options.list_flags(given["flags"])
    return {"method": method.name, **{name: _text(value) for name, value in given.items()}}


def _text(value: Any) -> str:
    return (
        "\n".join(map(_text, value)) if isinstance(value, list) else names.to_ascii(str(value)).replace("\n", "\\x0a")
    )
