# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who calls: the user behind a connection, the calls of theirs under way, and the bytes that they have not read.

A bus keeps what a caller does not read. dbus-daemon stops reading from a service, for all its
callers, when 127 MiB of the service's messages are kept (max_incoming_bytes). So a user who has
UNREAD_MOST to read is refused until they have read it, and UNREAD_ALL bounds it for all users
together. What is sent is counted here; what of it is unread, only the bus knows: it is asked
when a user reaches the limit. Users count as a whole, root's programs one by one.

Source: dbus-daemon(1), limits; dbus-daemon's interface org.freedesktop.DBus.Debug.Stats, for root.
"""

from __future__ import annotations

import asyncio
import grp
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakValueDictionary

from dbus_fast import Message, MessageType

from journalkeeper.bus.names import ACCESS_DENIED, LIMITS_EXCEEDED, USER_PREFIX

BUS: Final = "org.freedesktop.DBus"
BUS_PATH: Final = "/org/freedesktop/DBus"
STATS: Final = f"{BUS}.Debug.Stats"

READERS: Final = ("systemd-journal", "adm", "wheel")
"""Groups that may read every journal. Source: journalctl(1)."""

CALLERS_MOST: Final = 1024
"""Connections that are remembered, four times of what a bus grants a user (max_connections_per_user)."""

AT_ONCE: Final = 8
"""Long calls of one user under way: lists, plans, questions to polkit. The bus lets us wait for 128 answers."""

UNKNOWN_AT_ONCE: Final = 32
"""Long calls that wait until the bus has said whose they are."""

UNREAD_MOST: Final = 8 << 20
UNREAD_ALL: Final = 64 << 20
UNREAD_LEAST: Final = 1 << 16
"""Bytes: for one user; for all users, after which each has only UNREAD_LEAST, as one who is not known yet."""

REFUSED_MOST: Final = 100
"""Refusals to one who does not read; after that no answer. A bus allows 128 calls without one for a connection."""

ASK_AGAIN_S: Final = 0.5
"""After this time the bus is asked again about a user who did not read."""

READ_AFTER_S: Final = 60.0
"""Where a bus does not say what is unread, what is older counts as read. dbus-broker itself ends who does not read."""

Ask = Callable[[Message], Awaitable[Message | None]]
User = int | str


class CallError(Exception):
    """The error that a caller gets: `name` is its name on the bus, the text one sentence."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        super().__init__(text)


