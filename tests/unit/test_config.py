# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines of configuration files become a Config, or every problem in them is named."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from meanings import describe_directive

from journalkeeper.config import Config
from journalkeeper.config.directives import Directive, list_directives
from journalkeeper.config.files import Assignment
from journalkeeper.config.validation import describe, make_config
from journalkeeper.model import GIB, MIB
from journalkeeper.model.errors import ConfigError
from journalkeeper.model.units import DAY_US, MS_US, SECOND_US

SHIPPED = Path(__file__).parents[2] / "configs" / "journalkeeper.conf"

HEADER = """\
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# journalkeeper.conf: every directive with its default, and why that is the default.
# See journalkeeper.conf(5).
#
# Put what you change into /etc/journalkeeper.conf, or into a file that ends in .conf in
# /etc/journalkeeper.conf.d/. A later assignment wins, an empty one resets to the default.
# "journalkeeper check-config" says what is in force, and what is wrong.
"""


def lines(*texts: str) -> list[Assignment]:
    """Assignments from "Section.Key=value", on lines 1, 2, ... of one file."""
    found = []
    for number, text in enumerate(texts, start=1):
        name, _, value = text.partition("=")
        section, _, key = name.rpartition(".")
        found.append(Assignment("a.conf", number, section, key, value))
    return found


def problems(*texts: str) -> list[tuple[int, str, str]]:
    """The (line, key, what) of each problem in these lines."""
    with pytest.raises(ConfigError) as caught:
        make_config(lines(*texts))
    assert all(file == "a.conf" for file, _, _, _ in caught.value.problems)
    return [problem[1:] for problem in caught.value.problems]


def shipped(directive: Directive) -> str:
    """What the shipped file says of one directive."""
    spec = directive.spec
    doc, basis = describe_directive(directive)
    why = textwrap.wrap(f"Why: {basis}", 86, break_long_words=False, break_on_hyphens=False)
    what = textwrap.wrap(doc, 86, break_long_words=False, break_on_hyphens=False)
    allowed = textwrap.wrap(f"Allowed: {spec.allowed}.", 86, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in what + allowed + why) + f"#{spec.name}={directive.default}\n"


def shipped_file() -> str:
    """The whole shipped file."""
    text, section = HEADER, ""
    for directive in list_directives():
        if directive.section != section:
            section = directive.section
            text += f"\n[{section}]\n"
        text += "\n" + shipped(directive)
    return text


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("Watch.Directories=/a//b/ '/with space' /a/b", "watch.directories", ("/a/b", "/with space")),
        ("Watch.SettleSec=1min 30s", "watch.settle_us", 90 * SECOND_US),
        ("Nocow.Nocow=no", "nocow.nocow", "no"),
        ("Defrag.Compress=zstd:15", "defrag.compress", "zstd:15"),
        ("Defrag.AllowUnshare=TRUE", "defrag.allow_unshare", "yes"),
        ("Defrag.AllowUnshare=off", "defrag.allow_unshare", "no"),
        ("Defrag.MinExtents=1", "defrag.min_extents", 1),
        ("Defrag.MinReclaim=1.5M", "defrag.min_reclaim_bytes", 3 * MIB // 2),
        ("Defrag.ExtentsPerMiB=256", "defrag.extents_per_mib", 256),
        ("Defrag.ChunkSec=1ms", "defrag.chunk_us", MS_US),
        ("Window.PressureMax=100%", "window.pressure_max_percent", 100),
        ("Window.QuietHours=mon..Friday 8:00..12:30", "window.quiet_hours", "mon..Friday 8:00..12:30"),
        ("Window.QuietHours=8:00..9:00 Sat,Sun 22:00..24:00", "window.quiet_hours", "8:00..9:00 Sat,Sun 22:00..24:00"),
        ("Budget.BytesPerDay=infinity", "budget.bytes_per_day", None),
        ("Budget.BytesPerDay=20G", "budget.bytes_per_day", 20 * GIB),
        ("History.KeepSec=1d", "history.keep_us", DAY_US),
        # a later assignment wins, also over a bad one; an empty one resets; the paths of a list add up until a reset
        ("Watch.SettleSec=soon\nWatch.SettleSec=2", "watch.settle_us", 2 * SECOND_US),
        ("Watch.SettleSec=1\nWatch.SettleSec=", "watch.settle_us", 60 * SECOND_US),
        ("Watch.Directories=/a /b\nWatch.Directories=/c", "watch.directories", ("/a", "/b", "/c")),
        ("Watch.Directories=/a\nWatch.Directories=\nWatch.Directories=/c", "watch.directories", ("/c",)),
    ],
)
def test_a_value_is_read_and_written_back(text: str, path: str, value: object) -> None:
    config = make_config(lines(*text.splitlines()))
    section, field = path.split(".")
    assert getattr(getattr(config, section), field) == value
    again = [f"{row.section}.{row.key}={row.value}" for row in describe(config)]
    assert make_config(lines(*again)) == config


