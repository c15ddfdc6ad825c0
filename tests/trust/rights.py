# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which rights the units use, by census on whole hosts: system calls, capabilities, writable paths.

    sudo python -m tests.trust.rights                    # both releases, 5 minutes
    sudo python -m tests.trust.rights --release trixie

Each unit does a day's work under all its confinement: archives of each kind, ranges, rotations, a snapshot, jobs
of the bus, reloads, metrics, a damaged record, a namespace, journals of systemd-journal-remote. Each process of
it stops before it begins, strace(1) is attached from outside, and it goes on. What is printed is what was used of
each group of system calls, what the filter refused, the capabilities it had, and each directory that it wrote to.
A call that was refused, work that was not done, a capability or a directory beyond ALLOWED, a unit that
failed or of which no call was seen count as unclean.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.bench.figures import Option
from tests.guest import base
from tests.guest.host import Guest
from tests.guest.steps import INSTALL, archive, eventually, extents, lend_checkout, property_of
from tests.journal_files import archive_name, put
from tests.trust import table
from tests.trust.gate import Gate

SERVICE, DEFRAG, SHUTDOWN = "journalkeeper.service", "journalkeeper-defrag.service", "journalkeeper-shutdown.service"
MEASURE = "journalkeeper-measure@.service"
UNITS = {
    SERVICE: ("ExecStart", "daemon"),
    DEFRAG: ("ExecStart", "defrag"),
    SHUTDOWN: ("ExecStop", "defrag --before-shutdown"),
    MEASURE: ("ExecStart", "--measure"),
}
"""Which command of each unit is looked at."""

QUICK = "[Watch]\nSettleSec=1s\nNocowSettleSec=1s\n[Window]\nPressureMax=100%\n"
METRICS = "/var/lib/prometheus/node-exporter"
REMOTE_PROGRAM = "/usr/lib/systemd/systemd-journal-remote"
"""There, the generator takes the host for one that receives journals."""

ALLOWED: Final = {
    SERVICE: ("0000000000000000", "000000001000000a"),
    DEFRAG: ("0000000000000000",),
    SHUTDOWN: ("0000000000000000",),
    MEASURE: ("0000000000200000",),
}
"""The capabilities of each unit: none; CAP_DAC_OVERRIDE, CAP_FOWNER and CAP_LEASE where remote/ is; CAP_SYS_ADMIN."""

WRITABLE: Final = ("/dev", "/var/log/journal", "/var/lib/journalkeeper", METRICS)

AGED = 100
"""A file of so many extents was not mended."""

SHOWN = 160
"""Characters of a refused call that are printed."""

CALL = re.compile(r"^(\w+)\(")
REFUSED = re.compile(r"^\w+\(.* = -1 EPERM")
EXPECTED = re.compile(r"BTRFS_IOC_TREE_SEARCH|SO_(?:SND|RCV)BUFFORCE|^fchown\(\d+</var/lib/journalkeeper/")
"""What is refused and then done otherwise: disk space is asked of the unit that may, libsystemd takes a smaller
buffer, and SQLite's files next to the database have the owner that its fchown() would give them."""

WRITTEN = re.compile(r"^open(?:at2?)?\(.*\bO_(?:WRONLY|RDWR|CREAT).* = \d+<(/[^>]*)>")
BUS = ("org.journalkeeper1", "/org/journalkeeper1", "org.journalkeeper1.Manager")


class Census(NamedTuple):
    """What one unit used: its calls, those refused as they were seen, where it wrote, its capabilities in hex."""

    calls: set[str]
    refused: set[str]
    directories: set[str]
    capabilities: set[str]


