# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rules on the journal's storage, its volume, its directories and its files.

Most conditions of a directory are advice only, because the service works around them or mends them by itself.
"""

from __future__ import annotations

from shlex import quote
from typing import Final

from journalkeeper.health.evidence import Evidence, Look, Unknown
from journalkeeper.health.finding import Facts, Finding, Severity, list_names, require
from journalkeeper.health.service_rules import free_space, is_up
from journalkeeper.model import GIB, MIB, Instance, JournalFile, Kind, Reason, Sums, Volume
from journalkeeper.model.manager import Manager
from journalkeeper.model.units import counted, format_size
from journalkeeper.model.waiting import long
from journalkeeper.policy.cost import is_fragmented
from journalkeeper.policy.nocow import snapshots
from journalkeeper.policy.saving import READ_IOPS

PINNED_BYTES: Final = 16 * MIB
"""Snapshots that keep less than two of journald's 8 MiB steps are not reported."""

MANY_EXTENTS: Final = 2 * READ_IOPS
"""The extents above the ideal that cost a cold reader two seconds; fewer are not reported."""

ROOM_BYTES: Final = 64 * MIB
"""With less than this btrfs may end a transaction for want of space: the metadata of one busy commit, and the kernel's
own reserve for it on a small volume, is tens of MiB."""

UNALLOCATED_BYTES: Final = GIB
"""The largest chunk that btrfs makes of data, and of metadata on volumes of more than 50 GiB."""

RIVAL_TIMER: Final = "btrfs-defrag.timer"
"""The timer of btrfsmaintenance."""

RIVAL_PREFIX: Final = "beesd@"

UNSEEN: Final = frozenset({Reason.UNREADABLE, Reason.IO_ERROR, Reason.INTERNAL_ERROR, Reason.TOO_MANY})
"""Reasons for which a file was not looked at although it exists."""


def volatile(evidence: Evidence) -> Finding | None:
    """The journal is kept in memory, or nowhere: it ends with the boot, and no file needs care.

    The cause is Storage=, a missing /var/log/journal, or a journal that was not flushed to /var in this boot.
    """
    storage = require(evidence.storage)
    facts: Facts = {"storage": storage.storage, "flushed": "yes" if storage.flushed else "no"}
    if storage.storage in {"volatile", "none"}:
        where = "in memory only" if storage.storage == "volatile" else "nowhere"
        sentence = f"Storage={storage.storage} keeps messages {where}: none of them outlives the boot."
        remedy = [
            "mkdir -p /etc/systemd/journald.conf.d",
            "echo '[Journal]' > /etc/systemd/journald.conf.d/storage.conf",
            "echo Storage=persistent >> /etc/systemd/journald.conf.d/storage.conf",
            "systemctl restart systemd-journald",
            "journalctl --flush",
        ]
    elif storage.storage == "auto" and not storage.persistent_directory:
        sentence = "There is no /var/log/journal, so Storage=auto keeps messages in memory and none outlives the boot."
        remedy = ["mkdir /var/log/journal", "systemd-tmpfiles --create --prefix /var/log/journal", "journalctl --flush"]
    elif not storage.flushed:
        sentence = "journald has not moved to /var/log/journal in this boot: messages are in memory only."
        remedy = ["systemctl status systemd-journal-flush", "journalctl --flush"]
    else:
        return None
    return Finding("volatile", Severity.PROBLEM, facts, sentence, tuple(remedy))


def not_btrfs(evidence: Evidence) -> Finding | None:
    """A journal directory is on another filesystem, where there is nothing to mend."""
    look = require(evidence.look)
    if not look.foreign:
        return None
    sentence = f"{list_names(look.foreign)} is not on btrfs: journalkeeper has nothing to mend there."
    remedy = tuple(f"findmnt --target {quote(path)}" for path in look.foreign)
    return Finding("not-btrfs", Severity.ADVICE, {"directories": list(look.foreign)}, sentence, remedy)


