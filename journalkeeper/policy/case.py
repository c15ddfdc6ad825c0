# SPDX-License-Identifier: LGPL-2.1-or-later
"""One file with everything that a rule may consult to judge it, and the way in which tables of rules are asked.

A Case is complete: no rule looks anything up elsewhere. A rule returns an answer, or None if it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, TypeVar

from journalkeeper.config import Config
from journalkeeper.model import Host, Instance, JournalFile, Kind, Past, Refusal, Request, Verb, Volume, Window
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
    """One file with its surroundings. `volume` and `instance` are None if they could not be read."""

    file: JournalFile
    volume: Volume | None
    instance: Instance | None
    window: Window
    past: Past | None
    refused: Refusal | None
    now_us: int
    request: Request
    config: Config

    @property
    def at_rest(self) -> bool:
        """True if the file's name shows that journald has finished writing it."""
        return self.file.kind is not Kind.ACTIVE

    @property
    def compression(self) -> Compression | None:
        """The compression that a rewrite would use; None for an active file, which is never compressed."""
        if not self.at_rest:
            return None
        asked = self.request.compress
        return parse_compression(self.config.defrag.compress if asked is None else asked)

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

    @property
    def allow_unshare(self) -> Literal["auto", "yes", "no"]:
        """The AllowUnshare= policy for data that a snapshot shares: the request's, else the configuration's."""
        if self.request.allow_unshare is None:
            return self.config.defrag.allow_unshare
        return "yes" if self.request.allow_unshare else "no"


def cases(host: Host, request: Request, config: Config) -> tuple[tuple[Window, ...], tuple[Case, ...]]:
    """Return the flush window of each instance of `host`, and the Case of each file, in the order of `host`."""
    volumes = {volume.device: volume for volume in host.volumes}
    instances = {instance.directory: instance for instance in host.instances}
    by_directory = windows(host.instances, host.files, host.now_us, margin_us=config.window.margin_us, now=request.now)
    unknown = Window("", open=False, closes_at_us=None, reason="unknown-instance")
    return tuple(by_directory.values()), tuple(
        Case(
            file=file,
            volume=volumes.get(file.device),
            instance=instances.get(file.directory),
            window=by_directory.get(file.directory, unknown),
            past=_past(host, file),
            refused=host.refused.get((file.device, file.inode)),
            now_us=host.now_us,
            request=request,
            config=config,
        )
        for file in host.files
    )


def _past(host: Host, file: JournalFile) -> Past | None:
    """Return the last action on this file, or None.

    A rewrite does not count if the file was active then and is an archive now.
    """
    past = host.past.get((file.device, file.inode))
    became_archive = past is not None and past.kind is Kind.ACTIVE and file.kind is not Kind.ACTIVE
    return None if became_archive else past
