# SPDX-License-Identifier: LGPL-2.1-or-later
"""Maps, counts, disk bytes and flags of real files are those of filefrag(8), compsize(8) and lsattr(1).

The unit journalkeeper-measure measures for a process without the right.
"""

from __future__ import annotations

import mmap
import os
import random
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import pytest

from journalkeeper.btrfs import disk, extent_count, fiemap, inode
from journalkeeper.btrfs.defrag import HAS_LEVELS, defrag_range
from journalkeeper.btrfs.disk import read_disk_bytes
from journalkeeper.btrfs.inode import set_nocow
from journalkeeper.btrfs.writeback import sync_file_range, wait_writeback
from journalkeeper.journald.opening import open_directory
from journalkeeper.model import MIB
from journalkeeper.model.units import Compression
from journalkeeper.probe import scratch_volume as lab
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.btrfs.journals import look
from tests.journal_files import FALLOC_FL_KEEP_SIZE, PAGE, fallocate, punch_hole, put, scatter, write_out
from tests.nobody import as_nobody
from tests.patience import TRIES, eventually
from tests.volumes import disk_bytes, extents

pytestmark = pytest.mark.root

MakeFile = Callable[..., int]


def filefrag_rows(path: Path) -> int:
    """How many rows `filefrag -v` lists."""
    return len(re.findall(r"^\s*\d+:\s", run("filefrag", "-v", path), re.MULTILINE))


@pytest.mark.parametrize(
    "pages", [1, 2, fiemap.BATCH_ROWS - 1, fiemap.BATCH_ROWS, fiemap.BATCH_ROWS + 1, 2 * fiemap.BATCH_ROWS, 1300]
)
def test_every_row_is_counted_once_across_batches(fragmented: MakeFile, place: Path, pages: int) -> None:
    fd = fragmented(pages)
    survey = extent_count.survey(fd, sync=True, per_mib=True)
    rows = list(fiemap.iterate_extents(fd, sync=False))
    assert survey.total == len(rows) == filefrag_rows(place / "file") == extent_count.count(fd, sync=False) == pages
    assert survey.data_bytes == sum(row.length for row in rows) == pages * PAGE
    assert [row.logical for row in rows] == list(range(0, pages * PAGE, PAGE))
    assert survey.per_mib == tuple(min(256, pages - first) for first in range(0, pages, 256))


@pytest.mark.parametrize("size", [PAGE - 1 + PAGE, 2 * PAGE, 2 * PAGE + 1])
def test_bytes_end_with_the_file_though_the_last_block_does_not(make_file: MakeFile, size: int) -> None:
    fd = make_file(b"x" * size)
    assert extent_count.survey(fd, sync=True).data_bytes == size
    assert list(fiemap.find_data(fd, sync=True)) == [(0, size)]


def test_allocated_space_is_unwritten(make_file: MakeFile, place: Path) -> None:
    fd = make_file(b"x" * 2 * PAGE)
    os.posix_fallocate(fd, 2 * PAGE, 6 * PAGE)
    survey = extent_count.survey(fd, sync=True)
    assert (survey.data_bytes, survey.unwritten_bytes) == (2 * PAGE, 6 * PAGE)
    assert survey.total == extents(place / "file", sync=True)
    assert list(fiemap.find_data(fd, sync=True)) == [(0, 2 * PAGE)]
    assert list(fiemap.find_unwritten(fd, sync=True)) == [(2 * PAGE, 6 * PAGE)]
    os.pwrite(fd, b"y" * PAGE, 4 * PAGE)
    assert list(fiemap.find_unwritten(fd, sync=True)) == [(2 * PAGE, 2 * PAGE), (5 * PAGE, 3 * PAGE)]
    assert list(fiemap.find_data(fd, sync=True)) == [(0, 2 * PAGE), (4 * PAGE, PAGE)]


def test_space_kept_behind_the_end_counts_no_bytes(make_file: MakeFile, place: Path) -> None:
    fd = make_file(b"x" * 5000)
    fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 16 * PAGE)
    survey = extent_count.survey(fd, sync=True, per_mib=True)
    assert (survey.data_bytes, survey.unwritten_bytes) == (5000, 0)
    assert survey.total == extents(place / "file", sync=True)
    assert len(survey.per_mib) == 1
    assert list(fiemap.find_unwritten(fd, sync=True)) == [(2 * PAGE, 14 * PAGE)]
    assert list(fiemap.find_data(fd, sync=True)) == [(0, 5000)]