class Tracer:
    """Attaches strace to each process of ours in a guest, and writes what it says to `place`."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._tracing: list[subprocess.Popen[bytes]] = []
        self._capabilities: dict[str, set[str]] = {unit: set() for unit in UNITS}

    def attach(self, pid: int, unit: str) -> None:
        """Follow a process of a unit, and all that it starts."""
        status = Path(f"/proc/{pid}/status").read_text()
        self._capabilities[unit] |= set(re.findall(r"(?m)^Cap(?:Bnd|Eff):\s*(\w+)$", status))
        # a file for each thread: else a call that others interrupt is two lines, of which the second has no words
        words = ("strace", "-ff", "-y", "-o", self._place / f"{unit}.{pid}", "-p", str(pid))
        tracing = subprocess.Popen(words, stderr=subprocess.PIPE)
        assert tracing.stderr is not None
        tracing.stderr.readline()  # "Process N attached"
        self._tracing.append(tracing)

    def stop(self) -> None:
        """End what still follows; each ends by itself with its process."""
        for tracing in self._tracing:
            tracing.terminate()
            tracing.communicate()

    def census(self, unit: str) -> Census:
        """What a unit used up to now, in all its processes."""
        calls, refused, directories = set(), set(), set()
        for path in self._place.glob(f"{unit}.*"):
            for line in path.read_text(errors="replace").splitlines():
                if found := CALL.match(line):
                    calls.add(found[1])
                if REFUSED.match(line) and not EXPECTED.search(line):
                    refused.add(line[:SHOWN])
                if found := WRITTEN.match(line):
                    directories.add(os.path.dirname(found[1]) or "/")
        return Census(calls, refused, directories, self._capabilities[unit])


class Day:
    """What a host asks of the units in a day; `undone` is what did not come about."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.undone: list[str] = []
        self.config = guest.root / "etc/journalkeeper.conf"

    def check(self, what: str, true: Callable[[], bool], patience_s: float = 90) -> None:
        """Wait for it."""
        if not eventually(true, patience_s):
            self.undone.append(what)

    def outcomes(self) -> list[dict[str, Any]]:
        """What the record has."""
        found: list[dict[str, Any]] = json.loads(self.guest.shell("journalkeeper history -j"))["outcomes"]
        return found

    def done_count(self) -> int:
        """How many outcomes of work that was done are recorded."""
        return sum(one["result"] == "done" for one in self.outcomes())

    def did(self, action: str, name: str = "") -> bool:
        """Whether such an outcome is recorded of a path with `name` in it."""
        done = (one for one in self.outcomes() if one["result"] == "done")
        return any(one["action"] == action and name in one["path"] for one in done)

    def archives(self) -> None:
        """A datacow one, one beside a snapshot, a NOCOW one, an unclean one."""
        guest = self.guest
        made = archive(guest)
        self.check("a datacow archive", lambda: extents(guest)[made] < AGED)
        guest.run("systemctl", "stop", SERVICE)
        shared = archive(guest)
        guest.snapshot("day")
        content = (guest.journal / made).read_bytes()
        name = archive_name(77)
        put(guest.journal, content, name, nocow=True)
        unclean = "system@0000000000000001-0000000000000001.journal~"
        put(guest.journal, content, unclean)
        guest.run("systemctl", "start", SERVICE)
        self.check("an archive beside a snapshot", lambda: extents(guest)[shared] < AGED)
        self.check("a NOCOW archive", lambda: self.did("rewrite", name))
        self.check("an unclean file", lambda: extents(guest)[unclean] < AGED)

    def active(self) -> None:
        """Ranges of the active file, a rotation, a directory made NOCOW."""
        guest = self.guest
        guest.age(60)
        said = guest.run("journalkeeper", "defrag", "--active", "--now").stdout
        # whether it gained is the policy's matter: that it was written to is what it needs rights for
        if not any(one["bytes_written"] and one["path"].endswith("/system.journal") for one in self.outcomes()):
            self.undone.append(f"an active file: {said}")
        self.config.write_text(QUICK + "[Nocow]\nNocow=yes\n")
        guest.run("systemctl", "reload", SERVICE)
        self.check("a NOCOW directory", lambda: self.did("set-nocow"))
        self.check("a rotation", lambda: self.did("rotate"))
        self.config.write_text(QUICK + "[Nocow]\nNocow=no\n")
        guest.run("systemctl", "reload", SERVICE)

    def bus(self) -> None:
        """Everything that can be asked, by root and by a user."""
        guest = self.guest
        for words in (("Rescan",), ("Pause", "t", "1000000"), ("Resume",), ("Reload",), ("Plan", "a{sv}", "0")):
            done = guest.run("busctl", "call", *BUS, *words, check=False)
            if done.returncode:
                self.undone.append(f"{words[0]}: {done.stderr.strip()}")
        guest.run("journalkeeper", "status", user="user")
        guest.run("journalkeeper", "plan")
        guest.run("busctl", "tree", "org.journalkeeper1")
        guest.run("journalkeeper", "defrag", "--now")
        if guest.run("journalkeeper", "pause", user="user", check=False).returncode == 0:
            self.undone.append("a user was not refused")

    def troubles(self) -> None:
        """A wrong configuration, metrics, a damaged record, a namespace, a journald that restarts."""
        guest = self.guest
        self.config.write_text("[Watch]\nNonsense=1\n")
        if guest.run("systemctl", "reload", SERVICE, check=False).returncode == 0:
            self.undone.append("a wrong configuration was not refused")
        guest.run("mkdir", "-p", METRICS)
        self.config.write_text(QUICK + f"[Nocow]\nNocow=no\n[Metrics]\nTextfile={METRICS}\n")
        guest.run("systemctl", "restart", SERVICE)
        self.check("metrics", (guest.root / METRICS.lstrip("/") / "journalkeeper.prom").exists)
        (guest.root / "var/lib/journalkeeper/history.db").write_bytes(b"no database " * 1000)
        guest.run("systemctl", "restart", "systemd-journald")
        guest.run("systemctl", "start", "systemd-journald@shop.service")
        guest.run("systemd-run", "--quiet", "--wait", "--property=LogNamespace=shop", "echo", "open")
        guest.age(40, namespace="shop")
        guest.run("journalctl", "--namespace=shop", "--rotate")

        def mended() -> bool:
            counts = extents(guest, "shop")
            return any("@" in name for name in counts) and all(
                count < AGED for name, count in counts.items() if "@" in name
            )

        self.check("a namespace's archive", mended, 150)
        state = guest.root / "var/lib/journalkeeper"
        self.check("a damaged record is set aside", lambda: len(list(state.glob("history.db.corrupt-*Z"))) == 1)

    def timer(self) -> None:
        """The timer's run, without the service."""
        guest = self.guest
        guest.run("systemctl", "stop", SERVICE)
        made = archive(guest)

        def mended() -> bool:
            guest.run("systemctl", "start", DEFRAG)
            return extents(guest)[made] < AGED

        self.check("the timer's run", mended)

    def shutdown(self) -> None:
        """What is done when the host goes down."""
        guest = self.guest
        guest.run("systemctl", "start", SHUTDOWN)
        guest.age(60)
        before = self.done_count()
        guest.run("systemctl", "stop", SHUTDOWN)
        if self.done_count() == before:
            self.undone.append("the shutdown's run")

    def remote(self) -> None:
        """A journal of systemd-journal-remote, whose owner is not root."""
        guest = self.guest
        place = guest.journal.parent / "remote"
        place.mkdir()
        content = next(path for path in guest.journal.glob("system@*.journal")).read_bytes()
        torn = put(place, content, archive_name(5, "remote-one"))
        for path in (place, torn):
            os.chown(path, 1000, 1000)
        torn.chmod(0o600)
        program = guest.root / REMOTE_PROGRAM.lstrip("/")
        program.touch(mode=0o755)
        guest.run("systemctl", "daemon-reload")
        guest.run("systemctl", "restart", SERVICE)
        self.check("a journal of journal-remote", lambda: self.did("compress", torn.name))
        program.unlink()
        guest.run("systemctl", "daemon-reload")
        guest.run("systemctl", "stop", SERVICE)


