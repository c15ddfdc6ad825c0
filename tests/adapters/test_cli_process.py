# SPDX-License-Identifier: LGPL-2.1-or-later
"""journalkeeper as a process: what it imports, and how it lives with pipes, terminals and rights."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.adapters.command import ran
from tests.daemon import CHECKOUT, PROGRAM, run_on_terminal

CHECK = [*PROGRAM, "check-config", "--config", "/dev/null"]


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SYSTEMD_", "PAGER"))}
    return {**inherited, "TERM": "xterm", "PYTHONPATH": f"{CHECKOUT}", **more}


def process(command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    return ran(*command, env=environment(**more), timeout=240)


@pytest.mark.parametrize("words", [CHECK, [*PROGRAM, "--help"]])
def test_a_reader_that_leaves_early_is_met_with_silence_and_a_full_disk_is_said_once(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    full = "journalkeeper: cannot write the output: No space left on device\n"
    for stdout, said in ((writer, ""), (os.open("/dev/full", os.O_WRONLY), full)):
        done = subprocess.run(
            words, stdout=stdout, stderr=subprocess.PIPE, env=environment(), timeout=240, check=False, text=True
        )
        os.close(stdout)
        assert (done.returncode, done.stderr) == (1, said)


def test_closed_standard_streams_are_no_accident() -> None:
    line = f'{shlex.join(CHECK)} <&- >&- 2>&- && [ -z "$({shlex.join(PROGRAM)} wrong 2>&-)" ]'
    assert process(["sh", "-c", line]).returncode == 0


def test_text_that_the_terminals_encoding_lacks_is_escaped() -> None:
    done = process([*PROGRAM, "scan", "-D", "/nonexistent/ü"], PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert r"/nonexistent/\xfc: No such file or directory" in done.stderr


def make_less(place: Path, script: str) -> dict[str, str]:
    """Make a less that runs these lines of sh, and return the environment that finds it."""
    (place / "less").write_text(f"#!/bin/sh\n{script}\n")
    (place / "less").chmod(0o755)
    return {"PATH": f"{place}:{os.environ['PATH']}"}


def test_a_terminal_gets_colours_and_a_pager_that_starts_no_program(tmp_path: Path) -> None:
    found = make_less(tmp_path, f'echo "$LESS $LESSSECURE $LESSCHARSET" > {tmp_path}/asked; exec tee {tmp_path}/paged')
    evil = {"LESS": "evil", "LESSSECURE": "0", "PAGER": "/nonexistent/evil", "SYSTEMD_PAGERSECURE": "0"}
    status, shown = run_on_terminal(CHECK, environment(**found, **evil))
    assert (shown.startswith("\x1b[4mSECTION"), status) == (True, 0)
    assert (tmp_path / "paged").read_text() == shown.replace("\r\n", "\n")
    assert (tmp_path / "asked").read_text() == "FRSXMK 1 utf-8\n"


@pytest.mark.parametrize(
    ("words", "environ", "says"),
    [
        (["--no-pager"], {}, "\x1b[4mSECTION"),
        (["-j"], {}, '{"problems":[]'),
        ([], {"TERM": "dumb"}, "SECTION"),
        ([], {"SYSTEMD_PAGER": "cat", "PAGER": "less"}, "\x1b[4mSECTION"),
        ([], {"PAGER": "cat"}, "\x1b[4mSECTION"),
    ],
)
def test_no_pager_where_none_is_wanted(tmp_path: Path, words: list[str], environ: dict[str, str], says: str) -> None:
    found = make_less(tmp_path, f"touch {tmp_path}/paged")
    _, shown = run_on_terminal([*CHECK, *words], environment(**found, **environ))
    assert shown.startswith(says)
    assert not (tmp_path / "paged").exists()


def test_a_pipe_gets_neither_colours_nor_a_pager(tmp_path: Path) -> None:
    done = process(CHECK, **make_less(tmp_path, f"touch {tmp_path}/paged"))
    assert done.stdout.startswith("SECTION")
    assert not (tmp_path / "paged").exists()


def test_a_pager_that_is_not_there_or_ends_at_once_is_no_error(tmp_path: Path) -> None:
    status, shown = run_on_terminal(CHECK, environment(PATH="/nonexistent"))
    assert (shown.startswith("\x1b[4mSECTION"), status) == (True, 0)
    assert run_on_terminal(CHECK, environment(**make_less(tmp_path, "exit 0"))) == (0, "")