def nocow_redundant(evidence: Evidence) -> Finding | Unknown | None:
    """A directory is NOCOW on a volume that keeps copies. Without checksums the good copy cannot be identified."""
    look = require(evidence.look)
    found = [
        (one, volume)
        for one, volume in _pair_with_volumes(look)
        if volume is not None and one.nocow and volume.redundant
    ]
    if not found:
        return _check_unseen_directories(look)
    where, profiles = [one.directory for one, _ in found], sorted({volume.data_profile for _, volume in found})
    sentence = (
        f"{list_names(where)} is NOCOW on {' and '.join(profiles)}: its data has no checksums, so two copies can differ"
        " and"
        " the good one cannot be identified."
    )
    facts: Facts = {"directories": where, "data_profiles": profiles}
    return Finding("nocow-redundant", Severity.ADVICE, facts, sentence, _make_datacow(where))


def nocow_snapshots(evidence: Evidence) -> Finding | Unknown | None:
    """A directory is NOCOW and snapshots are taken of it. Each snapshot makes its data copy-on-write once more."""
    look = require(evidence.look)
    where = [one.directory for one in look.host.instances if one.nocow and snapshots(one, look.host)]
    if not where:
        return _check_unseen_files(look)
    sentence = (
        f"{list_names(where)} is NOCOW, and snapshots are taken of it: after each one btrfs copies the data on write"
        " once"
        " more, so its files fragment all the same, without checksums."
    )
    return Finding("nocow-snapshots", Severity.ADVICE, {"directories": list(where)}, sentence, _make_datacow(where))


def namespace_datacow(evidence: Evidence) -> Finding | Unknown | None:
    """The directory of a namespace lacks the attribute +C, which systemd sets on the directory of the main journal."""
    look = require(evidence.look)
    main = {one.device for one in look.host.instances if one.nocow and not one.namespace}
    where = [
        one.directory
        for one, volume in _pair_with_volumes(look)
        if one.namespace and not one.nocow and one.device in main
        if volume is not None and not volume.redundant and not snapshots(one, look.host) and not one.compressed
    ]
    if not where:
        return _check_unseen_directories(look)
    sentence = (
        f"{list_names(where)} is copy-on-write, unlike the main journal's directory: systemd sets +C for that one only,"
        " and"
        " each flush fragments the namespace's file."
    )
    remedy = tuple(f"chattr +C {quote(path)}" for path in where)
    remedy += tuple(f"journalctl --namespace={quote(_namespace(look, path))} --rotate" for path in where)
    return Finding("namespace-datacow", Severity.ADVICE, {"directories": list(where)}, sentence, remedy)


def pinned_by_snapshots(evidence: Evidence) -> Finding | Unknown | None:
    """Snapshots keep the data of journal files: deleting a file frees no space until they are deleted."""
    look = require(evidence.look)
    shared = [file for file in look.host.files if file.extents.shared_bytes]
    total = sum(file.extents.shared_bytes for file in shared)
    if total < PINNED_BYTES:
        return _check_unseen_files(look)
    twice = 0
    if not isinstance(evidence.record, Unknown):
        twice = sum(entry.outcome.unshared_bytes for entry in evidence.record.entries)
    sentence = (
        f"Snapshots keep {format_size(total)} of {counted(len(shared), 'journal file')}: journald cannot free that"
        " space, and each rewrite of such a file stores an additional copy."
    )
    facts: Facts = {"shared_bytes": total, "files": len(shared), "stored_twice_bytes": twice}
    return Finding("pinned-by-snapshots", Severity.ADVICE, facts, sentence, _make_subvolume(look, shared))


def _make_subvolume(look: Look, shared: list[JournalFile]) -> tuple[str, ...]:
    """Return the commands that move the journal into a subvolume of its own, which snapshots of the root leave out.

    If the journal already has its own subvolume, return the command that lists the snapshots.
    """
    owned = {volume.device for volume in look.host.volumes if volume.own_subvolume}
    tops = {file.path.rsplit("/", 2)[0] for file in shared if file.device not in owned}
    if not tops:
        return (f"btrfs subvolume list -s {quote(min(file.path for file in shared).rpartition('/')[0])}",)
    top = quote(min(tops))
    old = quote(f"{min(tops)}.old")
    return (
        "journalctl --relinquish-var",
        f"mv {top} {old}",
        f"btrfs subvolume create {top}",
        f"cp --archive --reflink=auto {old}/. {top}/",
        "journalctl --flush",
        f"rm -r {old}",
    )


