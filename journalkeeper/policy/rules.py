# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why a file is left alone: one function a rule, in the order in which they are asked.

A veto wins. The first rule's answer counts, so the table
goes from what we cannot judge (broken, gone, not asked for), over what would do harm
(journald or a writer is at it, data shared with a snapshot), to what is not worth it.
Whether the gain pays is cost.py's question; it is asked only of files that pass here.

A new rule is a function here and its place in RULES. A new reason is a word in model/words.py, its sentence and
its end in model/reasons.py, and one of LASTING in plan.py if only a change of the file ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from journalkeeper.model import MIB, Kind, Past, Reason, Skip, State, Verb
from journalkeeper.model.reasons import describe_gain
from journalkeeper.model.units import DAY_US, SECOND_US, format_size, format_span
from journalkeeper.policy import deferral
from journalkeeper.policy.case import Case
from journalkeeper.policy.cost import beside_snapshot_bytes
from journalkeeper.policy.deferral import AGAIN_US
from journalkeeper.policy.gain import fell_short
from journalkeeper.policy.rule_table import answers, first

LOOK_AGAIN_US: Final = SECOND_US
"""The soonest that a file is looked at again that journald still writes."""

Rule = Callable[[Case], Skip | None]


def _skip(case: Case, reason: Reason, detail: str) -> Skip:
    return Skip(case.file.path, reason, detail)


def not_asked(case: Case) -> Skip | None:
    """The request or the configuration leaves this kind of file out."""
    active = case.file.kind is Kind.ACTIVE
    if not (case.request.active if active else case.request.archived):
        return _skip(case, Reason.NOT_ASKED, f"{case.file.kind} files were not asked for")
    allowed = case.config.defrag.active if active else case.config.defrag.archived
    if not allowed:
        return _skip(case, Reason.NOT_ASKED, f"{'Active' if active else 'Archived'}=no in the configuration")
    return None


def problem(case: Case) -> Skip | None:
    """The file could not be judged."""
    if case.file.problem is None:
        return None
    return _skip(case, case.file.problem, case.file.problem_detail)


def not_btrfs(case: Case) -> Skip | None:
    """There is nothing to mend on another filesystem."""
    if case.volume is not None:
        return None
    return _skip(case, Reason.NOT_BTRFS, "the file is on another filesystem")


def read_only(case: Case) -> Skip | None:
    """The volume or this mount of it takes no writes."""
    if case.volume is None or "ro" not in case.volume.options:
        return None
    return _skip(case, Reason.READ_ONLY, "the filesystem is read-only, or mounted so for this process")


def hard_linked(case: Case) -> Skip | None:
    """journald makes no second names: somebody else relies on this inode."""
    if case.file.links == 1:
        return None
    return _skip(case, Reason.HARD_LINKED, f"the file has {case.file.links} names")


def foreign_owner(case: Case) -> Skip | None:
    """journald's files belong to root; only those of systemd-journal-remote belong to somebody else."""
    if case.file.uid == 0 or case.file.owner == "remote":
        return None
    return _skip(case, Reason.FOREIGN_OWNER, f"the file belongs to user {case.file.uid}, journald's belong to root")


