# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rules on the journal's storage, its volume, its directories and its files: every public function is a rule.

Most conditions of a directory are advice only, because the service works around them or mends them by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import Final

from journalkeeper.config import Config
from journalkeeper.health.evidence import Evidence, Look, Unknown, is_up
from journalkeeper.health.finding import Answer, Facts, advice, free_space, list_names, problem, require
from journalkeeper.model import GIB, MIB, Instance, JournalFile, Kind, Reason, Sums, Volume
from journalkeeper.model.manager import Manager
from journalkeeper.model.units import counted, format_size
from journalkeeper.model.waiting import long
from journalkeeper.policy import nocow
from journalkeeper.policy.cost import is_fragmented
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

RIVALS: Final = ("btrfs-defrag.timer", "beesd@")
"""The beginnings of the names of units that rewrite files: the timer of btrfsmaintenance, and bees."""

UNSEEN: Final = frozenset({Reason.UNREADABLE, Reason.IO_ERROR, Reason.INTERNAL_ERROR, Reason.TOO_MANY})
"""Reasons for which a file was not looked at although it exists."""


def volatile(evidence: Evidence) -> Iterator[Answer]:
    """The journal is kept in memory, or nowhere: it ends with the boot, and no file needs care.

    The cause is Storage=, a missing /var/log/journal, or a journal that was not flushed to /var in this boot.
    """
    storage = require(evidence.storage)
    facts: Facts = {"storage": storage.storage, "flushed": "yes" if storage.flushed else "no"}
    if storage.storage in {"volatile", "none"}:
        where = "in memory only" if storage.storage == "volatile" else "nowhere"
        yield problem(
            facts,
            f"Storage={storage.storage} keeps messages {where}: none of them outlives the boot.",
            "mkdir -p /etc/systemd/journald.conf.d",
            r"printf '[Journal]\nStorage=persistent\n' > /etc/systemd/journald.conf.d/storage.conf",
            "systemctl restart systemd-journald",
            "journalctl --flush",
        )
    elif storage.storage == "auto" and not storage.persistent_directory:
        sentence = "There is no /var/log/journal, so Storage=auto keeps messages in memory and none outlives the boot."
        create = "systemd-tmpfiles --create --prefix /var/log/journal"
        yield problem(facts, sentence, "mkdir /var/log/journal", create, "journalctl --flush")
    elif not storage.flushed:
        sentence = "journald has not moved to /var/log/journal in this boot: messages are in memory only."
        yield problem(facts, sentence, "systemctl status systemd-journal-flush", "journalctl --flush")


def not_btrfs(evidence: Evidence) -> Iterator[Answer]:
    """A journal directory is on another filesystem, where there is nothing to mend."""
    foreign = require(evidence.look).foreign
    if foreign:
        sentence = f"{list_names(foreign)} is not on btrfs: journalkeeper has nothing to mend there."
        remedy = (f"findmnt --target {quote(path)}" for path in foreign)
        yield advice({"directories": list(foreign)}, sentence, *remedy)


def nocow_redundant(evidence: Evidence) -> Iterator[Answer]:
    """A directory is NOCOW on a volume that keeps copies. Without checksums the good copy cannot be identified."""
    look = require(evidence.look)
    found = [(one.directory, volume.data_profile) for one, volume in _list_places(look, Reason.REDUNDANT) if one.nocow]
    if found:
        where, profiles = [directory for directory, _ in found], sorted({profile for _, profile in found})
        yield advice(
            {"directories": where, "data_profiles": profiles},
            f"{list_names(where)} is NOCOW on {' and '.join(profiles)}: its data has no checksums, so two copies can"
            " differ and the good one cannot be identified.",
            *_make_datacow(where),
        )
    yield from _find_unseen_directories(look)


def nocow_snapshots(evidence: Evidence) -> Iterator[Answer]:
    """A directory is NOCOW and snapshots are taken of it. Each snapshot makes its data copy-on-write once more."""
    look = require(evidence.look)
    where = [one.directory for one, _ in _list_places(look, Reason.SNAPSHOTS) if one.nocow]
    if where:
        yield advice(
            {"directories": list(where)},
            f"{list_names(where)} is NOCOW, and snapshots are taken of it: after each one btrfs copies the data on"
            " write once more, so its files fragment all the same, without checksums.",
            *_make_datacow(where),
        )
    yield from _find_unseen_files(look)


