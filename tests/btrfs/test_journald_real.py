# SPDX-License-Identifier: LGPL-2.1-or-later
"""Real files of a real journald, its own tool's view of them, and the settings it says it runs by."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from journalkeeper.config import files
from journalkeeper.journald import conf, journal_file, layout
from journalkeeper.journald.layout import classify, read_machine_id
from journalkeeper.model import Header, Kind, State
from journalkeeper.model.units import format_size
from journalkeeper.probe import bed as beds
from journalkeeper.probe.bed import Bed, PrivateJournald
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.patience import eventually
from tests.volumes import kill

pytestmark = pytest.mark.root


def journalctl_header(file: Path) -> Header:
    """What journalctl says of a file's header."""
    said = subprocess.run(["journalctl", "--header", "--file", file], capture_output=True, text=True, check=True).stdout
    fields = dict(re.findall(r"^([^:\n]+): *(.*)$", said, re.MULTILINE))

    def in_brackets(name: str) -> int:
        found = re.search(r"\(([0-9a-f]+)\)$", fields[name])
        assert found is not None
        return int(found[1], 16)

    return Header(
        state=State(fields["State"].lower()),
        entries=int(fields["Entry objects"]),
        head_time_us=in_brackets("Head realtime timestamp"),
        tail_time_us=in_brackets("Tail realtime timestamp"),
    )


def read(file: Path) -> Header:
    with file.open("rb") as opened:
        found = journal_file.read_header(opened.fileno(), file.stat().st_size)
        assert journal_file.read_state(opened.fileno()) is found.state
        return found._replace(full_bytes=0)  # test_history_loss compares it with the file that journald ends


def is_written_anew(file: Path, inode: int) -> bool:
    """Return whether a file with entries and another inode has replaced the one with `inode`."""
    try:
        return file.stat().st_ino != inode and read(file).entries > 0
    except (FileNotFoundError, journal_file.HeaderError, AssertionError):
        return False


def test_headers_and_names_agree_with_journalctl(bed: Bed) -> None:
    journald = bed.journald
    journald.age(3)
    archived = journald.rotate()
    journald.age(1)
    journald.log("not synced")
    assert eventually(lambda: journald.read_state() == 1)
    kill(journald)
    unsynced, inode = read(journald.active), journald.active.stat().st_ino
    assert unsynced.state is State.ONLINE
    assert unsynced == journalctl_header(journald.active)
    journald.start()
    assert eventually(lambda: is_written_anew(journald.active, inode))

    def is_synced() -> bool:
        journald.sync()
        return read(journald.active).state is State.OFFLINE

    assert eventually(is_synced)  # a message of journald itself can follow the sync

    (directory,) = layout.find_directories(os.fspath(bed.journald.directory))
    assert (directory.path, directory.machine_id) == (os.fspath(journald.journal), journald.journal.name)
    names = layout.list_directory(directory.path).journals
    found = {named.kind: name for name in names if (named := classify(name))}
    assert found == {Kind.ACTIVE: "system.journal", Kind.ARCHIVED: archived.name, Kind.UNCLEAN: found[Kind.UNCLEAN]}
    states = {Kind.ACTIVE: State.OFFLINE, Kind.ARCHIVED: State.ARCHIVED, Kind.UNCLEAN: State.ONLINE}
    for kind, name in found.items():
        head = read(journald.journal / name)
        assert head == journalctl_header(journald.journal / name)
        assert head.state is states[kind]
        assert head.entries > 0

    named, head = classify(archived.name), read(archived)
    assert named is not None
    assert named.realtime_us == head.head_time_us


class Case(NamedTuple):
    """Lines for journald's drop-in, shell commands that write more of its files, and a namespace."""

    settings: tuple[str, ...] = ()
    before: str = ":"
    namespace: str = ""


CASES = {
    "limits": Case(("SystemMaxUse=300M", "SystemMaxFileSize=1.5M", "SystemKeepFree=1M 512K", "SystemMaxFiles=0x10")),
    "unlimited": Case(("SystemMaxUse=0", "SystemMaxFiles=0")),
    "ignored": Case(("SystemMaxUse=300M", "SystemMaxUse=", "SystemMaxUse=10%", "SystemMaxFiles=9", "SystemMaxFiles=x")),
    "nonsense": Case(("nonsense", "=1", "[Other]", "SystemMaxFiles=1", "[Journal]", "SystemMaxUse=1\\", "50M")),
    "a bad header stops it": Case(
        ("SystemMaxUse=300M", "[bad", "SystemMaxFiles=7"),
        "printf '[Journal]\\nSystemMaxFiles=9\\n' >/run/systemd/journald.conf.d/z.conf",
    ),
    "a directory stops it": Case(
        ("SystemMaxUse=300M",),
        "mkdir /run/systemd/journald.conf.d/m.conf;"
        "printf '[Journal]\\nSystemMaxFiles=9\\n' >/run/systemd/journald.conf.d/z.conf;"
        "printf '[Journal]\\nSystemMaxFiles=8\\n' >/run/systemd/journald.conf.d/a.conf",
    ),
    "a namespace": Case(
        ("SystemMaxUse=300M",),
        "mkdir /run/systemd/journald@lab.conf.d;"
        "printf '[Journal]\\nSystemMaxFiles=9\\n' >/run/systemd/journald@lab.conf.d/z.conf",
        "lab",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_settings_are_what_journald_says_it_runs_by(
    shared_volume: ScratchVolume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case, log = CASES[name], tmp_path / "log"
    words = "SYSTEMD_LOG_LEVEL=debug"
    if case.namespace:  # journald takes a namespace as its argument, and these for the places that the lab expects
        words += f" RUNTIME_DIRECTORY=/run/systemd/journal LOGS_DIRECTORY=/var/log/journal/{read_machine_id()}"
    script = f"#!/bin/sh\n{case.before}\nexec env {words} {beds.JOURNALD} {case.namespace} 2>{log}"
    program = tmp_path / "program"
    program.write_text(script)
    program.chmod(0o700)
    monkeypatch.setattr(beds, "JOURNALD", str(program))
    with PrivateJournald(shared_volume.mountpoint / "settings", settings=case.settings) as journald:
        name = f"journald@{case.namespace}.conf" if case.namespace else "journald.conf"
        rows = files.read_assignments(name, root=f"/proc/{journald.pid}/root")
        given = conf.from_assignments(rows, case.namespace)
        # the sockets are there before the journal is opened: end it too early and it never says its limits
        assert eventually(lambda: limits_said(log) is not None)
    found = conf.fill_defaults(given, total_bytes(shared_volume.mountpoint))
    limits = (found.system_max_use_bytes, found.system_max_file_size_bytes, found.system_keep_free_bytes)
    ours = (*(format_size(limit or 0) for limit in limits), str(found.system_max_files))
    assert limits_said(log) == tuple(map(without_zero, ours))


def limits_said(log: Path) -> tuple[str, ...] | None:
    """The limits in journald's debug messages: use, file size, kept free, files."""
    text = log.read_text(errors="replace")
    said = re.search(r"max_use=(\S+) max_size=(\S+) .*keep_free=(\S+) n_max_files=(\d+)\n", text)
    return None if said is None else tuple(map(without_zero, said.groups()))


def without_zero(size: str) -> str:
    """252 writes 300.0M, 257 writes 300M."""
    return size.replace(".0", "")


def total_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_frsize * status.f_blocks
