# SPDX-License-Identifier: LGPL-2.1-or-later
"""Full volumes, bad disks, kills and power cuts: the name leads to the whole file, whatever happens.

Failures are real ones; where a kernel cannot be made to fail, what is faked
is said.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.btrfs import kernel
from journalkeeper.btrfs.volume import read_volume
from journalkeeper.execute.runner import remove_leftovers
from journalkeeper.journald import opening
from journalkeeper.model import KIB, MIB, Reason, Request, Result
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.btrfs.faults import fill, images_before_each_call, killed_before, leftovers_beside, let_go, spoil
from tests.btrfs.journals import FORMS, action, allocate_ahead, bearing, do, how, is_nocow, look, planned
from tests.journal_files import put
from tests.patience import eventually

pytestmark = pytest.mark.root

PLAIN = Request(now=True, compress="no")


# no room


@FORMS
def test_a_volume_that_becomes_full_meanwhile(
    make_volume: Callable[..., ScratchVolume], journal_bytes: bytes, nocow: bool
) -> None:
    directory = make_volume("256M").mountpoint
    path = put(directory, journal_bytes, nocow=nocow)
    before, what, pieces = bearing(path), action(path, PLAIN), []

    def tell(length: int) -> None:
        pieces.append(length)
        if len(pieces) == 2:
            fill(directory / "ballast")

    done = do(what, tell=tell, chunk_bytes=512 * KIB)
    assert how(done) == (Result.FAILED, Reason.FREE_SPACE)
    assert 2 <= len(pieces) < len(journal_bytes) / (512 * KIB)
    assert done.outcome.bytes_written == sum(pieces)
    assert bearing(path) == before
    assert leftovers_beside(path) == []
    (directory / "ballast").unlink()
    assert eventually(lambda: planned(path, request=PLAIN).actions)  # the kernel frees the room in a thread of its own
    assert do(action(path, PLAIN)).outcome.result is Result.DONE
    assert bearing(path) == before


def test_a_quota_that_is_used_up(make_volume: Callable[..., ScratchVolume], journal_bytes: bytes) -> None:
    directory = make_volume("512M").mountpoint
    run("btrfs", "quota", "enable", directory)
    run("btrfs", "quota", "rescan", "-w", directory)
    run("btrfs", "subvolume", "create", directory / "sub")
    path = put(directory / "sub", journal_bytes, nocow=True)
    run("btrfs", "filesystem", "sync", directory)
    planned_before = action(path, PLAIN)
    run("btrfs", "qgroup", "limit", f"{len(journal_bytes) + 2 * MIB}", directory / "sub")
    with opening.open_directory(str(directory)) as top, opening.open_directory(str(directory / "sub")) as sub:
        assert read_volume(top).quota_bytes is None
        assert MIB < (read_volume(sub).quota_bytes or 0) < 2 * MIB
    assert [skip.reason for skip in planned(path, request=PLAIN).skipped] == [Reason.QUOTA]
    before = bearing(path)
    done = do(planned_before)
    assert how(done) == (Result.FAILED, Reason.QUOTA)
    said, command = done.outcome.detail.split("`")[:2]
    assert said.split("quota group ")[1].split()[0] in run(*command.split())
    assert bearing(path) == before


# a bad disk


@pytest.mark.parametrize("where", [0.0, 0.5], ids=["first of its piece", "amid its piece"])
@pytest.mark.parametrize("compress", ["no", "zstd"])
def test_a_block_that_cannot_be_read_stays_and_the_rest_is_whole(
    make_volume: Callable[..., ScratchVolume], journal_bytes: bytes, compress: str, where: float
) -> None:
    """The kernel says so only if nothing of the piece was rewritten before it."""
    volume = make_volume("512M")
    bad, mark = 2 * MIB + int(where * MIB), os.urandom(4096)
    journal_bytes = journal_bytes[:bad] + mark + journal_bytes[bad + 4096 :]
    path = put(volume.mountpoint, journal_bytes)
    spoil(volume, mark)
    done = do(action(path, Request(now=True, compress=compress)), chunk_bytes=MIB)
    assert how(done) == (Result.FAILED, Reason.IO_ERROR)
    with path.open("rb", buffering=0) as file:
        for at in range(0, len(journal_bytes), 4096):
            if at == bad:
                with pytest.raises(OSError, match="Input/output error"):
                    os.pread(file.fileno(), 4096, at)
            else:
                assert os.pread(file.fileno(), 4096, at) == journal_bytes[at : at + 4096]


def test_a_copy_that_is_not_what_was_written_does_not_take_the_name(
    place: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faked: a disk, or a kernel, that stores another byte."""
    real = os.pwrite

    def wrong(fd: int, data: memoryview, offset: int) -> int:
        return real(fd, b"\x55" + bytes(data)[1:] if offset == 2 * MIB else data, offset)

    path = put(place, journal_bytes, nocow=True)
    before, what = bearing(path), action(path)
    monkeypatch.setattr(os, "pwrite", wrong)
    done = do(what)
    assert how(done) == (Result.FAILED, Reason.MISMATCH)
    assert bearing(path) == before
    assert is_nocow(path)
    assert list(place.iterdir()) == [path]


@pytest.mark.parametrize(
    ("call", "faked"), [("os.fchmod", None), ("os.utime", None), ("journalkeeper.btrfs.inode.is_nocow", True)]
)
def test_a_copy_that_lacks_an_attribute_or_stays_nocow_does_not_take_the_name(
    place: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch, call: str, faked: object
) -> None:
    """Faked: a kernel that reports success and changes nothing."""
    path = put(place, journal_bytes, nocow=True)
    path.chmod(0o640)
    before, what = bearing(path), action(path)
    with monkeypatch.context() as patch:
        patch.setattr(call, lambda *_, **__: faked)
        done = do(what)
    assert how(done) == (Result.FAILED, Reason.MISMATCH)
    assert bearing(path) == before
    assert list(place.iterdir()) == [path]


