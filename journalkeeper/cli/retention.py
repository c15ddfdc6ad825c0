# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper retention`: how long a history the journal keeps, how long it could, and journald's setting for it.

Shows how long a history the main journal covers, and how much disk space it takes. Then it shows how long
a history could be if journald's limit counted the disk space of compressed files. journald counts uncompressed bytes:
compressed archives alone do not let it keep more. --apply writes a drop-in that raises journald's
SystemMaxUse= and SystemMaxFiles=, and SystemMaxFileSize= so far that the files do not become many, because each
file costs each boot and each reader. --undo removes it. The output names the command that makes journald apply it.

examples:
  sudo journalkeeper retention
  sudo journalkeeper retention --apply   write the proposed limits
  sudo journalkeeper retention --undo    remove them

exit status:
  0 done, also if there was nothing to undo; 1 the retention is unknown or the
  setting cannot be written; 2 wrong usage
"""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.cli.context import Context
from journalkeeper.cli.evidence import gather
from journalkeeper.health.evidence import Evidence, Unknown, Wanted
from journalkeeper.health.finding import supply
from journalkeeper.journald import conf
from journalkeeper.model.errors import KeeperError, UsageError
from journalkeeper.model.schema import Inline
from journalkeeper.observe.machine import OURS, RETENTION
from journalkeeper.report.retention import Retention, describe_retention, format_dropin, propose_retention
from journalkeeper.whole_file import write_whole

ACTIVATION: Final = "systemctl reload-or-restart systemd-journald makes journald apply it."
"""A reload if journald's version can, else a restart."""


class RetentionAnswer(NamedTuple):
    """The answer of `retention`; `found` is None with --undo."""

    file: str
    changed: bool
    found: Inline[Retention | None] = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags --apply and --undo, which exclude each other."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--apply", action="store_true", help=f"write {RETENTION}")
    group.add_argument("--undo", action="store_true", help="remove it")


def run(args: argparse.Namespace, context: Context) -> int:
    """Show the present and the proposed retention of the main journal, and return 0.

    With --apply, also write the drop-in for journald; with --undo, only remove it. journald applies neither by itself.

    Raises: UsageError for -D with --apply or --undo; KeeperError if the retention is unknown; OSError if the
        drop-in cannot be removed; as `_write_dropin`; without --undo as `Context.read_config` and `gather`.
    """
    if args.directory is not None and (args.apply or args.undo):
        raise UsageError("--apply and --undo change the settings of this host's journald; leave out -D")
    if args.undo:
        changed = _remove_dropin()
        said = f"Removed {RETENTION}; {ACTIVATION}" if changed else f"There is no {RETENTION}; nothing is undone."
        context.output.show(RetentionAnswer(RETENTION, changed), [said])
        return 0
    context.read_config()  # a wrong one ends the command
    evidence = gather(context, Wanted(args.directory, entries=0, since_us=context.now_us))
    found = supply(propose_retention, evidence)
    if isinstance(found, Unknown):
        raise KeeperError(f"the retention is unknown: {found.why}")
    changed, sentences = False, [describe_retention(found)]
    if args.apply:
        changed = _write_dropin(found, evidence)
        sentences.append(f"Wrote {RETENTION}; {ACTIVATION}" if changed else f"{RETENTION} has this setting already.")
    context.output.show(RetentionAnswer(RETENTION, changed, found), sentences)
    return 0


def _write_dropin(found: Retention, evidence: Evidence) -> bool:
    """Write the drop-in for journald, and return True, or False if it already has this content.

    Raises: KeeperError if no unit of journalkeeper is known to be active, or, also if nothing was written, if another
    file overrides the drop-in; FileError; OSError if the old file cannot be read.
    """
    if isinstance(evidence.units, Unknown):
        raise KeeperError(f"the state of journalkeeper's units is unknown: {evidence.units.why}")
    if not any(unit.name in OURS and unit.active == "active" for unit in evidence.units):
        raise KeeperError("no running unit compresses the archives: first systemctl enable --now journalkeeper.service")
    text = format_dropin(found)
    changes = not os.path.exists(RETENTION) or Path(RETENTION).read_text(errors="replace") != text
    if changes:
        os.makedirs(os.path.dirname(RETENTION), exist_ok=True)
        write_whole("write the setting for journald", RETENTION, text, mode=0o644)
    use = conf.read_settings().system_max_use_bytes
    if use != found.proposed_use_bytes:
        shows = "systemd-analyze cat-config systemd/journald.conf shows it"
        raise KeeperError(f"{RETENTION} is written, but a later file sets SystemMaxUse={use}: {shows}")
    return changes


def _remove_dropin() -> bool:
    """Remove the drop-in, and its directory if empty. Return False if there was none. Raises: OSError."""
    try:
        os.unlink(RETENTION)
    except FileNotFoundError:
        return False
    with suppress(OSError):  # other drop-ins are in it
        os.rmdir(os.path.dirname(RETENTION))
    return True