def test_looking_without_sync_leaves_dirty_pages_dirty(make_file: MakeFile) -> None:
    def stay_dirty(number: int) -> bool:
        fd = make_file(name=f"{number}")
        os.pwrite(fd, b"x" * 4 * PAGE, 0)
        flags = [row.flags for _ in range(2) for row in fiemap.iterate_extents(fd, sync=False)]
        assert len(flags) == 2
        assert extent_count.survey(fd, sync=False).data_bytes == 4 * PAGE
        (row,) = fiemap.iterate_extents(fd, sync=True)
        assert not row.flags & fiemap.FIEMAP_EXTENT_DELALLOC
        return all(flag & fiemap.FIEMAP_EXTENT_DELALLOC for flag in flags)

    assert any(map(stay_dirty, TRIES))


@pytest.mark.parametrize("look", [extent_count.survey, extent_count.count, fiemap.find_data, fiemap.find_unwritten])
def test_looking_with_sync_places_dirty_pages(make_file: MakeFile, look: Callable[..., object]) -> None:
    fd = make_file()
    os.pwrite(fd, b"x" * 4 * PAGE, 0)
    found = look(fd, sync=True)
    if isinstance(found, Iterator):
        assert len(list(found)) == (look is fiemap.find_data)
    assert [row.flags & fiemap.FIEMAP_EXTENT_DELALLOC for row in fiemap.iterate_extents(fd, sync=False)] == [0]


