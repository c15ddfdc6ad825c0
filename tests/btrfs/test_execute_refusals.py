# SPDX-License-Identifier: LGPL-2.1-or-later
"""What changed between the look and the work, and who else is at the file: nothing is done, and why is said."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from journalkeeper.execute.verified_file import list_loop_files
from journalkeeper.journald.journal_file import STATE_OFFSET
from journalkeeper.journald.opening import is_being_written
from journalkeeper.model import MIB, Reason, Request, Result
from journalkeeper.model.run import Done
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.btrfs.journals import FORMS, action, append, bearing, do, how, is_nocow, look, planned, touch, with_unwritten
from tests.journal_files import archive_name, put, unclean_name
from tests.nobody import as_nobody, in_child

pytestmark = pytest.mark.root

LINUX_CAPABILITY_VERSION_3 = 0x20080522
CAP_CHOWN = 0


def expect(done: Done, result: Result, reason: Reason) -> None:
    """Nothing was written, for this reason."""
    assert how(done) == (result, reason), done.outcome.detail
    assert done.outcome.detail
    assert done.outcome.bytes_written == 0


# the name leads to something else


def another_file(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.write_bytes(b"LPKSHHRH" + bytes(500))


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_fifo(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path.parent.parent}/socket")  # a socket's name has 107 bytes at the most
    path.parent.with_name("socket").rename(path)


def a_copy(path: Path) -> None:
    """The same bytes in another inode: what journald itself does to a NOCOW archive."""
    run("cp", "--archive", "--reflink=never", path, path.with_name("copy"))
    path.with_name("copy").rename(path)


def hard_linked(path: Path) -> None:
    os.link(path, path.with_name("second"))


def shared(path: Path) -> None:
    """As a snapshot shares it. A request that allows it does not know its price; the next plan names it."""
    twin = path.with_name("twin")
    twin.touch()
    run("chattr", "+C" if is_nocow(path) else "-C", twin)
    run("cp", "--reflink=always", path, twin)


def set_state(path: Path, state: int) -> None:
    times = path.stat()
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), bytes([state]), STATE_OFFSET)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


CHANGES: dict[str, tuple[Callable[[Path], object], Reason]] = {
    **{change.__name__: (change, Reason.CHANGED) for change in (another_file, a_link, a_fifo, a_socket, a_copy)},
    "append": (append, Reason.CHANGED),
    "touch": (touch, Reason.CHANGED),
    "unlink": (Path.unlink, Reason.VANISHED),
    "a second name": (hard_linked, Reason.HARD_LINKED),
    "shared": (shared, Reason.SHARED),
    **{f"state {state}": (partial(set_state, state=state), Reason.IN_USE) for state in (0, 1, 3)},
}
"""What happens to a file, and the reason for which it is then skipped."""


@FORMS
@pytest.mark.parametrize(("change", "reason"), CHANGES.values(), ids=CHANGES)
def test_a_file_that_changed_since_the_look_is_skipped(
    place: Path, journal_bytes: bytes, change: Callable[[Path], object], reason: Reason, nocow: bool
) -> None:
    path = put(place, journal_bytes, nocow=nocow)
    what = action(path, Request(now=True, allow_unshare=True))
    change(path)
    names = sorted(place.iterdir())
    contents = {each: bearing(each) for each in names if each.is_file() and not each.is_symlink()}
    expect(do(what), Result.SKIPPED, reason)
    assert sorted(place.iterdir()) == names
    assert {each: bearing(each) for each in contents} == contents


@pytest.mark.parametrize("linked", ["deep", "deep/deeper"])
def test_a_directory_that_became_a_link_is_skipped(place: Path, journal_bytes: bytes, linked: str) -> None:
    directory = place / "deep/deeper"
    directory.mkdir(parents=True)
    what = action(put(directory, journal_bytes))
    (place / linked).rename(place / "moved")
    (place / linked).symlink_to(place / "moved")
    expect(do(what), Result.SKIPPED, Reason.CHANGED)


# somebody is at it


@pytest.mark.parametrize(
    ("name", "nocow"),
    [(archive_name(), True), (unclean_name(), True), (unclean_name(), False)],
    ids=["nocow", "both", "unclean"],
)
def test_a_file_that_is_open_for_writing_is_in_use(place: Path, journal_bytes: bytes, name: str, nocow: bool) -> None:
    path = put(place, journal_bytes, name, nocow=nocow)
    what = action(path)
    with open(path, "r+b"):
        expect(do(what), Result.SKIPPED, Reason.IN_USE)
    assert do(what).outcome.result is Result.DONE


@FORMS
def test_readers_are_no_writers(place: Path, journal_bytes: bytes, nocow: bool) -> None:
    path = put(place, journal_bytes, nocow=nocow)
    what = action(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert do(what).outcome.result is Result.DONE
        assert mapped[:] == journal_bytes
    assert path.read_bytes() == journal_bytes


def test_a_datacow_archive_that_is_kept_open_is_compacted(place: Path, journal_bytes: bytes) -> None:
    """As journald keeps it until its next rotation; in state ARCHIVED it writes no more."""
    path = put(place, journal_bytes)
    before, what = bearing(path), action(path)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        assert is_being_written(file.fileno())
        assert do(what).outcome.result is Result.DONE
        assert mapped[:] == journal_bytes
    assert bearing(path)._replace(times_ns=before.times_ns) == before


@FORMS
def test_a_file_behind_a_loop_device_is_in_use(place: Path, journal_bytes: bytes, nocow: bool) -> None:
    path = put(place, journal_bytes, archive_name(0x100F), nocow=nocow)  # other tests have files of the usual name
    before, what = bearing(path), action(path)
    device = run("losetup", "--find", "--show", path).strip()
    try:
        assert str(path) in list_loop_files()
        expect(do(what), Result.SKIPPED, Reason.IN_USE)
    finally:
        run("losetup", "--detach", device)
    assert bearing(path) == before


def test_a_question_leaves_no_lease_and_without_the_right_to_ask_a_file_is_written(
    place: Path, journal_bytes: bytes
) -> None:
    """A writer that does not wait (journald opens with O_NONBLOCK) would be refused while the lease is held."""
    path = put(place, journal_bytes)
    with open(path, "rb") as file:
        assert not is_being_written(file.fileno())
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        assert as_nobody(lambda: is_being_written(file.fileno()))


def test_a_writer_that_comes_while_we_ask_neither_fails_nor_hurts_us(place: Path, journal_bytes: bytes) -> None:
    """Breaking the lease sends a signal; its default is to be ignored."""
    path = put(place, journal_bytes)
    opener = "import os,sys\nfor _ in range(3000): os.close(os.open(sys.argv[1], os.O_RDWR))"
    with subprocess.Popen(["python3", "-c", opener, path]) as writer, open(path, "rb") as file:
        while True:
            is_being_written(file.fileno())
            if writer.poll() is not None:
                break
        assert writer.returncode == 0


# rights


@FORMS
@pytest.mark.parametrize("flag", ["i", "a"], ids=["immutable", "append-only"])
def test_a_file_that_is_fixed_is_skipped_before_it_is_copied(
    place: Path, journal_bytes: bytes, flag: str, nocow: bool
) -> None:
    path = put(place, journal_bytes, nocow=nocow)
    what = action(path)
    for fixed in (path, place) if nocow else (path,):
        run("chattr", f"+{flag}", fixed)
        try:
            expect(do(what), Result.SKIPPED, Reason.READ_ONLY)
            assert [skip.reason for skip in planned(path).skipped] == ([Reason.READ_ONLY] if fixed == path else [])
        finally:
            run("chattr", f"-{flag}", fixed)


@FORMS
@pytest.mark.parametrize("words", ["mount -o remount,ro {}", "btrfs property set {} ro true"])
def test_a_volume_that_became_read_only_is_a_failure(
    volume: ScratchVolume, journal_bytes: bytes, words: str, nocow: bool
) -> None:
    place = volume.mountpoint
    path = put(place, journal_bytes, nocow=nocow)
    what = action(path)
    run(*(word.format(place) for word in words.split()))
    expect(do(what), Result.FAILED, Reason.READ_ONLY)


# what the plan already refuses


@FORMS
@pytest.mark.parametrize(
    "asked", [Request(now=True), Request(now=True, compress="no", allow_unshare=True)], ids=["small", "allowed"]
)
def test_shared_data_is_rewritten_if_the_copy_is_small_or_allowed(
    place: Path, journal_bytes: bytes, nocow: bool, asked: Request
) -> None:
    run("btrfs", "subvolume", "create", place / "sub")
    path = put(place / "sub", journal_bytes, nocow=nocow)
    run("btrfs", "subvolume", "snapshot", place / "sub", place / "snapshot")
    plain = planned(path, request=Request(now=True, compress="no"))
    assert ([skip.reason for skip in plain.skipped], plain.actions) == ([Reason.SHARED], ())
    before, what = bearing(path), action(path, asked)
    (extents,) = [file.extents for file in look(path)]
    shared_bytes = extents.shared_bytes
    assert what.unshared_bytes == shared_bytes // (1 if asked.compress == "no" else 4)
    done = do(what)
    assert done.outcome.result is Result.DONE
    disk_bytes = done.outcome.disk_bytes_after
    assert disk_bytes is not None
    assert done.outcome.unshared_bytes == round(disk_bytes * min(1, shared_bytes / extents.data_bytes))
    assert bearing(path) == before
    assert look(path)[0].extents.shared_bytes == 0
    assert (place / "snapshot" / path.name).read_bytes() == journal_bytes


# rights that are missing


def lose_cap_chown() -> None:
    """Keep root's other capabilities, as the service does."""
    header, data = struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    libc = ctypes.CDLL(None)
    libc.capget(header, data)
    effective, *rest = struct.unpack("=6I", data.raw)
    libc.capset(header, struct.pack("=6I", effective & ~(1 << CAP_CHOWN), *rest))


def test_a_copy_that_could_not_be_given_to_its_owner_is_not_written(place: Path, journal_bytes: bytes) -> None:
    path = put(place, journal_bytes, archive_name(stem="remote-host"), nocow=True)
    os.chown(path, 998, 998)
    before, what = bearing(path), action(path)
    done = in_child(lambda: do(what), lose_cap_chown)
    expect(done, Result.SKIPPED, Reason.FOREIGN_OWNER)
    assert "CAP_CHOWN" in done.outcome.detail
    assert bearing(path) == before
    assert list(place.iterdir()) == [path]
    assert do(what).outcome.result is Result.DONE
    assert bearing(path) == before


def test_a_lease_on_a_file_does_not_keep_the_worker_waiting(place: Path, journal_bytes: bytes) -> None:
    """An owner in remote/ may take one, and the kernel lets who opens the file for writing wait for 45 s (proc(5))."""
    path = put(place, journal_bytes)
    with_unwritten(path, 8 * MIB, MIB)
    what = action(path)
    with path.open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        began_s = time.monotonic()
        done = do(what)
    assert time.monotonic() - began_s < 20
    expect(done, Result.SKIPPED, Reason.IN_USE)
