# SPDX-License-Identifier: LGPL-2.1-or-later
"""The `guest` command, as a person uses it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from journalkeeper.probe import scratch_volume as lab
from tests.guest.conftest import require_guest

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow, pytest.mark.long]

Say = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Say]:
    """Run `guest` with hosts of the test's own; what was made is removed."""
    require_guest()
    monkeypatch.setenv("JOURNALKEEPER_GUESTS", str(tmp_path / "hosts"))
    program = Path(__file__).with_name("guest")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=300)

    yield run
    for folder in (tmp_path / "hosts").glob("*"):
        run("rm", folder.name)


def test_a_host_is_made_booted_cut_off_powered_off_and_removed(say: Say) -> None:
    assert "say: guest boot it" in say("make", "bookworm", "it").stdout
    assert "it is up after" in say("boot", "it").stdout
    assert say("shell", "it", "--", "systemctl", "is-system-running").stdout == "running\n"
    assert say("throttle", "it", "5000").stdout == "5000 I/O operations a second\n"
    assert say("age", "it", "3").stdout.startswith("3 flushes, ")
    assert say("snapshot", "it", "one").stdout.endswith("/host-one\n")
    say("shell", "it", "--", "sh", "-c", "echo word >/root/kept; sync")
    assert say("cut", "it").stdout.startswith("up after")
    assert say("reboot", "it").stdout.startswith("up after")
    assert say("list").stdout.split()[:3] == ["it", "bookworm", "booted"]
    assert say("poweroff", "it").returncode == 0
    assert say("list").stdout.split()[:3] == ["it", "bookworm", "off"]
    assert say("boot", "it").returncode == 0
    assert say("shell", "it", "--", "cat", "/root/kept").stdout == "word\n"
    assert say("rm", "it").returncode == 0
    assert say("list").stdout == ""


def test_what_cannot_be_done_is_said_with_what_to_do_instead(say: Say) -> None:
    assert "say: guest make bookworm it" in say("boot", "it").stderr
    assert say("make", "bookworm", "it").returncode == 0
    assert "is there already" in say("make", "trixie", "it").stderr
    assert "is not booted; say: guest boot it" in say("shell", "it").stderr
    assert say("boot", "it").returncode == 0
    again = say("boot", "it")
    assert again.returncode == 1
    assert again.stderr == "guest: it is booted already, or about to be\n"
    assert say("shell", "it", "--", "true").returncode == 0


def test_an_image_that_is_attached_elsewhere_is_not_booted(say: Say, tmp_path: Path) -> None:
    """Two mounts of one image by two loop devices would destroy its filesystem."""
    assert say("make", "bookworm", "it").returncode == 0
    image = tmp_path / "hosts/it/disk0.img"
    device = lab.run("losetup", "--find", "--show", image).strip()
    try:
        refused = say("boot", "it")
    finally:
        lab.run("losetup", "--detach", device)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"guest: {image} is attached to {device}: ")
    assert say("boot", "it").returncode == 0
