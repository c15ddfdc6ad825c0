# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper isolate`: nothing of a journal directory is lost when it moves, however the move ends."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from journalkeeper.btrfs import fiemap, inode, kernel
from journalkeeper.btrfs.volume import commit_transaction
from journalkeeper.cli import isolate as command
from journalkeeper.cli import program
from journalkeeper.execute import isolate
from journalkeeper.journald import opening
from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.answers import check
from tests.btrfs.faults import before_each_call, images_before_each_call, killed_before, let_go
from tests.patience import eventually

pytestmark = pytest.mark.root

DELALLOC = 0x4
"""FIEMAP_EXTENT_DELALLOC: the data is only in memory."""

ID = "0123456789abcdef0123456789abcdef"
STAGING = isolate.STAGING.format("journal")


@pytest.fixture
def journal(place: Path, journal_bytes: bytes) -> Path:
    return make_journal(place, journal_bytes)


def make_journal(place: Path, journal_bytes: bytes) -> Path:
    """Make a directory with an active NOCOW file, a sparse compressed archive, an ACL, a label, a note and a link."""
    top = place / "journal"
    (top / ID).mkdir(parents=True)
    run("chattr", "+C", top / ID)
    (top / ID / "system.journal").write_bytes(journal_bytes)
    run("chattr", "-C", top / ID)
    archive = top / ID / f"system@{ID}-1-2.journal"
    run("chattr", "+c", top / ID)
    archive.write_bytes(journal_bytes)
    os.truncate(archive, len(journal_bytes) + (1 << 20))
    os.setxattr(archive, "user.crtime_usec", b"12345678")
    (top / "remote").mkdir(0o2750)
    os.chown(top / "remote", 1234, 1234)
    (top / "remote" / "note").write_text("kept")
    (top / "remote" / "note").chmod(0o4711)
    (top / "0").symlink_to("/nowhere")
    os.setxattr(top / "0", "trusted.note", b"kept", follow_symlinks=False)
    run("setfacl", "-m", "u:1234:rx,d:u:1234:r", top)
    for labelled in (top, top / ID, archive, top / "0"):
        os.setxattr(labelled, "security.selinux", b"system_u:object_r:var_log_t:s0", follow_symlinks=False)
    for path in top.rglob("*"):
        os.utime(path, ns=(1_000_000_000, 2_000_000_123), follow_symlinks=False)
    return top


def describe(top: Path) -> dict[str, object]:
    """Return all that must stay the same: content, attributes, flags, times."""
    found: dict[str, object] = {}
    for path in sorted([top, *top.rglob("*")]):
        status, names = path.lstat(), os.listxattr(path, follow_symlinks=False)
        attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
        seen = [status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, attributes]
        if path.is_symlink():
            seen.append(path.readlink())
        else:
            with opening.open_path(str(path)) as fd:
                seen.append(inode.get_flags(fd))
                if path.is_file():
                    seen += [status.st_atime_ns, status.st_blocks, os.pread(fd, status.st_size, 0)]
        found[str(path.relative_to(top))] = seen
    return found


def call(*words: str | Path) -> int:
    return program.run(["isolate", "-q", *map(str, words)])


def ask(capsys: pytest.CaptureFixture[str], journal: Path, *words: str) -> Any:
    """Return the document of the command, which follows its schema."""
    capsys.readouterr()
    assert program.run(["isolate", *words, "-j", "-D", str(journal)]) == 0
    document = json.loads(capsys.readouterr().out)
    check("isolate", document)
    return document


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(isolate, "CLOSING_S", 0.2)