def fragmented(evidence: Evidence) -> Finding | Unknown | None:
    """Files have many more extents than they need, and no service works on them, or they wait for more than a day.

    A service at work leaves files fragmented for a while: they settle, or a flush is near.
    """
    look, config = require(evidence.look), require(evidence.config)
    files = [file for file in look.host.files if file.problem is None and is_fragmented(file, None, config)]
    if files and _is_at_work(evidence):
        waiting = {wait.path for wait in long(require(evidence.record).waiting, evidence.now_us)}
        files = [file for file in files if file.path in waiting]
    files.sort(key=lambda file: (-file.extents.total, file.path))
    every = Sums.of(files)
    if every.extents - every.ideal_extents < MANY_EXTENTS:
        return _check_unseen_files(look)
    lie = f"{counted(len(files), 'file')} {'lies' if len(files) == 1 else 'lie'}"
    sentence = (
        f"{lie} in {every.extents:,} extents where {every.ideal_extents:,} would do; `journalkeeper plan` shows the"
        " action for each."
    )
    where = [""] if any(one.rotatable for one in look.host.instances) else _options({file.directory for file in files})
    remedy = tuple(f"journalkeeper {word}{option}" for word in ("plan", "defrag") for option in where)
    facts: Facts = {
        "files": [file.path for file in files],
        "extents": every.extents,
        "ideal_extents": every.ideal_extents,
    }
    return Finding("fragmented", Severity.ADVICE, facts, sentence, remedy)


def _options(directories: set[str]) -> list[str]:
    """Return " -D PATH" for each of `directories`, quoted for the shell and sorted."""
    return [f" -D {quote(path)}" for path in sorted(directories)]


def _is_at_work(evidence: Evidence) -> bool:
    """Return whether the service or the timer for `defrag` takes care of fragmented files."""
    if isinstance(evidence.service, Manager):
        return not evidence.service.paused
    return not isinstance(evidence.units, Unknown) and is_up(evidence.units)


def unclean(evidence: Evidence) -> Finding | Unknown | None:
    """Files that journald did not close, and temporary files of a killed run."""
    look = require(evidence.look)
    files = [file for file in look.host.files if file.kind is Kind.UNCLEAN]
    if not files and not look.leftovers:
        return _check_unseen_directories(look)
    size = sum(file.allocated_bytes for file in files)
    sentence = (
        f"{counted(len(files), 'journal file')} ({format_size(size)}) not closed by journald, because of a power cut or"
        " a"
        " crash; readers skip entries that were not written."
    )
    if not files:
        left = counted(len(look.leftovers), "temporary file")
        sentence = f"A killed run left {left}, which the next run removes."
    remedy = ("journalctl --verify", "journalctl --list-boots") if files else ("journalkeeper defrag",)
    facts: Facts = {"files": len(files), "allocated_bytes": size, "leftovers": len(look.leftovers)}
    return Finding("unclean", Severity.ADVICE, facts, sentence, remedy)


def damaged(evidence: Evidence) -> Finding | Unknown | None:
    """A file does not begin as a journal file does, or contradicts its header: readers leave out its entries."""
    look = require(evidence.look)
    paths = [file.path for file in look.host.files if file.problem in {Reason.BAD_HEADER, Reason.NOT_JOURNAL}]
    if not paths:
        return _check_unseen_files(look)
    sentence = (
        f"{counted(len(paths), 'damaged journal file')}: {list_names(paths)}. Readers cannot see all its entries."
    )
    remedy = tuple(f"journalctl --verify --file={quote(path)}" for path in paths[:5])
    return Finding("damaged", Severity.PROBLEM, {"files": list(paths)}, sentence, remedy)


