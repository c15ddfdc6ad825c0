# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tests that stand on a booted guest may count on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.btrfs.journals import is_nocow
from tests.guest import base
from tests.guest.conftest import require_guest
from tests.guest.host import REBOOTED, Guest
from tests.patience import eventually

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow, pytest.mark.long]

ORPHAN = """
import sys, time
from tests.guest.host import Guest
guest = Guest("bookworm")
guest.boot()
print(guest.leader, guest.machine_id[:12], flush=True)
time.sleep(600)
"""


def cgroups_of(unique: str) -> list[Path]:
    """The cgroups of a guest, wherever this process's own are."""
    return list(Path("/sys/fs/cgroup").glob(f"**/journalkeeper-{unique}"))


def alive(pid: int) -> bool:
    """Whether a process still runs."""
    return Path(f"/proc/{pid}").exists()


def test_the_release_brings_its_systemd(guest: Guest) -> None:
    assert guest.run("systemctl", "--version").stdout.split()[1] == str(base.SYSTEMD[guest.release])


def test_every_unit_has_started(guest: Guest) -> None:
    assert guest.run("systemctl", "--failed", "--no-legend", "--plain").stdout == ""
    assert guest.run("systemctl", "is-system-running").stdout.strip() == "running"


def test_journald_writes_to_btrfs(guest: Guest) -> None:
    assert guest.shell("stat -f -c %T /var/log/journal").strip() == "btrfs"
    guest.shell("systemd-cat -t bed echo hello from the bed; journalctl --sync")
    found = guest.shell("journalctl -t bed --output=cat --directory=/var/log/journal")
    assert "hello from the bed" in found.splitlines()
    assert (guest.journal / "system.journal").exists()


def test_stock_debian_makes_its_first_journal_datacow_and_the_next_nocow(
    make_guest: Callable[..., Guest], release: str
) -> None:
    guest = make_guest(release)
    guest.boot()
    assert is_nocow(guest.journal)
    assert not is_nocow(guest.journal / "system.journal")
    guest.run("journalctl", "--rotate")
    assert is_nocow(guest.journal / "system.journal")


@pytest.mark.parametrize("nocow", [False, True])
def test_nocow_is_as_asked_from_the_first_boot_and_after_a_rotation(
    make_guest: Callable[..., Guest], release: str, nocow: bool
) -> None:
    guest = make_guest(release, nocow=nocow)
    guest.boot()
    assert is_nocow(guest.journal / "system.journal") is nocow
    guest.run("journalctl", "--rotate")
    assert is_nocow(guest.journal / "system.journal") is nocow


def test_dbus_answers_and_polkit_decides(guest: Guest) -> None:
    actions = guest.run(
        "busctl", "call", "org.freedesktop.PolicyKit1", "/org/freedesktop/PolicyKit1/Authority",
        "org.freedesktop.PolicyKit1.Authority", "EnumerateActions", "s", "",
    ).stdout  # fmt: skip
    assert "org.freedesktop.systemd1.manage-units" in actions
    refused = guest.run("systemctl", "restart", "systemd-logind.service", user="user", check=False)
    assert refused.returncode != 0
    assert "authentication" in refused.stderr.lower()


def test_logind_gives_a_user_a_session(guest: Guest) -> None:
    login = ["systemd-run", "--quiet", "--wait", "--pipe", "-p", "User=user", "-p", "PAMName=login"]
    assert guest.run(*login, "sh", "-c", "echo $XDG_RUNTIME_DIR").stdout.strip() == "/run/user/1000"


def test_timers_fire(guest: Guest) -> None:
    guest.shell("systemd-run --quiet --on-active=1s --timer-property=AccuracySec=1ms touch /root/fired")
    assert eventually((guest.root / "root/fired").exists)


def test_a_command_that_fails_says_what_it_said(guest: Guest) -> None:
    with pytest.raises(RuntimeError, match="exit 3: words"):
        guest.shell("echo -n words >&2; exit 3")


def test_a_user_has_a_users_rights_and_home(guest: Guest) -> None:
    assert guest.shell("id -un; echo $HOME", user="user").split() == ["user", "/home/user"]
    assert guest.run("cat", "/etc/shadow", user="user", check=False).returncode != 0


