# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether journald shall be asked to rotate: to make a file NOCOW, or because it is the cheaper tool.

It is compared with what the next reader would pay for the active files, left as they are or with ranges
rewritten, whether or not such a rewrite is planned. Of a file that a snapshot
shares no range is rewritten without leave, so a rotation is the only tool there: it touches nothing that
is shared.

No entry goes sooner for a rotation. journald vacuums at each, the oldest archive first, while the
archives take more than SystemMaxUse=, all files are more than SystemMaxFiles=, or an archive began
longer than MaxRetentionSec= ago (journal_directory_vacuum(), systemd 252 to 262). A rotation makes an
archive of what is active now and shifts every later one, so it is made only while all of this holds:

    bytes   archives + what becomes one + one full file more  <=  SystemMaxUse=, and what KeepFree leaves
    tables  the hash tables of files that were ended early  <=  a twentieth of that
    steps   where journald keeps fewer than 12 full files: what archives differ from full ones  <=  a fortieth of it
    files   all + one for each active + those that will fill the bytes that are left  <=  SystemMaxFiles=
    time    MaxRetentionSec= is off, or no less than MaxFileSec=, at which a file ends anyway

A directory at its limit is thus never rotated. The steps: journald deletes when a full file ends, and
archives that do not add up to full files bring that moment forward by what they are more than that.

A rotation costs journald no more than a flush: it syncs the old file in a thread, as the timer
does. So it is made when a flush costs least, in an open window, best right after one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from journalkeeper.config import Config
from journalkeeper.model import (
    MIB,
    Action,
    Host,
    Instance,
    JournalFile,
    Kind,
    Reason,
    Request,
    Rotation,
    Skip,
    Verb,
    Volume,
    Window,
)
from journalkeeper.model.units import DAY_US, INFINITY_US, format_size, format_span
from journalkeeper.policy import deferral
from journalkeeper.policy.deferral import AGAIN_US, ignores_budget
from journalkeeper.policy.nocow import refused
from journalkeeper.policy.rule_table import first
from journalkeeper.policy.saving import EXPECTED_RATIO

YOUNG_EXTENTS: Final = 4
"""What a boot finds of a file that was begun shortly before (2 extents measured), and its growth."""

FILE_EXTENTS: Final = 16
"""What one archive more costs a cold reader: 9 to 17 reads of the disk for `journalctl -n 10` or `-b`,
measured with 4 to 24 compacted archives of 5 MiB; 165 where they were not compacted."""

LAST_EXTENTS: Final = 300
"""What the messages of a shutdown itself make of a whole datacow file: 267 to 452 extents that the next
boot found, measured; a file begun before them is found with YOUNG_EXTENTS. Of a NOCOW file they make nothing,
unless a snapshot shares it: then its blocks are copied on write once more."""

TABLE_SHARE: Final = 36
"""A file's hash tables take this part of the size that it may grow to: 3.6 MiB of 128
(journal_file_setup_data_hash_table(): 16 bytes for each 576 of the largest size)."""

TABLES_MOST: Final = 1 / 20
"""What the hash tables of files that were ended early may take of what journald keeps."""

FULL_FILES: Final = 12
"""With fewer full files than this one step of journald's deletion is more than 8% of what it keeps."""

STEP_MOST: Final = 1 / 40
"""How much sooner such a step may come, as a share of what journald keeps: 2 boots of 80."""


class Question(NamedTuple):
    """All that bears on one instance's rotation.

    `may_end` are the paths of the active files that may be rotated for their own sake; `planned` is the number of
    rotations that this plan has already.
    """

    instance: Instance
    files: tuple[JournalFile, ...]
    may_end: frozenset[str]
    window: Window
    host: Host
    request: Request
    config: Config
    planned: int = 0

    @property
    def volume(self) -> Volume | None:
        """Where the instance writes, if that is btrfs."""
        return next((volume for volume in self.host.volumes if volume.device == self.instance.device), None)

    @property
    def file_count(self) -> int:
        """How many files there are."""
        return len(self.files)

    @property
    def allocated_bytes(self) -> int:
        """What they all take."""
        return sum(file.allocated_bytes for file in self.files)

    @property
    def actives(self) -> tuple[JournalFile, ...]:
        """The files that a rotation ends."""
        return tuple(file for file in self.files if ends(file))

    def no(self, why: Skip | None) -> Skip | None:
        """The same reason, as one against the rotation."""
        return None if why is None else self.skip(why.reason, why.detail, why.until_us)

    def skip(self, reason: Reason, detail: str, until_us: int | None = None) -> Skip:
        """The answer no, for now or for good."""
        puts_off = reason in {Reason.WINDOW_CLOSED, Reason.BUDGET, Reason.PRESSURE}
        return Skip(self.instance.directory, reason, f"no rotation: {detail}", until_us, puts_off=puts_off)


Rule = Callable[[Question], Skip | None]


