# SPDX-License-Identifier: LGPL-2.1-or-later
"""A system bus of one's own, with a real polkitd on it that knows our actions.

Nothing of the machine's own bus is touched, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from jeepney import Message, message_bus, new_method_return

from journalkeeper.bus import names
from journalkeeper.bus.connection import Connection, Received, make_call
from tests.nobody import NOBODY
from tests.patience import PATIENCE_S, eventually

METHOD_RETURN, ERROR = 2, 3

REPOSITORY = Path(__file__).parent.parent
DBUS = REPOSITORY / "configs" / "dbus"
POLICY = REPOSITORY / "configs" / "polkit" / "org.journalkeeper1.policy"
SYSTEM_CONF = Path("/usr/share/dbus-1/system.conf")
ACTIONS = "/usr/share/polkit-1/actions"
RULES = "/usr/share/polkit-1/rules.d"
POLKITD = ("/usr/lib/polkit-1/polkitd", "/usr/libexec/polkitd", "/usr/libexec/polkit-1/polkitd")

CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  {policy}
  <include>{ours}</include>
  <includedir>/usr/share/dbus-1/system.d</includedir>
</busconfig>
"""


def missing() -> str | None:
    """Why there can be no bus here, None if there can."""
    if os.geteuid() != 0:
        return "needs root: a service that has the name, and callers who are nobody"
    for program, package in (("dbus-daemon", "dbus"), ("busctl", "systemd"), ("gdbus", "libglib2.0-bin")):
        if shutil.which(program) is None:
            return f"{program} is not installed (package {package})"
    return None if _polkitd() else "polkitd is not installed (package polkitd, policykit-1 or polkit)"


def _polkitd() -> str | None:
    return next((path for path in POLKITD if os.access(path, os.X_OK)), None)


