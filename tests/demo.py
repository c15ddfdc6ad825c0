# SPDX-License-Identifier: LGPL-2.1-or-later
"""Show on a scratch volume what journalkeeper does to an aged journal: `python tests/demo.py`.

Other programs (filefrag, compsize, journalctl) measure the results. Nothing stays on the machine, also after an
interruption.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from journalkeeper.model.errors import KeeperError
from journalkeeper.probe import bed as beds
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.compare import age_until, find_throttle, time_limited_s
from tests.volumes import disk_bytes, drop_caches, extents, why_no_bed

MIB = 1 << 20
SETTINGS = ("SystemMaxFileSize=256M", "SystemMaxUse=1G")
ASKED = ("--archived", "--now")
"""Without --now, a file that was archived less than a minute ago waits, because journald may still use it."""


class Look(NamedTuple):
    """The measurements of one archive by other programs."""

    extents: int
    disk_bytes: int
    read_s: float
    entries: str
    """SHA-256 of `journalctl -o export`."""

    verified: bool


def say(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def look(bed: Bed, path: Path, iops: int) -> Look:
    """Measure one archive, and read it with nothing in memory, at `iops` if not 0."""
    journalctl = ("journalctl", "--quiet", "--no-pager", "--file", os.fspath(path))
    verify = subprocess.run([*journalctl, "--verify"], capture_output=True, check=False)
    export = subprocess.run([*journalctl, "--output=export"], capture_output=True, check=True)
    drop_caches()
    read_s = time_limited_s(bed.volume, iops, lambda: subprocess.run(journalctl, stdout=subprocess.DEVNULL, check=True))
    digest = hashlib.sha256(export.stdout).hexdigest()
    return Look(extents(path), disk_bytes(path), read_s, digest, verify.returncode == 0)


def age(bed: Bed, wanted: int) -> Path:
    """Log and flush until the active file has `wanted` extents, then let journald archive it."""
    flushes, count = age_until(bed, wanted, lambda _: None), extents(bed.journald.active)
    archive = bed.journald.rotate()
    # journald keeps an archive mapped for some time, and mapped pages are not dropped from memory
    bed.journald.stop()
    bed.journald.start()
    bed.journald.age(2)
    say(f"  {flushes} real flushes of 40 messages each, then a rotation: {count} extents")
    return archive


def keeper(bed: Bed, state: Path, *words: str) -> None:
    """Run journalkeeper as a person would, with its state on the scratch side and paths that fit the terminal."""
    command = [words[0], "-D", os.fspath(bed.directory), *words[1:]]
    say()
    say(f"$ journalkeeper {' '.join(command)}")
    subprocess.run(
        [sys.executable, "-m", "journalkeeper", *command],
        env={
            **os.environ,
            "STATE_DIRECTORY": os.fspath(state),
            "SYSTEMD_PAGER": "cat",
            "COLUMNS": str(shutil.get_terminal_size((100, 24)).columns),
        },
        check=True,
    )


def row(what: str, before: str, after: str, verdict: str = "") -> None:
    say(f"{what:28}{before:>12}{after:>12}{verdict:>12}")


def times(before: float, after: float) -> str:
    return f"{before / after:.1f} x" if after else "-"


def compare(before: Look, after: Look, iops: int) -> bool:
    """Print both looks side by side, and return whether nothing was lost."""
    same = before.entries == after.entries
    words = {True: "PASS", False: "FAIL"}
    disk = [f"{one.disk_bytes / MIB:.1f} MiB" for one in (before, after)]
    say()
    row("the archive", "before", "after", "better")
    row("extents (filefrag)", f"{before.extents}", f"{after.extents}", times(before.extents, after.extents))
    row("disk usage (compsize)", disk[0], disk[1], times(before.disk_bytes, after.disk_bytes))
    speed = f"{iops} IOPS" if iops else "this disk"
    row(
        f"cold journalctl, {speed}",
        f"{before.read_s:.2f} s",
        f"{after.read_s:.2f} s",
        times(before.read_s, after.read_s),
    )
    row("journalctl --verify", words[before.verified], words[after.verified])
    row("journalctl -o export", before.entries[:8], after.entries[:8], "same" if same else "DIFFERS")
    return same and after.verified


def show(directory: str, wanted: int, iops: int | None) -> int:
    """Show the whole demonstration. Return 0 if nothing was lost and the file is better than before, else 1."""
    say("1. a btrfs in a file and a journald of its own (the machine's are not touched)")
    with beds.bed(*SETTINGS, size="3G", parent=Path(directory)) as bed:
        state = bed.volume.base / "state"
        state.mkdir()
        say(f"  {bed.directory} on {bed.volume.device}")
        say(f"2. ageing its journal to at least {wanted} extents, which takes up to a minute")
        archive = age(bed, wanted)
        limit = find_throttle(bed.volume, iops)
        speed = f"at {limit} IOPS, as on a small cloud volume" if limit else "at the speed of this disk"
        say(f"3. reading it cold {speed}")
        before = look(bed, archive, limit)
        say(f"  {before.read_s:.1f} s")
        say("4. journalkeeper")
        for words in (("scan",), ("plan", *ASKED), ("defrag", *ASKED), ("plan", *ASKED)):
            keeper(bed, state, *words)
        after = look(bed, archive, limit)
        same = compare(before, after, limit)
    say()
    say("The volume, its journald and all files are gone again.")
    better = after.extents < before.extents and after.disk_bytes < before.disk_bytes
    return 0 if same and better else 1


def interrupt(number: int, _frame: object) -> None:
    """Raise KeyboardInterrupt with the signal's number, so that all is undone."""
    raise KeyboardInterrupt(number)


def main(argv: list[str] | None = None) -> int:
    """Show the demonstration. Return the status of `show`, 1 after an error, and 128 + N after signal N."""
    parser = argparse.ArgumentParser(prog="tests/try", add_help=False)  # tests/try itself has the help
    parser.add_argument("--directory", default="/var/tmp")  # noqa: S108 - in it we make a directory of our own
    parser.add_argument("--extents", type=int, default=5000)
    parser.add_argument("--iops", type=int)
    words = parser.parse_args(argv)
    reason = why_no_bed()
    if reason is None and shutil.which("compsize") is None:
        reason = "compsize is not installed (package btrfs-compsize or compsize)"
    if reason is not None:
        sys.stderr.write(f"cannot show it here: {reason}\n")
        return 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        return show(words.directory, words.extents, words.iops)
    except KeyboardInterrupt as interrupted:
        sys.stderr.write("\ninterrupted: the volume, its journald and all files are gone again\n")
        return 128 + int(interrupted.args[0])
    except (KeeperError, OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"the demonstration failed: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
