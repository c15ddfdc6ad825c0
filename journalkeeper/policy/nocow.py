# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a journal directory gets the attribute C, so that the files made in it are NOCOW.

The one rule: NOCOW data has no checksums, so `auto` sets it only where a checksum could not
have healed anything. Where the volume keeps copies (raid1, raid10, raid1c3, raid1c4, dup) or
parity (raid5, raid6) only the checksum tells the good one: there files stay datacow, are kept
whole by defragmenting and rotating, and `auto` says so.

What already is NOCOW stays so, also under `no`: attributes are set by us or left alone.
"""

from __future__ import annotations

from typing import Final

from journalkeeper.config import Config
from journalkeeper.model import Host, Instance, Order, Reason, Skip, Verb, Volume
from journalkeeper.policy.postpone import AGAIN_US
from journalkeeper.values import format_span

COMPRESSING: Final = ("compress-force", "compress")
"""Mount options that NOCOW files are exempt from; ours are compressed as archives."""


def judge(instance: Instance, volume: Volume | None, host: Host, config: Config) -> Order | Skip | None:
    """The order to make the directory NOCOW, why it stays datacow, or None where there is nothing to say."""
    wanted = config.nocow.nocow
    if wanted == "no" or volume is None:
        return None
    if instance.nocow:
        return _already(instance, volume, wanted)
    return _obstacle(instance, volume, wanted) or refused(instance, host) or _order(instance, volume, wanted)


def makes_nocow(instance: Instance, volume: Volume | None) -> bool:
    """Whether a file that is made in the directory now is NOCOW."""
    return instance.nocow or (volume is not None and "nodatacow" in volume.options)


def _already(instance: Instance, volume: Volume, wanted: str) -> Skip | None:
    """A NOCOW directory is as wanted, except where `auto` would not have made it so."""
    if wanted == "yes" or not volume.redundant:
        return None
    detail = (
        f"NOCOW though data is {volume.data_profile}: its copies can differ unseen; systemd sets it at each boot"
        " unless /etc/tmpfiles.d/journal-nocow.conf is a link to /dev/null, and chattr -C takes it off new files"
    )
    return Skip(instance.directory, Reason.REDUNDANT, detail)


def _obstacle(instance: Instance, volume: Volume, wanted: str) -> Skip | None:
    """Why this directory is not made NOCOW."""
    where = instance.directory
    if "nodatacow" in volume.options:
        return Skip(where, Reason.IDEAL, "mounted with nodatacow: new files are NOCOW without an attribute")
    if wanted == "auto" and volume.redundant:
        what = f"data is {volume.data_profile}: new files stay datacow, a checksum tells the good copy"
        return Skip(where, Reason.REDUNDANT, what)
    if "ro" in volume.options:
        return Skip(where, Reason.READ_ONLY, "the filesystem is mounted read-only")
    if instance.compressed:
        return Skip(
            where, Reason.COMPRESSION, "chattr -c, or btrfs property set DIRECTORY compression '', takes it off"
        )
    return None


def refused(instance: Instance, host: Host) -> Skip | None:
    """What failed for this directory fails again, until somebody had the time to mend it."""
    last = host.refused.get((instance.device, instance.inode))
    if last is None or not 0 <= host.now_us - last.when_us < AGAIN_US:
        return None
    detail = f"tried {format_span(host.now_us - last.when_us)} ago: {last.detail}"
    return Skip(instance.directory, last.reason, detail, until_us=last.when_us + AGAIN_US)


def _order(instance: Instance, volume: Volume, wanted: str) -> Order:
    options = [word for word in volume.options if word.partition("=")[0] in COMPRESSING]
    return Order(
        path=instance.directory,
        action=Verb.SET_NOCOW,
        reason=Reason.NO_REDUNDANCY if wanted == "auto" and not volume.redundant else Reason.CONFIGURED,
        instance=instance,
        detail=f"mounted with {options[0]}, which NOCOW files are exempt from" if options else "",
    )
