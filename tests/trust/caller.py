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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from jeepney import message_bus

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
FEWEST: Final = 100
"""The least number of answers that the caller reads: the service answers twice as many calls at once."""

PING: Final = raw_call(names.BUS, message_bus.object_path, names.PEER, "Ping")
STATE: Final = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.PROPERTIES, "GetAll", "s", names.MANAGER)
PATHS: Final = ("/", names.MANAGER_PATH, names.JOB_PATHS, names.JOB_PATHS + "/1", "/a" * 1000)
MEMBERS: Final[Sequence[tuple[str, str, Sequence[str]]]] = (
    (names.MANAGER, "Plan", ("as", "s", "t")),
    (names.MANAGER, "Defragment", ("as", "s", "t")),
    (names.MANAGER, "ListFiles", "t"),
    (names.MANAGER, "Cancel", "o"),
    (names.MANAGER, "Result", "o"),
    (names.MANAGER, "Pause", "t"),
    *((names.MANAGER, member, "") for member in ("Resume", "Rescan", "Reload", "Nothing")),
    (names.PROPERTIES, "Get", "ss"),
    (names.PROPERTIES, "GetAll", "s"),
    (names.PROPERTIES, "Set", "ssv"),
    (names.INTROSPECTABLE, "Introspect", ""),
    *((names.PEER, member, "") for member in ("Ping", "GetMachineId")),
    *((interface, "Nothing", "") for interface in (names.JOB, "org.freedesktop.DBus.ObjectManager", "a.b")),
)
"""Interfaces, members, and the types that they take."""

VALUES: Final[Mapping[str, Sequence[Any]]] = {
    "s": (
        *("", "zstd", names.MANAGER, names.JOB, "State", server.file(0, 0).path, f"{server.TOP}/m/a.journal"),
        *("/etc/shadow", f"{server.TOP}/../x", "\x1b[31m\n", "\U0001f600", "x" * 5000, "%s%n", "../" * 100),
    ),
    "o": PATHS,
    "u": (0, 7, (1 << 31) - 1),
    "t": (0, 1, 7, (1 << 31) - 1, 1 << 63, (1 << 64) - 1),
    "as": ([], ["/etc/shadow"], [server.file(0, 0).path, f"{server.TOP}/../x"], ["x" * 200] * 1001),
    "v": (("b", True), ("s", "State"), ("as", ["zstd"]), ("u", 7), ("a{sv}", {}), ("ai", [1])),
    "ay": (b"", bytes(200_000)),
    "aav": ([], [[]] * 20_000),
    "a{sv}": ({}, dict.fromkeys((*FLAGS, "after", "x"), ("b", True))),
    "(ss)": (("a", "b"),),
    "a{s(ii)}": ({"a": (1, 2)},),
}
"""Values of complete types."""


def make_message(dice: random.Random, serial: int) -> tuple[bytes, bool]:
    """Return a call as it goes over the wire, and whether some of its bytes were changed."""
    interface, member, types = dice.choice(MEMBERS)
    if dice.random() < 0.5:
        interface = dice.choice(sorted({one for one, *_ in MEMBERS}))
    if dice.random() < 0.3:
        types = dice.choices(list(VALUES), k=dice.randrange(4))
    values = [dice.choice(VALUES[one]) for one in types]
    call = make_call(names.BUS_NAME, dice.choice(PATHS), interface, member, "".join(types), *values)
    data, changed = bytearray(call.serialise(serial)), dice.random() < 0.2
    data[2] = dice.choice((*[0] * 9, dice.randrange(256)))  # its flags
    for _ in range(dice.randrange(1, 4) if changed else 0):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data), changed


def _is_in(client: RawClient) -> bool:
    """Return whether the bus has not ended the connection for the last message: it answers a call behind it.

    It is silent where the message stated that it is longer than it is. Raises: EOFError, ConnectionError.
    """
    client.socket.sendall(PING)
    return bool(select.select([client.socket], [], [], SILENT_S)[0]) and client.replies() > 0


def send_all(bus: PrivateBus, messages: int, seed: int) -> int:
    """Send so many messages, on connections of random length. Return the number of answers that were read."""
    dice = random.Random(seed)  # noqa: S311 - repeatable is the point
    sent = answers = 0
    while sent < messages:
        with RawClient(str(bus.socket)) as client:
            reads = dice.random() < 0.8
            for _ in range(min(dice.choice([1, 100, 2000]), messages - sent)):
                sent += 1
                message, changed = make_message(dice, sent + 2)
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
        if answers < FEWEST:
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
