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


def cases(host: Host, request: Request, config: Config) -> tuple[dict[str, Window], dict[str, list[Case]]]:
    """Return the flush window of each instance of `host`, and the Cases of its files, both by directory."""
    found = windows(host.instances, host.files, host.now_us, margin_us=config.window.margin_us, now=request.now)
    volumes = {volume.device: volume for volume in host.volumes}
    compression = parse_compression(config.defrag.compress if request.compress is None else request.compress)
    allow_unshare = config.defrag.allow_unshare
    if request.allow_unshare is not None:
        allow_unshare = "yes" if request.allow_unshare else "no"
    below: dict[str, list[Case]] = {}
    for file in host.files:
        directory, key = file.directory, (file.device, file.inode)
        past, at_rest = host.past.get(key), file.kind is not Kind.ACTIVE
        if past is not None and past.kind is Kind.ACTIVE and at_rest:
            past = None  # a rewrite does not count if the file was active then and is an archive now
        below.setdefault(directory, []).append(
            Case(
                file,
                volumes.get(file.device),
                found.get(directory, UNKNOWN),
                past,
                host.refused.get(key),
                host.now_us,
                request,
                config,
                compression if at_rest else None,
                allow_unshare,
            )
        )
    return found, below
