# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each rule of doctor on both sides of each of its boundaries."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper.config import Config
from journalkeeper.health import finding as findings
from journalkeeper.health.evidence import Evidence, Hung, Obstacle, Present, Silence, Storage, Unit, Unknown, lacks_room
from journalkeeper.health.finding import judge, list_names, name_rule, shorten
from journalkeeper.health.verdict import HEALTH, RULES
from journalkeeper.model import MIB, JournalFile, Kind, Reason, Skip
from journalkeeper.model.manager import Finding, Manager, Severity
from journalkeeper.model.run import Run, Wait
from journalkeeper.model.units import DAY_US, HOUR_US, SECOND_US
from tests.evidence import UNITS, evidence, intake, journal, limits, look, recorded
from tests.hosts import DIRECTORY, NOW_US, configured, extents, file, instance, volume

WORDS = [name_rule(rule) for rule in RULES]
PROBLEM, ADVICE = Severity.PROBLEM, Severity.ADVICE
UNSEEN = Unknown("not looked at")
BUSY = Hung("The bus is busy", is_bus_busy=True)
DIRECTORY_SHOP = f"{DIRECTORY}.shop"


def answer(rule: str, given: Evidence) -> Finding | Unknown | None:
    """Return the answer of the rule with this word."""
    return findings.answer(RULES[WORDS.index(rule)], given)


def finding(rule: str, given: Evidence) -> Finding:
    """Return the finding of the rule with this word; fail if it has none."""
    found = answer(rule, given)
    assert isinstance(found, Finding)
    return found


def seen(*files: JournalFile, **words: Any) -> Evidence:
    """Return evidence with these files; `words` are those of `look`."""
    return evidence(look=look(*files, **words))


def read(**words: Any) -> Evidence:
    """Return evidence with a journal that has these fields."""
    return evidence(journal=journal(**words))


def units(**states: str) -> tuple[Unit, ...]:
    """Return the units of a healthy host, some in another state, such as `service="failed/failed/enabled"`."""
    names = {"service": "journalkeeper.service", "timer": "journalkeeper.timer", "defrag": "journalkeeper-defrag.timer"}
    changed = {}
    for key, text in states.items():
        active, sub, enabled = text.split("/")
        changed[names[key]] = Unit(names[key], active, sub, enabled)
    return tuple(changed.get(unit.name, unit) for unit in UNITS)


def now(**words: Any) -> Evidence:
    """Return evidence in which the present has these fields."""
    return evidence(present=Present(**words))


def ran(hours: float) -> dict[str, Any]:
    """Return the part of evidence with a history whose last run by hand began that many hours ago."""
    return {"record": recorded(last_run=Run(1, "defrag", NOW_US - round(hours * HOUR_US), NOW_US, 1, 0, 0, 9))}


def down(**states: str) -> Evidence:
    """Return evidence of a service that is not on the bus; `states` are those of `units`."""
    return evidence(units=units(**states), service=None)


def starting(seconds: int) -> Evidence:
    """Return evidence of a service that systemd has been starting for so long."""
    unit = Unit("journalkeeper.service", "activating", "start", "enabled", age_us=seconds * SECOND_US)
    return evidence(units=(unit, *UNITS[1:]), service=None)


LACKING = Skip("/j/a", Reason.FREE_SPACE, "8 MiB are needed, 0 are to spare")


def waiting(days: float) -> tuple[Wait, ...]:
    return (Wait("/a.journal", NOW_US - round(days * DAY_US), "budget"),)


def torn(total: int, kind: Kind = Kind.ARCHIVED, problem: Reason | None = None, **words: Any) -> Evidence:
    """Return evidence of a file in `total` extents, with Compress=no; `words` replace parts of the evidence."""
    config = words.pop("config", Config())
    config = config.model_copy(update={"defrag": config.defrag.model_copy(update={"compress": "no"})})
    one = file(kind, extents=extents(total, per_mib=(total,)), problem=problem)
    return evidence(**{"look": look(one), **words, "config": config})


