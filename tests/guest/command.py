# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a command prints
"""Whole Debian hosts on btrfs, to play with by hand: what tests/guest/host.py does, as a command.

    sudo tests/guest/guest make trixie          # a host of this name, 60 MB, 30 s the first time
    sudo tests/guest/guest boot trixie --iops 150
    sudo tests/guest/guest shell trixie         # look around; or: shell trixie -- journalctl -b
    sudo tests/guest/guest age trixie 100       # 100 real flushes of 40 messages
    sudo tests/guest/guest throttle trixie 0
    sudo tests/guest/guest cut trixie           # the power, and boot again
    sudo tests/guest/guest poweroff trixie
    sudo tests/guest/guest rm trixie

One background process holds a booted host and its mounts; the others ask
it through a socket, and when it ends nothing of the host runs or is mounted any more.
Hosts are kept in $JOURNALKEEPER_GUESTS, by default /var/tmp/journalkeeper-guests; while
one is booted, its root is NAME/mnt/host there.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.guest import base
from tests.guest.host import REBOOTED, Guest, missing

HOSTS = Path(os.environ.get("JOURNALKEEPER_GUESTS") or "/var/tmp/journalkeeper-guests")  # noqa: S108 - made 0700
NOCOW = {"stock": None, "yes": True, "no": False}


class CommandError(Exception):
    """What is said instead of a traceback."""


def hold(name: str, iops: int) -> None:
    """Boot a host and answer requests until it is powered off: the background process."""
    folder = HOSTS / name
    with ExitStack() as held:
        lock = held.enter_context((folder / "lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"{name} is booted already, or about to be") from None
        volume = held.enter_context(ScratchVolume(base=folder))
        guest = held.enter_context(Guest((folder / "release").read_text(), volume=volume))
        guest.throttle(iops)
        guest.drop_caches()
        guest.boot()
        (folder / "control").unlink(missing_ok=True)
        control = held.enter_context(socket.socket(socket.AF_UNIX))
        control.bind(os.fspath(folder / "control"))
        control.listen()
        control.settimeout(0.5)
        print(f"{name} is up after {guest.boot_seconds():.1f} s; enter it with: guest shell {name}", flush=True)
        serve(guest, control)


def serve(guest: Guest, control: socket.socket) -> None:
    """Do what is asked through the control, one request at a time, and follow the guest's own reboots."""
    while guest.running or guest.wait() == REBOOTED:
        if not guest.running:
            guest.boot()
        try:
            caller, _ = control.accept()
        except TimeoutError:
            continue
        with caller:
            caller.settimeout(5)
            try:
                reply = answer(guest, caller.recv(4096).decode().split("\0"))
            except (RuntimeError, OSError) as error:
                reply = f"!{error}"
            caller.sendall(reply.encode())


def answer(guest: Guest, words: list[str]) -> str:
    """Carry out one request; what is returned is printed for the person who asked."""
    match words:
        case ["enter", *argv]:
            return "\0".join(guest.command(*argv))
        case ["throttle", iops]:
            guest.throttle(int(iops))
            return f"{iops} I/O operations a second" if int(iops) else "no limit"
        case ["snapshot", label]:
            return os.fspath(guest.snapshot(label))
        case ["age", flushes]:
            guest.age(int(flushes))
            return f"{flushes} flushes, {guest.system_extents()} extents in system.journal"
        case ["reboot"]:
            guest.reboot()
        case ["cut"]:
            guest.power_cut()
            guest.drop_caches()
            guest.boot()
        case _:
            raise RuntimeError(f"nobody knows how to {words[0]}")
    return f"up after {guest.boot_seconds():.1f} s"


def ask(name: str, *words: str) -> str:
    """Send a request to the process that holds a host.

    Raises: CommandError if the host is not booted, or with what went wrong.
    """
    with socket.socket(socket.AF_UNIX) as control:
        try:
            control.connect(os.fspath(HOSTS / name / "control"))
        except OSError:
            raise CommandError(f"{name} is not booted; say: guest boot {name}") from None
        control.sendall("\0".join(words).encode())
        reply = b"".join(iter(lambda: control.recv(4096), b"")).decode()
    if reply.startswith("!"):
        raise CommandError(reply[1:])
    return reply


