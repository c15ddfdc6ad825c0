# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a caller may: root may, and for the others polkit decides.

The one rule: whatever goes wrong means no. The caller is known by its name on the bus, which
the bus itself writes into each message and gives to nobody else afterwards.

Source: polkit's interface org.freedesktop.PolicyKit1.Authority; D-Bus specification,
org.freedesktop.DBus.GetConnectionUnixUser, ALLOW_INTERACTIVE_AUTHORIZATION.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from dbus_fast import Message, MessageFlag, MessageType, Variant
from dbus_fast.aio import MessageBus

from journalkeeper.bus.names import ACCESS_DENIED, LIMITS_EXCEEDED

AT_ONCE: Final = 8
"""Questions to polkit at a time for one user: dialogs wait for a person, and the bus lets us wait for 128 answers."""

ANSWER_S: Final = 25.0
PERSON_S: Final = 300.0
ALLOW_USER_INTERACTION: Final = 1
"""CheckAuthorization's flag: an agent may ask for a password."""


class CallError(Exception):
    """What a caller is told: `name` is the error's on the bus, the text a sentence."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        super().__init__(text)


class Authority:
    """Asks on the connection `bus`."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self._asking: Counter[int] = Counter()

    async def check(self, call: Message, action: str) -> None:
        """Return if the sender of `call` may do `action`.

        Raises: CallError.
        """
        uid = await self._uid(call.sender or "")
        if uid == 0:
            return
        if self._asking[uid] >= AT_ONCE:
            raise CallError(LIMITS_EXCEEDED, f"{AT_ONCE} calls of yours wait for polkit already; try again later")
        self._asking[uid] += 1
        try:
            await self._ask(call, action)
        finally:
            self._asking[uid] -= 1
            if not self._asking[uid]:
                del self._asking[uid]

    async def _uid(self, sender: str) -> int:
        reply = await self._call(
            "org.freedesktop.DBus", "/org/freedesktop/DBus", "GetConnectionUnixUser", "s", [sender]
        )
        if reply is None or reply.signature != "u":
            raise CallError(ACCESS_DENIED, "the bus does not say who you are")
        uid: int = reply.body[0]
        return uid

    async def _ask(self, call: Message, action: str) -> None:
        interactive = bool(call.flags.value & MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION.value)
        subject = ["system-bus-name", {"name": Variant("s", call.sender)}]
        reply = await self._call(
            "org.freedesktop.PolicyKit1",
            "/org/freedesktop/PolicyKit1/Authority",
            "CheckAuthorization",
            "(sa{sv})sa{ss}us",
            [subject, action, {}, ALLOW_USER_INTERACTION if interactive else 0, ""],
            interface="org.freedesktop.PolicyKit1.Authority",
            wait_s=PERSON_S if interactive else ANSWER_S,
        )
        if reply is None or reply.signature != "(bba{ss})":
            raise CallError(ACCESS_DENIED, f"only root may: polkit does not answer about {action}")
        authorized, challenge, _ = reply.body[0]
        if not authorized:
            more = " without a password; busctl asks with --allow-interactive-authorization=yes" if challenge else ""
            raise CallError(ACCESS_DENIED, f"polkit does not let you do {action}{more}")

    async def _call(
        self,
        destination: str,
        path: str,
        member: str,
        signature: str,
        body: list[object],
        *,
        interface: str | None = None,
        wait_s: float = ANSWER_S,
    ) -> Message | None:
        """The answer; None for an error, or if none came in time."""
        message = Message(
            destination=destination,
            path=path,
            interface=interface or destination,
            member=member,
            signature=signature,
            body=body,
        )
        try:
            reply = await asyncio.wait_for(self._bus.call(message), wait_s)
        except (TimeoutError, OSError, EOFError):
            return None
        return reply if reply is not None and reply.message_type is MessageType.METHOD_RETURN else None