DISABLED = units(service="inactive/dead/disabled", timer="inactive/dead/disabled")
UNKEPT: dict[str, Any] = {"units": DISABLED, "service": None}
BY_TIMER = units(service="inactive/dead/disabled", defrag="active/waiting/enabled")
NOCOW = instance(nocow=True)
SHARED = file(extents=extents(shared_bytes=16 * MIB))
READ_ONLY = (volume(read_only_subvolume=True),)

FOUND: list[tuple[str, Severity, Evidence]] = [
    ("volatile", ADVICE, evidence(storage=Storage("volatile", persistent_directory=True, flushed=True))),
    ("volatile", ADVICE, evidence(storage=Storage("auto", persistent_directory=False, flushed=True))),
    ("volatile", ADVICE, evidence(storage=Storage("auto", persistent_directory=True, flushed=False))),
    ("not-btrfs", ADVICE, seen(foreign=("/var/log/journal",))),
    ("nocow-redundant", ADVICE, seen(instances=(NOCOW,), volumes=(volume(data_profile="raid1", redundant=True),))),
    ("nocow-snapshots", ADVICE, seen(SHARED, instances=(NOCOW,))),
    ("nocow-snapshots", ADVICE, seen(instances=(NOCOW,), volumes=(volume(snapshots=1),))),
    ("pinned-by-snapshots", ADVICE, seen(SHARED._replace(disk_bytes=32 * MIB))),
    ("damaged", ADVICE, seen(file(problem=Reason.NOT_JOURNAL))),
    ("waits", ADVICE, read(intake=intake(98) + intake(2, 500_000))),
    ("waits", ADVICE, read(intake=intake(999) + intake(1, 3_000_000))),
    ("fragmented", ADVICE, torn(301, **UNKEPT)),
    ("fragmented", ADVICE, torn(301, units=UNSEEN, service=UNSEEN)),
    ("fragmented", ADVICE, torn(301, service=Manager(state="paused", paused=True))),
    ("fragmented", ADVICE, torn(301, Kind.ACTIVE, **UNKEPT)),
    ("no-room", PROBLEM, evidence(full=((DIRECTORY, volume()),))),
    ("no-room", PROBLEM, evidence(full=((DIRECTORY, volume(quota_bytes=MIB)),))),
    ("journald-silent", PROBLEM, evidence(silent=(("systemd-journald.service", Silence.HUNG),))),
    ("journald-silent", PROBLEM, evidence(silent=(("systemd-journald.service", Silence.ROLLED_BACK),))),
    ("keeper-down", PROBLEM, down(service="failed/failed/enabled")),
    ("keeper-down", PROBLEM, starting(60)._replace(service=Hung())),
    ("keeper-down", PROBLEM, down(service="inactive/dead/masked")),
    ("keeper-down", PROBLEM, down(service="inactive/dead/masked")._replace(service=BUSY)),
    ("keeper-down", PROBLEM, down(service="activating/auto-restart/enabled")),
    ("keeper-down", PROBLEM, down(service="inactive/dead/enabled")),
    ("keeper-down", PROBLEM, down(service="inactive/dead/disabled", timer="inactive/dead/disabled")),
    ("keeper-down", PROBLEM, down(service="inactive/dead/", timer="inactive/dead/")),
    ("keeper-down", PROBLEM, down(service="inactive/dead/", timer="inactive/dead/")._replace(**ran(48.0))),
    ("keeper-down", PROBLEM, down()),
    ("keeper-hung", PROBLEM, evidence(service=Hung("The service does not answer"), present=UNSEEN)),
    ("keeper-old", PROBLEM, evidence(service=Manager(version="0.0.1"))),
    ("bad-configuration", PROBLEM, evidence(config_error="a.conf:3: Compress: no")),
    ("bad-configuration", PROBLEM, now(configuration="It is another one")),
    ("keeper-failing", PROBLEM, now(problem="no room", looked=False)),
    ("record-locked", PROBLEM, now(busy="held", busy_since_us=NOW_US - HOUR_US - 1)),
    ("record-unwritten", PROBLEM, now(unrecorded="No space left on device")),
    ("directory-unwatched", PROBLEM, now(unwatched="no more watches")),
    ("directory-unwritable", PROBLEM, evidence(unwritable=((DIRECTORY, Obstacle.MODE),))),
    ("limit-reached", PROBLEM, now(failures=(Skip("/j", Reason.TOO_MANY, "9 more"),))),
    ("files-failing", PROBLEM, now(failures=(Skip("/j/a", Reason.IO_ERROR, ""),))),
    ("keeper-starved", PROBLEM, now(waiting=waiting(1.1))),
    ("volume-full", PROBLEM, now(failures=(LACKING,))),
    ("window-closed", PROBLEM, now(closed=("m",))),
    ("keeper-paused", PROBLEM, now(paused="until noon")),
]