def namespace_datacow(evidence: Evidence) -> Iterator[Answer]:
    """The directory of a namespace lacks the attribute +C, which systemd sets on the directory of the main journal."""
    look = require(evidence.look)
    main = {one.device for one in look.host.instances if one.nocow and not one.namespace}
    plain = [one for one, _ in _list_places(look, Reason.NO_REDUNDANCY) if one.namespace and one.device in main]
    if plain:
        where = [one.directory for one in plain]
        yield advice(
            {"directories": list(where)},
            f"{list_names(where)} is copy-on-write, unlike the main journal's directory: systemd sets +C for that one"
            " only, and each flush fragments the namespace's file.",
            *(f"chattr +C {quote(path)}" for path in where),
            *(f"journalctl --namespace={quote(one.namespace)} --rotate" for one in plain),
        )
    yield from _find_unseen_directories(look)


def pinned_by_snapshots(evidence: Evidence) -> Iterator[Answer]:
    """Snapshots keep the data of journal files: deleting a file frees no space until they are deleted."""
    look, record = require(evidence.look), evidence.record
    shared = [file for file in look.host.files if file.extents.shared_bytes]
    total = sum(file.extents.shared_bytes for file in shared)
    if total >= PINNED_BYTES:
        entries = () if isinstance(record, Unknown) else record.entries
        twice = sum(entry.outcome.unshared_bytes for entry in entries)
        yield advice(
            {"shared_bytes": total, "files": len(shared), "stored_twice_bytes": twice},
            f"Snapshots keep {format_size(total)} of {counted(len(shared), 'journal file')}: journald cannot free that"
            " space, and each rewrite of such a file stores an additional copy.",
            *_make_subvolume(look, shared),
        )
    yield from _find_unseen_files(look)


def fragmented(evidence: Evidence) -> Iterator[Answer]:
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
    if every.extents - every.ideal_extents >= MANY_EXTENTS:
        own = any(one.rotatable for one in look.host.instances)
        where = [""] if own else [f" -D {quote(path)}" for path in sorted({file.directory for file in files})]
        yield advice(
            {"files": [file.path for file in files], "extents": every.extents, "ideal_extents": every.ideal_extents},
            f"{counted(len(files), 'file')} {'lies' if len(files) == 1 else 'lie'} in {every.extents:,} extents where"
            f" {every.ideal_extents:,} would do; `journalkeeper plan` shows the action for each.",
            *(f"journalkeeper {command}{option}" for command in ("plan", "defrag") for option in where),
        )
    yield from _find_unseen_files(look)


def unclean(evidence: Evidence) -> Iterator[Answer]:
    """Files that journald did not close, and temporary files of a killed run."""
    look = require(evidence.look)
    files, left = [file for file in look.host.files if file.kind is Kind.UNCLEAN], len(look.leftovers)
    size = sum(file.allocated_bytes for file in files)
    facts: Facts = {"files": len(files), "allocated_bytes": size, "leftovers": left}
    if files:
        yield advice(
            facts,
            f"{counted(len(files), 'journal file')} ({format_size(size)}) not closed by journald, because of a power"
            " cut or a crash; readers skip entries that were not written.",
            "journalctl --verify",
            "journalctl --list-boots",
        )
    if left:
        sentence = f"A killed run left {counted(left, 'temporary file')}, which the next run removes."
        yield advice(facts, sentence, "journalkeeper defrag")
    yield from _find_unseen_directories(look)


def damaged(evidence: Evidence) -> Iterator[Answer]:
    """A file does not begin as a journal file does, or contradicts its header: readers leave out its entries."""
    look = require(evidence.look)
    paths = [file.path for file in look.host.files if file.problem in {Reason.BAD_HEADER, Reason.NOT_JOURNAL}]
    if paths:
        number = counted(len(paths), "damaged journal file")
        sentence = f"{number}: {list_names(paths)}. Readers cannot see all its entries."
        yield problem({"files": list(paths)}, sentence, *(f"journalctl --verify --file={quote(p)}" for p in paths[:5]))
    yield from _find_unseen_files(look)


def no_room(evidence: Evidence) -> Iterator[Answer]:
    """A volume has no room for a new chunk and little in its old ones, even if df(1) shows free space."""
    look = require(evidence.look)
    for one, volume in _list_places(look):
        unallocated = volume.unallocated_bytes
        data, metadata = volume.free_bytes + unallocated, volume.metadata_free_bytes + unallocated
        facts: Facts = {
            "directory": one.directory,
            "unallocated_bytes": unallocated,
            "data_free_bytes": volume.free_bytes,
            "metadata_free_bytes": volume.metadata_free_bytes,
        }
        sentence = (
            f"The volume of {one.directory} has {format_size(unallocated)} outside of chunks,"
            f" {format_size(volume.free_bytes)} free for data and {format_size(volume.metadata_free_bytes)} for"
            " metadata:"
        )
        where = quote(one.directory)
        usage = (f"btrfs filesystem usage {where}", f"btrfs balance start -dusage=50 -dlimit=4 {where}")
        if min(data, metadata) < ROOM_BYTES:
            what = "data" if data < metadata else "metadata"
            yield problem(facts, f"{sentence} {what} is about to run out.", *free_space(where), *usage)
        elif unallocated < ROOM_BYTES and volume.metadata_free_bytes < UNALLOCATED_BYTES // 2:
            yield advice(facts, f"{sentence} no chunk can be added, and metadata may run out first.", *usage)
    yield from _find_unseen_directories(look)


