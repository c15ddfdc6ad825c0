# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's limits on inotify, real ones: a user namespace of the test's own has as few as it likes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.service import daemon
from journalkeeper.service.watch import Watches
from tests.hosts import MACHINE
from tests.patience import PATIENCE_S

CHECKOUT = Path(__file__).parents[2]

WATCHES = """
import asyncio, sys
from journalkeeper.service.watch import DirectoryWatch, watch_directories

def limit(number):
    open("/proc/sys/user/max_inotify_%s" % sys.argv[2], "w").write(str(number))

async def main():
    limit(sys.argv[3])
    watch = DirectoryWatch()
    watch.use(watch_directories([sys.argv[1]]))
    print(watch.watches.problem)
    limit(1000)
    watch.use(watch_directories([sys.argv[1]]))
    open(sys.argv[1] + "/remote/new.journal", "w").close()
    change = await asyncio.wait_for(watch.wait(), 60)
    print(len(watch.watches.interests), change.rescan, watch.watches.problem)

asyncio.run(main())
"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("what", "number", "limit"), [("watches", 2, "max_user_watches"), ("instances", 0, "max_user_instances")]
)
def test_a_limit_is_named_with_its_value_and_watching_goes_on_when_it_is_raised(
    tmp_path: Path, what: str, number: int, limit: str
) -> None:
    top = tmp_path / "journal"
    for name in (MACHINE, f"{MACHINE}.web", "remote"):
        (top / name).mkdir(parents=True)
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", WATCHES, top, what, str(number)],
        env={**os.environ, "PYTHONPATH": os.fspath(CHECKOUT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refused, after = done.stdout.splitlines()
    present = int(Path(f"/proc/sys/fs/inotify/{limit}").read_text())
    assert f"); fs.inotify.{limit} is {present}; raise it: sysctl fs.inotify.{limit}={2 * present}" in refused
    assert "/proc/self/fd" not in refused
    assert after == "5 True ", "its parent, the top and its three directories"


class Refusing:
    """watch_directories, which is refused as long as the test wants."""

    def __init__(self) -> None:
        self.tries_s: list[float] = []
        self.refuse = True
        self.done = threading.Event()

    def __call__(self, _: tuple[str, ...]) -> Watches:
        self.tries_s.append(time.monotonic())
        if self.refuse:
            return Watches(problem="/j: cannot watch it: no space; fs.inotify.max_user_watches is 2")
        self.done.set()
        return Watches()


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    refresh = Refusing()
    monkeypatch.setattr(daemon, "watch_directories", refresh)
    monkeypatch.setattr(daemon, "FAILED_S", 0.2)
    return refresh


def serve(tmp_path: Path, said: list[str], until: Callable[[daemon.Daemon], bool]) -> None:
    """A service over a directory that is not there, until that is so."""
    state = tmp_path / "state"
    state.mkdir()

    def engine() -> Engine:
        return Engine(Config(), directories=(str(tmp_path / "absent"),), state_directory=str(state), follows=True)

    async def main() -> None:
        service = daemon.Daemon(engine, lambda _, sentence, *__, **___: said.append(sentence))
        running = asyncio.create_task(service.run())
        end_s = time.monotonic() + PATIENCE_S
        while not until(service) and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
        service._end()
        await running

    asyncio.run(main())


def test_a_refused_watch_is_tried_again_and_the_service_looks_meanwhile(tmp_path: Path, refusing: Refusing) -> None:
    said: list[str] = []

    def until(service: daemon.Daemon) -> bool:
        if len(refusing.tries_s) >= 4 and service._worker.cycles >= 3:
            refusing.refuse = False
        return refusing.done.is_set() and any("OK: " in line for line in said)

    serve(tmp_path, said, until)
    assert refusing.done.is_set(), "nobody tried again"
    waits_s = [after - before for before, after in pairwise(refusing.tries_s)]
    assert min(waits_s[1:]) > 0.2, "not at once"
    refusals = [line for line in said if "max_user_watches" in line]
    assert len(refusals) == 1, "once a day, whatever the number of tries"
    assert [line for line in said if "OK: " in line]
