# SPDX-License-Identifier: LGPL-2.1-or-later
"""A user at the bus who sends anything: python -m tests.trust.caller [--messages N] [--seed N]

nobody calls methods that exist and methods that do not, with bodies of any signature, with paths, names and options of
any kind, and with messages whose bytes were changed; reads the answers, or not, and connects again when the bus has
ended the connection. The service is tests/trust/server.py on a bus of its own, without a polkitd: no privileged method
may be reached. Meanwhile root asks for the State again and again: the longest wait is the outage.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from jeepney import HeaderFields, MessageType

from journalkeeper.bus import names
from journalkeeper.bus.connection import make_call
from journalkeeper.bus.contract import FLAGS
from tests import bus as beds
from tests.bench.figures import Option
from tests.bus import METHOD_RETURN, REPOSITORY, PrivateBus, RawClient, raw_call
from tests.daemon import memory_kib
from tests.nobody import as_nobody
from tests.patience import eventually
from tests.repeat import repeat
from tests.trust import server, table
from tests.trust.table import Tally

FILES: Final = 200
MORE_KIB: Final = 64 << 10
SILENT_S: Final = 0.2
FEWEST: Final = 0.05
"""The least share of messages whose answers the caller reads."""

PING: Final = raw_call(names.BUS, names.BUS_PATH, names.PEER, "Ping")
STATE: Final = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.PROPERTIES, "GetAll", "s", names.MANAGER)
MEMBERS: Final = {
    "Plan": "asst", "ListFiles": "t", "Defragment": "asst", "Cancel": "o", "Result": "o", "Pause": "t",
    "Resume": "", "Rescan": "", "Reload": "", "Get": "ss", "GetAll": "s", "Set": "ssv", "Introspect": "", "Ping": "",
    "GetMachineId": "", "Nothing": "",
}  # fmt: skip
"""Members, and the signatures of those that exist."""

INTERFACES: Final = {
    **dict.fromkeys(("Get", "GetAll", "Set"), names.PROPERTIES), "Introspect": names.INTROSPECTABLE,
    **dict.fromkeys(("Ping", "GetMachineId"), names.PEER), "Nothing": names.JOB,
    **dict.fromkeys(("a", "b"), "org.freedesktop.DBus.ObjectManager"),
}  # fmt: skip
"""The interfaces of members that are not the Manager's, and others."""

SIGNATURES: Final[dict[str, list[str]]] = {
    "": [], "asst": ["as", "s", "t"], "ss": ["s", "s"], "sa{sv}": ["s", "a{sv}"], "ssv": ["s", "s", "v"],
    **{one: [one] for one in ("s", "o", "u", "t", "a{sv}", "as", "v", "ay", "aav", "(ss)", "a{s(ii)}")},
}  # fmt: skip
"""Signatures, and the complete types in them."""


