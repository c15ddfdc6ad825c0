# SPDX-License-Identifier: LGPL-2.1-or-later
"""What work on a file leaves as it was, what it makes better, and data that the kernel leaves where it lay."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.btrfs import defrag, extent_count, kernel
from journalkeeper.execute import inplace, rewrite
from journalkeeper.model import KIB, MIB, Range, Reason, Request, Result, Verb
from journalkeeper.probe.bed import Bed, generate_messages
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.btrfs.faults import spoil
from tests.btrfs.journals import FORMS, action, bearing, do, extents, is_nocow, log_until_online, look, with_unwritten
from tests.journal_files import OLD_NS, archive_name, put
from tests.patience import TRIES, eventually
from tests.volumes import disk_bytes, drop_caches, kill

pytestmark = pytest.mark.root

KIB_128 = 128 << 10
WAYS = [*((False, one) for one in ("no", "zstd", "zstd:3", "lzo", "zlib")), (True, "no"), (True, "zstd")]
IDS = [f"{'nocow' if nocow else 'datacow'} {compress}" for nocow, compress in WAYS]


def with_everything(path: Path) -> None:
    """Give a file an owner, a mode, an ACL, flags and attributes of every namespace."""
    os.chown(path, 998, 997)
    path.chmod(0o640)
    run("setfacl", "-m", "u:1000:r,g:4:rw", path)
    for name, value in {
        "user.crtime_usec": (1_600_000_000_000_000).to_bytes(8, "little"),
        "user.empty": b"",
        "user.comment": os.urandom(500),
        "trusted.comment": b"for root's eyes",
        "security.comment": b"a label",
    }.items():
        os.setxattr(path, name, value)
    run("chattr", "+dS", path)
    os.utime(path, ns=(OLD_NS, OLD_NS + 1))


@pytest.mark.parametrize(("nocow", "compress"), WAYS, ids=IDS)
def test_a_rewrite_loses_nothing_and_leaves_few_extents(
    place: Path, journal_bytes: bytes, nocow: bool, compress: str
) -> None:
    """A sync of another program can end an extent early."""
    ideal = 1 if compress == "no" else -(-len(journal_bytes) // KIB_128)

    def leaves_few_extents(_: int) -> bool:
        path = put(place, journal_bytes, archive_name(stem="remote-192.0.2.1"), nocow=nocow)
        with_everything(path)
        before = bearing(path)
        assert before.xattrs.keys() >= {"system.posix_acl_access", "trusted.comment", "security.comment"}
        done = do(action(path, Request(now=True, compress=compress)))
        assert done.outcome.result is Result.DONE
        # before Linux 6.15
        assert not done.outcome.detail or (":" in compress and done.outcome.detail.endswith("level"))
        assert bearing(path) == before
        assert list(place.iterdir()) == [path]
        assert done.outcome.extents_after == extents(path)
        assert done.outcome.disk_bytes_after == disk_bytes(path)
        assert (disk_bytes(path) < len(journal_bytes) / 2) == (compress != "no")
        assert done.outcome.bytes_written == sum(length for _, length in before.data)
        assert not is_nocow(path)
        few = extents(path) <= ideal * 1.1 + 1
        path.unlink()
        return few

    assert any(map(leaves_few_extents, TRIES))


def test_a_real_unclean_file_in_a_nocow_directory(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed("SystemMaxFileSize=64M")
    run("chattr", "+C", bed.journald.journal)
    bed.journald.rotate()
    bed.journald.age(10)
    log_until_online(bed.journald, "never synced")
    kill(bed.journald)
    bed.journald.start()
    assert eventually(lambda: any(bed.journald.journal.glob("*.journal~")))
    (path,) = bed.journald.journal.glob("*.journal~")
    assert is_nocow(path)
    before = bearing(path)
    outcome = do(action(path)).outcome
    assert (outcome.action, outcome.result, outcome.detail) == (Verb.REWRITE, Result.DONE, "")
    assert bearing(path) == before
    assert not is_nocow(path)
    assert look(path)[0].compressed


@pytest.mark.skipif(kernel.RELEASE < (6, 5), reason="this kernel does not say which pages are dirty")
def test_the_dirty_pages_elsewhere_stay_journalds_to_flush(place: Path, journal_bytes: bytes) -> None:
    """The kernel's START_IO writes the whole file back: a flush that journald did not choose.

    A sync of another program writes the pages, too.
    """
    path = put(place, journal_bytes, "system.journal")
    do(action(path))
    end = len(journal_bytes) // 4096 * 4096

    def leaves_them(_: int) -> bool:
        what = action(put(place, journal_bytes, "system.journal"))
        do(what._replace(ranges=(Range(2 * MIB, end - 2 * MIB, 0),)))
        clean = extents(path)
        with open(path, "r+b", buffering=0) as file:
            for offset in range(3 * MIB, 4 * MIB, 2 * 4096):
                os.pwrite(file.fileno(), journal_bytes[offset : offset + 4096], offset)
            dirty = kernel.cachestat(file.fileno(), 3 * MIB, MIB)
            before = extent_count.survey(file.fileno(), sync=False, per_mib=True).per_mib
            outcome = do(what._replace(ranges=(Range(0, MIB, 0),))).outcome
            after = extent_count.survey(file.fileno(), sync=False, per_mib=True).per_mib
            are_left = kernel.cachestat(file.fileno(), 3 * MIB, MIB) == dirty and dirty[1] > 100
        # where they are, not where they will be
        is_counted = outcome.extents_after == pytest.approx(clean - before[0] + after[0], abs=1)
        return are_left and after[0] < before[0] / 50 and after[1:] == before[1:] and is_counted

    assert any(map(leaves_them, TRIES))


@pytest.mark.parametrize("compress", ["no", "zstd"])
def test_a_rewrite_takes_little_memory_for_each_extent(place: Path, journal_bytes: bytes, compress: str) -> None:
    """The maps as lists took 508 bytes for each extent of a file."""
    path = put(place, journal_bytes.ljust(48 * MIB, b"x"))
    what = action(path, Request(now=True, compress=compress))
    assert what.extents_before > 10_000
    tracemalloc.start()
    try:
        done = do(what, chunk_bytes=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert done.outcome.result is Result.DONE
    assert peak < MIB // 2 + 64 * what.extents_before


# unwritten ranges and holes


@FORMS
def test_unwritten_space_is_given_back_and_times_are_kept(place: Path, journal_bytes: bytes, nocow: bool) -> None:
    size = len(journal_bytes)
    path = put(place, journal_bytes, nocow=nocow)
    os.truncate(path, size + 16 * MIB)
    with_unwritten(path, -(-size // 4096) * 4096, 8 * MIB)
    before, was = bearing(path), disk_bytes(path)
    done = do(action(path))
    assert done.outcome.result is Result.DONE
    assert look(path)[0].extents.unwritten_bytes == 0
    assert disk_bytes(path) < was - 8 * MIB
    assert bearing(path) == before


@FORMS
def test_holes_stay_holes(place: Path, journal_bytes: bytes, nocow: bool) -> None:
    path = put(place, journal_bytes, nocow=nocow)
    for offset in (MIB, 3 * MIB + 8192):
        run("fallocate", "--punch-hole", "--offset", str(offset), "--length", str(256 << 10), path)
    before = bearing(path)
    assert len(before.data) == 3
    assert do(action(path)).outcome.result is Result.DONE
    assert bearing(path) == before


# what the copy must not inherit


@pytest.mark.parametrize("compress", ["no", "zstd"])
@pytest.mark.parametrize(
    "words", ["setfacl -d -m g:4:rx {}", "chattr +c {}", "chattr +m {}", "btrfs property set {} compression lzo"]
)
def test_inherited_attributes_are_not_in_the_copy(place: Path, journal_bytes: bytes, words: str, compress: str) -> None:
    path = put(place, journal_bytes, nocow=True)
    run(*(word.format(place) for word in words.split()))
    before = bearing(path)
    assert do(action(path, Request(now=True, compress=compress))).outcome.detail == ""
    assert bearing(path) == before
    assert look(path)[0].compressed == (compress != "no" and "+m" not in words)  # +m is the admin's wish


@pytest.mark.parametrize("options", ["nodatacow", "nodatasum", "compress-force=zstd", "compress=lzo", "noatime"])
@FORMS
def test_mount_options_do_not_stand_in_the_way(
    volume: ScratchVolume, journal_bytes: bytes, options: str, nocow: bool
) -> None:
    path = put(volume.mountpoint, journal_bytes, nocow=nocow)
    before = bearing(path)
    what = action(path)
    volume.options = options
    volume.remount()
    what = what._replace(target=look(path)[0])
    done = do(what)
    assert (done.outcome.result, done.outcome.detail) == (Result.DONE, "")
    assert bearing(path) == before
    assert not is_nocow(path)
    compressed = not nocow or takes_compression(volume.mountpoint / "new")
    assert (look(path)[0].compressed, done.compress) == (compressed, "zstd" if compressed else "no")


def takes_compression(new: Path) -> bool:
    """Whether this kernel lets a new file that is not NOCOW any more be compressed: with nodatasum 6.12 does not."""
    new.touch()
    for flag in ("-C", "+C", "-C"):
        run("chattr", flag, new)
    try:
        os.setxattr(new, "btrfs.compression", b"zstd")
    except OSError:
        return False
    return True


def test_a_copy_of_a_nocow_archive_has_checksums(volume: ScratchVolume, journal_bytes: bytes) -> None:
    """One byte changed on the disk is not handed out any more."""
    path = put(volume.mountpoint, journal_bytes, nocow=True)
    assert do(action(path, Request(now=True, compress="no"))).outcome.result is Result.DONE
    pages = (journal_bytes[at : at + 4096] for at in range(0, len(journal_bytes), 4096))
    spoil(volume, max(pages, key=lambda page: len(set(page))))
    with pytest.raises(OSError, match="Input/output error"):
        path.read_bytes()


@FORMS
def test_incompressible_data_leaves_no_flag(place: Path, journal_bytes: bytes, nocow: bool) -> None:
    """The kernel notes it as NOCOMPRESS on the inode. The history records the compression that the data has."""
    path = put(place, journal_bytes + os.urandom(2 * len(journal_bytes)), nocow=nocow)
    before = bearing(path)
    done = do(action(path))
    assert (done.outcome.result, done.compress) == (Result.DONE, "no")
    assert bearing(path) == before


# how it ends


def test_a_signal_does_not_cut_a_piece_short(place: Path, journal_bytes: bytes) -> None:
    """The kernel stops at any pending signal and calls that success (measured). An active file has no second pass."""

    def is_whole(_: int) -> bool:
        path = put(place, journal_bytes + os.urandom(48 * MIB), "system.journal")
        what = action(path)._replace(ranges=(Range(0, path.stat().st_size, 0),))
        heard: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))  # for good: the last one may come late
        disturb = subprocess.Popen(["sh", "-c", f"while kill -USR1 {os.getpid()}; do sleep 0.002; done"])
        try:
            done = do(what, chunk_bytes=128 * MIB)
        finally:
            disturb.kill()
            disturb.wait()
        assert heard
        assert done.outcome.result is Result.DONE
        return extents(path) <= 10  # another program's sync may cut it, too; without the protection hundreds

    assert any(map(is_whole, TRIES))


# data that the kernel leaves where it lay


MESSAGES = 20_000
"""So many fill five files of 16 MiB at the most."""


DefragRange = Callable[..., Any]
really: DefragRange = defrag.defrag_range


def nothing(_fd: int, _offset: int, _length: int, **_words: Any) -> None:
    """What the kernel does to data that it leaves."""


def the_first_block_only(fd: int, offset: int, length: int, **words: Any) -> None:
    """Progress with each call, but not enough of it."""
    really(fd, offset, min(4 * KIB, length), **words)


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_an_archive_that_a_running_journald_rotated_leaves_nothing_behind(
    make_bed: Callable[..., Bed], cold: bool
) -> None:
    """Its last extents are a part of 8 MiB, which stay occupied for one block that is left."""
    place = make_bed("SystemMaxFileSize=16M", "SystemMaxUse=1G")
    for fields in itertools.islice(generate_messages(), MESSAGES):
        place.journald.log(fields.pop("MESSAGE"), **fields)
    place.journald.sync()
    archives = sorted(place.journald.journal.glob("system@*.journal"))
    assert len(archives) >= 4
    for path in archives:
        content = path.read_bytes()
        if cold:
            drop_caches()
        outcome = do(action(path)).outcome
        assert outcome.result is Result.DONE, outcome
        assert disk_bytes(path) <= 0.35 * path.stat().st_size
        assert path.read_bytes() == content


@pytest.mark.parametrize("kernel", [nothing, the_first_block_only])
def test_data_that_the_kernel_does_not_move_is_copied(
    place: Path, journal_bytes: bytes, kernel: DefragRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that always fails to is faked."""
    path = put(place, journal_bytes)
    before, inode = bearing(path), path.stat().st_ino
    monkeypatch.setattr(defrag, "defrag_range", kernel)
    done = do(action(path, Request(now=True, compress="zstd:9")))
    assert (done.outcome.result, done.compress) == (Result.DONE, "zstd")
    assert done.outcome.detail.startswith("as zstd, not zstd:9: ")
    assert done.after.inode == path.stat().st_ino != inode
    assert bearing(path) == before
    assert disk_bytes(path) <= 0.35 * len(journal_bytes)
    assert done.outcome.extents_after <= done.extents_expected * inplace.WORSE
    assert list(place.iterdir()) == [path]


def test_a_file_that_is_open_for_writing_is_not_copied(
    place: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """journald keeps its archives open until it rotates again: then such a file is worked on in place."""
    path = put(place, journal_bytes)
    before, inode = bearing(path), path.stat().st_ino
    monkeypatch.setattr(defrag, "defrag_range", nothing)
    monkeypatch.setattr(rewrite, "rewrite", lambda *_: pytest.fail("a copy was begun"))
    with path.open("r+b"):
        outcome = do(action(path)).outcome
    assert (outcome.result, outcome.reason) == (Result.SKIPPED, Reason.IN_USE)
    assert (bearing(path), path.stat().st_ino) == (before, inode)