PASSED: list[tuple[str, Evidence]] = [
    ("volatile", evidence(storage=Storage("persistent", persistent_directory=False, flushed=True))),
    ("nocow-redundant", seen(volumes=(volume(data_profile="raid1", redundant=True),))),
    ("nocow-redundant", seen(instances=(NOCOW,))),
    ("pinned-by-snapshots", seen(SHARED, volumes=(volume(snapshots=0),))),
    ("pinned-by-snapshots", seen(SHARED._replace(disk_bytes=32 * MIB - 2))),
    ("pinned-by-snapshots", seen(SHARED._replace(extents=extents(shared_bytes=32 * MIB, encoded_bytes=32 * MIB)))),
    ("nocow-snapshots", seen(SHARED)),
    ("nocow-snapshots", seen(SHARED, instances=(NOCOW,), volumes=(volume(snapshots=0),))),
    ("nocow-snapshots", seen(file(), instances=(NOCOW,))),
    ("fragmented", torn(300, **UNKEPT)),
    ("fragmented", torn(301, units=UNSEEN)),
    ("fragmented", torn(301, units=BY_TIMER, service=None)),
    ("fragmented", torn(301, service=None)),
    ("fragmented", torn(301, config=configured("defrag", min_extents=400), **UNKEPT)),
    ("fragmented", torn(301, problem=Reason.VANISHED, **UNKEPT)),
    ("fragmented", torn(301, config=configured("defrag", archived=False), **UNKEPT)),
    ("fragmented", torn(0, look=look(file(extents=extents(301), uid=1000)), **UNKEPT)),
    ("fragmented", torn(0, look=look(file(extents=extents(301), links=2)), **UNKEPT)),
    ("fragmented", torn(0, look=look(file(extents=extents(301, shared_bytes=8 * MIB))), **UNKEPT)),
    ("fragmented", torn(0, look=look(file(extents=extents(301)), volumes=READ_ONLY), **UNKEPT)),
    ("pinned-by-snapshots", seen(file(extents=extents(shared_bytes=16 * MIB - 1)))),
    ("damaged", seen(file(problem=Reason.VANISHED))),
    ("waits", read(intake=intake(99) + intake(1, 2_999_999))),
    ("waits", read(intake=intake(98, 0) + intake(2, 499_999))),
    ("keeper-down", down()._replace(units=BY_TIMER)),
    ("keeper-hung", starting(59)._replace(service=Hung())),
    ("keeper-down", down(service="inactive/dead/masked", timer="inactive/dead/disabled")._replace(**ran(47.9))),
    ("keeper-down", down(service="reloading/reload/enabled")),
    ("keeper-down", down(service="inactive/dead/disabled", timer="inactive/dead/disabled")._replace(**ran(47.9))),
    ("keeper-down", down()._replace(units=UNSEEN, **ran(47.9))),
    ("keeper-down", down(service="failed/failed/enabled")._replace(look=look(foreign=("/j",), instances=()))),
    ("keeper-down", evidence(units=units(service="failed/failed/enabled"))),
    ("record-locked", now(busy="held", busy_since_us=NOW_US - HOUR_US)),
    ("keeper-starved", now(waiting=waiting(1))),
    ("volume-full", now(failures=(Skip("/j/a", Reason.IO_ERROR, ""),))),
    ("files-failing", now(failures=(LACKING, Skip("/j", Reason.TOO_MANY, "9 more")))),
]

