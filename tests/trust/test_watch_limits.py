# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's limits on inotify, real ones: a user namespace of the test's own has as few as it likes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.service import daemon
from journalkeeper.service.log import Log
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
    print(len(watch.watches.directories), change.renamed, watch.watches.problem)

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
    assert after == "4 True ", "the top and its three directories"


async def test_a_refused_watch_is_tried_again_and_the_service_looks_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, tries_s = list[str](), list[float]()

    def watch(_: tuple[str, ...]) -> Watches:
        tries_s.append(time.monotonic())
        refused = len(tries_s) <= 4
        return Watches(problem="/j: cannot watch it: fs.inotify.max_user_watches is 2") if refused else Watches()

    monkeypatch.setattr(daemon, "watch_directories", watch)
    monkeypatch.setattr(daemon, "RETRY_S", 0.2)
    top = str(tmp_path / "absent")
    engine = partial(Engine, Config(), directories=(top,), state_directory=str(tmp_path), follows=True)
    log = Log(None)
    monkeypatch.setattr(log, "say", lambda _, sentence, *__, **___: said.append(sentence))
    service = daemon.Daemon(engine, log)
    running = asyncio.create_task(service.run())
    async with asyncio.timeout(PATIENCE_S):
        while len(tries_s) <= 4 or service._worker.cycles < 3 or not any("OK: " in line for line in said):
            await asyncio.sleep(0.05)
    service._wake_to_stop()
    await running
    assert min(after_s - before_s for before_s, after_s in pairwise(tries_s[1:])) > 0.2, "not at once"
    assert len([line for line in said if "max_user_watches" in line]) == 1, "once a day, whatever the number of tries"
