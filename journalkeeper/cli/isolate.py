# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper isolate`: move the journal into a subvolume of its own, out of later snapshots of the root.

Snapshots make each flush of journald copy-on-write, also of NOCOW files, and keep each old journal. A
snapshot of the root ends at a nested subvolume: later ones contain an empty directory in its place. The
files move by reflink with all attributes, so no data is stored twice. journald goes on without a restart:
it writes to /run meanwhile, less than a second for a hundred files. Without --apply, nothing is changed.
No snapshot contains the new subvolume, so Nocow=auto may set +C on its directories.

The move ends without a change if the disk needs more than 30 s for it, if less than a quarter of /run
and less than 8 GiB are free, or if so much is logged that journald ends a file there. It also ends while
another program can write to the journal, such as a container that has it mounted: the message names the
program. Afterwards, restart programs that follow the journal, as journalctl -f does.

After a rollback of the root to a later snapshot, /var/log/journal is an empty directory that btrfs does not
let anybody write to. journald then writes to /run only, and a reboot loses that: boot the new root, and run
isolate --apply there, before another reboot and before you delete the old root. It moves the subvolume from
the old root into the new one, and journald goes on in it. After a rollback to an earlier snapshot, the journal
is as it was at that time; the newer entries are in the old root: journalctl -D OLDROOT/var/log/journal.

With --flat, the subvolume becomes @journal at the top of the volume, next to those of the roots, and a unit in
/etc/systemd/system mounts it. After a rollback to a later snapshot it is mounted there, too; after one to an
earlier snapshot, the newer entries are in @journal. journald gives up a mounted journal before the end of a
shutdown, so its last messages are not stored. If the mount fails, journald writes to /run, and
journalkeeper.service does not start: correct the cause and run isolate --apply. --undo ends the mount in all
services: those with ReadWritePaths=/var/log/journal can only read the journal until you restart them.

examples:
  sudo journalkeeper isolate                  what would be moved?
  sudo journalkeeper isolate --apply          move it, or bring it back
  sudo journalkeeper isolate --apply --flat   move it to the top of the volume
  sudo journalkeeper isolate --undo           make it a plain directory again

exit status:
  0 done, or nothing to do; 1 nothing was moved, or not all was done, as the
  message says; 2 wrong usage
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.btrfs import volume
from journalkeeper.cli.context import Context
from journalkeeper.execute import isolate
from journalkeeper.health.evidence import SERVICE
from journalkeeper.history.state import Lock
from journalkeeper.journald import control, layout, opening
from journalkeeper.model.errors import KeeperError, NeedsRootError, UsageError
from journalkeeper.model.schema import Count
from journalkeeper.model.units import format_size, pluralize
from journalkeeper.probe import scratch_volume
from journalkeeper.whole_file import require_root_only, write_whole

IN_RUN: Final = (
    *("systemd-run", "--quiet", "--collect", "--pipe", "--wait", "sh", "-c"),
    'trap "" TERM; journalctl --relinquish-var && echo ready && read -r _; "$@" && journalctl --flush',
    "sh",
)
"""The command that lets journald write to /run until its stdin ends, also when all processes of our unit are killed.

Further words are a command that is run before it ends.
"""

RUN: Final = "/run"
"""journald keeps 15% of it free, and otherwise deletes there what it has just stored: journald.conf(5)."""

MOVE_SUBVOLUME: Final = """\
umount --lazy --quiet -- "$1" || :
mount -t btrfs -o subvolid=5 -- "$(findmnt -nvo SOURCE -T "${1%/*}/")" /tmp
[ ! -e "/tmp/$2" ] || rmdir -- "/tmp/$2"
mv -T -- "/tmp/$3" "/tmp/$2"
"""
"""The commands that move the subvolume $3 to $2, both from the top of the volume of the journal $1.

They have a mount namespace of their own, in which $1 is not mounted: there rmdir ends its mount in all others.
"""

UNITS: Final = "/etc/systemd/system"
MOUNT_UNIT: Final = """\
# Made by `journalkeeper isolate --flat`. While the journal is in the directory, the condition skips the mount.
[Unit]
ConditionDirectoryNotEmpty=!{top}
Before=systemd-journal-flush.service

[Mount]
What=/dev/disk/by-uuid/{uuid}
Where={top}
Type=btrfs
Options=subvol=/{name},nodev,noexec,nosuid,noatime

[Install]
WantedBy=local-fs.target
"""
"""Not RequiredBy=, so that a boot goes on when the mount fails. systemd orders it before local-fs.target. Before= is
for a journal behind a link, because RequiresMountsFor= of the flush does not follow it.
"""