def test_shared_bytes_are_counted_in_the_mib_in_which_they_are(make_file: MakeFile, place: Path) -> None:
    def is_counted(number: int) -> bool:
        fd = make_file(os.urandom(3 * MIB + PAGE), f"{number}")
        run("cp", "--reflink=always", place / f"{number}", place / f"{number}.twin")
        os.pwrite(fd, os.urandom(MIB), MIB // 2)
        assert extent_count.survey(fd, sync=True).shared_per_mib == ()
        # no extent begins behind them, unless another program's sync cuts the file
        return extent_count.survey(fd, sync=True, per_mib=True).shared_per_mib == (MIB // 2, MIB // 2)

    assert any(map(is_counted, TRIES))


@pytest.mark.parametrize(("nocow", "moves"), [(False, True), (True, False)])
def test_a_written_back_block_moves_if_it_is_datacow(make_file: MakeFile, nocow: bool, moves: bool) -> None:
    def moves_when_written_back(number: int) -> bool:
        fd = make_file(name=f"{number}")
        if nocow:
            set_nocow(fd)
        os.pwrite(fd, b"x" * 4 * PAGE, 0)
        write_out(fd)
        before = fiemap.locate_byte(fd, PAGE)
        assert before == next(fiemap.iterate_extents(fd, sync=False)).physical + PAGE
        os.pwrite(fd, b"y" * PAGE, PAGE)
        stays = fiemap.locate_byte(fd, PAGE) == before
        write_out(fd)
        assert (fiemap.locate_byte(fd, PAGE) != before) is moves
        return stays

    assert any(map(moves_when_written_back, TRIES))


# as filefrag(8) counts them


STEP = 8 << 20
"""journald(8) allocates so many bytes ahead."""

Make = Callable[[Path, Path, int], None]
"""Make a file out of a torn archive; the number tells files of one form apart."""


def torn(source: Path, target: Path, number: int) -> None:
    """A copy, of which every second to sixth block is written once more."""
    run("cp", "--reflink=never", source, target)
    os.sync()
    scatter(target, every=2 + number % 5)


def alternating(target: Path, number: int, *, nocow: bool) -> None:
    """One contiguous run in which written blocks alternate with unwritten ones, as journald's flushes leave it."""
    target.touch()
    run("chattr", "+C" if nocow else "-C", target)
    with open(target, "r+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, STEP)
        os.fsync(file.fileno())
        for offset in range(0, STEP, (2 + number % 7) * PAGE):
            os.pwrite(file.fileno(), os.urandom(PAGE), offset)
        os.fsync(file.fileno())


def compressed(source: Path, target: Path, number: int) -> None:
    """All of it compressed, and of every second file some blocks written over."""
    run("cp", "--reflink=never", source, target)
    run("btrfs", "filesystem", "defragment", "-czstd", "-f", target)
    os.sync()
    if number % 2:
        scatter(target, every=50)


def with_holes(source: Path, target: Path, number: int) -> None:
    """Holes of one block to seven, in extents and between them."""
    torn(source, target, number)
    with open(target, "r+b", buffering=0) as file:
        for offset in range(0, target.stat().st_size, 16 * PAGE):
            punch_hole(file.fileno(), offset, (1 + number % 7) * PAGE)
        os.fsync(file.fileno())


def inline(_source: Path, target: Path, number: int) -> None:
    """So small that it is in its metadata."""
    target.write_bytes(os.urandom(1 + number % 2000))


FORMS: dict[str, Make] = {
    "torn": torn,
    "alternating datacow": lambda _, target, number: alternating(target, number, nocow=False),
    "alternating nocow": lambda _, target, number: alternating(target, number, nocow=True),
    "compressed": compressed,
    "holes": with_holes,
    "inline": inline,
}


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_counts_are_within_one_percent_of_filefrags(place: Path, journal_bytes: bytes, form: str, number: int) -> None:
    source, path = put(place, journal_bytes, torn=False), place / "system.journal"
    FORMS[form](source, path, number)
    run("sync", "-f", path)
    (ours,) = look(path)
    theirs = extents(path, sync=True)
    assert abs(ours.extents.total - theirs) <= theirs / 100


def test_a_compressed_file_with_holes_has_no_higher_ideal_than_extents(place: Path) -> None:
    """Another program's sync(2) can end an extent early, and one of a single page is not compressed."""

    def is_ideal(number: int) -> bool:
        path = place / f"{number}.journal"
        path.touch()
        run("btrfs", "property", "set", path, "compression", "zstd")
        with open(path, "wb") as file:
            file.write(b"x" * 4 * MIB)
            file.truncate(64 * MIB)
        run("sync", "-f", path)
        (seen,) = look(path)
        assert seen.compressed
        return seen.ideal_extents == seen.extents.total == extents(path, sync=True) == 4 * 8

    assert any(map(is_ideal, TRIES))


# dirty files


def dirty(path: Path, *, nocow: bool, written: bool, every: int) -> mmap.mmap:
    """Make a fallocated file, sync its first half if that is to be `written`, and dirty some pages through a map."""
    path.touch()
    run("chattr", "+C" if nocow else "-C", path)
    with open(path, "r+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, STEP)
        if written:
            file.write(os.urandom(STEP // 2))
        os.fsync(file.fileno())
        pages = mmap.mmap(file.fileno(), STEP)
    for offset in range(0, STEP, every * PAGE):
        pages[offset] = 1
    return pages


@pytest.mark.parametrize("every", [7, 17, 300])
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("nocow", [False, True])
def test_dirty_pages_count_where_they_are_on_the_disk(place: Path, *, nocow: bool, written: bool, every: int) -> None:
    """NOCOW and unwritten blocks stay there, too. Other blocks move at the flush, which the count does not predict.

    A sync of another program may be that flush.
    """

    def are_one_extent(number: int) -> bool:
        path = place / f"{number}.journal"
        with dirty(path, nocow=nocow, written=written, every=every), open(path, "rb") as file:
            seen = extent_count.survey(file.fileno(), sync=False, per_mib=True)
            counts = [extent_count.count(file.fileno(), sync=False), seen.total, sum(seen.per_mib)]
            assert extent_count.list_stretches(file.fileno(), sync=False) != ()
            if nocow or not written:
                counts.append(extents(path, sync=True))
        return set(counts) == {1}

    assert any(map(are_one_extent, TRIES))


# defragmentation of a range


def make_prose(size: int) -> bytes:
    """Return text that every algorithm packs, and a high level tighter than a low one."""
    dice = random.Random(5)  # noqa: S311 - the same text each time
    words = ["".join(dice.choices("etaoinshrdlu", k=dice.randint(2, 11))) for _ in range(2000)]
    phrases = [" ".join(dice.choices(words, k=8)) for _ in range(400)]
    return ". ".join(dice.choices(phrases, k=size // 16)).encode()[:size]


def test_only_the_extents_of_the_range_are_joined(fragmented: MakeFile) -> None:
    """A sync of another program may write the dirty pages one by one, each as an extent."""

    def joins(number: int) -> bool:
        fd = fragmented(512, f"file{number}")
        before = os.pread(fd, 2 * MIB, 0)
        defrag_range(fd, 0, MIB)
        low, high = extent_count.survey(fd, sync=True, per_mib=True).per_mib
        assert high == 256
        assert os.pread(fd, 2 * MIB, 0) == before
        return low <= 32

    assert any(map(joins, TRIES))


def test_a_level_is_used_if_the_kernel_has_levels(make_file: MakeFile) -> None:
    sizes = []
    with nullcontext() if HAS_LEVELS else pytest.raises(OSError, match=r"Operation not supported|Invalid argument"):
        for level in (1, 15):
            fd = make_file(make_prose(MIB), f"level{level}")
            defrag_range(fd, 0, MIB, compress=Compression("zstd", level))
            write_out(fd)
            sizes.append(read_disk_bytes(fd) or 0)
    assert not HAS_LEVELS or sizes[1] < sizes[0] < MIB


@pytest.mark.parametrize("length", [0, -1])
def test_an_empty_range_is_not_the_rest_of_the_file(fragmented: MakeFile, length: int) -> None:
    fd = fragmented(64)
    with pytest.raises(ValueError, match="must be positive"):
        defrag_range(fd, 0, length)
    assert extent_count.survey(fd, sync=True).total == 64


# disk bytes


def overwrite(fd: int, _path: Path) -> None:
    os.pwrite(fd, os.urandom(PAGE), 10 * PAGE)


def compress(fd: int, _path: Path) -> None:
    os.pwrite(fd, b"journal " * (MIB // 8), 0)
    os.fsync(fd)
    defrag_range(fd, 0, MIB, compress=Compression("zstd"))


def make_hole(fd: int, _path: Path) -> None:
    os.ftruncate(fd, 100 * MIB)
    os.pwrite(fd, os.urandom(PAGE), 50 * MIB)


def make_twin(fd: int, path: Path) -> None:
    lab.run("cp", "--reflink=always", path, path.with_name("twin"))
    os.pwrite(fd, os.urandom(PAGE), MIB // 2)


@pytest.mark.parametrize(
    ("size", "change", "least", "most"),
    [
        (0, None, 0, 0),
        (3 * MIB, None, 3 * MIB, 3 * MIB),
        (MIB, overwrite, MIB + PAGE, MIB + PAGE),
        (0, compress, 1, MIB / 8),
        (0, make_hole, PAGE, PAGE),
        (MIB, make_twin, MIB + PAGE, MIB + PAGE),
    ],
)
def test_disk_bytes_are_those_of_compsize(
    make_file: MakeFile, place: Path, *, size: int, change: Callable[[int, Path], None] | None, least: int, most: float
) -> None:
    fd = make_file(os.urandom(size))
    if change is not None:
        change(fd, place / "file")
        write_out(fd)
    found = read_disk_bytes(fd)
    assert found == disk_bytes(place / "file")
    assert found is not None
    assert least <= found <= most


def test_a_file_may_have_more_extents_than_one_answer_holds(fragmented: MakeFile, place: Path) -> None:
    fd = fragmented(4000)
    assert read_disk_bytes(fd) == disk_bytes(place / "file") > 4000 * PAGE


def test_inline_data_takes_no_extent(make_file: MakeFile) -> None:
    fd = make_file(b"x" * 1000)
    write_out(fd)
    assert read_disk_bytes(fd) == 0


# write-back of a range


@pytest.mark.parametrize(
    ("write_back", "dirty"), [(sync_file_range, [(0, MIB), (4 * MIB, MIB)]), (wait_writeback, None)]
)
def test_only_the_range_is_written(
    make_file: Callable[..., int], write_back: Callable[[int, int, int], None], dirty: list[tuple[int, int]] | None
) -> None:
    """A sync of another program writes all ranges, so there are several tries."""
    fd = make_file()
    written = [(2 * number * MIB, MIB) for number in range(3)]

    def list_dirty() -> list[tuple[int, int]]:
        rows = fiemap.iterate_extents(fd, sync=False)
        return [(row.logical, row.length) for row in rows if row.flags & fiemap.FIEMAP_EXTENT_DELALLOC]

    def leaves_the_rest_dirty() -> bool:
        os.ftruncate(fd, 0)  # FIEMAP shows no dirty pages where something is on the disk
        for offset, length in written:
            os.pwrite(fd, b"x" * length, offset)
        write_back(fd, 2 * MIB, 2 * MIB)
        return eventually(lambda: list_dirty() == (dirty or written), 1)

    assert eventually(leaves_the_rest_dirty)


# NOCOW


@pytest.mark.parametrize(("content", "nocow"), [(b"", True), (b"x", False)])
def test_nocow_is_set_on_an_empty_file_only(make_file: MakeFile, place: Path, content: bytes, *, nocow: bool) -> None:
    fd = make_file(content)
    inode.set_flags(fd, inode.FS_NODUMP_FL | inode.FS_SYNC_FL)
    assert inode.set_nocow(fd) is nocow
    assert inode.get_flags(fd) & ~inode.FS_NOCOW_FL == inode.FS_NODUMP_FL | inode.FS_SYNC_FL
    assert set(run("lsattr", "-d", place / "file").split()[0]) - {"-"} == {"S", "d", *("C" * nocow)}


# journalkeeper-measure


PROGRAM = (sys.executable, "-m", "journalkeeper", "--measure")
UNPRIVILEGED = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *PROGRAM)


class Unit:
    """A socket with Accept=yes, as systemd serves it, for one connection. `path` is its address."""

    def __init__(self) -> None:
        self.path = f"\0journalkeeper-test-{os.urandom(8).hex()}"
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(self.path)
        self.listening.listen()

    def serve(self, *words: str, question: Callable[[], int | None]) -> tuple[int | None, str]:
        """Ask `question`, and run the command `words` to answer it. Return the answer, and the command's stderr."""
        said: list[str] = []

        def answer() -> None:
            connection, _ = self.listening.accept()
            with connection:
                done = subprocess.run(words, stdin=connection.fileno(), stderr=subprocess.PIPE, text=True, check=False)
            said.append(done.stderr)

        thread = threading.Thread(target=answer)
        thread.start()
        answered = question()
        thread.join()
        return answered, said[0]

    def close(self) -> None:
        self.listening.close()


@pytest.fixture
def unit() -> Iterator[Unit]:
    with closing(Unit()) as unit:
        yield unit


@pytest.fixture
def archive(place: Path, journal_bytes: bytes) -> Iterator[int]:
    with put(place, journal_bytes).open("rb") as file:
        yield file.fileno()


def ask(fd: int, path: str) -> int | None:
    """Ask the unit at `path` for the disk bytes of `fd`, without the right to ask the disk."""
    return as_nobody(lambda: disk.measure_disk_bytes(fd, path))


def test_a_process_without_the_right_gets_the_number_of_snapshots(volume: ScratchVolume, unit: Unit) -> None:
    run("btrfs", "subvolume", "snapshot", volume.mountpoint, volume.mountpoint / "snapshot")
    with open_directory(str(volume.mountpoint)) as fd:
        for words, number in ((PROGRAM, 1), (UNPRIVILEGED, None)):
            question = partial(as_nobody, partial(disk.measure_snapshots, fd, unit.path))
            assert unit.serve(*words, question=question) == (number, "")
        assert as_nobody(lambda: disk.measure_snapshots(fd, "/nowhere")) is None


def test_a_process_with_the_right_does_not_ask_the_unit(archive: int) -> None:
    assert disk.measure_disk_bytes(archive, "/nowhere") == read_disk_bytes(archive)


def test_a_unit_without_the_right_has_no_answer(archive: int, unit: Unit) -> None:
    assert unit.serve(*UNPRIVILEGED, question=lambda: ask(archive, unit.path)) == (None, "")


def test_a_file_that_the_unit_cannot_measure_has_no_answer_and_an_error_in_the_log(unit: Unit) -> None:
    def question() -> int | None:
        with open("/proc/self/stat", "rb") as file, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.connect(unit.path)
            socket.send_fds(channel, [b"?"], [file.fileno()])
            return len(channel.recv(disk.ANSWER_BYTES))

    answered, said = unit.serve(*PROGRAM, question=question)
    assert answered == 0
    assert said.startswith("journalkeeper: cannot measure: [Errno 25]")


@pytest.mark.parametrize("path", ["/nowhere", "\0journalkeeper-test-nobody-listens"])
def test_without_the_unit_the_disk_is_unknown(archive: int, path: str) -> None:
    assert ask(archive, path) is None


def test_the_wait_for_an_answer_ends(archive: int, unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "ANSWER_S", 0.2)
    assert ask(archive, unit.path) is None
