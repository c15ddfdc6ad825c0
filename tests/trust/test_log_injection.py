# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names that try to forge a line of the log, steer a terminal, or order the service manager about."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable

import pytest

from journalkeeper.cli.output import complain
from journalkeeper.model import Outcome, Reason, Result, Verb
from journalkeeper.model.errors import ConfigError, FileError
from journalkeeper.service.log import Log

HOSTILE = {
    "newline": "a\n<0>kernel: forged",
    "carriage return": "a\rforged",
    "ESC": "a\x1b]0;forged\x07",
    "C1": "a\u009b31mforged",
    "direction": "a\u202eforged",
    "line separator": "a\u2028forged",
    "NUL": "a\0forged",
    "not UTF-8": os.fsdecode(b"a\xff\x9bforged"),
    "field": "a\nJOURNALKEEPER_RESULT=done\nMAINPID=1",
}
NAMES = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
RAW = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def outcome(name: str) -> Outcome:
    path = f"/var/log/journal/remote/{name}.journal"
    said = str(FileError("rewrite it", path, 5))
    return Outcome(path, Verb.REWRITE, Result.FAILED, Reason.IO_ERROR, 9, 9, None, None, 0, 0.1, said)


@NAMES
def test_no_name_reaches_a_field_of_the_log_raw(journald: socket.socket, name: str) -> None:
    """`journalctl -x` puts JOURNALKEEPER_FILE into the catalog's text as it is (catalog_get, replace_var)."""
    log = Log(str(journald.getsockname()))
    done = outcome(name)
    log.say(3, f"{done.path}: rewrite failed {done.detail}", outcome=done)
    log.close()
    sent = journald.recv(1 << 20).decode("utf-8", "surrogateescape")
    lines = sent.removesuffix("\n").split("\n")
    assert [line for line in lines if RAW.search(line) or "=" not in line] == []
    fields = [line.partition("=")[0] for line in lines]
    assert len(fields) == len(set(fields)), "a name made a field of its own"
    assert "MAINPID" not in fields
    assert [line for line in lines if line.startswith("JOURNALKEEPER_RESULT=")] == ["JOURNALKEEPER_RESULT=failed"]


def log_to_stderr(path: str) -> None:
    log = Log(None)
    log.say(6, f"{path}: defragment done")
    log.close()


@NAMES
@pytest.mark.parametrize("write", [log_to_stderr, lambda path: complain(str(FileError("open it", path, 13)))])
def test_no_name_makes_a_second_line_on_stderr(
    capsys: pytest.CaptureFixture[str], name: str, write: Callable[[str], None]
) -> None:
    """systemd reads the priority at the beginning of each line of the service's."""
    write(f"/j/{name}.journal")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "/j/a" in said
    assert RAW.search(said.rstrip("\n")) is None


def test_a_configuration_file_with_a_newline_in_its_name_is_one_line_a_problem() -> None:
    error = ConfigError((("/etc/j.conf.d/a\nforged: 1.conf", 3, "Compress", "no"), ("b.conf", 1, "Active", "no")))
    assert len(error.lines) == len(error.problems)
    assert "\n" not in "".join(error.lines).replace("a\nforged", "")
