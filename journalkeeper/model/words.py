# SPDX-License-Identifier: LGPL-2.1-or-later
"""Units, and the fixed words for kinds of files, actions, results and reasons."""

from enum import StrEnum

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


class Kind(StrEnum):
    """The kind of a journal file by its name."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    UNCLEAN = "unclean"


class State(StrEnum):
    """The state byte in the header."""

    ONLINE = "online"
    OFFLINE = "offline"
    ARCHIVED = "archived"
    UNKNOWN = "unknown"


class Verb(StrEnum):
    """An action."""

    DEFRAGMENT = "defragment"
    COMPRESS = "compress"
    REWRITE = "rewrite"
    SET_NOCOW = "set-nocow"
    ROTATE = "rotate"


class Result(StrEnum):
    """The result of an action."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


class Reason(StrEnum):
    """Why an action is done or not: short fixed words, listed in journalkeeper-reasons(7)."""

    # why it is done
    FRAGMENTED = "fragmented"
    UNCOMPRESSED = "uncompressed"
    PINNED = "pinned"
    NOCOW_ARCHIVE = "nocow-archive"
    NO_REDUNDANCY = "no-redundancy"
    CONFIGURED = "configured"
    BORN_DATACOW = "born-datacow"
    CHEAPER = "cheaper"
    ASKED = "asked"
    # why it is not
    IDEAL = "ideal"
    RECORDED = "recorded"
    NO_GAIN = "no-gain"
    WINDOW_CLOSED = "window-closed"
    IN_USE = "in-use"
    SHARED = "shared"
    SETTLING = "settling"
    STARTING = "starting"
    BUDGET = "budget"
    PRESSURE = "pressure"
    FREE_SPACE = "free-space"
    NOT_BTRFS = "not-btrfs"
    NOT_JOURNAL = "not-journal"
    NOT_REGULAR = "not-regular"
    HARD_LINKED = "hard-linked"
    SWAPFILE = "swapfile"
    BAD_HEADER = "bad-header"
    UNREADABLE = "unreadable"
    FOREIGN_OWNER = "foreign-owner"
    VANISHED = "vanished"
    CHANGED = "changed"
    NOT_ASKED = "not-asked"
    READ_ONLY = "read-only"
    INTERRUPTED = "interrupted"
    IO_ERROR = "io-error"
    MISMATCH = "mismatch"
    REDUNDANT = "redundant"
    SNAPSHOTS = "snapshots"
    COMPRESSION = "compression"
    NOT_TAKEN = "not-taken"
    ROTATION = "rotation"
    RETENTION = "retention"
    NO_JOURNALD = "no-journald"
    TOO_MANY = "too-many"
    INTERNAL_ERROR = "internal-error"
