# SPDX-License-Identifier: LGPL-2.1-or-later
"""NOCOW directories and rotations, with a real journald on a real btrfs.

Whatever asks journald runs in journald's mount namespace, where /run and
/var/log/journal are its own; so nothing here can reach a journald of the host.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.btrfs import inode
from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.execute import upkeep
from journalkeeper.journald import control
from journalkeeper.journald.journal_file import STATE_OFFSET
from journalkeeper.model import Action, Instance, Plan, Reason, Request, Result, Rotation, Verb
from journalkeeper.observe.observer import Observer
from journalkeeper.policy.plan import plan
from journalkeeper.probe.bed import ARCHIVED, Bed, PrivateJournald
from journalkeeper.probe.scratch_volume import run
from tests.btrfs.journals import FORMS, do, how, is_nocow
from tests.daemon import journalkeeper
from tests.journal_files import archive_name, put
from tests.patience import eventually
from tests.volumes import kill

pytestmark = pytest.mark.root
"""A user of nothing but this test, whom journald gives a journal."""

Run = Callable[..., dict[str, Any]]
Answers = Callable[[Callable[[], object]], None]


@pytest.fixture
def keep(tmp_path: Path) -> Run:
    """Run the command where `journald` lives; what it said as JSON."""

    def kept(journald: PrivateJournald, *words: str, conf: str = "", verb: str = "defrag") -> dict[str, Any]:
        (tmp_path / "conf").write_text(conf)
        command: tuple[str | Path, ...] = (verb, "-j", "--config", tmp_path / "conf", *words)
        done = journalkeeper(*command, state=tmp_path / "state", inside=journald.inside, check=False)
        assert done.returncode in {0, 1}, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return kept


def archives(journald: PrivateJournald) -> list[Path]:
    return sorted(journald.journal.glob("*@*.journal"))  # and no copy that journald is still making


def what(found: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Of each outcome that was not left alone: the name, and how it went."""
    return [
        (os.path.basename(one["path"]), one["action"], one["result"], one["reason"])
        for one in found["outcomes"]
        if one["action"] in {"set-nocow", "rotate"}
    ]


def reasons(found: dict[str, Any], path: Path) -> list[str]:
    """Why what is at `path` in journald's namespace was left alone."""
    left = [*found["skipped"], *(one for one in found["outcomes"] if one["result"] == "skipped")]
    return [one["reason"] for one in left if one["path"] == inside(path)]


def inside(directory: Path) -> str:
    """What an instance's directory is called in journald's namespace."""
    return f"/var/log/journal/{directory.name}"


def oldest(journald: PrivateJournald) -> str:
    """The cursor of the first entry that is left."""
    lines = run("journalctl", "-D", journald.journal, "-o", "json", "--output-fields=PRIORITY").partition("\n")
    return str(json.loads(lines[0])["__CURSOR"])


def test_the_directory_becomes_nocow_and_the_file_of_the_first_boot_is_rotated_once(bed: Bed, keep: Run) -> None:
    journald = bed.journald
    journald.age(20)
    before = journald.active.stat().st_ino
    assert not is_nocow(journald.active)
    machine = journald.journal.name
    assert what(keep(journald)) == [
        (machine, "set-nocow", "done", "no-redundancy"),
        ("system.journal", "rotate", "done", "born-datacow"),
    ]
    assert is_nocow(journald.journal)
    assert is_nocow(journald.active)
    assert [path.stat().st_ino for path in archives(journald)] == [before]
    journald.age(2)
    inode_now = journald.active.stat().st_ino
    assert what(keep(journald)) == []
    assert journald.active.stat().st_ino == inode_now
    assert len(archives(journald)) == 1
    run("journalctl", "--verify", "-D", journald.journal)


