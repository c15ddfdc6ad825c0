# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process namespace and cgroups around one program, so that all it starts ends with it.

Whatever ends, a command or the thread that started it (even by SIGKILL),
the kernel kills everything in the shelter, and `kill` returns when nothing of it is left.
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
"""What process 1 of the shelter does, and stays: nspawn for one does not know how to be that.

A mount namespace is a copy: other scratch volumes are let go of, or they would stay mounted
here, with their caches, after their owners have unmounted them. Their owner may unmount one
meanwhile, which is seen here, too.
"""


class Shelter:
    """`argv` running behind walls, in cgroups of its own called `name`, below ours.

    `volume` is where the one scratch volume is mounted that it needs.
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
        """Whether the program has not ended."""
        return self._engine.poll() is None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end, leave no cgroup behind and return the exit status.

        Raises: subprocess.TimeoutExpired.
        """
        status = self._engine.wait(timeout_s)
        for group in self.cgroups:
            _remove_cgroup(group)
        return status

    def kill(self) -> int:
        """Kill process 1 of the shelter: the kernel kills the others before it lets it end."""
        for pid, (parent, _) in _processes().items():
            if parent == self._engine.pid:
                os.kill(pid, signal.SIGKILL)
        try:
            return self.wait(60)
        except subprocess.TimeoutExpired:
            self._engine.kill()
            return self.wait()

    def pid_of(self, inner: list[str]) -> int:
        """The pid here of the process whose pids are `inner` in the shelter and in the namespaces below it.

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
    """Every process here, with its parent and its pids in the namespaces from ours down.

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
    """This process's own cgroup in the hierarchy mounted at `tree`."""
    name = "name=systemd" if tree.name == "systemd" else ""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == name:
            return tree / path.lstrip("/")
    return tree


def _remove_cgroup(top: Path) -> None:
    """Remove a cgroup and those below it; the last process may take a moment to be gone."""
    for folder, _, _ in os.walk(top, topdown=False):
        deadline = time.monotonic() + 5
        while True:
            try:
                os.rmdir(folder)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
