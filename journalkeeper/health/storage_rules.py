# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rules on the journal, its volume, its directories and its files: every public function is a rule.

They give advice only, because the service works around most conditions or mends them by itself.
"""

from __future__ import annotations

from shlex import quote
from typing import Final

from journalkeeper.config import Config
from journalkeeper.health.evidence import RECENT_US, Evidence, Journal, Look, Storage, Unknown, is_up
from journalkeeper.health.finding import LISTED, Answers, advice, list_names
from journalkeeper.model import MIB, Instance, JournalFile, Kind, Reason, Request, Sums, Volume
from journalkeeper.model.manager import Facts, Manager
from journalkeeper.model.units import format_span, pluralize, quantile, spell_size
from journalkeeper.policy import nocow
from journalkeeper.policy.case import Case, Cases
from journalkeeper.policy.cost import READ_IOPS, is_fragmented
from journalkeeper.policy.rules import find_vetoes

PINNED_BYTES: Final = 16 * MIB
"""Snapshots that keep less than two of journald's 8 MiB steps are not reported."""

MANY_EXTENTS: Final = 2 * READ_IOPS
"""The extents above the ideal that cost a cold reader two seconds; fewer are not reported."""

ASIDE: Final = "/var/log/damaged-journals"
"""Where the remedy of damaged files puts them."""

ENOUGH: Final = 100
"""A smaller number of messages has no meaningful 99th percentile."""

LATE_US: Final = 500_000
"""Programs that log notice a wait of this length at every hundredth message; one flush every five minutes does not
cause it.
"""

STALLED_US: Final = 3_000_000
"""A wait beyond that of an ordinary flush, which took 0.8 to 2.3 s at 500 IOPS (measured)."""

Files = tuple[JournalFile, ...]
Place = tuple[Instance, Volume]


def volatile(storage: Storage) -> Answers:
    """The journal is in memory, or nowhere: by Storage=, or because journald does not use /var/log/journal. Advice."""
    if storage.storage in {"volatile", "none"}:
        where = "in memory only" if storage.storage == "volatile" else "nowhere"
        sentence = f"Storage={storage.storage} keeps messages {where}: none of them outlives the boot."
        drop_in = r"printf '[Journal]\nStorage=persistent\n' > /etc/systemd/journald.conf.d/zz-storage.conf"
        remedy = ["mkdir -p /etc/systemd/journald.conf.d", drop_in, "systemctl restart systemd-journald"]
    elif storage.storage == "auto" and not storage.persistent_directory:
        sentence = "There is no /var/log/journal, so Storage=auto keeps messages in memory and none outlives the boot."
        remedy = ["mkdir /var/log/journal", "systemd-tmpfiles --create --prefix /var/log/journal"]
    elif not storage.flushed:  # where the directory is not mounted, the restart mounts it first, or fails
        sentence = "journald has not moved to /var/log/journal in this boot: messages are in memory only."
        remedy = ["systemctl status systemd-journal-flush"]
    else:
        return
    flushed = "yes" if storage.flushed else "no"
    yield advice(sentence, *remedy, "systemctl restart systemd-journal-flush", storage=storage.storage, flushed=flushed)


def not_btrfs(look: Look) -> Answers:
    """A journal directory is on another filesystem: there is nothing to mend. One advice for all, with findmnt(8)."""
    if look.foreign:
        sentence = f"{list_names(look.foreign)} is not on btrfs: journalkeeper has nothing to do there."
        remedy = (f"findmnt --target {quote(path)}" for path in look.foreign)
        yield advice(sentence, *remedy, directories=list(look.foreign))


def nocow_redundant(places: list[Place], look: Look) -> Answers:
    """A directory is NOCOW on a volume that keeps copies. Without checksums the good copy cannot be identified.

    One advice for all directories on dup, raid1, raid10, raid1c3, raid1c4, raid5 and raid6, none for unknown profiles.
    """
    if found := _find_nocow_despite(places, look, Reason.REDUNDANT):
        where = [one.directory for one, _ in found]
        profiles = sorted({volume.data_profile for _, volume in found})
        sentence = f"{list_names(where)} is NOCOW on {' and '.join(profiles)}: no checksum shows which copy is good."
        yield advice(sentence, *_list_datacow_commands(found), directories=where, data_profiles=profiles)


