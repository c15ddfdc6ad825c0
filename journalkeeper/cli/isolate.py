# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper isolate`: move the journal into a btrfs subvolume of its own, which no snapshot of the root contains.

Snapshots make each flush of journald copy-on-write, also of NOCOW files, and keep each old journal. A
snapshot of the root ends at a nested subvolume: later ones contain an empty directory in its place. The
files move by reflink with all attributes, so no data is stored twice. journald goes on without a restart:
it writes to /run meanwhile, less than a second for a hundred files. Without --apply, nothing is changed.

After a rollback of the root to a later snapshot, /var/log/journal is an empty directory that btrfs does not
let anybody write to. journald then writes to /run only, and a reboot loses that: run isolate --apply in the
new root, before another reboot and before you delete the old root. It moves the subvolume from the old root
into the new one, and journald goes on in it. After a rollback to an earlier snapshot, the journal is as it
was at that time; the newer entries are in the old root: journalctl -D OLDROOT/var/log/journal.

examples:
  sudo journalkeeper isolate           what would be moved?
  sudo journalkeeper isolate --apply   move it, or bring it back (rollback)
  sudo journalkeeper isolate --undo    make it a plain directory again

exit status:
  0 done, or nothing to do; 1 the journal cannot be moved, or journald does not
  write to it since the move; 2 wrong usage
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from contextlib import nullcontext
from typing import Final, NamedTuple

from journalkeeper.cli.context import Context
from journalkeeper.execute import isolate
from journalkeeper.health.evidence import SERVICE
from journalkeeper.history.state import Lock
from journalkeeper.journald import control, layout
from journalkeeper.model.errors import KeeperError, NeedsRootError
from journalkeeper.model.schema import Count
from journalkeeper.model.units import format_size, pluralize
from journalkeeper.probe import scratch_volume
from journalkeeper.whole_file import require_root_only

IN_RUN: Final = (
    *("systemd-run", "--quiet", "--collect", "--pipe", "--wait", "sh", "-c"),
    'trap "" TERM; journalctl --relinquish-var && echo ready && read -r _; journalctl --flush',
)
"""The command that lets journald write to /run until its stdin ends, also when all processes of our unit are killed."""

RUN: Final = "/run"
"""journald keeps 15% of it free, and otherwise deletes there what it has just stored: journald.conf(5)."""

BRING_BACK: Final = """\
mount -t btrfs -o subvolid=5 -- "$(findmnt -nvo SOURCE -T "$1")" /tmp
[ ! -e "/tmp/$2" ] || rmdir -- "/tmp/$2"
mv -T -- "/tmp/$3" "/tmp/$2"
"""
"""The commands that move the subvolume $3 to $2, both from the top of the volume of $1, in an own mount namespace."""

READERS: Final = "Restart programs that follow the journal, as journalctl -f does: they keep the old files."
ROLLBACK: Final = "After a rollback of the root, boot it and run `journalkeeper isolate --apply`: a reboot loses logs."


class IsolateAnswer(NamedTuple):
    """The answer of `isolate`: `isolated` is whether `directory` is a subvolume now.

    `lost` is the path, from the top of the volume, of the subvolume that a rollback left in another root.
    """

    directory: str
    isolated: bool
    changed: bool
    files: Count
    size_bytes: Count
    lost: str | None