NOT_MADE: list[tuple[str, Evidence]] = [
    ("nocow-snapshots", seen(file(problem=Reason.UNREADABLE), instances=(NOCOW,))),
    ("damaged", seen(file(problem=Reason.UNREADABLE))),
    ("nocow-redundant", seen(file(path="/elsewhere/x", problem=Reason.UNREADABLE))),
    ("fragmented", evidence(config=UNSEEN)),
    ("fragmented", seen(file(problem=Reason.UNREADABLE))),
    ("keeper-failing", now(looked=False)),
    ("keeper-down", down()._replace(units=UNSEEN)),
    ("keeper-hung", evidence(service=BUSY)),
    ("keeper-down", starting(59)),
    ("keeper-down", starting(59)._replace(service=Hung())),
    ("waits", read(intake=intake(99, 9_000_000))),
    ("waits", read(intake=tuple(one._replace(when_us=NOW_US - 8 * DAY_US) for one in intake(1000, 9_000_000)))),
]


def test_a_healthy_host_passes_every_check() -> None:
    verdict = judge(evidence(), RULES)
    assert (verdict.findings, verdict.unknown) == ((), ())
    assert verdict.passed == tuple(WORDS)


@pytest.mark.parametrize(("rule", "severity", "given"), FOUND)
def test_a_fault_is_found_with_its_figures_and_its_remedy(rule: str, severity: Severity, given: Evidence) -> None:
    found = finding(rule, given)
    assert (found.word, found.severity) == (rule, severity)
    assert found.facts
    assert found.remedy
    assert found.sentence.endswith(".")
    assert "\n" not in found.sentence


@pytest.mark.parametrize(("rule", "given"), PASSED)
def test_a_host_without_the_fault_passes(rule: str, given: Evidence) -> None:
    assert answer(rule, given) is None


@pytest.mark.parametrize(("rule", "given"), NOT_MADE)
def test_a_rule_that_lacks_evidence_is_unknown(rule: str, given: Evidence) -> None:
    assert isinstance(answer(rule, given), Unknown)


def test_no_check_passes_without_evidence() -> None:
    parts = [name for name in Evidence._fields if name not in {"now_us", "config_error"}]
    verdict = judge(evidence(**dict.fromkeys(parts, UNSEEN)), RULES)
    assert (verdict.findings, verdict.passed) == ((), ())
    assert {part.why for _, part in verdict.unknown} == {"not looked at"}


def test_every_rule_is_in_the_tables() -> None:
    assert {rule for rule, _, _ in FOUND} == set(WORDS)
    assert {rule for rule, severity, _ in FOUND if severity is PROBLEM} == {name_rule(rule) for rule in HEALTH}
    assert all((rule.__doc__ or "").splitlines()[0].endswith(".") for rule in RULES)


def test_fragmented_files_are_summed_and_the_remedy_names_their_directory() -> None:
    files = [file(path=f"{DIRECTORY_SHOP}/{n}.journal", extents=extents(n)) for n in (2000, 3000)]
    here = file(extents=extents(180), path="/j/small.journal")
    found = finding("fragmented", evidence(look=look(*files, here), **UNKEPT))
    says = "2 files have 5,000 extents instead of 2; `journalkeeper plan` shows the action for each file."
    assert found.sentence == says
    assert found.facts == {"files": [files[1].path, files[0].path], "extents": 5000, "ideal_extents": 2}
    assert found.remedy == (f"journalkeeper plan -D {DIRECTORY_SHOP}", f"journalkeeper defrag -D {DIRECTORY_SHOP}")
    found = finding("fragmented", evidence(look=look(*files, instances=(limits(),)), **UNKEPT))
    assert found.remedy == ("journalkeeper plan", "journalkeeper defrag")


def test_problems_come_first() -> None:
    verdict = judge(evidence(look=look(foreign=("/j",)), config_error="a.conf:3: no"), RULES)
    assert [finding.word for finding in verdict.findings] == ["bad-configuration", "not-btrfs"]


def test_the_three_units_that_waited_longest_are_named_once_each() -> None:
    waits = [intake(100, n * SECOND_US + 1000, unit) for n, unit in enumerate(["a", "b", "c", "d", "d"], 1)]
    found = finding("waits", read(intake=sum(waits, ())))
    assert (found.facts["units"], found.facts["worst_us"]) == (["d", "c", "b"], 5_001_000)
    assert "worst 5s 1ms, of 500 messages; longest: d 5s 1ms, c 3s 1ms, b 2s 1ms." in found.sentence


