# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names that try to forge a line of the log, steer a terminal, or order the service manager about."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.cli.output import complain
from journalkeeper.model import Outcome, Reason, Result, Verb
from journalkeeper.model.errors import ConfigError, FileError
from journalkeeper.probe.bed import Bed
from journalkeeper.service.log import SOCKET, Event, Log
from journalkeeper.service.notify import Notify

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


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(os.fspath(tmp_path / "socket"))
        listener.settimeout(60)
        yield listener


def outcome(name: str) -> Outcome:
    path = f"/var/log/journal/remote/{name}.journal"
    said = str(FileError("rewrite it", path, 5))
    return Outcome(path, Verb.REWRITE, Result.FAILED, Reason.IO_ERROR, 9, 9, None, None, 0, 0.1, said)


@NAMES
def test_no_name_reaches_a_field_of_the_log_raw(journald: socket.socket, name: str) -> None:
    """JOURNALKEEPER_FILE too: `journalctl -x` puts it into the catalog's text as it is."""
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


@NAMES
def test_no_name_makes_a_second_line_on_stderr(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """systemd takes the priority from the beginning of each line: a name must not begin one."""
    log = Log(None)
    log.say(6, f"/j/{name}.journal: defragment done")
    log.close()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("<6>/j/a")
    assert RAW.search(said.rstrip("\n")) is None


@NAMES
def test_no_name_makes_a_second_line_of_the_command_line(capsys: pytest.CaptureFixture[str], name: str) -> None:
    complain(str(FileError("open it", f"/j/{name}.journal", 13)))
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert RAW.search(said.rstrip("\n")) is None


@NAMES
def test_no_name_orders_the_service_manager_about(
    journald: socket.socket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(journald.getsockname()))
    Notify().status(f"working on /j/{name}.journal")
    said = journald.recv(65536).decode()
    assert said.startswith("STATUS=working on /j/a")
    assert RAW.search(said) is None


def test_a_configuration_file_with_a_newline_in_its_name_is_one_line_a_problem() -> None:
    error = ConfigError((("/etc/j.conf.d/a\nforged: 1.conf", 3, "Compress", "no"), ("b.conf", 1, "Active", "no")))
    assert len(error.lines) == len(error.problems)
    assert "\n" not in "".join(error.lines).replace("a\nforged", "")


@pytest.mark.root
@pytest.mark.slow
def test_the_catalog_shows_no_name_raw(bed: Bed, tmp_path: Path) -> None:
    """By a real journald, a real catalog, and `journalctl -x`."""
    log = Log(f"/proc/{bed.journald.pid}/root{SOCKET}")
    log.say(3, "it failed", outcome=outcome("a\n\x1b[2Jforged"))
    log.close()
    bed.journald.sync()
    units = Path(__file__).parent.parent.parent / "units"
    database = tmp_path / "database"
    catalogs = tmp_path / "usr/lib/systemd/catalog"
    catalogs.mkdir(parents=True)
    (catalogs / "journalkeeper.catalog").write_bytes((units / "journalkeeper.catalog").read_bytes())
    subprocess.run(["journalctl", f"--root={tmp_path}", "--update-catalog"], check=True, capture_output=True)
    (made,) = (tmp_path / "var/lib/systemd/catalog").iterdir()
    database.write_bytes(made.read_bytes())
    argv = ["journalctl", f"--file={bed.journald.active}", f"MESSAGE_ID={Event.FAILED}", "--output=json"]
    said = subprocess.run(argv, check=True, capture_output=True).stdout
    (entry,) = [json.loads(line) for line in said.splitlines()]
    assert isinstance(entry["JOURNALKEEPER_FILE"], str), "bytes that journalctl shows as a blob"
    assert RAW.search(entry["JOURNALKEEPER_FILE"]) is None
    # what libsystemd puts in place of @JOURNALKEEPER_FILE@ (catalog_get, replace_var)
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-ec"]
    script = 'mkdir -p /var/lib/systemd/catalog; mount -t tmpfs none /var/lib/systemd/catalog; cp "$1" '
    script += '/var/lib/systemd/catalog/database; exec journalctl --file="$2" --no-pager -x "MESSAGE_ID=$3"'
    shown = subprocess.run(
        [*argv, script, "sh", str(database), str(bed.journald.active), str(Event.FAILED)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "Work on a journal file failed" in shown, "the catalog was not read"
    assert "\x1b" not in shown
    assert "\nforged" not in shown
