# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rules about where the journal lies: its storage, its volume, its directories and its files.

Most of what is wrong with a directory is advice: the service works around it or mends it by itself.
"""

from __future__ import annotations

from shlex import quote
from typing import Final

from journalkeeper.health.evidence import Evidence, Look, Unknown
from journalkeeper.health.finding import Facts, Finding, Severity, known, named
from journalkeeper.health.service_rules import is_up
from journalkeeper.model import GIB, MIB, Instance, JournalFile, Kind, Reason, Sums, Volume
from journalkeeper.model.manager import Manager
from journalkeeper.model.units import counted, format_size
from journalkeeper.model.waiting import long
from journalkeeper.policy.cost import is_fragmented
from journalkeeper.policy.nocow import decide, snapshots
from journalkeeper.policy.saving import READ_IOPS

PINNED_BYTES: Final = 16 * MIB
"""Snapshots that keep less than two of journald's 8 MiB steps are not worth a word."""

MANY_EXTENTS: Final = 2 * READ_IOPS
"""Extents above the ideal that a cold reader waits two seconds for; fewer are not worth a word."""

ROOM_BYTES: Final = 64 * MIB
"""With less than this btrfs may end a transaction for want of space: the metadata of one busy commit, and the kernel's
own reserve for it on a small volume, is tens of MiB."""

UNALLOCATED_BYTES: Final = GIB
"""The largest chunk that btrfs makes of data, and of metadata on volumes of more than 50 GiB."""

RIVAL_TIMER: Final = "btrfs-defrag.timer"
"""btrfsmaintenance's."""

RIVAL_PREFIX: Final = "beesd@"

UNSEEN: Final = frozenset({Reason.UNREADABLE, Reason.IO_ERROR, Reason.INTERNAL_ERROR, Reason.TOO_MANY})
"""Why a file was not looked at, although it is there."""


def volatile(evidence: Evidence) -> Finding | None:
    """The journal is kept in memory, or nowhere: it ends with the boot, and there is nothing to keep whole."""
    storage = known(evidence.storage)
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
    look = known(evidence.look)
    if not look.foreign:
        return None
    sentence = f"{named(look.foreign)} is not on btrfs: journalkeeper has nothing to mend there."
    remedy = tuple(f"findmnt --target {quote(path)}" for path in look.foreign)
    return Finding("not-btrfs", Severity.ADVICE, {"directories": list(look.foreign)}, sentence, remedy)


def nocow_redundant(evidence: Evidence) -> Finding | Unknown | None:
    """A directory is NOCOW on a volume that keeps copies, of which nobody can then tell the good one."""
    look = known(evidence.look)
    found = [(one, volume) for one, volume in _placed(look) if volume is not None and one.nocow and volume.redundant]
    if not found:
        return _directories_unseen(look)
    where, profiles = [one.directory for one, _ in found], sorted({volume.data_profile for _, volume in found})
    sentence = (
        f"{named(where)} is NOCOW on {' and '.join(profiles)}: its data has no checksums, so two copies can differ and"
        " nothing tells the good one."
    )
    facts: Facts = {"directories": where, "data_profiles": profiles}
    return Finding("nocow-redundant", Severity.ADVICE, facts, sentence, _datacow(where))


def nocow_snapshots(evidence: Evidence) -> Finding | Unknown | None:
    """A directory is NOCOW and snapshots are taken of it, each of which has its data copied on write once more."""
    look = known(evidence.look)
    where = [one.directory for one in look.host.instances if one.nocow and snapshots(one, look.host)]
    if not where:
        return _unseen(look)
    sentence = (
        f"{named(where)} is NOCOW, and snapshots are taken of it: each has the data copied on write once more, so it"
        " is torn all the same, without checksums."
    )
    return Finding("nocow-snapshots", Severity.ADVICE, {"directories": list(where)}, sentence, _datacow(where))


def compression_forbids_nocow(evidence: Evidence) -> Finding | Unknown | None:
    """A directory would be made NOCOW, but its compression attribute excludes that."""
    look, config = known(evidence.look), known(evidence.config)
    where = [
        one.directory
        for one, volume in _placed(look)
        if (skip := decide(one, volume, look.host, config)) is not None and skip.reason is Reason.COMPRESSION
    ]
    if not where:
        return _directories_unseen(look)
    sentence = f"{named(where)} asks for compression (chattr +c), which excludes NOCOW: its active files are torn."
    remedy = tuple(f"chattr -c {quote(path)}" for path in where)
    facts: Facts = {"directories": list(where)}
    return Finding("compression-forbids-nocow", Severity.ADVICE, facts, sentence, remedy)


