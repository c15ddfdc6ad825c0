# SPDX-License-Identifier: LGPL-2.1-or-later
"""The collection's judge of values says what check-config would say, and writes what it would read.

Ansible is not needed here; the filters and the role's data are read as they are.
"""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

import pytest

from journalkeeper.config import Config
from journalkeeper.config.directives import Directive, directives
from journalkeeper.config.files import Assignment, parse
from journalkeeper.config.validation import describe, from_assignments
from journalkeeper.model.errors import ConfigError
from tests.ansible import COLLECTION, ROLE


def load(path: str) -> Any:
    """A file of the collection as a module."""
    spec = importlib.util.spec_from_file_location("collection_file", COLLECTION / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


conf = load("plugins/filter/conf.py")
variable = load("regenerate.py").variable


def table() -> list[dict[str, Any]]:
    """The directives as the role knows them, without a YAML library: each value is written as JSON."""
    text = (ROLE / "vars/main/directives.yml").read_text().partition("__journalkeeper_values:")[0]
    rows: list[dict[str, Any]] = []
    for line in text.splitlines():
        if match := re.fullmatch(r"  (- |  )(\w+): (.*)", line):
            if match[1] == "- ":
                rows.append({})
            rows[-1][match[2]] = json.loads(match[3])
    return rows


TABLE = table()
TEXTS = (
    *("yes", "no", "True", "off", "maybe", "0", "1", "2", "-1", "+1", "16", "016", "256", "257", "1000", "999"),
    *("1 6", "1.5", "1.5G", "1.G", ".5G", "1G 512M", "512M 1G", "1G1G", "64M", "64m", "64MB", "64 M", "256K", "255K"),
    *("128M", "129M", "1T", "1025G", "1024T", "1025T", "9E", "99999999999E", "infinity", "Infinity", "50ms", "50 ms"),
    *("1h 30min", "1h30min", "90", "1.5h", "0.5ms", ".5s", "1d", "24h 1us", "2days", "1ms", "999us", "10s"),
    *("10001ms", "10s5", "10 5", "12.34.56", "12.34 .56", "5parsecs", "1month", "1M", "10min", "601s", "3650d"),
    *("3651d", "23h", "40%", "40", "100%", "101%", "40%%", "%", "/var/log/journal", "/a/../b", "/a//b/.", "relative"),
    *("/a b", "'/a b' /c", "'/a", "/", "zstd", "zstd:1", "zstd:15", "zstd:16", "zstd:0", "zstd:", "zstd:03", "lzo"),
    *("lzo:1", "zlib:9", "zlib:10", "gzip", "auto", "Auto", "AUTO ", "\u0664", "1\xb2", "5\xb5s", "5\u03bcs", "#1"),
    *(";", "1000000", "10000001"),
)


def refused(*assigned: tuple[Directive, str]) -> bool:
    """Whether journalkeeper refuses these values, each on a line of its own."""
    lines = [
        Assignment("a.conf", number, one.section, one.spec.name, text)
        for number, (one, text) in enumerate(assigned, start=1)
    ]
    try:
        from_assignments(lines)
    except ConfigError:
        return True
    return False


def test_the_roles_data_is_what_the_program_knows() -> None:
    assert [row["variable"] for row in TABLE] == [variable(one) for one in directives()]
    assert [row["allowed"] for row in TABLE] == [one.spec.allowed for one in directives()]
    assert len({row["variable"] for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize("directive", directives(), ids=lambda one: one.spec.name)
def test_a_value_is_refused_if_and_only_if_check_config_refuses_it(directive: Directive) -> None:
    name = variable(directive)
    wrong = [text for text in TEXTS if bool(conf.problems({name: text}, TABLE)) != refused((directive, text))]
    assert wrong == []
    assert any(refused((directive, text)) for text in TEXTS)
    assert conf.problems({name: directive.default}, TABLE) == []


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"NocowSettleSec": "1min"}, None),
        ({"NocowSettleSec": "59s"}, "journalkeeper_watch_nocow_settle_sec=59s must be at least journalkeeper_watch_"),
        ({"SettleSec": "11min"}, "must be at least journalkeeper_watch_settle_sec=11min"),
        ({"SettleSec": "11min", "NocowSettleSec": "11min"}, None),
        ({"ChunkSec": "1s", "IntakeDelayMaxSec": "1s"}, None),
        ({"ChunkSec": "1001ms", "IntakeDelayMaxSec": "1s"}, "at least journalkeeper_defrag_chunk_sec=1001ms"),
        ({"SettleSec": "soon", "NocowSettleSec": "1s"}, "is not allowed"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, str], complaint: str | None) -> None:
    named = {one.spec.name: one for one in directives()}
    given = {variable(named[name]): text for name, text in values.items()}
    said = conf.problems(given, TABLE)
    assert bool(said) == refused(*((named[name], text) for name, text in values.items())) == (complaint is not None)
    assert complaint is None or complaint in "; ".join(said)


@pytest.mark.parametrize("text", ["/a\nb", "/a\\", "/a\x00"])
def test_what_would_not_stay_one_line_is_refused(text: str) -> None:
    assert conf.problems({"journalkeeper_metrics_textfile": text}, TABLE)
    assert conf.problems({"journalkeeper_watch_directories": text}, TABLE)


def test_the_lines_say_the_values_in_yamls_types() -> None:
    """A YAML 1.1 `no` is False, a number is a number, and a path may have blanks."""
    values = {
        "journalkeeper_watch_directories": ["/var/log/journal", "/srv/other logs"],
        "journalkeeper_nocow_nocow": False,
        "journalkeeper_nocow_rotate_to_apply": True,
        "journalkeeper_defrag_compress": False,
        "journalkeeper_defrag_min_extents": 64,
        "journalkeeper_window_pressure_max": 50,
        "journalkeeper_budget_bytes_per_day": "infinity",
        "journalkeeper_history_keep_sec": None,
        "journalkeeper_metrics_textfile": "",
    }
    assert conf.problems(values, TABLE) == []
    config = from_assignments(parse(conf.lines(values, TABLE).encode(), "a.conf"))
    changed = {value.key: value.value for value in describe(config) if not value.default}
    assert changed == {
        "Directories": "/var/log/journal '/srv/other logs'",
        "Nocow": "no",
        "Compress": "no",
        "MinExtents": "64",
        "PressureMax": "50%",
        "BytesPerDay": "infinity",
    }


def test_nothing_set_is_nothing_written() -> None:
    assert conf.lines({}, TABLE) == ""
    assert conf.problems({}, TABLE) == []
    assert from_assignments(parse(b"", "a.conf")) == Config()