def settling(case: Case) -> Skip | None:
    """journald renames first, sets state 2 later and copies a NOCOW file last."""
    if not case.at_rest or case.request.now:
        return None
    watch = case.config.watch
    wait_us = watch.nocow_settle_us if case.file.nocow else watch.settle_us
    # A clock set back must not make a file settle until it has caught up: a change far in the future is long past.
    age_us = abs(case.now_us - case.file.ctime_ns // 1000)
    if age_us >= wait_us:
        return None
    detail = f"changed {format_span(age_us)} ago, left alone for {format_span(wait_us)}"
    return Skip(case.file.path, Reason.SETTLING, detail, until_us=case.file.ctime_ns // 1000 + wait_us)


def still_written(case: Case) -> Skip | None:
    """An archive whose state byte is not yet ARCHIVED is still in journald's hands.

    journald sets it when all of the file is on the disk, and no event tells of it: it is looked at again, a
    young one soon. After a day nobody will: its journald was killed before.
    """
    if case.file.kind is not Kind.ARCHIVED or case.file.state is State.ARCHIVED:
        return None
    watch = case.config.watch
    age_us = abs(case.now_us - case.file.ctime_ns // 1000)
    again_us = max(watch.settle_us, LOOK_AGAIN_US) if age_us < watch.nocow_settle_us else AGAIN_US
    until_us = case.now_us + again_us if age_us < DAY_US else None
    detail = f"named as an archive, but its state is {case.file.state}"
    return Skip(case.file.path, Reason.IN_USE, detail, until_us=until_us)


def rewritten(case: Case) -> Skip | None:
    """What was rewritten is rewritten again when what came since is alone worth it.

    So an archive is rewritten once, unless it changed, or another compression is asked for by name; an active file is
    judged by what it has now, unless the last rewrite saved too little.
    """
    past, file = case.past, case.file
    if past is None or past.verb is Verb.ROTATE or case.other_compression:
        return None
    in_vain = fell_short(past.extents_before, past.extents_expected, past.extents)
    changed = (past.size_bytes, past.mtime_ns) != (file.size_bytes, file.mtime_ns)
    judged_anew = changed if case.at_rest else not in_vain
    if judged_anew:
        return None
    missing = past.extents + _worth(case, past) - file.extents.total
    if missing <= 0:
        return None  # of an archive a power cut, or a restored copy, took the rewrite back
    if not in_vain:
        # Not when: the words of a reason that lasts are the same at any time.
        what = f": {past.extents_before} extents became {past.extents}" if past.extents_before else ""
        return _skip(case, Reason.RECORDED, f"rewritten{what}")
    what = describe_gain(past.extents_before, past.extents, past.extents_expected)
    return _skip(case, Reason.NO_GAIN, f"{what}; tried again with {missing} more")


def _worth(case: Case, past: Past) -> int:
    """How many extents have to come for another rewrite to pay.

    For an archive that is MinExtents=. For an active file it is ExtentsPerMiB= for each MiB that the rewrite in vain
    wrote: the price at which ranges are rewritten.
    """
    defrag = case.config.defrag
    if case.at_rest:
        return defrag.min_extents
    return defrag.extents_per_mib * max(1, -(-past.bytes_written // MIB))


def shared(case: Case) -> Skip | None:
    """A rewrite stores beside a snapshot what that keeps: by itself only a copy that compression makes small.

    That is at most a quarter (price.EXPECTED_RATIO). Neither a snapshot nor its deletion wakes anybody, so
    the answer ends by itself.
    """
    file, kept_bytes = case.file, case.file.extents.shared_bytes
    becomes_small = case.compression is not None and not file.compressed
    if kept_bytes == 0 or case.allow_unshare == "yes" or (case.allow_unshare == "auto" and becomes_small):
        return None
    again = format_size(beside_snapshot_bytes(file, case.compression))
    detail = f"{again} would be stored beside the {format_size(kept_bytes)} that a snapshot keeps"
    return Skip(file.path, Reason.SHARED, detail, until_us=case.now_us + DAY_US)


def window_closed(case: Case) -> Skip | None:
    """An active file is touched only while no flush is near."""
    return None if case.at_rest else deferral.window_closed(case.file.path, case.window)


FINAL: tuple[Rule, ...] = (problem, not_asked, not_btrfs)
"""After the answer of one of these no other rule is asked: the others have nothing to go by."""

RULES: tuple[Rule, ...] = (
    *FINAL,
    read_only,
    hard_linked,
    foreign_owner,
    settling,
    still_written,
    rewritten,
    shared,
    window_closed,
)


def vetoes(case: Case) -> list[Skip]:
    """The first rule's answer, which counts, and those of the rules behind it; none if the file may be worked on."""
    final = first(FINAL, case)
    return list(answers(RULES, case)) if final is None else [final]
