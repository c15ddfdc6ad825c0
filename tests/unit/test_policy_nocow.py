# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which directories become NOCOW, and why the others do not."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper.config.directives import Config, Nocow
from journalkeeper.model import Action, Host, Instance, Kind, Reason, Refusal, Request, Skip, Verb, Volume
from journalkeeper.model.units import MINUTE_US, format_span
from journalkeeper.policy import nocow
from journalkeeper.policy.case import Cases
from journalkeeper.policy.plan import plan
from tests.hosts import DEVICE, DIRECTORY, NOW_US, extents, file, host, instance, volume

DONE, BOTH = {"auto": Reason.NO_REDUNDANCY, "yes": Reason.CONFIGURED}, (False, True)


def config(word: str) -> Config:
    return Config(nocow=Nocow(nocow=word))  # type: ignore[arg-type] # one of three words


def decide(one: Instance, volume: Volume | None, host: Host, config: Config) -> Action | Skip | None:
    return nocow.decide(one, volume, Cases(host, Request(), config))


def answer(word: str, **words: object) -> Action | Skip | None:
    """What is decided of a directory of inode 256 on one volume; `words` for the instance or the volume."""
    keys = ("data_profile", "redundant", "options", "read_only_subvolume")
    of_volume = {key: words.pop(key) for key in keys if key in words}
    return decide(instance(inode=256, **words), volume(**of_volume), host(), config(word))


@pytest.mark.parametrize(
    ("word", "words", "reason"),
    [
        *((word, {}, reason) for word, reason in DONE.items()),
        *(("no", {"nocow": nocow, "redundant": redundant}, None) for nocow in BOTH for redundant in BOTH),
        ("auto", {"nocow": True}, None),
        *(("yes", {"nocow": True, "redundant": redundant}, None) for redundant in BOTH),
        # it cannot or need not be set
        ("auto", {"options": ("rw", "nodatacow")}, Reason.IDEAL),
        ("auto", {"options": ("ro",)}, Reason.READ_ONLY),
        ("auto", {"read_only_subvolume": True}, Reason.READ_ONLY),
        ("auto", {"compressed": True}, Reason.COMPRESSION),
        ("auto", {"refuses_compression": True}, Reason.COMPRESSION),
        ("auto", {"options": ("ro",), "redundant": True}, Reason.REDUNDANT),
        ("auto", {"nocow": True, "redundant": True}, Reason.REDUNDANT),
    ],
)
def test_a_directory_becomes_nocow_or_not(word: str, words: dict[str, object], reason: Reason | None) -> None:
    found = answer(word, **words)
    assert (found and (found.path, found.reason)) == (reason and (DIRECTORY, reason))
    assert isinstance(found, Action) == (reason in DONE.values())
    assert not isinstance(found, Action) or found.action is Verb.SET_NOCOW


@pytest.mark.parametrize(
    ("age_us", "now", "waits"),
    [
        (0, False, True),
        (MINUTE_US - 1, False, True),
        (MINUTE_US, False, False),
        (-1, False, False),  # the clock was set back
        (0, True, False),
    ],
)
def test_a_service_that_just_started_sets_it_after_the_settle_time(age_us: int | None, now: bool, waits: bool) -> None:
    began_us = None if age_us is None else NOW_US - age_us
    one = host(file(Kind.ACTIVE), began_us=began_us)
    found = plan(one, Request(now=now, upkeep=True), Config())
    reasons = {skip.reason: skip for skip in found.skipped}
    assert [action.action for action in found.actions] == ([] if waits else [Verb.SET_NOCOW])
    assert (Reason.STARTING in reasons) == waits
    if waits:
        assert found.wake_at_us == NOW_US - (age_us or 0) + MINUTE_US
        assert f"+C in {format_span(MINUTE_US - (age_us or 0))}:" in reasons[Reason.STARTING].detail


def test_a_directory_on_another_filesystem_is_not_spoken_of() -> None:
    assert decide(instance(), None, host(), config("yes")) is None