class Caller:
    """A connection to the bus; `uid` is None until the bus was asked, `unread_bytes` at most what it has to read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.uid: int | None = None
        self.reads_all = False
        self.unread_bytes = 0
        self.asked: asyncio.Future[dict[str, Any] | None] | None = None

    @property
    def user(self) -> User:
        """Whose share of everything it uses."""
        return self.uid or self.name

    def reads(self, owner: str) -> bool:
        """Whether they may know what is in a journal file of `owner`."""
        return self.reads_all or not owner.startswith(USER_PREFIX) or owner == f"{USER_PREFIX}{self.uid}"


class Callers:
    """Those of one connection of ours, called `own` on the bus; `ask` calls a method of the bus itself."""

    def __init__(self, ask: Ask, own: str) -> None:
        self._ask = ask
        self._own = own
        self._known: OrderedDict[str, Caller] = OrderedDict()
        self._busy: Counter[User | None] = Counter()
        self._unread: Counter[User] = Counter()
        self._refused: Counter[User] = Counter()
        self._kept_bytes = 0
        self._sent_bytes = 0
        self._measured_s = 0.0
        self._asked_s: dict[User, float] = {}
        self._turn = asyncio.Lock()
        self._turns: WeakValueDictionary[User, asyncio.Lock] = WeakValueDictionary()
        self._gids = frozenset(_gids(READERS))

    def find(self, name: str) -> Caller:
        """The caller of this name."""
        caller = self._known.get(name)
        if caller is None:
            caller = self._known[name] = Caller(name)
            if len(self._known) > CALLERS_MOST:
                _, forgotten = self._known.popitem(last=False)
                self._read(forgotten, 0)
                if not self._unread[forgotten.user]:
                    self._asked_s.pop(forgotten.user, None)
                    del self._refused[forgotten.user]
        self._known.move_to_end(name)
        return caller

    async def identify(self, caller: Caller) -> None:
        """Learn the user of `caller`. Raises: CallError if the bus does not say."""
        if caller.uid is None:
            if caller.asked is None:
                caller.asked = asyncio.ensure_future(self._values(BUS, "GetConnectionCredentials", caller.name))
            said = await asyncio.shield(caller.asked)
            caller.asked = None
            if said is None or "UnixUserID" not in said:
                raise CallError(ACCESS_DENIED, "the bus does not say who you are")
            unread = caller.unread_bytes
            self._read(caller, 0)
            caller.uid = said["UnixUserID"].value
            groups = said["UnixGroupIDs"].value if "UnixGroupIDs" in said else ()
            caller.reads_all = caller.uid == 0 or not self._gids.isdisjoint(groups)
            self._read(caller, unread)

    @contextmanager
    def place(self, caller: Caller) -> Iterator[None]:
        """One more call of theirs is under way. Raises: CallError if there are too many."""
        user = caller.user if caller.uid is not None else None
        most = AT_ONCE if user is not None else UNKNOWN_AT_ONCE
        if self._busy[user] >= most:
            raise CallError(LIMITS_EXCEEDED, f"{most} calls are under way already; try again later")
        self._busy[user] += 1
        try:
            yield
        finally:
            self._busy[user] -= 1
            if not self._busy[user]:
                del self._busy[user]

    def turn(self, caller: Caller) -> asyncio.Lock:
        """To be held by a call that takes long, so that of each user one at a time waits among all users' calls."""
        lock = self._turns.get(caller.user)
        if lock is None:
            lock = self._turns[caller.user] = asyncio.Lock()
        return lock

    # -- What is unread ------------------------------------------------------------------------

    def sent(self, name: str, size_bytes: int) -> None:
        """So much was sent to a caller."""
        caller = self.find(name)
        self._sent_bytes += size_bytes
        self._read(caller, caller.unread_bytes + size_bytes)

    def is_full(self, caller: Caller) -> bool:
        """Whether they may have so much to read that they get nothing more before the bus was asked."""
        scarce = caller.uid is None or self._kept_bytes + self._sent_bytes > UNREAD_ALL
        return self._unread[caller.user] > (UNREAD_LEAST if scarce else UNREAD_MOST)

    def may_refuse(self, caller: Caller) -> bool:
        """Whether they get an answer to a call that is refused: one who does not read gets REFUSED_MOST of them."""
        if not self.is_full(caller):
            return True
        self._refused[caller.user] += 1
        return self._refused[caller.user] <= REFUSED_MOST

    async def settle(self, caller: Caller) -> None:
        """Return when they may be sent more. Raises: CallError if they have to read first."""
        if not self.is_full(caller):
            return
        await self.identify(caller)
        clock = asyncio.get_running_loop().time
        async with self._turn:
            if self.is_full(caller) and clock() - self._asked_s.get(caller.user, -ASK_AGAIN_S) >= ASK_AGAIN_S:
                await self._measure(caller)
                self._asked_s[caller.user] = clock()
        if self.is_full(caller):
            raise CallError(LIMITS_EXCEEDED, "read the answers that you have before you ask for more")
        self._asked_s.pop(caller.user, None)
        del self._refused[caller.user]

    async def _measure(self, caller: Caller) -> None:
        """Ask the bus how much it keeps of ours, and if that is much, how much for `caller`'s user."""
        sent_bytes = self._sent_bytes
        kept = await self._kept(self._own, "IncomingBytes")
        now_s = asyncio.get_running_loop().time()
        if kept is None and now_s - self._measured_s < READ_AFTER_S:
            return
        self._measured_s = now_s
        self._kept_bytes = kept or 0
        self._sent_bytes -= sent_bytes
        if self._kept_bytes < UNREAD_MOST:
            self._unread.clear()
            for one in self._known.values():
                one.unread_bytes = 0
            return
        for one in [one for one in self._known.values() if one.user == caller.user and one.unread_bytes]:
            self._read(one, min(one.unread_bytes, await self._kept(one.name, "OutgoingBytes") or 0))

    def _read(self, caller: Caller, unread_bytes: int) -> None:
        """So much is left for `caller` to read."""
        self._unread[caller.user] += unread_bytes - caller.unread_bytes
        caller.unread_bytes = unread_bytes
        if self._unread[caller.user] <= 0:
            del self._unread[caller.user]

    # -- What the bus says ---------------------------------------------------------------------

    async def _kept(self, name: str, what: str) -> int | None:
        """Bytes that the bus keeps of (IncomingBytes) or for (OutgoingBytes) a connection; None: it does not say."""
        said = await self._values(STATS, "GetConnectionStats", name)
        return None if said is None or what not in said else int(said[what].value)

    async def _values(self, interface: str, member: str, name: str) -> dict[str, Any] | None:
        """What the bus answers about a connection."""
        reply = await self._ask(Message(BUS, BUS_PATH, interface, member, signature="s", body=[name]))
        answered = reply is not None and reply.message_type is MessageType.METHOD_RETURN
        return reply.body[0] if reply is not None and answered and reply.signature == "a{sv}" else None


def _gids(groups: Iterable[str]) -> Iterator[int]:
    """The numbers of those groups that there are."""
    for group in groups:
        try:
            yield grp.getgrnam(group).gr_gid
        except KeyError:
            continue
