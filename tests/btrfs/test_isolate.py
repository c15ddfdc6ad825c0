# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper isolate`: nothing of a journal directory is lost when it moves, however the move ends."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from journalkeeper.cli import program
from journalkeeper.execute import isolate
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.answers import check
from tests.btrfs.faults import before_each_call, images_before_each_call, killed_before, let_go

pytestmark = pytest.mark.root

ID = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def journal(place: Path, journal_bytes: bytes) -> Path:
    return make_journal(place, journal_bytes)


def make_journal(place: Path, journal_bytes: bytes) -> Path:
    """Make a directory with an active NOCOW file, a sparse compressed archive, an ACL, a label, a note and a link."""
    top = place / "journal"
    (top / ID).mkdir(parents=True)
    subprocess.run(["chattr", "+C", top / ID], check=True)
    (top / ID / "system.journal").write_bytes(journal_bytes)
    subprocess.run(["chattr", "-C", top / ID], check=True)
    archive = top / ID / f"system@{ID}-1-2.journal"
    subprocess.run(["chattr", "+c", top / ID], check=True)
    archive.write_bytes(journal_bytes)
    os.truncate(archive, len(journal_bytes) + (1 << 20))
    os.setxattr(archive, "user.crtime_usec", b"12345678")
    (top / "remote").mkdir(0o2750)
    os.chown(top / "remote", 1234, 1234)
    (top / "remote" / "note").write_text("kept")
    (top / "remote" / "note").chmod(0o4711)
    (top / "0").symlink_to("/nowhere")
    subprocess.run(["setfacl", "-m", "u:1234:rx,d:u:1234:r", top], check=True)
    os.setxattr(top, "security.selinux", b"system_u:object_r:var_log_t:s0")
    for path in top.rglob("*"):
        os.utime(path, ns=(1_000_000_000, 2_000_000_123), follow_symlinks=False)
    return top


def describe(top: Path) -> dict[str, object]:
    """Return all that must stay the same: content, attributes, flags, times."""
    found: dict[str, object] = {}
    for path in sorted([top, *top.rglob("*")]):
        status = path.lstat()
        attributes = {name: os.getxattr(path, name, follow_symlinks=False)
                      for name in os.listxattr(path, follow_symlinks=False)}  # fmt: skip
        flags = "" if path.is_symlink() else subprocess.check_output(["lsattr", "-d", path], text=True).split()[0]
        times = (status.st_atime_ns, status.st_mtime_ns) if path.is_file() else status.st_mtime_ns
        content = _read(path) if path.is_file() else path.readlink() if path.is_symlink() else None
        blocks = status.st_blocks if path.is_file() else 0
        key = str(path.relative_to(top))
        found[key] = (status.st_mode, status.st_uid, status.st_gid, times, attributes, flags, content, blocks)
    return found


def _read(path: Path) -> bytes:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOATIME)) as file:
        return file.read()


def call(*words: str | Path) -> int:
    return program.run(["isolate", "-q", *map(str, words)])


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))