HIDDEN: Final = f"{{}} has files, so {isolate.FLAT} is not mounted there: move them away, and reboot"
NOT_FLAT: Final = "; the journal is in a subvolume that is not mounted from the top: correct this, and run it again"
READERS: Final = "Restart programs that follow the journal, as journalctl -f does: they keep the old files."
ROLLBACK: Final = "After a rollback of the root, boot it and run `journalkeeper isolate --apply`: a reboot loses logs."
FLAT_ROLLBACK: Final = "After a rollback of the root to a later snapshot, it is mounted there, too."


class IsolateAnswer(NamedTuple):
    """The answer of `isolate`: `isolated` is whether `directory` is a subvolume now.

    `flat` is whether it is mounted from the top of the volume. `lost` is the path, from there, of the journal's
    subvolume if a rollback left it in another root, or if it is not mounted.
    """

    directory: str
    isolated: bool
    flat: bool
    changed: bool
    files: Count
    size_bytes: Count
    lost: str | None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags --apply and --undo, which exclude each other, and --flat."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--apply", action="store_true", help="move the journal into a subvolume")
    group.add_argument("--undo", action="store_true", help="move it back into a plain directory")
    parser.add_argument("--flat", action="store_true", help="with --apply: at the top of the volume, with a mount unit")


def run(args: argparse.Namespace, context: Context) -> int:
    """With --apply or --undo, move the journal directory; else only show the plan. Return 0.

    Before, end a move that was killed, and bring back a subvolume that is elsewhere (`_find_elsewhere`). Afterwards,
    restart the service if its journal was changed. Raises: NeedsRootError, also for the plan; UsageError for --flat
    without --apply; KeeperError if the journal cannot be moved: it is as it was, or the message names its place.
    """
    if not context.privileged:
        raise NeedsRootError("the journal's files and subvolumes are for root")
    if args.flat and not args.apply:
        raise UsageError("--flat needs --apply")
    top = os.path.realpath(args.directory or layout.TOP)
    if not (args.apply or args.undo):
        _show_plan(context, top)
        return 0
    require_root_only(os.path.dirname(top))
    unit, state, changed = _name_mount_unit(top), "", False
    try:
        with Lock(context.state_directory):
            if lost := _find_elsewhere(top, unit):
                _bring_back(top, unit, lost)
                changed = True
            if args.undo and _is_flat(top):
                changed = True
                _unflatten(top, unit)
                state = NOT_FLAT
            found = isolate.survey(top)
            changed = isolate.finish(top) or changed
            if found.is_subvolume is not args.apply:
                changed = True
                _move(found)
                found, state = isolate.survey(top), ""
            elif _has_journald(top):
                scratch_volume.run("journalctl", "--flush")  # after a killed move or a rollback, journald is in /run
            if args.flat and not _is_flat(top):
                changed, state = True, NOT_FLAT
                _flatten(top, unit)
            elif args.undo:
                _remove_mount_unit(top, unit)
    except KeeperError as error:
        raise KeeperError(f"{error}{state}") from error
    finally:
        if changed and top == os.path.realpath(layout.TOP):
            # in the service's mount namespace, the old directory alone is writable (ReadWritePaths=)
            subprocess.run(["systemctl", "try-restart", SERVICE], check=False, capture_output=True)
    kind = "a subvolume of its own" if args.apply else "a plain directory"
    said = [f"{top} is {kind}{'' if changed else ' already'}: {_describe_files(found)}."]
    said += [READERS] * changed + [_describe_rollback(top)] * (changed and args.apply)
    _show(context, found, said, None, changed=changed)
    return 0


def _show(context: Context, tree: isolate.Tree, said: list[str], lost: str | None, *, changed: bool = False) -> None:
    """Show the sentences `said`, or with --json the state of the tree with `lost` and `changed`."""
    flat, sizes = _is_flat(tree.path), tree.sizes
    answer = IsolateAnswer(tree.path, tree.is_subvolume, flat, changed, len(sizes), sum(sizes), lost)
    context.output.show(answer, said)


def _find_own_place(top: str) -> str:
    """Return the path of `top` from the volume's top, also below a mount at `top`. Raises: as `isolate.locate`."""
    return os.path.join(isolate.locate(os.path.dirname(top))[1], os.path.basename(top))


