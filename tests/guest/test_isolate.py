# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper isolate` on a booted host that logs: no message is lost, and journald needs no restart."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.cli import program
from journalkeeper.execute import isolate as execute
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.guest.conftest import require_guest
from tests.guest.host import Guest
from tests.guest.steps import eventually, install, property_of, verify

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow]

LOGGER = """
import os, socket, time
channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
channel.connect("/run/systemd/journal/socket")
number = 0
while not os.path.exists("/run/enough"):
    channel.send(b"SYSLOG_IDENTIFIER=counter\\nPRIORITY=6\\nMESSAGE=%d\\n" % number)
    number += 1
    time.sleep(0.005)
print(number)
"""


@pytest.fixture(scope="module")
def guest(guest: Guest) -> Guest:
    install(guest, "[Watch]\nSettleSec=1s\n")
    return guest


def stored(guest: Guest) -> list[int]:
    """Return the numbers of the logger that the journal has."""
    return sorted(map(int, guest.shell("journalctl --sync; journalctl -o cat -t counter").split()))


def status(guest: Guest) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(guest.shell("journalkeeper status -j || :"))
    return document


def is_isolated(guest: Guest) -> bool:
    return guest.shell("stat -c %i /var/log/journal").strip() == "256"


def is_flushed(guest: Guest) -> bool:
    return guest.run("test", "-e", "/run/systemd/journal/flushed", check=False).returncode == 0


def isolate(guest: Guest, word: str) -> None:
    """Move the journal when the service has ended its run."""

    def is_done() -> bool:
        process = guest.run("journalkeeper", "isolate", word, "-q", check=False)
        assert process.returncode == 0 or "already at work" in process.stderr, process.stderr
        return process.returncode == 0

    assert eventually(is_done)


