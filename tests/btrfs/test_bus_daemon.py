# SPDX-License-Identifier: LGPL-2.1-or-later
"""Jobs over the bus on real files: signals in order, cancel, pause. Nonsense is sent by tests/trust/caller.py."""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from journalkeeper.bus import names, server
from tests import bus as beds
from tests.btrfs.journals import QUICK, extents
from tests.bus import PrivateBus
from tests.daemon import Daemon
from tests.journal_files import put
from tests.patience import eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

WATCH_ONLY: Final = "[Budget]\nBytesPerDay=0\n[Nocow]\nNocow=no\n"
"""The service's own work is none; jobs with `now` wait for no budget, and rewrite files without +C on directories."""


@pytest.fixture(scope="module")
def bus() -> Iterator[PrivateBus]:
    if reason := beds.missing():
        pytest.skip(reason)
    with PrivateBus() as bus:
        bus.start_polkit()
        yield bus


@pytest.fixture
def serve(bus: PrivateBus, machine: Path, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Start the service on `machine`'s volume."""
    with ExitStack() as stack:
        yield lambda config=WATCH_ONLY: stack.enter_context(Daemon(tmp_path, machine.parent, bus, config))


def busctl(bus: PrivateBus, *words: str) -> Any:
    """The data of an answer."""
    done = bus.run("busctl", f"--address={bus.address}", "--json=short", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["data"] if done.stdout.strip() else None


def call(bus: PrivateBus, member: str, *words: str) -> Any:
    answer = busctl(bus, "call", names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, member, *words)
    return None if answer is None else answer[0]


def read(bus: PrivateBus, name: str) -> Any:
    return busctl(bus, "get-property", names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, name)


class Ear:
    """All signals of the service, as `busctl monitor` shows them."""

    def __init__(self, bus: PrivateBus) -> None:
        address = f"--address={bus.address}"
        matches = ["--match=type='signal',sender='org.journalkeeper1'", "--match=type='signal',interface='test.Ear'"]
        self._process = subprocess.Popen(
            ["busctl", address, "--json=short", *matches, "monitor"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        # systemd 257 does not say when it listens
        while True:
            bus.run("busctl", address, "emit", "/", "test.Ear", "Listens")
            if select.select([self._process.stdout], [], [], 0.2)[0]:
                return

    def until(self, member: str) -> list[dict[str, Any]]:
        """What was said, up to `member`."""
        assert self._process.stdout is not None
        heard: list[dict[str, Any]] = []
        while not heard or heard[-1]["member"] != member:
            heard.append(json.loads(self._process.stdout.readline()))
        return [one for one in heard if one["interface"] != "test.Ear"]

    def __enter__(self) -> Ear:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()


# What is done


def test_the_signals_of_one_defragmentation_come_in_order(
    bus: PrivateBus, machine: Path, serve: Callable[..., Daemon], journal_bytes: bytes
) -> None:
    path = put(machine, journal_bytes)
    before = extents(path)
    serve()
    assert eventually(lambda: read(bus, "FileCount") == 1)
    time.sleep(2 * server.COALESCE_S)  # what the first look found has been signalled by now
    with Ear(bus) as ear:
        job = call(bus, "Defragment", "asst", "0", "", "4")
        heard = ear.until("JobRemoved")
    order = [one["member"] for one in heard if one["member"] != "PropertiesChanged"]
    assert order == ["JobNew", "FileDefragmented", "JobRemoved"]
    said = {one["member"]: one["payload"]["data"] for one in heard}
    assert said["JobNew"] == [1, job]
    assert said["JobRemoved"] == [1, job, "done"]
    name, was, became, written, _ = said["FileDefragmented"]
    assert (name, was) == (f"{path}", before)
    assert became < before / 10
    assert written >= len(journal_bytes) // 2
    assert eventually(lambda: read(bus, "Extents") == extents(path))
    assert read(bus, "BytesWritten") == written


def test_a_pause_holds_the_services_own_work_and_no_job(
    bus: PrivateBus, machine: Path, serve: Callable[..., Daemon], journal_bytes: bytes
) -> None:
    serve(QUICK)
    call(bus, "Pause", "t", "0")
    path = put(machine, journal_bytes)
    before = extents(path)
    job = call(bus, "Defragment", "asst", "0", "", "1")
    introspect = ("busctl", f"--address={bus.address}", "introspect", names.BUS_NAME, job)
    assert eventually(lambda: bus.run(*introspect).returncode != 0)
    assert extents(path) == before
    assert read(bus, "State") == "paused"
    call(bus, "Pause", "t", "200000")
    assert eventually(lambda: not read(bus, "Paused"))
    assert eventually(lambda: extents(path) < before / 10)
    assert eventually(lambda: read(bus, "LastRunUSec") > 0)