def test_what_is_copied_in_is_there_and_owned_by_root(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("content")
    os.chown(tmp_path / "tree/file", 1234, 1234)
    guest.copy_in(tmp_path / "tree", "/opt/tree")
    assert guest.shell("cat /opt/tree/file; stat -c :%u /opt/tree/file").strip() == "content:0"


def test_a_reboot_is_a_new_boot_of_the_same_host(guest: Guest) -> None:
    before = guest.run("cat", "/proc/sys/kernel/random/boot_id", "/etc/machine-id").stdout.split()
    stamp = guest.run("systemctl", "show", "--property=UserspaceTimestamp").stdout
    guest.shell("echo kept >/root/kept")
    guest.reboot()
    assert guest.run("cat", "/root/kept").stdout == "kept\n"
    assert guest.run("cat", "/etc/machine-id").stdout.strip() == before[1]
    assert guest.run("systemctl", "show", "--property=UserspaceTimestamp").stdout != stamp
    assert len(guest.run("journalctl", "--list-boots", "--no-pager").stdout.splitlines()) >= 2


def test_a_poweroff_leaves_a_clean_journal(guest: Guest) -> None:
    guest.poweroff()
    assert not guest.running
    guest.boot()
    assert not list(guest.journal.glob("*.journal~"))


def test_a_kexec_reaches_its_target_and_ends_in_a_reboot(make_guest: Callable[..., Guest], release: str) -> None:
    guest = make_guest(release)
    guest.boot()
    assert guest.poweroff(how="kexec") == REBOOTED
    guest.boot()
    assert "Reboot via kexec" in guest.shell("journalctl --boot=-1 --unit=init.scope --output=cat | tail -50")


def test_a_soft_reboot_restarts_userspace_in_the_same_boot(make_guest: Callable[..., Guest]) -> None:
    guest = make_guest("trixie")
    guest.boot()
    leader, journald = guest.leader, guest.run("pgrep", "-x", "systemd-journal").stdout
    guest.soft_reboot()
    assert guest.leader == leader
    assert guest.run("pgrep", "-x", "systemd-journal").stdout != journald
    guest.soft_reboot()
    assert guest.run("systemctl", "show", "--property=SoftRebootsCount", "--value").stdout.strip() == "2"


def test_a_snapshot_shares_what_it_was_taken_of(guest: Guest) -> None:
    guest.shell("echo before >/root/word")
    taken = guest.snapshot("one")
    guest.shell("echo after >/root/word")
    assert (taken / "root/word").read_text() == "before\n"


def test_a_boot_takes_longer_under_a_throttle(make_guest: Callable[..., Guest], release: str) -> None:
    guest = make_guest(release, nocow=False)
    guest.boot()
    guest.age(40)
    guest.reboot()
    fast, fast_flush = guest.boot_seconds(), guest.flush_seconds()
    guest.reboot(between=lambda: guest.throttle(150))
    assert guest.boot_seconds() > 2 * fast
    assert guest.flush_seconds() > 2 * fast_flush


def test_a_power_cut_loses_what_was_not_synced(make_guest: Callable[..., Guest], release: str) -> None:
    guest = make_guest(release)
    guest.boot()
    guest.shell("echo kept >/root/synced; sync -f /root/synced; echo lost >/root/unsynced")
    guest.power_cut()
    assert (guest.root / "root/synced").read_text() == "kept\n"
    assert not (guest.root / "root/unsynced").exists()


def test_a_power_cut_leaves_an_unclean_journal_at_the_next_boot(make_guest: Callable[..., Guest], release: str) -> None:
    guest = make_guest(release)
    guest.boot()
    guest.shell("systemd-cat -t bed echo synced; journalctl --sync; systemd-cat -t bed echo unsynced; sync -f /")
    assert not list(guest.journal.glob("*.journal~"))
    guest.power_cut()
    guest.boot()
    assert list(guest.journal.glob("system@*.journal~"))
    assert "synced" in guest.shell("journalctl -t bed --output=cat").splitlines()


def test_a_guest_that_cannot_boot_says_what_was_on_its_console(make_guest: Callable[..., Guest]) -> None:
    guest = make_guest("bookworm")
    (guest.root / "usr/lib/systemd/systemd").write_text("#!/bin/sh\necho no system today\n")
    with pytest.raises(RuntimeError, match=r"ended while booting(?s:.*)no system today"):
        guest.boot()
    assert not guest.running


def test_two_guests_of_one_name_run_side_by_side(make_guest: Callable[..., Guest]) -> None:
    pair = [make_guest("bookworm"), make_guest("trixie")]
    for one in pair:
        one.boot()
    versions = [one.run("systemctl", "--version").stdout.split()[1] for one in pair]
    assert versions == ["252", "257"]
    pair[0].shell("echo lost >/root/unsynced")
    pair[0].power_cut()  # its filesystem must not live on in the other's mount namespace
    assert not (pair[0].root / "root/unsynced").exists()
    (pair[0].root / "root/writable").touch()
    pair[0].close()
    assert pair[1].run("systemctl", "is-system-running").stdout.strip() == "running"


def test_hosts_share_a_volume_of_the_callers_and_stay_on_it() -> None:
    require_guest()
    with ScratchVolume("4G") as volume:
        with Guest("bookworm", volume=volume, name="one") as one, Guest("bookworm", volume=volume, name="two") as two:
            for guest in (one, two):
                guest.boot()
                assert guest.run("hostname").stdout.strip() == guest.name
            first = one.machine_id
            assert two.machine_id != first
        with Guest("bookworm", volume=volume, name="one") as again:
            assert again.machine_id == first


def test_nothing_is_left_after_an_exception() -> None:
    require_guest()
    seen: list[tuple[int, Path, list[Path]]] = []

    def interrupted() -> None:
        with Guest("bookworm") as guest:
            guest.boot()
            seen.append((guest.leader, guest.volume.base, cgroups_of(guest.machine_id[:12])))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    [(leader, place, groups)] = seen
    assert groups
    assert not alive(leader)
    assert not place.exists()
    assert not any(group.exists() for group in groups)


def test_a_guest_dies_with_the_process_that_booted_it() -> None:
    require_guest()
    argv = ["unshare", "--mount", sys.executable, "-c", ORPHAN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            leader, unique = owner.stdout.readline().split()
            assert alive(int(leader))
        finally:
            owner.send_signal(signal.SIGKILL)
    assert eventually(lambda: not alive(int(leader)))
    for group in cgroups_of(unique):
        subprocess.run(["find", group, "-depth", "-type", "d", "-delete"], check=True)  # empty: else this would fail
