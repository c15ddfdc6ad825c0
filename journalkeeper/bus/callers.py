# SPDX-License-Identifier: LGPL-2.1-or-later
"""The callers of the service: the user of each connection, and how much of the service that user may use.

A bus keeps every answer that a caller does not read. dbus-daemon stops reading from a service, for all callers, when
127 MiB of the service's messages are kept (max_incoming_bytes). Three limits keep it far below. An answer has at most 1
MiB. A user has RATE_PER_S calls a second. A few calls above that are answered late, further ones not at all. After each
CHECK_BYTES of answers the service asks the bus which users do not read; those get no answer until they have read. All
connections of a user count together, except root's, which count one by one.

Source: dbus-daemon(1), limits; dbus-daemon's interface org.freedesktop.DBus.Debug.Stats, for root. A dbus-broker does
not have that interface; it ends a connection that does not read.
"""

from __future__ import annotations

import asyncio
import grp
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakValueDictionary

from dbus_fast import Message

from journalkeeper.bus.names import BUS, BUS_PATH, LIMITS_EXCEEDED, USER_PREFIX, CallError

STATS: Final = f"{BUS}.Debug.Stats"

READERS: Final = ("systemd-journal", "adm", "wheel")
"""Groups that may read every journal. Source: journalctl(1)."""

CALLERS_MOST: Final = 1024
"""Connections that are remembered: four times as many as a bus grants a user (max_connections_per_user)."""

RATE_PER_S: Final = 20.0
BURST: Final = 200.0
"""Calls of one user that are answered: so many a second, and so many at once after a rest."""

DEBT: Final = 20.0
"""So many calls more are answered late, at the rate, and before bus/client.py believes that the service is hung. A
caller that waits for each answer never needs more.
"""

LONG_COST: Final = 10.0
"""A ListFiles or Plan counts as so many calls: its answer may have 1 MiB."""

EARLY_MOST: Final = 64
"""Calls of a connection that wait until the bus has said whose it is."""

AT_ONCE: Final = 8
"""Plans and questions to polkit of one user under way. The bus lets a service wait for 128 answers."""

CHECK_BYTES: Final = 4 << 20
UNREAD_MOST: Final = 4 << 20
UNREAD_ALL: Final = 32 << 20
UNREAD_LEAST: Final = 1 << 16
"""Unread bytes of one user, and of all users; above the latter each user may have UNREAD_LEAST."""

CHECK_AGAIN_S: Final = 0.5
"""The least time between two questions about unread bytes."""

Ask = Callable[[Message], Awaitable[list[Any]]]
"""Calls a method and returns the values of its answer. Raises: CallError if it is an error; OSError without a bus."""


class User:
    """The limits and the use of the service by one user, for all connections together.

    `tokens` are the calls that were left at `at_s`, less than 0 if some are answered late. `busy` long calls are under
    way; `turn` is the lock of the one whose plan is made. Above `unread_most` unread bytes the user gets no answers.
    """

    def __init__(self, now_s: float) -> None:
        self.at_s, self.tokens = now_s, BURST
        self.busy = 0
        self.turn = asyncio.Lock()
        self.unread_bytes, self.unread_most = 0, UNREAD_MOST

    @contextmanager
    def place(self) -> Iterator[None]:
        """Count a long call as under way during the block.

        Raises: CallError if AT_ONCE calls of this user are under way.
        """
        if self.busy >= AT_ONCE:
            raise CallError(LIMITS_EXCEEDED, f"{AT_ONCE} calls are under way already; try again later")
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1


