# SPDX-License-Identifier: LGPL-2.1-or-later
"""The sentences for reasons, outcomes and totals in all outputs: log, command line, history and report.

Every Reason has exactly one sentence here, and a reason against an action on a journal file has an end.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from journalkeeper.model import Outcome, Reason, Result, Verb
from journalkeeper.model.recorded import Counters
from journalkeeper.model.units import counted, spell_size

SENTENCES: dict[Reason, str] = {
    Reason.FRAGMENTED: "The file has many more extents than its data needs, and each costs a cold reader one seek.",
    Reason.UNCOMPRESSED: "The archive is stored plain and will be smaller on disk once it is compressed.",
    Reason.PINNED: "The file occupies disk space that none of its bytes use any more.",
    Reason.NOCOW_ARCHIVE: "The archive has no checksums and cannot be compressed until it is copied to a datacow file.",
    Reason.NO_REDUNDANCY: "The volume has one copy of its data: NOCOW gives up no repair and keeps the files whole.",
    Reason.CONFIGURED: "The configuration requires it.",
    Reason.BORN_DATACOW: "The file is older than its directory's C attribute; a rotation replaces it by a NOCOW file.",
    Reason.CHEAPER: "A rotation costs less than the slow reads of the file, or than a rewrite of its ranges:"
    " the archive is compacted once.",
    Reason.ASKED: "The archive has another compression than --compress= requests.",
    Reason.IDEAL: "The file has about as few extents as its data can have.",
    Reason.RECORDED: "The file was already rewritten and has not changed since: an archive is rewritten once.",
    Reason.NO_GAIN: "The rewrite would write more bytes than the saved extents are worth, or the last"
    " rewrite saved less than half of the expected extents and few have been added since.",
    Reason.WINDOW_CLOSED: "journald will flush this file soon, or may at any moment; --now does not wait.",
    Reason.IN_USE: "journald or another program still writes to the file, or it serves as a loop device.",
    Reason.SHARED: "A snapshot or reflink shares the file's data, and a rewrite would need too much additional"
    " space; AllowUnshare=yes or --allow-unshare permits it.",
    Reason.SETTLING: "The file was archived so recently that journald may still be copying it; --now does not wait.",
    Reason.STARTING: "The service has just started: it sets +C on a directory SettleSec= later; --now does not wait.",
    Reason.BUDGET: "The rest of the day's budget of bytes or rotations is too small; --now ignores the budget.",
    Reason.PRESSURE: "Other programs keep the disk busy; the next try follows when they stop.",
    Reason.FREE_SPACE: "The volume has too little free space for the rewrite to fit safely.",
    Reason.NOT_BTRFS: "The file is not on btrfs; journalkeeper works only on btrfs.",
    Reason.NOT_JOURNAL: "The file does not begin like a journal file, or its name, size or time is impossible for one.",
    Reason.NOT_REGULAR: "The path is a symbolic link, a directory, a FIFO or a device, and is never followed.",
    Reason.HARD_LINKED: "The file has more than one name, and an exchange would leave the others behind.",
    Reason.SWAPFILE: "The file is in use as swap space and the kernel refuses to move it.",
    Reason.BAD_HEADER: "The header contradicts the file; journalctl --verify --file=PATH says more.",
    Reason.UNREADABLE: "The file could not be opened or read with the rights that this process has.",
    Reason.FOREIGN_OWNER: "The file does not belong to journald's user, so another program may write to it; or a copy"
    " could not get its owner, because the service has no CAP_CHOWN.",
    Reason.VANISHED: "The file is gone: journald renamed or vacuumed it, or it was never there.",
    Reason.CHANGED: "The file changed after the plan was made; the next plan judges it again.",
    Reason.NOT_ASKED: "The request does not include this kind of file or this path.",
    Reason.READ_ONLY: "The filesystem, the subvolume or the file is read-only or immutable.",
    Reason.INTERRUPTED: "The run was stopped before this file was finished; it is whole, and the next run continues.",
    Reason.IO_ERROR: "The kernel reported an error while the file was read or written; see dmesg.",
    Reason.MISMATCH: "The copy did not equal the original, so the original was kept.",
    Reason.SNAPSHOTS: "Snapshots share files of this journal: each makes btrfs copy NOCOW data once more,"
    " so NOCOW would cost the checksums without a gain.",
    Reason.REDUNDANT: "The volume stores copies of its data, and only checksums show which copy is good:"
    " Nocow=auto keeps such directories datacow, Nocow=yes does not.",
    Reason.COMPRESSION: "The directory asks for compression (chattr +c or a property), which excludes NOCOW.",
    Reason.NOT_TAKEN: "NOCOW was set without effect: the kernel ignored it, or a new file did not inherit it.",
    Reason.ROTATION: "journald is asked to rotate, which makes the file an archive.",
    Reason.RETENTION: "After a rotation, journald would delete its oldest entries sooner than without.",
    Reason.TOO_MANY: "The directory has too many journal files: those of remote hosts and the oldest"
    " archives are left out. Remove files until the rest can be examined.",
    Reason.NO_JOURNALD: "No journald that accepts requests writes to the directory,"
    " or journald did not rotate as requested.",
    Reason.INTERNAL_ERROR: "Bug in journalkeeper, please report it (traceback in the log); the file is left alone until"
    " it changes.",
}

WINDOWS: dict[str, str] = {
    "now": "the request does not wait",
    "flushed": "journald has flushed all entries",
    "no-timer": "journald does not flush by a timer",
    "stale": "journald has not written for a whole SyncIntervalSec=",
    "online": "the next flush is far enough away",
    "flush-due": "journald will flush soon",
    "too-short": "SyncIntervalSec= leaves too little time between two flushes",
    "unsynced": "the time of the next flush is unknown",
}
"""The words for the state of a flush window, by its reason."""

ENDS: dict[Reason, str] = {
    Reason.IDEAL: "when the file has become fragmented again",
    Reason.RECORDED: "when the file changes",
    Reason.NO_GAIN: "when the file has more extents, or with a lower MinExtents= or MinReclaim=",
    Reason.WINDOW_CLOSED: "after journald's next flush",
    Reason.IN_USE: "when no program writes to the file any more",
    Reason.SHARED: "when the snapshots that share it are deleted, or with AllowUnshare=yes",
    Reason.SETTLING: "when the file has not changed for SettleSec=",
    Reason.STARTING: "SettleSec= after the start of the service",
    Reason.BUDGET: "when the last writes are 24 hours old, or with a higher BytesPerDay=",
    Reason.PRESSURE: "when other programs no longer keep the disk busy",
    Reason.FREE_SPACE: "when there is more free space, or with a lower KeepFree=",
    Reason.FOREIGN_OWNER: "when the file belongs to root or to its user; defrag by root rewrites it now",
    Reason.CHANGED: "at the next look",
    Reason.NOT_ASKED: "when a request includes it",
    Reason.READ_ONLY: "when it is writable again",
    Reason.INTERRUPTED: "at the next run",
    Reason.IO_ERROR: "when the disk is repaired",
    Reason.MISMATCH: "when the file changes",
    Reason.HARD_LINKED: "when its other names are removed",
    Reason.SWAPFILE: "when it is no longer swap space",
    Reason.REDUNDANT: "with Nocow=yes",
    Reason.SNAPSHOTS: "when no snapshot shares the journal's files any more, or with Nocow=yes",
    Reason.COMPRESSION: "when the directory's attribute c is removed",
    Reason.NOT_TAKEN: "when the kernel or the file system changes",
    Reason.RETENTION: "with a smaller SystemMaxFileSize= or a larger SystemMaxUse= in journald.conf",
    Reason.NO_JOURNALD: "when a journald writes there",
    Reason.TOO_MANY: "when files are removed",
    Reason.ROTATION: "at once, by a rotation",
    Reason.INTERNAL_ERROR: "when the file changes",
}
"""The end of each reason not to act; a reason that is missing here means that the file is no journal file."""

NO_JOURNAL: frozenset[Reason] = frozenset(
    {
        Reason.VANISHED,
        Reason.NOT_JOURNAL,
        Reason.NOT_REGULAR,
        Reason.BAD_HEADER,
        Reason.NOT_BTRFS,
        Reason.UNREADABLE,
    }
)
"""The reasons why a named path cannot be examined as a journal file."""

DONE: Final = {
    Verb.DEFRAGMENT: "defragmented",
    Verb.COMPRESS: "compressed",
    Verb.REWRITE: "copied",
    Verb.ROTATE: "rotated",
    Verb.SET_NOCOW: "set +C on",
}
UNDONE: Final = {verb: verb.value for verb in Verb} | {Verb.REWRITE: "copy", Verb.SET_NOCOW: "set +C on"}

WHY_NOCOW: Final = {Reason.NO_REDUNDANCY: "single copy, no snapshots", Reason.CONFIGURED: "Nocow=yes"}

MACHINE_ID: Final = re.compile("[0-9a-f]{32}")


def short_name(path: str) -> str:
    """Return the name of the journal file at `path`, with its directory unless that is the machine's main one."""
    directory, name = posixpath.split(path)
    parent = posixpath.basename(directory)
    return name if MACHINE_ID.fullmatch(parent) else posixpath.join(parent, name)


