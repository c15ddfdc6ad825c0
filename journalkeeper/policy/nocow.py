# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a journal directory gets the attribute C, so that the files made in it are NOCOW.

NOCOW data has no checksums, so `auto` sets it only where a checksum could not
have healed anything. Where the volume keeps copies (raid1, raid10, raid1c3, raid1c4, dup) or
parity (raid5, raid6) only the checksum tells the good one: there files stay datacow, are kept
whole by defragmenting and rotating, and `auto` says so.

Nor where snapshots are taken of the journal: each makes all NOCOW data copy-on-write once more, so that
it is torn like any other (measured: 412 to 2,898 extents and boots of 3.5 to 20.1 s). The evidence is
FIEMAP's SHARED on a file of that journal, which takes no privilege, and the record of rewrites beside a
snapshot, for when nothing happens to be shared. It cannot see a snapshot that nothing was written since,
nor distinguish one from a reflink. Whoever may read a file may reflink it, and every user may read the own
user-UID.journal: so the journals of users are no evidence.

What already is NOCOW stays so, also under `no`: attributes are set by us or left alone.
"""

from __future__ import annotations

from typing import Final

from journalkeeper.config import Config
from journalkeeper.model import Action, Host, Instance, JournalFile, Reason, Skip, Verb, Volume
from journalkeeper.policy.deferral import tried_before

UNWANTED: Final = {
    Reason.REDUNDANT: "its copies can differ unseen",
    Reason.SNAPSHOTS: "each has the data copied on write once more, and there are no checksums",
}
"""Why `auto` would rather have datacow files in a directory, and what NOCOW costs there."""

COMPRESSING: Final = ("compress-force", "compress")
"""Mount options that NOCOW files are exempt from; ours are compressed as archives."""


def snapshots(instance: Instance, host: Host) -> bool:
    """Return whether there is evidence that snapshots are taken of this journal."""
    where = instance.directory
    return where in host.unshared or any(_shows_snapshot(file) for file in host.files if file.directory == where)


def _shows_snapshot(file: JournalFile) -> bool:
    """Return whether the file is shared, and by no reflink that its own user could make."""
    return file.extents.shared_bytes > 0 and not file.owner.startswith("user:")


def judge(instance: Instance, volume: Volume | None, host: Host, config: Config) -> Action | Skip | None:
    """The action to make the directory NOCOW, why it stays datacow, or None where there is nothing to say."""
    wanted = config.nocow.nocow
    if wanted == "no" or volume is None:
        return None
    doubt = None if wanted == "yes" else _doubt(instance, volume, host)
    if instance.nocow:
        return _already(instance, doubt)
    return _obstacle(instance, volume, doubt) or refused(instance, host) or _action(instance, volume, wanted)


def _doubt(instance: Instance, volume: Volume, host: Host) -> tuple[Reason, str] | None:
    """Why `auto` would rather have datacow files here."""
    if volume.redundant:
        return Reason.REDUNDANT, f"data is {volume.data_profile}"
    if snapshots(instance, host):
        return Reason.SNAPSHOTS, "snapshots share files of this journal"
    return None


def makes_nocow(instance: Instance, volume: Volume | None) -> bool:
    """Whether a file that is made in the directory now is NOCOW."""
    return instance.nocow or (volume is not None and "nodatacow" in volume.options)


def _already(instance: Instance, doubt: tuple[Reason, str] | None) -> Skip | None:
    """A NOCOW directory is as wanted, except where `auto` would not have made it so."""
    if doubt is None:
        return None
    reason, what = doubt
    detail = (
        f"NOCOW though {what}: {UNWANTED[reason]}; systemd sets it at each boot"
        " unless /etc/tmpfiles.d/journal-nocow.conf is a link to /dev/null, and chattr -C takes it off new files"
    )
    return Skip(instance.directory, reason, detail)


def _obstacle(instance: Instance, volume: Volume, doubt: tuple[Reason, str] | None) -> Skip | None:
    """Why this directory is not made NOCOW."""
    where = instance.directory
    if "nodatacow" in volume.options:
        return Skip(where, Reason.IDEAL, "mounted with nodatacow: new files are NOCOW without an attribute")
    if doubt is not None:
        reason, what = doubt
        return Skip(where, reason, f"{what}: new files stay datacow, with checksums")
    if "ro" in volume.options:
        return Skip(where, Reason.READ_ONLY, "the filesystem is mounted read-only")
    if instance.compressed:
        return Skip(
            where, Reason.COMPRESSION, "chattr -c, or btrfs property set DIRECTORY compression '', takes it off"
        )
    return None


def refused(instance: Instance, host: Host) -> Skip | None:
    """What failed for this directory fails again, until somebody had the time to mend it."""
    return tried_before(instance.directory, host.refused.get((instance.device, instance.inode)), host.now_us)


def _action(instance: Instance, volume: Volume, wanted: str) -> Action:
    options = [word for word in volume.options if word.partition("=")[0] in COMPRESSING]
    return Action(
        path=instance.directory,
        action=Verb.SET_NOCOW,
        reason=Reason.NO_REDUNDANCY if wanted == "auto" and not volume.redundant else Reason.CONFIGURED,
        target=instance,
        detail=f"mounted with {options[0]}, which NOCOW files are exempt from" if options else "",
    )
