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
  0 done, or nothing to do; 1 the journal cannot be moved, and is as it was;
  2 wrong usage
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from contextlib import ExitStack, nullcontext, suppress
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
from journalkeeper.probe import scratch_volume

FLUSH: Final = ("sh", "-c", 'trap "" TERM; echo ready; read -r _; exec journalctl --flush')
"""The command that ends journald's stay in /run, also after this process was killed."""

BRING_BACK: Final = """\
mount -t btrfs -o subvolid=5 -- "$(findmnt -nvo SOURCE -T "$1")" "$2"
[ ! -e "$2/$3" ] || rmdir -- "$2/$3"
mv -T -- "$2/$4" "$2/$3"
"""
"""The commands that move the subvolume $4 to $3, both places in the volume of $1, which is mounted at $2."""

ANEW: Final = "rmdir and mkdir it, and run systemd-tmpfiles --create --prefix /var/log/journal; journalctl --flush"
"""The remedy where the old root was deleted."""

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
    lost: list[str]


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
    is_lost = not os.path.lexists(top) or subvolume.is_left_by_rollback(top)
    own, lost = subvolume.find_namesakes(top) if is_lost else ("", [])
    if is_lost and not lost:
        raise KeeperError(f"{top} is missing or was left by a rollback, and no other root has its subvolume: {ANEW}")
    if not acts:
        tree = isolate.Tree(top, 0, is_subvolume=False, snapshots=None, entries={}) if is_lost else isolate.survey(top)
        _show(context, tree, _describe_lost(top, lost) if is_lost else _describe(tree), lost)
        return 0
    with ExitStack() as stack:
        _take_lock(stack, context.state_directory)
        if is_lost:
            _bring_back(top, own, lost)
        isolate.remove_staging(top)
        found = isolate.survey(top)
        if moves := found.is_subvolume is not args.apply:
            _move(context, found)
            found = isolate.survey(top)
        elif _has_journald(top):
            control.flush()  # after a killed move or a rollback, journald is in /run
        changed = moves or is_lost
        if changed and top == os.path.realpath(layout.TOP):
            # in the service's mount namespace, the old directory alone is writable (ReadWritePaths=)
            subprocess.run(["systemctl", "try-restart", SERVICE], check=False, capture_output=True)
    kind = "a subvolume of its own" if args.apply else "a plain directory"
    said = f"{top} is {kind}{'' if changed else ' already'}: {_count(found)}."
    _show(context, found, [said, ROLLBACK] if changed and args.apply else [said], [], changed=changed)
    return 0


def _take_lock(stack: ExitStack, directory: str) -> None:
    for left in reversed(range(LOCK_TRIES)):
        with suppress(BusyError) if left else nullcontext():
            stack.enter_context(Lock(directory))
            return
        time.sleep(1)


def _show(context: Context, tree: isolate.Tree, said: list[str], lost: list[str], *, changed: bool = False) -> None:
    answer = (tree.path, tree.is_subvolume, changed, len(tree.sizes), sum(tree.sizes), tree.snapshots, lost)
    context.output.show(IsolateAnswer(*answer), said)


def _describe_lost(top: str, lost: list[str]) -> list[str]:
    said = f"{top} is empty and read-only since a rollback: journald writes to /run only."
    return [said, *(f"The journal is in the subvolume {one}; --apply moves it here." for one in lost)]


def _bring_back(top: str, own: str, lost: list[str]) -> None:
    if len(lost) > 1:
        raise KeeperError(f"{top} was left by a rollback, and several roots have its subvolume: {', '.join(lost)}")
    with tempfile.TemporaryDirectory(prefix="journalkeeper-", dir="/run") as point:
        scratch_volume.run(
            *scratch_volume.OWN_MOUNTS, "sh", "-ec", BRING_BACK, "sh", os.path.dirname(top), point, own, lost[0]
        )


def _describe(found: isolate.Tree) -> list[str]:
    if found.is_subvolume:
        said = f"{found.path} is a subvolume of its own: {_count(found)}. --undo makes it a plain directory."
        return [said, ROLLBACK]
    number = "an unknown number of snapshots" if found.snapshots is None else pluralize(found.snapshots, "snapshot")
    own = f"{found.path}/{layout.read_machine_id()}/" if _has_journald(found.path) else "\0"
    users = {user.name for user in isolate.find_users(found) if user.is_writer and not user.path.startswith(own)}
    return [
        f"{found.path} is a plain directory with {_count(found)}; its subvolume has {number}.",
        "--apply moves it into a subvolume of its own, which later snapshots do not contain. Snapshots that exist keep"
        " what they contain. The new files share their data with the old ones: space is needed for metadata only.",
        ROLLBACK,
        *(f"Stop {name} first, and its sockets: it writes." for name in sorted(users)),
    ]


def _count(found: isolate.Tree) -> str:
    return f"{pluralize(len(found.sizes), 'file')}, {format_size(sum(found.sizes))}"


def _has_journald(top: str) -> bool:
    """Return whether the host's main journald writes to `top` and can be asked."""
    return top == os.path.realpath(layout.TOP) and control.answers("", control.TIMEOUT_S) is not None


def _move(context: Context, tree: isolate.Tree) -> None:
    """Move the tree while journald writes to /run, let journald write to the new tree, and remove the old one."""
    top, asked = tree.path, _has_journald(tree.path)
    was_open = any(user.is_writer for user in isolate.find_users(tree))
    try:
        with scratch_volume.undo_at_end(*FLUSH) if asked else nullcontext():
            if asked:
                control.relinquish()
            tree = isolate.survey(top)
            isolate.require_no_writer(tree)
            isolate.move(tree, into_subvolume=not tree.is_subvolume)
            if asked:
                control.flush()
            if was_open and not any(user.is_writer for user in isolate.find_users(isolate.survey(top))):
                isolate.exchange(top)
                raise KeeperError(f"{top}: journald does not write to the new directory; all is as it was")
        for name in sorted({user.name for user in isolate.find_users(tree)}):
            context.output.note(f"{name} still reads the old files: start it again, or it sees no new messages")
    finally:
        isolate.remove_staging(top)