class Caller:
    """Makes messages."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._serial = 2
        self._paths = ["/", names.MANAGER_PATH, names.JOB_PATHS, names.JOB_PATHS + "/1", "/a" * 1000]

    def make_message(self) -> tuple[bytes, bool]:
        """Return the next message as it goes over the wire, and whether some of its bytes were changed."""
        data = bytearray(self._make_call())
        if self._dice.random() < 0.1:
            data[2] = self._dice.randrange(256)  # its flags
        if self._dice.random() >= 0.2:
            return bytes(data), False
        for _ in range(self._dice.randrange(1, 4)):
            data[self._dice.randrange(len(data))] = self._dice.randrange(256)
        return bytes(data), True

    def _make_call(self) -> bytes:
        self._serial += 1
        pick = self._dice.choice
        member = pick(list(MEMBERS))
        signature = MEMBERS[member] if self._dice.random() < 0.7 else pick(list(SIGNATURES))
        fitting = INTERFACES.get(member, names.MANAGER)
        interface = pick([names.MANAGER, "a.b", *INTERFACES.values()]) if self._dice.random() < 0.5 else fitting
        values = [self._make_value(one) for one in SIGNATURES[signature]]
        message = make_call(names.BUS_NAME, pick(self._paths), interface, member, signature, *values)
        kind = MessageType.method_call if self._dice.random() < 0.9 else pick(list(MessageType))
        message.header.message_type = kind
        message.header.fields[HeaderFields.reply_serial] = self._dice.randrange(1, 100)
        if kind is MessageType.error:
            message.header.fields[HeaderFields.error_name] = "a.b"
        return bytes(message.serialise(self._serial))

    def _make_value(self, signature: str) -> Any:
        number = self._dice.choice([0, 1, 7, (1 << 31) - 1])
        values: dict[str, Callable[[], Any]] = {
            "s": self._make_text,
            "o": lambda: self._dice.choice(self._paths),
            "u": lambda: number,
            "t": lambda: self._dice.choice([number, (1 << 64) - 1, 1 << 63]),
            "as": lambda: [self._make_text() for _ in range(self._dice.choice([0, 1, 3, 1001]))],
            "v": self._make_variant,
            "ay": lambda: self._dice.randbytes(self._dice.choice([0, 100, 200_000])),
            "aav": lambda: [[] for _ in range(self._dice.choice([0, 10, 20_000]))],
            "a{sv}": lambda: {self._make_option(): self._make_variant() for _ in range(self._dice.randrange(4))},
            "(ss)": lambda: ("a", "b"),
            "a{s(ii)}": lambda: {"a": (1, 2)},
        }
        return values[signature]()

    def _make_variant(self) -> tuple[str, Any]:
        text = self._make_text()
        options: dict[str, Any] = {"b": True, "s": text, "as": [text], "u": 7, "a{sv}": {}, "ai": [1]}
        signature = self._dice.choice(list(options))
        return signature, options[signature]

    def _make_option(self) -> str:
        return self._dice.choice((*FLAGS, "after", "x", self._make_text()))

    def _make_text(self) -> str:
        texts = (
            *("", "zstd", names.MANAGER, names.JOB, "State", server.file(0, 0).path, f"{server.TOP}/m/a.journal"),
            *("/etc/shadow", f"{server.TOP}/../x", "\x1b[31m\n", "\U0001f600", "x" * 5000, "%s%n", "../" * 100),
        )
        return self._dice.choice(texts)


def _is_in(client: RawClient) -> bool:
    """Return whether the bus has not ended the connection for the last message: it answers a call behind it.

    It is silent where the message stated that it is longer than it is. Raises: EOFError, ConnectionError.
    """
    client.socket.sendall(PING)
    return bool(select.select([client.socket], [], [], SILENT_S)[0]) and client.replies() > 0


def send_all(bus: PrivateBus, messages: int, seed: int) -> int:
    """Send so many messages, on connections of random length. Return the number of answers that were read."""
    dice = random.Random(seed)  # noqa: S311 - repeatable is the point
    caller = Caller(dice)
    sent = answers = 0
    while sent < messages:
        with RawClient(str(bus.socket)) as client:
            reads = dice.random() < 0.8
            for _ in range(min(dice.choice([1, 100, 2000]), messages - sent)):
                sent += 1
                message, changed = caller.make_message()
                try:
                    client.socket.sendall(message)
                    while reads and select.select([client.socket], [], [], 0)[0]:
                        answers += client.replies()
                    if changed and not (reads and _is_in(client)):
                        break  # the bus would not read what comes after it
                except (EOFError, ConnectionError):
                    break  # the bus has ended the connection
                except TimeoutError:
                    if reads:
                        raise
                    break  # the bus waits until answers are read
    return answers


class Served:
    """A process of tests/trust/server.py."""

    def __init__(self, bus: PrivateBus, log: Path, *words: str) -> None:
        environment = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": bus.address, "PYTHONPATH": f"{REPOSITORY}"}
        self._log = log
        with log.open("w") as output:
            program = [sys.executable, "-m", "tests.trust.server", *words]
            self.process = subprocess.Popen(program, env=environment, stdout=output, stderr=subprocess.STDOUT)
        if not eventually(lambda: bus.has(names.BUS_NAME)):
            raise RuntimeError(self.log())

    def log(self) -> str:
        """Return what it has logged."""
        return self._log.read_text(errors="replace")

    def rss_kib(self) -> int:
        """Return its resident size."""
        return memory_kib(self.process.pid)

    def stop(self) -> None:
        """End it by SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def find_owner(bus: PrivateBus) -> str:
    """Return the unique name of the service's connection; "" if it has none."""
    return bus.call(names.BUS, "GetNameOwner", "s", names.BUS_NAME).stdout


def ask_state(bus: PrivateBus) -> float:
    """Ask for the State as root. Return how many seconds the answer took. Raises: AssertionError, EOFError, OSError."""
    began_s = time.monotonic()
    with RawClient(str(bus.socket)) as client:
        client.send(STATE)
        while not client.replies():
            continue
        assert client.last == METHOD_RETURN, "an error"
    return time.monotonic() - began_s


def attack(asked: Namespace, tally: Tally) -> None:
    """Let nobody send so many messages."""
    unclean: list[str] = []
    waits_s: list[float] = []
    with ExitStack() as stack:
        bus = stack.enter_context(PrivateBus())
        base = stack.enter_context(tempfile.TemporaryDirectory(prefix="caller-"))
        served = Served(bus, Path(base, "log"), f"{FILES}", "40", "ends")
        stack.callback(served.stop)
        owner, before_kib = find_owner(bus), served.rss_kib()

        def fail(error: Exception) -> None:
            unclean.append(f"root got no answer: {error!r}")

        with repeat(lambda: waits_s.append(ask_state(bus)), lambda: 0.1, fail):
            answers = as_nobody(lambda: send_all(bus, asked.messages, asked.seed))
        if answers < FEWEST * asked.messages:
            unclean.append(f"{answers} answers to {asked.messages} messages: they did not reach the service")
        if find_owner(bus) != owner:
            unclean.append("the service lost its name or its connection")
        if served.rss_kib() - before_kib > MORE_KIB:
            unclean.append(f"the service grew from {before_kib} to {served.rss_kib()} KiB")
        log = served.log()
    unclean += [line for line in log.splitlines() if line.startswith(server.PRIVILEGED)]
    unclean += [log[-3000:]] if "Traceback" in log else []
    table.say(f"{answers:,} answers were read")
    tally.add("bus", unclean=unclean, outage_s=max(waits_s), points=asked.messages)


OPTIONS: Final = {"messages": Option(100_000, "that are sent")}

if __name__ == "__main__":
    sys.exit(table.command(__doc__, attack, OPTIONS, find_obstacle=beds.missing))