def make(words: argparse.Namespace) -> None:
    """Make a host."""
    name = words.name or words.release
    folder = HOSTS / name
    HOSTS.mkdir(mode=0o700, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        raise CommandError(f"{name} is there already; say: guest boot {name}, or: guest rm {name}") from None
    try:
        (folder / "release").write_text(words.release)
        with ScratchVolume(words.size, base=folder) as volume:
            Guest(words.release, volume=volume, nocow=NOCOW[words.nocow]).close()
    except BaseException:
        shutil.rmtree(folder)
        raise
    print(f"{name} is made; say: guest boot {name}")


def boot(words: argparse.Namespace) -> None:
    """Start the process that holds a host, and wait until the host is up."""
    folder = HOSTS / words.name
    if not folder.exists():
        raise CommandError(f"there is no {words.name}; say: guest make bookworm {words.name}")
    argv = [sys.executable, "-P", "-m", "tests.guest.command", "hold", words.name, "--iops", str(words.iops)]
    with tempfile.TemporaryFile("w+") as said:
        holder = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True
        )
        assert holder.stdout is not None
        line = holder.stdout.readline()
        if not line:
            said.seek(0)
            raise CommandError(said.read().strip().removeprefix("guest: "))
    print(line, end="")


def shell(words: argparse.Namespace) -> None:
    """Become a shell or another command in the host."""
    argv = ask(words.name, "enter", *(words.command or ["bash", "--login"])).split("\0")
    os.execvp(argv[0], argv)  # noqa: S606 - no shell in between is the point


def poweroff(words: argparse.Namespace) -> None:
    """Shut a host down and wait until its holder has cleaned up."""
    argv = ask(words.name, "enter", "systemctl", "poweroff").split("\0")
    subprocess.run(argv, check=False)
    _await_holder(words.name)


def remove(words: argparse.Namespace) -> None:
    """Remove a host and all that it keeps."""
    folder = HOSTS / words.name
    if not folder.exists():
        raise CommandError(f"there is no {words.name}")
    try:
        poweroff(words)
    except CommandError:
        _await_holder(words.name)  # it may be about to boot
    shutil.rmtree(folder)


def _await_holder(name: str) -> None:
    with (HOSTS / name / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def list_hosts(_: argparse.Namespace) -> None:
    """Say which hosts there are."""
    for folder in sorted(HOSTS.glob("*/release")):
        name = folder.parent.name
        try:
            ask(name, "enter", "true")
            state = "booted"
        except CommandError:
            state = "off"
        disk = sum(image.stat().st_blocks for image in folder.parent.glob("*.img")) * 512
        print(f"{name:20} {folder.read_text():10} {state:8} {disk >> 20} MiB")


def request(words: argparse.Namespace) -> None:
    """Pass a request on and print the answer."""
    print(ask(words.name, words.verb, *words.rest))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    assert __doc__ is not None
    top = argparse.ArgumentParser(
        prog="guest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, does: Callable[[argparse.Namespace], None], what: str) -> argparse.ArgumentParser:
        one = verbs.add_parser(name, help=what, description=what)
        one.set_defaults(does=does, rest=[])
        if name not in ("make", "list"):
            one.add_argument("name", help="the host's name; its release, unless it was made with another")
        return one

    one = verb("make", make, "make a host")
    one.add_argument("release", choices=base.EXTRA)
    one.add_argument("name", nargs="?", help="what to call it (default: the release)")
    one.add_argument("--size", default="4G", help="of its disk, a sparse file (default: %(default)s)")
    one.add_argument("--nocow", choices=NOCOW, default="stock", help="/var/log/journal (default: as Debian does)")
    verb("boot", boot, "boot it").add_argument("--iops", type=int, default=0, help="throttle its disk")
    verb("hold", lambda words: hold(words.name, words.iops), "boot it and stay in front of it").add_argument(
        "--iops", type=int, default=0, help="throttle its disk"
    )
    verb("shell", shell, "enter it, or run a command in it").add_argument("command", nargs="*", metavar="-- COMMAND")
    verb("throttle", request, "limit its disk's I/O operations a second; 0 is no limit").add_argument("rest", nargs=1)
    verb("snapshot", request, "take a read-only snapshot of its root").add_argument("rest", nargs=1, metavar="LABEL")
    verb("age", request, "let its journal live through so many flushes").add_argument(
        "rest", nargs=1, metavar="FLUSHES"
    )
    verb("reboot", request, "reboot it, with cold caches")
    verb("cut", request, "cut its power, and boot it again")
    verb("poweroff", poweroff, "shut it down")
    verb("rm", remove, "remove it, booted or not")
    verb("list", list_hosts, "say which there are")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    words = parser().parse_args(argv)
    if reason := missing():
        print(f"guest: {reason}", file=sys.stderr)
        return 1
    try:
        words.does(words)
    except (CommandError, RuntimeError) as error:
        print(f"guest: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
