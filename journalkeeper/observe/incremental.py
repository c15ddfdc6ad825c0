# SPDX-License-Identifier: LGPL-2.1-or-later
"""Looks that cost what changed.

A file that was judged, and for which that holds until it changes, is finished. The next look leaves
it out unless its name is among those that changed. With the finished files it sees what a look at
everything would see, and becomes one where that is not sure: at first, when events were lost, once a day,
when the clock was set back, and where directories or volumes are not what they were. The one of the day finds
what inotify does not tell: a second name in another directory, the deletion of a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from journalkeeper.journald import layout
from journalkeeper.journald.names import classify
from journalkeeper.model.errors import NotBtrfsError
from journalkeeper.model.finished import NONE_FINISHED, Finished, FinishedFile, Sums
from journalkeeper.observe.changes import Names
from journalkeeper.observe.observer import Observer, Seen


class IncrementalObserver:
    """Looks by an `observer`, and remembers the last look and the finished files."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._finished = NONE_FINISHED
        self._last: Seen | None = None
        self._last_us = self._shared_us = 0

    def look(self, tops: Iterable[str], *, now_us: int, changed: Names | None) -> Seen:
        """Every journal file below `tops`, finished ones apart, where the names that `changed` since the last look
        are known; None: any may have.

        Raises: as Observer.look.
        """
        if now_us < self._last_us:
            self.judge_anew()  # what changed long ago may be young now
        last, self._last = self._last, None  # a look that fails is followed by one at everything
        observer = self._observer
        seen = None
        if last is not None and changed is not None and observer.shared_us == self._shared_us:
            seen = None if observer.opens_shared(now_us) else self._some(last, changed, now_us)
        if seen is None:
            seen = self._everything(tops, last, now_us)
        self._last, self._last_us, self._shared_us = seen, now_us, observer.shared_us
        return seen

    def finish(self, files: Iterable[FinishedFile]) -> Finished:
        """Leave these files of the last look out until they change; all that are left out from now on."""
        known = [one for one in files if self._observer.keeps(one.file)]
        self._finished = self._finished.changed(came=known)
        if self._last is not None and known:
            left = tuple(file for file in self._last.files if file.path not in self._finished)
            self._last = self._last._replace(files=left)
        return self._finished

    def judge_anew(self) -> None:
        """Leave no file out: what they were judged by is gone."""
        self._finished = NONE_FINISHED
        self._last = None

    def _some(self, last: Seen, changed: Names, now_us: int) -> Seen | None:
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
        seen = seen._replace(finished=self._finished)
        return seen if _alike(last, seen) and _complete(seen, changed) else None

    def _everything(self, tops: Iterable[str], last: Seen | None, now_us: int) -> Seen:
        """A look at everything; what did not change is finished still."""
        seen = self._observer.look(tops, now_us=now_us)
        if last is None or not _alike(last, seen):
            self.judge_anew()
        gone = [path for path, one in self._finished.items() if not self._observer.keeps(one.file)]
        self._finished = self._finished.changed(gone=gone)
        files = tuple(file for file in seen.files if file.path not in self._finished)
        return seen._replace(files=files, finished=self._finished)


def _alike(before: Seen, now: Seen) -> bool:
    """Whether directories and volumes are those of before, but for the space that is left."""

    def same(seen: Seen) -> tuple[object, object]:
        directories = {(one.directory, one.device, one.inode) for one in seen.instances}
        return directories, {(one.device, one.uuid, one.subvolume, one.options) for one in seen.volumes}

    return same(before) == same(now)


def _complete(seen: Seen, changed: Mapping[str, frozenset[str]]) -> bool:
    """Whether a look at everything sees the same: of too many files it takes some, and a top that lost all it may
    not take for a journal's directory."""
    counts = {one.directory: seen.finished.sums.get(one.directory, Sums()).files for one in seen.instances}
    for file in seen.files:
        counts[file.directory] += 1
    return all(
        count <= layout.MOST_FILES and (count or not changed.get(directory)) for directory, count in counts.items()
    )