@FORMS
def test_a_shared_active_file_is_rotated_and_its_archive_compacted(bed: Bed, keep: Run, *, nocow: bool) -> None:
    journald, volume = bed.journald, bed.volume.mountpoint
    if nocow:
        run("chattr", "+C", journald.journal)
        journald.rotate()
        archives(journald)[0].unlink()
    first = ""
    for number in range(3):
        journald.age(60)
        first = first or oldest(journald)
        run("btrfs", "subvolume", "snapshot", "-r", volume, volume / f"snapshot{number}")
    found = keep(journald, "--now")
    assert [row[1:] for row in what(found)] == [("rotate", "done", "cheaper")]
    assert reasons(found, journald.journal) == ["snapshots"]
    assert is_nocow(journald.journal) == nocow
    # journald copies a NOCOW file when it archives it
    assert eventually(lambda: any(not is_nocow(one) for one in archives(journald)))
    time.sleep(0.5)  # and truncates it last
    found = keep(journald, "--now")
    (archive,) = archives(journald)
    (row,) = [one for one in found["outcomes"] if one["path"].endswith(archive.name)]
    if nocow:  # journald has made a copy of its own, of which no snapshot knows
        assert (row["result"], row["unshared_bytes"]) == ("done", 0), row
    else:
        assert (row["action"], row["result"]) == ("compress", "done")
        assert 0 < row["unshared_bytes"] == row["disk_bytes_after"] <= archive.stat().st_size // 4
    assert oldest(journald) == first
    # By now nothing is shared, and the snapshots are known all the same.
    found = keep(journald)
    assert what(found) == []
    assert reasons(found, journald.journal) == ["snapshots"]


# What comes to nothing


def looked_at(bed: Bed, **instance: object) -> Plan:
    """What would be ordered if the journald here could be asked."""
    seen = Observer().look((str(bed.journald.directory),), now_us=0)
    roomy = {"rotatable": True, "system_max_use_bytes": 4 << 30, "system_max_file_size_bytes": 128 << 20}
    roomy["available_bytes"] = 100 << 30  # of which one small archive more takes no entry away
    changed = tuple(one._replace(**{**roomy, **instance}) for one in seen.instances)  # type: ignore[arg-type]
    engine = Engine(Config(), directories=(str(bed.journald.directory),))
    return plan(engine.look(Request())._replace(instances=changed), Request(upkeep=True, now=True), Config())


def the_action(bed: Bed, verb: Verb) -> Action:
    (action,) = [action for action in looked_at(bed).actions if action.action is verb]
    return action


def test_a_directory_that_did_not_take_it_is_a_failure_with_the_reason(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inode, "set_flags", lambda fd, flags: None)  # as a kernel that says yes and does nothing
    outcome = do(the_action(bed, Verb.SET_NOCOW)).outcome
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.NOT_TAKEN)
    assert "did not set the attribute C" in outcome.detail


@pytest.mark.parametrize(
    ("words", "reason"),
    [(("true",), Reason.CHANGED), (("chattr", "+C"), Reason.NO_JOURNALD)],
    ids=["rotated before the directory is NOCOW", "the journald is gone"],
)
def test_a_directory_that_changed_since_the_plan_is_left_alone(
    bed: Bed, words: tuple[str, ...], reason: Reason
) -> None:
    action = the_action(bed, Verb.ROTATE)
    run(*words, bed.journald.journal)
    assert how(do(action)) == (Result.SKIPPED, reason)


def test_another_directory_of_that_name_is_left_alone(bed: Bed) -> None:
    action = the_action(bed, Verb.SET_NOCOW)
    assert isinstance(action.target, Instance)
    gone = action._replace(target=action.target._replace(inode=1))
    assert do(gone).outcome.reason is Reason.CHANGED
    away = action._replace(target=action.target._replace(directory="/nonexistent"))
    assert do(away).outcome.reason is Reason.VANISHED


