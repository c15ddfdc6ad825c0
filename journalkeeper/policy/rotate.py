# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide whether to ask journald to rotate: to make a file NOCOW, or because a rotation is the cheaper tool.

A rotation is compared with what the next reader pays for the active files, either as they are or with ranges rewritten.
Ranges that a snapshot shares cost more, because the disk then stores them twice. A rotation touches no shared data.

A rotation shortens the history (history_loss.py), and by no more than HistoryLoss= of it.

A rotation costs journald no more than a flush: it syncs the old file in a thread, as the timer does. So it is made when
a flush costs least, in an open window, best right after one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from journalkeeper.model import MIB, Action, Instance, JournalFile, Kind, Reason, Rotation, Skip, Verb
from journalkeeper.model.units import DAY_US, INFINITY_US, format_span, spell_size
from journalkeeper.policy import deferral
from journalkeeper.policy.case import Case, Cases
from journalkeeper.policy.cost import EXPECTED_RATIO, TWICE
from journalkeeper.policy.deferral import AGAIN_US, ignores_budget
from journalkeeper.policy.history_loss import TABLE_SHARE, Limits, Loss, compute_loss, find_full_file_bytes
from journalkeeper.policy.nocow import postpone_failed_change
from journalkeeper.policy.rules import find_vetoes

DESPITE: Final = frozenset({Reason.SHARED, Reason.NO_GAIN, Reason.WINDOW_CLOSED})
"""Reasons not to rewrite a file that do not prevent its rotation. A rotation checks its window itself."""

YOUNG_EXTENTS: Final = 4
"""The extents that a boot finds in a file that was begun shortly before (2 measured), with some growth."""

FILE_EXTENTS: Final = 16
"""The cost of one more archive for a cold reader, in extents:

9 to 17 reads of the disk for `journalctl -n 10` or `-b`, measured with 4 to 24 compacted archives of 5 MiB; 165 where
they were not compacted.
"""

LAST_EXTENTS: Final = 300
"""The extents that the messages of a shutdown add to a whole datacow file:

the next boot found 267 to 452 (measured). A file that was begun just before them has YOUNG_EXTENTS. They add none to a
NOCOW file, unless a snapshot shares it: then its blocks are copied on write once more.
"""

BEFORE: Final = 1 / 4
"""The part of HistoryLoss= for rotations that no shutdown follows. The rest is for those that give a boot a young file:
in 300 simulated days of 4 snapshots, rotations at any time left 105 extents at the median boot and 94% of the
history, these 22 and 97%.
"""

BOOT_EXTENTS: Final = 4
"""The cost of one more archive for each boot, in reads: vacuum opens each to see whether it is empty (23 ms at 150
IOPS, the slope over 84 boots)."""


class Question:
    """Everything that bears on the rotation of `instance`. `cases` makes the Cases of its files.

    `planned` is the number of rotations that this plan already contains. `actives` are the files that a rotation turns
    into archives. `allocated_bytes` is the size of all files of the directory, which after it are archives.
    `max_file_bytes` is SystemMaxFileSize=; if that is unknown or unlimited, the size of `actives`, at least 1 MiB.
    """

    def __init__(self, instance: Instance, cases: Cases, planned: int) -> None:
        self.instance, self.cases, self.planned = instance, cases, planned
        self.files = cases.below.get(instance.directory, [])
        self.actives = cases.list_rotatable(instance.directory)
        self.allocated_bytes = sum(file.allocated_bytes for file in self.files)
        active_bytes = sum(file.allocated_bytes for file in self.actives)
        self.max_file_bytes = instance.system_max_file_size_bytes or max(MIB, active_bytes)

    @cached_property
    def loss(self) -> Loss | None:
        """The cost of this one rotation, not of `planned` ones, in history; None if journald's limits are unknown."""
        most = self.kept_bytes
        if most is None:
            return None
        oldest_first = sorted(self.files, key=lambda file: (file.head_time_us, file.path))
        archives = [file.allocated_bytes for file in oldest_first if file.kind is not Kind.ACTIVE]
        ended = [(file.allocated_bytes, file.extents.unwritten_bytes) for file in self.actives]
        full_bytes = find_full_file_bytes(self.files, self.max_file_bytes)
        limits = Limits(most, self.max_file_bytes, self.instance.system_max_files, full_bytes)
        return compute_loss(archives, ended, limits)

    @property
    def kept_bytes(self) -> int | None:
        """The bytes that SystemMaxUse= and SystemKeepFree= permit; 0 (no limit) without SystemMaxUse=, None if unknown.

        SystemKeepFree= always leaves them their present size. journald itself never uses less than the size that it
        found when it started, which is not visible from outside. Source: cache_space_refresh(), journald-server.c.
        """
        instance = self.instance
        use, keep_free = instance.system_max_use_bytes, instance.system_keep_free_bytes
        if use is None or keep_free is None or instance.available_bytes is None:
            return None
        return min(use, self.allocated_bytes + max(0, instance.available_bytes - keep_free)) if use else 0

    def skip(self, reason: Reason, detail: str, until_us: int | None = None) -> Skip:
        """Return a Skip of the directory, `instance` empty; `until_us` is the time of the next try, None if unknown."""
        return Skip(self.instance.directory, reason, detail, until_us)