def day(guest: Guest) -> Day:
    """A whole day's work."""
    found = Day(guest)
    found.config.write_text(QUICK + "[Nocow]\nNocow=no\n")
    guest.run("systemctl", "start", SERVICE)
    for part in (found.active, found.archives, found.bus, found.troubles, found.timer, found.shutdown, found.remote):
        part()
    return found


def groups(guest: Guest) -> dict[str, set[str]]:
    """systemd's groups of system calls, as the guest's knows them."""
    found: dict[str, set[str]] = {}
    for line in guest.run("systemd-analyze", "syscall-filter", "--no-pager").stdout.splitlines():
        if line.startswith("@"):
            name = line.strip()
            found[name] = set()
        elif found and line.startswith("    ") and not line.strip().startswith("#"):
            found[name].add(line.strip())
    return found


def report(unit: str, census: Census, known: dict[str, set[str]]) -> Iterator[str]:
    """The census for people."""
    yield f"{unit}: {len(census.calls)} system calls; capabilities {' '.join(sorted(census.capabilities))}"
    left = set(census.calls)
    for name, members in sorted(known.items()):
        used = census.calls & members
        if used and name not in {"@known", "@system-service"}:
            left -= used
            yield f"    {name}: {' '.join(sorted(used))}"
    yield f"    in no group: {' '.join(sorted(left))}"
    yield f"    refused: {'none' if not census.refused else ''}"
    yield from (f"        {line}" for line in sorted(census.refused))
    yield f"    wrote in: {' '.join(sorted(census.directories))}"