def _move_subvolume(top: str, target: str, source: str) -> None:
    """Move the subvolume `source` to the absent or empty `target`, both from the volume's top. End mounts at `top`."""
    run_shell = (*scratch_volume.DIE_WITH_US, *scratch_volume.OWN_MOUNTS, "sh", "-ec")
    scratch_volume.run(*run_shell, MOVE_SUBVOLUME, "sh", top, target, source)


def _flatten(top: str, unit: str) -> None:
    """Move the subvolume at `top` to FLAT at the volume's top, and mount it, now and at each boot. If the mount fails,
    undo the move; the unit stays. Raises: KeeperError, also unless `_has_journald`, or if FLAT or another unit exists.
    """
    if not _has_journald(top):
        raise KeeperError(f"{top}: --flat is for the journal of the running host")
    with opening.open_directory(top) as journal:
        uuid, _ = volume.read_fs_info(journal)
    if volume.has_subvolume(os.path.dirname(top), isolate.FLAT):
        raise KeeperError(f"the volume has a subvolume {isolate.FLAT} already: rename it first")
    if os.path.lexists(unit) and not _is_own_unit(unit):
        raise KeeperError(f"{unit} exists already: remove it first")
    write_whole("write the mount unit", unit, MOUNT_UNIT.format(top=top, uuid=uuid, name=isolate.FLAT), mode=0o644)
    scratch_volume.run("systemctl", "enable", "--quiet", os.path.basename(unit))
    isolate.write_back(UNITS)
    place = _find_own_place(top)
    _move_and_mount(top, unit, isolate.FLAT, place)
    if not _is_flat(top):
        _move_and_mount(top, unit, place, isolate.FLAT)
        raise KeeperError(f"{isolate.FLAT} could not be mounted: see systemctl status {os.path.basename(unit)}")


def _unflatten(top: str, unit: str) -> None:
    """Move FLAT back to `top`; its unit stays. Raises: KeeperError for a mount below, or at `top` by another unit."""
    isolate.survey(top)  # a mount below would end with this one
    if not _is_own_unit(unit):
        raise KeeperError(f"{top} is a mount point that --flat did not make: it cannot be moved")
    _move_and_mount(top, unit, _find_own_place(top), isolate.FLAT)


def _move_and_mount(top: str, unit: str, target: str, source: str) -> None:
    """Move the subvolume in `_hold_in_run`. Its command mounts FLAT if `top` is empty; a failure is not reported."""
    isolate.write_back(os.path.dirname(top))
    with _hold_in_run(top, "systemctl", "start", os.path.basename(unit)):
        _move_subvolume(top, target, source)


def _is_flat(top: str) -> bool:
    """Return whether the subvolume FLAT is mounted at `top`."""
    mounts = ((volume.get_mount_point(line, 3), volume.get_mount_point(line)) for line in volume.read_mount_lines())
    return (f"/{isolate.FLAT}", top) in mounts


def _name_mount_unit(top: str) -> str:
    """Return the path that the mount unit for `top` has in UNITS."""
    return os.path.join(UNITS, scratch_volume.run("systemd-escape", "--path", "--suffix=mount", top).strip())


def _is_own_unit(unit: str) -> bool:
    """Return whether the file exists and begins with the first line of MOUNT_UNIT."""
    return os.path.lexists(unit) and Path(unit).read_text().startswith(MOUNT_UNIT.split("\n", 1)[0])


def _find_elsewhere(top: str, unit: str) -> str | None:
    """Return the path, from the volume's top, of the journal's subvolume if it is not at `top`. Raises: as `find_lost`.

    It is FLAT if that has a unit and is not mounted, or else what a rollback left in another root.
    """
    if not _is_flat(top) and _is_own_unit(unit) and volume.has_subvolume(os.path.dirname(top), isolate.FLAT):
        return isolate.FLAT  # the unit alone is what a killed move or, after --undo, a rollback leaves
    return isolate.find_lost(top)


def _bring_back(top: str, unit: str, lost: str) -> None:
    """If `lost` is FLAT and has a unit, mount it and restart the timer; else move it to `top`, marked as complete.

    journald is not flushed. Raises: KeeperError if `top` has files, or if the unit does not mount FLAT.
    """
    if lost == isolate.FLAT and _is_own_unit(unit):
        scratch_volume.run("systemctl", "start", os.path.basename(unit))
        if not _is_flat(top):
            raise KeeperError(HIDDEN.format(top))
        # it starts the service, which needs the mount (RequiresMountsFor=)
        subprocess.run(["systemctl", "try-restart", "journalkeeper.timer"], check=False, capture_output=True)
    else:
        _move_subvolume(top, _find_own_place(top), lost)
        os.setxattr(top, isolate.MARK, b"")  # it contains all of an old tree that a snapshot during the move contains


