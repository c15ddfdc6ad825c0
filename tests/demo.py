# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tests/try shows: on a scratch volume, what journalkeeper does to an aged archive.

Other programs (filefrag, compsize, journalctl) measure the results. Nothing stays on the machine, also after an
interruption.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from journalkeeper.cli.progress import interrupt_on_signals
from journalkeeper.model.errors import KeeperError
from journalkeeper.probe import bed as beds
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.compare import age_until, find_throttle, time_limited_s
from tests.volumes import disk_bytes, drop_caches, extents

MIB = 1 << 20
ASKED = ("--archived", "--now")
"""Without --now, a file that was archived less than a minute ago waits, because journald may still use it."""

UNCHANGED = ("journalctl --verify", "journalctl -o export")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def look(bed: Bed, path: Path, iops: int) -> dict[str, str]:
    """Measure one archive, and read it with nothing in memory, at `iops` if not 0."""
    journalctl = ("journalctl", "--quiet", "--no-pager", "--file", os.fspath(path))
    verify = subprocess.run([*journalctl, "--verify"], capture_output=True, check=False)
    export = subprocess.run([*journalctl, "--output=export"], capture_output=True, check=True)
    drop_caches()
    read_s = time_limited_s(bed.volume, iops, lambda: subprocess.run(journalctl, stdout=subprocess.DEVNULL, check=True))
    return {
        "extents (filefrag)": f"{extents(path)}",
        "disk usage (compsize)": f"{disk_bytes(path) / MIB:.1f} MiB",
        f"cold journalctl, {iops} IOPS" if iops else "cold journalctl": f"{read_s:.2f} s",
        "journalctl --verify": "FAIL" if verify.returncode else "PASS",
        "journalctl -o export": hashlib.sha256(export.stdout).hexdigest()[:8],
    }


def show(directory: Path, wanted: int, iops: int | None) -> int:
    """Show the whole demonstration. Return 0 if nothing was lost, else 1."""
    say("1. a btrfs in a file and a journald of its own (the machine's are not touched)")
    with beds.bed("SystemMaxFileSize=256M", "SystemMaxUse=1G", size="3G", parent=directory) as bed:
        say(f"2. ageing its journal to at least {wanted} extents, which takes up to a minute")
        flushes = age_until(bed, wanted, lambda _: None)
        archive = bed.journald.rotate()
        # journald keeps an archive mapped for some time, and mapped pages are not dropped from memory
        bed.journald.stop()
        bed.journald.start()
        bed.journald.age(2)
        say(f"  {flushes} real flushes of 40 messages each, then a rotation")
        limit = find_throttle(bed.volume, iops)
        say("3. reading it cold")
        before = look(bed, archive, limit)
        say("4. journalkeeper")
        for words in (("scan",), ("plan", *ASKED), ("defrag", *ASKED), ("plan", *ASKED)):
            command = ["journalkeeper", words[0], "-D", os.fspath(bed.journald.directory), *words[1:]]
            say(f"\n$ {' '.join(command)}")
            columns = shutil.get_terminal_size((100, 24)).columns
            set_up = {"STATE_DIRECTORY": f"{bed.volume.base}/state", "COLUMNS": f"{columns}"}
            subprocess.run([sys.executable, "-m", *command, "--no-pager"], env={**os.environ, **set_up}, check=True)
        after = look(bed, archive, limit)
    say(f"\n{'the archive':28}{'before':>12}{'after':>12}")
    for what, measured in before.items():
        say(f"{what:28}{measured:>12}{after[what]:>12}")
    return 0 if all(before[what] == after[what] for what in UNCHANGED) else 1


def main() -> int:
    """Show the demonstration. Return the status of `show`, or 1 after an error or a signal."""
    parser = argparse.ArgumentParser(prog="tests/try", add_help=False)  # tests/try itself has the help
    parser.add_argument("--directory", type=Path, default="/var/tmp")  # noqa: S108 - in it we make a directory of our own
    parser.add_argument("--extents", type=int, default=5000)
    parser.add_argument("--iops", type=int)
    words = parser.parse_args()
    interrupt_on_signals()
    try:
        return show(words.directory, words.extents, words.iops)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted: the volume, its journald and all files are gone again\n")
    except (KeeperError, OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"the demonstration failed: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
