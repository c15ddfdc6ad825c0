# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process that may not ask the disk asks journalkeeper-measure's program, over a socket as in its units."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.btrfs.disk import read_disk_bytes
from journalkeeper.journald import opening
from journalkeeper.observe import disk_usage
from tests.journal_files import put
from tests.nobody import as_nobody
from tests.patience import eventually
from tests.volumes import disk_bytes

pytestmark = pytest.mark.root

PROGRAM = (sys.executable, "-m", "journalkeeper", "--measure")
UNPRIVILEGED = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")


class Unit:
    """What systemd does for a socket with Accept=yes, with the words that each process said on stderr."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.path = f"\0journalkeeper-test-{os.urandom(8).hex()}"
        self.said: list[str] = []
        self._words = words
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(self.path)
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection:
                if connection.recv(1, socket.MSG_PEEK) == b"":
                    return
                done = subprocess.run(
                    self._words, stdin=connection.fileno(), stderr=subprocess.PIPE, text=True, check=False
                )
                self.said.append(done.stderr)

    def words(self, answers: int = 1) -> list[str]:
        """What the processes of so many answers said; they end after their answer."""
        assert eventually(lambda: len(self.said) >= answers)
        return self.said

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as last:
            last.connect(self.path)
        self._thread.join()
        self._listening.close()


@pytest.fixture
def unit(request: pytest.FixtureRequest) -> Iterator[Unit]:
    running = Unit((*getattr(request, "param", ()), *PROGRAM))
    yield running
    running.close()


@pytest.fixture
def archive(place: Path, journal_bytes: bytes) -> Iterator[int]:
    fd = os.open(put(place, journal_bytes), os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_process_without_the_right_is_told_what_compsize_tells(archive: int, unit: Unit) -> None:
    assert as_nobody(lambda: read_disk_bytes(archive)) is None
    answer = as_nobody(lambda: disk_usage.measure_disk_bytes(archive, unit.path))
    assert answer == read_disk_bytes(archive) == disk_bytes(os.readlink(f"/proc/self/fd/{archive}"))
    assert unit.words() == [""]


def test_a_process_with_the_right_asks_nobody(archive: int) -> None:
    assert disk_usage.measure_disk_bytes(archive, "/nowhere") == read_disk_bytes(archive)


def test_nothing_is_told_about_what_is_no_journal(place: Path, unit: Unit) -> None:
    (place / "file").write_bytes(b"x" * 5000)
    with open(place / "file", "rb") as file:
        assert as_nobody(lambda: disk_usage.measure_disk_bytes(file.fileno(), unit.path)) is None
    with opening.open_directory(str(place)) as fd:
        assert as_nobody(lambda: disk_usage.measure_disk_bytes(fd, unit.path)) is None
    words = ("no journal file: wrong magic", "not a regular file")
    assert unit.words(2) == [f"journalkeeper: cannot measure: {word}\n" for word in words]


@pytest.mark.parametrize("unit", [UNPRIVILEGED], indirect=True)
def test_a_unit_without_the_right_says_so(archive: int, unit: Unit) -> None:
    assert as_nobody(lambda: disk_usage.measure_disk_bytes(archive, unit.path)) is None
    assert unit.words() == ["journalkeeper: cannot measure: this process lacks CAP_SYS_ADMIN\n"]


def test_a_question_without_a_descriptor_is_refused(unit: Unit) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(unit.path)
        channel.send(b"?")
        assert channel.recv(disk_usage.ANSWER_BYTES) == b""
    assert unit.words() == ["journalkeeper: cannot measure: the question contains no file descriptor\n"]


@pytest.mark.parametrize("path", ["/nowhere", "\0journalkeeper-test-nobody-listens"])
def test_without_the_unit_nothing_is_known(archive: int, path: str) -> None:
    assert as_nobody(lambda: disk_usage.measure_disk_bytes(archive, path)) is None


def test_who_may_not_ask_the_unit_is_told_nothing(archive: int, place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, opening.open_directory(str(place)) as fd:
        path = f"/proc/self/fd/{fd}/socket"  # the other name is too long for a socket
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen()
        assert as_nobody(lambda: disk_usage.measure_disk_bytes(archive, path)) is None


def test_a_unit_that_gives_no_answer_is_not_waited_for_for_ever(archive: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_usage, "ANSWER_S", 0.2)
    path = f"\0journalkeeper-test-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        assert as_nobody(lambda: disk_usage.measure_disk_bytes(archive, path)) is None
