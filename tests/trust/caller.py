# SPDX-License-Identifier: LGPL-2.1-or-later
"""A user at the bus who sends anything: python -m tests.trust.caller [--messages N] [--seed N]

nobody calls methods that there are and that there are not, with bodies of any signature, with paths, names and
options of any kind, and with messages of which bytes were changed; reads the answers, or not, and comes again when the
bus has thrown it out. The service is the one of tests/trust/server.py on a bus of its own, without a polkitd: no
privileged method may be reached. Meanwhile root asks for the State again and again: the longest wait is the outage.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from dbus_fast import Message, MessageType, Variant

from journalkeeper.bus import names
from journalkeeper.bus.options import OPTION_SIGNATURES
from tests import bus as beds
from tests.bench.figures import Option
from tests.bus import METHOD_RETURN, REPOSITORY, PrivateBus, RawClient, raw_call
from tests.daemon import memory_kib
from tests.nobody import NOBODY
from tests.patience import eventually
from tests.trust import server as made
from tests.trust import table

KIND: Final = "bus"
FILES: Final = 200
MORE_KIB: Final = 64 << 10
ANSWER_S: Final = 60.0
SILENT_S: Final = 0.2
PING: Final = raw_call("org.freedesktop.DBus", "/org/freedesktop/DBus", names.PEER, "Ping")
ANSWERS: Final = b"answers "
FEWEST: Final = 0.05
"""The share of messages of which the caller reads an answer, at least: others it does not read."""

STATE: Final = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.PROPERTIES, "GetAll", "s", names.MANAGER)

INTERFACES: Final = (
    names.MANAGER, names.JOB, names.PROPERTIES, names.INTROSPECTABLE, names.PEER, "org.freedesktop.DBus.ObjectManager",
    "org.freedesktop.DBus", "a.b",
)  # fmt: skip
MEMBERS: Final = (
    *("Plan", "ListFiles", "Defragment", "Cancel", "Result", "Pause", "Resume", "Rescan", "Reload"),
    *("Get", "GetAll", "Set", "Introspect", "Ping", "GetMachineId", "Nothing"),
)
SIGNATURES: Final = ("", "s", "o", "u", "t", "ss", "sa{sv}", "a{sv}", "ssv", "as", "v", "ay", "aav", "(ss)", "a{s(ii)}")
LIKELY: Final = {
    "Plan": "a{sv}", "ListFiles": "a{sv}", "Defragment": "a{sv}", "Cancel": "o", "Result": "o", "Pause": "t",
    "Get": "ss", "GetAll": "s", "Set": "ssv",
}  # fmt: skip


class Caller:
    """Makes messages."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._serial = 2
        self._paths = ["/", names.MANAGER_PATH, names.JOB_PATHS, names.JOB_PATHS + "/1", "/a" * 1000]

    def message(self) -> tuple[bytes, bool]:
        """The next one, as it goes over the wire, and whether some of its bytes were changed."""
        data = bytearray(self._call())
        if self._dice.random() < 0.1:
            data[2] = self._dice.randrange(256)  # its flags
        if self._dice.random() >= 0.2:
            return bytes(data), False
        for _ in range(self._dice.randrange(1, 4)):
            data[self._dice.randrange(len(data))] = self._dice.randrange(256)
        return bytes(data), True

    def _call(self) -> bytes:
        self._serial += 1
        pick = self._dice.choice
        member = pick(MEMBERS)
        signature = LIKELY.get(member, "") if self._dice.random() < 0.7 else pick(SIGNATURES)
        kind = MessageType.METHOD_CALL if self._dice.random() < 0.9 else pick(list(MessageType))
        message = Message(
            destination=names.BUS_NAME,
            path=pick(self._paths),
            interface=pick(INTERFACES) if self._dice.random() < 0.5 else self._fitting(member),
            member=member,
            signature=signature,
            body=[self._value(one) for one in _split(signature)],
            serial=self._serial,
            reply_serial=self._dice.randrange(1, 100),
            error_name="a.b" if kind is MessageType.ERROR else None,
            message_type=kind,
        )
        return bytes(message._marshall(False))

    def _fitting(self, member: str) -> str:
        if member in {"Get", "GetAll", "Set"}:
            return names.PROPERTIES
        return {"Introspect": names.INTROSPECTABLE}.get(
            member, names.PEER if member in {"Ping", "GetMachineId"} else names.MANAGER
        )

    def _value(self, signature: str) -> Any:
        number = self._dice.choice([0, 1, 7, (1 << 31) - 1])
        values: dict[str, Callable[[], Any]] = {
            "s": self._text,
            "o": lambda: self._dice.choice(self._paths),
            "u": lambda: number,
            "t": lambda: self._dice.choice([number, (1 << 64) - 1, 1 << 63]),
            "as": lambda: [self._text() for _ in range(self._dice.choice([0, 1, 3, 1001]))],
            "v": self._variant,
            "ay": lambda: self._dice.randbytes(self._dice.choice([0, 100, 200_000])),
            "aav": lambda: [[] for _ in range(self._dice.choice([0, 10, 20_000]))],
            "a{sv}": lambda: {self._option(): self._variant() for _ in range(self._dice.randrange(4))},
            "(ss)": lambda: ["a", "b"],
            "a{s(ii)}": lambda: {"a": [1, 2]},
        }
        return values[signature]()

    def _variant(self) -> Variant:
        options: dict[str, Any] = {"b": True, "s": self._text(), "as": [self._text()], "u": 7, "a{sv}": {}, "ai": [1]}
        signature = self._dice.choice(list(options))
        return Variant(signature, options[signature])

    def _option(self) -> str:
        return self._dice.choice((*OPTION_SIGNATURES, "after", "x", self._text()))

    def _text(self) -> str:
        texts = (
            *("", "zstd", names.MANAGER, names.JOB, "State", made.file(0, 0).path, f"{made.TOP}/m/a.journal"),
            *("/etc/shadow", f"{made.TOP}/../x", "\x1b[31m\n", "\U0001f600", "x" * 5000, "%s%n", "../" * 100),
        )
        return self._dice.choice(texts)