def test_all_moves_into_a_subvolume_and_back(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("journalkeeper.execute.rewrite.require_equal_data", None)  # all files are reflinks
    before = describe(journal)
    assert call("-D", journal) == 0
    assert journal.stat().st_ino != 256, "without --apply nothing is changed"
    for word, is_subvolume in (("--apply", True), ("--apply", True), ("--undo", False), ("--undo", False)):
        assert call(word, "-D", journal) == 0
        assert (journal.stat().st_ino == 256) == is_subvolume
        assert describe(journal) == before
        assert [path.name for path in journal.parent.iterdir()] == [journal.name]


def test_a_file_moves_between_different_checksums(journal: Path) -> None:
    """A file with NOCOW that was cleared later has no checksums: its extents cannot be shared, so it is copied."""
    odd = journal / "remote" / "odd.journal"
    odd.touch()
    subprocess.run(["chattr", "+C", odd], check=True)
    subprocess.run(["chattr", "-C", odd], check=True)
    odd.write_bytes(b"x" * 70_000)
    before = describe(journal)
    assert call("--apply", "-D", journal) == 0
    assert describe(journal) == before


@contextmanager
def written(journal: Path) -> Iterator[str]:
    with (journal / ID / "system.journal").open("r+b"):
        yield "writes"


@contextmanager
def hard_link(journal: Path) -> Iterator[str]:
    os.link(journal / ID / "system.journal", journal / ID / "second")
    yield "has 2 names"


@contextmanager
def immutable(journal: Path) -> Iterator[str]:
    path = journal / ID / "system.journal"
    subprocess.run(["chattr", "+i", path], check=True)
    yield "immutable"
    subprocess.run(["chattr", "-i", path], check=True)


@contextmanager
def fifo(journal: Path) -> Iterator[str]:
    os.mkfifo(journal / "pipe")
    yield "no file, directory or link"


@contextmanager
def nested(journal: Path) -> Iterator[str]:
    subprocess.run(["btrfs", "subvolume", "create", journal / "nested"], check=True, capture_output=True)
    yield "subvolume of its own"


@contextmanager
def mounted(journal: Path) -> Iterator[str]:
    subprocess.run(["mount", "--bind", "/usr", journal / "remote"], check=True)
    yield "mount point"
    subprocess.run(["umount", journal / "remote"], check=True)


def test_an_ext4_is_not_taken_for_what_a_rollback_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The inode number of its top is that of such a directory."""
    (tmp_path / "mnt").mkdir()
    run("truncate", "--size=8M", tmp_path / "ext4")
    run("mkfs.ext4", "-q", tmp_path / "ext4")
    run("mount", tmp_path / "ext4", tmp_path / "mnt")
    try:
        assert call("-D", tmp_path / "mnt") == 1
        assert "is a mount point" in capsys.readouterr().err
    finally:
        run("umount", tmp_path / "mnt")
    assert call("-D", "/proc/none") == 1


@pytest.mark.parametrize("obstacle", [written, hard_link, immutable, fifo, nested, mounted])
def test_an_obstacle_is_named_and_nothing_is_changed(
    journal: Path, capsys: pytest.CaptureFixture[str], obstacle: Callable[[Path], AbstractContextManager[str]]
) -> None:
    with obstacle(journal) as words:
        inode = journal.stat().st_ino
        assert call("--apply", "-D", journal) == 1
        assert words in capsys.readouterr().err
        assert journal.stat().st_ino == inode
        assert isolate.STAGING not in os.listdir(journal.parent)


def test_a_change_during_the_copy_is_found(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = isolate._copy_below

    def change_after(old: int, new: int) -> None:
        real(old, new)
        with (journal / ID / "system.journal").open("ab") as file:
            file.write(b"one more")

    monkeypatch.setattr(isolate, "_copy_below", change_after)
    assert call("--apply", "-D", journal) == 1
    assert (journal / ID / "system.journal").read_bytes().endswith(b"one more")
    assert journal.stat().st_ino != 256


def fails_at(number: int, work: Callable[[], object]) -> bool:
    """Do `work` with an error of the disk at its call of this number. Return whether it came that far."""
    count = 0

    def event() -> None:
        nonlocal count
        count += 1
        if count == number + 1:
            raise OSError(errno.ENOSPC, "no room")

    with pytest.MonkeyPatch.context() as patch:
        before_each_call(patch, event)
        work()
    return count > number


SWEEP = pytest.mark.parametrize(
    "step", [pytest.param(7, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)]
)


@SWEEP
@pytest.mark.parametrize("word", ["--apply", "--undo"])
@pytest.mark.parametrize("happens", [killed_before, fails_at])
def test_a_kill_or_an_error_leaves_a_whole_journal_and_a_second_call_ends_the_work(
    journal: Path, happens: Callable[..., bool], word: str, step: int
) -> None:
    before = describe(journal)
    back = "--undo" if word == "--apply" else "--apply"
    number = 0
    assert call(back, "-D", journal) == 0
    while happens(number, lambda: call(word, "-D", journal)):
        assert {**describe(journal), ".": before["."]} == before, number  # the mark of a move is left until the end
        assert call(word, "-D", journal) == 0
        assert describe(journal) == before, number
        assert os.listdir(journal.parent) == [journal.name]
        assert call(back, "-D", journal) == 0
        number += step
    assert number > 40


@pytest.mark.slow
@pytest.mark.parametrize("word", ["--apply", "--undo"])
def test_after_a_power_cut_the_name_leads_to_a_whole_journal(
    make_volume: Callable[..., ScratchVolume], journal_bytes: bytes, tmp_path: Path, word: str
) -> None:
    """The image is copied before each call, mounted afterwards, its log replayed. What was in memory is lost."""
    volume = make_volume("256M")
    journal = make_journal(volume.mountpoint, journal_bytes)
    assert call("--undo" if word == "--apply" else "--apply", "-D", journal) == 0
    os.sync()
    before = describe(journal)
    with images_before_each_call(volume, tmp_path) as images:
        assert call(word, "-D", journal) == 0
    let_go(volume)
    assert len(images) >= 3
    for image in images:
        shutil.copyfile(image, volume.images[0])
        volume.mount()
        assert {**describe(journal), ".": before["."]} == before
        assert call(word, "-D", journal) == 0
        assert describe(journal) == before
        assert os.listdir(journal.parent) == [journal.name]
        let_go(volume)
        run("btrfs", "check", "--force", "--readonly", volume.device)
    volume.mount()


def test_messages_that_reach_the_old_files_after_a_killed_move_are_not_removed(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolate, "remove_staging", lambda path: None)
        assert call("--apply", "-D", journal) == 0
    late = journal.parent / isolate.STAGING / ID / "system.journal"
    with late.open("ab") as file:
        file.write(b"one more")
        file.flush()
        assert call("--apply", "-D", journal) == 1
        assert "writes" in capsys.readouterr().err
    assert call("--apply", "-D", journal) == 1
    assert "was written after the move" in capsys.readouterr().err
    assert late.read_bytes().endswith(b"one more")
    late.unlink()
    assert call("--apply", "-D", journal) == 0
    assert os.listdir(journal.parent) == [journal.name]


def test_a_directory_that_a_rollback_left_gets_its_subvolume_back(
    volume: ScratchVolume, journal_bytes: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    root = volume.mountpoint / "@"
    run("btrfs", "subvolume", "create", root)
    journal = make_journal(root, journal_bytes)
    before = describe(journal)
    assert call("--apply", "-D", journal) == 0
    run("btrfs", "subvolume", "snapshot", root, volume.mountpoint / "later")
    root.rename(volume.mountpoint / "before")
    (volume.mountpoint / "later").rename(root)
    assert program.run(["isolate", "-j", "-D", str(journal)]) == 0
    document = json.loads(capsys.readouterr().out)
    check("isolate", document)
    assert document["lost"] == ["before/journal"]
    (volume.mountpoint / "other").mkdir()
    run("btrfs", "subvolume", "snapshot", volume.mountpoint / "before/journal", volume.mountpoint / "other/journal")
    assert call("--apply", "-D", journal) == 1
    assert "several roots have its subvolume: before/journal, other/journal" in capsys.readouterr().err
    run("btrfs", "subvolume", "delete", volume.mountpoint / "other/journal")
    for _ in range(2):
        assert call("--apply", "-D", journal) == 0
        assert describe(journal) == before
        assert program.run(["isolate", "-j", "-D", str(journal)]) == 0
        document = json.loads(capsys.readouterr().out)
        check("isolate", document)
        assert (document["isolated"], document["files"], document["snapshots"]) == (True, 3, 0)
    assert call("--undo", "-D", journal) == 0
    assert describe(journal) == before
    shutil.rmtree(journal)
    capsys.readouterr()
    assert call("-D", journal) == 1
    assert "no other root has its subvolume" in capsys.readouterr().err
