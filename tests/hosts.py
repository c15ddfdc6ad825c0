# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hosts, files and outcomes for tests. Every rule passes their defaults, so a test names only what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from journalkeeper.config import Config
from journalkeeper.history.store import Record
from journalkeeper.model import (
    GIB,
    MIB,
    Extents,
    Host,
    Instance,
    JournalFile,
    Kind,
    Outcome,
    Past,
    Reason,
    Request,
    Result,
    State,
    Verb,
    Volume,
)
from journalkeeper.model.run import Done, Found
from journalkeeper.model.units import MINUTE_US, SECOND_US
from journalkeeper.policy.case import Case, Cases

NOW_US = 1_700_000_000 * SECOND_US
DEVICE = 40
MACHINE = "0123456789abcdef0123456789abcdef"
NAME = MACHINE
"""The main journald's instance."""

DIRECTORY = f"/var/log/journal/{NAME}"
STATES = {
    Kind.ACTIVE: State.OFFLINE,
    Kind.ARCHIVED: State.ARCHIVED,
    Kind.UNCLEAN: State.ONLINE,
    Kind.ORPHANED: State.ONLINE,
}
ENDINGS = {
    Kind.ACTIVE: ".journal",
    Kind.ARCHIVED: "@0123456789abcdef0123456789abcdef-0000000000000001-0000000000000001.journal",
    Kind.UNCLEAN: "@0000000000000001-0000000000000001.journal~",
    Kind.ORPHANED: ".journal",
}


def extents(total: int = 1, data_bytes: int = 32 * MIB, **words: Any) -> Extents:
    """Return the extents of a plain file of 32 MiB."""
    return Extents(total=total, data_bytes=data_bytes, **words)


def file(kind: Kind = Kind.ARCHIVED, stem: str = "system", **words: Any) -> JournalFile:
    """Return a journal file that was not changed for a day."""
    return JournalFile(
        path=f"{DIRECTORY}/{stem}{ENDINGS[kind]}",
        device=DEVICE,
        inode=300,
        kind=kind,
        owner="system",
        instance=NAME,
        state=STATES[kind],
        size_bytes=32 * MIB,
        allocated_bytes=32 * MIB,
        disk_bytes=None,
        extents=extents(),
        nocow=False,
        entries=1000,
        head_time_us=NOW_US - 48 * 60 * MINUTE_US,
        tail_time_us=NOW_US - 24 * 60 * MINUTE_US,
        links=1,
        uid=0,
        mtime_ns=(NOW_US - 24 * 60 * MINUTE_US) * 1000,
        ctime_ns=(NOW_US - 24 * 60 * MINUTE_US) * 1000,
    )._replace(**words)


def volume(**words: Any) -> Volume:
    """Return a volume of one device with 10 GiB free."""
    return Volume(
        device=DEVICE,
        uuid="11111111-2222-3333-4444-555555555555",
        subvolume=5,
        data_profile="single",
        redundant=False,
        free_bytes=10 * GIB,
        unallocated_bytes=0,
        metadata_free_bytes=GIB,
        own_subvolume=False,
        options=("rw", "relatime"),
    )._replace(**words)


def instance(**words: Any) -> Instance:
    """Return the main journald with its default settings."""
    return Instance(
        name=NAME,
        directory=DIRECTORY,
        device=DEVICE,
        namespace="",
        nocow=False,
        storage="persistent",
        sync_interval_us=5 * MINUTE_US,
        system_max_use_bytes=None,
        system_keep_free_bytes=None,
        system_max_file_size_bytes=None,
        system_max_files=100,
    )._replace(**words)


def host(*files: JournalFile, **words: Any) -> Host:
    """Return a host with these files, one instance and one volume."""
    return Host(
        now_us=NOW_US, files=files, instances=(instance(),), volumes=(volume(),), past={}, written_bytes=0
    )._replace(**words)


def read_past(record: Record, volume: tuple[str, int], inodes: Iterable[int]) -> dict[int, Past]:
    """The last actions on these files of one volume, by inode."""
    return {inode: past for (_, inode), past in record.find_past({0: (volume, list(inodes))}).items()}


def past(of: JournalFile, **words: Any) -> Past:
    """Return the record of a rewrite after which the file has not changed."""
    return Past(
        verb=Verb.COMPRESS,
        when_us=NOW_US - MINUTE_US,
        size_bytes=of.size_bytes,
        mtime_ns=of.mtime_ns,
        extents=of.extents.total,
    )._replace(**words)


def known(of: JournalFile, **words: Any) -> dict[tuple[int, int], Past]:
    """Return the past of a host that has rewritten only this file."""
    return {(of.device, of.inode): past(of, **words)}


def outcome(path: str = f"{DIRECTORY}/system.journal", **words: Any) -> Outcome:
    """Return the outcome of a compression."""
    return Outcome(
        path,
        action=Verb.COMPRESS,
        result=Result.DONE,
        reason=Reason.FRAGMENTED,
        extents_before=5000,
        extents_after=40,
        disk_bytes_before=900,
        disk_bytes_after=100,
        bytes_written=1000,
        duration_s=1.25,
    )._replace(**words)


def done(inode: int = 7, one: Outcome | None = None, **words: Any) -> Done:
    """Return an outcome as the history gets it, by default that of a compression."""
    after = Found(inode, size_bytes=66, mtime_ns=55, extents=0)
    return Done(outcome() if one is None else one, after, **words)


def case(one: JournalFile, request: Request | None = None, config: Config | None = None, **words: Any) -> Case:
    """Return the Case of one file as the plan makes it; `words` are the host's."""
    return Case(one, Cases(host(one, **words), request or Request(), config or Config()))


def configured(section: str, **words: Any) -> Config:
    """Return the defaults with changed directives of one section, by field name."""
    config = Config()
    return config.model_copy(update={section: getattr(config, section).model_copy(update=words)})