@pytest.mark.parametrize(("minutes", "again"), [(0, False), (59, False), (60, True), (-1, True)])
def test_a_failed_change_of_nocow_is_tried_again_after_an_hour(minutes: int, again: bool) -> None:
    when_us = NOW_US - minutes * MINUTE_US
    refused = {(DEVICE, 256): Refusal(when_us, 0, 0, Reason.NOT_TAKEN, "it is not there")}
    found = decide(instance(inode=256), volume(), host(refused=refused), config("auto"))
    if again:
        assert isinstance(found, Action)
    else:
        assert isinstance(found, Skip)
        assert (found.reason, found.until_us) == (Reason.NOT_TAKEN, when_us + 60 * MINUTE_US)
        assert found.detail.endswith("ago: it is not there")


@pytest.mark.parametrize(
    ("nocow", "words"),
    [(False, "the volume stores data as raid1"), (True, "see `journalkeeper doctor`")],
)
def test_data_with_copies_stays_datacow_and_a_nocow_directory_is_warned_of(words: str, *, nocow: bool) -> None:
    found = answer("auto", nocow=nocow, data_profile="raid1", redundant=True)
    assert isinstance(found, Skip)
    assert words in found.detail


SHARED = file(extents=extents(shared_bytes=4096))


@pytest.mark.parametrize(
    ("given", "words", "clause"),
    [
        (host(), {"snapshots": 1}, "its subvolume has 1 snapshot"),
        (host(SHARED), {"snapshots": 2}, "its subvolume has 2 snapshots"),
        (host(SHARED), {}, "other files share its data"),
        (host(SHARED._replace(kind=Kind.ACTIVE)), {}, "other files share its data"),
        (host(), {"snapshot_tool": "snapper"}, "snapper is configured for its subvolume"),
    ],
)
def test_auto_keeps_journals_with_snapshots_datacow_unlike_yes(given: Host, words: dict[str, Any], clause: str) -> None:
    found = decide(instance(), volume(**words), given, config("auto"))
    assert isinstance(found, Skip)
    assert (found.path, found.reason) == (DIRECTORY, Reason.SNAPSHOTS)
    assert found.detail.startswith(clause)
    assert isinstance(decide(instance(), volume(**words), given, config("yes")), Action)
    warned = decide(instance(nocow=True), volume(**words), given, config("auto"))
    assert isinstance(warned, Skip)
    assert warned.reason is Reason.SNAPSHOTS
    assert "doctor" in warned.detail


@pytest.mark.parametrize(
    ("snapshots", "detail"), [(0, "no snapshots"), (None, "none of the files is shared")], ids=["asked", "unknown"]
)
def test_a_reflink_is_no_snapshot_where_btrfs_could_be_asked(snapshots: int | None, detail: str) -> None:
    given = host(SHARED) if snapshots is not None else host()
    found = decide(instance(), volume(snapshots=snapshots), given, config("auto"))
    assert isinstance(found, Action)
    assert found.detail == detail


def test_no_advice_undoes_what_was_done_lately() -> None:
    given = host(made_nocow=frozenset({DIRECTORY}))
    assert decide(instance(nocow=True), volume(snapshots=1), given, config("auto")) is None
    assert isinstance(decide(instance(), volume(snapshots=1), given, config("auto")), Skip)  # an admin removed it
    copies = volume(snapshots=1, redundant=True)
    assert isinstance(decide(instance(nocow=True), copies, given, config("auto")), Skip)


@pytest.mark.parametrize(
    "words",
    [{"owner": "user:1000"}, {"path": "/var/log/journal/b.web/system.journal"}],
    ids=["a user may reflink an own journal", "another directory"],
)
def test_a_shared_file_of_somebody_else_is_no_evidence(words: dict[str, Any]) -> None:
    assert isinstance(decide(instance(), volume(), host(SHARED._replace(**words)), config("auto")), Action)


@pytest.mark.parametrize(
    ("request_", "number"),
    [(Request(upkeep=True), 1), (Request(), 0), (Request(paths=(f"{DIRECTORY}/system.journal",), upkeep=True), 0)],
)
def test_directories_are_for_who_asks_for_upkeep_of_everything(request_: Request, number: int) -> None:
    found = plan(host(file()), request_, Config())
    assert [action.action for action in found.actions].count(Verb.SET_NOCOW) == number