def test_short_writes_are_continued_and_the_copy_is_compared_as_the_disk_has_it(
    place: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, dropped = os.pwrite, list[tuple[int, ...]]()
    path = put(place, journal_bytes, nocow=True)
    before, what = bearing(path), action(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:100_000], offset))
        patch.setattr(os, "posix_fadvise", lambda _fd, *words: dropped.append(words))
        done = do(what)
    assert (done.outcome.result, bearing(path)) == (Result.DONE, before)
    assert dropped == [(0, 0, os.POSIX_FADV_DONTNEED)]


@pytest.mark.parametrize("call", ["fsync", "setxattr", "link", "fchown", "utime", "ftruncate"])
def test_whatever_call_fails_the_original_stays(
    place: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Faked: each call that can fail, failing once the file is held."""
    path = put(place, journal_bytes, nocow=True)
    os.setxattr(path, "user.comment", b"x")
    os.chown(path, 0, 1)  # not the group that a new file in the directory gets
    before, what = bearing(path), action(path)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        done = do(what)
    assert how(done) == (Result.FAILED, Reason.IO_ERROR)
    assert done.outcome.detail == f"cannot {done.outcome.action}: Input/output error"
    assert bearing(path) == before
    assert leftovers_beside(path) == []


# killed


@FORMS
def test_killed_at_any_call_the_name_leads_to_the_whole_file(place: Path, journal_bytes: bytes, nocow: bool) -> None:
    """A datacow archive has space that was allocated and never written: to free it moves the time of modification."""
    stages = {"before": 0, "leftover": 0, "after": 0}
    number = 0
    while True:
        path = put(place, journal_bytes, nocow=nocow)
        if not nocow:
            allocate_ahead(path)
        os.setxattr(path, "user.crtime_usec", b"12345678")
        before, what, was = bearing(path), action(path), path.stat().st_ino
        killed = killed_before(number, partial(do, what, chunk_bytes=2 * MIB))
        assert bearing(path) == before
        left = leftovers_beside(path)
        assert len(left) <= 1
        stages["leftover"] += len(left)
        stages["before" if path.stat().st_ino == was else "after"] += 1
        in_a_gone_directory = [one.replace(str(place), f"{place}/gone") for one in left]
        said = remove_leftovers([*in_a_gone_directory, *left])
        assert [line.endswith("temporary file of a killed run removed") for line in said] == [True] * len(left)
        again = do(what._replace(target=look(path)[0])).outcome
        assert again.result is Result.DONE or (not nocow and again.reason is Reason.NO_GAIN), again
        assert bearing(path) == before
        assert list(place.iterdir()) == [path]
        path.unlink()
        number += 1
        if not killed:
            break
    assert number > (20 if nocow else 5)
    assert stages["before"] > 5
    assert (stages["leftover"] >= 4) == nocow
    assert (stages["after"] >= 3) == nocow


def test_other_files_are_no_leftovers(place: Path) -> None:
    path = place / "notes"
    path.touch()
    with pytest.raises(ValueError, match="no temporary file"):
        remove_leftovers([str(path)])
    assert path.exists()


# the power goes


def test_each_step_of_an_exchange_is_durable_before_the_next_one(
    place: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(place, journal_bytes, nocow=True)
    what, original, calls = action(path), path.stat().st_ino, list[str]()

    def record(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any, **words: Any) -> Any:
            status = os.fstat(args[0]) if name == "fsync" else None
            kinds = {original: " original", place.stat().st_ino: " directory"}
            calls.append(name if status is None else name + kinds.get(status.st_ino, " copy"))
            return real(*args, **words)

        monkeypatch.setattr(module, name, call)

    for name in ("fsync", "link", "unlink"):
        record(os, name)
    record(kernel, "exchange")
    assert do(what).outcome.result is Result.DONE
    assert calls == [
        *("fsync original", "fsync copy", "link", "fsync copy"),
        *("exchange", "fsync directory", "unlink", "fsync copy"),
    ]


@pytest.mark.parametrize(
    ("nocow", "committed"),
    [(False, False), (False, True), (True, False)],
    ids=["datacow", "datacow, committed before each call", "nocow"],
)
def test_after_a_power_cut_at_any_call_the_name_leads_to_the_whole_file(
    make_volume: Callable[..., ScratchVolume], journal_bytes: bytes, tmp_path: Path, *, nocow: bool, committed: bool
) -> None:
    """The image is copied before each call, mounted afterwards, its log replayed. What was in memory is lost."""
    volume = make_volume("256M")
    volume.options = "commit=300"
    volume.remount()
    path = put(volume.mountpoint, journal_bytes, nocow=nocow)
    if not nocow:
        allocate_ahead(path)
    os.setxattr(path, "user.crtime_usec", b"12345678")
    os.sync()
    before, what = bearing(path), action(path)
    with images_before_each_call(volume, tmp_path, sync=committed, most=12 if committed else 1000) as images:
        assert do(what, chunk_bytes=2 * MIB).outcome.result is Result.DONE
    let_go(volume)
    assert len(images) >= 4
    forms = set()
    for image in images:
        shutil.copyfile(image, volume.images[0])
        volume.mount()
        assert bearing(path) == before
        forms.add(is_nocow(path))
        remove_leftovers(leftovers_beside(path))
        assert list(volume.mountpoint.iterdir()) == [path]
        let_go(volume)
        run("btrfs", "check", "--force", "--readonly", volume.device)
    volume.mount()
    assert forms == {nocow, False}
