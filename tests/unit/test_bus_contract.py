# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tables, the policies and the names say the same."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from journalkeeper.bus import names, objects
from journalkeeper.model.errors import KeeperError, NoSuchJobError

CONFIGS = Path(__file__).parents[2] / "configs"


def test_introspection_leads_to_the_objects_below() -> None:
    root = ElementTree.fromstring(objects.introspection([], ["1", "2"]))  # noqa: S314 - our own
    assert [one.attrib for one in root.iter("node")] == [{}, {"name": "1"}, {"name": "2"}]


def test_methods_that_change_something_ask_polkit_for_an_action_that_exists() -> None:
    policy = ElementTree.parse(CONFIGS / "polkit" / "org.journalkeeper1.policy").getroot()  # noqa: S314 - our own
    actions = {one.get("id") for one in policy.iter("action")}
    asked = {method.name: method.action for method in objects.MANAGER.methods}
    assert {action for action in asked.values() if action is not None} == actions
    assert {name for name, action in asked.items() if action is None} == {"ListFiles", "Plan", "Result"}
    for default in policy.iter("defaults"):
        assert {one.text for one in default} == {"auth_admin_keep"}


def test_the_bus_lets_through_the_interfaces_that_can_be_called_and_method_calls_only() -> None:
    policy = ElementTree.parse(CONFIGS / "dbus" / "org.journalkeeper1.conf").getroot()  # noqa: S314 - our own
    rules = [one.attrib for one in policy.iter("allow") if "send_destination" in one.attrib]
    callable_ = {one.name for one in (*objects.STANDARD, objects.MANAGER)}
    assert {rule["send_interface"] for rule in rules} == callable_
    assert {rule["send_type"] for rule in rules} == {"method_call"}


def test_a_jobs_object_path_has_its_number() -> None:
    assert names.job_number(names.job_path(4294967295)) == 4294967295


@pytest.mark.parametrize("path", ["job/01", "job/-1", "job/", "job/1/", "job/²", f"job/{'9' * 11}", "1"])
def test_a_path_of_no_job_is_refused(path: str) -> None:
    with pytest.raises(NoSuchJobError, match="is no job"):
        names.job_number(f"/org/journalkeeper1/{path}")


def test_every_error_of_ours_has_a_name_of_its_own() -> None:
    def below(kind: type[KeeperError]) -> set[type[KeeperError]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    public = {kind for kind in below(KeeperError) if kind.__module__ == "journalkeeper.model.errors"}
    assert public == {KeeperError, *(kind for kind, _ in names.ERRORS)}
    assert len({name for _, name in names.ERRORS}) == len(names.ERRORS)


def test_a_text_that_d_bus_cannot_carry_is_written_otherwise() -> None:
    assert names.to_ascii(os.fsdecode(b"a\xffb") + "\0") == "a\\xffb?"
    assert names.to_ascii("é") == "\\xc3\\xa9"
