# SPDX-License-Identifier: LGPL-2.1-or-later
"""Units, and the fixed words for kinds of files, actions, results and reasons."""

from enum import StrEnum
from typing import Self

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

MAX_FILE_BYTES = 4 * GIB
"""The limit of journald's compact format (JOURNAL_COMPACT_SIZE_MAX); its default for SystemMaxFileSize= is 128 MiB. A
larger file is left alone, so that a file has at most a million extents.
"""


class Kind(StrEnum):
    """The kind of a journal file by its name; `orphaned` has the name of an active file, and no program writes it."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    UNCLEAN = "unclean"
    ORPHANED = "orphaned"


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
    """Why an action is done or not: a short fixed word, and a sentence that is listed in journalkeeper-reasons(7).

    The sentence of a reason not to act also describes what ends it.
    """

    sentence: str

    def __new__(cls, word: str, sentence: str) -> Self:
        """Return the reason `word`, with its sentence."""
        reason = str.__new__(cls, word)
        reason._value_ = word
        reason.sentence = sentence
        return reason

    # why it is done
    FRAGMENTED = "fragmented", "The file has far more extents than its data needs, and each costs a cold reader a seek."
    UNCOMPRESSED = "uncompressed", "The archive is stored plain and will be smaller on disk once it is compressed."
    PINNED = "pinned", "The file occupies disk space with old data that it no longer contains."
    NOCOW_ARCHIVE = "nocow-archive", "The archive is NOCOW: a copy without NOCOW can have checksums and compression."
    NO_REDUNDANCY = "no-redundancy", "The volume has one copy of its data, so +C costs no repair and avoids fragments."
    CONFIGURED = "configured", "The configuration requires it."
    BORN_DATACOW = "born-datacow", "The file is older than +C of its directory; after a rotation the new one is NOCOW."
    CHEAPER = "cheaper", "A rotation costs less than slow reads or repeated rewrites of the active file."
    ASKED = "asked", "The archive has another compression than --compress= requests."
    # why it is not
    IDEAL = "ideal", "The file has about as few extents as its data needs; it is judged again when it has more."
    RECORDED = "recorded", "The file was already rewritten: an archive is rewritten once, unless it changes."
    NO_GAIN = "no-gain", "A rewrite would save too little, or has saved too little; see MinExtents=, ExtentsPerMiB=."
    WINDOW_CLOSED = "window-closed", "Work on the active file waits for journald's next flush; --now does not wait."
    IN_USE = "in-use", "journald or another program still writes to the file, or it serves as a loop device."
    SHARED = "shared", "Another file, as in a snapshot, shares the data; --allow-unshare permits storing it twice."
    SETTLING = "settling", "The file changed less than SettleSec= ago; journald may still use it. --now does not wait."
    STARTING = "starting", "The service has just started and sets +C only after SettleSec=; --now does not wait."
    BUDGET = "budget", "BytesPerDay= or RotationsPerDay= does not allow it yet; --now ignores both limits."
    TOO_YOUNG = "too-young", "RotationsPerDay= spreads rotations over the day: this file began too recently."
    PRESSURE = "pressure", "Other programs keep the disk busy; the next try follows when they stop."
    BATTERY = "battery", "The service rests on battery (OnBattery=no); `journalkeeper defrag` does not wait."
    QUIET_HOURS = "quiet-hours", "The service rests in these hours (QuietHours=); `journalkeeper defrag` does not wait."
    FREE_SPACE = "free-space", "The volume has too little free space for the rewrite, because KeepFree= must remain."
    QUOTA = "quota", "A quota group of btrfs is full; `btrfs qgroup show` shows it, `btrfs qgroup limit` raises it."
    NOT_BTRFS = "not-btrfs", "The file is not on btrfs; journalkeeper works only on btrfs."
    NOT_JOURNAL = "not-journal", "The file does not begin as a journal does, or its name, size or mtime is impossible."
    NOT_WATCHED = "not-watched", "The service works only in Directories= and follows no link; root's `defrag -D` can."
    NOT_REGULAR = "not-regular", "The path is a symbolic link, a directory, a FIFO or a device, and is never followed."
    HARD_LINKED = "hard-linked", "The file has more than one name, and a rewritten copy can replace only one."
    SWAPFILE = "swapfile", "The file is in use as swap space and the kernel refuses to move it."
    BAD_HEADER = "bad-header", "The file's header contradicts the file; journalctl --verify --file=PATH shows details."
    UNKNOWN_FORMAT = "unknown-format", "The file has a format that this version does not know, and is left alone."
    UNREADABLE = "unreadable", "The file could not be opened or read with the rights that this process has."
    FOREIGN_OWNER = "foreign-owner", "Another user owns the file; for remote journals see journalkeeper.service(8)."
    VANISHED = "vanished", "The file is gone: journald renamed or vacuumed it, or it was never there."
    CHANGED = "changed", "The file changed after the plan was made; the next plan judges it again."
    NOT_ASKED = "not-asked", "The request does not include this kind of file or this path."
    READ_ONLY = "read-only", "The filesystem, the subvolume or the file is read-only or immutable."
    INTERRUPTED = "interrupted", "The run ended before the file was finished. It is intact; the next run continues."
    NOT_BEGUN = "not-begun", "The run ended before the action began; the next run begins with it."
    IO_ERROR = "io-error", "The kernel could not read or write the disk (EIO, EUCLEAN); see dmesg."
    REFUSED = "refused", "The kernel refused a step of the work; the message names the step and the error."
    MISMATCH = "mismatch", "The copy did not equal the original, so the original is kept, at least until it changes."
    REDUNDANT = "redundant", "Only checksums show which copy is good, and +C would end them; Nocow=yes sets it anyway."
    SNAPSHOTS = "snapshots", "A snapshot makes btrfs copy NOCOW data on write: +C gains little; only Nocow=yes sets it."
    COMPRESSION = "compression", "The directory asks for compression (chattr +c or a property), which excludes NOCOW."
    NOT_TAKEN = "not-taken", "NOCOW was set without effect: the kernel ignored it, or a new file did not inherit it."
    ROTATION = "rotation", "journald is asked to rotate, which makes the file an archive."
    RETENTION = "retention", "A rotation costs more history than HistoryLoss= allows; a larger SystemMaxUse= helps."
    NO_JOURNALD = "no-journald", "The directory has no journald that accepts requests, or journald did not rotate."
    TOO_MANY = "too-many", "The directory has too many files: remote and old ones are left out until some are removed."
    INTERNAL_ERROR = "internal-error", "Bug in journalkeeper, please report it (see the log). The file is left alone."
