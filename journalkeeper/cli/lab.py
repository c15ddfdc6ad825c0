# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper lab`: measurements on a scratch volume with a journald of its own.

Compares strategies against fragmentation on the disk that contains the directory DIR. It makes a btrfs in
a file there and starts a journald of its own. It ages a journal under each strategy with the same messages
and flushes, and measures it with cold caches. The host's own journal stays untouched. The file grows to
about 300 MiB and is removed at the end. A comparison takes twelve minutes, or four with --extents=800.

strategies:
  untouched         nothing is done
  NOCOW             chattr +C, without checksums
  fewer flushes     a quarter of them, as with a fourfold SyncIntervalSec=
  small files       SystemMaxFileSize=32M, a quarter of that of the others
  autodefrag        the mount option
  defrag            btrfs filesystem defragment before each shutdown
  btrfsmaintenance  once a day, what btrfs-defrag.service of that package does
  rotate            journalctl --rotate before each shutdown
  keeper            journalkeeper with Nocow=no: its service all the time, and
                    journalkeeper-shutdown.service before each shutdown

columns:
  FLUSH    the time to flush a runtime journal of 2 MiB into the aged one
  LAST 10  the time of journalctl -n 10
  ALL      the time to read all entries that are older than the last shutdown
  EXTENTS  the extents of all journal files together
  DISK     the space of all journal files together on the disk
  WRITTEN  all bytes written to the device while the journal was aged

examples:
  sudo journalkeeper lab compare /var/tmp   all of them, in a file there
  sudo journalkeeper lab compare /var/tmp --iops 500 -j

exit status:
  0 done; 1 it cannot be measured here, or was interrupted; 2 wrong usage
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Final

from journalkeeper.cli.context import Context
from journalkeeper.cli.parser import between
from journalkeeper.cli.progress import interrupt_on_signals, on_terminal
from journalkeeper.cli.table import Column, Table
from journalkeeper.model.errors import KeeperError, NeedsRootError, UsageError
from journalkeeper.model.units import escape, format_size
from journalkeeper.probe import compare
from journalkeeper.probe.scratch_volume import isolate
from journalkeeper.whole_file import require_root_only

EXTENTS_LEAST, EXTENTS_MOST = 100, 15_000
"""journald rotates by itself at about 19,000 extents."""

FREE_BYTES = 1 << 30
_COLUMNS: Final[tuple[Column[compare.Measured], ...]] = (
    Column("STRATEGY", lambda row: row.strategy),
    Column("FLUSH", lambda row: f"{row.flush_s:.2f} s", right=True),
    Column("LAST 10", lambda row: f"{row.last_s:.2f} s", right=True),
    Column("ALL", lambda row: f"{row.read_s:.2f} s", right=True),
    Column("EXTENTS", lambda row: f"{row.extents:,}", right=True),
    Column("DISK", lambda row: format_size(row.disk_bytes), right=True),
    Column("WRITTEN", lambda row: format_size(row.written_bytes), right=True),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the word "compare", DIR, and the options --extents and --iops."""
    parser.add_argument("what", choices=("compare",), metavar="compare", help="the task: compare the strategies")
    parser.add_argument("place", metavar="DIR", help="a directory on the disk in question, such as /var/tmp")
    extents, iops = between(EXTENTS_LEAST, EXTENTS_MOST, int), between(0, 1_000_000, int)
    aged, limited = "the extents of an untouched journal", "the limit of the scratch device; 0 for none"
    parser.add_argument("--extents", metavar="N", type=extents, default=3000, help=f"{aged} (default: 3000)")
    parser.add_argument("--iops", metavar="N", type=iops, help=f"{limited} (default: 150)")


def run(args: argparse.Namespace, context: Context) -> int:
    """Measure the strategies on a scratch volume, show a row for each, and return 0.

    The process replaces itself by a new run in a mount namespace of its own, where a signal raises KeyboardInterrupt.

    Raises: UsageError for -D, --config; NeedsRootError; KeeperError for an unfit DIR; OSError; as `compare.compare`.
    """
    _require_fit_place(args)
    if not context.privileged:
        raise NeedsRootError("it mounts a scratch volume")
    isolate()
    place = Path(args.place).absolute()
    with on_terminal(context.output) as line:
        interrupt_on_signals()
        compared = compare.compare(place, args.extents, args.iops, line.update)
    context.output.show(compared, Table(_COLUMNS, compared.strategies), legend=[[_sum_up_lab(compared)]])
    return 0


def _require_fit_place(args: argparse.Namespace) -> None:
    """Require mkfs.btrfs, and FREE_BYTES in a place that passes `require_root_only`. Accept any user.

    Raises: UsageError for -D, --config; KeeperError.
    """
    if args.directory is not None or args.config is not None:
        raise UsageError("lab makes a journal and a configuration of its own: leave out -D and --config")
    if not os.path.isdir(args.place):
        raise KeeperError(f"{args.place}: is no directory; DIR is a directory on the disk to measure")
    if shutil.which("mkfs.btrfs") is None:
        raise KeeperError("mkfs.btrfs is not installed: install the package btrfs-progs")
    require_root_only(args.place)
    if (free := shutil.disk_usage(args.place).free) < FREE_BYTES:
        raise KeeperError(f"{args.place}: {format_size(free)} are free, {format_size(FREE_BYTES)} are needed")


def _sum_up_lab(compared: compare.LabAnswer) -> str:
    """Return each strategy's bytes written for each byte logged, and what was logged, where, and at how many IOPS."""
    speed = f"{compared.iops} IOPS" if compared.iops else "as fast as the disk is"
    facts = f"{compared.flushes} flushes of {compare.MESSAGES} messages each in {compare.DAYS} days"
    each = ", ".join(f"{row.strategy} {row.written_bytes / compared.logged_bytes:.3g}" for row in compared.strategies)
    written = f"Bytes written for each byte logged: {each}."
    return f"{written} {facts}, on {escape(compared.directory)}, {speed}."
