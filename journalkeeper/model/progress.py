# SPDX-License-Identifier: LGPL-2.1-or-later
"""The progress of a run.

It is reported at the start of each file and after every piece; the receiver decides how often to show it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

from journalkeeper.model import Action
from journalkeeper.model.schema import Count, Key


class Progress(NamedTuple):
    """The progress of a run: file `number` (from 1) of `total`, and bytes over the whole run."""

    number: Annotated[Count, Key(bus="FileNumber", signature="u")]
    """The number of that file, from 1."""
    total: Annotated[Count, Key(bus="FileTotal", signature="u")]
    """The number of files to rewrite."""
    path: Annotated[str, Key(bus="File")]
    """The file that is being rewritten, or empty."""
    done_bytes: Annotated[Count, Key(bus="BytesDone")]
    """Bytes done in all files."""
    total_bytes: Annotated[Count, Key(bus="BytesTotal")]
    """Bytes to do in all files."""

    @property
    def fraction(self) -> float:
        """The share of the bytes that is done, 0 to 1; 0 if there are no bytes to do."""
        return min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else 0.0


NONE_YET: Final = Progress(0, 0, "", 0, 0)
"""The progress of a run that has not begun."""


class Meter:
    """A counter of bytes over a whole run. It calls `tell` with the Progress `now` at each step.

    A file counts at most its planned bytes. When the work on the next file begins, a file that was skipped or ended
    early counts in full.
    """

    def __init__(self, actions: tuple[Action, ...], tell: Callable[[Progress], None]) -> None:
        self._tell = tell
        total_bytes = sum(part.length for action in actions for part in action.ranges)
        self.now = Progress(0, sum(bool(action.ranges) for action in actions), "", 0, total_bytes)
        self._end_bytes = 0
        """The number of bytes when the present file is done."""

    def begin(self, action: Action) -> None:
        """Report that the work on the file of `action` begins. All planned bytes of earlier files now count as done.

        Do nothing for an action without ranges, such as an action on a directory.
        """
        if not action.ranges:
            return
        self.now = self.now._replace(number=self.now.number + 1, path=action.path, done_bytes=self._end_bytes)
        self._end_bytes += sum(part.length for part in action.ranges)
        self._tell(self.now)

    def add(self, length: int) -> None:
        """Add `length` bytes to the done bytes of the present file, and call `tell` with the new Progress.

        A file never counts more than its planned bytes, even if some bytes are rewritten a second time. `tell` is
        called at every call, even if the sum stays the same.
        """
        self.now = self.now._replace(done_bytes=min(self.now.done_bytes + length, self._end_bytes))
        self._tell(self.now)
