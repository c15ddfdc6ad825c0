# SPDX-License-Identifier: LGPL-2.1-or-later
"""The descriptions of the records: what was published stays, and what is written is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.bus import contract
from journalkeeper.model import Action, JournalFile, Outcome, Plan, Range, Reason, Result, Skip, Stretch, Verb, Window
from journalkeeper.model.manager import Manager
from journalkeeper.model.progress import Progress
from journalkeeper.model.recorded import Run, Sample, Totals
from journalkeeper.model.run import Report
from journalkeeper.model.waiting import Wait
from journalkeeper.probe import compare
from journalkeeper.report.retention import Retention
from journalkeeper.wire import records, schemas
from journalkeeper.wire.documents import job_document, job_report
from journalkeeper.wire.field import (
    COUNT,
    TEXT,
    Field,
    Fields,
    document,
    from_properties,
    log_fields,
    nested,
    nullable,
    on_bus,
    parse_record,
    properties,
)
from tests.unit.test_bus_contract import shapes

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text())
"""Version 1 of the contract, as it was shipped. Nothing in it is ever changed, and what is added need not be here."""

OUTCOME = Outcome("/j/a", Verb.REWRITE, Result.FAILED, Reason.IO_ERROR, 9, 8, 5, None, 7, 0.25, "the disk fails", 3)


def stays(old: Any, new: Any) -> bool:
    """Whether all that a schema promised is still promised: keys in their order, types and words."""
    if isinstance(old, dict):
        keys = [key for key in new if key in old]
        return keys == list(old) and all(stays(old[key], new[key]) for key in keys)
    if isinstance(old, list) and all(isinstance(one, str) for one in old):
        return set(old) <= set(new)
    if isinstance(old, list):
        return len(old) == len(new) and all(map(stays, old, new))
    return bool(old == new)


@pytest.mark.parametrize("command", PUBLISHED["schemas"])
def test_a_published_key_stays(command: str) -> None:
    assert stays(PUBLISHED["schemas"][command], schemas.schema(command))


@pytest.mark.parametrize("name", PUBLISHED["introspection"])
def test_a_published_member_of_an_interface_stays(name: str) -> None:
    interfaces = {one.name: one for one in (contract.MANAGER, contract.JOB_INTERFACE)}
    old, new = (
        shapes(xml)[name] for xml in (PUBLISHED["introspection"][name], contract.introspection([interfaces[name]], []))
    )
    assert [member for member in new if member in old] == list(old)
    assert {member: new[member] for member in old} == old


SPANS = frozenset(
    {
        *("full_span_us", "intake_delay_p99_us", "kept_us", "max_retention_us", "proposed_us", "span_us"),
        "sync_interval_us",
    }
)


def keys_of(schema: Any) -> list[tuple[str, Any]]:
    """Every key that a schema has at any depth, with its own schema."""
    inside = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    own = schema.get("properties", {}) if isinstance(schema, dict) else {}
    return [*own.items(), *(found for one in inside for found in keys_of(one))]


@pytest.mark.parametrize("command", schemas.ANSWERS)
def test_a_moment_counts_from_1970_and_a_span_does_not(command: str) -> None:
    for key, schema in keys_of(schemas.schema(command)):
        if key.endswith("_us"):
            assert "icroseconds" in schema["description"], key
            assert ("since 1970" in schema["description"]) == (key not in SPANS), key


@pytest.mark.parametrize(("fields", "record"), [(schemas.SETTING, Retention), (schemas.STRATEGY, compare.Row)])
def test_a_schema_has_the_fields_of_its_record(fields: Fields, record: Any) -> None:
    assert tuple(row.key for row in fields) == record._fields


SHIPPED = nested((Field("path", TEXT), Field("size", COUNT))).schema


@pytest.mark.parametrize(
    ("now", "allowed"),
    [
        ((Field("path", TEXT), Field("size", COUNT), Field("more", COUNT)), True),
        ((Field("path", TEXT),), False),
        ((Field("path", TEXT), Field("length", COUNT)), False),
        ((Field("path", TEXT), Field("size", TEXT)), False),
        ((Field("size", COUNT), Field("path", TEXT)), False),
    ],
)
def test_a_key_may_be_added_and_nothing_else(now: Fields, *, allowed: bool) -> None:
    assert stays(SHIPPED, nested(now).schema) is allowed


DESCRIBED: tuple[tuple[type, Fields], ...] = (
    *((JournalFile, records.FILE), (Range, records.RANGE), (Action, records.ACTION), (Skip, records.SKIP)),
    *((Window, records.WINDOW), (Outcome, records.KEPT_OUTCOME), (Stretch, records.STRETCH), (Run, records.RUN)),
    *((Sample, records.SAMPLE), (Totals, records.TOTALS), (Wait, records.WAIT)),
    *((Manager, records.MANAGER), (Progress, records.PROGRESS)),
)


@pytest.mark.parametrize(("kind", "record"), DESCRIBED)
def test_a_row_is_an_attribute_or_says_how_to_get_it(kind: type, record: Fields) -> None:
    assert [row.key for row in record if row.get is None and not hasattr(kind, row.key)] == []


def test_an_outcome_comes_back_as_it_was() -> None:
    written = json.loads(json.dumps(document(records.KEPT_OUTCOME, OUTCOME)))
    assert parse_record(Outcome, records.KEPT_OUTCOME, written) == OUTCOME


def test_what_an_older_version_did_not_write_is_as_if_nobody_knew_it() -> None:
    written = document(records.OUTCOME, OUTCOME)
    del written["unshared_bytes"]
    assert parse_record(Outcome, records.OUTCOME, written) == OUTCOME._replace(unshared_bytes=0, detail="")
    del written["path"]
    with pytest.raises(TypeError, match="path"):
        parse_record(Outcome, records.OUTCOME, written)
    with pytest.raises(ValueError, match="moonlight"):
        parse_record(Outcome, records.OUTCOME, {**written, "reason": "moonlight"})


def test_a_jobs_report_comes_back_with_its_outcomes_and_what_was_left_alone() -> None:
    skipped = (Skip("/j/b", Reason.SETTLING, "1 s"), Skip("/j", Reason.IDEAL, ""))
    refused = OUTCOME._replace(path="/j", result=Result.SKIPPED, reason=Reason.NO_JOURNALD, detail="nobody answers")
    report = Report(Plan((), (), skipped), (OUTCOME, refused), 14, 1.5, ("the record was damaged",))
    assert job_report(json.loads(json.dumps(job_document(report)))) == report


MANAGER = Manager("1", "ok", [], "idle", "", ["/j"], 3, 9, 4, 1, True, 5, 6, 7, 8, 10, 11, False, [])


@pytest.mark.parametrize(
    "manager", [MANAGER, MANAGER._replace(next_flush_us=None, last_run_us=None, budget_left_bytes=None)]
)
def test_the_service_comes_over_the_bus_as_it_is(manager: Manager) -> None:
    assert from_properties(Manager, records.MANAGER, properties(records.MANAGER, manager)) == manager


def test_progress_comes_over_the_bus_as_it_is() -> None:
    now = Progress(1, 2, "/j/a", 3, 4)
    assert from_properties(Progress, records.PROGRESS, properties(records.PROGRESS, now)) == now


def test_the_log_has_microseconds_and_nothing_that_is_not_known() -> None:
    fields = log_fields(records.KEPT_OUTCOME, OUTCOME)
    assert fields["JOURNALKEEPER_DURATION_USEC"] == "250000"
    assert fields["JOURNALKEEPER_FILE"] == "/j/a"
    assert fields["JOURNALKEEPER_DETAIL"] == "the disk fails"
    assert "JOURNALKEEPER_DISK_BYTES_AFTER" not in fields
    assert "JOURNALKEEPER_DETAIL" not in log_fields(records.KEPT_OUTCOME, OUTCOME._replace(detail=""))
    assert log_fields(records.KEPT_OUTCOME, OUTCOME._replace(bytes_written=0))["JOURNALKEEPER_BYTES_WRITTEN"] == "0"


def test_a_property_has_its_place_and_what_is_no_property_has_none() -> None:
    rows = (Field("a", TEXT, bus="A"), Field("b", TEXT), Field("c", nullable(COUNT), bus="C", before="A"))
    assert [row.bus for row in on_bus(rows)] == ["C", "A"]
