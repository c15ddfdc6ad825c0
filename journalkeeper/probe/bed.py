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
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from journalkeeper.journald.journal_file import STATE_OFFSET
from journalkeeper.journald.layout import read_machine_id
from journalkeeper.model.errors import KeeperError

from .scratch_volume import OWN_MOUNTS, ScratchVolume, run, undo_at_end, wait_until

JOURNALD = "/usr/lib/systemd/systemd-journald"
OFFLINE, ONLINE, ARCHIVED = 0, 1, 2
SETTINGS = ("Storage=persistent", "RateLimitBurst=0", "ForwardToSyslog=no", "ReadKMsg=no", "Audit=no")
VERBS = ("GET", "GET", "GET", "PUT", "POST", "HEAD")
NOUNS = ("invoice", "customer", "basket", "picture", "session", "report", "address", "voucher", "shipment", "comment")
STATUSES = (200, 200, 200, 304, 404, 503)
USERS, SESSIONS, PEERS, SEGMENTS = 2000, 700, 250, 8
AGAIN_S, SIGNALS = 2.0, 30
SIGNAL_SYNC = signal.SIGRTMIN + 1

START = """
set -e
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
SYSTEMD_LOG_TARGET=console SYSTEMD_LOG_LEVEL=warning "$4" </dev/null >/dev/null &
trap 'kill $! 2>/dev/null && wait' EXIT
trap exit TERM
until journalctl --sync 2>/dev/null; do
    [ -e /proc/$!/exe ]
    sleep 0.02
done
echo $!
read -r _ || :
"""
"""Start journald, and print its process id when it takes messages and signals. Stop it when stdin ends."""