def veto_excess_rotations(question: Question) -> Skip | None:
    """Veto a rotation (BUDGET) for AGAIN_US when all instances made RotationsPerDay= in 24 hours, this plan included,
    unless `ignores_budget`. RotationsPerDay=0 is NOT_ASKED, without a time.
    """
    allowed = question.cases.config.budget.rotations_per_day
    made = question.cases.host.rotations + question.planned
    if ignores_budget(question.cases.request, allowed) or made < allowed:
        return None
    if allowed == 0:
        return question.skip(Reason.NOT_ASKED, "RotationsPerDay=0")
    until_us = question.cases.host.now_us + AGAIN_US
    return question.skip(Reason.BUDGET, f"{made} of RotationsPerDay={allowed} in the last 24 hours", until_us)


def veto_by_retention(question: Question, part: float = 1) -> Skip | None:
    """Veto a rotation that costs more of the history than this part of HistoryLoss=, or an unknown part of it.

    MaxRetentionSec= vetoes, too, unless MaxFileSec= is set and not longer: journald deletes an archive when its first
    entry is too old, with all later entries in it. A request that hurries is vetoed as well. No Skip has a time.
    """
    retention_us = question.instance.max_retention_us
    if retention_us not in {0, INFINITY_US} and not 0 < question.instance.max_file_us <= retention_us:
        young = f"MaxRetentionSec={format_span(retention_us)} would take the young entries with the old"
        return question.skip(Reason.RETENTION, young)
    loss, most = question.loss, question.cases.config.budget.history_loss_percent
    if loss is None:
        return question.skip(Reason.RETENTION, "journald's limits are not known")
    cause = loss.explain_excess(most * part)
    share = f"{part:.0%} of HistoryLoss={most}% until a shutdown" if part < 1 else f"HistoryLoss={most}%"
    deletes = f"; journald would delete {spell_size(loss.deleted_bytes)} at once" if loss.deleted_bytes else ""
    return question.skip(Reason.RETENTION, f"{cause}, {share}{deletes}") if cause else None


def _find_veto(question: Question) -> Skip | None:
    """Return the first reason against a wanted rotation: journald, file format, failures, history, limits, window."""
    instance, cases = question.instance, question.cases
    if not instance.rotatable:
        return question.skip(Reason.NO_JOURNALD, "no journald that accepts requests writes to this directory")
    unknown = [file.path for file in question.actives if file.problem is Reason.UNKNOWN_FORMAT]
    if unknown:  # the price is unknown
        return question.skip(Reason.UNKNOWN_FORMAT, f"{unknown[0]} has a format that is unknown")
    return (
        postpone_failed_change(instance, cases.host)
        or veto_by_retention(question)
        or veto_excess_rotations(question)
        or deferral.wait_for_window(instance.directory, cases.windows[instance.directory])  # a rotation syncs the file
    )


def decide_rotation(question: Question, file_actions: Sequence[Action], *, nocow: bool) -> Action | Skip | None:
    """Return the rotation of the instance, a Skip with the reason against it, or None if no rotation is wanted.

    A rotation into NOCOW comes before a cheaper one, which comes before a Skip of the former. `nocow` is True if new
    files become NOCOW, as the configuration demands. A Skip for a reason that ends by itself has `puts_off`.
    """
    answer = _rotate_into_nocow(question) if nocow else None
    if not isinstance(answer, Action):
        other = _rotate_if_cheaper(question, file_actions)
        answer = other if answer is None or isinstance(other, Action) else answer
    if isinstance(answer, Skip):
        ends = answer.reason in {Reason.WINDOW_CLOSED, Reason.BUDGET, Reason.TOO_YOUNG, Reason.PRESSURE}
        detail = f"journald is not asked to rotate{' yet' if ends else ''}: {answer.detail}"
        return answer._replace(detail=detail, puts_off=ends)
    return answer


def _rotate_into_nocow(question: Question) -> Action | Skip | None:
    """Return a rotation for a datacow file, a Skip, or None if all are NOCOW; the caller knows that new files will be.

    The file is the system's, else the first by path, without a problem, a second link or a foreign owner. The Skip
    is NOT_TAKEN if this file is new after a rotation, NOT_ASKED for RotateToApply=no, or that of `_find_veto`.
    """
    fine = [file for file in question.actives if file.problem is None and file.links == 1 and file.uid == 0]
    old = [file for file in fine if not file.nocow]
    if not old:
        return None
    file = min(old, key=lambda file: (file.owner != "system", file.path))
    name = file.path.rpartition("/")[2]
    past = question.cases.host.past.get((file.device, file.inode))
    if past is not None and past.verb is Verb.ROTATE:
        return question.skip(Reason.NOT_TAKEN, f"{name} is new after a rotation and is still not NOCOW")
    if not question.cases.config.nocow.rotate_to_apply:
        detail = f"{name} is not NOCOW until journald rotates it (RotateToApply=no)"
        return question.skip(Reason.NOT_ASKED, detail)
    return _find_veto(question) or _make_rotation(question, file, Reason.BORN_DATACOW)