class Caller:
    """A connection of a program to the bus.

    `uid` is its user's id, None until the bus has reported it. Calls that arrive before that are stored in
    `early_calls`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.uid: int | None = None
        self.user = User(0.0)
        self.reads_all = False
        self.early_calls: list[Message] = []

    def reads(self, owner: str) -> bool:
        """Return whether the caller may see the contents of a journal file of `owner`.

        True for the system's files and the caller's own file. For other users' files, True for root and the journal's
        groups.
        """
        return self.reads_all or not owner.startswith(USER_PREFIX) or owner == f"{USER_PREFIX}{self.uid}"


class Callers:
    """The users and programs that call the service.

    `own` is the name of the service's connection. `ask` calls a method of the bus and returns the answer.
    """

    def __init__(self, ask: Ask, own: str) -> None:
        self._ask = ask
        self._own = own
        self._known: OrderedDict[str, Caller] = OrderedDict()
        self._users: WeakValueDictionary[int, User] = WeakValueDictionary()
        self._sent_bytes = 0
        self._checked_s = 0.0
        self._check: asyncio.Task[None] | None = None
        self._gids = frozenset(_gids(READERS))

    def find(self, name: str) -> Caller:
        """Return the Caller with this connection name; make one if the name is new.

        More than CALLERS_MOST are not stored: the one that called least recently is forgotten.
        """
        caller = self._known.setdefault(name, Caller(name))
        self._known.move_to_end(name)
        if len(self._known) > CALLERS_MOST:
            self._known.popitem(last=False)
        return caller

    async def identify(self, caller: Caller) -> bool:
        """Ask the bus for the user and groups of `caller`, and store them in it.

        Return False if the bus does not answer.
        """
        said = await self._values(BUS, "GetConnectionCredentials", caller.name)
        if said is None or "UnixUserID" not in said:
            return False
        caller.uid = said["UnixUserID"].value
        user = User(asyncio.get_running_loop().time())
        caller.user = self._users.setdefault(caller.uid, user) if caller.uid else user
        groups = said["UnixGroupIDs"].value if "UnixGroupIDs" in said else ()
        caller.reads_all = caller.uid == 0 or not self._gids.isdisjoint(groups)
        return True

    def admit(self, user: User, cost: float) -> float | None:
        """Charge `user` for a call of `cost`, and return the delay in seconds before the call is served.

        Return None if the call gets no answer: the user has too many unread bytes, or called too often.
        """
        now_s = asyncio.get_running_loop().time()
        if user.unread_bytes > user.unread_most:
            self._begin_check(now_s)
            return None
        user.tokens, user.at_s = min(BURST, user.tokens + RATE_PER_S * (now_s - user.at_s)), now_s
        if user.tokens + DEBT < cost:
            return None
        user.tokens -= cost
        return max(0.0, -user.tokens / RATE_PER_S)

    # -- Who does not read ---------------------------------------------------------------------

    def count_sent(self, size_bytes: int) -> None:
        """Count the bytes of an answer.

        After each CHECK_BYTES, start a search for users who do not read their answers.
        """
        self._sent_bytes += size_bytes
        if self._sent_bytes >= CHECK_BYTES:
            self._begin_check(asyncio.get_running_loop().time())

    def _begin_check(self, now_s: float) -> None:
        if (self._check is None or self._check.done()) and now_s - self._checked_s >= CHECK_AGAIN_S:
            self._sent_bytes, self._checked_s = 0, now_s
            self._check = asyncio.ensure_future(self._find_silent())

    async def _find_silent(self) -> None:
        """Read from the bus how many bytes each user has not read, and the limit that applies now.

        A user above the limit gets no answers until the next search.
        """
        kept_bytes = await self._count_kept(self._own, "IncomingBytes")
        callers = [caller for caller in self._known.values() if caller.uid is not None]
        unread: Counter[User] = Counter()
        for caller in callers if kept_bytes >= UNREAD_MOST else ():
            unread[caller.user] += await self._count_kept(caller.name, "OutgoingBytes")
        for caller in callers:
            caller.user.unread_bytes = unread[caller.user]
            caller.user.unread_most = UNREAD_LEAST if kept_bytes > UNREAD_ALL else UNREAD_MOST

    # -- What the bus says ---------------------------------------------------------------------

    async def _count_kept(self, name: str, counter: str) -> int:
        """Return the bytes that the bus stores for a connection, 0 if unknown.

        The `counter` IncomingBytes counts messages that the connection sent, and OutgoingBytes those that it has not
        read.
        """
        said = await self._values(STATS, "GetConnectionStats", name)
        return 0 if said is None or counter not in said else int(said[counter].value)

    async def _values(self, interface: str, member: str, name: str) -> dict[str, Any] | None:
        """Call the bus's method `member` about the connection `name`. Return its answer, or None without one."""
        try:
            (found,) = await self._ask(Message(BUS, BUS_PATH, interface, member, signature="s", body=[name]))
        except (CallError, OSError):
            return None
        return dict(found)


def _gids(groups: Iterable[str]) -> Iterator[int]:
    """Yield the ids of those `groups` that exist on this host."""
    for group in groups:
        try:
            yield grp.getgrnam(group).gr_gid
        except KeyError:
            continue