def born_datacow(evidence: Evidence) -> Finding | Unknown | None:
    """An active file was made before its directory was NOCOW, and stays copy-on-write until it is rotated."""
    look = known(evidence.look)
    nocow = {one.directory for one in look.host.instances if one.nocow}
    paths = [
        file.path
        for file in look.host.files
        if file.kind is Kind.ACTIVE and file.problem is None and not file.nocow and file.directory in nocow
    ]
    if not paths:
        return _unseen(look)
    files = counted(len(paths), "active file")
    sentence = (
        f"{files} was made before the directory was NOCOW and is torn by each flush until it is rotated, which the"
        " service does once by itself (RotateToApply=)."
    )
    facts: Facts = {"files": list(paths)}
    return Finding("born-datacow", Severity.ADVICE, facts, sentence, ("journalctl --rotate",))


def namespace_datacow(evidence: Evidence) -> Finding | Unknown | None:
    """The directory of a namespace lacks the attribute +C that systemd gives that of the main journal."""
    look = known(evidence.look)
    main = {one.device for one in look.host.instances if one.nocow and not one.namespace}
    where = [
        one.directory
        for one, volume in _placed(look)
        if one.namespace and not one.nocow and one.device in main
        if volume is not None and not volume.redundant and not snapshots(one, look.host) and not one.compressed
    ]
    if not where:
        return _directories_unseen(look)
    sentence = (
        f"{named(where)} is copy-on-write, unlike the main journal's directory: systemd sets +C for that one only, and"
        " each flush tears the namespace's file."
    )
    remedy = tuple(f"chattr +C {quote(path)}" for path in where)
    remedy += tuple(f"journalctl --namespace={quote(_namespace(look, path))} --rotate" for path in where)
    return Finding("namespace-datacow", Severity.ADVICE, {"directories": list(where)}, sentence, remedy)


def pinned_by_snapshots(evidence: Evidence) -> Finding | Unknown | None:
    """Snapshots keep what journal files hold: deleting a file gives nothing back until they are deleted."""
    look = known(evidence.look)
    shared = [file for file in look.host.files if file.extents.shared_bytes]
    total = sum(file.extents.shared_bytes for file in shared)
    if total < PINNED_BYTES:
        return _unseen(look)
    twice = 0
    if not isinstance(evidence.record, Unknown):
        twice = sum(entry.outcome.unshared_bytes for entry in evidence.record.entries)
    sentence = (
        f"Snapshots keep {format_size(total)} of {counted(len(shared), 'journal file')}: journald cannot free that"
        " space, and each rewrite of such a file stores a copy beside them."
    )
    facts: Facts = {"shared_bytes": total, "files": len(shared), "stored_twice_bytes": twice}
    return Finding("pinned-by-snapshots", Severity.ADVICE, facts, sentence, _own_subvolume(look, shared))