def rivals(evidence: Evidence) -> Iterator[Answer]:
    """Another tool rewrites the same files: the mount option autodefrag, btrfsmaintenance's timer, bees."""
    look, units = require(evidence.look), () if isinstance(evidence.units, Unknown) else evidence.units
    mounts = [one.directory for one, volume in _list_places(look) if "autodefrag" in volume.options]
    tools = [unit.name for unit in units if unit.active == "active" and unit.name.startswith(RIVALS)]
    found = [*(["autodefrag"] if mounts else []), *tools]
    if found:
        yield advice(
            {"rivals": list(found)},
            f"{list_names(found)} rewrites the same files as journalkeeper: each undoes the other's work, and the disk"
            " writes more.",
            *(f"findmnt --target {quote(directory)} --output TARGET,OPTIONS" for directory in mounts[:1]),
            *(f"systemctl disable --now {quote(name)}" for name in tools),
        )
    require(evidence.units)
    yield from _find_unseen_directories(look)


def _list_places(look: Look, reason: Reason | None = None) -> list[tuple[Instance, Volume]]:
    """Return each instance on btrfs with its volume.

    With `reason`, only those are returned for which Nocow=auto has this reason to set +C on the directory, or against.
    """
    volumes = {volume.device: volume for volume in look.host.volumes}
    places = [(one, volumes[one.device]) for one in look.host.instances if one.device in volumes]
    if reason is None:
        return places
    decided = [(nocow.decide(one, volume, look.host, Config()), one, volume) for one, volume in places]
    return [(one, volume) for decision, one, volume in decided if decision is not None and decision.reason is reason]


def _make_datacow(directories: list[str]) -> tuple[str, ...]:
    """Return the commands that make new files in `directories` copy-on-write, also after the next boot."""
    keep = "ln -sf /dev/null /etc/tmpfiles.d/journal-nocow.conf"
    return (keep, *(f"chattr -C {quote(path)}" for path in directories), "journalctl --rotate")


def _make_subvolume(look: Look, shared: list[JournalFile]) -> tuple[str, ...]:
    """Return the commands that move the journal into a subvolume of its own, which snapshots of the root leave out.

    If the journal already has its own subvolume, return the command that lists the snapshots.
    """
    owned = {volume.device for volume in look.host.volumes if volume.own_subvolume}
    tops = {file.path.rsplit("/", 2)[0] for file in shared if file.device not in owned}
    if not tops:
        return (f"btrfs subvolume list -s {quote(min(file.path for file in shared).rpartition('/')[0])}",)
    top, old = quote(min(tops)), quote(f"{min(tops)}.old")
    return (
        "journalctl --relinquish-var",
        f"mv {top} {old}",
        f"btrfs subvolume create {top}",
        f"cp --archive --reflink=auto {old}/. {top}/",
        "journalctl --flush",
        f"rm -r {old}",
    )


def _is_at_work(evidence: Evidence) -> bool:
    """Return whether the service or the timer for `defrag` takes care of fragmented files."""
    if isinstance(evidence.service, Manager):
        return not evidence.service.paused
    return not isinstance(evidence.units, Unknown) and is_up(evidence.units)


def _find_unseen_files(look: Look) -> Iterator[Unknown]:
    """Yield Unknown if some files could not be looked at: a rule that found nothing may have missed them."""
    if unseen := sum(file.problem in UNSEEN for file in look.host.files):
        yield Unknown(f"{counted(unseen, 'file')} of {len(look.host.files):,} could not be looked at; root can")


def _find_unseen_directories(look: Look) -> Iterator[Unknown]:
    """Yield Unknown if a directory could not be looked at."""
    seen = {one.directory for one in look.host.instances}
    problems = UNSEEN - {Reason.TOO_MANY}
    unseen = [file.path for file in look.host.files if file.problem in problems and file.directory not in seen]
    if unseen:
        yield Unknown(f"{list_names(unseen)} could not be looked at; root can")