def nocow_snapshots(files: Files, places: list[Place], look: Look) -> Answers:
    """A directory is NOCOW although snapshots are taken of it. Each snapshot makes its data copy-on-write once more.

    One advice for all on volumes with one copy, but for a directory that this program made NOCOW in the last week.
    If btrfs gives no number, a snapshot tool or shared data counts.
    """
    if found := _find_nocow_despite(places, look, Reason.SNAPSHOTS):
        where, clause = [one.directory for one, _ in found], nocow.find_snapshots(*found[0], look.host)
        sentence = f"{list_names(where)} is NOCOW, and {clause}: its files fragment anyway, without checksums."
        yield advice(sentence, *_list_datacow_commands(found), directories=where)


def pinned_by_snapshots(files: Files, look: Look) -> Answers:
    """Snapshots keep the data of journal files: deleting a file frees no space until they are deleted.

    One advice from 16 MiB of shared data, with the number of snapshots of the subvolumes if btrfs could be asked.
    Data in a subvolume that is known to have no snapshots does not count.
    """
    snapshots = {volume.device: volume.snapshots for volume in look.host.volumes}
    shared = [file for file in files if file.extents.shared_bytes and snapshots.get(file.device) != 0]
    total = sum(map(_estimate_shared_disk_bytes, shared))
    if total >= PINNED_BYTES:
        numbers = [snapshots.get(device) for device in {file.device for file in shared}]
        number = sum(filter(None, numbers)) if all(numbers) else None
        who = "snapshots or other files" if number is None else pluralize(number, "snapshot")
        held = f"{spell_size(total)} on the disk of {pluralize(len(shared), 'journal file')} belong to {who} as well"
        sentence = f"{held}: journald cannot free that space, and each rewrite stores an additional copy."
        facts = {"shared_bytes": total, "files": len(shared), "snapshots": number}
        yield advice(sentence, *_list_subvolume_commands(look, shared), **facts)


def _estimate_shared_disk_bytes(file: JournalFile) -> int:
    """Estimate the disk bytes that `file` shares: that part of its disk usage, else shared bytes less encoded ones."""
    lies = file.extents
    if file.disk_bytes is None:
        return max(0, lies.shared_bytes - lies.encoded_bytes)
    return round(file.disk_bytes * min(1, lies.shared_bytes / max(1, lies.data_bytes + lies.unwritten_bytes)))


def fragmented(files: Files, look: Look, config: Config, evidence: Evidence) -> Answers:
    """Files have many more extents than they need, and no service works on them.

    One advice (`plan`, `defrag` without --now) from 300 extents that permitted rewrites save. A working service leaves
    files fragmented for a while, because they settle or a flush is near; keeper-starved reports longer waits. Without
    an answer of the service, `is_up` shows whether work goes on. While it is paused or units are unknown, none does.
    """
    live, units = evidence.service, evidence.units
    at_work = not live.paused if isinstance(live, Manager) else not isinstance(units, Unknown) and is_up(units)
    cases = Cases(look.host, Request(now=True), config)
    found = [] if at_work else [file for file in files if _needs_rewrite(file, cases)]
    found.sort(key=lambda file: (-file.extents.total, file.path))
    every = Sums.of(found)
    if every.extents - every.ideal_extents >= MANY_EXTENTS:
        have = f"{pluralize(len(found), 'file')} {'has' if len(found) == 1 else 'have'} {every.extents:,} extents"
        sentence = f"{have} instead of {every.ideal_extents:,}; `journalkeeper plan` shows the action for each file."
        own = any(one.rotatable for one in look.host.instances)
        where = [""] if own else [f" -D {quote(path)}" for path in sorted({file.directory for file in found})]
        remedy = (f"journalkeeper {command}{option}" for command in ("plan", "defrag") for option in where)
        paths = [file.path for file in found]
        yield advice(sentence, *remedy, files=paths, extents=every.extents, ideal_extents=every.ideal_extents)