def ends(file: JournalFile) -> bool:
    """Whether a rotation by its instance ends the file: those of unknown names are not journald's."""
    return file.kind is Kind.ACTIVE and file.owner != "remote"


def no_journald(question: Question) -> Skip | None:
    """Somebody must be there to be asked, and must be the one who writes here."""
    if question.instance.rotatable:
        return None
    return question.skip(Reason.NO_JOURNALD, "no journald of this machine that can be asked writes here")


def tried(question: Question) -> Skip | None:
    """What failed a moment ago fails again."""
    return refused(question.instance, question.host)


def window_closed(question: Question) -> Skip | None:
    """A rotation syncs the file, so it is made when there is little to sync."""
    return question.no(deferral.window_closed(question.instance.directory, question.window))


def too_many(question: Question) -> Skip | None:
    """RotationsPerDay=."""
    allowed = question.config.budget.rotations_per_day
    made = question.host.rotations + question.planned
    if ignores_budget(question.request, allowed) or made < allowed:
        return None
    if allowed == 0:
        return question.skip(Reason.NOT_ASKED, "RotationsPerDay=0")
    until_us = question.host.now_us + AGAIN_US
    return question.skip(Reason.BUDGET, f"{made} of RotationsPerDay={allowed} in the last 24 hours", until_us)


def retention_time(question: Question) -> Skip | None:
    """An archive goes when its first entry is too old, with all the younger ones in it."""
    most_us, file_us = question.instance.max_retention_us, question.instance.max_file_us
    if most_us in {0, INFINITY_US} or 0 < file_us <= most_us:
        return None
    detail = f"MaxRetentionSec={format_span(most_us)} would take the young entries with the old"
    return question.skip(Reason.RETENTION, detail)


def retention_size(question: Question) -> Skip | None:
    """The archives, with what becomes one and one full file more, must fit: see above."""
    most = use_bytes(question)
    if most is None:
        return question.skip(Reason.RETENTION, "journald's limits are not known")
    after = _archived_bytes(question) + _moved_bytes(question)
    if most == 0 or after + _full_bytes(question) <= most:
        return None
    full, limit = format_size(_full_bytes(question)), format_size(most)
    detail = f"archives would take {format_size(after)}, and {full} more soon; journald keeps {limit}"
    return question.skip(Reason.RETENTION, detail)