def _remove_mount_unit(top: str, unit: str) -> None:
    """If the unit is of --flat, write `top` back, then disable and remove it, and let systemd reload its units."""
    if _is_own_unit(unit):
        isolate.write_back(top)  # the move is on the disk before the removal
        scratch_volume.run("systemctl", "disable", "--quiet", os.path.basename(unit))
        os.unlink(unit)
        scratch_volume.run("systemctl", "daemon-reload")


def _show_plan(context: Context, top: str) -> None:
    """Show what --apply or --undo would do, which programs must end first, and a subvolume that --apply brings back."""
    lost = _find_elsewhere(top, _name_mount_unit(top))
    found = isolate.Tree(top, is_subvolume=False, entries={}) if lost else isolate.survey(top)
    if lost == isolate.FLAT and os.path.exists(top) and os.listdir(top):
        said = [f"{HIDDEN.format(top)}."]
    elif lost:
        state = "not mounted" if lost == isolate.FLAT else "empty and read-only since a rollback"
        said = [f"{top} is {state}: journald writes to /run only.", f"--apply brings back the subvolume {lost}."]
    elif found.is_subvolume:
        said = [f"{top} is a subvolume of its own: {_describe_files(found)}. --undo makes it a plain directory."]
        said += [_describe_rollback(top)]
    else:
        said = [
            f"{top} is a plain directory with {_describe_files(found)}. --apply moves it into a subvolume of its own,"
            " which later snapshots do not contain. Snapshots that exist keep what they contain. The new files share"
            " their data with the old ones: space is needed for metadata only.",
            ROLLBACK,
        ]
        writers = {name for name, _ in isolate.find_writers(top) if not name.startswith("systemd-journald.service")}
        said += [f"End {name} first, and its sockets: it can write." for name in sorted(writers)]
    _show(context, found, said, lost)


def _describe_rollback(top: str) -> str:
    """Return what a rollback of the root does to the journal: FLAT_ROLLBACK if `_is_flat`, else ROLLBACK."""
    return FLAT_ROLLBACK if _is_flat(top) else ROLLBACK


def _describe_files(found: isolate.Tree) -> str:
    """Return the number of files and their total size, as "2 files, 16.0M"."""
    return f"{pluralize(len(found.sizes), 'file')}, {format_size(sum(found.sizes))}"


def _has_journald(top: str) -> bool:
    """Return whether the host's main journald writes to `top` and can be asked."""
    return top == os.path.realpath(layout.TOP) and control.is_responsive("", control.TIMEOUT_S) is not None


def _hold_in_run(top: str, *words: str) -> AbstractContextManager[object]:
    """Let journald write to /run in the block. Then run a command, and if that succeeds, let journald write to `top`.

    This is done also after an error in the block; its own errors are not reported. Without a journald, run nothing.
    Raises: KeeperError if less than a quarter of /run is free, and less than 8 GiB.
    """
    if not _has_journald(top):
        return nullcontext()
    room = shutil.disk_usage(RUN)
    if room.free < min(room.total / 4, 8 << 30):  # RuntimeMaxUse= and RuntimeKeepFree= are 10 and 15%, at most 4 GiB
        raise KeeperError(f"{RUN} is too full for journald to write there during the move: free a quarter of it first")
    return scratch_volume.undo_at_end(*IN_RUN, *words)


def _move(tree: isolate.Tree) -> None:
    """Move the tree into a subvolume, or out of one, while journald writes to /run; then remove the old tree.

    Raises: KeeperError if no journald that wrote before writes to the new tree: both trees stay; as `isolate.move`.
    """
    top = tree.path
    was_open = any(isolate.find_writers(top))
    archives = isolate.prepare(tree)
    with ExitStack() as undo:
        undo.callback(isolate.finish, top)
        with _hold_in_run(top, "true"):
            isolate.move(isolate.survey_unwritten(top), archives, into_subvolume=not tree.is_subvolume)
        undo.pop_all()
    if was_open and not any(isolate.find_writers(top)):
        old = isolate.name_staging(top)
        raise KeeperError(f"{top}: no journald writes to it since the move; the old tree is {old} until the next call")
    isolate.finish(top)
