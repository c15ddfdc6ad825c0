# SPDX-License-Identifier: LGPL-2.1-or-later
"""A whole Debian host in a container: booted by its own systemd, on a btrfs of its own.

With its Guest end the guest's processes, mounts, loop device and cgroups. After a SIGKILL of this process the guest's
processes end, but an empty cgroup stays, and so do mounts outside of a mount namespace of this process.

    with Guest("trixie") as guest:             # 2 s, after 30 s for the first of a release
        guest.boot()                           # 3 s
        guest.run("journalctl", "--rotate")
        guest.volume.throttle(150)             # I/O operations a second
        guest.reboot()
        print(guest.boot_seconds(), guest.flush_seconds())

`nocow` is the state of /var/log/journal before the first boot. None is Debian's way: tmpfiles sets +C on the directory
after journald has made the first system.journal. True is +C from the start, False is datacow for ever.

It needs root, systemd-container, mmdebstrap, btrfs-progs and zstd. systemd need not run
here. Where it does, and where cgroup 2 is all there is, start Python by
`systemd-run --scope -p Delegate=yes`, so that nspawn may make cgroups below its own and
the throttle reaches them. The guest dies with the thread that booted it (PDEATHSIG).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from journalkeeper.probe import scratch_volume as lab
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.guest import base
from tests.guest.shelter import Shelter
from tests.patience import PATIENCE_S
from tests.volumes import drop_caches, why_no_bed

OFF_S = 300.0
"""How long a guest may take to shut down."""

REBOOTED = 133
"""How nspawn ends under --keep-unit when the guest asked for a reboot (EXIT_FORCE_RESTART)."""

QUIET = ("apt-daily.timer", "apt-daily-upgrade.timer", "fstrim.timer", "e2scrub_all.timer", "console-getty.service")
"""Masked: they would do I/O of their own at some boots and not at others."""


def missing() -> str | None:
    """Return one line that states why no guest can be booted here; None if it can."""
    for tool, package in base.TOOLS.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed (package {package})"
    return why_no_bed()


class Guest:
    """One host: `release` on subvolume `name` of `volume`, or of a new volume of `size`, mounted with `options`.

    A volume of the caller's stays, and so does the host on it; another Guest of the same
    name finds it there and boots it as it is. Several may share one volume.
    """

    def __init__(
        self,
        release: str = "bookworm",
        *,
        volume: ScratchVolume | None = None,
        size: str = "16G",
        options: str = "",
        name: str = "host",
        nocow: bool | None = None,
    ) -> None:
        self.release = release
        self.name = name
        self._shelter: Shelter | None = None
        self._leader = 0
        self._owns_volume = volume is None
        tarball = base.tarball(release)  # before there is anything to clean up: this takes a while
        self.volume = volume or ScratchVolume(size, options=options)
        try:
            if not self.root.exists():
                self._install(tarball, nocow=nocow)
            self.machine_id = (self.root / "etc/machine-id").read_text().strip()
        except BaseException:
            self.close()
            raise

    def _install(self, tarball: Path, *, nocow: bool | None) -> None:
        lab.run("btrfs", "subvolume", "create", self.root)
        base.unpack(tarball, self.root)
        etc, journal = self.root / "etc", self.root / "var/log/journal"
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        for unit in QUIET:
            (etc / "systemd/system" / unit).symlink_to("/dev/null")
        journal.mkdir(exist_ok=True)
        if nocow:
            lab.run("chattr", "+C", journal)
        elif nocow is False:
            (etc / "tmpfiles.d/journal-nocow.conf").symlink_to("/dev/null")

    @property
    def root(self) -> Path:
        """The guest's / on this machine, whether it runs or not (without its /run, /tmp, /dev)."""
        return self.volume.mountpoint / self.name

    @property
    def journal(self) -> Path:
        """The guest's /var/log/journal/MACHINE-ID on this machine."""
        return self.root / "var/log/journal" / self.machine_id

    @property
    def console(self) -> Path:
        """The file with the output of the guest's console since its last boot."""
        return self.volume.base / f"{self.name}.console"

    @property
    def running(self) -> bool:
        """True if the guest is booted or boots."""
        return self._shelter is not None and self._shelter.running

    def boot(self, timeout_s: float = 300) -> None:
        """Boot, and wait until multi-user.target and its units have started.

        Raises: RuntimeError with the console's last lines if it does not come up in time.
        """
        if self.running:
            raise RuntimeError(f"guest {self.name} is booted already")
        with (
            tempfile.TemporaryDirectory(prefix="notify-") as place,  # a socket's path has at most 107 bytes
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
        ):
            path = Path(place) / "socket"
            ready.bind(os.fspath(path))
            ready.settimeout(0.5)
            self._shelter = self._start(path)
            try:
                self._leader = self._await_ready(ready, self._shelter, timeout_s)
                self.run("systemctl", "is-active", "multi-user.target")
            except BaseException:
                self._kill()
                raise

    def _start(self, notify: Path) -> Shelter:
        unique = f"journalkeeper-{self.machine_id[:12]}"
        nspawn = [
            "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--notify-ready=yes", "--link-journal=no",
            "--timezone=off", "--console=read-only", f"--machine={unique}", f"--hostname={self.name}",
            f"--directory={self.root}", "--boot",
        ]  # fmt: skip
        environment = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "NOTIFY_SOCKET": os.fspath(notify)}
        place = self.volume.mountpoint
        return Shelter(unique, nspawn, volume=place, environment=environment, output=self.console)

    def _await_ready(self, ready: socket.socket, shelter: Shelter, timeout_s: float) -> int:
        """Read nspawn's notifications until the guest's systemd has booted, and return the pid of that systemd."""
        leader = ""
        deadline = time.monotonic() + timeout_s
        while shelter.running and time.monotonic() < deadline:
            try:
                words = ready.recv(4096).decode().split("\n")
            except TimeoutError:
                continue
            for word in words:
                if word.startswith("X_NSPAWN_LEADER_PID="):
                    leader = word.partition("=")[2]
            if "READY=1" in words:
                return shelter.pid_of([leader, "1"])
        what = f"was not up after {timeout_s:.0f} s" if shelter.running else "ended while booting"
        raise RuntimeError(f"guest {self.name} {what}; its console ended with:\n{self._last_words()}")

    def _last_words(self) -> str:
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-15:])

    def run(
        self,
        *argv: str,
        user: str | None = None,
        check: bool = True,
        text_in: str | None = None,
        timeout_s: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the guest, as root or `user`, with a login's environment.

        It runs in no unit of the guest; `systemd-run` starts one.
        Raises: RuntimeError with what it said if it fails and `check` is set; TimeoutExpired.
        """
        done = subprocess.run(
            self.command(*argv, user=user), input=text_in, stdin=None if text_in is not None else subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=timeout_s,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise RuntimeError(f"{self.name}: {' '.join(argv)}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def command(self, *argv: str, user: str | None = None) -> list[str]:
        """Return the words that run `argv` in the guest."""
        as_user = [f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        return [
            "nsenter", f"--target={self._leader}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--",
            "setpriv", *as_user, "--reset-env", "--pdeathsig=KILL", "--", *argv,
        ]  # fmt: skip

    def shell(self, text: str, *, timeout_s: float = 300) -> str:
        """Run a shell script in the guest and return what it printed; it ends at the first command that fails."""
        return self.run("bash", "-euo", "pipefail", "-c", text, timeout_s=timeout_s).stdout

    def age(self, flushes: int, messages: int = 40, *, namespace: str = "") -> None:
        """Make `flushes` real flushes of `messages` messages to system.journal, or to that of a namespace."""
        script = (Path(__file__).with_name("ager.py")).read_text()
        argv = ["python3", "-", str(flushes), str(messages), f"--namespace={namespace}"]
        self.run(*argv, text_in=script, timeout_s=3600)

    def poweroff(self, *, how: str = "poweroff") -> int:
        """Shut down cleanly by `systemctl HOW` and return the exit status of nspawn.

        Raises: RuntimeError if it does not end in time.
        """
        if self._shelter is None:
            raise RuntimeError(f"guest {self.name} is not booted")
        # nsenter stops itself when systemd, killing all others, stops its child
        with suppress(subprocess.TimeoutExpired):
            done = self.run("systemctl", how, check=False, timeout_s=30)
            if done.returncode > 0 and self.running:
                raise RuntimeError(f"{self.name}: systemctl {how}: {done.stderr.strip()}")
        try:
            status = self._shelter.wait(OFF_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"guest {self.name} still runs after {OFF_S} s; its console ended with:\n{self._last_words()}"
            ) from None
        self._shelter = None
        return status

    def reboot(self) -> None:
        """Shut down for a reboot, and boot with cold caches."""
        if (status := self.poweroff(how="reboot")) != REBOOTED:
            raise RuntimeError(f"guest {self.name} ended with {status} instead of rebooting:\n{self._last_words()}")
        self.remount()
        drop_caches()
        self.boot()

    def remount(self) -> None:
        """Mount the volume again, with empty caches. No guest on it may run.

        Raises: RuntimeError if it stays mounted in another mount namespace.
        """
        self.volume.unmount()
        self.volume.await_release(PATIENCE_S)
        self.volume.mount()

    def boot_seconds(self) -> float:
        """Return the seconds that userspace took to boot, as systemd-analyze(1) counts them."""
        return self._between("Userspace", "Finish")

    def flush_seconds(self) -> float:
        """Return the seconds of the boot that opening the journal took."""
        return self._between("InactiveExit", "ActiveEnter", "systemd-journal-flush.service")

    def _between(self, first: str, last: str, *unit: str) -> float:
        """Return the seconds between two timestamps of a unit, or of systemd itself."""
        names = [f"{word}TimestampMonotonic" for word in (first, last)]
        text = self.run("systemctl", "show", f"--property={','.join(names)}", *unit).stdout
        stamps = dict(line.split("=") for line in text.split())
        return (int(stamps[names[1]]) - int(stamps[names[0]])) / 1e6

    def copy_in(self, source: str | os.PathLike[str], target: str) -> None:
        """Copy a file or tree to a path in the guest, which need not run; not below its /run or /tmp."""
        place = self.root / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        lab.run("cp", "--archive", "--no-preserve=ownership", source, place)

    def snapshot(self, name: str) -> Path:
        """Take a read-only snapshot of the guest's root, as snapper would; returns its path here."""
        place = self.volume.mountpoint / "snapshots" / f"{self.name}-{name}"
        place.parent.mkdir(exist_ok=True)
        lab.run("btrfs", "subvolume", "snapshot", "-r", self.root, place)
        return place

    def close(self) -> None:
        """End the guest at once, and remove its volume if the guest made it."""
        with ExitStack() as steps:
            if self._owns_volume:
                steps.callback(self.volume.close)
            steps.callback(self._kill)

    def _kill(self) -> None:
        if self._shelter is not None:
            self._shelter.kill()
            self._shelter = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
