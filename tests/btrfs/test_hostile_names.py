# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names that the owner of a directory chose, in every output of every command that root runs with -D on it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.daemon import journalkeeper
from tests.hosts import MACHINE
from tests.journal_files import put

pytestmark = [pytest.mark.root, pytest.mark.slow]

OWNER = 12345
NAMES = (
    b"system@\nx 1\n# TYPE x counter.journal",
    b"system@\x1b]0;title\x07\x1b[31m.journal",
    b"<script>alert(1)<_script>.journal",
    b'"};x{y=".journal',
    b"\xe2\x80\xaegnp.journal",
    b"\xff\xfe\x80\xc3(.journal",
    b"\r OK: all fine.journal~",
    b"\n\x1b[2J.txt",
)
FORMS = ("--json=off", "--json=short")
COMMANDS = (
    *(("scan",), ("plan",), ("defrag", "-n"), ("defrag", "--now"), ("history",), ("doctor",), ("retention",)),
    *(("status",), ("explain", "{place}")),
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]")
"""What moves a terminal's cursor or turns its text around, the end of a line and a tab apart."""

FORGED = re.compile(r"(?m)^(?:x 1|# TYPE x|\s*OK: all fine)")


def test_no_name_forges_a_line_moves_the_terminal_or_ends_a_command(
    top: Path, tmp_path: Path, journal_bytes: bytes
) -> None:
    """It takes long because it starts every command, with and without a terminal."""
    for number, name in enumerate(NAMES):
        content = b"garbage\n\x1b[31m" if number % 3 == 2 else journal_bytes
        put(top / MACHINE, content, os.fsdecode(name), torn=False)
    (top / os.fsdecode(b"\n\x1b[31mdirectory")).mkdir()
    os.chown(top, OWNER, OWNER)
    config, page, metrics = (tmp_path / name for name in ("conf", "page.html", "a.prom"))
    config.write_text(f"[Watch]\nDirectories={top}\nSettleSec=0\n[Metrics]\nTextfile={metrics}\n")
    for command, *words in COMMANDS:
        for form in FORMS:
            named = [word.format(place=top / MACHINE) for word in words] or ["-D", str(top)]
            done = journalkeeper(command, form, "--config", config, *named, state=tmp_path / "state", check=False)
            assert done.returncode in {0, 1}, done.stderr
            assert "Traceback" not in done.stderr
            assert [CONTROL.findall(text) + FORGED.findall(text) for text in (done.stdout, done.stderr)] == [[], []]
            if form != FORMS[0] and done.stdout:
                json.loads(done.stdout)
    journalkeeper("defrag", "--config", config, state=tmp_path / "state", check=False)
    journalkeeper("report", "--config", config, "-D", top, "-o", page, state=tmp_path / "state")
    for path in (page, metrics):
        text = path.read_text()
        assert CONTROL.findall(text) + FORGED.findall(text) + re.findall("<script", text) == []
