# SPDX-License-Identifier: LGPL-2.1-or-later
"""The callers of the service: the user of each connection, what that user may call, and how much.

Root may call every method, and polkit decides about other users; any error means no. A caller is identified by its name
on the bus, which the bus itself writes into each message and never reuses.

A bus keeps every answer that a caller does not read. dbus-daemon stops reading from a service, for all callers, when
127 MiB of the service's messages are kept (max_incoming_bytes). Two limits keep it far below: a user has a rate of
calls, and while UNREAD_MOST bytes of a user are unread, that user gets no answers. All connections of a user count
together, except root's, which count one by one.

Source: dbus-daemon(1), limits; dbus-daemon's interface org.freedesktop.DBus.Debug.Stats, for root. A dbus-broker does
not have that interface; it ends a connection that does not read. polkit's interface
org.freedesktop.PolicyKit1.Authority; D-Bus specification, ALLOW_INTERACTIVE_AUTHORIZATION.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from jeepney import message_bus

from journalkeeper.bus.connection import Connection, make_call
from journalkeeper.bus.names import ACCESS_DENIED, LIMITS_EXCEEDED, CallError

CALLERS_MOST: Final = 1024
"""Connections that are remembered: four times as many as a bus grants a user (max_connections_per_user)."""

RATE_PER_S: Final = 20.0
BURST: Final = 200.0
"""Calls of one user that are answered: so many a second, and so many at once after a rest."""

LATE_MOST_S: Final = 1.0
"""A call above the rate is answered late, at most by this time, and before bus/client.py believes that the service is
hung. Further calls are not answered. A caller that waits for each answer gets them all.
"""

LONG_COST: Final = 10.0
"""A ListFiles, Plan or Result counts as so many calls: its answer may have 1 MiB."""

COST_BYTES: Final = 1 << 12
"""A call counts as one more for so many bytes: to read 128 KiB of empty texts takes as long as 30 calls."""

EARLY_MOST: Final = 8
"""Calls of a connection that wait until the bus has reported its user."""

EARLY_BYTES: Final = 4 << 20
EARLY_SHARE: Final = 16
"""Such calls of all connections together have at most EARLY_BYTES, and each at most 1/EARLY_SHARE of what the waiting
ones leave of that, so that long calls leave room for short ones.
"""

AT_ONCE: Final = 8
"""Plans and questions to polkit of one user under way. The bus lets a service wait for 128 answers."""

UNREAD_MOST: Final = 4 << 20
"""Bytes that one user may leave unread."""

CHECK_S: Final = 0.5
"""The time between two counts of the unread bytes."""

POLKIT: Final = "org.freedesktop.PolicyKit1"
ANSWER_S: Final = 300.0
"""How long polkit may take: it waits for a person."""


class User:
    """The use of the service by one user, for all connections together.

    At the rate, the calls so far take until `until_s`. `turn` is the lock that lets the service make one plan at a time
    for this user.
    """

    def __init__(self) -> None:
        self.until_s = 0.0
        self._places = asyncio.Semaphore(AT_ONCE)
        self.turn = asyncio.Lock()

    def count_long_call(self) -> asyncio.Semaphore:
        """Return a block for `async with` that counts a long call. Raises: CallError (LIMITS_EXCEEDED) at AT_ONCE."""
        if self._places.locked():
            raise CallError(LIMITS_EXCEEDED, f"{AT_ONCE} calls are under way already; try again later")
        return self._places


class Caller:
    """A connection of a program to the bus. `uid` is None, and `user` a new one, until the bus has reported its user.

    Calls of the lengths `early_bytes` wait for that. `turn` is the lock that lets them begin in their order.
    `unread_bytes` of answers were not read at the last check.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.uid: int | None = None
        self.user = User()
        self.early_bytes: list[int] = []
        self.unread_bytes = 0
        self.turn = asyncio.Lock()

    def may_read(self, owner: str) -> bool:
        """Return whether the caller may read a file of `owner`: not another user's ("user:UID"), except for root."""
        return self.uid == 0 or not owner.startswith("user:") or owner == f"user:{self.uid}"