def _rotate_if_cheaper(question: Question, actions: Sequence[Action]) -> Action | Skip | None:
    """Return a rotation if it costs less than `actions` and the extents that they leave, a Skip, or None.

    It names the file with the most extents, of those without a veto outside DESPITE. After `_find_veto`, the disk, the
    file's age and BEFORE can veto a rotation that does not hurry.
    """
    judged = ((file, find_vetoes(Case(file, question.cases))) for file in question.actives)
    files = [file for file, against in judged if all(skip.reason in DESPITE for skip in against)]
    paths = {file.path for file in files}
    actions = [action for action in actions if action.path in paths]
    threshold = question.cases.config.defrag.extents_per_mib
    if not files or price_of_rotation(question, threshold) >= price_without_rotation(question, actions, threshold):
        return None
    file = min(files, key=lambda file: (-file.extents.total, file.path))
    veto, cases = _find_veto(question), question.cases
    if veto is None and not cases.request.hurries:
        where, volume = question.instance.directory, cases.volumes.get(question.instance.device)
        veto = deferral.wait_for_disk(where, volume, cases.host.now_us, cases.config)  # a rotation costs one more flush
        veto = veto or spread_rotations(question, file) or veto_by_retention(question, BEFORE)
    return veto or _make_rotation(question, file, Reason.CHEAPER)


def spread_rotations(question: Question, file: JournalFile) -> Skip | None:
    """Postpone a rotation (TOO_YOUNG) until `file` is a day / RotationsPerDay= old, not for one from the future."""
    apart_us = DAY_US // max(1, question.cases.config.budget.rotations_per_day)
    age_us = question.cases.host.now_us - file.head_time_us
    if not 0 <= age_us < apart_us:
        return None
    detail = f"the file is {format_span(age_us)} old; a file is rotated to save writes after {format_span(apart_us)}"
    return question.skip(Reason.TOO_YOUNG, detail, until_us=file.head_time_us + apart_us)


def price_without_rotation(question: Question, actions: Sequence[Action], threshold: int) -> float:
    """Return the cost of leaving the active files unrotated, in bytes.

    Each extent left, also an ideal file's, costs MIB / `threshold`: a MiB may be rewritten to remove so many. A byte
    that `actions` unshare costs TWICE more. A shutdown adds LAST_EXTENTS to a datacow or shared system.journal.
    """
    chosen = {action.path for action in actions}
    left = sum(file.extents.total for file in question.actives if file.path not in chosen)
    left += sum(action.extents_expected for action in actions)
    if question.cases.request.before_shutdown:
        main = [file for file in question.actives if file.owner == "system"]
        left += LAST_EXTENTS * sum(not file.nocow or file.extents.shared_bytes > 0 for file in main)
    written = sum(action.bytes_to_write + TWICE * action.unshared_bytes for action in actions)
    return written + left * MIB / threshold


def price_of_rotation(question: Question, threshold: int) -> float:
    """Return the cost of a rotation in bytes: immediate ones, compaction, and MIB / `threshold` for each new extent.

    The later compaction of all data to EXPECTED_RATIO counts, even if it does not pay: this brings it forward.
    """
    extents = len(question.actives) * (YOUNG_EXTENTS + FILE_EXTENTS + BOOT_EXTENTS)
    compacted = sum(file.extents.data_bytes * EXPECTED_RATIO for file in question.actives)
    return _count_immediate_bytes(question) + compacted + extents * MIB / threshold


def _count_immediate_bytes(question: Question) -> int:
    """Return the bytes of the new files' tables, and of the data of NOCOW files, which journald copies."""
    tables = len(question.actives) * (question.max_file_bytes // TABLE_SHARE)
    return tables + sum(file.extents.data_bytes for file in question.actives if file.nocow)


def _make_rotation(question: Question, file: JournalFile, reason: Reason) -> Action:
    """Return the rotation of the directory, with path and extents of `file` alone, at most YOUNG_EXTENTS expected."""
    one = question.instance
    return Action(
        path=file.path,
        action=Verb.ROTATE,
        reason=reason,
        target=Rotation(one.directory, one.device, one.inode, one.namespace, file),
        bytes_to_write=_count_immediate_bytes(question),
        extents_before=file.extents.total,
        extents_expected=min(file.extents.total, YOUNG_EXTENTS),
    )
