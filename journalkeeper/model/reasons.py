# SPDX-License-Identifier: LGPL-2.1-or-later
"""The sentences for reasons, outcomes and totals in all outputs: log, command line, history and report.

Every Reason has exactly one entry here.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from journalkeeper.model import Outcome, Reason, Result, Verb
from journalkeeper.model.recorded import Counters
from journalkeeper.model.units import counted, spell_size

SENTENCES: Final[dict[Reason, str]] = {
    Reason.FRAGMENTED: "The file has many more extents than its data needs, and each costs a cold reader one seek.",
    Reason.UNCOMPRESSED: "The archive is stored plain and will be smaller on disk once it is compressed.",
    Reason.PINNED: "The file occupies disk space that none of its bytes use any more.",
    Reason.NOCOW_ARCHIVE: "The archive has no checksums and cannot be compressed until it is copied to a datacow file.",
    Reason.NO_REDUNDANCY: "The volume has one copy of its data: NOCOW gives up no repair and keeps the files whole.",
    Reason.CONFIGURED: "The configuration requires it.",
    Reason.BORN_DATACOW: "The file is older than its directory's C attribute; a rotation replaces it by a NOCOW file.",
    Reason.CHEAPER: "A rotation costs less than slow reads or a rewrite of ranges: the archive is compacted once.",
    Reason.ASKED: "The archive has another compression than --compress= requests.",
    Reason.IDEAL: "The file has about as few extents as its data can have, until it becomes fragmented again.",
    Reason.RECORDED: "The file was already rewritten: an archive is rewritten once, unless it changes.",
    Reason.NO_GAIN: "A rewrite would cost more than the saved extents are worth, or the last one saved too few."
    " More extents change that, or a lower MinExtents= or MinReclaim=.",
    Reason.WINDOW_CLOSED: "journald will flush this file soon, or may at any moment; --now does not wait for that.",
    Reason.IN_USE: "journald or another program still writes to the file, or it serves as a loop device.",
    Reason.SHARED: "A snapshot or reflink shares the data, and a rewrite would need too much additional space until"
    " it is deleted; AllowUnshare=yes or --allow-unshare permits it.",
    Reason.SETTLING: "The file has changed within SettleSec=: journald may still be copying it; --now does not wait.",
    Reason.STARTING: "The service has just started: it sets +C on a directory SettleSec= later; --now does not wait.",
    Reason.BUDGET: "Too little is left of the bytes or rotations allowed in 24 hours; --now ignores the budget.",
    Reason.PRESSURE: "Other programs keep the disk busy; the next try follows when they stop.",
    Reason.FREE_SPACE: "The volume has too little free space for the rewrite, because KeepFree= must remain.",
    Reason.NOT_BTRFS: "The file is not on btrfs; journalkeeper works only on btrfs.",
    Reason.NOT_JOURNAL: "The file does not begin like a journal file, or its name, size or time is impossible for one.",
    Reason.NOT_REGULAR: "The path is a symbolic link, a directory, a FIFO or a device, and is never followed.",
    Reason.HARD_LINKED: "The file has more than one name, and an exchange would leave the others behind.",
    Reason.SWAPFILE: "The file is in use as swap space and the kernel refuses to move it.",
    Reason.BAD_HEADER: "The header contradicts the file; journalctl --verify --file=PATH says more.",
    Reason.UNREADABLE: "The file could not be opened or read with the rights that this process has.",
    Reason.FOREIGN_OWNER: "The file does not belong to journald's user, so another program may write to it; or a copy"
    " could not get its owner, because the service has no CAP_CHOWN. `journalkeeper defrag` by root rewrites it.",
    Reason.VANISHED: "The file is gone: journald renamed or vacuumed it, or it was never there.",
    Reason.CHANGED: "The file changed after the plan was made; the next plan judges it again.",
    Reason.NOT_ASKED: "The request does not include this kind of file or this path.",
    Reason.READ_ONLY: "The filesystem, the subvolume or the file is read-only or immutable.",
    Reason.INTERRUPTED: "The run was stopped before this file was finished; it is whole, and the next run continues.",
    Reason.IO_ERROR: "The kernel reported an error while the file was read or written; see dmesg.",
    Reason.MISMATCH: "The copy did not equal the original, so the original is kept, at least until it changes.",
    Reason.SNAPSHOTS: "Snapshots share files of this journal: each makes btrfs copy NOCOW data once more,"
    " so NOCOW would cost the checksums without a gain. Nocow=yes sets it all the same.",
    Reason.REDUNDANT: "The volume stores copies of its data, and only checksums show which copy is good:"
    " Nocow=auto keeps such directories datacow, Nocow=yes does not.",
    Reason.COMPRESSION: "The directory asks for compression (chattr +c or a property), which excludes NOCOW.",
    Reason.NOT_TAKEN: "NOCOW was set without effect: the kernel ignored it, or a new file did not inherit it.",
    Reason.ROTATION: "journald is asked to rotate, which makes the file an archive.",
    Reason.RETENTION: "After a rotation, journald would delete its oldest entries sooner. A smaller SystemMaxFileSize="
    " or a larger SystemMaxUse= in journald.conf changes that.",
    Reason.TOO_MANY: "The directory has too many journal files: those of remote hosts and the oldest"
    " archives are left out. Remove files until the rest can be examined.",
    Reason.NO_JOURNALD: "No journald that accepts requests writes to the directory, or it did not rotate as requested.",
    Reason.INTERNAL_ERROR: "Bug in journalkeeper, please report it (traceback in the log). The file is left alone until"
    " it changes.",
}
"""What each reason means and, for a reason not to act, what ends it."""

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

NO_JOURNAL: Final = frozenset(
    {Reason.VANISHED, Reason.NOT_JOURNAL, Reason.NOT_REGULAR, Reason.BAD_HEADER, Reason.NOT_BTRFS, Reason.UNREADABLE}
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