def damaged(files: Files, look: Look) -> Answers:
    """A file has an invalid header, or an impossible name, size or time: readers may leave out its entries.

    Advice to move them aside, with their number and the first names, but to rotate those that journald may write.
    """
    if found := [file for file in files if file.problem in {Reason.BAD_HEADER, Reason.NOT_JOURNAL}]:
        paths, own = [file.path for file in found], {one.directory: one for one in look.host.instances if one.rotatable}
        held = [one for one in found if one.kind is Kind.ACTIVE and one.owner != "remote" and one.directory in own]
        rotated = _list_rotations([own[file.directory] for file in held])
        moved = [f"mv --backup=numbered -t {ASIDE} {quote(one.path)}" for one in found if one not in held]
        sentence = f"{pluralize(len(paths), 'damaged journal file')}: {list_names(paths)}. Some entries are unreadable."
        yield advice(sentence, *rotated, *([f"mkdir -p {ASIDE}", *moved] if moved else ()), files=paths)


def waits(journal: Journal, now_us: int) -> Answers:
    """Messages wait long for journald, and with them, once its queue is full, the programs that send them.

    Advice from a 99th percentile of 0.5 s or a wait of 3 s in the last 7 days. Below 100 messages with a time of
    sending, Unknown whatever the waits.
    """
    recent = sorted((one for one in journal.intake if one.when_us >= now_us - RECENT_US), key=lambda one: one.wait_us)
    number = len(recent)
    if number < ENOUGH:
        span = format_span(RECENT_US)
        yield Unknown(f"needs {ENOUGH} messages with the time when they were sent; the last {span} have {number}")
        return
    longest = {one.unit: one.wait_us for one in recent}
    worst = sorted(longest.items(), key=lambda pair: (-pair[1], pair[0]))[:LISTED]
    delays = [one.wait_us for one in recent]
    p99_us, worst_us = quantile(delays, 990), delays[-1]
    if p99_us >= LATE_US or worst_us >= STALLED_US:
        names = list_names(f"{unit or 'no unit'} {format_span(wait_us, 1000)}" for unit, wait_us in worst)
        spans = f"p99 {format_span(p99_us, 1000)}, worst {format_span(worst_us, 1000)}"
        sentence = f"Messages wait long for journald: {spans}, of {number:,} messages; longest: {names}."
        units, waits_us = [unit for unit, _ in worst], [str(wait_us) for _, wait_us in worst]
        facts: Facts = {"messages": number, "p99_us": p99_us, "worst_us": worst_us, "units": units}
        yield advice(sentence, "journalkeeper scan", "journalkeeper plan", **facts, units_worst_us=waits_us)


def _needs_rewrite(file: JournalFile, cases: Cases) -> bool:
    """Return whether the file is fragmented, and no rule vetoes its rewrite."""
    return is_fragmented(file, None, cases.config) and next(find_vetoes(Case(file, cases)), None) is None


def _find_nocow_despite(places: list[Place], look: Look, reason: Reason) -> list[Place]:
    """Return the places that are NOCOW although `reason` speaks against it under Nocow=auto, whatever is configured."""
    cases = Cases(look.host, Request(), Config())
    decided = [(place, nocow.decide(*place, cases)) for place in places if place[0].nocow]
    return [place for place, decision in decided if decision is not None and decision.reason is reason]


def _list_datacow_commands(places: list[Place]) -> tuple[str, ...]:
    """Return shell commands that make new files in `places` copy-on-write, also after a boot, and then rotate."""
    keep = "ln -sf /dev/null /etc/tmpfiles.d/journal-nocow.conf"
    where = [one for one, _ in places]
    return (keep, *(f"chattr -C {quote(one.directory)}" for one in where), *_list_rotations(where))


def _list_rotations(instances: list[Instance]) -> list[str]:
    """Return a command that rotates for each namespace of `instances` whose journald accepts requests."""
    names = dict.fromkeys(one.namespace for one in instances if one.rotatable)
    return [f"journalctl {f'--namespace={name} ' if name else ''}--rotate" for name in names]


def _list_subvolume_commands(look: Look, shared: list[JournalFile]) -> tuple[str, ...]:
    """Return `isolate` commands if a file of /var/log/journal lacks its own subvolume, else one to list snapshots."""
    owned = {volume.device for volume in look.host.volumes if volume.own_subvolume}
    if any(file.path.startswith("/var/log/journal/") and file.device not in owned for file in shared):
        return ("journalkeeper isolate", "journalkeeper isolate --apply")
    return (f"btrfs subvolume list -s {quote(min(file.path for file in shared).rpartition('/')[0])}",)