class PrivateBus:
    """A dbus-daemon with the distribution's policy for system buses and ours; started by `with`."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="bus-"))
        self._directory.chmod(0o755)
        self.socket = self._directory / "socket"
        self.address = f"unix:path={self.socket}"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._polkit: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_polkit()
        self.stop()
        shutil.rmtree(self._directory)

    def start(self) -> None:
        """Start the bus, which then takes connections."""
        text = SYSTEM_CONF.read_text()
        policies = text[text.index("<policy") : text.rindex("</policy>") + len("</policy>")]
        config = self._directory / "system.conf"
        ours = DBUS / "org.journalkeeper1.conf"
        config.write_text(CONFIG.format(socket=self.socket, policy=policies, ours=ours))
        words = ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile", "--nosyslog"]
        self._daemon = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        assert eventually(lambda: self.call("org.freedesktop.DBus", "GetId").returncode == 0)

    def stop(self) -> None:
        """End the bus, and with it every connection."""
        if self._daemon is not None:
            self._daemon.terminate()
            self.thaw()
            self._daemon.wait()
            self._daemon = None
            self.socket.unlink(missing_ok=True)

    def kill(self) -> None:
        """End the bus at once; `stop` still has to follow."""
        if self._daemon is not None:
            self._daemon.kill()

    def freeze(self) -> None:
        """Stop the bus, which takes connections and answers nothing until `thaw`."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the bus go on."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGCONT)

    def start_polkit(self, rule: str = "") -> None:
        """Start a polkitd that knows our actions and one `rule`; in a mount namespace of its own."""
        actions, rules = self._directory / "actions", self._directory / "rules"
        if not actions.exists():
            shutil.copytree(ACTIONS, actions)
            shutil.copy(POLICY, actions)
        rules.mkdir(exist_ok=True)
        (rules / "10-test.rules").write_text(rule)
        binds = f"mount --bind {actions} {ACTIONS} && mount --bind {rules} {RULES}"
        script = f"{binds} && exec {_polkitd()} --no-debug"
        self._polkit = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            env={**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": self.address},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert eventually(lambda: self.has("org.freedesktop.PolicyKit1")), "polkitd did not come"

    def stop_polkit(self) -> None:
        """End polkitd."""
        if self._polkit is not None:
            self._polkit.terminate()
            self._polkit.wait()
            self._polkit = None
            assert eventually(lambda: not self.has("org.freedesktop.PolicyKit1"))

    def run(self, *words: str, nobody: bool = False, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a program as a client of this bus, as root or as nobody."""
        return subprocess.run(
            words,
            env={**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": self.address, "LC_ALL": "C.UTF-8"},
            user=NOBODY if nobody else None,
            group=NOBODY if nobody else None,
            extra_groups=[] if nobody else None,
            capture_output=True,
            text=True,
            check=check,
            timeout=PATIENCE_S,
        )

    def call(self, name: str, member: str, *words: str, nobody: bool = False) -> subprocess.CompletedProcess[str]:
        """`busctl call` of a method of the object and interface that are called as the bus name."""
        path = "/" + name.replace(".", "/")
        return self.run("busctl", f"--address={self.address}", "call", name, path, name, member, *words, nobody=nobody)

    def gdbus(
        self, member: str, *words: str, path: str = names.MANAGER_PATH, nobody: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Call the service by gdbus, which says the names of errors; its manager's members by their name alone."""
        method = member if "." in member else f"{names.MANAGER}.{member}"
        where = ("--address", self.address, "--dest", names.BUS_NAME, "--object-path", path)
        return self.run("gdbus", "call", *where, "--method", method, *words, nobody=nobody)

    def has(self, name: str) -> bool:
        """Whether somebody has the name."""
        return self.call("org.freedesktop.DBus", "NameHasOwner", "s", name).stdout.strip() == "b true"


class FakePeer:
    """Has `name` on a bus, in a thread of its own, and answers each method call by `answer`."""

    name: str

    def __init__(self, address: str) -> None:
        self.address = address
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._thread.join()

    def end(self) -> None:
        """Leave the bus, as a service that was killed does; again does nothing."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._ended.set)

    async def _serve(self) -> None:
        self.loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self.bus = await Connection.open(self.address)
        self.bus.handle = self._handle
        await self.bus.call(message_bus.RequestName(self.name))
        self._ready.set()
        await self._ended.wait()
        self.bus.close()

    def _handle(self, message: Received) -> None:
        answer = self.answer(message)
        if answer is not None:
            self.bus.send(answer)

    def answer(self, message: Received) -> Message | None:
        """What is answered; None for silence."""
        raise NotImplementedError


def reply(message: Received, signature: str, *body: object) -> Message:
    """An answer to a method call."""
    return new_method_return(message, signature or None, body)


def raw_call(destination: str, path: str, interface: str, member: str, signature: str = "", *body: object) -> bytes:
    """A method call as it goes over the wire; its serial is at offset 8."""
    return bytes(make_call(destination, path, interface, member, signature, *body).serialise(2))


class RawClient:
    """A connection that says what it is told to, and costs its maker little."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(path)
        self._buffer = b""
        self.last = 0
        """What the last answer is: METHOD_RETURN or ERROR; 0 before the first."""
        self.errors = 0
        """How many answers were errors."""
        self.send(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
        assert self.socket.recv(4096).startswith(b"OK")
        self.send(b"BEGIN\r\n")
        bus = "org.freedesktop.DBus"
        self.send(raw_call(bus, "/org/freedesktop/DBus", bus, "Hello"))
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """All of it, or less if the bus has had enough."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def wait(self) -> None:
        """Until there is an answer, or the bus has ended the connection."""
        with suppress(ConnectionResetError, EOFError):
            while not self.replies():
                pass

    def replies(self) -> int:
        """How many answers are in what there is to read now. Raises: EOFError at the connection's end."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError
        self._buffer += data
        found = 0
        while len(self._buffer) >= 16:
            body, _, fields = struct.unpack_from("<III", self._buffer, 4)
            length = 16 + (fields + 7) // 8 * 8 + body
            if len(self._buffer) < length:
                break
            if self._buffer[1] in (METHOD_RETURN, ERROR):
                found, self.last = found + 1, self._buffer[1]
                self.errors += self.last == ERROR
            self._buffer = self._buffer[length:]
        return found
