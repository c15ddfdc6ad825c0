# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that need no new judgement until they change.

Such a file is neither looked at nor judged with every event: what was seen of it and why it is left alone
is kept here, and its numbers are in the sums of its directory. A Finished never changes: a new one shares
with it all pieces in which nothing is different, so making it, and finding what differs between two, costs
what changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import add, sub
from typing import Final, NamedTuple

from journalkeeper.model.files import JournalFile
from journalkeeper.model.plans import Skip
from journalkeeper.model.words import Reason

PIECES: Final = 1024
"""Of 100,000 files each piece has some 100: to copy one takes a microsecond."""


class FinishedFile(NamedTuple):
    """A file, why it is left alone, and whether it counts as fragmented."""

    file: JournalFile
    skip: Skip
    fragmented: bool


class Sums(NamedTuple):
    """The numbers of some files that can be judged; `unmeasured` are those of them whose disk bytes are not known."""

    files: int = 0
    fragmented: int = 0
    extents: int = 0
    ideal_extents: int = 0
    size_bytes: int = 0
    allocated_bytes: int = 0
    shared_bytes: int = 0
    disk_bytes: int = 0
    unmeasured: int = 0

    @classmethod
    def of(cls, files: Iterable[JournalFile]) -> Sums:
        """The numbers of these files; none of them counts as fragmented."""
        return reduce(cls.plus, (sums(file, fragmented=False) for file in files), cls())

    @property
    def known_disk_bytes(self) -> int | None:
        """What the files occupy on the disk, if every file's is known."""
        return self.disk_bytes if self.files and not self.unmeasured else None

    def plus(self, other: Sums) -> Sums:
        """The numbers of both."""
        return Sums(*map(add, self, other))

    def minus(self, other: Sums) -> Sums:
        """The numbers without those of `other`."""
        return Sums(*map(sub, self, other))


def sums(file: JournalFile, *, fragmented: bool) -> Sums:
    """The numbers of one file."""
    return Sums(
        files=1,
        fragmented=int(fragmented),
        extents=file.extents.total,
        ideal_extents=file.ideal_extents,
        size_bytes=file.size_bytes,
        allocated_bytes=file.allocated_bytes,
        shared_bytes=file.extents.shared_bytes,
        disk_bytes=file.disk_bytes or 0,
        unmeasured=int(file.disk_bytes is None),
    )


class Finished(Mapping[str, FinishedFile]):
    """Finished files by path, with the sums of each directory and the number of files for each reason."""

    def __init__(self) -> None:
        self._pieces: tuple[Mapping[str, FinishedFile], ...] = ({},) * PIECES
        self.sums: Mapping[str, Sums] = {}
        self.reasons: Mapping[Reason, int] = {}

    def __getitem__(self, path: str) -> FinishedFile:
        return self._pieces[hash(path) % PIECES][path]

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            yield from piece

    def __len__(self) -> int:
        return self.total.files

    @property
    def total(self) -> Sums:
        """The sums of all directories."""
        total = Sums()
        for one in self.sums.values():
            total = total.plus(one)
        return total

    def changed(self, *, gone: Iterable[str] = (), came: Iterable[FinishedFile] = ()) -> Finished:
        """The same without the paths `gone`, of which some may not be here, and then with the files that `came`."""
        changes: dict[str, FinishedFile | None] = {path: None for path in gone if path in self}
        changes |= {one.file.path: one for one in came}
        if not changes:
            return self
        pieces, totals, reasons = list(self._pieces), dict(self.sums), Counter(self.reasons)
        copied: dict[int, dict[str, FinishedFile]] = {}
        for path, new in changes.items():
            number, directory = hash(path) % PIECES, path.rpartition("/")[0]
            if number not in copied:
                copied[number] = dict(pieces[number])
            piece = copied[number]
            old = piece.pop(path, None)
            if old is not None:
                totals[directory] = totals[directory].minus(sums(old.file, fragmented=old.fragmented))
                reasons[old.skip.reason] -= 1
            if new is not None:
                piece[path] = new
                totals[directory] = totals.get(directory, Sums()).plus(sums(new.file, fragmented=new.fragmented))
                reasons[new.skip.reason] += 1
        for number, piece in copied.items():
            pieces[number] = piece
        made = Finished()
        made._pieces = tuple(pieces)
        made.sums = {directory: one for directory, one in totals.items() if one.files}
        made.reasons = +reasons
        return made

    def differing(self, other: Finished) -> set[str]:
        """The paths of which the two do not have the very same."""
        return {
            path
            for mine, theirs in zip(self._pieces, other._pieces, strict=True)
            if mine is not theirs
            for path in mine.keys() | theirs.keys()
            if mine.get(path) is not theirs.get(path)
        }


NONE_FINISHED: Final = Finished()