def generate_messages(seed: int = 1) -> Iterator[dict[str, str]]:
    """Yield MESSAGE and LAB_ fields of entries as of a web service, endlessly; the same seed gives the same entries.

    LAB_REQUEST, LAB_PATH and LAB_TRACE are new in almost every entry. Values of LAB_USER, LAB_PEER and LAB_SESSION
    return, and then journald changes old pages in all parts of the file: these changes fragment a journal, not its
    size.
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


class PrivateJournald(ExitStack):
    """A systemd-journald that writes to `directory`/<machine-id>. It runs when the constructor returns.

    `settings` are lines of journald.conf(5) after SETTINGS. It ends with a `with` block, and with this process.

    Raises: KeeperError with journald's messages if it does not start.
    """

    def __init__(self, directory: str | os.PathLike[str], *, settings: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.directory = Path(directory)
        self.journal = self.directory / read_machine_id()
        """The instance's directory."""
        self.active = self.journal / "system.journal"
        """The file that journald writes now."""
        self._conf = "\n".join(("[Journal]", *SETTINGS, *settings, ""))
        self._traffic = generate_messages()
        self._pid: int | None = None
        self.start()

    @property
    def pid(self) -> int:
        """The process id of journald. Raises: KeeperError before `start` and after `stop`."""
        if self._pid is None:
            raise KeeperError("the private journald is not running")
        return self._pid

    @property
    def inside(self) -> tuple[str, ...]:
        """The command prefix that runs a command in journald's mount namespace and root directory. Raises: as `pid`."""
        return ("nsenter", f"--target={self.pid}", "--mount", "--root", "--wdns=/", "--")

    def start(self, *, flushed: bool = True) -> None:
        """Start the stopped journald in its own namespaces, wait until it takes messages, and send a first one.

        Unless `flushed`, journald keeps its entries in its own /run until `flush`.

        Raises: KeeperError with journald's messages if it does not start; OSError.
        """
        self.journal.mkdir(parents=True, exist_ok=True)
        asked = (os.fspath(self.directory), self._conf, "flushed" if flushed else "", JOURNALD)
        words = ("unshare", "--net", *OWN_MOUNTS, "sh", "-c", START, "lab", *asked)
        try:
            self._pid = int(self.enter_context(undo_at_end(*words)))
        except KeeperError as error:
            raise KeeperError(f"private journald: {error}") from error
        self._socket = self.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._socket.connect(f"/proc/{self.pid}/root/run/systemd/journal/socket")
        self.log("lab: journald is up")  # from now on the file is ONLINE

    def log(self, message: str, **fields: str) -> None:
        """Send one message by the native protocol. `fields` replace PRIORITY=6 and SYSLOG_IDENTIFIER=lab. Blocks on a
        full queue. No value may contain a line break.

        Raises: OSError if journald is not running.
        """
        values = {"MESSAGE": message, "PRIORITY": "6", "SYSLOG_IDENTIFIER": "lab", **fields}
        self._socket.send("".join(f"{name}={value}\n" for name, value in values.items()).encode())

    def sync(self) -> None:
        """Signal journald to sync its files, every AGAIN_S until the active file is no longer ONLINE.

        Raises: KeeperError if that takes a minute, and as `pid`.
        """
        for _ in range(SIGNALS):
            os.kill(self.pid, SIGNAL_SYNC)
            time.sleep(0.005)  # until a message that was sent before makes the file ONLINE
            with suppress(KeeperError):
                wait_until(lambda: self.read_state() != ONLINE, "", AGAIN_S)
                return
        raise KeeperError("private journald: it did not sync within a minute")

    def read_state(self) -> int:
        """Return the state byte of the active file, OFFLINE if there is none."""
        try:
            return read_state(self.active)
        except FileNotFoundError:
            return OFFLINE

    def age(self, flushes: int, messages: int = 40) -> None:
        """Log `messages` messages, wait until the file is ONLINE, and make journald sync; all that `flushes` times.

        Raises: OSError if journald is not running; KeeperError if it does not follow within a minute.
        """
        for _ in range(flushes):
            self._log_traffic(messages)
            wait_until(lambda: self.read_state() == ONLINE, "private journald: it did not take the messages")
            self.sync()

    def _log_traffic(self, messages: int) -> None:
        """Log the next `messages` entries of the endless traffic."""
        for fields in itertools.islice(self._traffic, messages):
            self.log(fields.pop("MESSAGE"), **fields)

    def rotate(self) -> Path:
        """Rotate, wait until system.journal's new archive is complete, and return its path. Raises: KeeperError."""
        before = set(self.journal.iterdir())
        run(*self.inside, "journalctl", "--rotate")
        archive = max(set(self.journal.glob("system@*.journal")) - before, default=self.active)  # never ARCHIVED
        wait_until(lambda: read_state(archive) == ARCHIVED, "private journald: it did not rotate")
        return archive

    def boot(self, messages: int) -> None:
        """Start the stopped journald as a boot does, and log `messages` messages, which stay in its /run until `flush`.

        Wait until journald has taken and synced them. Raises: KeeperError.
        """
        self.start(flushed=False)
        self._log_traffic(messages)
        run(*self.inside, "journalctl", "--sync")

    def flush(self) -> None:
        """Do what systemd-journal-flush.service does at boot, and wait for its end. Raises: KeeperError."""
        run(*self.inside, "journalctl", "--flush")

    def stop(self) -> None:
        """Stop journald cleanly and wait for its end. If it is not running, do nothing. `start` starts it again."""
        self._pid = None
        self.close()


def read_state(path: Path) -> int:
    """Return the state byte of a journal file, 0 to 255 if damaged; OFFLINE if it is too short. Raises: OSError."""
    with path.open("rb") as file:
        return int.from_bytes(os.pread(file.fileno(), 1, STATE_OFFSET), "little")


class Bed(NamedTuple):
    """A scratch volume, and the journald that writes to the volume's root."""

    volume: ScratchVolume
    journald: PrivateJournald


@contextmanager
def bed(*settings: str, size: str = "1G", options: str = "defaults", parent: Path | None = None) -> Iterator[Bed]:
    """Yield a new btrfs with a private journald that writes to it; remove both at the end of the block.

    `settings` are lines for journald.conf(5), `size` is as in truncate(1), and the image lies below `parent`.
    A failure to remove them is not reported, except of an I/O limit.

    Raises: KeeperError with the error message of the tool that failed; OSError as tempfile.mkdtemp.
    """
    with (
        ScratchVolume(size, options=options, parent=parent) as scratch,
        PrivateJournald(scratch.mountpoint, settings=settings) as daemon,
    ):
        yield Bed(scratch, daemon)
