# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words of a command line, what they ask for, and what the environment adds."""

from __future__ import annotations

import argparse
import io
import time
from typing import TYPE_CHECKING

import pytest

from journalkeeper.cli import progress
from journalkeeper.cli.output import wants_colours
from journalkeeper.cli.parser import COMMANDS, parse
from journalkeeper.cli.probe import PROBES
from journalkeeper.cli.work import make_request
from journalkeeper.model import MIB, Request
from journalkeeper.model.errors import UsageError
from journalkeeper.model.run import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping


def parsed(line: str) -> argparse.Namespace:
    return parse(line.split())


PLAIN = {"directory": None, "config": None, "json": "off", "no_legend": False, "quiet": False, "no_pager": False}


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("scan", {}),
        *((line, {"directory": "/j"}) for line in ("-D /j scan", "scan -D /j", "--directory=/j scan", "scan -D/j")),
        ("-D /x scan --directory /j", {"directory": "/j"}),
        *((line, {"json": "short"}) for line in ("scan -j", "-j scan", "scan --json=short")),
        *((line, {"json": "pretty"}) for line in ("--json=pretty scan", "-j scan --json=pretty")),
        ("-j scan --json off", {}),
        ("--no-legend scan --no-pager", {"no_legend": True, "no_pager": True}),
        ("-q scan --config /c", {"quiet": True, "config": "/c"}),
    ],
)
def test_common_options_stand_before_or_after_a_command_and_the_last_wins(line: str, given: dict[str, object]) -> None:
    assert vars(parsed(line)) == {**PLAIN, **given, "command": "scan", "paths": []}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("defrag --upkeep", Request()),
        ("defrag --active --archived", Request(active=True, archived=True)),
        ("plan --now --allow-unshare", Request(now=True, allow_unshare=True)),
        ("defrag --before-shutdown", Request(before_shutdown=True)),
        ("defrag --compress=zstd:15", Request(compress="zstd:15")),
        ("defrag --compress lzo", Request(compress="lzo")),
        ("defrag /j/a --now /j/b", Request(paths=("/j/a", "/j/b"), now=True)),
        ("defrag -n /j/../j/a", Request(paths=("/j/a",))),
        ("defrag -- -n", Request(paths=("/cwd/-n",))),
        ("defrag --now -- /j/a -j", Request(paths=("/j/a", "/cwd/-j"), now=True)),
    ],
)
def test_the_options_make_the_request(line: str, expected: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/cwd")
    assert make_request(parsed(line)) == expected._replace(upkeep=True, asked="--upkeep" not in line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "no command given; try `journalkeeper status`"),
        ("frobnicate", "invalid choice: 'frobnicate' (choose from"),
        ("pause soon", "'soon' is no time span such as 30min"),
        ("pause 0", "journalkeeper resume"),
        ("scan --foo", "unknown argument: --foo; see --help"),
        ("status /j/a", "unknown argument: /j/a; see --help"),
        ("defrag --compress=zstd:16", "zstd:1 to zstd:15"),
        ("probe", "required: PROBE"),
        ("probe syslog --rate nan", "from 0.01 to 20000"),
        ("probe syslog --size 1.5", "invalid number value: '1.5'"),
        ("lab compare", "required: DIR"),
        ("lab compare / --extents=15001", "from 100 to 15000"),
        ("lab compare / --iops=-1", "from 0 to 1e+06"),
    ],
)
def test_words_that_make_no_sense_are_a_usage_error_of_one_line(line: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_request(parsed(line))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--help" in str(caught.value)


@pytest.mark.parametrize(
    "line", ["history --since -3d", "history --since=-3d", "--no-pager history --until -3d", "probe intake --since -3d"]
)
def test_a_time_may_begin_with_a_dash_as_with_getopt(line: str) -> None:
    args = parsed(line)
    assert abs(time.time() - 3 * 86_400 - (args.since or args.until) / 1e6) < 60


HELPS = [[], *([command.name] for command in COMMANDS), *(["probe", probe.name] for probe in PROBES)]


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_every_line_of_help_fits_80_columns(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*words, "--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("environ", "colours"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
    ],
)
def test_colours_follow_no_color_and_the_terminal(environ: Mapping[str, str], *, colours: bool) -> None:
    assert wants_colours(environ) is colours


def test_the_line_is_drawn_at_most_ten_times_a_second_and_erased_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, now_s = io.StringIO(), 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    with progress.ProgressLine(screen) as draw:
        for tick in range(101):
            now_s = tick / 100
            draw(Progress(1, 3, "/j/system.journal", tick * MIB, 100 * MIB))
    text = screen.getvalue()
    assert 9 <= text.count("1/3") <= 11
    assert text.endswith("\r\x1b[K")
    assert "\n" not in text


@pytest.mark.parametrize("columns", [1, 20, 300])
def test_the_line_leaves_the_last_column_free_and_is_escaped(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", f"{columns}")
    screen = io.StringIO()
    progress.ProgressLine(screen)(Progress(2, 3, "/j/\x1b[31m" + "x" * 200, 50 * MIB, 100 * MIB))
    text = screen.getvalue().removeprefix("\r\x1b[K")
    assert len(text) <= columns - 1
    assert text.isprintable()
    assert text.startswith("2/3  50%  /j/"[: columns - 1][:10])
