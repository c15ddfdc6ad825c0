# SPDX-License-Identifier: LGPL-2.1-or-later
"""A plan knows what a volume, a directory, a right or a snapshot excludes, and estimates what then happens."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.btrfs.volume import count_snapshots, read_volume
from journalkeeper.cli import program
from journalkeeper.config.directives import Budget, Config, Defrag
from journalkeeper.engine import Engine
from journalkeeper.execute import upkeep
from journalkeeper.execute.verified_file import Refused
from journalkeeper.journald import control, layout, opening
from journalkeeper.model import KIB, MIB, JournalFile, Kind, Outcome, Reason, Request, Result, Verb
from journalkeeper.model.errors import UsageError
from journalkeeper.observe import flushes, observer
from journalkeeper.observe.observer import Observer
from journalkeeper.observe.snapshot_tools import find_tool
from journalkeeper.policy.flush_timer import FlushTimer
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from journalkeeper.service import worker
from tests.btrfs.journals import ALWAYS, NOW, do, extents, go, is_nocow, planned, with_unwritten
from tests.daemon import journalkeeper
from tests.hosts import MACHINE, instance
from tests.journal_files import archive_name, put, scatter
from tests.nobody import as_nobody
from tests.volumes import disk_bytes

pytestmark = pytest.mark.root


@pytest.fixture
def top(machine: Path, journal_bytes: bytes) -> Path:
    """A journal directory, and beside it a journal file that is not watched."""
    top = machine.parent
    put(machine, journal_bytes, "system.journal")
    for place in (top / "remote" / "sub", top.parent / "elsewhere"):
        place.mkdir(parents=True)
        put(place, journal_bytes)
    return top


@pytest.fixture
def engine(top: Path, make_engine: Callable[..., Engine]) -> Engine:
    """The service's."""
    made = make_engine(top, config=ALWAYS, follows=True)
    go(made, stop=lambda: True)
    return made