def _split(signature: str) -> list[str]:
    """The whole types of a signature; of those that LIKELY and SIGNATURES have."""
    return {"ss": ["s", "s"], "sa{sv}": ["s", "a{sv}"], "ssv": ["s", "s", "v"], "": []}.get(signature, [signature])


def _is_in(client: RawClient) -> bool:
    """Whether the bus has not ended the connection for the last message: it answers a call behind it, or is silent.

    It is silent where the message said that it is longer than it is. Raises: EOFError, ConnectionError.
    """
    client.socket.sendall(PING)
    return bool(select.select([client.socket], [], [], SILENT_S)[0]) and client.replies() > 0


def send_all(bus: PrivateBus, messages: int, seed: int, progress_fd: int) -> None:
    """As nobody: send so many; how many were sent, and at the end how many answers came, goes to `progress_fd`."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    dice = random.Random(seed)  # noqa: S311 - repeatable is the point
    caller = Caller(dice)
    sent = answers = 0
    while sent < messages:
        with RawClient(str(bus.socket)) as client:
            reads = dice.random() < 0.8
            for _ in range(min(dice.choice([1, 100, 2000]), messages - sent)):
                sent += 1
                message, changed = caller.message()
                try:
                    client.socket.sendall(message)
                    while reads and select.select([client.socket], [], [], 0)[0]:
                        answers += client.replies()
                    if changed and not (reads and _is_in(client)):
                        break  # what came after it would not be read
                except (EOFError, ConnectionError):
                    break  # the bus does not want to hear more of this one
                except TimeoutError:
                    if reads:
                        raise
                    break  # the bus waits for us to read
        if sent % 1000 < 10:
            os.write(progress_fd, b"%d\n" % sent)
    os.write(progress_fd, b"%d\n%s%d\n" % (sent, ANSWERS, answers))


class Asking(threading.Thread):
    """Root, who asks for the State every tenth of a second; `longest_s` is the longest wait for an answer."""

    def __init__(self, bus: PrivateBus) -> None:
        super().__init__(daemon=True)
        self._bus = bus
        self.over = threading.Event()
        self.longest_s = 0.0
        self.unanswered: list[str] = []

    def run(self) -> None:
        while not self.over.wait(0.1):
            began_s = time.monotonic()
            try:
                self._ask()
            except (OSError, EOFError, AssertionError) as error:
                self.unanswered.append(f"{type(error).__name__}: {error}")
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def _ask(self) -> None:
        """Raises: TimeoutError, EOFError, ConnectionError, AssertionError if it is not told."""
        with RawClient(str(self._bus.socket)) as client:
            client.socket.settimeout(ANSWER_S)
            client.send(STATE)
            while not client.replies():
                continue
            assert client.last == METHOD_RETURN, "an error"


class Served:
    """tests/trust/server.py as a process, with these words."""

    def __init__(self, bus: PrivateBus, log: Path, *words: str) -> None:
        environment = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": bus.address, "PYTHONPATH": f"{REPOSITORY}"}
        self._log = log
        with log.open("w") as output:
            program = [sys.executable, "-m", "tests.trust.server", *words]
            self.process = subprocess.Popen(program, env=environment, stdout=output, stderr=subprocess.STDOUT)
        if not eventually(lambda: bus.has(names.BUS_NAME)):
            raise RuntimeError(self.log())

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def rss_kib(self) -> int:
        return memory_kib(self.process.pid)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def call(asked: Namespace) -> table.Row:
    """Let nobody send so many messages."""
    unclean: list[str] = []
    with ExitStack() as stack:
        bus = stack.enter_context(PrivateBus())
        base = stack.enter_context(tempfile.TemporaryDirectory(prefix="caller-"))
        served = Served(bus, Path(base, "log"), f"{FILES}", "40", "ends")
        stack.callback(served.stop)
        owner = bus.call("org.freedesktop.DBus", "GetNameOwner", "s", names.BUS_NAME).stdout
        before_kib = served.rss_kib()
        asking = Asking(bus)
        asking.start()
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                send_all(bus, asked.messages, asked.seed, writable)
            except BaseException as error:  # noqa: BLE001 - all of it is told to the parent
                os.write(writable, f"{type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(0)
        os.close(writable)
        with os.fdopen(readable) as pipe:
            lines = pipe.read().splitlines()
        os.waitpid(child, 0)
        sent = max((int(line) for line in lines if line.isdigit()), default=0)
        answers = max((int(line[len(ANSWERS) :]) for line in lines if line.startswith(ANSWERS.decode())), default=0)
        others = [line for line in lines if not line.isdigit() and not line.startswith(ANSWERS.decode())]
        unclean += [f"the caller after {sent} messages: {line}" for line in others]
        if answers < FEWEST * sent:
            unclean.append(f"{answers} answers to {sent} messages: it is not the service that they came to")
        asking.over.set()
        asking.join()
        if bus.call("org.freedesktop.DBus", "GetNameOwner", "s", names.BUS_NAME).stdout != owner:
            unclean.append("the service lost its name or its connection")
        if served.process.poll() is not None:
            unclean.append(f"the service ended: {served.process.returncode}")
        elif served.rss_kib() - before_kib > MORE_KIB:
            unclean.append(f"the service grew from {before_kib} to {served.rss_kib()} KiB")
        log = served.log()
    if asking.unanswered:
        unclean.append(f"{len(asking.unanswered)} questions of root's without an answer: {asking.unanswered[0]}")
    unclean += [line for line in log.splitlines() if line.startswith(made.PRIVILEGED)]
    unclean += [log[-3000:]] if "Traceback" in log else []
    table.say(f"{sent:,} messages, {answers:,} answers to those who read them")
    return table.judged(KIND, sent, asked.seed, unclean=unclean, outage_s=asking.longest_s)


OPTIONS: Final = {"messages": Option(100_000, "that are sent"), "seed": table.SEED}

if __name__ == "__main__":
    sys.exit(table.command(__doc__, KIND, call, OPTIONS, missing=beds.missing))
