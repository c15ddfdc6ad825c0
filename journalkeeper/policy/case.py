# SPDX-License-Identifier: LGPL-2.1-or-later
"""One file with everything that a rule may consult to judge it, and the way in which tables of rules are asked.

A Case is complete: no rule looks anything up elsewhere. A rule returns an answer, or None if it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, NamedTuple, TypeVar

from journalkeeper.config import Config
from journalkeeper.model import Host, JournalFile, Kind, Past, Refusal, Request, Verb, Volume, Window
from journalkeeper.model.compression import Compression, parse_compression
from journalkeeper.policy.window import windows

Q = TypeVar("Q")
A = TypeVar("A")


def answers(rules: Iterable[Callable[[Q], A | None]], question: Q) -> Iterator[A]:
    """Apply each of `rules` to `question` in order, and yield every answer that is not None."""
    return (answer for rule in rules if (answer := rule(question)) is not None)


def first(rules: Iterable[Callable[[Q], A | None]], question: Q) -> A | None:
    """Apply `rules` to `question` in order, and return the first answer that is not None; None if there is none."""
    return next(answers(rules, question), None)


class Case(NamedTuple):
    """One file with its surroundings. `volume` is None if it could not be read.

    `compression` is what a rewrite of this file would use; None for an active file, which is never compressed.
    `allow_unshare` is the policy for data that a snapshot shares: the request's, else the configuration's.
    """

    file: JournalFile
    volume: Volume | None
    window: Window
    past: Past | None
    refused: Refusal | None
    now_us: int
    request: Request
    config: Config
    compression: Compression | None
    allow_unshare: Literal["auto", "yes", "no"]

    @property
    def at_rest(self) -> bool:
        """True if the file's name shows that journald has finished writing it."""
        return self.file.kind is not Kind.ACTIVE

    @property
    def other_compression(self) -> bool:
        """True if the request asks for another compression than the last rewrite of this archive used."""
        if self.request.compress is None or not self.at_rest or self.file.nocow:
            return False
        if self.past is None or self.past.verb is Verb.ROTATE:
            return False
        known = self.past.compress
        if known is not None and parse_compression(known) == self.compression:
            return False
        return self.file.compressed if self.compression is None else known is not None or not self.file.compressed


UNKNOWN: Final = Window("", open=False, closes_at_us=None, reason="unknown-instance")


class Cases:
    """Makes the Case of each file of `host` for a request. What all files share is computed once.

    `windows` has the flush window of each instance, by directory, and `volumes` each volume by st_dev.
    """

    def __init__(self, host: Host, request: Request, config: Config) -> None:
        self._host, self._request, self._config = host, request, config
        margin_us = config.window.margin_us
        self.windows = windows(host.instances, host.files, host.now_us, margin_us=margin_us, now=request.now)
        self.volumes = {volume.device: volume for volume in host.volumes}
        self._compression = parse_compression(config.defrag.compress if request.compress is None else request.compress)
        self._allow_unshare = config.defrag.allow_unshare
        if request.allow_unshare is not None:
            self._allow_unshare = "yes" if request.allow_unshare else "no"

    def find_past(self, file: JournalFile) -> Past | None:
        """Return the last action on this file's inode, or None.

        No action counts if the file was active then and is not active now. This also holds for rotations and for
        rewrites in place.
        """
        past = self._host.past.get((file.device, file.inode))
        became_archive = past is not None and past.kind is Kind.ACTIVE and file.kind is not Kind.ACTIVE
        return None if became_archive else past

    def build(self, file: JournalFile) -> Case:
        """Return the Case of one file of the host."""
        return Case(
            file=file,
            volume=self.volumes.get(file.device),
            window=self.windows.get(file.directory, UNKNOWN),
            past=self.find_past(file),
            refused=self._host.refused.get((file.device, file.inode)),
            now_us=self._host.now_us,
            request=self._request,
            config=self._config,
            compression=None if file.kind is Kind.ACTIVE else self._compression,
            allow_unshare=self._allow_unshare,
        )