def describe_outcome(outcome: Outcome, name: str = "") -> str:
    """Return the sentence for an outcome: "compressed NAME: 3.7 MiB to 576 KiB on disk, 3,046 to 46 extents".

    `name` replaces the short name of the file, or the path of the directory. Disk sizes appear only if both were
    measured. Names and details are not escaped.
    """
    directory = outcome.action is Verb.SET_NOCOW
    name = name or (outcome.path if directory else short_name(outcome.path))
    if outcome.result is not Result.DONE:
        if outcome.reason is Reason.NO_GAIN and outcome.extents_after:
            return f"{name}: {outcome.detail}"
        begun = "failed to" if outcome.result is Result.FAILED else "did not"
        detail = f": {outcome.detail}" if outcome.detail else ""
        return f"{begun} {UNDONE[outcome.action]} {name} ({outcome.reason}){detail}"
    if directory:
        facts = [WHY_NOCOW.get(outcome.reason, outcome.reason), *filter(None, [outcome.detail])]
    elif outcome.action is Verb.ROTATE:
        facts = [f"the archive has {counted(outcome.extents_before, 'extent')}"]
    else:
        facts = [f"{outcome.extents_before:,} to {counted(outcome.extents_after, 'extent')}"]
        if outcome.disk_bytes_before is not None and outcome.disk_bytes_after is not None:
            sizes = f"{spell_size(outcome.disk_bytes_before)} to {spell_size(outcome.disk_bytes_after)} on disk"
            facts.insert(0, sizes)
        if outcome.unshared_bytes:
            facts.append(f"{spell_size(outcome.unshared_bytes)} stored in addition to a snapshot's")
    return f"{DONE[outcome.action]} {name}: {', '.join(facts)}"


def describe_gain(before: int, after: int, expected: int) -> str:
    """Return a sentence on the extents before, after and expected, for a rewrite that saved too few."""
    return f"rewritten without gain: {before} extents before, {after} after, {expected} expected"


def describe_saving(counters: Counters, since: str) -> str:
    """Return the saving as words: "at least 1.2 GiB on disk and 31,415 extents since 2026-11-01"; "" if there is none.

    `since` is a day or an event. "At least" appears if some rewrites were not measured.
    """
    size_bytes = max(0, counters.bytes_reclaimed or 0)
    least = "at least " if counters.unmeasured else ""
    parts = [f"{least}{spell_size(size_bytes)} on disk"] if size_bytes else []
    parts += [counted(counters.extents_removed, "extent")] if counters.extents_removed else []
    return f"{' and '.join(parts)} since {since}" if parts else ""