def test_a_hostile_name_is_cut_and_quoted() -> None:
    name = "/j/$(reboot) " * 1000
    found = finding("damaged", seen(file(path=name, problem=Reason.BAD_HEADER)))
    assert len(found.sentence) < 300
    assert f"'{name}'" in found.remedy[-1]
    raid1 = (volume(data_profile="raid1", redundant=True),)
    one = limits(directory="/mnt/a b;c", namespace="n", nocow=True)
    found = finding("nocow-redundant", seen(instances=(NOCOW, one), volumes=raid1))
    assert found.remedy[-2:] == ("chattr -C '/mnt/a b;c'", "journalctl --namespace=n --rotate")
    assert found.facts == {"directories": [NOCOW.directory, "/mnt/a b;c"], "data_profiles": ["raid1"]}
    assert list_names(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert [shorten(text, 5) for text in ("12345", "123456")] == ["12345", "...56"]


@pytest.mark.parametrize(
    ("path", "own", "moved"),
    [
        ("/var/log/journal/a.journal", False, True),
        ("/var/log/journal/a.journal", True, False),
        ("/mnt/x", False, False),
    ],
)
def test_only_the_hosts_journal_in_the_roots_subvolume_is_to_be_moved(path: str, *, own: bool, moved: bool) -> None:
    found = finding("pinned-by-snapshots", seen(SHARED._replace(path=path), volumes=(volume(own_subvolume=own),)))
    assert ("journalkeeper isolate --apply" in found.remedy) is moved


@pytest.mark.parametrize(("number", "words"), [(None, "snapshots or other files"), (2, "2 snapshots")])
def test_the_number_of_snapshots_that_contain_the_journal_is_shown(number: int | None, words: str) -> None:
    found = finding("pinned-by-snapshots", seen(SHARED, volumes=(volume(snapshots=number),)))
    assert found.sentence.startswith(f"16 MiB on the disk of 1 journal file belong to {words} as well:")
    assert found.facts["snapshots"] == number


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ({"free_bytes": 64 * MIB - 1, "unallocated_bytes": 0}, True),
        ({"metadata_free_bytes": 0, "unallocated_bytes": 64 * MIB - 1}, True),
        ({"free_bytes": 64 * MIB, "metadata_free_bytes": 64 * MIB, "unallocated_bytes": 0}, False),
        ({"metadata_free_bytes": 0, "unallocated_bytes": 64 * MIB}, False),
        ({"quota_bytes": 64 * MIB - 1}, True),
        ({"quota_bytes": 64 * MIB}, False),
    ],
)
def test_a_volume_lacks_room_for_data_or_for_metadata(words: dict[str, int], *, lacks: bool) -> None:
    assert lacks_room(volume(**words)) is lacks


@pytest.mark.parametrize(
    ("words", "kind", "balance"),
    [
        ({"free_bytes": 0}, "data", "-dusage=50 -dlimit=4"),
        ({"metadata_free_bytes": 0}, "metadata", "-dusage=50 -dlimit=4"),
        ({"free_bytes": 0, "mixed": True}, "data", "-dusage=50 -dlimit=4 -musage=50 -mlimit=4"),
    ],
)
def test_the_remedy_of_a_full_volume_names_the_directory(words: dict[str, Any], kind: str, balance: str) -> None:
    found = finding("no-room", evidence(full=(("/j a", volume(**words)),)))
    assert f"{kind} is about to run out." in found.sentence
    assert found.remedy[0] == "journalctl -D '/j a' --vacuum-size=256M"
    assert found.remedy[-1] == f"btrfs balance start {balance} '/j a'"


def test_a_masked_service_is_unmasked_before_it_is_started() -> None:
    remedy = finding("keeper-down", down(service="inactive/dead/masked")).remedy[0]
    assert remedy.startswith("systemctl unmask journalkeeper.service && ")
    assert remedy.endswith(" && systemctl enable --now journalkeeper.service")
