# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asking a journald that answers as told."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from journalkeeper.journald import control, layout
from journalkeeper.model.errors import KeeperError

ID = "0123456789abcdef0123456789abcdef"
Listen = Callable[..., list[bytes]]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for /run/systemd/journal."""
    path = tmp_path / "journal"
    path.mkdir()
    monkeypatch.setattr(control, "RUNTIME", str(path))
    return path


@pytest.fixture
def listen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listen]:
    """Answer one call at `path`, as root, with these parts, or with nothing but silence; gives the list of calls."""
    if os.geteuid() != 0:
        monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: control.PEER.pack(os.getpid(), 0, 0))
    with ExitStack() as stack:

        def start(path: str, *parts: bytes, silent: bool = False) -> list[bytes]:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            server = socket.socket(socket.AF_UNIX)
            server.bind(path)
            server.listen()
            calls: list[bytes] = []
            done = threading.Event()

            def serve() -> None:
                channel, _ = server.accept()
                with channel, suppress(ConnectionError):
                    calls.append(channel.recv(4096))
                    for part in parts:
                        channel.sendall(part)
                    if silent:
                        done.wait(20)

            thread = threading.Thread(target=serve)
            thread.start()
            stack.callback(server.close)
            stack.callback(thread.join)
            stack.callback(done.set)
            return calls

        yield start


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ((b'{"error":"io.systemd.PermissionDenied"}\0',), "io.systemd.PermissionDenied"),
        ((b'"no"\0',), "refused to rotate: no"),
        ((), "answer is not a JSON object"),
        ((b'{"parameters":',), "answer is not a JSON object"),
        ((b"x" * (control.ANSWER_BYTES + 1),), "answer is not a JSON object"),
    ],
)
def test_any_other_answer_is_an_error(runtime: Path, listen: Listen, parts: tuple[bytes, ...], what: str) -> None:
    listen(control.get_socket_path(), *parts)
    with pytest.raises(KeeperError, match=what):
        control.rotate()


def test_silence_is_an_error_after_the_time_given(runtime: Path, listen: Listen) -> None:
    listen(control.get_socket_path(), silent=True)
    with pytest.raises(KeeperError, match=r"did not answer within 0\.2 s"):
        control.rotate(timeout_s=0.2)


@pytest.mark.parametrize("answer", [b'{"parameters":{}}\0', b'{"error":"org.varlink.service.MethodNotFound"}\0'])
def test_a_journald_that_answers_anything_takes_messages(runtime: Path, listen: Listen, answer: bytes) -> None:
    calls = listen(control.get_socket_path(), answer)
    assert control.is_responsive("", 20) is True
    assert b"org.varlink.service.GetInfo" in calls[0]


def test_a_journald_that_is_silent_or_away_does_not_answer(runtime: Path, listen: Listen) -> None:
    assert control.is_responsive("", 20) is None
    listen(control.get_socket_path(), silent=True)
    assert control.is_responsive("", 0.2) is False


def test_a_stranger_who_listens_is_not_asked(runtime: Path, listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = listen(control.get_socket_path(), b"{}\0")
    for peer in (control.PEER.pack(0, 65534, 65534), control.PEER.pack(0, 0, 0), control.PEER.pack(9, 65534, 0)):
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "getsockopt", lambda *_, peer=peer: peer)
            with pytest.raises(KeeperError, match="is not this machine's journald"):
                control.rotate()
    assert b"Rotate" not in b"".join(calls)


# Who can be asked


@pytest.fixture
def own(runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine's journal directory, with a main journald and that of a namespace, both up."""
    top = tmp_path / "top"
    monkeypatch.setattr(layout, "TOP", str(top))
    monkeypatch.setattr(layout, "read_machine_id", lambda *_: ID)
    for name in (ID, f"{ID}.web", "f" * 32):
        (top / name).mkdir(parents=True)
    (runtime / "flushed").touch()
    Path(f"{runtime}.web").mkdir()
    for namespace in ("", "web"):
        with socket.socket(socket.AF_UNIX) as channel:
            channel.bind(control.get_socket_path(namespace))
    return top


def can_be_asked(path: Path) -> bool:
    return control.can_be_asked(layout.describe_directory(str(path)))


def test_nobody_is_asked_for_another_directory(own: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "mnt" / ID
    elsewhere.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(own / ID)
    for path in (elsewhere, link, own / ("f" * 32), own / f"{ID}.db", own, tmp_path / "gone"):
        assert not can_be_asked(path), path


Undo = Callable[[Path, pytest.MonkeyPatch], object]
OBSTACLES: dict[str, Undo] = {
    "it writes to /run": lambda runtime, _: (runtime / "flushed").unlink(),
    "no socket": lambda _runtime, _patch: os.unlink(control.get_socket_path()),
    "no machine id": lambda _, patch: patch.setattr(layout, "read_machine_id", lambda *_: ""),
    "an unreadable one": lambda _, patch: patch.setattr(layout, "read_machine_id", Mock(side_effect=PermissionError)),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_a_journald_of_this_machine_can_be_asked_until_an_obstacle_comes(
    own: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert can_be_asked(own / ID)
    assert can_be_asked(own / f"{ID}.web")
    OBSTACLES[name](runtime, monkeypatch)
    assert not can_be_asked(own / ID)
    assert can_be_asked(own / f"{ID}.web") is ("machine id" not in name and "unread" not in name)
