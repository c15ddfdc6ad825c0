# SPDX-License-Identifier: LGPL-2.1-or-later
"""The reasons to leave a file alone: one function per rule, in order of precedence.

A single veto is enough, and the first rule's answer is the one that is reported. The table starts with files that
cannot be judged (broken, gone, not requested). Rules against harm follow (file still in use, data shared with a
snapshot), then rules about worth. cost.py decides whether the gain pays, for the files that pass.

A new rule is a function here and its place in RULES. A new reason is a word and a sentence in model/words.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from journalkeeper.model import MIB, Kind, Past, Reason, Skip, State, Verb
from journalkeeper.model.sentences import describe_missing_gain
from journalkeeper.model.units import DAY_US, MINUTE_US, format_span, pluralize, spell_size
from journalkeeper.policy import deferral
from journalkeeper.policy.case import Case
from journalkeeper.policy.cost import count_second_copy_bytes, find_costly_mibs, is_useless_rewrite
from journalkeeper.policy.deferral import AGAIN_US
from journalkeeper.policy.nocow import find_read_only

Rule = Callable[[Case], Skip | None]


def _skip(case: Case, reason: Reason, detail: str) -> Skip:
    return Skip(case.file.path, reason, detail)


def veto_unrequested(case: Case) -> Skip | None:
    """Veto a file if the request or the configuration leaves out its kind: active, or archived for any other."""
    active = case.file.kind is Kind.ACTIVE
    if not (case.request.takes_active if active else case.request.takes_archived):
        return _skip(case, Reason.NOT_ASKED, f"the request does not include {case.file.kind} files")
    allowed = case.config.defrag.active if active else case.config.defrag.archived
    if not allowed:
        return _skip(case, Reason.NOT_ASKED, f"{'Active' if active else 'Archived'}=no in the configuration")
    return None


def veto_unreadable(case: Case) -> Skip | None:
    """Veto a file that could not be read or judged, for the problem in its row."""
    problem = case.file.problem
    return None if problem is None else _skip(case, problem, case.file.problem_detail)


def veto_other_filesystem(case: Case) -> Skip | None:
    """Veto a file without a known btrfs volume."""
    return _skip(case, Reason.NOT_BTRFS, "the file is on another filesystem") if case.volume is None else None


def veto_read_only(case: Case) -> Skip | None:
    """Veto a file that is immutable or append-only, or whose subvolume, filesystem or mount is read-only."""
    obstacle = "" if case.volume is None else find_read_only(case.volume)
    obstacle = obstacle or ("the file is immutable or append-only (chattr +i, +a)" if case.file.fixed else "")
    return _skip(case, Reason.READ_ONLY, obstacle) if obstacle else None


def veto_hard_links(case: Case) -> Skip | None:
    """Veto a file with several names, or none: journald makes only one, so another program relies on this inode."""
    links = case.file.links
    return None if links == 1 else _skip(case, Reason.HARD_LINKED, f"the file has {links} names")


def veto_foreign_owner(case: Case) -> Skip | None:
    """Veto a file that root does not own. A file of systemd-journal-remote, by its name, may have any owner."""
    if case.file.uid == 0 or case.file.owner == "remote":
        return None
    return _skip(case, Reason.FOREIGN_OWNER, f"the file belongs to user {case.file.uid}, journald's belong to root")


def veto_settling(case: Case) -> Skip | None:
    """Veto an archive with a ctime within SettleSec= (NOCOW: NocowSettleSec=) of now, unless the request hurries.

    journald renames a file first, sets its state to ARCHIVED later, and copies a NOCOW file last.
    """
    if not case.is_at_rest or case.request.hurries:
        return None
    watch = case.config.watch
    wait_us = watch.nocow_settle_us if case.file.nocow else watch.settle_us
    # A clock set back must not make a file settle until it has caught up: a change far in the future is long past.
    age_us = abs(case.now_us - case.file.ctime_ns // 1000)
    if age_us >= wait_us:
        return None
    detail = f"changed {format_span(age_us)} ago, must stay unchanged for {format_span(wait_us)}"
    return Skip(case.file.path, Reason.SETTLING, detail, until_us=case.file.ctime_ns // 1000 + wait_us)


def veto_unfinished_archive(case: Case) -> Skip | None:
    """Veto an archive, but no `.journal~`, whose header is in another state than ARCHIVED: journald may still write it.

    No event reports the new state. The Skip has the time of the next check, or none after a day: journald was killed.
    """
    if case.file.kind is not Kind.ARCHIVED or case.file.state is State.ARCHIVED:
        return None
    age_us = abs(case.now_us - case.file.ctime_ns // 1000)
    again_us = MINUTE_US if age_us < case.config.watch.nocow_settle_us else AGAIN_US
    until_us = case.now_us + again_us if age_us < DAY_US else None
    detail = f"the name is an archive's, but the header says {case.file.state}"
    return Skip(case.file.path, Reason.IN_USE, detail, until_us=until_us)


def veto_repeated_rewrite(case: Case) -> Skip | None:
    """Veto another rewrite of an archive that did not change, and of an active file if the last one saved too little.

    The reason is RECORDED, or NO_GAIN if the last rewrite saved too little. A change of an archive, more extents
    (`_find_least_growth`) or a request for another compression end the veto, and after a rotation there is none.
    """
    past, file = case.past, case.file
    if past is None or past.verb is Verb.ROTATE or case.needs_other_compression:
        return None
    in_vain = is_useless_rewrite(past.extents_before, past.extents_expected, past.extents)
    changed = (past.size_bytes, past.mtime_ns) != (file.size_bytes, file.mtime_ns)
    judged_anew = changed if case.is_at_rest else not in_vain
    if judged_anew:
        return None
    missing = past.extents + _find_least_growth(case, past) - file.extents.total
    if missing <= 0:
        return None  # a power cut or a restored backup undid the rewrite of this archive
    if not in_vain:
        # The sentence names no time, so that a lasting reason reads the same in every look.
        was = past.extents_before
        what = f"{pluralize(was, 'extent')} became {past.extents:,}" if was else "rewritten"
        return _skip(case, Reason.RECORDED, what)
    what = describe_missing_gain(past.extents_before, past.extents, past.extents_expected)
    return _skip(case, Reason.NO_GAIN, f"{what}; tried again with {missing:,} more")


def _find_least_growth(case: Case, past: Past) -> int:
    """Return the extents to gain: MinExtents=, if active ExtentsPerMiB= for each MiB that `past` wrote (1 or more)."""
    defrag = case.config.defrag
    if case.is_at_rest:
        return defrag.min_extents
    return defrag.extents_per_mib * max(1, -(-past.bytes_written // MIB))


def veto_shared_data(case: Case) -> Skip | None:
    """Veto a rewrite of a file that shares data with a snapshot or another file, as it would store a second copy.

    AllowUnshare= permits it: "yes" always, "auto" if compression makes the file small. Ranges of an active file that
    pay nevertheless are rewritten. The veto ends after a day, because no event reports a snapshot or its deletion.
    """
    file, kept_bytes = case.file, case.file.extents.shared_bytes
    becomes_small = case.compression is not None and not file.compressed
    if kept_bytes == 0 or case.allow_unshare == "yes" or (case.allow_unshare == "auto" and becomes_small):
        return None
    if not case.is_at_rest and find_costly_mibs(file, case.config, case.allow_unshare):
        return None
    again, kept = (spell_size(number) for number in (count_second_copy_bytes(file, case.compression), kept_bytes))
    keepers = "snapshots" if case.volume is not None and case.volume.snapshots else "other files"
    detail = f"a rewrite stores {again} more, because {keepers} share {kept} of the file (uncompressed)"
    detail += f"; it cannot become small: {case.obstacle}" if case.obstacle and not file.compressed else ""
    return Skip(file.path, Reason.SHARED, detail, until_us=case.now_us + DAY_US)


def veto_closed_window(case: Case) -> Skip | None:
    """Veto work on an active file (WINDOW_CLOSED) while the flush window of its instance is closed, or unknown."""
    return None if case.is_at_rest else deferral.wait_for_window(case.file.path, case.window)


FINAL: tuple[Rule, ...] = (veto_unreadable, veto_unrequested, veto_other_filesystem)
"""If one of these rules applies, the others are not asked, because they lack the facts to answer."""

RULES: tuple[Rule, ...] = (
    *FINAL,
    veto_read_only,
    veto_hard_links,
    veto_foreign_owner,
    veto_settling,
    veto_unfinished_archive,
    veto_repeated_rewrite,
    veto_shared_data,
    veto_closed_window,
)


def find_vetoes(case: Case) -> Iterator[Skip]:
    """Yield the Skip of each rule that vetoes this file, in the order of RULES, up to a veto by a rule in FINAL."""
    for rule in RULES:
        if (skip := rule(case)) is not None:
            yield skip
            if rule in FINAL:
                return