def test_all_moves_into_a_subvolume_and_back(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("journalkeeper.execute.rewrite.require_equal_data", None)  # all files are reflinks
    monkeypatch.setattr(
        "journalkeeper.btrfs.volume.commit_transaction", None
    )  # a second program's can make it last 30 s
    before = describe(journal)
    assert call("-D", journal) == 0
    assert journal.stat().st_ino != 256, "without --apply nothing is changed"
    for word, is_subvolume in (("--apply", True), ("--apply", True), ("--undo", False), ("--undo", False)):
        assert call(word, "-D", journal) == 0
        assert (journal.stat().st_ino == 256) == is_subvolume
        assert describe(journal) == before
        assert [path.name for path in journal.parent.iterdir()] == [journal.name]


def test_a_file_moves_between_different_checksums(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after the exchange would lose what is only in memory."""
    make_odd_file(journal)
    before = describe(journal)
    states = list[int]()
    real = isolate._copy_all_attributes

    def look(source: int, copy: int, status: os.stat_result) -> None:
        if stat.S_ISREG(status.st_mode):
            states.extend(extent.flags & DELALLOC for extent in fiemap.iterate_extents(copy, sync=False))
        real(source, copy, status)

    monkeypatch.setattr(os, "posix_fadvise", lambda *words: None)  # it only advises the kernel to write back
    monkeypatch.setattr(isolate, "_copy_all_attributes", look)
    assert call("--apply", "-D", journal) == 0
    assert describe(journal) == before
    assert states
    assert not any(states)


@contextmanager
def holding(journal: Path, program: str) -> Iterator[int]:
    """Let another process run the program, which has the path of the active file in sys.argv[1], until it prints.

    Yield its process id.
    """
    words = ["unshare", "--mount", "--propagation=private", "python3", "-c", f"{program}\nprint(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*words, journal / ID / "system.journal"], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        yield child.pid
        child.communicate("\n")


OTHER_NAME = """
import os, subprocess
subprocess.run(["mount", "--bind", sys.argv[1], "/proc/version"], check=True)
kept = open("/proc/version", "r+b")
os.system("umount --lazy /proc/version")
"""
"""A mount elsewhere, which is gone, gave the file another name in /proc."""

MAPPED = "import mmap, os; kept = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0); os.closerange(3, 9)"
MOUNTED = "import os, subprocess; top = os.path.dirname(sys.argv[1]); subprocess.run(['mount', '--bind', top, top])"
"""ReadWritePaths= of a service that has no file open."""

SOMEBODY = "a program that fuser(1) may show"


@contextmanager
def used(program: str, who: str, journal: Path) -> Iterator[str]:
    with holding(journal, f"import sys; {program}"):
        yield f"^journalkeeper: {who} can write to {re.escape(str(journal))}.*: end it"


@contextmanager
def in_flight(journal: Path) -> Iterator[str]:
    """A descriptor that lies in a socket's queue."""
    here, there = socket.socketpair()
    with here, there:
        with (journal / ID / "system.journal").open("r+b") as file:
            socket.send_fds(here, [b"x"], [file.fileno()])
        yield re.escape(f"{SOMEBODY} can write to {journal}/{ID}/system.journal")


@contextmanager
def made(command: str, words: str, undo: str, journal: Path) -> Iterator[str]:
    """Run the shell's command, in the journal's directory."""
    run("sh", "-ec", f"cd $0; {command}", journal)
    try:
        yield words
    finally:
        run("sh", "-ec", f"cd $0; {undo}", journal)


def test_only_a_journal_on_btrfs_can_move(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On ext4, the top has the inode number of a directory that a rollback left, and any other that of a subvolume."""
    (tmp_path / "mnt").mkdir()
    run("truncate", "--size=8M", tmp_path / "ext4")
    run("mkfs.ext4", "-q", tmp_path / "ext4")
    run("mount", tmp_path / "ext4", tmp_path / "mnt")
    try:
        assert call("-D", tmp_path / "mnt") == 1
        assert "is a mount point" in capsys.readouterr().err
        run("mkdir", *(tmp_path / f"mnt/{number}" for number in range(300)))
        journal = next(path for path in (tmp_path / "mnt").iterdir() if path.stat().st_ino == 256)
        assert call("--apply", "-D", journal) == 1
        assert "not on btrfs" in capsys.readouterr().err
        assert call("--apply", "-D", tmp_path / "mnt/none") == 1
        assert "does not exist: there is no journal to move" in capsys.readouterr().err
    finally:
        run("umount", tmp_path / "mnt")
    assert call("-D", "/proc/none") == 1


PLACE = "/run/journalkeeper-elsewhere"
OBSTACLES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "written": partial(used, "kept = open(sys.argv[1], 'r+b')", r"\S+ \(\d+\)"),
    "another-name": partial(used, OTHER_NAME, re.escape(SOMEBODY)),
    "mapped": partial(used, MAPPED, re.escape(SOMEBODY)),
    "idle-service": partial(used, MOUNTED, rf"\S+ \(\d+\) at its mount \S+/{ID}"),
    "in-flight": in_flight,
    "elsewhere": partial(made, f"mkdir {PLACE}; mount --bind . {PLACE}", PLACE, f"umount {PLACE}; rmdir {PLACE}"),
    "hard-link": partial(made, f"ln {ID}/system.journal second", "has 2 names", ":"),
    "immutable": partial(made, f"chattr +i {ID}/system.journal", "immutable", f"chattr -i {ID}/system.journal"),
    "fifo": partial(made, "mkfifo $(printf 'pipe\\377')", "no file, directory or link", ":"),
    "nested": partial(made, "btrfs subvolume create nested", "subvolume of its own", ":"),
    "deep": partial(made, f"mkdir -p remote/{'d/' * isolate.DEEPEST}", "is below 64 directories", ":"),
    "mounted": partial(made, "mount --bind /usr remote", "mount point", "umount remote"),
}


@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)
def test_an_obstacle_is_named_and_nothing_is_changed(
    journal: Path, capsys: pytest.CaptureFixture[str], obstacle: Callable[[Path], AbstractContextManager[str]]
) -> None:
    with obstacle(journal) as words:
        number = journal.stat().st_ino
        assert call("--apply", "-D", journal) == 1
        assert re.search(words, capsys.readouterr().err)
        assert journal.stat().st_ino == number
        assert os.listdir(journal.parent) == [journal.name]


def test_a_change_during_the_copy_is_found(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = isolate._copy_below

    def change_after(*args: Any) -> None:
        real(*args)
        with (journal / ID / "system.journal").open("ab") as file:
            file.write(b"one more")

    monkeypatch.setattr(isolate, "_copy_below", change_after)
    assert call("--apply", "-D", journal) == 1
    assert (journal / ID / "system.journal").read_bytes().endswith(b"one more")
    assert journal.stat().st_ino != 256


LIMITS: dict[str, tuple[str, Any, str]] = {
    "time": ("execute.isolate.LONGEST_S", 0, "disk is slow: no copy within 0 s; nothing was moved: try again"),
    "files": ("execute.isolate.MOST_ENTRIES", 5, "a move of 6 files takes too long: move other files away first"),
    "chroot": ("btrfs.volume.find_mount_line", lambda fd: None, "run this outside of the chroot"),
}


@pytest.mark.parametrize("row", LIMITS.values(), ids=LIMITS)
def test_a_long_copy_or_a_root_that_is_no_mount_ends_with_its_reason(
    journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, row: tuple[str, Any, str]
) -> None:
    name, value, words = row
    monkeypatch.setattr(f"journalkeeper.{name}", value)
    assert call("--apply", "-D", journal) == 1
    assert words in capsys.readouterr().err
    assert journal.stat().st_ino != 256
    assert os.listdir(journal.parent) == [journal.name]


@pytest.mark.parametrize("call_of", ["survey_unwritten", "_copy_and_compare", "_require_same"])
def test_journald_that_ends_a_file_in_run_stops_the_move_at_any_time(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, call_of: str
) -> None:
    """The first is called before the copy, the last after the exchange, too."""
    monkeypatch.setattr(isolate, "IN_MEMORY", str(tmp_path / "system@*"))
    real, archive = getattr(isolate, call_of), tmp_path / "system@1.journal"

    def end_a_file(*words: Any) -> Any:
        if call_of != "_require_same" or journal.stat().st_ino == 256:
            archive.write_bytes(b"")
        return real(*words)

    monkeypatch.setattr(isolate, call_of, end_a_file)
    assert call("--apply", "-D", journal) == 1
    assert archive.exists()
    assert "too much is logged during the copy; nothing was moved: try again later" in capsys.readouterr().err
    assert journal.stat().st_ino != 256
    assert os.listdir(journal.parent) == [journal.name]


@pytest.mark.parametrize(("total", "free"), [(100, 25), (252 << 30, 8 << 30)])
def test_run_has_room_for_all_that_journald_may_use_there(
    monkeypatch: pytest.MonkeyPatch, total: int, free: int
) -> None:
    monkeypatch.setattr(command, "_has_journald", lambda top: True)
    monkeypatch.setattr("journalkeeper.probe.scratch_volume.undo_at_end", lambda *words: words)
    for less in (0, 1):
        monkeypatch.setattr("shutil.disk_usage", lambda _, less=less: SimpleNamespace(total=total, free=free - less))
        with pytest.raises(KeeperError, match="too full") if less else nullcontext():
            command._hold_in_run("/var/log/journal")


def test_a_full_run_is_named_before_journald_writes_there(
    journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """journald in a full /run lost 644 of 777 messages, and did not come back."""
    remote = journal / "remote"
    run("mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", remote)
    try:
        (remote / "fill").write_bytes(bytes(800_000))
        monkeypatch.setattr("journalkeeper.cli.isolate.RUN", str(remote))
        monkeypatch.setattr("journalkeeper.cli.isolate._has_journald", lambda top: True)
        monkeypatch.setattr(isolate, "survey", lambda path: isolate.Tree(path, is_subvolume=False, entries={}))
        assert call("--apply", "-D", journal) == 1
        assert "is too full for journald to write there during the move: free a quarter" in capsys.readouterr().err
    finally:
        run("umount", remote)


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
    "step", [pytest.param(31, marks=pytest.mark.slow), pytest.param(9, marks=pytest.mark.long)]
)
"""With 1, which tries each call, the four tests take 15 minutes."""


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
        known = isolate.ISOLATED.format("journal") in os.listxattr(journal.parent)
        assert known or journal.stat().st_ino != 256, "a snapshot now would not contain which subvolume the journal is"
        assert call(word, "-D", journal) == 0
        assert describe(journal) == before, number
        assert os.listdir(journal.parent) == [journal.name]
        assert call(back, "-D", journal) == 0
        number += step
    assert number > 40


def make_odd_file(journal: Path) -> None:
    """Make a file without checksums that has no NOCOW, so that a new file cannot share its extents."""
    place = run("findmnt", "-nvo", "TARGET", "-T", journal).strip()
    run("mount", "-o", "remount,nodatasum", place)
    (journal / "remote" / "odd.journal").write_bytes(b"x" * 70_000)
    run("mount", "-o", "remount,datasum", place)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["--apply", "--undo"])
def test_after_a_power_cut_the_name_leads_to_a_whole_journal(
    make_volume: Callable[..., ScratchVolume],
    journal_bytes: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
) -> None:
    """The image is mounted as it was after a commit, which the kernel can make at any time. Its log is replayed."""
    monkeypatch.setattr(isolate, "LONGEST_S", 600)
    volume = make_volume("256M")
    journal = make_journal(volume.mountpoint, journal_bytes)
    assert call("--undo" if word == "--apply" else "--apply", "-D", journal) == 0
    os.sync()
    before = describe(journal)
    with opening.open_directory(str(volume.mountpoint)) as top:
        number = count()

        def sync() -> None:
            if next(number) % 16 == 0:
                commit_transaction(top)

        monkeypatch.setattr(os, "sync", sync)
        with images_before_each_call(volume, tmp_path, sync=True) as images:
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


@pytest.mark.parametrize("name", [f"{ID}/system.journal", "remote/new.journal"])
def test_messages_that_reach_the_old_files_after_a_killed_move_are_not_removed(
    journal: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolate, "finish", lambda path: None)
        assert call("--apply", "-D", journal) == 0
    late = journal.parent / STAGING / name
    with late.open("ab") as file:
        file.write(b"one more")
        file.flush()
        assert call("--apply", "-D", journal) == 1
        assert "can write to" in capsys.readouterr().err
    os.utime(late, ns=(1_000_000_000, 2_000_000_123))
    for _ in range(2):
        assert call("--apply", "-D", journal) == 1
        assert f"{STAGING} was written to after the move" in capsys.readouterr().err
    assert late.read_bytes().endswith(b"one more")
    late.parents[1].rename(journal.parent / "aside")
    assert call("--apply", "-D", journal) == 0
    assert sorted(os.listdir(journal.parent)) == ["aside", journal.name]


def test_messages_that_reach_the_copy_of_a_move_that_fails_are_not_removed(
    journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old tree changes during the exchange, so it gets its name back, but a program has written to the copy."""
    real, active = kernel.exchange, f"{ID}/system.journal"

    def change_after(*args: Any) -> None:
        real(*args)
        if journal.stat().st_ino == 256:
            for top in (journal, journal.parent / STAGING):
                with (top / active).open("ab") as file:
                    file.write(b"one more")

    monkeypatch.setattr(kernel, "exchange", change_after)
    assert call("--apply", "-D", journal) == 1
    assert journal.stat().st_ino != 256
    for top in (journal, journal.parent / STAGING):
        assert (top / active).read_bytes().endswith(b"one more")
    assert call("--apply", "-D", journal) == 1
    assert f"{STAGING} was written to after the move" in capsys.readouterr().err


@pytest.fixture
def rolled_back(volume: ScratchVolume, journal_bytes: bytes) -> tuple[Path, dict[str, object]]:
    """The journal's directory after a rollback of "@", whose old root is "before", and what the journal was.

    Strangers' subvolumes have the journal's place in other roots: one that anybody can make, and one in a snapshot.
    """
    top = volume.mountpoint
    run("btrfs", "subvolume", "create", top / "@")
    journal = make_journal(top / "@", journal_bytes)
    before = describe(journal)
    assert call("--apply", "-D", journal) == 0
    (journal.parent / "other").mkdir()
    assert call("--apply", "-D", journal.parent / "other") == 0  # another journal
    run("btrfs", "subvolume", "create", journal.parent / STAGING)  # of another move
    for name in ("kin", "later"):
        run("btrfs", "subvolume", "snapshot", top / "@", top / name)
    (top / "@").rename(top / "before")
    (top / "later").rename(top / "@")
    (top / "kin/journal").rmdir()
    run("btrfs", "subvolume", "snapshot", top / "before/journal", top / "kin/journal")
    (top / "home").mkdir()
    run("btrfs", "subvolume", "create", top / "home/journal")
    os.chown(top / "home/journal", 1234, 1234)
    return journal, before


@pytest.mark.parametrize("killed", [False, True])
def test_a_directory_that_a_rollback_left_gets_its_subvolume_back(
    rolled_back: tuple[Path, dict[str, object]], capsys: pytest.CaptureFixture[str], *, killed: bool
) -> None:
    journal, before = rolled_back
    if killed:  # before the subvolume was moved
        journal.rmdir()
    assert ask(capsys, journal)["lost"] == "before/journal"
    for _ in range(2):
        assert call("--apply", "-D", journal) == 0
        assert describe(journal) == before
        document = ask(capsys, journal)
        assert (document["isolated"], document["files"]) == (True, 3)
    assert call("--undo", "-D", journal) == 0
    assert describe(journal) == before
    assert isolate.ISOLATED.format("journal") not in os.listxattr(journal.parent)
    assert STAGING not in os.listdir(journal.parent)


def test_a_strangers_subvolume_is_not_taken_for_the_journal(
    rolled_back: tuple[Path, dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    journal, _ = rolled_back
    run("btrfs", "subvolume", "delete", journal.parents[1] / "before/journal")
    for words in ([], ["--apply"], ["--undo"]):
        assert call(*words, "-D", journal) == 1
        assert "no other root has its subvolume: rmdir and mkdir it" in capsys.readouterr().err
    journal.rmdir()
    journal.mkdir()
    assert call("--apply", "-D", journal) == 0
    assert not os.listdir(journal)


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_old_tree_in_a_snapshot_of_the_middle_is_removed_only_next_to_its_copy(
    volume: ScratchVolume, journal_bytes: bytes, capsys: pytest.CaptureFixture[str], *, is_lost: bool
) -> None:
    top = volume.mountpoint
    run("btrfs", "subvolume", "create", top / "@")
    journal = make_journal(top / "@", journal_bytes)
    before = describe(journal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolate, "finish", lambda path: None)
        assert call("--apply", "-D", journal) == 0
    run("btrfs", "subvolume", "snapshot", top / "@", top / "middle")
    assert ask(capsys, journal, "--apply")["changed"], "the service has to follow the killed move"
    (top / "@").rename(top / "before")
    (top / "middle").rename(top / "@")
    if is_lost:
        run("btrfs", "subvolume", "delete", top / "before/journal")
        journal.rmdir()
        journal.mkdir()
        assert call("--apply", "-D", journal) == 1
        assert "is no copy of it: move one of them away" in capsys.readouterr().err
        journal.rmdir()
        (journal.parent / STAGING).rename(journal)
    assert call("--apply", "-D", journal) == 0
    assert describe(journal) == before
    assert os.listdir(journal.parent) == [journal.name]


@pytest.mark.parametrize("in_container", [False, True])
def test_the_journal_of_a_running_system_is_not_taken_away(
    rolled_back: tuple[Path, dict[str, object]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    in_container: bool,
) -> None:
    """The other root is mounted, or chroot(8) runs the command there. Or a container runs in the other root."""
    journal, before = rolled_back
    running = journal.parents[1] / "before/journal"
    monkeypatch.setattr(isolate, "JOURNALS", f"/proc/[0-9]*/root{'/journal' if in_container else running}")
    with holding(running, f"import os; os.chroot({str(running.parent)!r})") as container:
        assert call("--apply", "-D", journal) == 1
    number = container if in_container else r"\d+"
    said = capsys.readouterr().err
    assert re.search(rf"its subvolume is /var/log/journal for \S+ \({number}\) and stays", said)
    assert describe(running) == before


def test_a_process_with_a_fifo_as_its_journal_does_not_hold_up_isolate(
    rolled_back: tuple[Path, dict[str, object]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Any user can have a root of his own, with user_namespaces(7)."""
    journal, before = rolled_back
    os.mkfifo(tmp_path / "journal")
    monkeypatch.setattr(isolate, "JOURNALS", f"{tmp_path}/journal")
    with subprocess.Popen(["sh", "-c", f"sleep 5; : <>{tmp_path}/journal"]) as writer:
        assert call("--apply", "-D", journal) == 0
        assert writer.poll() is None
        writer.kill()
    assert describe(journal) == before


SYSTEMCTL = """\
#!/bin/sh -e
top={journal}
[ "$1" = start ] && [ -e {units}/"$2" ] || exit 0
mkdir -p $top
mountpoint -q $top || [ -n "$(ls -A $top)" ] || mount -o subvol=/{flat} {device} $top
"""


@pytest.fixture
def flat_host(
    make_volume: Callable[..., ScratchVolume], journal_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The journal in the root "@" of a host whose systemctl mounts as systemd does, at a boot, too."""
    volume = make_volume("256M")
    run("btrfs", "subvolume", "create", volume.mountpoint / "@")
    journal = make_journal(volume.mountpoint / "@", journal_bytes)
    units, programs = tmp_path / "units", tmp_path / "bin"
    units.mkdir()
    programs.mkdir()
    words = SYSTEMCTL.format(journal=journal, units=units, flat=isolate.FLAT, device=volume.device)
    (programs / "systemctl").write_text(words)
    (programs / "journalctl").write_text("#!/bin/sh\n")
    run("chmod", "+x", programs / "systemctl", programs / "journalctl")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(command, "UNITS", str(units))
    monkeypatch.setattr(command, "IN_RUN", command.IN_RUN[command.IN_RUN.index("sh") :])  # without systemd-run
    monkeypatch.setattr(command, "_has_journald", lambda top: True)
    yield journal
    unmount(journal)


def unmount(journal: Path) -> None:
    while command._is_flat(str(journal)):
        run("umount", "--lazy", journal)


def describe_after_boot(journal: Path) -> dict[str, object]:
    unmount(journal)
    run("systemctl", "start", run("systemd-escape", "--path", "--suffix=mount", journal).strip())
    return {**describe(journal), ".": None}  # the mark of a move is left until the end


def test_a_flat_journal_stays_flat_until_it_moves_back(flat_host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That it is mounted after a rollback, tests/guest/test_isolate.py shows."""
    before = describe(flat_host)
    for words in (["--apply"], ["--apply", "--flat"], ["--apply", "--flat"], ["--apply"]):
        assert call(*words, "-D", flat_host) == 0
        assert describe(flat_host) == before
    document = ask(capsys, flat_host)
    assert (document["isolated"], document["flat"], document["lost"]) == (True, True, None)
    assert call("--undo", "-D", flat_host) == 0
    assert describe(flat_host) == before
    assert not os.listdir(command.UNITS)
    assert isolate.FLAT not in os.listdir(flat_host.parents[1])


def test_a_unit_that_cannot_be_removed_is_the_whole_message(
    flat_host: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The journal is a plain directory then, as before the moves."""
    before = describe(flat_host)
    assert call("--apply", "--flat", "-D", flat_host) == 0
    systemctl = tmp_path / "bin/systemctl"
    systemctl.write_text(systemctl.read_text().replace("\ntop=", "\n[ $1 != disable ]\ntop="))
    assert call("--undo", "-D", flat_host) == 1
    assert command.NOT_FLAT not in capsys.readouterr().err
    assert describe(flat_host) == before


@pytest.mark.parametrize("words", [("--apply",), ("--apply", "--flat"), ("--undo",)])
def test_a_flat_journal_that_is_not_mounted_is_mounted_first(
    flat_host: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    before = describe(flat_host)
    assert call("--apply", "--flat", "-D", flat_host) == 0
    unmount(flat_host)
    assert not os.listdir(flat_host)
    assert ask(capsys, flat_host)["lost"] == isolate.FLAT
    assert program.run(["isolate", "-D", str(flat_host)]) == 0
    assert f"{flat_host} is not mounted: journald writes to /run only.\n" in capsys.readouterr().out
    assert ask(capsys, flat_host, *words)["changed"], "the service has to follow"
    assert describe(flat_host) == before
    assert command._is_flat(str(flat_host)) == (words != ("--undo",))


def find_unit() -> Path:
    (unit,) = Path(command.UNITS).iterdir()
    return unit


def test_the_flush_waits_for_a_mount_behind_a_link_from_where_no_systemctlruns(flat_host: Path) -> None:
    """A hardened /var/log has these options, too."""
    assert call("--apply", "--flat", "-D", flat_host) == 0
    text = find_unit().read_text()
    assert "\nBefore=systemd-journal-flush.service\n" in text
    assert f"=subvol=/{isolate.FLAT},nodev,noexec,nosuid" in text


def test_a_unit_that_a_rollback_brought_back_alone_is_removed(flat_host: Path) -> None:
    """The journal became a plain directory after the snapshot."""
    assert call("--apply", "--flat", "-D", flat_host) == 0
    unmount(flat_host)
    run("btrfs", "subvolume", "delete", flat_host.parents[1] / isolate.FLAT)
    assert call("--apply", "-D", flat_host) == 0
    assert call("--undo", "-D", flat_host) == 0
    assert not os.listdir(command.UNITS)


def test_files_that_hide_a_flat_journal_are_named(flat_host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A journald of a namespace wrote them after a failed mount. The condition then skips the mount at each boot."""
    before = describe(flat_host)
    assert call("--apply", "--flat", "-D", flat_host) == 0
    unmount(flat_host)
    (flat_host / "late").write_text("kept")
    for words in ([], ["--apply"], ["--apply", "--flat"], ["--undo"]):
        assert program.run(["isolate", *words, "-D", str(flat_host)]) == bool(words)
        said = "".join(capsys.readouterr())
        assert f"{flat_host} has files, so @journal is not mounted there: move them away, and reboot" in said
    assert (flat_host / "late").read_text() == "kept"
    (flat_host / "late").unlink()
    assert describe_after_boot(flat_host) == {**before, ".": None}


@pytest.mark.parametrize("is_below", [False, True])
def test_a_mount_that_is_not_ours_is_kept(
    flat_host: Path, capsys: pytest.CaptureFixture[str], *, is_below: bool
) -> None:
    """After the move of a subvolume that a line in fstab mounts, the host would not boot."""
    assert call("--apply", "--flat", "-D", flat_host) == 0
    unit, remote = find_unit(), flat_host / "remote"
    if is_below:
        run("mount", "-t", "tmpfs", "tmpfs", remote)
    else:
        unit.unlink()
    assert call("--undo", "-D", flat_host) == 1
    assert f"{remote if is_below else flat_host} is a mount point" in capsys.readouterr().err
    assert command._is_flat(str(flat_host))
    if is_below:
        run("umount", remote)


def test_a_journal_that_cannot_be_mounted_is_nested_again(
    flat_host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = describe(flat_host)
    (tmp_path / "bin/mount").write_text(f'#!/bin/sh\n[ "$2" != subvol=/{isolate.FLAT} ] && exec /bin/mount "$@"\n')
    (tmp_path / "bin/mount").chmod(0o755)
    assert call("--apply", "--flat", "-D", flat_host) == 1
    assert "@journal could not be mounted: see systemctl status" in capsys.readouterr().err
    assert describe(flat_host) == before
    assert flat_host.stat().st_ino == 256


def test_a_refusal_says_how_far_a_flat_move_came(
    flat_host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subvolume with the name of the flat journal is kept."""
    before, other = describe(flat_host), flat_host.parents[1] / isolate.FLAT
    half = "; the journal is in a subvolume that is not mounted from the top"
    with monkeypatch.context() as patch:
        patch.setattr(isolate, "LONGEST_S", 0)
        assert call("--apply", "--flat", "-D", flat_host) == 1
    assert capsys.readouterr().err.endswith("nothing was moved: try again later\n")
    run("btrfs", "subvolume", "create", other)
    assert call("--apply", "--flat", "-D", flat_host) == 1
    said = capsys.readouterr().err
    assert "has a subvolume @journal already" in said
    assert f"rename it first{half}: correct this, and run it again" in said
    assert (describe(flat_host), flat_host.stat().st_ino, os.listdir(command.UNITS)) == (before, 256, [])
    assert call("--flat", "-D", flat_host) == 2
    run("btrfs", "subvolume", "delete", other)
    assert call("--apply", "--flat", "-D", flat_host) == 0
    with holding(flat_host, "import sys; kept = open(sys.argv[1], 'r+b')"):
        assert call("--undo", "-D", flat_host) == 1
    assert f"and start them afterwards{half}" in capsys.readouterr().err
    assert not command._is_flat(str(flat_host))
    assert flat_host.stat().st_ino == 256
    assert call("--undo", "-D", flat_host) == 0
    assert flat_host.stat().st_ino != 256


def test_a_move_ends_with_the_killed_command(flat_host: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """journald comes back from /run meanwhile, and the files that it makes then would have no directory."""
    assert call("--apply", "-D", flat_host) == 0
    before = describe(flat_host)
    started, may_go = tmp_path / "started", tmp_path / "may_go"
    wait = f"touch {started}; until [ -e {may_go} ]; do sleep 0.05; done\n"
    monkeypatch.setattr(command, "MOVE_SUBVOLUME", wait + command.MOVE_SUBVOLUME)
    child = os.fork()
    if child == 0:
        call("--apply", "--flat", "-D", flat_host)
        os._exit(0)
    assert eventually(started.exists)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    may_go.touch()
    assert not eventually(lambda: not flat_host.exists(), 0.5)
    assert describe(flat_host) == before


@pytest.mark.parametrize("word", ["--apply", "--undo"])
@pytest.mark.parametrize("line", range(5))
def test_a_flat_journal_is_whole_after_a_cut_between_two_commands(
    flat_host: Path, monkeypatch: pytest.MonkeyPatch, word: str, line: int
) -> None:
    before = describe(flat_host)
    words = ["--apply", "--flat"] if word == "--apply" else ["--undo"]
    assert call("--apply", *(["--flat"] if word == "--undo" else []), "-D", flat_host) == 0
    lines = command.MOVE_SUBVOLUME.splitlines()
    with monkeypatch.context() as patch:
        patch.setattr(command, "MOVE_SUBVOLUME", "\n".join([*lines[:line], "kill -KILL $$", *lines[line:]]))
        assert call(*words, "-D", flat_host) == 1
    assert describe_after_boot(flat_host) == {**before, ".": None}
    assert call(*words, "-D", flat_host) == 0
    assert describe(flat_host) == before
    assert command._is_flat(str(flat_host)) == (word == "--apply")


@SWEEP
@pytest.mark.parametrize("words", [("--apply", "--flat"), ("--undo",)], ids=["apply", "undo"])
@pytest.mark.parametrize("happens", [killed_before, fails_at])
def test_a_kill_or_an_error_leaves_a_flat_journal_whole(
    flat_host: Path, happens: Callable[..., bool], words: tuple[str, ...], step: int
) -> None:
    before = {**describe(flat_host), ".": None}
    back = ("--undo",) if words[0] == "--apply" else ("--apply", "--flat")
    number = 0
    assert call(*back, "-D", flat_host) == 0
    while happens(number, lambda: call(*words, "-D", flat_host)):
        assert eventually(lambda: {**describe(flat_host), ".": None} == before), number  # after the end of IN_RUN
        assert describe_after_boot(flat_host) == before, number
        assert call(*words, "-D", flat_host) == 0
        assert {**describe(flat_host), ".": None} == before, number
        assert call(*back, "-D", flat_host) == 0
        number += step
    assert number > 60
