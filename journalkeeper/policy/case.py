# SPDX-License-Identifier: LGPL-2.1-or-later
"""One file with everything that a rule may consult to judge it.

A Case is complete: no rule looks anything up elsewhere.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, Literal, NamedTuple

from journalkeeper.config import Config
from journalkeeper.model import Host, JournalFile, Kind, Past, Refusal, Request, Verb, Volume, Window
from journalkeeper.model.compression import Compression, explain_lost_level, parse_compression
from journalkeeper.policy.window import windows


class Case(NamedTuple):
    """One file with its surroundings. `volume` is None if it could not be read.

    `compression` is what a rewrite of this file would use; None for an active file, which is never compressed, and
    where `obstacle` says why this file cannot be compressed. `lost_level` says why its
    level, if it was asked for one, does not apply.
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
    obstacle: str = ""
    lost_level: str = ""

    @property
    def at_rest(self) -> bool:
        """True if the file's name shows that journald has finished writing it."""
        return self.file.kind is not Kind.ACTIVE

    @property
    def other_compression(self) -> bool:
        """True if the request asks for a compression that the last rewrite of this archive did not use, and that is
        possible.
        """
        past = self.past
        if self.request.compress is None or self.obstacle or not self.at_rest or self.file.nocow:
            return False
        if past is None or past.verb is Verb.ROTATE:
            return False
        if past.compress is not None and parse_compression(past.compress) == self.compression:
            return False
        return self.compression is not None or self.file.compressed


UNKNOWN: Final = Window("", open=False, closes_at_us=None, reason="unknown-instance")


class Cases:
    """Makes the Case of each file of `host` for a request. Facts that all files share are computed once.

    `windows` has the flush window of each instance, by directory, and `volumes` each volume by st_dev.
    """

    def __init__(self, host: Host, request: Request, config: Config) -> None:
        self.host, self.request, self.config = host, request, config
        margin_us = config.window.margin_us
        self.windows = windows(host.instances, host.files, host.now_us, margin_us=margin_us, now=request.hurries)
        self.volumes = {volume.device: volume for volume in host.volumes}
        self._compression = parse_compression(config.defrag.compress if request.compress is None else request.compress)

    @cached_property
    def rotatable(self) -> dict[str, list[JournalFile]]:
        """The active files that a rotation archives, by directory, including files with a problem."""
        return {
            directory: [file for file in files if file.kind is Kind.ACTIVE and file.owner != "remote"]
            for directory, files in self.below.items()
        }

    @cached_property
    def below(self) -> dict[str, list[JournalFile]]:
        """The files of the host, by directory. A directory without files has no key."""
        below: dict[str, list[JournalFile]] = {}
        for file in self.host.files:
            below.setdefault(file.directory, []).append(file)
        return below

    def find_past(self, file: JournalFile) -> Past | None:
        """Return the last successful rewrite or rotation of this file's inode, or None.

        Return None also if the file was active at that action and is not active now.
        """
        past = self.host.past.get((file.device, file.inode))
        became_archive = past is not None and past.kind is Kind.ACTIVE and file.kind is not Kind.ACTIVE
        return None if became_archive else past

    def build(self, file: JournalFile) -> Case:
        """Return the Case of `file`: the facts that the rules need."""
        volume = self.volumes.get(file.device)
        asked, lost_level = self._compression, ""
        obstacle = _find_compression_obstacle(file, volume) if asked else ""
        if asked is not None and asked.level is not None and (file.nocow or not self.host.has_levels):
            lost_level = explain_lost_level(asked, "a copy" if self.host.has_levels else "Linux before 6.15")
            asked = Compression(asked.algorithm)
        return Case(
            file=file,
            volume=volume,
            window=self.windows.get(file.directory, UNKNOWN),
            past=self.find_past(file),
            refused=self.host.refused.get((file.device, file.inode)),
            now_us=self.host.now_us,
            request=self.request,
            config=self.config,
            compression=None if file.kind is Kind.ACTIVE or obstacle else asked,
            allow_unshare="yes" if self.request.allow_unshare else self.config.defrag.allow_unshare,
            obstacle=obstacle,
            lost_level=lost_level,
        )


def _find_compression_obstacle(file: JournalFile, volume: Volume | None) -> str:
    """Return what excludes the compression of this file's data, in words for a message; "" if nothing does.

    `inode.can_compress` asks the kernel whether a file lacks checksums for another reason.
    """
    for option in ("nodatacow", "nodatasum"):
        if volume is not None and option in volume.options:
            return f"the volume is mounted with {option}"
    return "chattr +m or compression=none on the file or its directory" if file.refuses_compression else ""