def test_only_a_run_makes_journald_sync(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(control, "can_be_asked", lambda *_: True)
    monkeypatch.setattr(control, "synchronize", asked.append)
    monkeypatch.setattr(FlushTimer, "needs_sync", lambda *_: True)
    monkeypatch.setattr(flushes, "ASKED_LOOKS", 0)
    assert engine.plan(NOW).syncs
    engine.plan(NOW._replace(paths=(f"{engine.directories[0]}/{MACHINE}/system.journal",)))
    engine.look(NOW)
    go(engine, stop=lambda: True)
    assert asked == []
    assert engine.memory.flushes.look_for_due_plan(), "it is still time for a plan"
    go(engine)
    assert asked


def test_a_directory_that_became_a_link_after_it_was_checked_leads_nowhere(engine: Engine, top: Path) -> None:
    """The owner of remote/ may exchange what is in it at any moment."""
    sub = top / "remote" / "sub"
    (name,) = os.listdir(sub)
    checked = worker.resolve(Request(paths=(f"{sub}/{name}",), now=True), engine.directories)
    assert [action.path for action in engine.plan(checked).actions] == [f"{sub}/{name}"]
    sub.rename(top / "remote" / "moved")
    sub.symlink_to(top.parent / "elsewhere")
    found = engine.plan(checked)
    assert found.actions == ()
    assert [skip.path for skip in found.skipped] == [f"{sub}/{name}"]
    with pytest.raises(UsageError, match="not below"):
        worker.resolve(checked, (f"{top}/other",))


def test_a_watched_directory_itself_may_be_a_link(top: Path) -> None:
    link = top.with_name("link")
    link.symlink_to(top)
    given = Request(paths=(f"{link}/{MACHINE}/system.journal", f"{link}/{MACHINE}/not-there.journal"))
    placed = worker.resolve(given, (f"{link}/",))
    assert placed.paths == (f"{top}/{MACHINE}/system.journal", f"{top}/{MACHINE}/not-there.journal")


# what a plan promises, and what then happens


def write_archive(bed: Bed, flushes: int = 40) -> Path:
    """Return an archive as journald leaves it after so many flushes, datacow and uncompressed."""
    bed.journald.age(flushes)
    return bed.journald.rotate()


def write_short_archive(bed: Bed) -> Path:
    """Return an archive in few extents, of which the rest of the last fallocate stays occupied."""
    return write_archive(bed, 1)


def write_sparse_archive(bed: Bed) -> Path:
    """Return an archive with data between holes."""
    path = write_archive(bed, 3)
    times = path.stat()
    for offset in range(MIB, times.st_size - MIB, 512 * KIB):
        run("fallocate", "--punch-hole", f"--offset={offset}", f"--length={256 * KIB}", path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return path


def write_nocow_archive(bed: Bed) -> Path:
    """Return an archive as a journald before 250 leaves it."""
    return put(bed.journald.journal, write_archive(bed).read_bytes(), archive_name(900), nocow=True)


def write_compressed_archive(bed: Bed) -> Path:
    """Return a fragmented archive that another program compressed in pieces of 16 KiB."""
    content = write_archive(bed).read_bytes()
    path = bed.journald.journal / archive_name(901)
    path.touch()
    run("btrfs", "property", "set", path, "compression", "zstd")
    with path.open("wb") as file:
        for offset in range(0, len(content), 16 * KIB):
            file.write(content[offset : offset + 16 * KIB])
            file.flush()
            os.fsync(file.fileno())
    run("chattr", "-c", path)
    return path


def write_pinned_archive(bed: Bed) -> Path:
    """Return an archive in one extent with an unwritten remnant of 8 MiB."""
    path = put(bed.journald.journal, write_archive(bed, 2).read_bytes(), archive_name(902), torn=False)
    with_unwritten(path, path.stat().st_size, 8 * MIB)
    return path


def write_shared_archive(bed: Bed) -> Path:
    """Return an archive that a snapshot keeps, too."""
    path = write_archive(bed)
    take_snapshot(bed)
    return path


def take_snapshot(bed: Bed) -> None:
    top = bed.volume.mountpoint
    run("btrfs", "filesystem", "sync", top)
    run("btrfs", "subvolume", "snapshot", "-r", top, top / f"snapshot-{os.urandom(4).hex()}")


def write_active(bed: Bed) -> Path:
    """Return an active file after many flushes."""
    bed.journald.age(150)
    return bed.journald.active


def write_shared_active(bed: Bed) -> Path:
    """Return an active file of which a snapshot keeps a part."""
    bed.journald.age(100)
    take_snapshot(bed)
    bed.journald.age(50)
    return bed.journald.active


PLAIN = ALWAYS.model_copy(update={"defrag": ALWAYS.defrag.model_copy(update={"compress": "no"})})
UNSHARE = NOW._replace(allow_unshare=True)
EFFECTS: dict[str, tuple[Callable[[Bed], Path], Config, Request]] = {
    "archive": (write_archive, ALWAYS, NOW),
    "archive, uncompressed": (write_archive, PLAIN, NOW),
    "short archive": (write_short_archive, ALWAYS, NOW),
    "sparse archive": (write_sparse_archive, ALWAYS, NOW),
    "sparse archive, uncompressed": (write_sparse_archive, PLAIN, NOW),
    "NOCOW archive": (write_nocow_archive, ALWAYS, NOW),
    "NOCOW archive, uncompressed": (write_nocow_archive, PLAIN, NOW),
    "compressed archive": (write_compressed_archive, ALWAYS, NOW),
    "pinned archive": (write_pinned_archive, ALWAYS, NOW),
    "pinned archive, uncompressed": (write_pinned_archive, PLAIN, NOW),
    "shared archive": (write_shared_archive, ALWAYS, UNSHARE),
    "shared archive, uncompressed": (write_shared_archive, PLAIN, UNSHARE),
    "active": (write_active, Config(), NOW),
    "active, every range": (write_active, ALWAYS.model_copy(update={"defrag": Defrag(extents_per_mib=2)}), NOW),
    "shared active": (write_shared_active, Config(), UNSHARE),
}


def is_near(expected: int, happened: int) -> bool:
    """Return whether an estimate is within a factor of 1.5, or off by 4 at most where both are below 10."""
    if max(expected, happened) < 10:
        return abs(expected - happened) <= 4
    return max(expected, happened) <= 1.5 * min(expected, happened)


@pytest.mark.parametrize(("write", "config", "request_"), EFFECTS.values(), ids=EFFECTS)
def test_a_rewrite_leaves_as_many_extents_as_the_plan_says(
    bed: Bed, write: Callable[[Bed], Path], config: Config, request_: Request
) -> None:
    path = write(bed)
    run("btrfs", "filesystem", "sync", bed.volume.mountpoint)
    while True:  # journald touches an archive up to 250 ms after its last append
        found = planned(path, request=request_, config=config)
        assert found.actions, found.skipped
        done = do(found.actions[0])
        if done.outcome.reason is not Reason.CHANGED:
            break
    assert done.outcome.result is Result.DONE, done.outcome
    assert is_near(found.actions[0].extents_expected, extents(path))


# what is known before the work


MakeEngine = Callable[..., Engine]
EAGER = Config(budget=Budget(keep_free_bytes=0), defrag=Defrag(min_reclaim_bytes=0))


def remount(volume: ScratchVolume, option: str) -> None:
    run("mount", "-o", f"remount,{option}", volume.mountpoint)


def run_once(engine: Engine) -> Outcome:
    (outcome,) = go(engine, Request(archived=True, now=True)).outcomes
    return outcome


def test_a_shared_archive_is_not_stored_again_where_it_cannot_be_compressed(
    machine: Path, volume: ScratchVolume, make_engine: MakeEngine, journal_bytes: bytes
) -> None:
    archive = put(machine, journal_bytes)
    run("cp", "--reflink=always", archive, volume.mountpoint / "copy")
    remount(volume, "nodatasum")
    engine = make_engine(machine.parent, config=EAGER)
    chosen = engine.plan(Request(archived=True, now=True))
    assert not chosen.actions
    (skip,) = chosen.skipped
    assert skip.reason is Reason.SHARED
    assert "mounted with nodatasum" in skip.detail
    assert "other files" in skip.detail
    assert "snapshot" not in skip.detail


@pytest.mark.parametrize("entries", [0, 2**64 - 1])
def test_a_file_of_an_unknown_format_is_left_alone_in_every_view(
    machine: Path, journal_bytes: bytes, tmp_path: Path, entries: int
) -> None:
    """systemd's segmented format has bit 5, the state OFFLINE while it is written, and either of these counters."""
    head = bytearray(journal_bytes)
    head[12], head[16], head[152:160] = head[12] | 1 << 5, 0, entries.to_bytes(8, "little")
    paths = [put(machine, bytes(head), name) for name in ("system.journal", "user-1000.journal", archive_name())]
    before = {path: (path.stat().st_ctime_ns, path.read_bytes()) for path in paths}

    def call(*words: str) -> Any:
        done = journalkeeper(*words, "-D", machine.parent, "-j", state=tmp_path, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done
        return json.loads(done.stdout)

    everywhere = {str(path): "unknown-format" for path in paths}
    assert {row["path"]: row["problem"] for row in call("scan")} == everywhere
    everywhere[str(machine)] = "unknown-format"
    skipped = call("plan")["skipped"], call("defrag", "--now")["skipped"]
    assert [{row["path"]: row["reason"] for row in rows} for rows in skipped] == [everywhere] * 2
    checks = call("doctor")
    assert not [row for row in checks["findings"] if "damaged" in str(row) or str(machine) in str(row)]
    assert {path: (path.stat().st_ctime_ns, path.read_bytes()) for path in paths} == before


def test_plain_data_is_not_called_compressed(
    machine: Path, volume: ScratchVolume, make_engine: MakeEngine, journal_bytes: bytes
) -> None:
    archive = put(machine, journal_bytes)
    run("chattr", "+m", machine)
    outcome = run_once(make_engine(machine.parent, config=EAGER))
    assert (outcome.action, outcome.result) == (Verb.DEFRAGMENT, Result.DONE)
    run("chattr", "-m", machine)
    remount(volume, "nodatasum")
    made = machine / f"system@{'0' * 32}-0000000000000009-0000000000000009.journal"
    made.write_bytes(journal_bytes)
    scatter(made)
    remount(volume, "datasum")
    (outcome,) = (
        one
        for one in go(make_engine(machine.parent, config=EAGER), Request(archived=True, now=True)).outcomes
        if one.path == str(made)
    )
    assert (outcome.action, outcome.result) != (Verb.COMPRESS, Result.DONE)
    assert disk_bytes(made) >= len(journal_bytes)
    assert archive.exists()


def test_an_attribute_that_may_not_be_set_is_named_with_the_right(
    machine: Path, tmp_path: Path, journal_bytes: bytes
) -> None:
    archive = put(machine, journal_bytes, nocow=True)
    os.setxattr(archive, "security.ima", b"\1signature")
    words = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    done = journalkeeper("defrag", "--now", "-D", machine.parent, state=tmp_path / "state", inside=words, check=False)
    assert "security.ima" in done.stdout
    assert "CAP_SYS_ADMIN" in done.stdout
    assert "read-only" not in done.stdout
    assert is_nocow(archive)


def look(observer_: Observer, top: Path, *, hours: int) -> tuple[JournalFile, ...]:
    return observer_.look((str(top),), now_us=time.time_ns() // 1000 + hours * 3_600_000_000).files


@pytest.mark.parametrize("state", [0, 1], ids=["offline", "online"])
@pytest.mark.parametrize("nocow", [False, True], ids=["datacow", "nocow"])
def test_a_journal_without_a_writer_is_compressed_once_after_a_day(  # noqa: PLR0917 - fixtures and two tables
    machine: Path,
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    journal_bytes: bytes,
    state: int,
    nocow: bool,
) -> None:
    content = bytearray(journal_bytes)
    content[16] = state
    dead = put(machine, bytes(content), "system.journal", nocow=nocow)
    engine = make_engine(machine.parent, config=EAGER, follows=True)
    assert [row.kind for row in look(engine.memory.observer, machine.parent, hours=23)] == [Kind.ACTIVE]
    with dead.open("r+b"):
        assert [row.kind for row in look(engine.memory.observer, machine.parent, hours=25)] == [Kind.ACTIVE]
    assert [row.kind for row in look(engine.memory.observer, machine.parent, hours=25)] == [Kind.ORPHANED]
    monkeypatch.setattr(observer, "DAY_US", 0)
    found = go(engine, Request(archived=True, now=True)).outcomes
    assert [(one.action, one.result) for one in found] == [(Verb.REWRITE if nocow else Verb.COMPRESS, Result.DONE)]
    assert disk_bytes(dead) < len(journal_bytes) / 2
    assert not go(engine, Request(archived=True, now=True)).outcomes
    said = journalkeeper("history", "-D", machine.parent, state=Path(engine.state_directory)).stdout
    assert f"{MACHINE[:8]}" in said


def test_the_journal_of_a_journald_here_is_never_an_orphan(
    machine: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(machine, journal_bytes, "system.journal")
    monkeypatch.setattr(layout, "TOP", f"{machine.parent}")
    monkeypatch.setattr(layout, "read_machine_id", lambda: MACHINE)
    assert [row.kind for row in look(Observer(), machine.parent, hours=25)] == [Kind.ACTIVE]
    web = machine.parent / f"{MACHINE}.web"
    web.mkdir()
    put(web, journal_bytes, "system.journal")
    kinds = {row.instance: row.kind for row in look(Observer(), machine.parent, hours=25)}
    assert kinds == {MACHINE: Kind.ACTIVE, f"{MACHINE}.web": Kind.ORPHANED}


# snapshots of the journal's subvolume


@pytest.fixture
def root(volume: ScratchVolume) -> Path:
    """A subvolume with an empty journal directory, beside another subvolume."""
    path = volume.mountpoint / "@"
    for one in (path, volume.mountpoint / "other"):
        run("btrfs", "subvolume", "create", one)
    (path / "journal").mkdir()
    return path


def snapshot(source: Path, name: str, *words: str) -> Path:
    path = source.parent / name
    run("btrfs", "subvolume", "snapshot", *words, source, path)
    return path


def count(path: Path) -> int | None:
    with opening.open_directory(str(path)) as fd:
        return count_snapshots(fd)


def test_the_family_of_the_subvolume_counts_also_after_a_rollback(root: Path) -> None:
    journal = root / "journal"
    assert count(journal) == 0
    snapshot(snapshot(root.parent / "other", "other-1"), "other-2")
    run("btrfs", "subvolume", "create", root / "inside")
    assert count(journal) == 0
    first = snapshot(root, "first", "-r")
    assert count(journal) == 1
    assert count(root / "inside") == 0
    snapshot(first, "second")
    assert (count(journal), count(root.parent / "second")) == (2, 2)
    with opening.open_directory(str(journal)) as fd:
        assert as_nobody(lambda: count_snapshots(fd)) is None
    run("btrfs", "subvolume", "delete", root.parent / "second", first)
    assert count(journal) == 0


def test_the_top_of_the_volume_does_not_count_for_a_snapshot_of_it(volume: ScratchVolume) -> None:
    top = volume.mountpoint
    moved = snapshot(top, f"{top.name}/@")
    assert (count(top), count(moved)) == (1, 0)
    snapshot(moved, "later")
    assert (count(top), count(moved)) == (2, 1)


@pytest.mark.parametrize(("reflink", "reason"), [(False, "snapshots"), (True, "no-redundancy")])
def test_only_a_snapshot_keeps_an_empty_directory_datacow(
    root: Path, capsys: pytest.CaptureFixture[str], journal_bytes: bytes, reflink: bool, reason: str
) -> None:
    machine = root / "journal" / ("4" * 32)
    machine.mkdir()
    if reflink:
        shared = put(machine, journal_bytes)
        run("cp", "--reflink=always", shared, root / "copy")
    else:
        snapshot(root, "snapshot", "-r")
    program.run(["plan", "-j", "-D", str(machine.parent)])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    found = {one["reason"] for one in (*said["actions"], *said["skipped"]) if one["path"] == str(machine)}
    assert reason in found
    assert not reflink or "snapshot" not in str(said["skipped"])


def test_a_snapshot_after_the_look_is_in_time(root: Path) -> None:
    status = (root / "journal").stat()
    one = instance(directory=str(root / "journal"), device=status.st_dev, inode=status.st_ino)
    snapshot(root, "snapshot")
    with pytest.raises(Refused, match="snapshot") as refused:
        upkeep.set_nocow(one, Reason.NO_REDUNDANCY)
    assert refused.value.reason is Reason.SNAPSHOTS
    upkeep.set_nocow(one, Reason.CONFIGURED)


def test_a_snapshot_is_seen_after_a_day_and_a_reflink_of_a_user_is_none(
    root: Path, make_engine: Callable[..., Engine]
) -> None:
    (root / "journal" / ("4" * 32)).mkdir()
    engine = make_engine(root / "journal", follows=True)
    observer, now_us = engine.memory.observer, time.time_ns() // 1000

    def look(hours: int) -> int | None:
        return observer.look(engine.directories, now_us=now_us + hours * 3_600_000_000).volumes[0].snapshots

    assert look(0) == 0
    snapshot(root, "snapshot")
    assert (look(23), look(24)) == (0, 1)


def test_a_read_only_subvolume_is_known_before_the_plan(
    root: Path, make_engine: Callable[..., Engine], journal_bytes: bytes
) -> None:
    put(root / "journal", journal_bytes)
    engine = make_engine(root / "journal")
    with opening.open_directory(str(root)) as fd:
        assert not read_volume(fd).read_only_subvolume
        run("btrfs", "property", "set", "-t", "subvol", root, "ro", "true")
        assert read_volume(fd).read_only_subvolume
    chosen = engine.plan(Request(now=True, upkeep=True))
    assert not chosen.actions
    assert {skip.reason for skip in chosen.skipped} >= {Reason.READ_ONLY}
    assert all("subvolume is read-only" in skip.detail for skip in chosen.skipped if skip.reason is Reason.READ_ONLY)


@pytest.mark.parametrize(
    ("path", "text", "tool"),
    [
        ("snapper/configs/root", 'FSTYPE="btrfs"\nSUBVOLUME="{root}"\nALLOW_USERS=""\n', "snapper"),
        ("snapper/configs/home", 'SUBVOLUME="{other}"\n', ""),
        ("snapper/configs/root", '# SUBVOLUME="{root}"\n', ""),
        ("btrbk/btrbk.conf", "snapshot_dir x\nvolume {top}\n  subvolume @\n", "btrbk"),
        ("btrbk/btrbk.conf", "volume {top}\n  subvolume o*\n", ""),
        ("btrbk.conf", "subvolume {root}\n", "btrbk"),
        ("timeshift/timeshift.json", '{{"btrfs_mode" : "true"}}', ""),
        ("timeshift/timeshift.json", '{{"btrfs_mode" : "false"}}', ""),
    ],
)
def test_a_tool_is_named_whose_configuration_covers_the_subvolume(
    root: Path, tmp_path: Path, path: str, text: str, tool: str
) -> None:
    file = tmp_path / "etc" / path
    file.parent.mkdir(parents=True)
    file.write_text(text.format(root=root, other=root.parent / "other", top=root.parent))
    assert find_tool(os.stat(root / "journal").st_dev, str(tmp_path / "etc")) == tool
    if path.startswith("timeshift"):
        covers_root = find_tool(os.stat("/").st_dev, str(tmp_path / "etc"))
        assert covers_root == ("timeshift" if "true" in text else "")
