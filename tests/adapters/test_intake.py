# SPDX-License-Identifier: LGPL-2.1-or-later
"""The intake delay, from files that other processes write, truncate, replace or damage during the look."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from journalkeeper.journald import journal_file, layout
from journalkeeper.journald.journal_file import Entry
from journalkeeper.model import Kind, Reason
from journalkeeper.observe.load import KEPT, IntakeMeter, list_journald_files
from tests import hosts
from tests.journal_files import journal

NOW_US = 1_700_000_000_000_000
BOOT = "0" * 32

Row = tuple[int, int, bytes | None]


def row(number: int, wait_us: int = 100) -> Row:
    """Return an entry that waited for `wait_us`."""
    return number, NOW_US + number, b"%d" % (NOW_US + number - wait_us)


def newest(data: bytes, after_seqnum: int = 0, most: int = 100) -> list[Entry]:
    with open(os.memfd_create("journal"), "r+b", buffering=0) as file:
        file.write(data)
        return journal_file.read_newest(file.fileno(), after_seqnum, most)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("count", [0, 4, 5, 100])
def test_the_newest_entries_come_first(count: int, compact: bool) -> None:
    data = journal([row(number) for number in range(1, count + 1)], compact=compact)
    wanted = [Entry(n, NOW_US + n, NOW_US + n - 100, NOW_US + n, BOOT) for n in range(count, 0, -1)]
    assert newest(data) == wanted
    assert newest(data, most=3) == wanted[:3]
    assert newest(data, after_seqnum=2) == wanted[: max(0, count - 2)]


@pytest.mark.parametrize("source", [None, b"", b"-5", b"1e9", b"7 ", b"9" * 21, "\u0663".encode()])
def test_a_damaged_time_of_sending_is_none(source: bytes | None) -> None:
    assert newest(journal([(1, 5, source)])) == [Entry(1, 5, None, 5, BOOT)]


@pytest.mark.parametrize(("empty", "found"), [(journal_file.MOST_ARRAYS - 1, 1), (journal_file.MOST_ARRAYS, 0)])
def test_a_chain_is_followed_up_to_its_longest_length(empty: int, found: int) -> None:
    data = bytearray(journal([row(1)]))
    (first,) = struct.unpack_from("<Q", data, 176)
    array = journal_file.ARRAY
    filled = data[first : first + array.size + 8]
    struct.pack_into("<Q", data, 176, len(data))
    for _ in range(empty):
        data += journal_file.ARRAY.pack(
            journal_file.ENTRY_ARRAY, 0, journal_file.ARRAY.size, len(data) + journal_file.ARRAY.size
        )
    assert len(newest(bytes(data + filled))) == found


def test_only_entries_since_the_last_call_count(tmp_path: Path) -> None:
    active, rows = tmp_path / "system.journal", [row(1, 9_000_000)]
    active.write_bytes(journal(rows))
    intake, paths = IntakeMeter(), [f"{active}", f"{tmp_path}/none.journal"]
    assert intake.add_new_delays(paths) is None
    rows += [row(2, 300), row(3, -5), (4, NOW_US + 4, None)]
    active.write_bytes(journal(rows))
    assert intake.add_new_delays(paths) == 300
    assert intake.add_new_delays(paths) is None


def test_a_step_of_the_clock_is_no_wait(tmp_path: Path) -> None:
    """The message was sent before the clock was set forward by an hour, and received after it."""
    active, rows = tmp_path / "system.journal", [row(1), row(2)]
    active.write_bytes(journal(rows))
    intake = IntakeMeter()
    intake.add_new_delays([f"{active}"])
    data = journal([*rows, row(3, 3_600_000_000)])
    up = struct.pack("<Q", NOW_US + 3)
    at = data.rindex(up)
    active.write_bytes(data[:at] + struct.pack("<Q", NOW_US + 3 - 3_600_000_000) + data[at + 8 :])
    assert intake.add_new_delays([f"{active}"]) is None


def test_after_a_rotation_all_of_the_new_file_is_new(tmp_path: Path) -> None:
    active = tmp_path / "system.journal"
    active.write_bytes(journal([row(9)]))
    intake, paths = IntakeMeter(entries=2), [f"{active}"]
    assert intake.add_new_delays(paths) is None
    active.rename(tmp_path / "archive")
    assert intake.add_new_delays(paths) is None
    active.write_bytes(journal([row(1, 700)]))
    assert intake.add_new_delays(paths) == 700, "from its first entry on"
    active.rename(tmp_path / "archive")
    assert intake.add_new_delays(paths) is None
    active.write_bytes(journal([row(1, 1), row(2, 2), row(3, 3)]))
    assert intake.add_new_delays(paths) == 3


@pytest.mark.parametrize("rest", [0, 100, 300, 4096])
def test_a_file_that_is_truncated_during_a_look_does_not_end_the_process(tmp_path: Path, rest: int) -> None:
    """A reader that maps the file would get SIGBUS."""
    active = tmp_path / "system.journal"
    active.write_bytes(journal([row(number) for number in range(1, 3000)]))
    child = os.fork()
    if child == 0:
        intake, paths = IntakeMeter(), [f"{active}"]
        intake.add_new_delays(paths)
        os.truncate(active, rest)
        os._exit(intake.add_new_delays(paths) or 0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_link_in_the_path_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/system.journal").write_bytes(journal([row(1)]))
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "system.journal").symlink_to("there/system.journal")
    intake, paths = IntakeMeter(), [f"{tmp_path}/link/system.journal", f"{tmp_path}/system.journal"]
    intake.add_new_delays(paths)
    (tmp_path / "there/system.journal").write_bytes(journal([row(1), row(2)]))
    assert intake.add_new_delays(paths) is None


def test_the_99th_percentile_is_that_of_the_newest_thousand(tmp_path: Path) -> None:
    active = tmp_path / "system.journal"
    intake, rows = IntakeMeter(entries=KEPT), [row(1)]
    for wait_us in (None, 9_000, 50):
        rows += [row(number, wait_us) for number in range(len(rows) + 1, len(rows) + 1001) if wait_us is not None]
        active.write_bytes(journal(rows))
        intake.add_new_delays([f"{active}"])
        assert intake.p99_us == (wait_us or 0)


def test_a_chain_that_leads_back_is_refused() -> None:
    data = bytearray(journal([row(number) for number in range(1, 30)]))
    (first,) = struct.unpack_from("<Q", data, 176)
    struct.pack_into("<Q", data, first + 16, first)
    with pytest.raises(ValueError, match="no entry array"):
        newest(bytes(data))


def test_files_of_remote_hosts_do_not_count_under_any_name() -> None:
    own = hosts.file(Kind.ACTIVE)
    theirs = own._replace(path="/var/log/journal/remote/system.journal", instance=layout.REMOTE)
    bad = own._replace(path="/var/log/journal/x/system.journal", problem=Reason.BAD_HEADER)
    assert list_journald_files([own, theirs, bad, hosts.file(Kind.ARCHIVED)]) == [own.path]
