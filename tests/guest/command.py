# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a command prints
"""Whole Debian hosts on btrfs, by hand and for molecule: what tests/guest/host.py does, as a command.

    sudo tests/guest/guest make trixie          # a host of this name, 60 MB, 30 s the first time
    sudo tests/guest/guest boot trixie --iops 150
    sudo tests/guest/guest shell trixie         # look around; or: shell trixie -- journalctl -b
    sudo tests/guest/guest poweroff trixie
    sudo tests/guest/guest rm trixie

One background process holds a booted host and its mounts. When it ends, nothing of the host runs or is mounted.
Hosts are kept in $JOURNALKEEPER_GUESTS, by default /var/tmp/journalkeeper-guests. While one is booted, its root is
NAME/journalkeeper-lab-*/mnt/host there, and NAME/enter has the words that run a command in it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.guest import base
from tests.guest.host import REBOOTED, Guest, missing
from tests.volumes import make_images

HOSTS = Path(os.environ.get("JOURNALKEEPER_GUESTS") or "/var/tmp/journalkeeper-guests")  # noqa: S108 - made 0700
NOCOW = {"stock": None, "yes": True, "no": False}


class CommandError(Exception):
    """What is said instead of a traceback."""


def hold(name: str, iops: int) -> None:
    """Boot a host and wait until it is powered off, following its reboots: the background process."""
    folder = HOSTS / name
    with ExitStack() as held:
        lock = held.enter_context((folder / "lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"{name} is booted already, or about to be") from None
        volume = held.enter_context(ScratchVolume(parent=folder, images=[folder / "disk0.img"]))
        guest = held.enter_context(Guest((folder / "release").read_text(), volume=volume))
        guest.throttle(iops)
        guest.drop_caches()
        held.callback((folder / "enter").unlink, missing_ok=True)
        guest.boot()
        (folder / "enter").write_text("\0".join(guest.command()))
        print(f"{name} is up after {guest.boot_seconds():.1f} s; enter it with: guest shell {name}", flush=True)
        while guest.wait() == REBOOTED:
            guest.boot()
            (folder / "enter").write_text("\0".join(guest.command()))


def enter(name: str, *argv: str) -> list[str]:
    """Return the words that run a command in a host.

    Raises: CommandError if the host is not booted.
    """
    try:
        return [*(HOSTS / name / "enter").read_text().split("\0"), *argv]
    except FileNotFoundError:
        raise CommandError(f"{name} is not booted; say: guest boot {name}") from None


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
        with ScratchVolume(images=make_images(folder, words.size)) as volume:
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
    argv = enter(words.name, *(words.command or ["bash", "--login"]))
    os.execvp(argv[0], argv)  # noqa: S606 - no shell in between is the point


def poweroff(words: argparse.Namespace) -> None:
    """Shut a host down and wait until its holder has cleaned up."""
    subprocess.run(enter(words.name, "systemctl", "poweroff"), check=False)
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


def parser() -> argparse.ArgumentParser:
    """The command line."""
    assert __doc__ is not None
    top = argparse.ArgumentParser(
        prog="guest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, does: Callable[[argparse.Namespace], None], what: str) -> argparse.ArgumentParser:
        one = verbs.add_parser(name, help=what, description=what)
        one.set_defaults(does=does)
        if name != "make":
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
    verb("poweroff", poweroff, "shut it down")
    verb("rm", remove, "remove it, booted or not")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    words = parser().parse_args(argv)
    if reason := missing():
        print(f"guest: {reason}", file=sys.stderr)
        return 1
    try:
        words.does(words)
    except (CommandError, KeeperError, RuntimeError) as error:
        print(f"guest: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
