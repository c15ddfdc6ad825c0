# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words of a command line, what they ask for, and what the environment adds."""

from __future__ import annotations

import argparse
import io
from typing import TYPE_CHECKING

import pytest

from journalkeeper.cli import progress
from journalkeeper.cli.parser import COMMANDS, Command, parse
from journalkeeper.cli.probe import PROBES, Probe
from journalkeeper.cli.selection import request
from journalkeeper.cli.terminal import list_pagers, make_pager_environment, wants_colours
from journalkeeper.model import MIB, Request
from journalkeeper.model.errors import UsageError
from journalkeeper.model.progress import Progress

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
def test_common_options_stand_before_or_after_the_command_and_the_later_one_wins(
    line: str, given: dict[str, object]
) -> None:
    assert vars(parsed(line)) == {**PLAIN, **given, "command": "scan", "paths": []}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("defrag", Request()),
        ("defrag --upkeep", Request()),
        ("defrag --active", Request(active=True)),
        ("defrag --archived", Request(archived=True)),
        ("defrag --active --archived", Request(active=True, archived=True)),
        ("plan --now --allow-unshare", Request(now=True, allow_unshare=True)),
        ("defrag --before-shutdown", Request(before_shutdown=True)),
        ("defrag --compress=zstd:15", Request(compress="zstd:15")),
        ("defrag --compress lzo", Request(compress="lzo")),
        ("defrag --compress=no", Request(compress="no")),
        ("defrag /j/a --now /j/b", Request(paths=("/j/a", "/j/b"), now=True)),
        ("defrag -n /j/../j/a", Request(paths=("/j/a",))),
        ("defrag -- -n", Request(paths=("/cwd/-n",))),
        ("defrag --now -- /j/a -j", Request(paths=("/j/a", "/cwd/-j"), now=True)),
    ],
)
def test_the_options_make_the_request(line: str, expected: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/cwd")
    assert request(parsed(line)) == expected._replace(upkeep=True)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "no command given; try `journalkeeper status`"),
        ("-j", "no command given"),
        ("--verison", "unknown option: --verison; see journalkeeper --help"),
        ("scam", "unknown command scam; did you mean scan?"),
        ("frobnicate", "unknown command frobnicate; commands are status, scan,"),
        ("pause soon", "'soon' is no time span such as 30min"),
        ("pause 0", "journalkeeper resume"),
        ("scan --foo", "unknown option: --foo; see journalkeeper scan --help"),
        ("scan --fo x", "unknown option: --fo"),
        ("scan --dir /j", "unknown option: --dir"),
        ("status /j/a", "unexpected argument: /j/a; see journalkeeper status --help"),
        ("scan -D", "expected one argument"),
        ("scan --json", "expected one argument"),
        ("scan --json=xml", "invalid choice: 'xml'"),
        ("scan --now", "unknown option: --now"),
        ("defrag --compress=zstd:16", "zstd:1 to zstd:15"),
        ("defrag --compress=gzip", "allowed are no, lzo"),
        ("defrag --compress", "expected one argument"),
        ("plan -n", "unknown option: -n"),
    ],
)
def test_words_that_make_no_sense_are_a_usage_error_of_one_line(line: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        request(parsed(line))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--help" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["scan", ""], "paths"),
        (["plan", "/j/a", "--now", ""], "paths"),
        (["explain", ""], "file"),
        (["check-config", ""], "config"),
        (["lab", "compare", ""], "place"),
        (["daemon", "-D", ""], "directory"),
        (["scan", "--config="], "config"),
        (["report", "-o", ""], "output"),
    ],
)
def test_an_empty_name_is_no_file(words: list[str], name: str) -> None:
    """As `scan "$UNSET"` has it in a shell: it would be the current directory."""
    with pytest.raises(UsageError, match=f"the argument {name} is empty"):
        parse(words)


@pytest.mark.parametrize("line", ["history --since -3d", "history --since=-3d", "--no-pager history --since -3d"])
def test_a_time_may_begin_with_a_dash_as_with_getopt(line: str) -> None:
    assert parsed(line).since == "-3d"


