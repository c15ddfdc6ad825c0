# SPDX-License-Identifier: LGPL-2.1-or-later
"""Looks that cost what changed.

A file that was judged, and for which that holds until it changes, is finished. The next look leaves
it out unless its name is among those that changed. With the finished files it sees what a look at
everything would see, and becomes one where that is not sure: at first, when events were lost, once a day,
when the clock was set back, and where directories or volumes are not what they were. The one of the day finds
what inotify does not tell: a second name in another directory, the deletion of a snapshot.

Files are judged as soon as their directory was looked at: of 100,000 only those of one directory, and what is not
finished, are in memory with all that a plan makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from journalkeeper.journald import layout
from journalkeeper.journald.names import classify
from journalkeeper.model import JournalFile
from journalkeeper.model.errors import NotBtrfsError
from journalkeeper.model.finished import NONE_FINISHED, FinishedFile, Sums
from journalkeeper.observe.changes import Names
from journalkeeper.observe.observer import Observer, Seen

Judge = Callable[[Seen], Iterable[FinishedFile]]
"""Says which of the files that were seen need no new judgement until they change."""


class IncrementalObserver:
    """Looks by an `observer`, and remembers the last look and the finished files."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._finished = NONE_FINISHED
        self._last: Seen | None = None
        self._last_us = self._shared_us = 0

    def look(self, tops: Iterable[str], *, now_us: int, changed: Names | None, judge: Judge) -> Seen:
        """Every journal file below `tops`, those apart that are finished, as `judge` says or said.

        `changed` are the names that changed since the last look; None: any may have.
        Raises: as Observer.look; what `judge` raises.
        """
        if now_us < self._last_us:
            self.judge_anew()  # what changed long ago may be young now
        last, self._last = self._last, None  # a look that fails is followed by one at everything
        observer = self._observer
        seen = None
        if last is not None and changed is not None and observer.shared_us == self._shared_us:
            seen = None if observer.opens_shared(now_us) else self._some(last, changed, now_us, judge)
        if seen is None:
            seen = self._everything(tops, last, now_us, judge)
        self._last, self._last_us, self._shared_us = seen, now_us, observer.shared_us
        return seen

    def judge_anew(self) -> None:
        """Leave no file out: what they were judged by is gone."""
        self._finished = NONE_FINISHED
        self._last = None

    def _some(self, last: Seen, changed: Names, now_us: int, judge: Judge) -> Seen | None:
        """What is not finished, and the names that `changed`; None where only a look at everything can tell."""
        names: dict[str, set[str]] = {one.directory: set(changed.get(one.directory, ())) for one in last.instances}
        if changed.keys() - names.keys():
            return None
        for path in (*(file.path for file in last.files), *last.leftovers):
            directory, _, name = path.rpartition("/")
            if directory not in names or (classify(name) is None and path not in last.leftovers):
                return None  # a directory that could not be looked into, or not at all of it
            names[directory].add(name)
        self._finished = self._finished.changed(
            gone=[f"{directory}/{name}" for directory, some in changed.items() for name in some]
        )
        try:
            seen = self._observer.look_into(names, now_us=now_us)
        except (OSError, NotBtrfsError):
            return None
        if _places(seen) != _places(last):
            return None
        files = self._unfinished(seen, judge)
        seen = seen._replace(files=files, finished=self._finished)
        return seen if _complete(seen, changed) else None

    def _everything(self, tops: Iterable[str], last: Seen | None, now_us: int, judge: Judge) -> Seen:
        """A look at everything; what did not change, in a directory that did not, is finished still."""
        if last is None:
            self.judge_anew()
        known = set() if last is None else _places(last)

        def sift(seen: Seen) -> tuple[JournalFile, ...]:
            if _places(seen) <= known:
                seen = seen._replace(files=tuple(file for file in seen.files if not self._has(file)))
            return self._unfinished(seen, judge)

        seen = self._observer.look(tops, now_us=now_us, sift=sift)
        gone = [path for path, one in self._finished.items() if not self._observer.keeps(one.file)]
        self._finished = self._finished.changed(gone=gone)
        return seen._replace(finished=self._finished)

    def _has(self, file: JournalFile) -> bool:
        """Whether this row is of a finished file, and not one that was made since."""
        known = self._finished.get(file.path)
        return known is not None and known.file is file

    def _unfinished(self, seen: Seen, judge: Judge) -> tuple[JournalFile, ...]:
        """The files of `seen` that `judge` does not finish."""
        if not seen.files:
            return ()
        came = [one for one in judge(seen) if self._observer.keeps(one.file)]
        self._finished = self._finished.changed(gone=[file.path for file in seen.files], came=came)
        return tuple(file for file in seen.files if file.path not in self._finished)


def _places(seen: Seen) -> set[tuple[object, ...]]:
    """Which directories these are, and on which volumes, but for the space that is left."""
    volumes = {one.device: (one.uuid, one.subvolume, one.options) for one in seen.volumes}
    return {(one.directory, one.device, one.inode, volumes[one.device]) for one in seen.instances}


def _complete(seen: Seen, changed: Mapping[str, frozenset[str]]) -> bool:
    """Whether a look at everything sees the same: of too many files it takes some, and a top that lost all it may
    not take for a journal's directory."""
    counts = {one.directory: seen.finished.sums.get(one.directory, Sums()).files for one in seen.instances}
    for file in seen.files:
        counts[file.directory] += 1
    return all(
        count <= layout.MOST_FILES and (count or not changed.get(directory)) for directory, count in counts.items()
    )
