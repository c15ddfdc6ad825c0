# SPDX-License-Identifier: LGPL-2.1-or-later
"""The sentences for outcomes in all outputs: log, command line, history and report."""

from __future__ import annotations

import posixpath
import re
from typing import Final

from journalkeeper.model import Outcome, Reason, Result, Verb
from journalkeeper.model.units import pluralize, spell_size

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

WHY_NOCOW: Final = {Reason.NO_REDUNDANCY: "data stored once", Reason.CONFIGURED: "Nocow=yes"}

BY: Final = {"": "unknown", "daemon": "the service", "bus": "a user's request", "defrag": "`journalkeeper defrag`"}
"""The words for the origins of a run."""

MACHINE_ID: Final = re.compile("[0-9a-f]{32}")


def shorten_path(path: str) -> str:
    """Return the name of the file at `path`, with its directory's name before it unless the file's name is unique: it
    begins with a machine id, or is an archive's (@) in a directory whose name is just a machine id.
    """
    directory, name = posixpath.split(path)
    parent = posixpath.basename(directory)
    unique = "@" in name and MACHINE_ID.fullmatch(parent)
    return name if unique or MACHINE_ID.match(name) else posixpath.join(parent, name)


def describe_outcome(outcome: Outcome, name: str = "") -> str:
    """Return the sentence for an outcome: "compressed NAME: 3.7 MiB to 576 KiB on disk, 3,046 to 46 extents, DETAIL",
    "did not (or failed to) compress NAME (REASON): DETAIL", or "NAME: DETAIL" of a rewrite without gain.

    `name` replaces the file's short name or a directory's path. +C and rotations have other facts. Nothing is escaped.
    """
    directory = outcome.action is Verb.SET_NOCOW
    name = name or (outcome.path if directory else shorten_path(outcome.path))
    if outcome.result is not Result.DONE:
        if outcome.reason is Reason.NO_GAIN and outcome.extents_after:
            return f"{name}: {outcome.detail}"
        begun = "failed to" if outcome.result is Result.FAILED else "did not"
        detail = f": {outcome.detail}" if outcome.detail else ""
        return f"{begun} {UNDONE[outcome.action]} {name} ({outcome.reason}){detail}"
    if directory:
        facts = [WHY_NOCOW.get(outcome.reason, outcome.reason)]
    elif outcome.action is Verb.ROTATE:
        facts = [f"a run after SettleSec= compacts the archive of {pluralize(outcome.extents_before, 'extent')}"]
    else:
        facts = [f"{outcome.extents_before:,} to {pluralize(outcome.extents_after, 'extent')}"]
        if outcome.disk_bytes_before is not None and outcome.disk_bytes_after is not None:
            sizes = f"{spell_size(outcome.disk_bytes_before)} to {spell_size(outcome.disk_bytes_after)} on disk"
            facts.insert(0, sizes)
        if outcome.unshared_bytes:
            facts[-1] += "; other files share the old data, which stays on the disk until they are deleted"
    facts += filter(None, [outcome.detail])
    return f"{DONE[outcome.action]} {name}: {', '.join(facts)}"


def describe_missing_gain(before: int, after: int, expected: int) -> str:
    """Return a sentence on the extents before, after and expected, for a rewrite that saved too few."""
    return f"rewritten without gain: {pluralize(before, 'extent')} before, {after:,} after, {expected:,} expected"
