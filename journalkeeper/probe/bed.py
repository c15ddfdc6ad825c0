# SPDX-License-Identifier: LGPL-2.1-or-later
"""A test bed: a scratch btrfs, and a private systemd-journald that writes on it in its own namespaces.

The host's journald, /run and /var/log/journal are never touched. journald ends before its volume is unmounted.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from journalkeeper.journald.header import STATE_OFFSET

from . import scratch_volume
from .scratch_volume import ScratchVolume, own_mounts, run

JOURNALD = ("/usr/lib/systemd/systemd-journald", "/lib/systemd/systemd-journald")
OFFLINE, ONLINE, ARCHIVED = 0, 1, 2
ENTRIES_OFFSET = 152
"""The offset of n_entries in struct Header (systemd, journal-def.h)."""

SETTINGS = (
    "Storage=persistent",
    "RateLimitBurst=0",
    "ForwardToSyslog=no",
    "ForwardToWall=no",
    "ReadKMsg=no",
    "Audit=no",
)
VERBS = ("GET", "GET", "GET", "PUT", "POST", "HEAD")
NOUNS = ("invoice", "customer", "basket", "picture", "session", "report", "address", "voucher", "shipment", "comment")
STATUSES = (200, 200, 200, 304, 404, 503)
USERS, SESSIONS, PEERS, SEGMENTS = 2000, 700, 250, 8
AGAIN_S = 2.0
SIGNAL_SYNC = signal.SIGRTMIN + 1
SIGNAL_ROTATE = signal.SIGUSR2

ENTER = """
set -e
[ "$PPID" = "$1" ]  # our parent may have ended before setpriv(1) asked for its death signal
shift
# as process 1 sets it on a host: with the 10 of a new network namespace, senders block that would not on a host
# a container has /proc/sys read-only
qlen=/proc/sys/net/unix/max_dgram_qlen
{ echo 512 >$qlen; } 2>/dev/null || { mount -o remount,bind,rw /proc/sys && echo 512 >$qlen; }
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/log
mkdir -p /run/systemd/journal /run/systemd/journald.conf.d /var/log/journal
[ -z "$3" ] || touch /run/systemd/journal/flushed
mount --bind "$1" /var/log/journal
# other scratch volumes must not stay mounted for as long as this namespace lives
cut -d' ' -f5 /proc/self/mountinfo | grep /journalkeeper-lab- | while read -r point; do
    umount --lazy "$point" || :
done
printf '%s' "$2" >/run/systemd/journald.conf.d/lab.conf
shift 3
exec "$@"
"""


DIE_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""A command prefix: the kernel kills journald when the thread that started it ends."""


def messages(seed: int = 1) -> Iterator[dict[str, str]]:
    """Yield the fields of journal entries like those of a web service, endlessly; the same seed gives the same entries.

    A journal fragments because old pages are patched everywhere, not because of bytes. So some fields are new in every
    message, and some return after a thousand others. MESSAGE is always present.
    """
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


def program() -> str | None:
    """Return the path of systemd-journald on this machine; None if it is not installed."""
    return next((path for path in JOURNALD if os.access(path, os.X_OK)), None)


def missing_for_journald() -> str | None:
    """Return one line that states why no private journald can be started here; None if it can."""
    if os.geteuid() != 0:
        return "a private journald needs root: run with sudo"
    if program() is None:
        return "systemd-journald is not installed (package systemd)"
    if machine_id() is None:
        return "/etc/machine-id contains no id: run systemd-machine-id-setup"
    return None


def machine_id() -> str | None:
    """Return this machine's id; None if it has none yet."""
    try:
        text = Path("/etc/machine-id").read_text().strip()
    except FileNotFoundError:
        return None
    return text if len(text) == 32 else None


def _number(path: Path, offset: int, length: int) -> int:
    """Return `length` bytes at `offset` of a file as a little-endian number; 0 if the file does not exist yet."""
    try:
        with path.open("rb") as file:
            return int.from_bytes(os.pread(file.fileno(), length, offset), "little")
    except FileNotFoundError:
        return 0