def retention_files(question: Question) -> Skip | None:
    """The number of files must not bite before their bytes do."""
    most = question.instance.system_max_files
    if most == 0:
        return None
    use = use_bytes(question)
    if not use:
        return question.skip(Reason.RETENTION, f"SystemMaxFiles={most} alone decides what journald keeps")
    left = use - _archived_bytes(question) - _moved_bytes(question)
    after = question.file_count + len(question.actives) + -(-left // _full_bytes(question))
    if after <= most:
        return None
    return question.skip(Reason.RETENTION, f"{after} files when SystemMaxUse= is full, SystemMaxFiles={most}")


def retention_tables(question: Question) -> Skip | None:
    """Files that are ended early have hash tables of their own, which count for as long as they are kept."""
    most, full = use_bytes(question), _full_bytes(question)
    early = max(0, question.file_count - -(-question.allocated_bytes // full))
    taken = early * (full // TABLE_SHARE)
    if not most or taken <= most * TABLES_MOST:
        return None
    detail = (
        f"{early} files were ended early, their hash tables take {format_size(taken)} of the {format_size(most)} "
        "that journald keeps; with a smaller SystemMaxFileSize= they take less"
    )
    return question.skip(Reason.RETENTION, detail)


def retention_steps(question: Question) -> Skip | None:
    """Where journald deletes in few large steps, none of them must come sooner."""
    most, full = use_bytes(question), _full_bytes(question)
    if not most or full * FULL_FILES <= most:
        return None
    beyond = (_archived_bytes(question) + sum(file.extents.data_bytes for file in question.actives)) % full
    sooner = min(beyond, full - beyond)
    if sooner <= most * STEP_MOST:
        return None
    detail = (
        f"journald keeps only {most // full} files of {format_size(full)} and would delete one {format_size(sooner)} "
        "sooner; with a smaller SystemMaxFileSize= it keeps more"
    )
    return question.skip(Reason.RETENTION, detail)


RULES: tuple[Rule, ...] = (
    no_journald,
    tried,
    retention_time,
    retention_size,
    retention_tables,
    retention_steps,
    retention_files,
    too_many,
    window_closed,
)


def use_bytes(question: Question) -> int | None:
    """What archives may take before journald deletes some: 0 without limit, None unknown.

    journald takes the larger of this and of what was there when it started, which nobody
    can see. Source: cache_space_refresh(), journald-server.c.
    """
    instance = question.instance
    use, keep_free = instance.system_max_use_bytes, instance.system_keep_free_bytes
    if use is None or keep_free is None or instance.available_bytes is None:
        return None
    return min(use, question.allocated_bytes + max(0, instance.available_bytes - keep_free)) if use else 0


def _archived_bytes(question: Question) -> int:
    return question.allocated_bytes - _moved_bytes(question)


def _moved_bytes(question: Question) -> int:
    return sum(file.allocated_bytes for file in question.actives)


def _full_bytes(question: Question) -> int:
    """One file as large as journald lets it grow; not known means as large as all that is active."""
    return question.instance.system_max_file_size_bytes or max(MIB, _moved_bytes(question))


def to_apply(question: Question, *, nocow: bool) -> Action | Skip | None:
    """One rotation for an active file that was made before its directory was NOCOW; `nocow` says it is now.

    The file that comes of a rotation is not rotated again for that: it did not inherit.
    """
    fine = [file for file in question.actives if file.problem is None and file.links == 1 and file.uid == 0]
    old = [file for file in fine if not file.nocow]
    if not nocow or not old:
        return None
    file = min(old, key=lambda file: (file.owner != "system", file.path))
    name = file.path.rpartition("/")[2]
    past = question.host.past.get((file.device, file.inode))
    if past is not None and past.verb is Verb.ROTATE:
        return question.skip(Reason.NOT_TAKEN, f"{name} came of a rotation and is datacow all the same")
    if not question.config.nocow.rotate_to_apply:
        detail = f"{name} stays datacow until journald rotates it (RotateToApply=no)"
        return question.skip(Reason.NOT_ASKED, detail)
    return first(RULES, question) or _rotation(question, file, Reason.BORN_DATACOW)


def if_cheaper(question: Question, actions: Sequence[Action]) -> Action | Skip | None:
    """A rotation where that costs less than leaving the active files to `actions`, which may be none."""
    files = [file for file in question.actives if file.path in question.may_end]
    paths = {file.path for file in files}
    actions = [action for action in actions if action.path in paths]
    threshold = question.config.defrag.extents_per_mib
    if not files or rotation_price(question, threshold) >= price_without(question, actions, threshold):
        return None
    file = min(files, key=lambda file: (-file.extents.total, file.path))
    return first((*RULES, busy), question) or too_young(question, file) or _rotation(question, file, Reason.CHEAPER)


def busy(question: Question) -> Skip | None:
    """A flush more, while others need the disk; --now does not wait, and somebody waits for a shutdown."""
    if question.request.now:
        return None
    where, now_us = question.instance.directory, question.host.now_us
    return question.no(deferral.disk_busy(where, question.volume, now_us, question.config))


def too_young(question: Question, file: JournalFile) -> Skip | None:
    """The day's rotations are spread over it, so that each brings as much as it can; --now takes one any time."""
    apart_us = DAY_US // max(1, question.config.budget.rotations_per_day)
    age_us = question.host.now_us - file.head_time_us
    if question.request.now or not 0 <= age_us < apart_us:
        return None
    detail = (
        f"the file is {format_span(age_us)} old; to save writes a file is rotated at most every {format_span(apart_us)}"
    )
    return question.skip(Reason.BUDGET, detail, until_us=file.head_time_us + apart_us)


def price_without(question: Question, actions: Sequence[Action], threshold: int) -> float:
    """What no rotation costs, in bytes: those that `actions` write, and the extents that a cold reader then pays.

    An extent is worth MIB / threshold bytes: for `threshold` of them the admin has a MiB rewritten.
    """
    chosen = {action.path for action in actions}
    left = sum(file.extents.total for file in question.actives if file.path not in chosen)
    left += sum(action.extents_expected for action in actions)
    if question.request.ending:
        left += sum(LAST_EXTENTS for file in question.actives if file.owner == "system" and _torn_by_writes(file))
    return sum(action.bytes_to_write for action in actions) + left * MIB / threshold


def _torn_by_writes(file: JournalFile) -> bool:
    """Whether the next messages are written elsewhere than where the file's blocks are."""
    return not file.nocow or file.extents.shared_bytes > 0


def rotation_price(question: Question, threshold: int) -> float:
    """What a rotation costs, in the same bytes: new hash tables, compaction later, files that readers open.

    What becomes an archive is compacted once in either case, but only now it is because of us.
    journald copies a NOCOW file when it archives it.
    """
    extents = len(question.actives) * (YOUNG_EXTENTS + FILE_EXTENTS)
    compacted = sum(file.extents.data_bytes * EXPECTED_RATIO for file in question.actives)
    return _written_at_once(question) + compacted + extents * MIB / threshold


def _written_at_once(question: Question) -> int:
    """The hash tables of the new files, and journald's own copies."""
    tables = len(question.actives) * (_full_bytes(question) // TABLE_SHARE)
    return tables + sum(file.extents.data_bytes for file in question.actives if file.nocow)


def _rotation(question: Question, file: JournalFile, reason: Reason) -> Action:
    return Action(
        path=file.path,
        action=Verb.ROTATE,
        reason=reason,
        target=Rotation(question.instance, file),
        bytes_to_write=_written_at_once(question),
        extents_before=file.extents.total,
        extents_expected=min(file.extents.total, YOUNG_EXTENTS),
    )
