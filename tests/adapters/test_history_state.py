# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lock of the state directory keeps two executors apart, and ends with its holder."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.history.state import Lock, make_directory
from journalkeeper.history.store import Record
from journalkeeper.model.errors import BusyError, FileError, KeeperError, NeedsRootError
from tests.nobody import being_nobody


def test_the_lock_is_free_after_the_block_and_after_an_error(tmp_path: Path) -> None:
    with Lock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(ZeroDivisionError), Lock(tmp_path):
        _ = 1 / 0
    (tmp_path / "lock").write_text("123456789012345\n")
    with Lock(tmp_path), pytest.raises(BusyError, match=f"process {os.getpid()} holds"), Lock(tmp_path):
        pytest.fail("held twice")
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_program_that_we_start_does_not_hold_it_for_us(tmp_path: Path) -> None:
    with Lock(tmp_path):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with Lock(tmp_path):
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_a_holder_that_has_not_said_who_it_is_is_another_process(tmp_path: Path) -> None:
    with Lock(tmp_path):
        (tmp_path / "lock").write_text("")
        with pytest.raises(BusyError, match="another process holds"), Lock(tmp_path):
            pytest.fail("both hold it")


def test_a_lock_in_which_nothing_can_be_written_is_an_error_and_not_held(tmp_path: Path) -> None:
    """A full disk; here a limit on the size of files, at which the kernel refuses the write alike."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(KeeperError, match="write the holder's pid"), Lock(tmp_path):
            pytest.fail("held without a name")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with Lock(tmp_path):
        pass


@pytest.mark.parametrize("put_there", [Path.touch, lambda path: path.symlink_to("other"), lambda path: None])
def test_a_lock_is_held_as_long_as_its_path_leads_to_it(tmp_path: Path, put_there: Callable[[Path], None]) -> None:
    path = tmp_path / "lock"
    with Lock(tmp_path) as lock:
        assert lock.is_held()
        path.rename(tmp_path / "other")
        put_there(path)
        assert not lock.is_held()
        if path.is_symlink():
            path.unlink()
        lock.renew()
        assert lock.is_held()
    assert not lock.is_held()


def test_a_link_in_place_of_the_lock_and_a_file_in_place_of_the_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "state").touch()
    for place, number in ((tmp_path, errno.ELOOP), (tmp_path / "state", errno.EEXIST)):
        with pytest.raises(FileError) as caught, Lock(place):
            pytest.fail("held")
        assert caught.value.number == number
    assert not (tmp_path / "elsewhere").exists()


def test_the_directory_the_lock_and_the_history_are_closed_to_strangers(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        with Lock(tmp_path / "a" / "b"), Record(tmp_path / "a" / "b"):
            pass
    finally:
        os.umask(umask)
    made = (tmp_path / "a" / "b", tmp_path / "a" / "b" / "lock", tmp_path / "a" / "b" / "history.db")
    assert [path.stat().st_mode & 0o7777 for path in made] == [0o750, 0o600, 0o640]


@pytest.mark.root
def test_nobody_may_not_make_the_directory_nor_hold_the_lock(open_directory: Path) -> None:
    with Lock(open_directory):
        pass
    with being_nobody():
        with pytest.raises(NeedsRootError, match="cannot open the lock"), Lock(open_directory):
            pytest.fail("a stranger holds the lock")
        with pytest.raises(NeedsRootError, match=r"Permission denied$"):
            make_directory(f"{open_directory}/state")