def no_room(evidence: Evidence) -> Finding | Unknown | None:
    """A volume has no room for a new chunk and little in its old ones, even if df(1) shows free space."""
    look = require(evidence.look)
    for one, volume in _pair_with_volumes(look):
        if volume is None:
            continue
        data, metadata = volume.free_bytes + volume.unallocated_bytes, volume.metadata_free_bytes
        full = min(data, metadata + volume.unallocated_bytes) < ROOM_BYTES
        tight = volume.unallocated_bytes < ROOM_BYTES and metadata < UNALLOCATED_BYTES // 2
        if not full and not tight:
            continue
        what = "data" if data < metadata + volume.unallocated_bytes else "metadata"
        sentence = (
            f"The volume of {one.directory} has {format_size(volume.unallocated_bytes)} outside of chunks,"
            f" {format_size(volume.free_bytes)} free for data and {format_size(metadata)} for metadata: "
        )
        sentence += f"{what} is about to run out." if full else "no chunk can be added, and metadata may run out first."
        facts: Facts = {
            "directory": one.directory,
            "unallocated_bytes": volume.unallocated_bytes,
            "data_free_bytes": volume.free_bytes,
            "metadata_free_bytes": metadata,
        }
        where = quote(one.directory)
        usage = (f"btrfs filesystem usage {where}", f"btrfs balance start -dusage=50 -dlimit=4 {where}")
        remedy = (*free_space(where), *usage) if full else usage
        severity = Severity.PROBLEM if full else Severity.ADVICE
        return Finding("no-room", severity, facts, sentence, remedy)
    return _check_unseen_directories(look)


def rivals(evidence: Evidence) -> Finding | Unknown | None:
    """Another tool rewrites the same files: the mount option autodefrag, btrfsmaintenance's timer, bees."""
    look, units = require(evidence.look), evidence.units
    found, remedy = [], []
    for one, volume in _pair_with_volumes(look):
        if volume is not None and "autodefrag" in volume.options and "autodefrag" not in found:
            found.append("autodefrag")
            remedy.append(f"findmnt --target {quote(one.directory)} --output TARGET,OPTIONS")
    active = [] if isinstance(units, Unknown) else [unit for unit in units if unit.active == "active"]
    for unit in active:
        if unit.name == RIVAL_TIMER or unit.name.startswith(RIVAL_PREFIX):
            found.append(unit.name)
            remedy.append(f"systemctl disable --now {quote(unit.name)}")
    if found:
        sentence = (
            f"{list_names(found)} rewrites the same files as journalkeeper: each undoes the other's work, and the disk"
            " writes more."
        )
        return Finding("rivals", Severity.ADVICE, {"rivals": list(found)}, sentence, tuple(remedy))
    require(units)
    return _check_unseen_directories(look)


def _pair_with_volumes(look: Look) -> list[tuple[Instance, Volume | None]]:
    """Return each instance with the volume of its directory, None if the directory is not on btrfs."""
    volumes = {volume.device: volume for volume in look.host.volumes}
    return [(one, volumes.get(one.device)) for one in look.host.instances]


def _namespace(look: Look, directory: str) -> str:
    return next(one.namespace for one in look.host.instances if one.directory == directory)


def _make_datacow(directories: list[str]) -> tuple[str, ...]:
    """Return the commands that make new files in `directories` copy-on-write, also after the next boot."""
    keep = "ln -sf /dev/null /etc/tmpfiles.d/journal-nocow.conf"
    return (keep, *(f"chattr -C {quote(path)}" for path in directories), "journalctl --rotate")


def _check_unseen_files(look: Look) -> Unknown | None:
    """Return Unknown if some files could not be looked at, otherwise None:

    a rule that found nothing may have missed them.
    """
    unseen = [file for file in look.host.files if file.problem in UNSEEN]
    if not unseen:
        return None
    return Unknown(f"{counted(len(unseen), 'file')} of {len(look.host.files):,} could not be looked at; root can")


def _check_unseen_directories(look: Look) -> Unknown | None:
    """Return Unknown if a directory could not be looked at, otherwise None."""
    seen = {one.directory for one in look.host.instances}
    unseen = [
        file.path
        for file in look.host.files
        if file.problem in UNSEEN - {Reason.TOO_MANY} and file.directory not in seen
    ]
    return Unknown(f"{list_names(unseen)} could not be looked at; root can") if unseen else None