def _own_subvolume(look: Look, shared: list[JournalFile]) -> tuple[str, ...]:
    """How to move the journal into a subvolume of its own, which snapshots of the root leave out."""
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
    """Files lie in many more extents than they need, and nothing is at work on them, or they wait for more than a day.

    A service at work leaves files fragmented for a while: they settle, or a flush is near.
    """
    look, config = known(evidence.look), known(evidence.config)
    files = [file for file in look.host.files if file.problem is None and is_fragmented(file, None, config)]
    if files and _at_work(evidence):
        waiting = {wait.path for wait in long(known(evidence.record).waiting, evidence.now_us)}
        files = [file for file in files if file.path in waiting]
    files.sort(key=lambda file: (-file.extents.total, file.path))
    every = Sums.of(files)
    if every.extents - every.ideal_extents < MANY_EXTENTS:
        return _unseen(look)
    lie = f"{counted(len(files), 'file')} {'lies' if len(files) == 1 else 'lie'}"
    sentence = (
        f"{lie} in {every.extents:,} extents where {every.ideal_extents:,} would do; `journalkeeper plan` shows what"
        " would be done about each."
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
    """What names each of them, which no journald of this machine writes, on a command line."""
    return [f" -D {quote(path)}" for path in sorted(directories)]


def _at_work(evidence: Evidence) -> bool:
    """Whether the service, or the timer that stands in for it, is there to work on what is fragmented."""
    if isinstance(evidence.service, Manager):
        return not evidence.service.paused
    return not isinstance(evidence.units, Unknown) and is_up(evidence.units)


def unclean(evidence: Evidence) -> Finding | Unknown | None:
    """Files that journald did not close, or that a killed run of ours left behind."""
    look = known(evidence.look)
    files = [file for file in look.host.files if file.kind is Kind.UNCLEAN]
    if not files and not look.leftovers:
        return _directories_unseen(look)
    size = sum(file.allocated_bytes for file in files)
    sentence = (
        f"{counted(len(files), 'journal file')} ({format_size(size)}) was not closed by journald, which lost power or"
        " was killed; readers pass over what was not written."
    )
    if not files:
        left = counted(len(look.leftovers), "temporary file")
        sentence = f"A run that was killed left {left}, which the next run removes."
    remedy = ("journalctl --verify", "journalctl --list-boots") if files else ("journalkeeper defrag",)
    facts: Facts = {"files": len(files), "allocated_bytes": size, "leftovers": len(look.leftovers)}
    return Finding("unclean", Severity.ADVICE, facts, sentence, remedy)


def damaged(evidence: Evidence) -> Finding | Unknown | None:
    """A file does not begin as a journal file does, or contradicts its header: readers leave out what it held."""
    look = known(evidence.look)
    paths = [file.path for file in look.host.files if file.problem in {Reason.BAD_HEADER, Reason.NOT_JOURNAL}]
    if not paths:
        return _unseen(look)
    sentence = f"{counted(len(paths), 'journal file')} is damaged, {named(paths)}: what it held is lost to readers."
    remedy = tuple(f"journalctl --verify --file={quote(path)}" for path in paths[:5])
    return Finding("damaged", Severity.PROBLEM, {"files": list(paths)}, sentence, remedy)


def no_room(evidence: Evidence) -> Finding | Unknown | None:
    """A volume has no room for a new chunk and little in its old ones, whatever df(1) says."""
    look = known(evidence.look)
    for one, volume in _placed(look):
        if volume is None:
            continue
        data, metadata = volume.free_bytes + volume.unallocated_bytes, volume.metadata_free_bytes
        full = min(data, metadata + volume.unallocated_bytes) < ROOM_BYTES
        tight = volume.unallocated_bytes < ROOM_BYTES and metadata < UNALLOCATED_BYTES // 2
        if not full and not tight:
            continue
        what = "data" if data < metadata + volume.unallocated_bytes else "metadata"
        sentence = (
            f"The volume of {one.directory} has {format_size(volume.unallocated_bytes)} that is in no chunk,"
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
        remedy = (f"btrfs filesystem usage {where}", f"btrfs balance start -dusage=50 -dlimit=4 {where}")
        severity = Severity.PROBLEM if full else Severity.ADVICE
        return Finding("no-room", severity, facts, sentence, remedy)
    return _directories_unseen(look)


def rivals(evidence: Evidence) -> Finding | Unknown | None:
    """Something else rewrites the same files: the mount option autodefrag, btrfsmaintenance's timer, bees."""
    look, units = known(evidence.look), evidence.units
    found, remedy = [], []
    for one, volume in _placed(look):
        if volume is not None and "autodefrag" in volume.options and "autodefrag" not in found:
            found.append("autodefrag")
            remedy.append(f"findmnt --target {quote(one.directory)} --output TARGET,OPTIONS")
    active = [] if isinstance(units, Unknown) else [unit for unit in units if unit.active == "active"]
    for unit in active:
        if unit.name == RIVAL_TIMER or unit.name.startswith(RIVAL_PREFIX):
            found.append(unit.name)
            remedy.append(f"systemctl disable --now {quote(unit.name)}")
    if found:
        sentence = f"{named(found)} rewrites what journalkeeper keeps whole, or tears it again: both write for nothing."
        return Finding("rivals", Severity.ADVICE, {"rivals": list(found)}, sentence, tuple(remedy))
    known(units)
    return _directories_unseen(look)


def _placed(look: Look) -> list[tuple[Instance, Volume | None]]:
    """Each instance with its volume."""
    volumes = {volume.device: volume for volume in look.host.volumes}
    return [(one, volumes.get(one.device)) for one in look.host.instances]


def _namespace(look: Look, directory: str) -> str:
    return next(one.namespace for one in look.host.instances if one.directory == directory)


def _datacow(directories: list[str]) -> tuple[str, ...]:
    """How files that are made from now on are copy-on-write."""
    keep = "ln -sf /dev/null /etc/tmpfiles.d/journal-nocow.conf"
    return (keep, *(f"chattr -C {quote(path)}" for path in directories), "journalctl --rotate")


def _unseen(look: Look) -> Unknown | None:
    """What a rule says that found nothing wrong with the files that it saw: unknown if there are others."""
    unseen = [file for file in look.host.files if file.problem in UNSEEN]
    if not unseen:
        return None
    return Unknown(f"{counted(len(unseen), 'file')} of {len(look.host.files):,} could not be looked at; root can")


def _directories_unseen(look: Look) -> Unknown | None:
    """The same of directories, which everybody may look at on most hosts."""
    seen = {one.directory for one in look.host.instances}
    unseen = [
        file.path
        for file in look.host.files
        if file.problem in UNSEEN - {Reason.TOO_MANY} and file.directory not in seen
    ]
    return Unknown(f"{named(unseen)} could not be looked at; root can") if unseen else None
