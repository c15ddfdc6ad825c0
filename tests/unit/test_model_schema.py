# SPDX-License-Identifier: LGPL-2.1-or-later
"""The descriptions of the records: what was published stays, and what is written is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import schemas

from journalkeeper.bus import objects
from journalkeeper.bus.objects import to_values
from journalkeeper.model import Action, Outcome, Plan, Range, Reason, Result, Skip, Verb, Window
from journalkeeper.model.manager import Manager
from journalkeeper.model.plans import NOWHERE
from journalkeeper.model.run import Report, decode_report
from journalkeeper.model.schema import name_fields, parse_record, to_json, write_json
from tests import hosts

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text())
"""Version 1 of the contract, as it was shipped. Nothing in it is ever changed, and what is added need not be here."""

DOC = "org.gtk.GDBus.DocString"
REMOVED = {"Options", "DefragmentAll", "Limits", "disk_iops", "limits", "totals"}
REMOVED |= {"events", "events_oldest_us", "events_complete", "pinned_bytes"}
"""The keys and members that a later version removed: each has a line under Removed in the changelog."""

OUTCOME = Outcome("/j/a", Verb.REWRITE, Result.FAILED, Reason.IO_ERROR, 9, 8, 5, None, 7, 0.25, "the disk fails", 3)


def shapes(xml: str) -> dict[str, dict[str, list[dict[str, str]]]]:
    """The attributes of each member of each interface and of its arguments, without the documentation."""
    found = {}
    for interface in ElementTree.fromstring(xml).iter("interface"):  # noqa: S314 - our own
        found[interface.attrib["name"]] = {
            f"{member.tag} {member.get('name')}": [one.attrib for one in member.iter() if one.get("name") != DOC]
            for member in interface
        }
    return found


def stays(old: Any, new: Any) -> bool:
    """Whether all that a schema promised is still promised, except REMOVED: keys, types and words."""
    if isinstance(old, dict):
        return set(old) - REMOVED <= set(new) and all(stays(old[key], new[key]) for key in set(old) - REMOVED)
    if isinstance(old, list) and all(isinstance(one, str) for one in old):
        return set(old) - REMOVED <= set(new)
    if isinstance(old, list):
        return len(old) == len(new) and all(map(stays, old, new))
    return bool(old == new)


@pytest.mark.parametrize("command", PUBLISHED["schemas"])
def test_a_published_key_stays(command: str) -> None:
    assert stays(PUBLISHED["schemas"][command], schemas.make_answer_schema(command))


@pytest.mark.parametrize("name", PUBLISHED["introspection"])
def test_a_published_member_of_an_interface_stays(name: str) -> None:
    interfaces = {one.name: one for one in (objects.MANAGER, objects.JOB_INTERFACE)}
    old = shapes(PUBLISHED["introspection"][name])[name]
    new = shapes(objects.introspection([interfaces[name]], []))[name]
    kept = {member: shape for member, shape in old.items() if member.split()[-1] not in REMOVED}
    assert {member: new[member] for member in kept} == kept


def test_a_key_that_an_older_version_did_not_write_has_its_default() -> None:
    written = to_json(OUTCOME)
    del written["unshared_bytes"], written["detail"]
    assert parse_record(Outcome, written) == OUTCOME._replace(unshared_bytes=0, detail="")
    for key, wrong in (("reason", "moonlight"), ("extents_before", -1), ("path", None)):
        with pytest.raises(ValueError, match=f"Outcome.{key}: .* is not possible"):
            parse_record(Outcome, {**written, key: wrong})
    del written["path"]
    with pytest.raises(ValueError, match="path"):
        parse_record(Outcome, written)


def test_a_report_is_read_back_from_the_document_of_its_job() -> None:
    skipped = (Skip("/j/b", Reason.SETTLING, "1 s"), Skip("/j", Reason.IDEAL, ""))
    refused = OUTCOME._replace(path="/j", result=Result.SKIPPED, reason=Reason.NO_JOURNALD, detail="nobody answers")
    report = Report(Plan({}, (), skipped), (OUTCOME, refused), 14, 1.5, ("the record was damaged",))
    assert decode_report(json.loads(write_json(report))) == report


def test_a_plan_is_read_back_but_for_what_only_its_maker_needs() -> None:
    skip = Skip("/j/b", Reason.SETTLING, "1", until_us=7, now=True, puts_off=True, instance="m", extents=3)
    action = Action("/j/a", Verb.COMPRESS, Reason.ASKED, NOWHERE, (Range(0, 9, 3),), 9, 3, 1)
    windows = {"m": Window("m", True, 5, "online"), "n": Window("n", False, None, "x", 6)}
    plan = Plan(windows, (action,), (skip,), omitted=4)
    written = json.loads(write_json(plan._replace(actions=(action._replace(target=hosts.file(), compress="lzo"),))))
    assert parse_record(Plan, written) == plan
    older = {"window": {}, "actions": [], "skipped": [{"path": "/j/b", "reason": "ideal", "detail": "1"}]}
    assert parse_record(Plan, older).skipped == (Skip("/j/b", Reason.IDEAL, "1"),)
    with pytest.raises(ValueError, match="not possible"):
        parse_record(Plan, {**older, "skipped": [{"path": "/j/b", "reason": "moonlight", "detail": "1"}]})


MANAGER = Manager("1", "ok", [], (), (), "idle", "", ["/j"], 3, 9, 4, 1, True, 5, 6, 7, 8, 9, 10, 11, False)


@pytest.mark.parametrize(
    "manager", [MANAGER, MANAGER._replace(next_flush_us=None, last_run_us=None, budget_left_bytes=None)]
)
def test_the_services_properties_are_read_back(manager: Manager) -> None:
    shown = {name: value for name, (_, value) in to_values(manager).items()} | {"Findings": (), "History": ()}
    assert Manager(**name_fields(Manager, shown)) == manager
