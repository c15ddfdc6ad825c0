# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line beside the running service: on a bus of its own, with polkit, as root and as nobody.

Service and commands run in the private journald's mount namespace, where /var/log/journal is
the bed's and /var/lib is empty: everything is where it is on a host.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.bus import names
from journalkeeper.model.units import spell_size
from journalkeeper.probe.bed import Bed
from tests import bus as buses
from tests.answers import check
from tests.btrfs.journals import log_until_online
from tests.bus import PrivateBus
from tests.daemon import Daemon, environment
from tests.nobody import NOBODY
from tests.patience import PATIENCE_S, eventually
from tests.volumes import drop_caches, extents

pytestmark = [pytest.mark.root, pytest.mark.slow]

CONFIG = """
[Watch]
SettleSec=1d
NocowSettleSec=1d
[Nocow]
Nocow=no
[Defrag]
Active=no
MinReclaim=64K
[Budget]
RotationsPerDay=0
[Window]
PressureMax=100%
"""
"""The service does nothing by itself: archives settle for a day, and --now does not wait for that."""

PATIENT = (
    # all that nobody needs is imported before: the user may not be able to read the checkout
    "import os, sys;"
    "from journalkeeper import engine;"
    "from journalkeeper.bus import client, contract;"
    "from journalkeeper.cli import defrag, main, plan, program, progress, status;"
    "from journalkeeper.config import files, validation;"
    "from journalkeeper.history import store;"
    "from journalkeeper.model import sentences;"
    "from journalkeeper.service import log;"
    f"client.ANSWER_S = client.CALL_S = {PATIENCE_S};"
)
"""The command, which waits as long as a test does for an answer."""

AS_NOBODY = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY});"
MAIN = "sys.exit(main(sys.argv[1:]))"


