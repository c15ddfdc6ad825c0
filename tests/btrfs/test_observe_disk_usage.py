# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process that may not ask the disk asks journalkeeper-measure's program, over a socket as in its units."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from journalkeeper.btrfs.disk import read_disk_bytes
from journalkeeper.journald.opening import open_directory
from journalkeeper.observe import disk_usage
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.journal_files import put
from tests.nobody import as_nobody

pytestmark = pytest.mark.root

PROGRAM = (sys.executable, "-m", "journalkeeper", "--measure")
UNPRIVILEGED = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *PROGRAM)


class Unit:
    """A socket with Accept=yes, as systemd serves it, for one connection. `path` is its address."""

    def __init__(self) -> None:
        self.path = f"\0journalkeeper-test-{os.urandom(8).hex()}"
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(self.path)
        self.listening.listen()

    def serve(self, *words: str, question: Callable[[], int | None]) -> tuple[int | None, str]:
        """Ask `question`, and run the command `words` to answer it. Return the answer, and the command's stderr."""
        said: list[str] = []

        def answer() -> None:
            connection, _ = self.listening.accept()
            with connection:
                done = subprocess.run(words, stdin=connection.fileno(), stderr=subprocess.PIPE, text=True, check=False)
            said.append(done.stderr)

        thread = threading.Thread(target=answer)
        thread.start()
        answered = question()
        thread.join()
        return answered, said[0]

    def close(self) -> None:
        self.listening.close()


@pytest.fixture
def unit() -> Iterator[Unit]:
    with closing(Unit()) as unit:
        yield unit


@pytest.fixture
def archive(place: Path, journal_bytes: bytes) -> Iterator[int]:
    with put(place, journal_bytes).open("rb") as file:
        yield file.fileno()


def ask(fd: int, path: str) -> int | None:
    """Ask the unit at `path` for the disk bytes of `fd`, without the right to ask the disk."""
    return as_nobody(lambda: disk_usage.measure_disk_bytes(fd, path))


def test_a_process_without_the_right_gets_the_number_of_snapshots(volume: ScratchVolume, unit: Unit) -> None:
    run("btrfs", "subvolume", "snapshot", volume.mountpoint, volume.mountpoint / "snapshot")
    with open_directory(str(volume.mountpoint)) as fd:
        for words, number in ((PROGRAM, 1), (UNPRIVILEGED, None)):
            question = partial(as_nobody, partial(disk_usage.count_snapshots, fd, unit.path))
            assert unit.serve(*words, question=question) == (number, "")
        assert as_nobody(lambda: disk_usage.count_snapshots(fd, "/nowhere")) is None


def test_a_process_with_the_right_does_not_ask_the_unit(archive: int) -> None:
    assert disk_usage.measure_disk_bytes(archive, "/nowhere") == read_disk_bytes(archive)


def test_a_unit_without_the_right_has_no_answer(archive: int, unit: Unit) -> None:
    assert unit.serve(*UNPRIVILEGED, question=lambda: ask(archive, unit.path)) == (None, "")


def test_a_file_that_the_unit_cannot_measure_has_no_answer_and_an_error_in_the_log(unit: Unit) -> None:
    def question() -> int | None:
        with open("/proc/self/stat", "rb") as file, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.connect(unit.path)
            socket.send_fds(channel, [b"?"], [file.fileno()])
            return len(channel.recv(disk_usage.ANSWER_BYTES))

    answered, said = unit.serve(*PROGRAM, question=question)
    assert answered == 0
    assert said.startswith("journalkeeper: cannot measure: [Errno 25]")


@pytest.mark.parametrize("path", ["/nowhere", "\0journalkeeper-test-nobody-listens"])
def test_without_the_unit_the_disk_usage_is_unknown(archive: int, path: str) -> None:
    assert ask(archive, path) is None


def test_the_wait_for_an_answer_ends(archive: int, unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_usage, "ANSWER_S", 0.2)
    assert ask(archive, unit.path) is None
