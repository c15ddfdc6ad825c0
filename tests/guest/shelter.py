# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process namespace and cgroups around one program, so that every process that it starts ends with it.

When the program ends, or the thread that started it (even by SIGKILL), the kernel kills every process in the shelter.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

TREES = (Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
WALLS = (
    "setpriv", "--pdeathsig=KILL",
    "unshare", "--fork", "--pid", "--mount-proc", "--kill-child", "--propagation=slave",
)  # fmt: skip
ENTER = """
keep=$1
shift
findmnt --raw --noheadings --types btrfs --output SOURCE,TARGET | while read -r source target; do
    case $source in
    /dev/loop*) [ "$target" = "$keep" ] || umount --lazy "$target" || ! findmnt "$target" ;;
    esac
done
for group; do
    shift
    [ "$group" = -- ] && break
    echo $$ >"$group/cgroup.procs"
done
"$@"
exit $?
"""
"""The script of process 1 of the shelter, because nspawn cannot be process 1.

A mount namespace is a copy. Other scratch volumes are unmounted in it, because they would stay mounted there, with
their caches, after their owners have unmounted them. An owner may unmount one at the same time.
"""


class Shelter:
    """`argv` running in its own namespaces, and in cgroups called `name` below those of this process.

    `volume` is the mount point of the only scratch volume that it needs.
    """

    def __init__(
        self, name: str, argv: Sequence[str], *, volume: Path, environment: dict[str, str], output: Path
    ) -> None:
        self.cgroups = [_own_cgroup(tree) / name for tree in TREES if (tree / "cgroup.procs").exists()]
        for path in self.cgroups:
            path.mkdir(exist_ok=True)
        words = [*WALLS, "sh", "-ec", ENTER, "shelter", os.fspath(volume), *map(os.fspath, self.cgroups), "--", *argv]
        with output.open("wb") as file:
            self._engine = subprocess.Popen(
                words, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    @property
    def running(self) -> bool:
        """True until the program has ended."""
        return self._engine.poll() is None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end, remove the cgroups, and return the exit status.

        Raises: subprocess.TimeoutExpired.
        """
        status = self._engine.wait(timeout_s)
        for group in self.cgroups:
            _remove_cgroup(group)
        return status

    def kill(self) -> int:
        """Kill every process in the shelter, wait for their end, and return the exit status."""
        for pid, (parent, _) in _processes().items():
            if parent == self._engine.pid:
                os.kill(pid, signal.SIGKILL)
        try:
            return self.wait(60)
        except subprocess.TimeoutExpired:
            self._engine.kill()
            return self.wait()

    def pid_of(self, inner: list[str]) -> int:
        """Return the pid, in this namespace, of the process whose pids are `inner` in the shelter and below it.

        Raises: LookupError.
        """
        processes = _processes()
        for pid, (_, names) in processes.items():
            above = pid
            while names[1:] == inner and above in processes:
                above = processes[above][0]
                if above == self._engine.pid:
                    return pid
        raise LookupError(f"there is no process {'/'.join(inner)} in the shelter")


def _processes() -> dict[int, tuple[int, list[str]]]:
    """Return every process with its parent and its pids in this namespace and those below it.

    Source: proc_pid_status(5), PPid and NSpid.
    """
    found = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        found[int(status.parent.name)] = (int(lines["PPid"]), lines["NSpid"].split())
    return found


def _own_cgroup(tree: Path) -> Path:
    """Return this process's cgroup in the hierarchy mounted at `tree`."""
    name = "name=systemd" if tree.name == "systemd" else ""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == name:
            return tree / path.lstrip("/")
    return tree


def _remove_cgroup(top: Path) -> None:
    """Remove a cgroup and those below it. Wait until the last process in them has ended."""
    for folder, _, _ in os.walk(top, topdown=False):
        deadline = time.monotonic() + 60
        while True:
            try:
                os.rmdir(folder)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
