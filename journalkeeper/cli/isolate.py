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
  sudo journalkeeper isolate --apply   move it, or bring it back after a rollback
  sudo journalkeeper isolate --undo    make it a plain directory again

exit status:
  0 done, or nothing to do; 1 the journal cannot be moved, and is as it was;
  2 wrong usage
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

from journalkeeper.btrfs import subvolume
from journalkeeper.cli.context import Context
from journalkeeper.execute import isolate
from journalkeeper.execute.whole_file import require_root_only
from journalkeeper.health.evidence import SERVICE
from journalkeeper.history.state import Lock
from journalkeeper.journald import control, layout
from journalkeeper.model.errors import BusyError, KeeperError, NeedsRootError
from journalkeeper.model.schema import Count
from journalkeeper.model.units import format_size, pluralize
from journalkeeper.probe.scratch_volume import undo_at_end

FLUSH: Final = ("sh", "-c", 'trap "" TERM; echo ready; read -r _; exec journalctl --flush')
"""The command that ends journald's stay in /run, also after this process was killed."""

LOCK_TRIES: Final = 60
"""The seconds for which the command waits until the service ends a run."""

ROLLBACK: Final = (
    "A rollback of the root to a later snapshot (snapper, timeshift) leaves the subvolume in the old root, and journald"
    " writes to /run only. `journalkeeper isolate --apply` in the new root brings it back: run it before the next"
    " reboot. A rollback to an earlier snapshot brings back the journal of that time."
)


class IsolateAnswer(NamedTuple):
    """The answer of `isolate`: `isolated` is whether `directory` is a subvolume now.

    `snapshots` is the number of snapshots of the subvolume that contains it, null if it is unknown. `lost` are the
    places, in the volume, of subvolumes that a rollback left in other roots.
    """

    directory: str
    isolated: bool
    changed: bool
    files: Count
    size_bytes: Count
    snapshots: Count | None
    lost: tuple[str, ...] = ()


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
    acts = args.apply or args.undo
    if acts:
        require_root_only(os.path.dirname(top))
    with ExitStack() as stack:
        _take_lock(stack, context.state_directory)
        is_lost = not os.path.lexists(top) or subvolume.is_left_by_rollback(top)
        if is_lost and not acts:
            return _show_lost(context, top)
        if is_lost:
            _bring_back(top)
        if acts:
            isolate.remove_staging(top)
        found = isolate.survey(top)
        changed = acts and found.is_subvolume is not args.apply
        if changed:
            _move(context, found)
            found = isolate.survey(top)
        elif acts and _has_journald(top):
            control.flush()  # after a killed move or a rollback, journald is in /run
        if changed or is_lost:
            _restart_service(top)
    changed |= is_lost
    _show(context, found, _report(args, found, changed=changed) if acts else _describe(found), changed=changed)
    return 0


def _take_lock(stack: ExitStack, directory: str) -> None:
    for left in reversed(range(LOCK_TRIES)):
        try:
            stack.enter_context(Lock(directory))
            return
        except BusyError:
            if not left:
                raise
            time.sleep(1)


def _show(context: Context, found: isolate.Tree, sentences: list[str], *, changed: bool) -> None:
    answer = IsolateAnswer(found.path, found.is_subvolume, changed, found.files, found.size_bytes, found.snapshots)
    context.output.show(answer, sentences)


def _show_lost(context: Context, top: str) -> int:
    _, _, lost = subvolume.find_namesakes(top)
    sentences = [f"{top} is empty and read-only since a rollback: journald writes to /run only."]
    sentences += [f"The journal is in the subvolume {one}; --apply moves it here." for one in lost]
    answer = IsolateAnswer(top, isolated=False, changed=False, files=0, size_bytes=0, snapshots=None, lost=tuple(lost))
    context.output.show(answer, sentences)
    return 0


def _bring_back(top: str) -> None:
    device, own, lost = subvolume.find_namesakes(top)
    if len(lost) != 1:
        where = ", ".join(lost) or "none"
        raise KeeperError(f"{top} has no subvolume, and one in another root must be moved here; found: {where}")
    isolate.adopt(top, device, own, lost[0])


def _describe(found: isolate.Tree) -> list[str]:
    if found.is_subvolume:
        return [
            f"{found.path} is a subvolume of its own: {_count(found)}. --undo makes it a plain directory.",
            ROLLBACK,
        ]
    number = "an unknown number of snapshots" if found.snapshots is None else pluralize(found.snapshots, "snapshot")
    own = f"{found.path}/{layout.read_machine_id()}/" if _has_journald(found.path) else "\0"
    users = [user for user in isolate.find_users(found) if user.is_writer and not user.path.startswith(own)]
    return [
        f"{found.path} is a plain directory with {_count(found)}; its subvolume has {number}.",
        "--apply moves it into a subvolume of its own, which later snapshots do not contain. The files share their data"
        " with the old ones, which are removed after a check: only metadata is written, some KiB for each file.",
        "Snapshots that exist keep what they contain.",
        ROLLBACK,
        *(f"Stop {name} first, and its sockets: it writes." for name in sorted({user.name for user in users})),
    ]


def _report(args: argparse.Namespace, found: isolate.Tree, *, changed: bool) -> list[str]:
    kind = "a subvolume of its own" if args.apply else "a plain directory"
    said = f"{found.path} is {kind}{'' if changed else ' already'}: {_count(found)}."
    return [said, ROLLBACK] if changed and args.apply else [said]


def _count(found: isolate.Tree) -> str:
    return f"{pluralize(found.files, 'file')}, {format_size(found.size_bytes)}"


def _has_journald(top: str) -> bool:
    """Return whether the host's main journald writes to `top` and can be asked."""
    return top == os.path.realpath(layout.TOP) and control.answers("", control.TIMEOUT_S) is not None


def _move(context: Context, tree: isolate.Tree) -> None:
    """Move the tree while journald writes to /run, let journald write to the new tree, and remove the old one."""
    top = tree.path
    try:
        if _has_journald(top):
            was_open = any(user.is_writer for user in isolate.find_users(tree))
            with undo_at_end(*FLUSH):
                control.relinquish()
                tree = _exchange_trees(top)
                control.flush()
                if was_open and not any(user.is_writer for user in isolate.find_users(isolate.survey(top))):
                    isolate.exchange(top)
                    raise KeeperError(f"{top}: journald does not write to the new directory; all is as it was")
        else:
            tree = _exchange_trees(top)
        for name in sorted({user.name for user in isolate.find_users(tree)}):
            context.output.note(f"{name} still reads the old files: start it again, or it sees no new messages")
    finally:
        isolate.remove_staging(top)


def _exchange_trees(top: str) -> isolate.Tree:
    tree = isolate.survey(top)
    isolate.require_no_writer(tree)
    isolate.move(tree, into_subvolume=not tree.is_subvolume)
    return tree


def _restart_service(top: str) -> None:
    """Restart the service if it runs: in its mount namespace, the old directory alone is writable (ReadWritePaths=)."""
    if top == os.path.realpath(layout.TOP):
        with suppress(OSError):
            subprocess.run(["systemctl", "try-restart", SERVICE], check=False, capture_output=True)