def options(parser: argparse.ArgumentParser) -> None:
    """Add --apply and --undo, which exclude each other."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--apply", action="store_true", help="move the journal into a subvolume")
    group.add_argument("--undo", action="store_true", help="move it back into a plain directory")


def run(args: argparse.Namespace, context: Context) -> int:
    """Show, or with --apply and --undo do, the move of the journal directory. Return 0.

    End a move that was killed first. Bring back a subvolume that a rollback left in another root.

    Raises: NeedsRootError; BusyError; KeeperError if the journal cannot be moved: it is then as it was.
    """
    if not context.privileged:
        raise NeedsRootError("the journal's files and subvolumes are for root")
    top = os.path.realpath(args.directory or layout.TOP)
    lost = isolate.find_lost(top)
    if not (args.apply or args.undo):
        found = isolate.Tree(top, is_subvolume=False, entries={}) if lost else isolate.survey(top)
        _show(context, found, _describe(found, lost), lost)
        return 0
    require_root_only(os.path.dirname(top))
    changed = False
    try:
        with Lock(context.state_directory):
            if lost:
                _bring_back(top, lost)
            found = isolate.survey(top)
            changed = isolate.finish(top)
            if found.is_subvolume is not args.apply:
                changed = True
                _move(found)
                found = isolate.survey(top)
            elif _has_journald(top):
                scratch_volume.run("journalctl", "--flush")  # after a killed move or a rollback, journald is in /run
    finally:
        if changed and top == os.path.realpath(layout.TOP):
            # in the service's mount namespace, the old directory alone is writable (ReadWritePaths=)
            subprocess.run(["systemctl", "try-restart", SERVICE], check=False, capture_output=True)
    kind = "a subvolume of its own" if args.apply else "a plain directory"
    said = [f"{top} is {kind}{'' if changed else ' already'}: {_count(found)}."]
    _show(context, found, said + [READERS] * changed + [ROLLBACK] * (changed and args.apply), None, changed=changed)
    return 0


def _show(context: Context, tree: isolate.Tree, said: list[str], lost: str | None, *, changed: bool = False) -> None:
    answer = IsolateAnswer(tree.path, tree.is_subvolume, changed, len(tree.sizes), sum(tree.sizes), lost)
    context.output.show(answer, said)


def _bring_back(top: str, lost: str) -> None:
    parent, name = os.path.split(top)
    own = f"{isolate.locate(parent)[1]}/{name}"
    scratch_volume.run(*scratch_volume.OWN_MOUNTS, "sh", "-ec", BRING_BACK, "sh", parent, own, lost)
    os.setxattr(top, isolate.MARK, b"")  # it contains all of an old tree that a snapshot during the move contains


def _describe(found: isolate.Tree, lost: str | None) -> list[str]:
    if lost:
        said = f"{found.path} is empty and read-only since a rollback: journald writes to /run only."
        return [said, f"The journal is in the subvolume {lost}; --apply moves it here."]
    if found.is_subvolume:
        said = f"{found.path} is a subvolume of its own: {_count(found)}. --undo makes it a plain directory."
        return [said, ROLLBACK]
    writers = {name for name, _ in isolate.find_writers(found.path) if not name.startswith("systemd-journald.service")}
    return [
        f"{found.path} is a plain directory with {_count(found)}. --apply moves it into a subvolume of its own, which"
        " later snapshots do not contain. Snapshots that exist keep what they contain. The new files share their data"
        " with the old ones: space is needed for metadata only.",
        ROLLBACK,
        *(f"End {name} first, and its sockets: it can write." for name in sorted(writers)),
    ]


def _count(found: isolate.Tree) -> str:
    return f"{pluralize(len(found.sizes), 'file')}, {format_size(sum(found.sizes))}"


def _has_journald(top: str) -> bool:
    """Return whether the host's main journald writes to `top` and can be asked."""
    return top == os.path.realpath(layout.TOP) and control.answers("", control.TIMEOUT_S) is not None


def _move(tree: isolate.Tree) -> None:
    """Move the tree while journald writes to /run, let journald write to the new tree, and remove the old one."""
    top = tree.path
    was_open, room = any(isolate.find_writers(top)), shutil.disk_usage(RUN)
    if (has_journald := _has_journald(top)) and room.free < room.total / 4:
        raise KeeperError(f"{RUN} is too full for journald to write there during the move: free a quarter of it first")
    archives = isolate.prepare(tree)
    try:
        with scratch_volume.undo_at_end(*IN_RUN) if has_journald else nullcontext():
            isolate.move(isolate.survey_unwritten(top), archives, into_subvolume=not tree.is_subvolume)
    except BaseException:
        isolate.finish(top)
        raise
    if was_open and not any(isolate.find_writers(top)):
        old = isolate.name_staging(top)
        raise KeeperError(f"{top}: no journald writes to it since the move; the old tree is {old} until the next call")
    isolate.finish(top)
