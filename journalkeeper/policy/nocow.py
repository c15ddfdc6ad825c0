# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide whether a journal directory gets the attribute C, which makes its new files NOCOW.

NOCOW data has no checksums, so `auto` sets the attribute only where a checksum could not help to repair data. On a
volume with copies (raid1, raid10, raid1c3, raid1c4, dup) or parity (raid5, raid6) only the checksum identifies the good
copy. There, files stay datacow and are kept whole by defragmentation and rotation, and `auto` reports that.

`auto` does not set it either where snapshots are taken of the journal. Each snapshot makes all NOCOW data copy-on-write
once more, so that it fragments like any other (measured: 412 to 2,898 extents and boots of 3.5 to 20.1 s). btrfs is
asked for snapshots of the subvolume. Where it cannot be asked, a configured snapshot tool counts, and the flag SHARED
of FIEMAP on a file of that journal. Every user can read and thus reflink his own user-UID.journal, so the journals of
users do not count.

A directory that is NOCOW stays NOCOW, also under `no`: the service sets the attribute or leaves it alone.
"""

from __future__ import annotations

from shlex import quote
from typing import Final

from journalkeeper.model import Action, Host, Instance, Reason, Skip, Verb, Volume
from journalkeeper.model.units import format_span, pluralize
from journalkeeper.policy.case import Cases
from journalkeeper.policy.deferral import postpone_retry

UNWANTED: Final = frozenset({Reason.REDUNDANT, Reason.SNAPSHOTS})
"""The reasons for which `auto` prefers datacow files in a directory."""


def find_snapshots(instance: Instance, volume: Volume, host: Host) -> str:
    """Return a clause on the number of snapshots, if unknown on a configured tool or shared data (no user's), or ""."""
    if volume.snapshots is not None:
        return f"its subvolume has {pluralize(volume.snapshots, 'snapshot')}" if volume.snapshots else ""
    if volume.snapshot_tool:
        return f"{volume.snapshot_tool} is configured for its subvolume"
    shared = (file for file in host.files if file.extents.shared_bytes and not file.owner.startswith("user:"))
    return "other files share its data" if any(file.directory == instance.directory for file in shared) else ""


def decide(instance: Instance, volume: Volume | None, cases: Cases) -> Action | Skip | None:
    """Return the action that makes the directory NOCOW, or a Skip. None for Nocow=no and an unknown volume.

    A directory that is NOCOW already has a Skip if `auto` would not set the attribute, else None. `auto` skips one that
    has files of an unknown format. A failure postpones the action, and so does, with `puts_off`, a recent start.
    """
    wanted, host = cases.config.nocow.nocow, cases.host
    if wanted == "no" or volume is None:
        return None
    doubt = None if wanted == "yes" else _find_doubt(instance, volume, host)
    if instance.nocow:
        if doubt is None:
            return None
        return Skip(instance.directory, doubt[0], f"NOCOW although {doubt[1]}; see `journalkeeper doctor`")
    formats = (file for file in host.files if file.problem is Reason.UNKNOWN_FORMAT)
    if wanted == "auto" and any(file.directory == instance.directory for file in formats):
        return Skip(instance.directory, Reason.UNKNOWN_FORMAT, "whether +C (NOCOW) is good for its files is unknown")
    return (
        _find_obstacle(instance, volume, doubt)
        or postpone_failed_change(instance, host)
        or _postpone_at_start(instance, cases)
        or _make_action(instance, volume, wanted)
    )


def _find_doubt(instance: Instance, volume: Volume, host: Host) -> tuple[Reason, str] | None:
    """Return (reason, detail) why Nocow=auto wants datacow: `redundant`, or snapshots without a recent +C; or None."""
    if volume.redundant:
        return Reason.REDUNDANT, f"the volume stores data as {volume.data_profile}"
    snapshots = find_snapshots(instance, volume, host)
    if snapshots and not (instance.nocow and instance.directory in host.made_nocow):
        return Reason.SNAPSHOTS, snapshots
    return None


def _find_obstacle(instance: Instance, volume: Volume, doubt: tuple[Reason, str] | None) -> Skip | None:
    """Return a Skip if C has no effect (nodatacow), for `doubt`, or if it cannot be set (read-only, chattr +c, +m)."""
    where = instance.directory
    if "nodatacow" in volume.options:
        return Skip(where, Reason.IDEAL, "mounted with nodatacow: new files are NOCOW without an attribute")
    if doubt is not None:
        reason, what = doubt
        return Skip(where, reason, f"{what}, so +C (NOCOW) is not set and new files keep checksums")
    if obstacle := find_read_only(volume):
        return Skip(where, Reason.READ_ONLY, obstacle)
    if instance.compressed or instance.refuses_compression:
        letter, remedy = "c" if instance.compressed else "m", f"btrfs property set {quote(where)} compression ''"
        return Skip(where, Reason.COMPRESSION, f"remove it: `chattr -{letter} {quote(where)}` or `{remedy}`")
    return None


def find_read_only(volume: Volume) -> str:
    """Return why nothing on the volume can be written, a read-only subvolume or the mount option ro; or ""."""
    if volume.read_only_subvolume:
        return "the subvolume is read-only (`btrfs property get`): snapshots and received subvolumes are"
    return "the filesystem is read-only, or mounted so for this process" if "ro" in volume.options else ""


def postpone_failed_change(instance: Instance, host: Host) -> Skip | None:
    """Postpone an action on this directory until the retry delay after its last failure is over, else return None."""
    return postpone_retry(instance.directory, host.refused.get((instance.device, instance.inode)), host.now_us)


def _postpone_at_start(instance: Instance, cases: Cases) -> Skip | None:
    """Postpone +C while a service that does not hurry is younger than SettleSec=, so that an admin can object first."""
    host, wait_us = cases.host, cases.config.watch.settle_us
    if host.began_us is None or cases.request.hurries or not 0 <= (age_us := host.now_us - host.began_us) < wait_us:
        return None
    detail = f"+C in {format_span(wait_us - age_us)}: the service started {format_span(age_us)} ago"
    return Skip(instance.directory, Reason.STARTING, detail, until_us=host.began_us + wait_us, puts_off=True)


def _make_action(instance: Instance, volume: Volume, wanted: str) -> Action:
    """Return the +C action: CONFIGURED, or for "auto" NO_REDUNDANCY, its detail "no snapshots" or "none ... shared"."""
    asked = "no snapshots" if volume.snapshots is not None else "none of the files is shared"
    return Action(
        path=instance.directory,
        action=Verb.SET_NOCOW,
        reason=Reason.NO_REDUNDANCY if wanted == "auto" else Reason.CONFIGURED,
        target=instance,
        detail=asked if wanted == "auto" else "",
    )