def test_nothing_is_lost_while_the_journal_moves_and_moves_back(
    guest: Guest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    pid = property_of(guest, "systemd-journald", "MainPID")
    attributes = "stat -c '%U %G %a' /var/log/journal; getfacl -cp /var/log/journal; lsattr -d /var/log/journal/*"
    before = guest.shell(attributes)
    with subprocess.Popen(guest.command("python3", "-c", LOGGER), stdout=subprocess.PIPE, text=True) as logger:
        try:
            for word in ("--apply", "--undo", "--apply"):
                isolate(guest, word)
                guest.shell("sleep 1")
                assert is_isolated(guest) == (word == "--apply")
        finally:
            guest.shell("touch /run/enough")
        sent = int(logger.communicate()[0])
    assert sent > 400
    assert stored(guest) == list(range(sent))
    assert property_of(guest, "systemd-journald", "MainPID") == pid, "journald was restarted"
    assert guest.shell(attributes) == before
    verify(guest)
    # the service follows the new directory, and may write there
    assert eventually(lambda: status(guest)["health"] == "ok"), status(guest)
    copy = guest.volume.mountpoint / "copy"
    run("btrfs", "subvolume", "snapshot", guest.root, copy)
    for top in (guest.root, copy):  # for this machine, the guest is a container that runs
        with monkeypatch.context() as patch:
            patch.setattr(execute, "CLOSING_S", 1)
            assert program.run(["isolate", "--undo", "-D", str(top / "var/log/journal")]) == 1
    assert is_isolated(guest)
    said = capsys.readouterr().err
    assert "can write to" in said
    assert "copy/var/log/journal: its subvolume is /var/log/journal for " in said
    snapshot = guest.snapshot("after")
    assert not list((snapshot / "var/log/journal").iterdir()), "a snapshot of the root contains the journal"
    guest.reboot()
    assert is_isolated(guest)
    assert stored(guest) == list(range(sent))
    verify(guest)


def test_a_killed_move_ends_with_journald_in_var(guest: Guest) -> None:
    """journald leaves /run also when the command is killed while journald waits there."""
    guest.shell("systemctl stop journalkeeper.timer journalkeeper; journalkeeper isolate --undo -q || :")
    holder = "sh -c 'exec sleep 60 >>/var/log/journal/held'"
    guest.shell(f"systemd-run -q --unit=holder {holder}; systemd-run -q --unit=mover journalkeeper isolate --apply")
    assert eventually(lambda: not is_flushed(guest))
    guest.shell("systemctl kill --signal=KILL mover; systemctl stop holder")  # with its children
    assert eventually(lambda: is_flushed(guest))
    script = "journalkeeper isolate --apply -q & sleep 0.$((RANDOM % 5 + 1)); kill -KILL $! || :; wait $! || :"
    for _ in range(4):
        guest.shell(script)
        assert eventually(lambda: is_flushed(guest))
        guest.shell("journalkeeper isolate --apply -q && journalkeeper isolate --undo -q")
        guest.shell("logger -t killed here; journalctl --sync; journalctl -t killed -o cat | grep -q here")


def test_a_unit_that_can_write_is_named_and_its_journal_moves_after_its_stop(guest: Guest) -> None:
    """A namespace's journald writes. The other unit has no file open, and would keep the old directory."""
    guest.shell("systemctl stop journalkeeper.timer journalkeeper")
    words = ("ProtectSystem=strict", "ReadWritePaths=/var/log/journal")
    guest.shell(f"systemd-run -q --unit=idle -p {' -p '.join(words)} sleep infinity")
    named = r"idle.service \(\d+\) at its mount /var/log/journal"
    assert re.search(named, guest.run("journalkeeper", "isolate", "--apply", check=False).stderr)
    assert re.search(named, guest.shell("journalkeeper isolate"))
    guest.shell("systemctl stop idle.service")
    guest.shell("systemd-run -q --wait -p LogNamespace=other logger inside")
    said = guest.run("journalkeeper", "isolate", "--apply", check=False)
    assert said.returncode == 1
    assert "systemd-journald@other.service (" in said.stderr
    assert "End systemd-journald@other.service" in guest.shell("journalkeeper isolate")
    assert not is_isolated(guest)
    guest.shell("systemctl stop systemd-journald@other.socket systemd-journald-varlink@other.socket")
    guest.shell("systemctl stop systemd-journald@other.service; journalkeeper isolate --apply -q")
    assert "inside" in guest.shell("journalctl --namespace=other -o cat")


def test_the_old_journal_is_kept_while_journald_does_not_come_back(guest: Guest) -> None:
    """A journalctl that does not flush leaves journald in /run."""
    guest.shell("systemctl stop journalkeeper.timer journalkeeper; journalkeeper isolate --undo -q; logger -t stay one")
    broken = guest.root / "usr/local/bin/journalctl"
    broken.write_text('#!/bin/sh\n[ "$1" = --flush ] || exec /usr/bin/journalctl "$@"\n')
    broken.chmod(0o755)
    old = guest.root / "var/log/.journal-isolate"
    try:
        said = guest.run("journalkeeper", "isolate", "--apply", check=False)
        assert (said.returncode, is_isolated(guest)) == (1, True)
        assert f"no journald writes to it since the move; the old tree is /var/log/{old.name} until" in said.stderr
        assert list(old.rglob("system.journal"))
        guest.shell("logger -t stay two")
    finally:
        broken.unlink()
    guest.shell("journalkeeper isolate --apply -q; logger -t stay three; journalctl --sync")
    assert guest.shell("journalctl -t stay -o cat").split() == ["one", "two", "three"]
    assert not old.exists()
    verify(guest)


@pytest.mark.parametrize("tool", ["timeshift", pytest.param("snapper", marks=pytest.mark.long)])
def test_a_rollback_leaves_the_journal_behind_until_it_is_brought_back(tool: str) -> None:
    """timeshift gives the old root's name to a copy of the snapshot; snapper boots a copy with another name."""
    require_guest()
    with ScratchVolume("16G") as volume, Guest("bookworm", volume=volume) as old:
        old.boot()
        install(old, "")
        old.shell("logger -t step one")
        isolate(old, "--apply")
        old.shell("logger -t step two")
        snapshot = old.snapshot("later")
        old.shell("logger -t step three")
        old.poweroff()
        if tool == "timeshift":
            old.root.rename(volume.mountpoint / "before")
        run("btrfs", "subvolume", "snapshot", snapshot, volume.mountpoint / ("host" if tool == "timeshift" else "new"))
        with Guest("bookworm", volume=volume, name="host" if tool == "timeshift" else "new") as new:
            new.boot()
            node = os.stat(volume.device).st_rdev
            new.run("mknod", volume.device, "b", str(os.major(node)), str(os.minor(node)))
            new.shell("logger -t step four; journalctl --sync")
            assert new.shell("journalctl -t step -o cat").split() == ["four"]
            assert "read-only since a rollback" in new.shell("journalkeeper isolate")
            assert eventually(lambda: status(new)["health"] == "act"), status(new)
            (reason,) = status(new)["findings"]
            found = json.loads(new.shell("journalkeeper doctor -j || :"))["findings"]
            assert reason in found
            assert "a rollback left the journal in the old root" in reason["sentence"]
            assert reason["remedy"] == ["journalkeeper isolate --apply"]
            assert eventually(lambda: new.run("sh", "-c", *reason["remedy"], check=False).returncode == 0)
            assert is_isolated(new)
            assert eventually(lambda: status(new)["health"] == "ok"), status(new)
            for _ in range(2):
                assert new.shell("journalctl -t step -o cat").split() == ["one", "two", "three", "four"]
                verify(new)
                new.reboot()


DISK_UNIT = """\
[Unit]
DefaultDependencies=no
Wants=local-fs-pre.target
Before=local-fs-pre.target

[Service]
Type=oneshot
ExecStart=sh -c 'mkdir -p /dev/disk/by-uuid; mknod {device} b {number}; ln -s {device} /dev/disk/by-uuid/{uuid}'
"""
"""What udev does on a host."""


def lend_disk(guest: Guest) -> None:
    device = guest.volume.device
    node = os.stat(device).st_rdev
    number = f"{os.major(node)} {os.minor(node)}"
    uuid = run("findmnt", "-nvo", "UUID", guest.volume.mountpoint).strip()
    units = guest.root / "etc/systemd/system"
    (units / "disk.service").write_text(DISK_UNIT.format(device=device, number=number, uuid=uuid))
    (units / "local-fs.target.wants").mkdir(exist_ok=True)
    (units / "local-fs.target.wants/disk.service").symlink_to("../disk.service")


def can_write(guest: Guest, unit: str) -> bool:
    """Return whether a process of the unit can write next to the host's journal files, which it sees."""
    shell = "cd /var/log/journal/*/ && test -e system.journal && touch probe && rm probe"
    words = ("nsenter", "--mount", f"--target={property_of(guest, unit, 'MainPID')}", "sh", "-c", shell)
    return guest.run(*words, check=False).returncode == 0


def move_back_under_services(guest: Guest) -> None:
    """Move it while services with mounts of their own run. Only one with ReadWritePaths= has to be restarted."""
    strict = "-p ProtectSystem=strict -p ReadWritePaths=/var/log/journal"
    for name, words in (("full", "-p ProtectSystem=full"), ("strict", strict)):
        guest.shell(f"systemd-run -q --unit={name} {words} sleep infinity")
    isolate(guest, "--undo")
    assert not is_isolated(guest)
    assert (can_write(guest, "full"), can_write(guest, "strict")) == (True, False)
    guest.shell("systemctl restart strict")
    assert can_write(guest, "strict")


def fail_mount_once(guest: Guest) -> None:
    """Boot with a mount that fails. The service needs it, and comes back with it."""
    unit = "/etc/systemd/system/var-log-journal.mount"
    guest.shell(f"sed -i s,subvol=/@journal,subvol=/none, {unit}")
    guest.reboot()
    assert eventually(lambda: "does not run" in guest.shell("journalkeeper status || :"))
    assert not is_flushed(guest)
    guest.shell(f"sed -i s,subvol=/none,subvol=/@journal, {unit}; systemctl daemon-reload")
    guest.shell("journalkeeper isolate --apply -q")
    assert eventually(lambda: status(guest)["health"] == "ok"), status(guest)


def test_a_flat_journal_stays_mounted_after_a_rollback_and_moves_back() -> None:
    """The root is a subvolume of the volume, like "@"."""
    require_guest()
    with ScratchVolume("16G") as volume:
        with Guest("bookworm", volume=volume) as old:
            lend_disk(old)
            old.boot()
            install(old, "[Watch]\nSettleSec=1s\n")
            old.shell("logger -t step one; systemctl stop journalkeeper.timer journalkeeper")
            broken = old.root / "usr/local/bin/mv"
            broken.write_text("#!/bin/sh\nexit 1\n")
            broken.chmod(0o755)
            assert old.run("journalkeeper", "isolate", "--apply", "--flat", check=False).returncode == 1
            old.reboot()  # the unit is there, and its condition keeps the nested subvolume in use
            assert is_flushed(old)
            assert is_isolated(old)
            broken.unlink()
            old.shell(
                "systemctl stop journalkeeper; journalkeeper isolate --apply --flat -q; systemctl start journalkeeper"
            )
            assert "subvol=/@journal" in old.shell("findmnt -no OPTIONS /var/log/journal")
            old.shell("logger -t step two")
            fail_mount_once(old)
            old.reboot()
            snapshot = old.snapshot("later")
            assert not list((snapshot / "var/log/journal").iterdir()), "a snapshot of the root contains the journal"
            old.shell("logger -t step three; journalctl --sync")
            assert old.shell("journalctl -t step -o cat").split() == ["one", "two", "three"]
            assert eventually(lambda: status(old)["health"] == "ok"), status(old)
            old.poweroff()
            old.root.rename(volume.mountpoint / "before")
        run("btrfs", "subvolume", "snapshot", snapshot, volume.mountpoint / "host")
        with Guest("bookworm", volume=volume) as new:
            new.boot()
            new.shell("logger -t step four; journalctl --sync")
            steps = ["one", "two", "three", "four"]
            assert new.shell("journalctl -t step -o cat").split() == steps
            assert "it is mounted there, too" in new.shell("journalkeeper isolate")
            assert eventually(lambda: status(new)["health"] == "ok"), status(new)
            verify(new)
            move_back_under_services(new)
            assert new.run("findmnt", "/var/log/journal", check=False).returncode == 1
            assert new.shell("systemctl list-unit-files --no-legend var-log-journal.mount || :") == ""
            assert not (volume.mountpoint / "@journal").exists()
            assert eventually(lambda: status(new)["health"] == "ok"), status(new)
            for _ in range(2):
                assert new.shell("journalctl -t step -o cat").split() == steps
                verify(new)
                new.reboot()
