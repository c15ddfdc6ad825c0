# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run every example of journalkeeper(1) and journalkeeper-commands(1), which --help shows, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.probe.bed import Bed
from tests.adapters.command import need
from tests.adapters.pages import CHECKOUT, commands, make
from tests.daemon import environment
from tests.patience import eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

PATIENCE_S = 120.0
BESIDE = """
mount -t tmpfs none /mnt && mkdir -p "$1" && mount --bind /var/log/journal "$1"
settings=/etc/systemd/journald.conf.d
if [ -d $settings ]; then mount -t tmpfs none $settings; fi
"""
"""Mounts the journal of another host's disk, and hides drop-ins of journald, in the bed's mount namespace."""

NEW_CONF = "[Budget]\nBytesPerDay=256M\n"


class Reader:
    """A user who types the examples on a host whose /var/log/journal is the bed's."""

    def __init__(self, bed: Bed, place: Path) -> None:
        self.place = place
        bed.journald.age(30)
        bed.journald.rotate()
        (place / "new.conf").write_text(NEW_CONF)
        self._program("journalkeeper", f'PYTHONPATH={CHECKOUT} exec {sys.executable} -m journalkeeper "$@"')
        self._program("sudo", 'exec "$@"')
        self._enter = bed.journald.inside
        subprocess.run([*self._enter, "sh", "-c", BESIDE, "sh", "/mnt/var/log/journal"], check=True)

    def _program(self, name: str, line: str) -> None:
        (self.place / "bin").mkdir(exist_ok=True)
        (self.place / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.place / "bin" / name).chmod(0o755)

    def types(self, line: str, state: Path | None) -> subprocess.Popen[str]:
        ours = environment(state, PATH=f"{self.place}/bin:{os.environ['PATH']}")
        words = [*self._enter, "bash", "-o", "pipefail", "-c", f"cd {self.place} && {line}"]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=ours, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def end_service(process: subprocess.Popen[str], *, when: Callable[[], bool]) -> None:
    """Wait until `when` is true, and end a service with all of its shell."""
    eventually(lambda: when() or process.poll() is not None, PATIENCE_S)
    os.killpg(process.pid, signal.SIGTERM)


def test_every_example_succeeds(bed: Bed, tmp_path: Path) -> None:
    """It takes long because it starts some forty commands and two services."""
    need("jq")
    made = make(tmp_path / "made")
    pages = ("man1/journalkeeper.1", "man1/journalkeeper-commands.1")
    lines = [line for page in pages for line in commands(made / page)]
    assert len(lines) > 20
    reader = Reader(bed, tmp_path)
    for line in dict.fromkeys(lines):
        # the first takes minutes, and tests/btrfs/test_lab_compare.py runs it; the second needs a booted systemd
        if " lab compare " in line or " probe writes" in line:
            continue
        asks_service = " pause" in line or line.endswith(" resume")
        state = tmp_path / ("state" if "$PWD/state" in line else "own")
        typed = line.replace("--rate=100 ", "--rate=100 --seconds=1 ")  # and not the default of 30
        process = reader.types(typed, None if asks_service else state)
        service = " daemon" in line
        if service:
            end_service(process, when=(state / "history.db").exists)
        out, err = process.communicate(timeout=PATIENCE_S)
        if service:  # its stderr is its log
            assert process.returncode in {0, -signal.SIGTERM}, err
        elif asks_service:  # there is none here
            assert (process.returncode, out) == (1, ""), line
            assert "the service is not running or not on D-Bus" in err
        elif " retention" in line and "--undo" not in line:  # tests/guest/test_host.py has enough archives
            assert (process.returncode, out) == (1, ""), line
            assert "the retention is unknown" in err
        elif " isolate" in line:
            assert (process.returncode, out) == (1, ""), line
            assert "is a mount point" in err
        elif " doctor --check" in line:  # it depends on this machine
            assert (process.returncode in {0, 1}, err, bool(out)) == (True, "", True), line
        else:
            assert (process.returncode, err, bool(out)) == (0, "", True), line