class Host:
    """A journald with fragmented archives, a bus, and what one would do there."""

    def __init__(self, bed: Bed, bus: PrivateBus, base: Path) -> None:
        self.bed, self.bus, self._base = bed, bus, base
        self._enter = bed.journald.inside
        self.environment = environment(DBUS_SYSTEM_BUS_ADDRESS=bus.address, TERM="xterm")
        self.environment.pop("STATE_DIRECTORY", None)
        subprocess.run([*self._enter, "mount", "-t", "tmpfs", "none", "/var/lib"], check=True)
        Path(f"/proc/{bed.journald.pid}/root/run/journalkeeper.conf").write_text(CONFIG)
        self.daemon: Daemon | None = None

    def archive(self, flushes: int = 20) -> Path:
        """One more archive that is worth a rewrite."""
        self.bed.journald.age(flushes)
        return self.bed.journald.rotate()

    @property
    def first(self) -> Path:
        """The archive that is there from the beginning, while it is the only one."""
        (path,) = self.bed.journald.journal.glob("system@*")
        return path

    def start(self) -> None:
        state = Path("/var/lib/journalkeeper")
        self.daemon = Daemon(self._base, None, self.bus, CONFIG, wait=False, wrapper=self._enter, state=state)
        unknown = {"", 's "unknown"'}
        assert eventually(lambda: self.ask(names.MANAGER_PATH, names.MANAGER, "Health") not in unknown), self.log()

    def log(self) -> str:
        return "" if self.daemon is None else self.daemon.log()

    def ask(self, path: str, interface: str, name: str) -> str:
        """Return a property of the service as busctl(1) prints it; "" if it does not answer."""
        words = (f"--address={self.bus.address}", "get-property", names.BUS_NAME, path, interface, name)
        return self.bus.run("busctl", *words).stdout.strip()

    def stop(self) -> None:
        if self.daemon is not None:
            assert self.daemon.stop() == 0, self.log()

    def begun(self, *words: str, nobody: bool = False, terminal: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start a command; its stderr can be a terminal."""
        program = PATIENT + (AS_NOBODY if nobody else "") + MAIN
        line = [*self._enter, sys.executable, "-c", program, *words]
        return subprocess.Popen(line, env=self.environment, stdout=subprocess.PIPE, stderr=terminal, text=True)

    def does(self, *words: str, nobody: bool = False) -> subprocess.CompletedProcess[str]:
        process = self.begun(*words, nobody=nobody)
        out, err = process.communicate(timeout=240)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def doors(self) -> list[str]:
        """Who did what is recorded, the oldest first."""
        return [row["origin"] for row in json.loads(self.does("history", "-j").stdout)["outcomes"]]


def inside(path: Path) -> str:
    """Where the service sees a file of the bed's."""
    return f"/var/log/journal/{path.parent.name}/{path.name}"


@pytest.fixture
def host(bed: Bed, tmp_path: Path) -> Iterator[Host]:
    """A host with one archive and a running service."""
    if reason := buses.missing():
        pytest.skip(reason)
    with PrivateBus() as bus:
        bus.start_polkit()
        one = Host(bed, bus, tmp_path)
        one.archive()
        try:
            one.start()
            yield one
        finally:
            one.stop()


def rows(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(row["action"], row["result"], row["reason"]) for row in document["outcomes"]]


def test_a_defrag_is_done_by_the_service_and_looks_the_same(host: Host) -> None:
    first = host.first
    before = extents(first)
    table = host.does("defrag", "--archived", "--now")
    assert (table.returncode, table.stderr) == (0, ""), table
    assert re.match(rf"compressed {re.escape(first.name)}: .*[\d,]+ to [\d,]+ extents?\n", table.stdout)
    assert "1 file done: " in table.stdout
    assert extents(first) < before
    assert f"compressed {first.name}: " in host.log()
    row = json.loads(host.does("history", "-j").stdout)["outcomes"][-1]
    assert row["origin"] != "defrag"
    saved = f"Saved: {spell_size(row['disk_bytes_before'] - row['disk_bytes_after'])} on disk"
    assert eventually(lambda: saved in host.does("status", nobody=True).stdout)

    second = host.archive()
    assert eventually(lambda: time.time() - second.stat().st_mtime > 2)  # journald touches it once more
    by_service = host.does("defrag", "--archived", "--now", "-j")
    assert (by_service.returncode, by_service.stderr) == (0, "")
    host.stop()
    assert "Service: no" in host.does("status").stdout
    third = host.archive()
    for _ in range(3):  # journald may still change the archive, which is then left for the next run
        alone = host.does("defrag", "--archived", "--now", "-j")
        assert (alone.returncode, alone.stderr) == (0, "")
        one, other = json.loads(by_service.stdout), json.loads(alone.stdout)
        if rows(other)[0][1] == "done":
            break
    assert host.doors()[-1] == "defrag"
    assert list(one) == list(other)
    assert {tuple(row) for row in one["outcomes"]} == {tuple(other["outcomes"][0])}
    assert one["outcomes"][0]["path"] == inside(second)
    assert other["outcomes"][0]["path"] == inside(third)
    assert rows(one)[0] == rows(other)[0]


def test_nobody_reads_the_status_and_may_change_nothing(host: Host) -> None:
    archive = host.first
    before = extents(archive)
    seen = host.does("status", nobody=True)
    assert (seen.returncode, seen.stderr) == (0, ""), seen
    assert re.search(r"(?m)^ +Service: (idle|waiting)", seen.stdout)
    assert "Journal: 2 files in /var/log/journal, " in seen.stdout
    assert "only root may read the history" in seen.stdout
    document = json.loads(host.does("status", "-j", nobody=True).stdout)
    assert (document["readable"], document["service"]["files"]) == (False, 2)
    refused = host.does("defrag", "--now", nobody=True)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert re.fullmatch(r"journalkeeper: defrag needs root, try sudo: .+\n", refused.stderr), refused.stderr
    assert extents(archive) == before
    assert host.doors() == []


def test_nobody_sees_the_plan_of_the_service_as_root_sees_its_own(host: Host) -> None:
    archive = inside(host.first)
    for words in (["plan"], ["plan", "--now"], ["defrag", "-n", "--now", "--archived"], ["plan", archive]):
        user, root = host.does(*words, nobody=True), host.does(*words)
        assert (user.returncode, user.stderr) == (root.returncode, root.stderr) == (0, ""), user
        assert user.stdout.splitlines()[0].split() == root.stdout.splitlines()[0].split()
        assert archive in user.stdout
    waiting = host.does("plan", "--archived", nobody=True).stdout.splitlines()[-1]
    waits = (
        "1 file waits until SettleSec= has passed since the last change. `journalkeeper defrag --now` does not wait."
    )
    assert waiting == f"2 files left alone. Of these, {waits}"
    document, roots = (json.loads(host.does("plan", "--now", "-j", nobody=nobody).stdout) for nobody in (True, False))
    assert list(document) == list(roots)
    for action in (*document["actions"], *roots["actions"]):
        del action["disk_bytes_saved"]  # by what the disk says, which only root may ask
    assert document["actions"] == roots["actions"]
    assert document["actions"][0]["path"] == archive
    gone = host.does("plan", f"{archive}x", archive, nobody=True)
    assert gone.returncode == 1
    assert gone.stderr.startswith(f"journalkeeper: {archive}x: No such file or directory; `journalkeeper scan`")
    assert archive in gone.stdout
    host.stop()
    alone = host.does("plan", nobody=True)
    assert (alone.returncode, alone.stdout) == (1, "")
    assert re.fullmatch(r"journalkeeper: plan needs root, try sudo: .+\n", alone.stderr), alone.stderr


def test_ctrl_c_ends_the_job_at_a_chunk_border_and_says_what_was_done(host: Host) -> None:
    for _ in range(9):
        host.archive()

    def at_work() -> bool:
        number = host.ask("/org/journalkeeper1/job/1", names.JOB, "FileNumber")
        return number.startswith("u ") and number not in {"u 0", "u 1"}

    ours, theirs = pty.openpty()
    drop_caches()
    host.bed.volume.throttle(100)
    process = host.begun("defrag", "--now", "--archived", terminal=theirs)
    os.close(theirs)
    assert eventually(at_work)
    process.send_signal(signal.SIGINT)
    seen = b""
    with suppress(OSError):  # EIO at the command's end
        while part := os.read(ours, 4096):
            seen += part
    os.close(ours)
    host.bed.volume.throttle(0)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 1
    assert b"Stopping after this chunk." in seen
    assert re.search(r"(?m)^compressed ", out)
    assert "wait for the next run, because the last one ended early" in out
    assert not at_work()
    again = host.does("defrag", "--now", "--archived")
    assert (again.returncode, again.stderr) == (0, "")
    assert " failed" not in again.stdout


def test_a_pause_and_its_end(host: Host) -> None:

    def state() -> str:
        return str(json.loads(host.does("status", "-j").stdout)["service"]["state"])

    until = "until [-0-9]{10} [:0-9]{5}"  # the two clocks may be read in different minutes
    said = host.does("pause", "2h").stdout
    assert re.fullmatch(rf"Paused {until}: the service works only on request[.]\n", said), said
    assert eventually(lambda: state() == "paused")
    shown = host.does("status").stdout
    assert re.match(rf"Act: The service is paused {until}[.] Try: journalkeeper resume\n", shown), shown
    assert re.search(r" Service: paused\n", shown), shown
    assert host.does("resume").stdout == "The pause has ended: the service works.\n"
    assert eventually(lambda: state() != "paused")
    assert host.does("resume").stdout == "There was no pause: the service works.\n"
    for words, answer in (
        (("pause", "2h"), {"paused": True, "span_us": 7_200_000_000}),
        (("pause",), {"paused": True, "span_us": None}),
        (("pause", "8000y"), {"paused": True, "span_us": None}),
        (("resume",), {"paused": False, "span_us": None}),
    ):
        document = json.loads(host.does(*words, "-j").stdout)
        check(words[0], document)
        assert document == answer
    assert eventually(lambda: state() != "paused")
    assert host.does("status").stdout.startswith("OK: ")
    refused = host.does("pause", nobody=True)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "root" in refused.stderr
    host.stop()
    assert "not on D-Bus" in host.does("pause").stderr


def test_status_and_every_plan_show_one_window(host: Host) -> None:
    """The service learns by its events alone what the plans look up: the states follow, and nobody asks between."""
    journald = host.bed.journald

    def service() -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(host.does("status", "-j").stdout)["service"]
        return shown

    def compare(expected: str) -> None:
        """Compare what status shows, a plan for root, and a plan for another user."""
        before = service()
        plans = [
            json.loads(host.does(*words, "-j", nobody=nobody).stdout)["window"]
            for words, nobody in ((("plan",), False), (("plan",), True), (("defrag", "-n"), False))
        ]
        (window,) = plans[0].values()
        assert window["reason"] == expected
        assert plans[1:] == plans[:1] * 2
        for directory in ("/var/log/journal", f"/var/log/journal/{journald.journal.name}"):
            (place,) = json.loads(host.does("explain", directory, "-j").stdout)["directories"]
            assert place["window"] == window
        assert [one["window_open"] for one in (before, service())] == [window["open"]] * 2
        flushes_us = before["next_flush_us"]
        assert service()["next_flush_us"] == flushes_us
        closes_us = window["closes_at_us"]
        assert (flushes_us is None) == (closes_us is None)
        assert closes_us is None or closes_us < flushes_us <= closes_us + 60_000_000

    journald.sync()
    host.does("plan")  # a sync that no timer brought about is silent, so a look has to find it
    assert eventually(lambda: service()["window_open"] and service()["next_flush_us"] is None)
    compare("flushed")
    log_until_online(journald, "this begins an interval")
    assert eventually(lambda: service()["next_flush_us"] is not None)
    compare("online")
    host.stop()
    host.start()  # and nobody knows since when something waits to be flushed
    assert eventually(lambda: service()["window_open"] is False)
    compare("unsynced")
