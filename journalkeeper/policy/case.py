# SPDX-License-Identifier: LGPL-2.1-or-later
"""One file with everything that a rule may consult to judge it.

A Case is complete: no rule looks anything up elsewhere.
"""

from __future__ import annotations

from typing import Final, Literal

from journalkeeper.config import Config
from journalkeeper.model import Host, JournalFile, Kind, Request, Verb, Volume, Window
from journalkeeper.model.units import Compression, explain_lost_level, parse_compression
from journalkeeper.policy.window import compose_margin_us, find_windows


class Case:
    """One file with its surroundings, as they were at the look of `cases`.

    `volume` is None if it could not be read, and `window` closed for an unknown instance. `past` is the last successful
    rewrite or rotation of this inode, None if the file was active then and is not now; `refused` is its last failure.
    `compression` is what a rewrite of this file would use; None for an active file, which is never compressed, and
    where `obstacle` says why a wanted compression is impossible. `lost_level` says why a level that is wanted does not
    apply. `allow_unshare` is the policy for data that a snapshot shares: the request's, else the configuration's.
    """

    def __init__(self, file: JournalFile, cases: Cases) -> None:
        host = cases.host
        self.file, self.request, self.config, self.now_us = file, cases.request, cases.config, host.now_us
        self.volume = cases.volumes.get(file.device)
        self.window = cases.windows.get(file.directory, UNKNOWN)
        past = host.past.get((file.device, file.inode))
        became_archive = past is not None and past.kind is Kind.ACTIVE and file.kind is not Kind.ACTIVE
        self.past = None if became_archive else past
        self.refused = host.refused.get((file.device, file.inode))
        allowed = cases.config.defrag.allow_unshare
        self.allow_unshare: Literal["auto", "yes", "no"] = "yes" if cases.request.allow_unshare else allowed
        asked, self.lost_level = cases.compression, ""
        self.obstacle = _find_compression_obstacle(file, self.volume) if asked else ""
        if asked is not None and asked.level is not None and (file.nocow or not host.has_levels):
            self.lost_level = explain_lost_level(asked, "a copy" if host.has_levels else "Linux before 6.15")
            asked = Compression(asked.algorithm)
        self.compression = None if file.kind is Kind.ACTIVE or self.obstacle else asked

    @property
    def is_at_rest(self) -> bool:
        """True for every kind but ACTIVE: also for ORPHANED, the name of an active file that no program writes."""
        return self.file.kind is not Kind.ACTIVE

    @property
    def needs_other_compression(self) -> bool:
        """True if the request asks for a possible compression or level that the last rewrite of this archive did not
        use; "no" counts only if the file is compressed. False for NOCOW files, and without a last rewrite.
        """
        past = self.past
        if self.request.compress is None or self.obstacle or not self.is_at_rest or self.file.nocow:
            return False
        if past is None or past.verb is Verb.ROTATE:
            return False
        if past.compress is not None and parse_compression(past.compress) == self.compression:
            return False
        return self.compression is not None or self.file.compressed


UNKNOWN: Final = Window("", open=False, closes_at_us=None, reason="unknown-instance")


class Cases:
    """The facts that the Cases of all files of `host` share, for a request.

    `windows` has the flush window of each instance, by directory, open for a request that hurries. `volumes` has each
    volume by st_dev, `below` the files by directory, if it has any. `compression` is the request's, else Compress=.
    """

    def __init__(self, host: Host, request: Request, config: Config) -> None:
        self.host, self.request, self.config = host, request, config
        margin_us = compose_margin_us(config.window.margin_us, host.slowest_piece_us)
        self.windows = find_windows(host.instances, host.files, host.now_us, margin_us=margin_us, now=request.hurries)
        self.volumes = {volume.device: volume for volume in host.volumes}
        self.compression = parse_compression(config.defrag.compress if request.compress is None else request.compress)
        self.below: dict[str, list[JournalFile]] = {}
        for file in host.files:
            self.below.setdefault(file.directory, []).append(file)

    def list_rotatable(self, directory: str) -> list[JournalFile]:
        """Return the active files of `directory`, with a problem too, but no remote ones: a rotation archives them."""
        return [one for one in self.below.get(directory, ()) if one.kind is Kind.ACTIVE and one.owner != "remote"]


def _find_compression_obstacle(file: JournalFile, volume: Volume | None) -> str:
    """Return why compression is excluded, by nodatacow or nodatasum of the mount or +m of the file (not +C), or ""."""
    # The kernel has other reasons, such as data without checksums: only the rewrite meets them.
    for option in ("nodatacow", "nodatasum"):
        if volume is not None and option in volume.options:
            return f"the volume is mounted with {option}"
    return "chattr +m or compression=none on the file or its directory" if file.refuses_compression else ""