class PrivateJournald:
    """A systemd-journald that writes to `directory`/<machine-id>.

    `sync_interval` and `settings` are as in journald.conf(5); `wrapper` is a command that runs journald, such as
    strace. Messages go to its sockets through /proc/PID/root, so the caller needs no namespace of its own.

    Raises: RuntimeError if this machine has no journald or it does not start.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        sync_interval: str = "5min",
        settings: tuple[str, ...] = (),
        wrapper: tuple[str, ...] = (),
    ) -> None:
        self.directory = Path(directory)
        reason = missing_for_journald()
        if reason is not None:
            raise RuntimeError(f"no private journald: {reason}")
        self.machine_id = machine_id() or ""
        lines = ("[Journal]", *SETTINGS, f"SyncIntervalSec={sync_interval}", *settings, "")
        self.conf = "\n".join(lines)
        self.wrapper = wrapper
        self.process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._traffic = messages()
        self.start()

    @property
    def journal(self) -> Path:
        """The instance's directory, <directory>/<machine-id>."""
        return self.directory / self.machine_id

    @property
    def active(self) -> Path:
        """The path of the file that journald writes now."""
        return self.journal / "system.journal"

    @property
    def pid(self) -> int:
        """The process id of journald.

        Raises: RuntimeError if it is not running.
        """
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError("the private journald is not running")
        return self.process.pid

    @property
    def inside(self) -> tuple[str, ...]:
        """The command prefix that runs a command with journald's mounts and our own root directory.

        Without --root, nsenter would leave a chroot, because the root of the mounts is outside of it.
        """
        return ("nsenter", f"--target={self.pid}", "--mount", "--root", "--wdns=/", "--")

    def start(self, *, flushed: bool = True) -> None:
        """Start journald and wait for its socket.

        Unless `flushed`, journald keeps its entries in its own /run until `flush`.

        Raises: RuntimeError if it does not start within 20 s.
        """
        self.journal.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "SYSTEMD_LOG_TARGET": "console", "SYSTEMD_LOG_LEVEL": "warning"}
        wrapped = (*self.wrapper, *DIE_WITH_US) if self.wrapper else ()
        enter = (*DIE_WITH_US, "unshare", "--net", *(own_mounts() or ()), "sh", "-c", ENTER, "lab", f"{os.getpid()}")
        asked = (os.fspath(self.directory), self.conf, "flushed" if flushed else "")
        argv = (*enter, *asked, *DIE_WITH_US, *wrapped, program() or "")
        null = subprocess.DEVNULL
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - it is gone with this object
        self.process = subprocess.Popen(argv, env=environment, stdin=null, stdout=null, stderr=self._complaints)
        try:
            self._wait(self._connect, "it did not start", 20)
            self.log("lab: journald is up")
            if flushed:
                self._wait(self.active.exists, "no system.journal appeared")
        except BaseException:
            self.stop()
            raise

    def _connect(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            self._complaints.seek(0)
            words = self._complaints.read().decode(errors="replace").strip()
            raise RuntimeError(f"private journald: it ended as it started: {words or 'no message'}")
        root = Path(f"/proc/{self.process.pid}/root/run/systemd")
        # the process starts in the host's namespace: never mistake the host's socket for ours
        if not (root / "journald.conf.d/lab.conf").exists():
            return False
        if not self.wrapper and not self._takes_signals():
            return False
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            channel.connect(os.fspath(root / "journal/socket"))
        except OSError:
            channel.close()
            return False
        self._socket = channel
        return True

    def _takes_signals(self) -> bool:
        """Return whether journald has blocked its signals, and so reads them. Before, a signal would end it."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
        return bool(int(mask, 16) >> (SIGNAL_ROTATE - 1) & 1)

    def log(self, message: str, **fields: str) -> None:
        """Send one message with the native protocol; block like any logger.

        Raises: RuntimeError if journald is not running; OSError if it died.
        """
        if self._socket is None:
            raise RuntimeError("the private journald is not running")
        body = b""
        for name, value in {"MESSAGE": message, "PRIORITY": "6", "SYSLOG_IDENTIFIER": "lab", **fields}.items():
            data = value.encode()
            body += name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
        self._socket.send(body)

    def sync(self) -> None:
        """Make journald sync its files and wait until the active file is no longer ONLINE.

        A message that arrives after the signal leaves the file ONLINE; then the signal is sent again.
        """
        asked_s = -AGAIN_S

        def is_synced() -> bool:
            nonlocal asked_s
            if time.monotonic() - asked_s >= AGAIN_S:
                os.kill(self.pid, SIGNAL_SYNC)
                asked_s = time.monotonic()
                return False
            return self.state() != ONLINE

        self._wait(is_synced, "journald did not sync")

    def state(self) -> int:
        """Return the state byte of the active file; OFFLINE if the file does not exist yet."""
        return _number(self.active, STATE_OFFSET, 1)

    def entries(self) -> int:
        """Return the number of entries in the active file; 0 if the file does not exist yet."""
        return _number(self.active, ENTRIES_OFFSET, 8)

    def age(self, flushes: int, messages: int = 40, *, syncs: bool = True) -> None:
        """Log `messages` messages and make journald flush them, `flushes` times.

        With `syncs=False` the same messages are logged, but journald is not asked to flush.
        """
        for _ in range(flushes):
            self._log(messages)
            self._wait(lambda: self.state() == ONLINE, "journald did not take the messages")
            if syncs:
                self.sync()

    def _log(self, messages: int) -> None:
        for fields in itertools.islice(self._traffic, messages):
            self.log(fields.pop("MESSAGE"), **fields)

    def rotate(self) -> Path:
        """Archive the active file and return the archive's path."""
        before = set(self.journal.iterdir())
        os.kill(self.pid, SIGNAL_ROTATE)
        fresh: list[Path] = []

        def is_archived() -> bool:
            fresh[:] = [
                path
                for path in set(self.journal.iterdir()) - before
                if path.name.startswith("system@") and path.name.endswith(".journal")
            ]
            if not fresh or not self.active.exists():
                return False
            return _number(fresh[0], STATE_OFFSET, 1) == ARCHIVED

        self._wait(is_archived, "journald did not rotate")
        return fresh[0]

    @property
    def runtime(self) -> Path:
        """The path of the journal file in /run of a journald that `boot` started, valid outside its namespace."""
        return Path(f"/proc/{self.pid}/root/run/log/journal", self.machine_id, "system.journal")

    def boot(self, messages: int) -> None:
        """Start journald as a boot does, and log `messages` messages to its journal in /run. See `flush`."""
        self.start(flushed=False)
        self._log(messages)
        self._wait(lambda: _number(self.runtime, ENTRIES_OFFSET, 8) >= messages, "journald did not take the messages")

    def flush(self) -> None:
        """Make journald move its runtime journal to `directory`, as systemd-journal-flush.service does at boot."""
        run(*self.inside, "journalctl", "--flush")

    def kill(self) -> None:
        """Kill journald, as a power cut would: unsynced files stay ONLINE."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop journald cleanly."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _wait(self, ready: Callable[[], bool], complaint: str, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        pause_s = 0.0005
        while not ready():
            if time.monotonic() > deadline:
                raise RuntimeError(f"private journald: {complaint} within {timeout_s:.0f} s")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Bed(NamedTuple):
    """A scratch volume, and the journald that writes to the volume's root."""

    volume: ScratchVolume
    journald: PrivateJournald

    @property
    def directory(self) -> Path:
        """The directory for `journalkeeper -D`."""
        return self.journald.directory


def missing() -> str | None:
    """Return one line that states why no bed can be made here; None if it can."""
    return scratch_volume.missing() or missing_for_journald()


@contextmanager
def bed(
    *settings: str, size: str = "1G", sync_interval: str = "5min", options: str = "", parent: str | None = None
) -> Iterator[Bed]:
    """Yield a new btrfs volume with a private journald that writes to it; remove both at the end.

    `settings` are lines for journald.conf(5). `size` (as in truncate(1)) and mount `options` are those of the volume,
    whose image is in a temporary directory below `parent`.
    """
    with (
        ScratchVolume(size, options=options, parent=parent) as scratch,
        PrivateJournald(scratch.mountpoint, sync_interval=sync_interval, settings=settings) as daemon,
    ):
        yield Bed(scratch, daemon)