class Callers:
    """The users and programs that call the service over `bus`."""

    def __init__(self, bus: Connection) -> None:
        self._bus = bus
        self._known: dict[str, Caller] = {}
        self._users: WeakValueDictionary[int, User] = WeakValueDictionary()
        self._check: asyncio.Task[None] | None = None

    def accept(self, name: str, length: int) -> Caller | None:
        """Return the Caller with this connection name, old or new, for a call of `length` bytes. Do not ask the bus.

        Until `identify` has stored its user, a call waits. Return None and store nothing if EARLY_MOST calls of the
        caller wait, or if `length` exceeds 1/EARLY_SHARE of what all waiting calls leave of EARLY_BYTES. Above
        CALLERS_MOST, forget the oldest with the fewest unread bytes, perhaps the new one.
        """
        caller = self._known.get(name) or Caller(name)
        if caller.uid is None:
            left_bytes = EARLY_BYTES - sum(sum(one.early_bytes) for one in self._known.values())
            if len(caller.early_bytes) >= EARLY_MOST or length > left_bytes / EARLY_SHARE:
                return None
            caller.early_bytes.append(length)
            self._known[name] = caller
            if len(self._known) > CALLERS_MOST:
                del self._known[min(self._known, key=lambda one: self._known[one].unread_bytes)]
        return caller

    async def identify(self, caller: Caller) -> None:
        """Ask the bus for the user of `caller`, and store it, or forget `caller` if that fails. Clear `early_bytes`.

        All connections of one user have the same User, but each connection of root has its own.
        """
        try:
            (caller.uid,) = await self._bus.call(message_bus.GetConnectionUnixUser(caller.name))
            caller.user = self._users.setdefault(caller.uid, caller.user) if caller.uid else caller.user
        except (CallError, OSError):
            self._known.pop(caller.name, None)
        caller.early_bytes.clear()

    async def authorize(self, caller: Caller, action: str, *, interactive: bool) -> None:
        """Ask polkit whether `caller` may do `action`, except for root. If `interactive`, polkit can ask a person.

        Raises: CallError (ACCESS_DENIED) unless polkit and that person agree within ANSWER_S; as User.count_long_call.
        """
        if caller.uid == 0:
            return
        subject = ("system-bus-name", {"name": ("s", caller.name)})
        place = (POLKIT, "/org/freedesktop/PolicyKit1/Authority", f"{POLKIT}.Authority", "CheckAuthorization")
        # The flag AllowUserInteraction is 1.
        question = make_call(*place, "(sa{sv})sa{ss}us", subject, action, {}, int(interactive), "")
        async with caller.user.count_long_call():
            try:
                ((authorized, *_),) = await asyncio.wait_for(self._bus.call(question), ANSWER_S)
            except (CallError, OSError, TimeoutError):
                raise CallError(ACCESS_DENIED, f"polkit does not answer ({action}): try as root") from None
        if not authorized:
            raise CallError(ACCESS_DENIED, f"polkit authorization is required ({action})")

    def admit(self, user: User, cost: float) -> float | None:
        """Charge `user` for a call that counts as `cost` calls, and return its delay in seconds: 0 within BURST.

        Charge nothing and return None if the delay would exceed LATE_MOST_S, or the user's unread bytes exceed
        UNREAD_MOST. A call also starts the count of the unread bytes, at most each CHECK_S.
        """
        if self._check is None or self._check.done():
            self._check = asyncio.ensure_future(self._update_unread())
        now_s = asyncio.get_running_loop().time()
        until_s = max(user.until_s, now_s - BURST / RATE_PER_S) + cost / RATE_PER_S
        unread = (one.unread_bytes for one in self._known.values() if one.user is user)
        if until_s - now_s > LATE_MOST_S or sum(unread) > UNREAD_MOST:  # a call of a flood costs no sum
            return None
        user.until_s = until_s
        return max(0.0, until_s - now_s)

    async def _update_unread(self) -> None:
        """Store each caller's `unread_bytes`, 0 if the bus keeps at most UNREAD_MOST of the service's. Rest CHECK_S."""
        is_much = await self._bus.count_kept(self._bus.name, "IncomingBytes") > UNREAD_MOST
        for caller in tuple(self._known.values()):
            caller.unread_bytes = await self._bus.count_kept(caller.name, "OutgoingBytes") if is_much else 0
        await asyncio.sleep(CHECK_S)