def test_a_journald_that_stores_in_memory_is_not_asked_to_rotate(
    make_bed: Callable[..., Bed], keep: Run, journal_bytes: bytes
) -> None:
    """The mark of a flush in an earlier time of this boot stays in /run."""
    journald = make_bed("Storage=volatile").journald
    put(journald.journal, journal_bytes, "system.journal")
    found = keep(journald, "--now", conf="[Nocow]\nNocow=yes\n")
    assert [row[1:3] for row in what(found)] == [("set-nocow", "done")]
    assert Reason.NO_JOURNALD in reasons(found, journald.journal)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Have a journald that can be asked, and that does what is given when it is asked to rotate."""

    def answer(rotate: Callable[[], object]) -> None:
        monkeypatch.setattr(control, "can_be_asked", lambda *_: True)
        monkeypatch.setattr(control, "rotate", lambda _namespace: rotate())

    return answer


def test_a_yes_is_not_believed_while_the_file_is_the_same(bed: Bed, answers: Answers) -> None:
    """As a journald that writes elsewhere answers."""
    action = the_action(bed, Verb.ROTATE)._replace(reason=Reason.CHEAPER)
    answers(lambda: None)
    outcome = do(action).outcome
    assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.NO_JOURNALD)
    assert "the file is the same" in outcome.detail


def test_a_new_file_that_did_not_inherit_is_a_failure(bed: Bed, answers: Answers) -> None:
    action = the_action(bed, Verb.ROTATE)
    run("chattr", "+C", bed.journald.journal)

    def rotate() -> None:
        bed.journald.rotate()
        copy = bed.journald.journal / "copy"
        copy.touch()
        run("chattr", "-C", copy)
        shutil.copyfile(bed.journald.active, copy)
        copy.rename(bed.journald.active)

    answers(rotate)
    assert how(do(action)) == (Result.FAILED, Reason.NOT_TAKEN)


def test_a_name_without_a_successor_is_rotated_all_the_same(bed: Bed, answers: Answers) -> None:
    """As the file of a user who is not logged in: it comes back with the next message."""
    user = bed.journald.journal / "user-1000.journal"
    shutil.copyfile(bed.journald.active, user)
    action = the_action(bed, Verb.ROTATE)
    (file,) = Observer().look_at((str(user),), now_us=0).files
    assert isinstance(action.target, Rotation)
    target = action.target._replace(file=file)
    action = action._replace(path=str(user), target=target, reason=Reason.CHEAPER)
    answers(user.unlink)
    done = do(action)
    assert (done.outcome.result, done.outcome.extents_after) == (Result.DONE, 0)


def rotated_but_not_finished(bed: Bed) -> None:
    """Do what journald does to rotate, but for the mark in the archive."""
    archive = bed.journald.journal / archive_name()
    kill(bed.journald)
    bed.journald.active.rename(archive)
    shutil.copyfile(archive, bed.journald.active)


def test_a_rotation_is_over_when_journald_has_finished_the_archive(bed: Bed, answers: Answers) -> None:
    """It answers before. A commit until then, as of our record, can make an archive durable that nobody can read."""
    action = the_action(bed, Verb.ROTATE)._replace(reason=Reason.CHEAPER)
    archive = bed.journald.journal / archive_name()

    def finish() -> None:
        with open(archive, "r+b") as file:
            os.pwrite(file.fileno(), bytes([ARCHIVED]), STATE_OFFSET)

    finishing = threading.Timer(0.5, finish)

    def rotate() -> None:
        rotated_but_not_finished(bed)
        finishing.start()

    answers(rotate)
    done = do(action)
    state = archive.read_bytes()[STATE_OFFSET]
    finishing.join()
    assert (done.outcome.result, state) == (Result.DONE, ARCHIVED)


def test_an_archive_that_journald_does_not_finish_is_not_waited_for_without_end(
    bed: Bed, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = the_action(bed, Verb.ROTATE)._replace(reason=Reason.CHEAPER)
    answers(partial(rotated_but_not_finished, bed))
    monkeypatch.setattr(upkeep, "FINISHED_S", 0.1)
    assert do(action).outcome.result is Result.DONE


def test_where_the_socket_is_dead_nobody_writes_and_nothing_has_failed(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As that of a namespace's journald of 252 which ended for want of work: its socket units end with it."""
    monkeypatch.setattr(control, "RUNTIME", str(tmp_path))
    monkeypatch.setattr(control, "can_be_asked", lambda *_: True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(control.get_socket_path())
    outcome = do(the_action(bed, Verb.ROTATE)._replace(reason=Reason.CHEAPER)).outcome
    assert (outcome.result, outcome.reason) == (Result.SKIPPED, Reason.NO_JOURNALD)
    assert os.strerror(errno.ECONNREFUSED) in outcome.detail