def shown_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        parse([*words, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_the_help_of_a_probe_says_what_it_does_with_examples_and_exit_codes(
    probe: Probe, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown_help(["probe", probe.name], capsys)
    assert text.count(f"journalkeeper probe {probe.name} ") >= 3  # its usage, and two examples
    assert " ".join(probe.description.split()) in text
    assert "exit status: 0 measured; 1 " in text
    assert "; 2 wrong usage" in text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_has_the_options_that_name_another_journal_where_they_are_taken(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown_help([command.name], capsys)
    taken = command.name not in {"pause", "resume", "lab"}
    assert ("--directory" in text, "--config FILE read" in text) == (taken, taken)
    assert "2 wrong usage" in text


HELPS = [[], *([command.name] for command in COMMANDS), *(["probe", probe.name] for probe in PROBES)]


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_every_line_of_help_fits_80_columns(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*words, "--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("environ", "pagers"),
    [
        ({}, [["less"]]),
        ({"SYSTEMD_PAGER": ""}, []),
        ({"SYSTEMD_PAGER": "cat"}, []),
        ({"PAGER": "cat"}, []),
        ({"PAGER": "cat", "SYSTEMD_PAGER": "less"}, [["less"]]),
        ({"TERM": "dumb"}, []),
        ({"PAGER": "sh -c evil"}, [["less"]]),
        ({"SYSTEMD_PAGER": "most -s", "SYSTEMD_PAGERSECURE": "0"}, [["most", "-s"], ["less"]]),
        ({"PAGER": "more", "SYSTEMD_PAGERSECURE": "1"}, [["more"], ["less"]]),
    ],
)
def test_a_pager_is_found_as_journalctl_finds_it(environ: Mapping[str, str], pagers: list[list[str]]) -> None:
    assert list_pagers(environ) == pagers


def test_less_cannot_start_a_shell_unless_the_environment_is_trusted() -> None:
    plain = make_pager_environment({"HOME": "/root", "LESS": "evil"})
    assert (plain["LESS"], plain["LESSSECURE"], plain["LESSCHARSET"]) == ("FRSXMK", "1", "utf-8")
    assert plain["HOME"] == "/root"
    trusted = make_pager_environment(
        {"SYSTEMD_PAGERSECURE": "no", "SYSTEMD_LESS": "R", "SYSTEMD_LESSCHARSET": "latin1"}
    )
    assert (trusted["LESS"], trusted["LESSSECURE"], trusted["LESSCHARSET"]) == ("R", "0", "latin1")
    assert make_pager_environment({"SYSTEMD_PAGERSECURE": "nonsense"})["LESSSECURE"] == "1"


@pytest.mark.parametrize(
    ("environ", "colours"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "SYSTEMD_COLORS": "0"}, False),
        ({"TERM": "xterm", "SYSTEMD_COLORS": "false"}, False),
        ({"TERM": "dumb", "SYSTEMD_COLORS": "256"}, True),
        ({"TERM": "xterm", "SYSTEMD_COLORS": "1", "NO_COLOR": "1"}, True),
    ],
)
def test_colours_follow_systemd_colors_then_no_color_then_the_terminal(
    environ: Mapping[str, str], *, colours: bool
) -> None:
    assert wants_colours(environ) is colours


def test_the_line_is_drawn_at_most_ten_times_a_second_and_erased_at_the_end() -> None:
    screen, now_s = io.StringIO(), 0.0
    with progress.ProgressLine(screen, clock=lambda: now_s) as draw:
        for tick in range(101):
            now_s = tick / 100
            draw(Progress(1, 3, "/j/system.journal", tick * MIB, 100 * MIB))
    text = screen.getvalue()
    assert 9 <= text.count("1/3") <= 11
    assert text.endswith("\r\x1b[K")
    assert "\n" not in text
    assert "50.0 MiB/s" not in text
    assert "100.0 MiB/s" in text


@pytest.mark.parametrize("columns", [1, 10, 20, 40, 80, 300])
def test_the_line_leaves_the_last_column_free_and_escapes_the_path(columns: int) -> None:
    text = progress.line(Progress(2, 3, "/j/\x1b[31m" + "x" * 200, 50 * MIB, 100 * MIB), 10 * MIB, columns)
    assert len(text) <= max(columns - 1, 0)
    assert text.isprintable()
    if columns >= 80:
        assert text.startswith("2/3  50%  10.0 MiB/s  5s left  /j/")


@pytest.mark.parametrize(
    ("done", "total", "share"), [(0, 0, "0%"), (0, 10, "0%"), (10, 10, "100%"), (11, 10, "100%"), (1, 3, "33%")]
)
def test_percent_is_within_0_and_100(done: int, total: int, share: str) -> None:
    assert progress.line(Progress(1, 1, "/j/a", done, total), 0.0, 80) == f"1/1 {share:>4}  /j/a"


@pytest.mark.parametrize(("done", "left"), [(100, "1s"), (99, "1s"), (41, "59s"), (38, "1min 2s"), (-3623, "1h 2min")])
def test_time_left_is_a_span_in_at_most_two_units(done: int, left: str) -> None:
    assert f"  {left} left  " in progress.line(Progress(1, 1, "/j/a", done * MIB, 100 * MIB), MIB, 80)