def wrong(unit: str, census: Census) -> list[str]:
    """What a unit asked for and was refused, or had and should not."""
    found = [f"refused: {line}" for line in census.refused]
    found += [f"it has the capabilities {one}" for one in sorted(census.capabilities - set(ALLOWED[unit]))]
    places = [one for one in sorted(census.directories) if not any(_below(one, place) for place in WRITABLE)]
    found += [f"it wrote in {place}" for place in places]
    return found if census.calls and census.capabilities else [*found, "nothing was seen of it"]


def _below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


@contextmanager
def host(release: str) -> Iterator[Guest]:
    """A booted datacow host with journalkeeper, on which nothing is enabled."""
    with Guest(release, nocow=False) as guest:
        guest.boot()
        lend_checkout(guest)
        guest.run(INSTALL, "--no-start")
        yield guest


RELEASES: Final = {"release": Option(sorted(base.SYSTEMD), "of Debian", str, many=True, choices=sorted(base.SYSTEMD))}


def attack(asked: Namespace) -> table.Row:
    """Take the census."""
    unclean = points = 0
    began_s = time.monotonic()
    for release in asked.release:
        with host(release) as guest, tempfile.TemporaryDirectory() as place:
            tracer = Tracer(Path(place))
            with Gate(guest, UNITS, tracer.attach):
                done = day(guest)
                guest.run("systemctl", "stop", SERVICE)
            tracer.stop()
            known = groups(guest)
            lines = [f"{release}: undone: {', '.join(done.undone) or 'nothing'}"]
            for unit in UNITS:
                census = tracer.census(unit)
                lines += report(unit, census, known)
                points += len(census.calls)
                found = wrong(unit, census)
                lines += [f"    UNCLEAN: {one}" for one in found]
                unclean += len(found)
            ended = {unit: property_of(guest, unit, "Result") for unit in (SERVICE, DEFRAG, SHUTDOWN)}
            lines += [f"{unit}: {result}" for unit, result in ended.items()]
            failed = [unit for unit, result in ended.items() if result != "success"]
            unclean += len(done.undone) + len(failed)
            if done.undone or failed:
                lines.append(
                    guest.run("journalctl", "--quiet", "--output=short-precise", "--unit=journalkeeper*").stdout
                )
            table.say("\n".join(lines))
    table.say(f"in {time.monotonic() - began_s:.0f} s")
    return table.Row("rights", points, 0, unclean, 0.0, 0)


if __name__ == "__main__":
    sys.exit(table.command(__doc__, "rights", attack, RELEASES, on_a_bed=True))
