# SPDX-License-Identifier: LGPL-2.1-or-later
"""A plan leaves no trace, is about watched files only, and estimates what then happens."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.config.directives import Config, Defrag
from journalkeeper.engine import Engine
from journalkeeper.journald import control
from journalkeeper.model import KIB, MIB, Reason, Request, Result
from journalkeeper.model.errors import UsageError
from journalkeeper.observe import flushes
from journalkeeper.policy.flush_timer import FlushTimer
from journalkeeper.probe.bed import Bed
from journalkeeper.probe.scratch_volume import run
from journalkeeper.service import worker
from tests.btrfs.journals import ALWAYS, NOW, do, extents, go, planned, with_unwritten
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put

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
    assert engine.look_and_plan(NOW)[1].syncs
    engine.look_and_plan(NOW._replace(paths=(f"{engine.directories[0]}/{MACHINE}/system.journal",)))
    engine.look(NOW)
    go(engine, stop=lambda: True)
    assert asked == []
    assert engine.look_for_due_plan(), "it is still time for a plan"
    go(engine)
    assert asked


def test_a_directory_that_became_a_link_after_it_was_checked_leads_nowhere(engine: Engine, top: Path) -> None:
    """The owner of remote/ may exchange what is in it at any moment."""
    sub = top / "remote" / "sub"
    (name,) = os.listdir(sub)
    checked = worker.resolve(Request(paths=(f"{sub}/{name}",), now=True), engine.directories)
    assert [action.path for action in engine.look_and_plan(checked)[1].actions] == [f"{sub}/{name}"]
    sub.rename(top / "remote" / "moved")
    sub.symlink_to(top.parent / "elsewhere")
    _, found = engine.look_and_plan(checked)
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