@pytest.mark.parametrize(
    "text",
    [
        "Watch.Directories=var/log/journal",
        "Watch.Directories=/var/log/journal ../x",
        'Watch.Directories="/a',
        "Watch.SettleSec=1441min",
        "Nocow.Nocow=Auto",
        "Nocow.RotateToApply=perhaps",
        "Defrag.Compress=zstd:16",
        "Defrag.MinExtents=0",
        "Defrag.MinExtents=²",
        "Defrag.MinExtents=" + "9" * 5000,
        "Defrag.MinReclaim=1m",
        "Defrag.ExtentsPerMiB=1",
        "Defrag.ExtentsPerMiB=257",
        "Defrag.ChunkSec=999us",
        "Window.PressureMax=101%",
        *(
            f"Window.QuietHours={text}"
            for text in (
                *("Sat", "8..9", "8:00-9:00", "8:60..9:00", "24:00..8:00", "8:00..24:30", "8:00..9:0010:00..11:00"),
                *("00:00..24:00", "Mon..Sun 12:00..12:00", "Mon Tue 8:00..9:00", "Mon.. 8:00..9:00", "Mo 8:00..9:00"),
                *("Mon..Tue..Wed 8:00..9:00", "Mon, Tue 8:00..9:00", "Mon..Fri *-*-* 08..17:*:*"),
            )
        ),
        "Budget.KeepFree=infinity",
        "History.KeepSec=23h",
    ],
)
def test_a_bad_value_names_line_key_value_and_what_is_allowed(text: str) -> None:
    name, _, value = text.partition("=")
    one = next(one for one in list_directives() if f"{one.section}.{one.spec.name}" == name)
    ((line, key, what),) = problems("Defrag.Active=yes", text)
    assert (line, key) == (2, one.spec.name)
    assert what == f"{value!r} is not allowed; allowed: {one.spec.allowed}"


def test_all_problems_are_reported_in_the_order_of_their_lines() -> None:
    found = problems(
        "Watch.SettleSec=soon", "Defrag.Active=yes", "Defrag.Chunk=1", "Watch.Directories=/a", "Watch.Directories=b",
        "Wash.X=1", "Defrag.ChunkSec=1h",
    )  # fmt: skip
    assert [(line, key) for line, key, _ in found] == [
        (1, "SettleSec"), (3, "Chunk"), (5, "Directories"), (6, "X"), (7, "ChunkSec"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Watch.settlesec=1", "unknown in [Watch]; allowed are Directories=, SettleSec=, NocowSettleSec="),
        ("watch.SettleSec=1", "unknown section [watch]; allowed are [Watch], [Nocow]"),
        ("Zzz.SettleSec=1", "unknown section [Zzz]; allowed are [Watch], [Nocow]"),
    ],
)
def test_an_unknown_name_is_reported_with_those_that_are_allowed(text: str, said: str) -> None:
    ((_, _, what),) = problems(text)
    assert said in what


@pytest.mark.parametrize(
    ("right", "wrong", "key"),
    [
        (("Watch.SettleSec=10min",), ("Watch.SettleSec=601",), "SettleSec"),
        (("Watch.NocowSettleSec=60",), ("Watch.NocowSettleSec=59",), "NocowSettleSec"),
        (("Window.MarginSec=50ms",), ("Window.MarginSec=49ms",), "MarginSec"),
        (("Window.IntakeDelayMaxSec=50ms",), ("Window.IntakeDelayMaxSec=49ms",), "IntakeDelayMaxSec"),
        (("Defrag.ChunkSec=100ms",), ("Defrag.ChunkSec=101ms",), "ChunkSec"),
    ],
)
def test_values_that_contradict_each_other(right: tuple[str, ...], wrong: tuple[str, ...], key: str) -> None:
    assert make_config(lines(*right)) != Config()
    ((line, named, what),) = problems(*wrong)
    assert (line, named) == (1, key)
    assert "must be at least" in what


def test_a_bad_value_contradicts_nothing() -> None:
    assert [key for _, key, _ in problems("Watch.NocowSettleSec=soon", "Watch.SettleSec=1h")] == ["NocowSettleSec"]


def test_the_shipped_file_says_what_the_directives_say() -> None:
    """To make it anew: write what shipped_file() returns into it."""
    assert SHIPPED.read_text() == shipped_file()
